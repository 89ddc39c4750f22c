"""The launcher's short ways into torch on a real device."""

import gc
import weakref

import pytest

import fusec
from fusec.runtime import launcher, launcher_torch

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def ready() -> None:
    assert launcher.wait(120.0), launcher.reason()


def known(text: str, *args: object) -> fusec.CompiledFunction:
    function = fusec.compile(text)
    for _ in range(4):
        function(*args)
    assert function._fast is not None
    assert function._fast(args) is not NotImplemented
    return function


def test_gpu_this_torch_is_understood() -> None:
    import torch

    known("x + 1", torch.ones(3, device="cuda"))
    ways = launcher._state.ways
    assert ways is not None
    assert len(ways.kinds) == 4
    assert all(ways.functions)
    assert launcher._state.allocations[torch.device("cuda", 0)] is not None


def test_gpu_proof_in_a_capture() -> None:
    import torch

    known("x + 1", torch.ones(3))
    ways = launcher_torch.ways()
    assert ways is not None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = launcher_torch.with_cuda(ways, 0)
        assert launcher_torch.allocation(torch.device("cuda", 0)) is not None
    # What a capture forbids to try stays unproven, and what was proven before stays.
    assert set(ways.kinds) <= set(found.kinds)
    graph.replay()
    torch.cuda.synchronize()


def test_gpu_a_first_plan_in_a_capture_leaves_the_short_ways_open() -> None:
    import torch

    x = torch.ones(3, device="cuda")
    known("x + 1", x)
    state, whole = launcher._state, launcher._state.ways
    state.ways, state.cuda_tried = launcher_torch.ways(), False
    state.module.setup_tensors(*state.ways)
    try:
        function = fusec.compile("x * 3 + 1")
        function(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function(x)
            function(x)
        known("x * 5", x)
        assert state.ways == whole
    finally:
        state.ways, state.cuda_tried = whole, True
        state.module.setup_tensors(*whole)


def test_gpu_every_layout_and_type_either_way() -> None:
    import torch

    known("x * 2 + 1", torch.ones(3, device="cuda"))._fast((torch.ones(3, device="cuda"),))
    ways = launcher._state.ways  # those of a GPU are found when the first of its tensors comes
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        x = (torch.arange(60, device="cuda") % 7).to(dtype).reshape(3, 4, 5)
        for view in (x, x.permute(2, 0, 1), x[:, 1:, ::2], x[0, 0, 1], x[:1].expand(3, 4, 5)):
            expected = fusec.compile("x * 2 + 1")(view)
            function = known("x * 2 + 1", view)
            result = function._fast((view,))
            assert torch.equal(result, expected)
            assert (result.stride(), result.device) == (expected.stride(), expected.device)
    assert launcher._state.ways == ways


def test_gpu_other_tensors_are_left_to_python() -> None:
    import torch

    function = known("x + 1", torch.ones(3, device="cuda"))
    for other in launcher_torch._other_tensors("cuda"):
        assert function._fast((other,)) is NotImplemented
    assert function._fast((torch.ones(3),)) is NotImplemented


def test_gpu_results_are_let_go_of() -> None:
    import torch

    x = torch.ones(1 << 20, device="cuda")
    function = known("x + 1", x)
    bound = function.bind(x)
    for _ in range(4):
        bound()
    gc.collect()
    before = torch.cuda.memory_allocated()
    result = bound()
    assert torch.cuda.memory_allocated() == before + x.nbytes
    gone = weakref.ref(result.untyped_storage()), weakref.ref(result)
    del result
    assert [g() for g in gone] == [None, None]
    assert torch.cuda.memory_allocated() == before


def test_gpu_the_stream_is_that_of_the_call() -> None:
    import torch

    x = torch.ones(1 << 24, device="cuda")
    function = known("x * 2", x)
    for _ in range(5):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            y = torch.full_like(x, 3.0)
            results = [function._fast((y,)) for _ in range(3)]
            y.zero_()
        stream.synchronize()
        assert all(bool((r == 6.0).all()) for r in results)


def test_gpu_a_device_that_is_not_current() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    there = torch.arange(5.0, device="cuda:1")
    with torch.cuda.device(1):
        function = known("x + 1", there)
    for current in (0, 1):
        with torch.cuda.device(current):
            result = function._fast((there,))
        assert result.device == there.device
        assert result.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
