"""Calls through the compiled launcher on a real device."""

import threading

import pytest

import fusec
from fusec.runtime import launcher

pytestmark = pytest.mark.gpu

TEXT = "softmax(x * s)"


@pytest.fixture(scope="module", autouse=True)
def ready() -> None:
    assert launcher.wait(120.0), launcher.reason()


def known(*args: object, text: str = TEXT) -> fusec.CompiledFunction:
    function = fusec.compile(text)
    for _ in range(4):
        function(*args)
    assert function._fast is not None
    assert function._fast(args) is not NotImplemented
    return function


def close(result, x, s: float) -> None:
    import torch

    torch.testing.assert_close(result, (x * s).softmax(-1))


def inputs(rows: int = 64):
    import torch

    return torch.randn(rows, 500, device="cuda"), 1.5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_gpu_calls_give_what_python_gives(dtype: str) -> None:
    import torch

    x = torch.randn(37, 129, device="cuda").to(getattr(torch, dtype))
    for text in (TEXT, "x * s, sum(x) + s", "x / norm(x, axis=0) + softmax(x)"):
        args = (x, 0.5)[: len(fusec.compile(text).inputs)]
        expected = fusec.compile(text)(*args)
        function = known(*args, text=text)
        answer = function._fast(args)
        pairs = zip(*(v if isinstance(v, tuple) else (v,) for v in (answer, expected)), strict=True)
        for left, right in pairs:
            assert (left.stride(), left.dtype, left.device) == (
                right.stride(), right.dtype, right.device,
            )  # fmt: skip
            assert left.equal(right)
        bound = function.bind(*args)
        for _ in range(4):
            bound()
        assert bound._fast is not None


def test_gpu_points_on_the_cpu_are_moved() -> None:
    import torch

    x, s = inputs()
    function = known(x, s)
    for _ in range(4):
        close(function(x, torch.tensor(s)), x, s)
    assert function._fast((x, torch.tensor(s))) is NotImplemented
    assert function._fast((x.cpu(), s)) is NotImplemented
    close(function(x.cpu(), s), x.cpu(), s)


def test_gpu_side_streams() -> None:
    import torch

    x, s = inputs(4096)
    function = known(x, s)
    results = []
    for _ in range(3):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results.append(function(x, s))
        stream.synchronize()
    for result in results:
        close(result, x, s)


@pytest.mark.parametrize("bound", [False, True])
def test_gpu_graph_capture(bound: bool) -> None:
    import torch

    x, s = inputs()
    function = known(x, s)
    call = function.bind(x, s) if bound else function
    for _ in range(4):
        call(x, s)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(x, s)
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    close(result, x, s)


def test_gpu_first_repeats_inside_a_capture() -> None:
    """The launcher may take a call over while a graph records it."""
    import torch

    x, s = inputs()
    function = fusec.compile(TEXT)
    function(x, s)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [function(x, s) for _ in range(4)]
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    for result in results:
        close(result, x, s)


def test_gpu_threads_without_a_context() -> None:
    import torch

    x, s = inputs()
    function = known(x, s)
    torch.cuda.synchronize()
    results: list[object] = []

    def work() -> None:
        try:
            for _ in range(50):
                result = function._fast((x, s))
            torch.cuda.synchronize()
            results.append(result)
        except BaseException as error:
            results.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        close(result, x, s)


def test_gpu_two_devices() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    x, s = inputs()
    function = known(x, s)
    there = x.to("cuda:1")
    for _ in range(4):
        close(function(there, s), there, s)
        close(function(x, s), x, s)
    assert function._fast((there, s)).device == there.device


def test_gpu_memory_is_given_back() -> None:
    import torch

    x, s = inputs(4096)
    function = known(x, s)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(100):
        function(x, s)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
