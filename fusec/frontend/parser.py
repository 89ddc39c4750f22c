"""Text to syntax tree. Every error is a ParseError.

A tree that was made before is taken from the store, if the layers above gave one: then neither Lark
nor its tables are loaded. May import ``fusec.source``, ``fusec.version`` and, of the frontend,
``syntax`` and ``automaton``.
"""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Protocol

from fusec.frontend.syntax import Program
from fusec.source import Source
from fusec.version import __version__

_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which no file can hold
_LONGEST_KEPT = 1000  # characters; a longer formula is worth a moment, and may be deep


class TableStore(Protocol):
    """Where trees and the automaton's tables are kept between processes."""

    def __hash__(self) -> int: ...

    def load(self, parts: Mapping[str, str]) -> bytes | None:
        """What ``save`` stored under these parts, or None."""

    def save(self, parts: Mapping[str, str], tables: bytes) -> None:
        """Keep ``tables``; failing to is no error."""


def keep_tables(store: TableStore | None) -> None:
    """Let the parser take trees and tables from ``store``, and put them there."""
    global _tables
    _tables = store


_tables: TableStore | None = None


def parse(source: Source) -> Program:
    """The syntax tree of a formula, in time linear in its length; raises ParseError."""
    store = _tables
    if store is None or len(source.text) > _LONGEST_KEPT or _SURROGATE.search(source.text):
        return _parse(source)
    parts = {"what": "syntax tree", "text": source.text, "fusec": _identity()}
    stored = store.load(parts)
    tree = None if stored is None else _tree(stored)
    if tree is None:
        tree = _parse(source)
        with contextlib.suppress(RecursionError):  # nested deeply: it is parsed again next time
            store.save(parts, pickle.dumps(tree))
    return tree


def _parse(source: Source) -> Program:
    from fusec.frontend import automaton

    return automaton.parse(source, _tables)


def _tree(stored: bytes) -> Program | None:
    """The tree that was stored, or None if another fusec wrote it."""
    try:
        tree = pickle.loads(stored)
    except (
        pickle.UnpicklingError,
        EOFError,
        AttributeError,
        TypeError,
        ImportError,
        RecursionError,
    ):
        return None
    return tree if isinstance(tree, Program) else None


@cache
def _identity() -> str:
    """What a stored tree depends on: the version, and in a checkout the state of the frontend."""
    here = Path(__file__).parent
    stats = [(here / name).stat() for name in ("syntax.py", "automaton.py", "grammar.lark")]
    return f"{__version__} {[(s.st_size, s.st_mtime_ns) for s in stats]}"
