"""Minimum cuts of a network with capacities, by augmenting paths. May import the standard library
only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

UNLIMITED = 1 << 62


class Network:
    """Points and the capacities between them. Nothing here recurses."""

    def __init__(self) -> None:
        self._left: dict[Hashable, dict[Hashable, int]] = {}

    def connect(self, start: Hashable, end: Hashable, capacity: int = UNLIMITED) -> None:
        """Let ``capacity`` more flow from ``start`` to ``end``."""
        out = self._left.setdefault(start, {})
        out[end] = min(UNLIMITED, out.get(end, 0) + capacity)
        self._left.setdefault(end, {}).setdefault(start, 0)

    def near_side(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        """The points on the sink's side of the minimum cut that lies nearest to the sink."""
        while (path := self._path(source, sink)) is not None:
            amount = min(self._left[a][b] for a, b in path)
            for a, b in path:
                self._left[a][b] -= amount
                self._left[b][a] += amount
        return self._reaching(sink)

    def _path(self, source: Hashable, sink: Hashable) -> list[tuple[Hashable, Hashable]] | None:
        """The shortest path that something can still flow along."""
        came: dict[Hashable, Hashable] = {source: source}
        waiting = deque([source])
        while waiting:
            point = waiting.popleft()
            if point == sink:
                break
            for neighbour, left in self._left.get(point, {}).items():
                if left and neighbour not in came:
                    came[neighbour] = point
                    waiting.append(neighbour)
        if sink not in came:
            return None
        path = []
        while sink != source:
            path.append((came[sink], sink))
            sink = came[sink]
        return path

    def _reaching(self, sink: Hashable) -> set[Hashable]:
        """The points from which something could still flow to ``sink``."""
        found = {sink}
        stack = [sink]
        while stack:
            point = stack.pop()
            for neighbour in self._left.get(point, {}):
                if neighbour not in found and self._left[neighbour][point]:
                    found.add(neighbour)
                    stack.append(neighbour)
        return found
