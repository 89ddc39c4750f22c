"""fusec turns a formula into one fast kernel you can read.

The public names live here and are loaded on first use, so that ``import fusec`` costs
milliseconds and brings in neither torch, triton, sympy, numpy, lark nor rich. May import
``fusec.api`` and everything below it, but only lazily.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from fusec.version import __version__

if TYPE_CHECKING:
    from fusec import nn
    from fusec.api import CompiledFunction, compile, fuse
    from fusec.errors import (
        BuildError,
        DTypeError,
        FusecError,
        InternalError,
        ParseError,
        ShapeError,
        UnknownNameError,
        UnsupportedError,
    )
    from fusec.runtime.counters import stats
    from fusec.runtime.model_report import last_report
    from fusec.runtime.traced import TracedFunction

__all__ = [
    "BuildError",
    "CompiledFunction",
    "DTypeError",
    "FusecError",
    "InternalError",
    "ParseError",
    "ShapeError",
    "TracedFunction",
    "UnknownNameError",
    "UnsupportedError",
    "__version__",
    "compile",
    "fuse",
    "last_report",
    "nn",
    "stats",
]

_HOMES = {
    "TracedFunction": "fusec.runtime.traced",
    "last_report": "fusec.runtime.model_report",
    "nn": "fusec.nn",
    "stats": "fusec.runtime.counters",
}

# Hidden from type checkers: they would take a module __getattr__ as leave for any name at all.
if not TYPE_CHECKING:

    def __getattr__(name):
        """Load a public name from the module that defines it, and keep it for the next use."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = _HOMES.get(name, "fusec.errors" if name.endswith("Error") else "fusec.api")
        from fusec.collector import without_collections

        with without_collections():
            value = (
                import_module("fusec.nn") if name == "nn" else getattr(import_module(home), name)
            )
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
