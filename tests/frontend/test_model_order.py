"""The order in which a model's units run, by the memory that is in use."""

from __future__ import annotations

import random

import pytest

from fusec.frontend.model_order import Memory, leanest
from fusec.frontend.model_regions import order


def test_what_frees_memory_runs_first() -> None:
    """Of a gradient and a kept activation two products are made: first the one that is the last to
    read the activation.
    """
    # Storages: 0 the gradient (100 bytes), 1 the activation (100), 2 and 3 what the products make.
    memory = Memory([100, 100, 100, 1], [[2], [3]], [[0], [0, 1]], frozenset({2, 3}))
    units = [[0], [1]]
    assert order(units, [[], []]) == [0, 1]
    assert leanest(units, [[], []], memory) == [1, 0]
    assert memory.peak([0, 1]) == 101
    assert memory.peak([1, 0]) == 1


def test_the_usual_order_stays_where_nothing_is_gained() -> None:
    memory = Memory([8, 8, 8], [[0], [1], [2]], [[], [0], [1]], frozenset({2}))
    units = [[0], [1], [2]]
    assert leanest(units, [[], [0], [1]], memory) == [0, 1, 2]
    stays = Memory([100, 100, 1], [[], [], []], [[0], [1], []], frozenset({0, 1}))
    assert leanest(units, [[], [], []], stays) == [0, 1, 2]


def brute(memory: Memory, positions: list[int]) -> int:
    """The height, counted anew after every unit."""
    most = 0
    for count in range(1, len(positions) + 1):
        done, now = positions[: count - 1], positions[count - 1]
        before = {s for k in done for s in memory.makes[k]}
        gone = {
            s
            for s in range(len(memory.sizes))
            if s not in memory.stay
            and any(s in own for own in memory.reads)
            and all(k in done for k, own in enumerate(memory.reads) if s in own)
        }
        given = {s for s in gone if not any(s in own for own in memory.makes)}
        held = (before - gone) | set(memory.makes[now])
        most = max(most, sum(memory.sizes[s] for s in held) - sum(memory.sizes[s] for s in given))
    return most


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs(seed: int) -> None:
    pick = random.Random(seed)
    count, inputs = 12, 4
    sizes = [pick.randrange(1, 100) for _ in range(count + inputs)]
    reads = [sorted(pick.sample(range(inputs + k), pick.randrange(1, 4))) for k in range(count)]
    makes = [[inputs + k] for k in range(count)]
    stay = frozenset(pick.sample(range(count + inputs), 4))
    memory = Memory(sizes, makes, reads, stay)
    units = [[k] for k in range(count)]
    needs = [[s - inputs for s in own if s >= inputs] for own in reads]
    found = leanest(units, needs, memory)
    assert sorted(found) == list(range(count))
    place = {k: at for at, k in enumerate(found)}
    assert all(place[n] < place[k] for k, own in enumerate(needs) for n in own)
    assert memory.peak(found) == brute(memory, found) <= memory.peak(order(units, needs))
