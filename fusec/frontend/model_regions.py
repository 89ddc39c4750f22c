"""Which operators of a model run together: regions that no path leaves and enters again.

Over plain numbers: operator ``k`` of a graph in order, with the operators that have to run before
it. Sets of operators are the bits of an integer. Imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush


@dataclass(slots=True)
class _Units:
    """Disjoint sets of operators, none of which depends on itself through another.

    A unit is named by its first operator. ``before`` is all that a unit depends on, at least one
    operator of each unit; ``direct`` the units that it reads or waits for.
    """

    home: list[int] = field(default_factory=list)
    members: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    direct: dict[int, int] = field(default_factory=dict)

    def add(self, dependencies: Sequence[int]) -> int:
        """The next operator, as a unit of its own."""
        own = len(self.home)
        self.home.append(own)
        self.members[own] = 1 << own
        found = direct = 0
        for operator in dependencies:
            unit = self.home[operator]
            direct |= 1 << unit
            found |= self.members[unit] | self.before[unit]
        self.before[own], self.direct[own] = found, direct
        return own

    def may_join(self, first: int, second: int) -> bool:
        """Whether no path between two units leads through a third."""
        return not (self._leads(first, second) or self._leads(second, first))

    def _leads(self, first: int, second: int) -> bool:
        """Whether a path leads from the first unit through a third to the second."""
        if not self.before[second] & self.members[first]:
            return False
        units = {self.home[operator] for operator in _bits(self.direct[second])}
        return any(self.before[u] & self.members[first] for u in units - {first, second})

    def join(self, first: int, second: int) -> int:
        """Make one unit of two."""
        kept, gone = min(first, second), max(first, second)
        for operator in _bits(self.members[gone]):
            self.home[operator] = kept
        self.members[kept] |= self.members.pop(gone)
        both = self.members[kept]
        self.before[kept] = (self.before[kept] | self.before.pop(gone)) & ~both
        self.direct[kept] = (self.direct[kept] | self.direct.pop(gone)) & ~both
        added = both | self.before[kept]
        for unit, own in self.before.items():
            if own & both:
                self.before[unit] = own | added
        return kept


def regions(
    fused: Sequence[bool],
    reads: Sequence[Sequence[int]],
    after: Sequence[Sequence[int]],
    shared: Sequence[Sequence[int]] = (),
) -> list[list[int]]:
    """Operators that may run as one, for those that can be ``fused``; each list ascends.

    An operator joins those that it reads from. ``shared`` are groups of operators that read the
    same from elsewhere: they join too where they may.
    """
    units = _Units()
    for operator, own in enumerate(reads):
        unit = units.add([*own, *after[operator]])
        for source in own if fused[operator] else ():
            other = units.home[source]
            if fused[source] and other != unit and units.may_join(unit, other):
                unit = units.join(unit, other)
    for group in shared:
        _join_all(units, [operator for operator in group if fused[operator]])
    found = [list(_bits(members)) for members in units.members.values()]
    return [region for region in found if fused[region[0]]]


def _join_all(units: _Units, group: Sequence[int]) -> None:
    for operator in group[1:]:
        first, second = units.home[group[0]], units.home[operator]
        if first != second and units.may_join(first, second):
            units.join(first, second)


def order(units: Sequence[Sequence[int]], needs: Sequence[Sequence[int]]) -> list[int]:
    """The positions of ``units`` such that each comes after all whose operators it needs.

    ``needs`` are operators for each operator. What came first comes first where it may.
    """
    home = {operator: k for k, unit in enumerate(units) for operator in unit}
    waiting = [
        {home[n] for operator in unit for n in needs[operator]} - {k}
        for k, unit in enumerate(units)
    ]
    readers: list[list[int]] = [[] for _ in units]
    for k, own in enumerate(waiting):
        for other in own:
            readers[other].append(k)
    missing = [len(own) for own in waiting]
    ready: list[tuple[int, int]] = []
    for k, count in enumerate(missing):
        if not count:
            heappush(ready, (units[k][-1], k))
    found: list[int] = []
    while ready:
        _, k = heappop(ready)
        found.append(k)
        for reader in readers[k]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, (units[reader][-1], reader))
    assert len(found) == len(units), "a region depends on itself"
    return found


def _bits(number: int) -> Iterator[int]:
    """The places of the ones in a number, ascending."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
