"""The launcher's short ways into torch: what they say, and when they are used."""

import ctypes
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fusec
from fusec import settings
from fusec.errors import UnsupportedError
from fusec.runtime import launcher, launcher_torch
from fusec.runtime.build_cpp import find_compiler
from fusec.runtime.cache import default_store

CPU = torch.device("cpu")
NONE = (0, 0, (), (0,) * 11)  # everything through attributes

pytestmark = pytest.mark.skipif(
    find_compiler() is None or not Path(launcher._headers(), "Python.h").exists(),
    reason="needs a C++ compiler and Python's headers",
)


@pytest.fixture(scope="module", autouse=True)
def ready() -> None:
    assert launcher.wait(120.0), launcher.reason()


@pytest.fixture(params=["short ways", "attributes"])
def either(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The launcher as it is here, and as it is where torch differs."""
    ways, short = launcher._state.ways, request.param == "short ways"
    assert ways is not None
    if not short:
        launcher._state.ways = None
        launcher._state.module.setup_tensors(*NONE)
    yield short
    launcher._state.ways = ways
    launcher._state.module.setup_tensors(*ways)


def known(text: str, *args: object, out: object = None) -> fusec.CompiledFunction:
    function = fusec.compile(text)
    for _ in range(4):
        function(*args, out=out)
    assert function._fast is not None
    return function


def answered(function: fusec.CompiledFunction, *args: object) -> bool:
    return function._fast(args) is not NotImplemented


# -- the proof -------------------------------------------------------------------------------------


def test_this_torch_is_understood() -> None:
    ways = launcher._state.ways
    assert ways is not None
    assert len(ways.kinds) == 2
    assert all(ways.functions[:10])
    assert launcher._state.allocations.get(CPU) or launcher_torch.allocation(CPU)


def test_other_kinds_of_tensors_are_told_apart() -> None:
    ways = launcher._state.ways
    assert ways is not None
    for tensor in launcher_torch._plain_tensors("cpu"):
        assert launcher_torch._dispatch_keys(tensor) in ways.kinds
    for tensor in launcher_torch._other_tensors("cpu"):
        assert launcher_torch._dispatch_keys(tensor) not in ways.kinds


@pytest.mark.parametrize(
    "name", [*launcher_torch._READERS, "_GRAD_ENABLED", "_FUNCTION_MODE", "_DISPATCH_MODE"]
)
def test_a_missing_function_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith("_"):
        monkeypatch.setattr(launcher_torch, name, "no_such_function")
    else:
        readers = tuple("no_such_function" if n == name else n for n in launcher_torch._READERS)
        monkeypatch.setattr(launcher_torch, "_READERS", readers)
    assert launcher_torch.ways() is None


READERS = list(launcher_torch._READERS)


@pytest.mark.parametrize(
    "readers",
    [
        [READERS[0], READERS[1], READERS[3], READERS[2], *READERS[4:]],  # sizes and strides
        [*READERS[:4], READERS[5], READERS[4]],  # type and device
        ["aoti_torch_get_storage_offset", *READERS[1:]],
        [READERS[0], "aoti_torch_get_numel", *READERS[2:]],
        [*READERS[:4], "aoti_torch_get_layout", READERS[5]],
        [*READERS[:5], "aoti_torch_get_dim"],
    ],
)
def test_a_function_that_says_something_else_is_noticed(
    readers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_torch, "_READERS", tuple(readers))
    assert launcher_torch.ways() is None


@pytest.mark.parametrize(("one", "other"), [
    ("_GRAD_ENABLED", "_FUNCTION_MODE"), ("_FUNCTION_MODE", "_GRAD_ENABLED"),
])  # fmt: skip
def test_a_flag_that_follows_something_else_is_noticed(
    one: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_torch, one, getattr(launcher_torch, other))
    assert launcher_torch.ways() is None


@pytest.mark.parametrize("name", ["_handle_offset", "_keys_offset"])
def test_a_place_that_is_not_found_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_torch, name, lambda tensors: None)
    assert launcher_torch.ways() is None


def test_a_missing_library_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(name)

    monkeypatch.setattr(launcher_torch, "_library", missing)
    assert launcher_torch.ways() is None


def negated(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._neg_view() if tensor.is_floating_point() else tensor


@pytest.mark.parametrize(
    "wrong",
    [
        lambda shape, strides, dtype: torch.empty(shape, dtype=dtype),
        lambda shape, strides, dtype: torch.empty_strided(shape, strides),
        lambda shape, strides, dtype: negated(torch.empty_strided(shape, strides, dtype=dtype)),
        lambda shape, strides, dtype: torch.nn.Parameter(
            torch.empty_strided(shape, strides, dtype=dtype), requires_grad=False
        ),
        lambda shape, strides, dtype: torch.empty(9999, dtype=dtype).as_strided(shape, strides),
        lambda shape, strides, dtype: torch.empty_strided(
            shape, strides, dtype=dtype, device="meta"
        ),
    ],
)
def test_an_allocation_that_differs_is_noticed(wrong: Any) -> None:
    kinds = list(launcher_torch._allocations())
    assert not all(launcher_torch._allocates(wrong, CPU, *kind) for kind in kinds)


def test_an_allocation_that_is_kept_is_noticed() -> None:
    kept: list[torch.Tensor] = []

    def leaks(*kind: Any) -> torch.Tensor:
        kept.append(torch.empty_strided(kind[0], kind[1], dtype=kind[2]))
        return kept[-1]

    assert not launcher_torch._allocates(leaks, CPU, (2,), (1,), torch.float32)


def test_without_an_allocation_results_come_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher._state, "allocations", {CPU: None})
    x = torch.arange(12.0).reshape(3, 4)
    function = known("x * 2", x.t())
    assert answered(function, x.t())
    assert torch.equal(function(x.t()), x.t() * 2)
    assert function(x.t()).stride() == x.t().stride()


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_results_are_the_same_either_way(either: bool, dtype: torch.dtype) -> None:
    x = (torch.arange(60) % 7).to(dtype).reshape(3, 4, 5)
    for view in (x, x.permute(2, 0, 1), x[:, 1:, ::2], x[0, 0, 1], x[:1].expand(3, 4, 5)):
        expected = fusec.compile("x * 2 + 1")(view)
        function = known("x * 2 + 1", view)
        assert answered(function, view)
        result = function(view)
        assert torch.equal(result, expected)
        assert (result.stride(), result.dtype) == (expected.stride(), expected.dtype)
        out = torch.empty_like(expected)
        assert known("x * 2 + 1", view, out=out)._fast((view,), out) is out
        assert torch.equal(out, expected)
        bound = function.bind(view)
        assert all(torch.equal(bound(), expected) for _ in range(4))


def test_a_resized_or_exchanged_input_is_read_again(either: bool) -> None:
    x = torch.arange(6.0)
    function, bound = known("x + 1", x), fusec.compile("x + 1").bind(x)
    for _ in range(4):
        bound()
    x.set_(torch.arange(10.0, 16.0))
    assert bound().tolist() == function(x).tolist() == [11.0, 12.0, 13.0, 14.0, 15.0, 16.0]
    x.data = torch.arange(20.0, 26.0)
    assert bound().tolist() == function(x).tolist() == [21.0, 22.0, 23.0, 24.0, 25.0, 26.0]
    x.resize_(3)
    assert function(x).tolist() == [21.0, 22.0, 23.0]


def test_results_are_let_go_of(either: bool) -> None:
    x = torch.ones(1000)
    function = known("x + 1, x * 2", x)
    gc.collect()
    results = function(x)
    gone = [weakref.ref(r) for r in results]
    storages = [weakref.ref(r.untyped_storage()) for r in results]
    del results
    assert [g() for g in (*gone, *storages)] == [None] * 4


def test_inference_mode_follows_the_call(either: bool) -> None:
    function = known("x + 1", torch.ones(3))
    with torch.inference_mode():
        inside = torch.ones(3)
        assert answered(function, inside)
        assert function(inside).is_inference()
    assert answered(function, inside)
    assert not function(inside).is_inference()


def test_a_parameter_is_read_like_a_tensor(either: bool) -> None:
    function = known("x + 1", torch.ones(3))
    weights = torch.nn.Parameter(torch.ones(3))
    assert not answered(function, weights)
    with torch.no_grad():
        assert answered(function, weights)
        assert not function(weights).requires_grad
    assert answered(function, torch.nn.Parameter(torch.ones(3), requires_grad=False))


def test_every_element_is_written_under_deterministic_algorithms(either: bool) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.arange(12.0).reshape(3, 4)
        function = known("x - mean(x), mean(x)", x)
        assert answered(function, x)
        for result in function(x):
            assert bool(result.isfinite().all())
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_or_batched_tensor_goes_to_python_without_a_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    function = known("x + 1", torch.ones(3))
    seen: list[bool] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(answered(function, x))
        return x

    torch.func.vmap(look)(torch.ones(2, 3))
    torch.func.grad(lambda x: look(x).sum())(torch.ones(3))
    torch.func.functionalize(look)(torch.ones(3))
    seen.append(answered(function, torch.nested.as_nested_tensor([torch.ones(3), torch.ones(2)])))
    assert seen == [False] * 4
    assert capfd.readouterr().err == ""


def test_ways_for_a_gpu_are_not_sought_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    state, asked = launcher._state, []

    def with_cuda(known: object, index: int) -> object:
        asked.append(index)
        return known

    monkeypatch.setattr(state, "cuda_tried", False)
    monkeypatch.setattr(launcher_torch, "with_cuda", with_cuda)
    capturing = [True, False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing.pop(0))
    launcher._find_cuda_ways(0)
    assert not asked
    for _ in range(2):
        launcher._find_cuda_ways(0)
    assert asked == [0]


# -- modes -----------------------------------------------------------------------------------------


class Functions(TorchFunctionMode):
    """Writes down what is called."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    """Writes down what is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Functions, Dispatched])
def test_a_mode_sees_what_a_call_allocates(kind: Any) -> None:
    x = torch.arange(4.0)
    function = known("x + 1", x)
    bound = function.bind(x)
    for _ in range(4):
        bound()
    for call in (lambda: function(x), bound):
        with kind() as mode:
            assert not answered(function, x)
            result = call()
        # To a mode for operators a call is one.
        assert any("empty" in str(name) or "fusec" in str(name) for name in mode.calls)
        assert result.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert answered(function, x)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_default_device_changes_no_result(device: str) -> None:
    x = torch.arange(4.0)
    function = known("x + 1", x)
    with torch.device(device):
        assert not answered(function, x)
        result = function(x)
    assert result.device.type == "cpu"
    assert result.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_results_without_memory() -> None:
    """A call gives what PyTorch's own functions give; a bound one has kernels, and nothing else."""
    x = torch.arange(4.0)
    function = known("x + 1", x)

    bound, slow = function.bind(x), fusec.compile("x + 1")
    slow(x)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert not answered(function, x)
        for call in (function, slow):
            assert isinstance(call(x), FakeTensor)
        with pytest.raises(UnsupportedError, match="results that are FakeTensor"):
            bound()


def traced(function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """What torch.jit.trace makes of a function."""
    return torch.jit.trace(lambda x: function(x) + x, torch.ones(3), check_trace=False)


@pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning")
def test_a_trace_takes_no_result_for_a_constant(either: bool) -> None:
    function = known("x * 2", torch.ones(3))
    bound = function.bind(torch.ones(3))
    assert torch.equal(bound(torch.ones(3)), torch.full((3,), 2.0))
    for call in (function, bound):
        with pytest.raises(UnsupportedError, match=r"torch\.jit\.trace cannot record"):
            traced(call)
    operator = function.as_operator("fusec_tests::twice")
    assert torch.equal(traced(operator)(torch.arange(3.0)), torch.tensor([0.0, 3.0, 6.0]))


def test_a_mode_of_another_thread_is_none_of_this_one() -> None:
    import threading

    x = torch.arange(4.0)
    function = known("x + 1", x)
    taken: list[bool] = []
    with Functions():
        worker = threading.Thread(target=lambda: taken.append(answered(function, x)))
        worker.start()
        worker.join()
    assert taken == [True]


def test_a_launcher_loaded_under_a_mode_reads_attributes() -> None:
    for mode in (Functions(), Dispatched()):
        with mode:
            assert launcher_torch.ways() is None


@pytest.mark.parametrize("context", [nullcontext, torch.inference_mode, torch.no_grad])
def test_the_proof_holds_in_every_state(context: Any) -> None:
    scope: AbstractContextManager[object] = context()
    with scope:
        assert launcher_torch.ways() == launcher._state.ways
        assert launcher_torch.allocation(CPU) is not None


def test_the_profiler_runs_beside_it() -> None:
    x = torch.arange(4.0)
    function = known("x + 1", x)
    with torch.profiler.profile() as profile:
        assert answered(function, x)
        assert (function(x) + 1).tolist() == [2.0, 3.0, 4.0, 5.0]
    assert any(event.name == "aten::add" for event in profile.events())


def test_too_many_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="more than"):
        launcher._state.module.setup_tensors(0, 0, (1,) * 5, (0,) * 11)


def test_the_proof_prints_and_warns_of_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c",
         "import torch\nfrom fusec.runtime import launcher_torch as t\n"
         "assert t.ways() and t.allocation(torch.device('cpu'))"],
        capture_output=True, text=True, timeout=120,
        env=settings.child_environment(FUSEC_CACHE_DIR=str(default_store().root)),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
