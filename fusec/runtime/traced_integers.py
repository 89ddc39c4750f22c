"""Integers among the arguments of a traced function, each of which has kernels of its own.

May import everything below the API.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fusec.runtime.steps import VariantWarning

_MANY = 16


@dataclass(slots=True)
class Integers:
    """Counts the kinds of arguments that differ in integers only, and warns once of many."""

    _known: dict[Any, list[tuple[int, ...]]] = field(default_factory=dict)

    def met(self, name: str, kind: tuple[Any, ...], name_of: Callable[[int], str]) -> None:
        """Another kind of arguments of the function ``name``; ``name_of`` names their leaves."""
        *around, leaves = kind
        places = [k for k, leaf in enumerate(leaves) if leaf is not float and leaf[0] is int]
        rest = tuple(int if k in places else leaf for k, leaf in enumerate(leaves))
        known = self._known.setdefault((*around, rest), [])
        known.append(tuple(leaves[k][1] for k in places))
        if len(known) != _MANY:
            return
        columns = zip(places, zip(*known, strict=True), strict=True)
        moving = [name_of(k) for k, values in columns if len(set(values)) > 1]
        warnings.warn(
            f"{name} has been built for {_MANY} values of the integer {' and '.join(moving)}: pass"
            " a float or a 0-d tensor if it is no length, axis or count",
            VariantWarning,
            stacklevel=5,
        )
