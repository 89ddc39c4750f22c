"""What this process has done, and building a thing once for several threads.

May import ``fusec.forks`` and the standard library, for a process whose kernels are all in the
cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from fusec import forks


class Counters:
    """What this process has done so far."""

    __slots__ = ("compiles", "specializations")

    def __init__(self) -> None:
        self.compiles = 0  # kernels built or taken from the cache on disk
        self.specializations = 0  # plans made or taken from there


COUNTERS = Counters()


class Stats(NamedTuple):
    """What this process has done:

    Kernels built (or loaded from the cache on disk) and plans made.
    """

    compiles: int
    specializations: int


def stats() -> Stats:
    """Counters of this process, to see what a loop of calls builds."""
    return Stats(COUNTERS.compiles, COUNTERS.specializations)


class OncePerKey:
    """Builds the value of a key once, also when several threads ask at the same time."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._locks: dict[object, threading.Lock] = {}

    def get(self, table: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
        """``table[key]``, made by ``make`` if it is not there."""
        found = table.get(key)
        if found is not None:
            return found
        own = (id(table), key)  # what is made for another table need not be waited for
        with self._lock:
            lock = self._locks.setdefault(own, forks.lock())
        with lock:
            found = table.get(key)
            if found is None:
                found = table[key] = make()
        with self._lock:
            self._locks.pop(own, None)
        return found
