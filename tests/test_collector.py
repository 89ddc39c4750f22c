"""Pauses of garbage collection: they nest, they end, and nobody else's choice is changed."""

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from fusec import collector
from fusec.collector import LIMIT, without_collections


@pytest.fixture(autouse=True)
def first_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pauses of a new process, with the collector on."""
    monkeypatch.setattr(collector, "_pauses", collector._Pauses())
    assert gc.isenabled()
    yield
    gc.enable()


def test_a_pause_ends_with_its_block() -> None:
    with without_collections():
        assert not gc.isenabled()
        with without_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), without_collections():
        raise KeyError
    assert gc.isenabled()


def test_a_function_pauses_at_every_call() -> None:
    @without_collections()
    def inside() -> bool:
        return gc.isenabled()

    assert [inside(), inside()] == [False, False]
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with without_collections():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_threads_overlap() -> None:
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        with without_collections():
            begun.set()
            end.wait(10.0)

    worker = threading.Thread(target=work)
    with without_collections():
        worker.start()
        begun.wait(10.0)
    assert not gc.isenabled()
    end.set()
    worker.join()
    assert gc.isenabled()


def test_the_first_pauses_of_a_process_are_the_only_ones() -> None:
    seen = []
    for _ in range(LIMIT + 2):
        with without_collections():
            seen.append(gc.isenabled())
    assert seen == [False] * LIMIT + [True] * 2
    assert gc.isenabled()


def test_what_makes_many_objects_each_time_pauses_each_time() -> None:
    for number in range(LIMIT + 2):
        with without_collections(counted=False):
            assert not gc.isenabled()
            kept = [[k] for k in range(5000)]
        assert gc.isenabled()
        old = any(item is kept[0] for item in gc.get_objects(generation=2))
        assert old == (number < LIMIT), "what comes late stays young, where garbage is soon found"
    with without_collections():
        assert gc.isenabled()


def test_what_a_pause_made_is_old_and_still_collected() -> None:
    gone: list[int] = []

    class Cycle:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            gone.append(1)

    gc.collect()
    with without_collections():
        kept = [[k] for k in range(5000)]
        Cycle()
    assert gc.get_freeze_count() == 0
    assert any(item is kept[0] for item in gc.get_objects(generation=2))
    gc.collect(0)
    assert gone == []
    gc.collect()
    assert gone == [1]


def test_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    try:
        with without_collections():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_collects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with without_collections():
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitpid(child, 0)[1] == 0
    pauses = collector._Pauses()
    monkeypatch.setattr(collector, "_pauses", pauses)
    with without_collections():
        pauses.after_fork()
        assert gc.isenabled()
    assert gc.isenabled()
    with without_collections():
        assert not gc.isenabled()
    assert gc.isenabled()
