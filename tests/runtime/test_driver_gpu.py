"""Launching through the CUDA driver on a real device."""

import threading

import pytest

from fusec.errors import InternalError
from fusec.runtime.build_triton import Target, compile_triton
from fusec.runtime.driver import load_function
from tests.runtime.kernels import add_program

pytestmark = pytest.mark.gpu


def compiled(**changes):
    """The add kernel for this device, for any n."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    program = add_program(divisible_by_16=frozenset({"x", "y", "out"}), **changes)
    return compile_triton(program, Target.parse(f"sm_{major}{minor}"))


@pytest.fixture(scope="module")
def gpu_launch():
    binary = compiled()
    function = load_function(binary.binary, binary.entry, binary.shared, 0)
    return function.prepare(add_program().parameter_types(), binary.num_threads)


def gpu_arguments(count: int):
    import torch

    x, y = torch.randn(count, device="cuda"), torch.randn(count, device="cuda")
    out = torch.empty_like(x)
    return x, y, out, (x.data_ptr(), y.data_ptr(), out.data_ptr(), count, 2.0)


def close(out, x, y) -> bool:
    import torch

    return torch.equal(out, x + y * 2.0)


@pytest.mark.parametrize("count", [1, 1000, 1 << 20, (1 << 20) + 7])
def test_gpu_launch(gpu_launch, count: int) -> None:
    import torch

    x, y, out, values = gpu_arguments(count)
    gpu_launch(((count + 1023) // 1024, 1, 1), torch.cuda.current_stream().cuda_stream, values)
    assert close(out, x, y)


def test_gpu_empty_grid(gpu_launch) -> None:
    _, _, out, values = gpu_arguments(1)
    before = out.fill_(5.0).clone()
    gpu_launch((0, 1, 1), 0, values)
    assert out.equal(before)


def test_gpu_large_grid(gpu_launch) -> None:
    import torch

    x, y, out, values = gpu_arguments(1 << 12)
    # Blocks past n do nothing: more than 2**16 of them in x is what is tried here.
    gpu_launch((1 << 22, 1, 1), torch.cuda.current_stream().cuda_stream, values)
    assert close(out, x, y)


def test_gpu_fresh_thread(gpu_launch) -> None:
    import torch

    x, y, out, values = gpu_arguments(4096)
    torch.cuda.synchronize()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            gpu_launch((4, 1, 1), 0, values)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
    assert close(out, x, y)


def test_gpu_side_stream(gpu_launch) -> None:
    import torch

    x, y, out, values = gpu_arguments(1 << 20)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    gpu_launch((1024, 1, 1), stream.cuda_stream, values)
    stream.synchronize()
    assert close(out, x, y)


@pytest.mark.parametrize("load_inside", [False, True])
def test_gpu_graph_capture(gpu_launch, load_inside: bool) -> None:
    import torch

    x, y, out, values = gpu_arguments(4096)
    binary = compiled(block=512)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    launch, blocks = gpu_launch, 4
    with torch.cuda.graph(graph):
        if load_inside:
            function = load_function(binary.binary, binary.entry, binary.shared, 0)
            launch = function.prepare(add_program().parameter_types(), binary.num_threads)
            blocks = 8
        launch((blocks, 1, 1), torch.cuda.current_stream().cuda_stream, values)
    x.normal_()
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert close(out, x, y)


def test_gpu_wrong_parameters_are_refused(gpu_launch) -> None:
    binary = compiled()
    function = load_function(binary.binary, binary.entry, binary.shared, 0)
    if function._driver.parameter_sizes(function._handle) is None:
        pytest.skip("this CUDA driver does not describe parameters")
    with pytest.raises(InternalError, match="parameters of"):
        function.prepare(("*fp32", "*fp32", "*fp32", "i32", "fp32"), binary.num_threads)
