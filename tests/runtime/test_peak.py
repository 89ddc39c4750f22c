"""Memory at the height of a call: what it touches and lets go of again, and what it returns."""

import sys

import pytest
import torch

import fusec
from fusec.runtime import memory
from fusec.runtime.peak import peak_bytes

SIZE = 64 << 20
SLACK = 8 << 20  # other pages of the process come and go, and the system counts in batches

linux = pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is told by Linux")


@linux
def test_what_a_call_lets_go_of_counts() -> None:
    def call() -> torch.Tensor:
        return torch.ones(SIZE, dtype=torch.uint8)[:8].clone()

    call()
    found = peak_bytes(call, "cpu")
    assert found is not None
    assert abs(found - SIZE) < SLACK


@linux
def test_blocks_that_wait_for_the_next_result_count_again() -> None:
    double = fusec.compile("x*2")
    x = torch.ones(SIZE // 4)
    double(x)  # its result is gone at once, and the memory of it waits
    found = peak_bytes(lambda: double(x), "cpu")
    assert found is not None
    assert abs(found - SIZE) < SLACK


def test_waiting_blocks_are_given_back() -> None:
    double = fusec.compile("x*2")
    x = torch.ones(SIZE // 4)
    result = double(x)
    del result
    assert memory._pool._bytes >= SIZE
    memory.release()
    assert memory._pool._bytes == 0
    assert torch.equal(double(x)[:4], torch.full((4,), 2.0))


@pytest.mark.gpu
def test_on_a_gpu_the_allocator_counts() -> None:
    x = torch.ones(SIZE // 4, device="cuda")

    def call() -> torch.Tensor:
        return (x * 2 + 1)[:8].clone()

    call()
    found = peak_bytes(call, "cuda")
    assert found is not None
    assert abs(found - 2 * SIZE) < SLACK
