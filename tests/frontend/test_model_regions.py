"""Regions of a graph: what may run as one does, and nothing waits for itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fusec.frontend.model_regions import order, regions


def cut(fused: str, *reads: tuple[int, ...]) -> list[list[int]]:
    """Regions of operators ``f`` (can be fused) and ``-`` (cannot), with what each reads."""
    return regions([c == "f" for c in fused], reads, [()] * len(fused))


def test_a_chain_is_one_region() -> None:
    assert cut("fff", (), (0,), (1,)) == [[0, 1, 2]]


def test_what_cannot_be_fused_parts_a_chain() -> None:
    assert cut("f-f", (), (0,), (1,)) == [[0], [2]]


def test_a_path_through_another_operator_keeps_two_apart() -> None:
    # 2 reads 0 directly and through 1, which stays with PyTorch.
    assert cut("f-f", (), (0,), (0, 1)) == [[0], [2]]


def test_a_path_through_another_region_keeps_two_apart() -> None:
    # 0 -> 1 (left) -> 2, and 3 reads 0 and 2: with 0 it would wait for itself.
    assert cut("f-ff", (), (0,), (1,), (0, 2)) == [[0], [2, 3]]


def test_two_producers_become_one_region() -> None:
    assert cut("fff", (), (), (0, 1)) == [[0, 1, 2]]


def test_readers_of_the_same_tensor_join() -> None:
    assert regions([False, True, True], [(), (0,), (0,)], [()] * 3, [(1, 2)]) == [[1, 2]]
    apart = regions(
        [False, True, False, True], [(), (0,), (1,), (0, 2)], [()] * 4, [(1, 3)]
    )  # 3 waits for 1 through 2
    assert apart == [[1], [3]]


def test_what_only_waits_keeps_apart_as_well() -> None:
    assert regions([True, False, True], [(), (), (0,)], [(), (0,), (1,)]) == [[0], [2]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[bool], list[list[int]], list[list[int]]]:
    count = draw(st.integers(1, 24))
    fused = draw(st.lists(st.booleans(), min_size=count, max_size=count))

    def earlier(most: int) -> list[list[int]]:
        return [
            sorted(draw(st.sets(st.integers(0, k - 1), max_size=most))) if k else []
            for k in range(count)
        ]

    return fused, earlier(3), earlier(1)


@settings(max_examples=60)
@given(graphs(), st.integers(0, 5))
def test_regions_of_any_graph_can_be_ordered(
    graph: tuple[list[bool], list[list[int]], list[list[int]]], group: int
) -> None:
    fused, reads, after = graph
    shared = [[k for k, own in enumerate(reads) if group in own]]
    found = regions(fused, reads, after, shared)
    together = sorted(k for region in found for k in region)
    assert together == [k for k, f in enumerate(fused) if f]
    units = [[k] for k, f in enumerate(fused) if not f] + found
    needs = [[*own, *others] for own, others in zip(reads, after, strict=True)]
    done: set[int] = set()
    for position in order(units, needs):  # fails where a region would wait for itself
        outside = {n for k in units[position] for n in needs[k]} - set(units[position])
        assert outside <= done
        done.update(units[position])
    assert done == set(range(len(fused)))
