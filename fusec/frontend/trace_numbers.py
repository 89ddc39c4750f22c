"""Numbers that a function computes of lengths and of float arguments, in the language and in words.

May import the standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# Arithmetic on them, as PyTorch and sympy name it.
ARITHMETIC: Mapping[str, str] = MappingProxyType({
    "Add": "a + b", "Mul": "a * b", "Pow": "a ^ b", "PowByNatural": "a ^ b", "FloatPow": "a ^ b",
    "FloorDiv": "a // b", "CleanDiv": "a // b", "IntTrueDiv": "a / b", "FloatTrueDiv": "a / b",
    "Mod": "a % b", "PythonMod": "a % b", "Max": "maximum(a, b)", "Min": "minimum(a, b)",
    "ToFloat": "a", "OpaqueUnaryFn_sqrt": "sqrt(a)", "OpaqueUnaryFn_exp": "exp(a)",
    "OpaqueUnaryFn_log": "log(a)", "OpaqueUnaryFn_log2": "log2(a)", "Abs": "abs(a)",
    "Equality": "a == b", "Unequality": "a != b", "StrictGreaterThan": "a > b",
    "StrictLessThan": "a < b", "GreaterThan": "a >= b", "LessThan": "a <= b",
    "And": "a and b", "Or": "a or b", "Not": "not a",
})  # fmt: skip

# Python's names for what no kernel computes.
_IN_PYTHON = {
    "RoundDecimal": "round", "RoundToInt": "round", "FloorToInt": "floor", "CeilToInt": "ceil",
    "TruncToInt": "int", "TruncToFloat": "trunc", "ToFloat": "float",
}  # fmt: skip


def in_words(expression: Any, names: Mapping[Any, str]) -> str:
    """An expression as the user would write it; ``names`` are those of lengths and arguments."""
    known = {str(symbol): name for symbol, name in names.items()}

    def name_of(word: re.Match[str]) -> str:
        text = word.group().removeprefix("OpaqueUnaryFn_")
        owner, _, axis = known.get(text, _IN_PYTHON.get(text, text)).partition(".")
        return f"{owner}.shape[{axis}]" if axis else owner

    return re.sub(r"[A-Za-z_]\w*", name_of, str(expression))
