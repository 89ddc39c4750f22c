"""Which cases of a suite: by name, type and length. May import the errors and ``case.py`` only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fusec.cli.suites.case import SuiteCase
from fusec.errors import UnknownNameError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_POWER = re.compile(r"(\d+)\^(\d+)")
_COUNT = re.compile(r"(\d+)([KMG]?)")


@dataclass(frozen=True)
class Selection:
    """Filters, all of which a case must pass; an empty one lets every case through.

    ``only`` is searched in the case's name; ``columns``, ``rows`` and ``elements`` are ranges.
    """

    only: str = ""
    dtypes: tuple[str, ...] = ()
    columns: tuple[range, ...] = ()
    rows: tuple[range, ...] = ()
    elements: tuple[range, ...] = ()

    def choose(self, cases: Sequence[SuiteCase]) -> list[SuiteCase]:
        """The cases that pass, in their order."""
        return [case for case in cases if self.takes(case)]

    def takes(self, case: SuiteCase) -> bool:
        """Whether a case passes every filter."""
        if self.only and not re.search(self.only, case.name):
            return False
        if self.dtypes and case.dtype not in self.dtypes:
            return False
        lengths = (
            (self.columns, case.columns),
            (self.rows, case.rows),
            (self.elements, case.elements),
        )
        return all(not ranges or any(n in r for r in ranges) for ranges, n in lengths)


def make_selection(only: str, dtypes: str, columns: str, rows: str, elements: str) -> Selection:
    """The filters as they are typed; UnknownNameError for one that cannot be read."""
    try:
        re.compile(only)
    except re.error as error:
        raise UnknownNameError(f"--only '{only}' is not a regular expression: {error}") from error
    for dtype in split(dtypes):
        if dtype not in ("bf16", "f32", "f16"):
            raise UnknownNameError(f"--dtype cannot be '{dtype}' (one of bf16, f32, f16)")
    return Selection(
        only,
        split(dtypes),
        lengths(columns, "--columns"),
        lengths(rows, "--rows"),
        lengths(elements, "--elements"),
    )


def split(text: str) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(piece.strip() for piece in text.split(",") if piece.strip())


def lengths(text: str, option: str) -> tuple[range, ...]:
    """``64,1K-16K,2^27-`` as ranges; a side that is left out is open."""
    return tuple(_range(piece, option) for piece in split(text))


def _range(text: str, option: str) -> range:
    low, dash, high = text.partition("-")
    if not dash:
        return range(_length(low, option), _length(low, option) + 1)
    start = _length(low, option) if low else 0
    return range(start, _length(high, option) + 1 if high else 1 << 62)


def _length(text: str, option: str) -> int:
    if found := _POWER.fullmatch(text):
        return int(pow(int(found[1]), min(int(found[2]), 62)))
    if found := _COUNT.fullmatch(text.upper()):
        return int(found[1]) * _UNITS[found[2]]
    raise UnknownNameError(
        f"{option} cannot be '{text}'", hint="lengths are written 1000, 4K, 2^27, or 1K-16K"
    )
