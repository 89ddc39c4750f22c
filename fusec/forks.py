"""Locks that are free in a forked child, where the thread that held one does not exist.

Imports the standard library only.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()


def lock() -> threading.Lock:
    """A ``threading.Lock``."""
    made = threading.Lock()
    _locks.add(made)
    return made


def reentrant_lock() -> Any:
    """A ``threading.RLock``."""
    made = threading.RLock()
    _locks.add(made)
    return made


def _free_all() -> None:
    for held in _locks:
        held._at_fork_reinit()  # as the standard library does with its own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
