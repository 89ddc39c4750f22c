"""A pause of Python's garbage collection for work that makes many objects and little garbage.

Importing makes so many objects that a full collection comes due, and it walks all that torch has
allocated: 70 ms and more. Objects of a pause count as old when it ends, so that the collection does
not merely come later. May import ``fusec.forks``.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

from fusec import forks

LIMIT = 8  # pauses of a process: the first ones import, those after them make few objects


class _Pauses:
    """How many blocks want no collections, and whether there were any before the first did."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._left = LIMIT
        self._count = 0
        self._collecting = False
        self._aging = False

    def begin(self, counted: bool = True) -> None:
        """One more."""
        with self._lock:
            if self._count == 0:
                self._aging = self._left > 0
                self._collecting = gc.isenabled() and (self._aging or not counted)
                if self._collecting:
                    self._left -= self._aging
                    gc.disable()
            self._count += 1

    def end(self) -> None:
        """One less; the last puts things back."""
        with self._lock:
            if self._count == 0:  # in a child of fork, for a pause that began in the parent
                return
            self._count -= 1
            if self._count == 0 and self._collecting:
                if self._aging:
                    _make_old()
                gc.enable()

    def after_fork(self) -> None:
        """In a child only the thread that forked is left, and no pause of another would end."""
        if self._count and self._collecting:
            gc.enable()
        self._count = 0


def _make_old() -> None:
    """Move every object to the oldest generation, without a walk over them.

    Not where somebody has frozen objects: they would thaw.
    """
    if gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()


_pauses = _Pauses()


@contextlib.contextmanager
def without_collections(counted: bool = True) -> Iterator[None]:
    """No garbage collection for a block of code, or with it as decorator, for a function.

    Blocks may nest and threads overlap; memory that needs no collector is freed as ever. What makes
    many objects each time is not ``counted``: it pauses after ``LIMIT`` pauses too, whose objects
    then stay young, so that what of them is garbage is found soon.
    """
    pauses = _pauses
    pauses.begin(counted)
    try:
        yield
    finally:
        pauses.end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _pauses.after_fork())
