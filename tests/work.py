"""How much work a call does, as a number that is the same on every machine and under every load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(function: Callable[[], Any]) -> int:
    """How many functions, Python's and built-in ones, are called while ``function`` runs."""
    count = 0

    def count_call(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def grows_linearly(work: Callable[[int], Callable[[], Any]], size: int) -> bool:
    """Whether four times the size takes about four times the calls; quadratic work takes 16."""
    small, large = (calls(work(n)) for n in (size, 4 * size))
    return large < 6 * small + 1000
