"""The small functions that generated CUDA may need, by name. Printed above the kernel that calls
them.

They are written in terms of the kernel's constants (LANES, GROUP, ...). May import ``fusec.ir`` and
``codegen.names``.
"""

from __future__ import annotations

import functools
import re

from fusec.codegen.cuda_joins import JOINS
from fusec.codegen.cuda_math import FUNCTIONS
from fusec.codegen.cuda_types import TYPES
from fusec.codegen.names import CUDA_WORDS
from fusec.ir.ops import OPS, Call

CALLED = "called_"  # before the name of a function that stands once


def _called() -> dict[str, str]:
    """Functions of long code that are called, in the place of those that are written out."""
    found = {}
    for op in OPS.values():
        for form, kind in ((op.cuda.usual, "float"), (op.cuda.double, "double")):
            if isinstance(form, Call) and form.long:
                names = "xy"[: op.arity]
                taken = ", ".join(f"{kind} {name}" for name in names)
                found[f"{CALLED}{form.name}"] = (
                    f"\n// Its code is long: it stands once, and not at every element.\n"
                    f"__device__ __noinline__ {kind} {CALLED}{form.name}({taken}) {{\n"
                    f"  return {form.name}({', '.join(names)});\n}}\n"
                )
    return found


HELPERS: dict[str, str] = {**TYPES, **FUNCTIONS, **JOINS, **_called()}
_WORD = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]*\b")


def needed(text: str) -> list[str]:
    """The helpers that ``text`` names, directly or through others, in the order of the table."""
    found: set[str] = set()
    pending = [text]
    while pending:
        for name in _WORD.findall(pending.pop()):
            if name in HELPERS and name not in found:
                found.add(name)
                pending.append(HELPERS[name])
    return [name for name in HELPERS if name in found]


@functools.cache
def words() -> frozenset[str]:
    """Every name that a variable of a kernel would hide: helpers, functions, the printer's own."""
    forms = [f for op in OPS.values() for f in (op.cuda.usual, op.cuda.fast, op.cuda.double)]
    return CUDA_WORDS | frozenset(HELPERS) | {f.name for f in forms if isinstance(f, Call)}
