"""In which order the units of a model's graph run, so that little memory is in use at a time.

Over plain numbers, as ``model_regions``. Imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.frontend.model_regions import order


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of storages, by number: what each unit ``makes`` and ``reads``, and which storages
    ``stay`` whoever has read them.
    """

    sizes: Sequence[int]
    makes: Sequence[Sequence[int]]
    reads: Sequence[Sequence[int]]
    stay: frozenset[int]

    def readers(self) -> list[int]:
        """How many units read each storage."""
        counts = [0] * len(self.sizes)
        for own in self.reads:
            for storage in own:
                counts[storage] += 1
        return counts

    def peak(self, positions: Sequence[int]) -> int:
        """The most bytes in use when units run in this order, less those there before."""
        left, used, most = self.readers(), 0, 0
        for k in positions:
            used += sum(self.sizes[s] for s in self.makes[k])
            most = max(most, used)
            used -= self._freed(k, left)
            for storage in self.reads[k]:
                left[storage] -= 1
        return most

    def _freed(self, unit: int, left: Sequence[int]) -> int:
        """What nobody needs once ``unit`` has run; ``left`` counts those still to read."""
        last = (s for s in self.reads[unit] if left[s] == 1 and s not in self.stay)
        return sum(self.sizes[s] for s in last)

    def grows(self, unit: int, left: Sequence[int]) -> int:
        """By how much a unit that runs now changes what is in use."""
        return sum(self.sizes[s] for s in self.makes[unit]) - self._freed(unit, left)


def leanest(
    units: Sequence[Sequence[int]], needs: Sequence[Sequence[int]], memory: Memory
) -> list[int]:
    """The positions of ``units`` as :func:`order` has them, or where fewer bytes are in use at the
    height if always the unit runs that needs the least memory, in that order.
    """
    usual = order(units, needs)
    greedy = _greedy(units, needs, memory)
    return greedy if memory.peak(greedy) < memory.peak(usual) else usual


def _greedy(
    units: Sequence[Sequence[int]], needs: Sequence[Sequence[int]], memory: Memory
) -> list[int]:
    home = {operator: k for k, unit in enumerate(units) for operator in unit}
    waiting = [
        len({home[n] for operator in unit for n in needs[operator]} - {k})
        for k, unit in enumerate(units)
    ]
    behind: list[list[int]] = [[] for _ in units]
    for k, unit in enumerate(units):
        for other in {home[n] for operator in unit for n in needs[operator]} - {k}:
            behind[other].append(k)
    left = memory.readers()
    found: list[int] = []
    ready = {k for k, count in enumerate(waiting) if not count}
    while ready:
        chosen = min(ready, key=lambda k: (memory.grows(k, left), units[k][-1]))
        ready.discard(chosen)
        found.append(chosen)
        for storage in memory.reads[chosen]:
            left[storage] -= 1
        for k in behind[chosen]:
            waiting[k] -= 1
            if not waiting[k]:
                ready.add(k)
    return found
