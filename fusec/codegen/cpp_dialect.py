"""How C++ spells an expression.

May import ``fusec.ir``, ``codegen.kernel`` and ``codegen.expr``.
"""

from __future__ import annotations

from fusec.codegen.expr import ATOM, PREFIX, Dialect, shortest_float
from fusec.codegen.kernel import (
    Apply,
    Convert,
    Literal,
    Masked,
)
from fusec.ir.dtypes import I32, I64, DType
from fusec.ir.ops import Lowering, Op


class Cpp(Dialect):
    name = "cpp"

    def lowering(self, op: Op) -> Lowering:
        return op.cpp

    def literal(self, value: Literal, strict: bool) -> str:
        dtype, number = value.dtype, value.value
        if dtype.is_bool:
            return "true" if number else "false"
        if dtype.is_float:
            return _float(float(number), dtype)
        if abs(number) < 2**31 and (dtype is I32 or not strict):
            return str(int(number))
        if number == I64.minimum:
            return "INT64_MIN"
        return f"{dtype.cpp}{{{int(number)}}}"

    def convert(self, expression: Convert) -> tuple[str, int]:
        argument, through = expression.arg, expression.through
        if through is not None:
            inner = self.text(argument)
            if not argument.dtype.is_float:
                inner = f"static_cast<float>({inner})"
            return f"fusec::load(fusec::store<{through.cpp}>({inner}))", ATOM
        how = (
            "fusec::cast"
            if argument.dtype.is_float and not expression.dtype.is_float
            else "static_cast"
        )
        return f"{how}<{expression.dtype.cpp}>({self.text(argument)})", ATOM

    def masked(self, expression: Masked) -> tuple[str, int]:
        raise AssertionError("C++ loops end where the row ends")

    def finish(self, expression: Apply, text: str, precedence: int) -> tuple[str, int]:
        """C++ computes narrow integers as int, and bools with ``&`` as int: bring them back."""
        dtype = expression.dtype
        narrow = dtype.is_integer and dtype.bits < 32
        if narrow or (dtype.is_bool and expression.operand.is_bool and precedence != PREFIX):
            return f"static_cast<{dtype.cpp}>({text})", ATOM
        return text, precedence


def _float(number: float, dtype: DType) -> str:
    suffix = "f" if dtype.bits == 32 else ""
    if number != number:
        return f'__builtin_nan{suffix}("")'
    if number in (float("inf"), float("-inf")):
        return f"{'-' if number < 0 else ''}__builtin_inf{suffix}()"
    return shortest_float(number, dtype) + suffix
