"""What a caller may choose: names and numbers checked, with a hint where they do not fit.

May import ``fusec.errors``.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Sequence

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
