"""Blocks of result memory: reused when nothing sees them, never before."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading

import pytest
import torch

import fusec
from fusec import settings
from fusec.runtime import memory

SHAPE = (1024, 1100)  # 4.3 MiB of float32


def make(shape: tuple[int, ...] = SHAPE, **options: object) -> torch.Tensor:
    strides = torch.empty(shape, device="meta").stride()
    tensor: torch.Tensor = memory.allocator(shape, strides, torch.float32, torch.device("cpu"))()
    return tensor


def test_a_block_serves_again_when_its_tensor_is_gone() -> None:
    first = make()
    address = first.data_ptr()
    del first
    assert make().data_ptr() == address


def test_tensors_that_live_have_blocks_of_their_own() -> None:
    tensors = [make().fill_(k) for k in range(5)]
    assert len({t.data_ptr() for t in tensors}) == 5
    assert all((t == k).all() for k, t in enumerate(tensors))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[3:5],
        lambda t: t.t(),
        lambda t: t.numpy(),
        torch.from_dlpack,
        lambda t: t.detach(),
    ],
    ids=["slice", "transpose", "numpy", "dlpack", "detach"],
)
def test_a_view_keeps_its_block(view: object) -> None:
    seen = view(make().fill_(7))
    gc.collect()
    others = [make().fill_(8) for _ in range(3)]
    assert (seen == 7).all()
    assert len(others) == 3


def test_layout_and_alignment() -> None:
    tensor = memory.allocator((1100, 1024), (1, 1100), torch.float32, torch.device("cpu"))()
    assert tensor.shape == (1100, 1024)
    assert tensor.stride() == (1, 1100)
    assert tensor.data_ptr() % (2 << 20) == 0
    assert tensor.untyped_storage().nbytes() == 1100 * 1024 * 4


def test_results_behave_like_tensors() -> None:
    result = make().fill_(3)
    assert torch.equal(pickle.loads(pickle.dumps(result)), result)
    result.add_(1)
    result.share_memory_()
    assert (result == 4).all()
    assert result.is_shared()


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = memory._Pool()
    monkeypatch.setattr(memory, "_pool", pool)
    monkeypatch.setattr(memory, "POOL_BYTES", 16 << 20)
    tensors = [make() for _ in range(6)]
    del tensors
    gc.collect()
    assert 0 < pool._bytes <= 16 << 20


@pytest.mark.parametrize("lean", [True, False])
def test_a_lean_result_takes_no_more_than_was_in_use(
    lean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of another length make room, and only those that have to."""
    pool = memory._Pool()
    monkeypatch.setattr(memory, "_pool", pool)
    device = torch.device("cpu")
    make_one = memory.allocator((1024, 1024), (1024, 1), torch.float32, device, lean)
    make_two = memory.allocator((2048, 1024), (1024, 1), torch.float32, device, lean)
    kept = [make_one() for _ in range(4)]
    height = pool._used
    del kept[1:]
    gc.collect()
    assert pool._bytes == 3 * height // 4
    kept.append(make_two())
    assert pool._used + pool._bytes <= height if lean else pool._used + pool._bytes > height
    assert pool._bytes >= height // 4
    kept.append(make_one())  # one that waited
    assert pool._used <= height
    del kept
    gc.collect()
    assert pool._used == 0
    memory.release()
    assert pool._bytes == 0


def test_a_layout_with_gaps_has_no_block() -> None:
    tensor = memory.allocator(SHAPE, (2200, 1), torch.float32, torch.device("cpu"))()
    assert tensor.stride() == (2200, 1)
    tensor.fill_(1)


def test_small_results_and_the_setting_go_without() -> None:
    device = torch.device("cpu")
    small = memory.allocator((10,), (1,), torch.float32, device)
    assert small.func is torch.empty_strided
    with settings.override(no_pool=True):
        large = memory.allocator(SHAPE, (1100, 1), torch.float32, device)
    assert large.func is torch.empty_strided


def test_threads_never_share_a_block() -> None:
    function = fusec.compile("x * 2 + 1")
    wrong: list[int] = []

    def work(k: int) -> None:
        x = torch.full(SHAPE, float(k))
        wrong.extend(k for _ in range(20) if not bool((function(x) == 2 * k + 1).all()))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_can_take_blocks() -> None:
    held = make().fill_(1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        tensor = make()
        tensor[0, 0] = 2  # one element: PyTorch hangs here where it wants threads
        os.write(write, b"1" if float(tensor[0, 0]) == 2 else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
    assert (held == 1).all()
