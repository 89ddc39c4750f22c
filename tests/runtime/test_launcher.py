"""The compiled launcher against the Python it stands in for."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fusec
from fusec import settings
from fusec.errors import UnknownNameError, UnsupportedError
from fusec.runtime import launcher
from fusec.runtime.build_cpp import find_compiler
from fusec.runtime.cache import default_store

CALLS = 4  # enough that the launcher knows a call

needs_launcher = pytest.mark.skipif(
    find_compiler() is None or not Path(launcher._headers(), "Python.h").exists(),
    reason="needs a C++ compiler and Python's headers",
)
pytestmark = needs_launcher


@pytest.fixture(scope="module", autouse=True)
def ready() -> None:
    assert launcher.wait(120.0), launcher.reason()


def known(function: fusec.CompiledFunction, *args: object) -> object:
    """What the launcher answers, after the calls that make it known."""
    for _ in range(CALLS):
        function(*args)
    return NotImplemented if function._fast is None else function._fast(args)


def same(left: object, right: object) -> bool:
    """Equal bits, types and layouts."""
    if isinstance(left, tuple) or isinstance(right, tuple):
        return type(left) is type(right) and all(map(same, left, right))
    facts = [(t.dtype, t.shape, t.stride(), t.device, t.requires_grad) for t in (left, right)]
    return facts[0] == facts[1] and torch.equal(*map(bits, (left, right)))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return plain.reshape(-1).view(torch.uint8)


def in_python(text: str, *args: object) -> object:
    return fusec.compile(text)(*args)


# -- the same results -----------------------------------------------------------------------------

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64,
          torch.uint8, torch.int8, torch.bool)  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Tensors of every layout: permuted, sliced, expanded, 0-d, at odd addresses."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(1, 5), max_size=3))
    whole = torch.arange(2 * 6**3 + 3)[draw(st.integers(0, 2)) :][: 2 * 6**3] % 7
    return whole.to(dtype).as_strided(
        shape, [draw(st.sampled_from((0, 1, 2, 5, 6, 12))) for _ in shape]
    )


@given(tensors(), st.sampled_from((2, 2.5, True, -3, 2**40)), st.booleans())
@hypothesis_settings(max_examples=60)
def test_calls_give_what_python_gives(x: torch.Tensor, number: float, twice: bool) -> None:
    text = "x * s, x + x" if twice else "x * s + 1"
    expected = in_python(text, x, number)
    answer = known(fusec.compile(text), x, number)
    assert answer is not NotImplemented
    assert same(answer, expected)
    bound = fusec.compile(text).bind(x, number)
    assert all(same(bound(x, number), expected) for _ in range(CALLS))
    assert bound._fast is not None


@pytest.mark.parametrize(
    "text",
    ["softmax(x)", "x - mean(x), mean(x)", "x / norm(x, axis=0) + softmax(x)", "sum(x, axis=all)"],
)
def test_several_kernels_and_results(text: str) -> None:
    x = torch.arange(600.0).reshape(20, 30) % 17
    assert same(known(fusec.compile(text), x), in_python(text, x))


def test_large_results_come_from_the_pool() -> None:
    x = torch.arange(float(3 << 20)) % 1000
    function = fusec.compile("x * 2 + 1")
    first = known(function, x)
    assert same(first, x * 2 + 1)
    assert same(function._fast((x + 1,)), (x + 1) * 2 + 1)


def test_fresh_results_every_time() -> None:
    function = fusec.compile("x + 1")
    x = torch.ones(5)
    known(function, x)
    first, second = function(x), function(x * 2)
    assert first.data_ptr() != second.data_ptr()
    assert (first.tolist(), second.tolist()) == ([2.0] * 5, [3.0] * 5)
    assert x.tolist() == [1.0] * 5


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 1e300, -0.0, 2**63 - 1, -(2**63)])
def test_extreme_numbers(number: float) -> None:
    for x in (torch.ones(3), torch.ones(3, dtype=torch.int8), torch.ones(3, dtype=torch.bool)):
        assert same(known(fusec.compile("x * s"), x, number), in_python("x * s", x, number))


# -- what is left to Python -----------------------------------------------------------------------


def other_calls() -> Iterator[tuple[str, tuple[object, ...]]]:
    x = torch.ones(4, 6)
    yield "shape", (torch.ones(4, 7), 2.0)
    yield "rank", (torch.ones(24), 2.0)
    yield "strides", (torch.ones(6, 4).T, 2.0)
    yield "type", (x.double(), 2.0)
    yield "address", (torch.ones(25)[1:].reshape(4, 6), 2.0)
    yield "integer", (x, 2)
    yield "bool", (x, True)
    yield "tensor for number", (x, torch.tensor(2.0))
    yield "numpy number", (x, numpy.float32(2.0))
    yield "numpy", (x.numpy(), 2.0)
    yield "negative view", (torch.complex(x, -x).conj().imag, 2.0)
    yield "subclass", (x.as_subclass(type("Own", (torch.Tensor,), {})), 2.0)
    yield "gradient", (torch.ones(4, 6, requires_grad=True), 2.0)
    yield "sparse", (x.to_sparse(), 2.0)
    yield "meta", (x.to("meta"), 2.0)
    yield "complex", (x.to(torch.complex64), 2.0)
    yield "word", (x, "2")
    yield "too few", (x,)
    yield "too many", (x, 2.0, 3.0)
    yield "huge", (x, 2**64)


@pytest.mark.parametrize(("what", "args"), list(other_calls()), ids=[w for w, _ in other_calls()])
def test_a_call_that_differs_is_not_taken_for_the_known_one(
    what: str, args: tuple[object, ...]
) -> None:
    function = fusec.compile("x * s")
    assert same(known(function, torch.ones(4, 6), 2.0), torch.full((4, 6), 2.0))
    assert function._fast(args) is NotImplemented
    assert answered(function, args) == answered(fusec.compile("x * s"), args)


def answered(function: fusec.CompiledFunction, args: tuple[object, ...]) -> tuple[object, ...]:
    """A result's or an error's class and text."""
    try:
        result = function(*args)
    except fusec.FusecError as error:
        return type(error), str(error)
    return type(result), result.dtype, result.shape, repr(result)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of forward_ad itself
def test_gradients_are_recorded_by_calls_that_it_knows() -> None:
    function = fusec.compile("x + 1")
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert same(known(function, x), torch.full((3,), 2.0))
    assert function(x).requires_grad
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(UnsupportedError, match="tangent"),
    ):
        function(torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3)))
    with torch.no_grad():
        assert function(torch.nn.Parameter(torch.ones(3))).tolist() == [2.0] * 3
    with torch.inference_mode():
        result = function(torch.ones(3))
    assert result.is_inference()
    assert not function(torch.ones(3)).is_inference()


def test_names_go_the_usual_way() -> None:
    function = fusec.compile("x + 1")
    x = torch.ones(3)
    known(function, x)
    assert function(x=x).tolist() == [2.0] * 3


def known_into(function: fusec.CompiledFunction, args: tuple, out: object) -> object:
    for _ in range(CALLS):
        function(*args, out=out)
    return function._fast(args, out)


@pytest.mark.parametrize("text", ["x * s", "x * s, x + s", "x - mean(x) * s, mean(x)"])
def test_outputs_of_the_caller(text: str) -> None:
    x, s = torch.arange(12.0).reshape(3, 4), 2.5
    expected = in_python(text, x, s)
    several = isinstance(expected, tuple)
    outs = tuple(map(torch.zeros_like, expected if several else (expected,)))
    function = fusec.compile(text)
    answer = known_into(function, (x, s), outs if several else outs[0])
    assert same(answer, expected)
    answers = answer if several else (answer,)
    assert all(a is o for a, o in zip(answers, outs, strict=True))
    for out in outs:
        out.zero_()
    assert all(a is o for a, o in zip(
        function(x, s, out=outs) if several else (function(x, s, out=outs),), outs, strict=True
    ))  # fmt: skip
    assert same(outs if several else outs[0], expected)
    assert same(known(function, x, s), expected)  # without them it makes its own


def test_outputs_that_share_memory_are_left_to_python() -> None:
    function = fusec.compile("x * 2 + y, x + y")
    room = torch.zeros(40)
    x, y = torch.ones(8), torch.arange(8.0)
    outs = (torch.zeros(8), torch.zeros(8))
    assert known_into(function, (x, y), outs) is not NotImplemented
    for start in range(0, 17):
        views = (room[start : start + 8], room[16:24])
        room.zero_()
        answer = function._fast((x, y), views)
        aligned = start % 4 == 0
        assert (answer is NotImplemented) == (not aligned or start > 8), start
    room[:8] = 1.0
    inside = room[:8]
    assert function._fast((inside, y), (room[4:12], outs[1])) is NotImplemented
    assert function._fast((inside, y), (inside, outs[1])) is NotImplemented
    assert function._fast((inside, y), (room[8:16], outs[1])) is not NotImplemented
    assert function(inside, y, out=(inside, outs[1]))[0].tolist() == (2 + y).tolist()
    assert inside.tolist() == (2 + y).tolist()


def other_outputs() -> Iterator[object]:
    yield torch.zeros(4)
    yield torch.zeros(3, dtype=torch.float64)
    yield torch.zeros(6)[::2]
    yield torch.zeros(4)[1:]
    yield torch.zeros(3, requires_grad=True)
    yield torch.zeros(3, device="meta")
    yield (torch.zeros(3), torch.zeros(3))
    yield [torch.zeros(3)]
    yield numpy.zeros(3, dtype=numpy.float32)
    yield torch.zeros(1).expand(3)
    yield ()


@pytest.mark.parametrize("out", list(other_outputs()), ids=lambda out: repr(out)[:40])
def test_another_output_is_not_taken_for_the_known_one(out: object) -> None:
    function, x = fusec.compile("x + 1"), torch.ones(3)
    assert known_into(function, (x,), torch.zeros(3)) is not NotImplemented
    assert function._fast((x,), out) is NotImplemented

    def outcome(call: fusec.CompiledFunction) -> object:
        try:
            result = call(x, out=out)
        except fusec.FusecError as error:
            return type(error), str(error)
        return repr(result)

    assert outcome(function) == outcome(fusec.compile("x + 1"))


def test_vmap_goes_to_python() -> None:
    function = fusec.compile("x + 1")
    known(function, torch.ones(3))
    assert torch.func.vmap(function)(torch.ones(2, 3)).tolist() == [[2.0] * 3] * 2


def test_a_bound_call_checks_the_number_of_inputs() -> None:
    x = torch.ones(3)
    bound = fusec.compile("x * y").bind(x, x)
    for _ in range(CALLS):
        assert bound().tolist() == [1.0] * 3
        with pytest.raises(UnknownNameError, match="1 arguments for 2 inputs"):
            bound(x)
    with pytest.raises(AttributeError, match="data_ptr"):
        bound(1.0, x)


def test_a_bound_call_writes_to_given_memory() -> None:
    function = fusec.compile("x * s, sum(x)")
    x, outs = torch.ones(3), (torch.empty(3), torch.empty(()))
    bound = function.bind(x, 2.0, out=outs)
    for turn in range(CALLS):
        x.fill_(turn)
        result = bound()
        assert result[0] is outs[0]
        assert result[1] is outs[1]
        assert outs[0].tolist() == [2.0 * turn] * 3
        assert outs[1].item() == 3.0 * turn
    assert bound._fast is not None
    other = torch.full((3,), 5.0)
    assert bound(other, 3.0)[0].tolist() == [15.0] * 3
    assert bound()[0].tolist() == [2.0 * turn] * 3  # as bound


# -- threads, forks, memory -----------------------------------------------------------------------


def test_threads_share_a_table() -> None:
    function = fusec.compile("softmax(x * s), sum(x) + s")
    wrong: list[object] = []

    def work(seed: int) -> None:
        for turn in range(200):
            x = torch.arange(40.0 + turn % 5).repeat(3, 1) + seed
            soft, total = function(x, float(seed))
            if not torch.allclose(soft, (x * seed).softmax(-1)) or not torch.equal(
                total, x.sum(-1) + seed
            ):
                wrong.append((seed, turn))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert function._fast is not None
    assert wrong == []


def test_a_table_forgets_and_goes_on() -> None:
    function = fusec.compile("x + 1")
    for length in range(1, 1200):
        x = torch.ones(length)
        function(x)
        function(x)
    assert same(known(function, torch.ones(7)), torch.full((7,), 2.0))
    assert same(known(function, torch.ones(1199)), torch.full((1199,), 2.0))


def test_nothing_is_kept() -> None:
    function = fusec.compile("x * s, x + 1")
    x = torch.ones(64)
    table_answer = known(function, x, 2.0)
    bound = function.bind(x, 2.0)
    for _ in range(CALLS):
        bound()
    plan = function._memo[next(iter(function._memo))].fast
    del table_answer
    gc.collect()
    held = [sys.getrefcount(item) for item in (x, plan, torch.float32, torch.empty_like)]
    blocks = sys.getallocatedblocks()
    for _ in range(5000):
        function(x, 2.0)
        bound()
        function._fast((x, 2))
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 200
    after = [sys.getrefcount(item) for item in (x, plan, torch.float32, torch.empty_like)]
    assert max(abs(a - b) for a, b in zip(after, held, strict=True)) <= 2
    result = function(x, 2.0)[0]
    gone = weakref.ref(result)
    del result
    assert gone() is None


def test_a_function_that_goes_takes_its_plans_along() -> None:
    function = fusec.compile("x + 1")
    known(function, torch.ones(3))
    table = weakref.ref(function)
    plan_owner = function._memo[next(iter(function._memo))]
    plan = plan_owner.fast
    before = sys.getrefcount(plan)
    del function
    gc.collect()
    assert table() is None
    assert sys.getrefcount(plan) < before


def test_an_error_of_an_allocation_is_raised() -> None:
    module = launcher._state.module

    def fail() -> torch.Tensor:
        raise MemoryError("no room")

    plan = module.Plan(1, 1, (torch.ones(1), fail), (), None)
    with pytest.raises(MemoryError, match="no room"):
        plan(torch.ones(3))


@pytest.mark.parametrize(
    "arguments",
    [
        (1, 0, (), (), None),
        (40, 1, (len,), (), None),
        (1, 2, (len,), (), None),
        (1, 1, (len,) * 80, (), None),
        (1, 1, (len,),
         ((b"QQ", (0,), (), (), 1, 0, (1,) * 3, (1,) * 3, (1,) * 3, 0, 0, 0, 0),), None),
        (1, 1, (len,),
         ((b"Q", (0,), ((1, 0),), (), 1, 0, (1,) * 3, (1,) * 3, (1,) * 3, 0, 0, 0, 0),), None),
        (1, 1, (len,),
         ((b"Q", (0,), ((0, 2),), (), 1, 0, (1,) * 3, (1,) * 3, (1,) * 3, 0, 0, 0, 0),), None),
        (1, 1, (len,),
         ((b"Q", (0,), (), ((0, 1),), 1, 0, (1,) * 3, (1,) * 3, (1,) * 3, 0, 0, 0, 0),), None),
    ],
)  # fmt: skip
def test_a_plan_that_would_reach_outside_is_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="cannot take"):
        launcher._state.module.Plan(*arguments)


CHILD = """
import os, sys, torch, fusec
from fusec.runtime import launcher
x = torch.arange(200000.0)
f = fusec.compile("x * 2 + 1")
assert launcher.wait(120.0), launcher.reason()
for _ in range(4):
    f(x)
assert f._fast is not None
child = os.fork()
if not child:  # PyTorch's own operations would wait here for threads that are not there
    answer = f._fast((x,))
    os._exit(0 if answer is not NotImplemented and answer.tolist()[-1] == 399999.0 else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(f._fast((x,)), x * 2 + 1)
"""


def run_child(program: str, root: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
        env=settings.child_environment(
            FUSEC_CACHE_DIR=str(root or default_store().root), OMP_NUM_THREADS="2"
        ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_computes_on_one_thread() -> None:
    run_child(CHILD)


# -- building it ----------------------------------------------------------------------------------


@pytest.fixture
def new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The launcher as a new process with an empty cache finds it."""
    root = tmp_path / "cache"
    root.mkdir(mode=0o700)
    monkeypatch.setattr(launcher, "_state", launcher._State())
    with settings.override(cache_dir=root):
        yield root


def repeat(count: int) -> fusec.CompiledFunction:
    function = fusec.compile("x + 1")
    for _ in range(count):
        assert function(torch.ones(3)).tolist() == [2.0] * 3
    return function


def test_first_calls_build_nothing(new_process: Path) -> None:
    function = repeat(launcher.BUILD_AFTER // 2)
    assert launcher._state.build is None
    assert function._fast is None
    assert not list(new_process.glob("*/*/launcher.so"))


def test_many_calls_build_it_meanwhile(new_process: Path) -> None:
    repeat(launcher.BUILD_AFTER + 5)
    assert launcher._state.build is not None
    assert launcher.wait(120.0)
    assert list(new_process.glob("*/*/launcher.so"))
    assert repeat(CALLS)._fast is not None
    launcher._state = launcher._State()  # the next process finds it there
    assert repeat(CALLS)._fast is not None
    assert launcher._state.build is None


class Silent(TorchDispatchMode):
    """A mode that lets everything pass."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_it_is_not_loaded_under_a_mode_of_torch(new_process: Path) -> None:
    """The trial of the short ways would meet the mode, and find none for the process."""
    assert launcher.wait(120.0)
    for mode in (BaseTorchFunctionMode, Silent):
        launcher._state = launcher._State()
        with mode():
            repeat(CALLS)
            assert not launcher.wait(1.0)
            assert launcher._state.build is None
        assert launcher._state.module is None
        assert repeat(CALLS)._fast is not None
        assert launcher._state.ways is not None


def test_binding_builds_it_meanwhile(new_process: Path) -> None:
    bound = fusec.compile("x + 1").bind(torch.ones(3))
    assert launcher._state.build is not None
    assert launcher.wait(120.0)
    assert [bound().tolist() for _ in range(CALLS)] == [[2.0] * 3] * CALLS
    assert bound._fast is not None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"no_launcher": True}, "FUSEC_NO_LAUNCHER"),
        ({"cxx": (("no-such-compiler",),)}, "no C\\+\\+ compiler"),
    ],
)
def test_without_it_calls_go_through_python(
    new_process: Path, change: dict[str, object], why: str
) -> None:
    function = fusec.compile("x + 1", backend="cpp")
    function(torch.ones(3))
    with settings.override(**change):
        assert not launcher.wait(1.0)
        for _ in range(launcher.BUILD_AFTER + 5):
            assert function(torch.ones(3)).tolist() == [2.0] * 3
    assert function._fast is None
    assert re.search(why, launcher.reason())


def test_a_failed_build_is_not_tried_again(
    new_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_FLAGS", (*launcher._FLAGS, "-include", "no_such_header.h"))
    assert not launcher.wait(120.0)
    assert "could not be built" in launcher.reason()
    launcher._state = launcher._State()
    repeat(launcher.BUILD_AFTER + 5)
    assert launcher._state.build is None
    assert "could not be built" in launcher.reason()


@pytest.mark.parametrize("checked", [True, False], ids=["right checksum", "wrong checksum"])
def test_a_damaged_launcher_is_never_fatal(new_process: Path, checked: bool) -> None:
    assert launcher.wait(120.0)
    (path,) = new_process.glob("*/*/launcher.so")
    key = path.parent.parent.name + path.parent.name
    if checked:
        default_store().remove(key)
        default_store().put(key, {"launcher.so": b"no library"})
    else:
        path.unlink()
        path.write_bytes(b"no library")
    # Another process: this one has the library loaded by that name.
    run_child(
        "import torch, fusec\nfrom fusec.runtime import launcher\n"
        f"assert launcher.wait(120.0) is {not checked}, launcher.reason()\n"
        "f = fusec.compile('x + 1')\n"
        "for _ in range(4): assert f(torch.ones(3)).tolist() == [2.0] * 3\n"
        f"assert (f._fast is None) is {checked}",
        root=new_process,
    )


def test_a_process_that_ends_stops_its_compiler(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o700)
    program = f"""
import torch, fusec
from fusec import settings
with settings.override(cache_dir=__import__('pathlib').Path({str(tmp_path / "c")!r})):
    fusec.compile("x + 1").bind(torch.ones(3))
    from fusec.runtime import launcher
    assert launcher._state.build.is_alive()
"""
    run_child(program)
    assert not list((tmp_path / "c" / "tmp").iterdir())


def test_a_compiler_that_starts_as_the_process_ends_is_stopped() -> None:
    """The thread that builds ends its own compiler, and does not wait for itself."""
    compiler = find_compiler()
    assert compiler is not None
    build = launcher._Build(compiler, "no key")
    build._stopped = True
    build.start()
    build.join(60.0)
    assert not build.is_alive()
    assert build._process is not None
    assert build._process.returncode == -signal.SIGKILL


def test_sources_compile_without_a_warning(tmp_path: Path) -> None:
    compiler = find_compiler()
    assert compiler is not None
    subprocess.run(
        [
            *compiler.command, *launcher._FLAGS, "-Wall", "-Wextra", "-Werror",
            "-Wno-missing-field-initializers", "-Wno-cast-function-type", "-isystem",
            launcher._headers(), str(launcher.SOURCES / "launcher.cpp"), "-o",
            str(tmp_path / "launcher.so"),
        ],
        check=True,
    )  # fmt: skip
