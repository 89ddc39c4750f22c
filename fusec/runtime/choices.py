"""What a caller may choose: names and numbers checked, with a hint where they do not fit.

May import ``fusec.errors``.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Sequence
from typing import Any

from fusec.errors import FusecError, UnsupportedError, did_you_mean


def choose(what: str, value: object, known: Sequence[str]) -> None:
    """UnsupportedError, with the nearest name, for a value that is not ``known``."""
    if value not in known:
        raise UnsupportedError(
            f"unknown {what} {value!r}",
            hint=did_you_mean(str(value), known) or f"one of {', '.join(known)}",
        )


def seconds(tune: float) -> float:
    """The time for tuning, in seconds; UnsupportedError for what is no time."""
    if isinstance(tune, bool) or not isinstance(tune, (int, float)) or not 0 <= tune < math.inf:
        raise UnsupportedError(
            f"tune is {tune!r}", hint="give the seconds that a search may take, as in tune=10"
        )
    return float(tune)


def kernel_name(name: str | None, source: str) -> str:
    """The name the user gave, else that of the formula's outermost function, else ``kernel``."""
    if name is not None:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise FusecError(
                f"{name!r} cannot name a kernel", hint="letters, digits and underscores"
            )
        return f"{name}_kernel"
    outermost = re.fullmatch(r"\s*([A-Za-z][A-Za-z0-9_]*)\s*\([^()]*\)\s*", source)
    return f"{outermost.group(1)}_kernel" if outermost else "kernel"


def function_only(source: Any, inputs: object, keepdim: bool) -> None:
    """UnsupportedError for what is no function, and for options of formulas beside one."""
    if not callable(source):
        raise UnsupportedError(
            f"fusec compiles a formula, a function or a sympy expression, not a "
            f"{type(source).__name__}",
            hint="a formula is text, as in fusec.compile('x * sigmoid(x)')",
        )
    if inputs is not None or keepdim:
        raise UnsupportedError(
            f"{'inputs' if inputs is not None else 'keepdim'}= is for formulas",
            hint="a function says itself what it takes and what it keeps",
        )


def own_name(function: Any) -> str:
    """A call of the function by its name, as a formula that names the kernel; or no text."""
    name = getattr(function, "__name__", "")
    return f"{name}()" if name.isidentifier() else ""
