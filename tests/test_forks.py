"""Forked children: they need not wait for what another thread of the parent was doing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fusec
from fusec import forks
from fusec.ir import node
from fusec.runtime import operator_names, steps
from fusec.runtime.counters import OncePerKey

# Python 3.12 and later warn of forks beside threads, which is what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


def in_a_child(work: Callable[[], object]) -> int:
    """The exit status of a child that does ``work``: 0, or what ended it."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@pytest.fixture
def elsewhere() -> Iterator[Callable[[Callable[[Any], object]], None]]:
    """Runs a function in another thread until it waits for the event that it is given."""
    over, threads = threading.Event(), []

    class Waiting:
        reached = threading.Event()

        def wait(self) -> None:
            self.reached.set()
            over.wait(30)

    def run(function: Callable[[Any], object]) -> None:
        waiting = Waiting()
        waiting.reached.clear()
        threads.append(threading.Thread(target=function, args=(waiting,)))
        threads[-1].start()
        assert waiting.reached.wait(10)

    yield run
    over.set()
    for thread in threads:
        thread.join()


def held(lock: Any) -> Callable[[Any], None]:
    def hold(waiting: Any) -> None:
        with lock:
            waiting.wait()

    return hold


TRACED = fusec.compile(lambda x: x * 3)
LOCKS: dict[str, Any] = {
    "nodes": node._LOCK,
    "names": operator_names._lock,
    "traces": TRACED._lock,
    "builds": steps._once._lock,
    "one": forks.lock(),
    "reentrant": forks.reentrant_lock(),
}


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_of_another_thread_is_free_in_a_child(name: str, elsewhere: Any) -> None:
    lock = LOCKS[name]
    elsewhere(held(lock))
    assert not lock.acquire(blocking=False)

    def work() -> None:
        with lock:
            pass
        assert lock.acquire(blocking=False)

    assert in_a_child(work) == 0
    assert not lock.acquire(blocking=False)  # the parent's is still held


def test_a_child_makes_what_another_thread_was_making(elsewhere: Any) -> None:
    once, table = OncePerKey(), {}

    def make(waiting: Any) -> object:
        return once.get(table, "key", lambda: waiting.wait() or "late")

    def work() -> None:
        assert once.get(table, "key", lambda: "mine") == "mine"

    elsewhere(make)
    assert in_a_child(work) == 0


def test_one_key_of_two_tables_is_made_side_by_side(elsewhere: Any) -> None:
    once, first, second = OncePerKey(), {}, {}
    elsewhere(lambda waiting: once.get(first, "key", lambda: waiting.wait() or "late"))
    assert once.get(second, "key", lambda: once.get({}, "key", lambda: "inner")) == "inner"
    assert first == {}


def test_a_child_compiles_while_the_parent_does(elsewhere: Any) -> None:
    x = torch.randn(3, 5)
    fusec.compile("x * 2 + sum(x)")(x)
    everything = [lock for lock in LOCKS.values() if lock is not LOCKS["reentrant"]]

    def hold_all(waiting: Any) -> None:
        for lock in everything:
            lock.acquire()
        waiting.wait()
        for lock in everything:
            lock.release()

    def work() -> None:
        wanted = x * 7.5 + x.sum(-1, keepdim=True)
        torch.testing.assert_close(fusec.compile("x * 7.5 + sum(x)")(x), wanted)
        torch.testing.assert_close(TRACED(x), x * 3)

    elsewhere(hold_all)
    assert in_a_child(work) == 0
