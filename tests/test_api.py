"""The public API: arguments and their errors, ``out=``, NumPy, ``bind``, variants, threads, forks,
pickles.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import threading
from typing import Any

import numpy
import pytest
import torch

import fusec
from fusec.errors import DTypeError, FusecError, ShapeError, UnknownNameError, UnsupportedError
from tests.oracle import CPP, EAGER, INTERPRETER, Backend, on_every_backend, same

# -- names and arguments ----------------------------------------------------------------------


def test_inputs_are_in_order_of_appearance_or_as_asked() -> None:
    text = "y = b * 2\ny + a, y"
    assert fusec.compile(text).inputs == ("b", "a")
    assert fusec.compile(text, inputs=["a", "b"]).inputs == ("a", "b")
    assert len(fusec.compile(text).outputs) == 2
    ordered = fusec.compile("a - b", inputs=["b", "a"])
    same(ordered(torch.ones(2), torch.full((2,), 5.0)), torch.full((2,), 4.0))
    with pytest.raises(UnknownNameError):
        fusec.compile("a - b", inputs=["a"])


def test_arguments_by_position_and_name() -> None:
    function = fusec.compile("a - b * c")
    a, b, c = torch.tensor([9.0]), torch.tensor([2.0]), torch.tensor([3.0])
    for result in (
        function(a, b, c),
        function(a=a, b=b, c=c),
        function(c=c, b=b, a=a),
        function(a, c=c, b=b),
        function(a, b, c=c),
    ):
        same(result, torch.tensor([3.0]))


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((1,), {}, "missing input 'b'"),
        ((), {"b": 1}, "missing input 'a'"),
        ((1, 2, 3), {}, "3 positional arguments for 2 inputs"),
        ((1, 2), {"a": 3}, "given twice"),
        ((1,), {"bb": 3}, "no input 'bb'"),
        ((), {}, "missing input 'a', 'b'"),
    ],
)
def test_wrong_arguments(args: tuple[int, ...], named: dict[str, int], message: str) -> None:
    function = fusec.compile("a + b")
    with pytest.raises(UnknownNameError, match=message):
        function(*map(torch.tensor, args), **{k: torch.tensor(v) for k, v in named.items()})


def test_options_are_checked() -> None:
    for options in ({"backend": "tritn"}, {"numerics": "exact"}):
        with pytest.raises(UnsupportedError, match="unknown"):
            fusec.compile("x", **options)
    with pytest.raises(FusecError, match="cannot name a kernel"):
        fusec.compile("x", name="two words")
    with pytest.raises(UnsupportedError, match="a formula, a function or a sympy"):
        fusec.compile(3)
    with pytest.raises(UnsupportedError, match="keepdim= is for formulas"):
        fusec.compile(lambda x: x, keepdim=True)


def test_the_name_names_the_kernel() -> None:
    assert "def wave_kernel(" in fusec.compile("sin(x) + 1", name="wave").show("triton")
    assert "def softmax_kernel(" in fusec.compile("softmax(x)").show("triton")
    assert "def kernel(" in fusec.compile("sin(x) + 1").show("triton")
    assert fusec.compile("sin(x)", name="wave").__name__ == "wave_kernel"


@on_every_backend
def test_any_identifier_is_a_good_input(backend: Backend) -> None:
    names = [
        "int",
        "row",
        "mask",
        "n",
        "cols",
        "lambda_",
        "tl",
        "float",
        "self",
        "out",
        "t0",
        "BLOCK",
        "threads",
        "x_ptr",
    ]
    named = {n: torch.full((3,), float(k)) for k, n in enumerate(names) if n != "out"}
    values = {n: backend.place(v) for n, v in named.items()}
    function = backend.compile(" + ".join(named) + ", int * 2")
    total, doubled = function(**values)
    same(total.cpu(), sum(named.values(), torch.zeros(3)))
    same(doubled.cpu(), named["int"] * 2)


@on_every_backend
def test_keepdim(backend: Backend) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert backend.one("sum(x)", x).shape == (2,)
    same(backend.one("sum(x)", x, keepdim=True), x.sum(-1, keepdim=True))
    same(backend.one("sum(x, axis=all)", x, keepdim=True), x.sum().reshape(1, 1))


# -- out= -------------------------------------------------------------------------------------


@on_every_backend
def test_out_takes_the_result(backend: Backend) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    function = backend.compile("x * 2 + 1")
    right = x * 2 + 1
    placed = backend.place(x)
    dense = torch.empty_like(placed)
    assert function(placed, out=dense) is dense
    same(dense.cpu(), right)
    wide = torch.zeros(3, 8, device=placed.device)
    assert function(placed, out=wide[:, ::2]).data_ptr() == wide.data_ptr()
    same(wide[:, ::2].cpu(), right)
    assert not wide[:, 1::2].any()
    turned = torch.empty(4, 3, device=placed.device).t()
    same(function(placed, out=turned).cpu(), right)
    again = torch.empty(4, 3, device=placed.device).t()
    same(function(placed, out=again).cpu(), right)


@on_every_backend
@pytest.mark.parametrize("text", ["x * 2 + 1", "softmax(x)", "x - max(x)", "x - mean(x, axis=0)"])
def test_out_may_be_an_input(backend: Backend, text: str) -> None:
    x = torch.arange(20.0).reshape(4, 5) % 7
    right = backend.one(text, x)
    placed = backend.place(x.clone())
    result = backend.compile(text)(placed, out=placed)
    assert result is placed
    same(placed.cpu(), right)


@on_every_backend
def test_out_may_overlap_an_input_elsewhere(backend: Backend) -> None:
    """Shifted, transposed and swapped memory: as if every input were read before anything is
    written.
    """
    memory = backend.place(torch.arange(4000.0))
    right = (memory[:-1] * 2).cpu()
    backend.compile("x * 2")(memory[:-1], out=memory[1:])
    same(memory[1:].cpu(), right)
    square = backend.place(torch.arange(900.0).reshape(30, 30))
    right = (square + 1).cpu()
    backend.compile("x + 1")(square, out=square.t())
    same(square.t().cpu(), right)
    a, b = backend.place(torch.arange(9.0)), backend.place(torch.arange(9.0) * 3)
    sums = (a + b).cpu(), (a - b).cpu()
    backend.compile("a + b, a - b")(a, b, out=(b, a))
    same(b.cpu(), sums[0])
    same(a.cpu(), sums[1])


def test_out_may_overlap_an_array() -> None:
    memory = numpy.arange(4000.0, dtype=numpy.float32)
    right = memory[:-1] * 2
    fusec.compile("x * 2")(memory[:-1], out=torch.from_numpy(memory[1:]))
    assert (memory[1:] == right).all()


@on_every_backend
def test_out_of_several_results(backend: Backend) -> None:
    x = backend.place(torch.arange(6.0).reshape(2, 3))
    outs = (torch.empty(2, 3, device=x.device), torch.empty(2, device=x.device))
    results = backend.compile("x + 1, sum(x)")(x, out=outs)
    assert results[0] is outs[0]
    assert results[1] is outs[1]
    same(outs[1].cpu(), torch.tensor([3.0, 12.0]))
    with pytest.raises(ShapeError, match="1 tensors, the formula has 2 results"):
        backend.compile("x + 1, sum(x)")(x, out=outs[0])


_WRONG_OUTS: list[tuple[type[FusecError], Any]] = [
    (ShapeError, lambda: torch.empty(3, 3)),
    (ShapeError, lambda: torch.empty(6)),
    (DTypeError, lambda: torch.empty(2, 3, dtype=torch.float64)),
    (DTypeError, lambda: numpy.empty((2, 3), dtype=numpy.float32)),
    (ShapeError, lambda: torch.empty(2, 1).expand(2, 3)),
    (UnsupportedError, lambda: torch.empty(2, 3, requires_grad=True)),
    (UnsupportedError, lambda: torch.empty(2, 3, device="meta")),
]


@pytest.mark.parametrize("backend", [CPP, INTERPRETER, EAGER], ids=str)
@pytest.mark.parametrize(("error", "make"), _WRONG_OUTS)
def test_a_wrong_out_is_refused_and_nothing_is_written(
    backend: Backend, error: type[FusecError], make: Any
) -> None:
    function = backend.compile("x + 1")
    x = torch.arange(6.0).reshape(2, 3)
    function(x, out=torch.empty(2, 3))
    out = make()
    kept = copy.deepcopy(out.detach()) if isinstance(out, torch.Tensor) else out.copy()
    with pytest.raises(error):
        function(x, out=out)
    if isinstance(out, torch.Tensor) and out.is_meta:
        return
    after = numpy.asarray(out.detach() if isinstance(out, torch.Tensor) else out)
    assert numpy.array_equal(after, numpy.asarray(kept), equal_nan=True)


# -- NumPy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [CPP, INTERPRETER, EAGER], ids=str)
def test_arrays_in_and_arrays_out(backend: Backend) -> None:
    function = backend.compile("x * 2 + y, sum(x)")
    x = numpy.arange(24, dtype=numpy.float32).reshape(4, 6)
    frozen = x.copy()
    frozen.flags.writeable = False
    swapped = x.astype(">f4")
    for array in (
        x,
        x.T,
        x[:, ::2],
        x[::-1],
        x[:, ::-1],
        frozen,
        swapped,
        x[1:, 2:],
        numpy.asfortranarray(x),
        x[:0],
    ):
        y = numpy.float32(1.5)
        doubled, total = function(array, y)
        assert isinstance(doubled, numpy.ndarray)
        assert doubled.dtype == numpy.float32
        numpy.testing.assert_array_equal(doubled, array * 2 + y)
        numpy.testing.assert_array_equal(total, array.sum(-1, dtype=numpy.float32))
    assert (x == numpy.arange(24).reshape(4, 6)).all()


def test_a_packed_array_is_read_where_it_lies() -> None:
    record = numpy.zeros(5, dtype=[("a", numpy.int8), ("b", numpy.float32)])
    record["b"] = numpy.arange(5)
    numpy.testing.assert_array_equal(fusec.compile("x + 1")(record["b"]), numpy.arange(5) + 1)


@pytest.mark.parametrize("kind", ["uint16", "uint32", "uint64", "complex64", "object", "U3"])
def test_arrays_of_other_types_are_refused(kind: str) -> None:
    with pytest.raises(DTypeError, match="'x'"):
        fusec.compile("x + 1")(numpy.zeros(3, dtype=kind))


def test_a_result_that_numpy_has_no_type_for_is_an_error() -> None:
    with pytest.raises(DTypeError, match=r"bf16|bfloat16"):
        fusec.compile("bf16(x)")(numpy.ones(3, dtype=numpy.float32))


# -- what is no input -------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["text", None, [1.0, 2.0], 1 + 2j, object()])
def test_things_that_are_no_tensors(value: object) -> None:
    with pytest.raises(DTypeError, match="'x'"):
        fusec.compile("x + y")(value, torch.ones(2))


def test_types_and_devices_that_are_not_supported() -> None:
    function = fusec.compile("x + y")
    with pytest.raises(DTypeError, match=r"'x' is torch.complex64"):
        function(torch.ones(2, dtype=torch.complex64), torch.ones(2))
    with pytest.raises(UnsupportedError, match="layout"):
        function(torch.eye(2).to_sparse(), torch.ones(2))
    with pytest.raises(UnsupportedError, match="'y' is on meta"):
        function(torch.ones(2), torch.ones(2, device="meta"))
    with pytest.raises(UnsupportedError, match="at least one tensor"):
        function(1.0, 2)
    with pytest.raises(UnsupportedError, match="on meta"):
        fusec.compile("x + 1", backend="cpp")(torch.ones(2, device="meta"))


@on_every_backend
def test_zeros_without_memory(backend: Backend) -> None:
    zeros = backend.place(torch._efficientzerotensor((5,)))
    function = fusec.compile("x * 2 + y", backend=backend.name)
    y = backend.place(torch.arange(5.0))
    for _ in range(5):
        assert torch.equal(function(zeros, y), y)


@on_every_backend
def test_memory_that_was_given_back_is_refused(backend: Backend) -> None:
    """As sharded training does with parameters between uses; the kernel would read address 0."""
    function = fusec.compile("x + y", backend=backend.name)
    x, y = (backend.place(torch.ones(64)) for _ in range(2))
    for _ in range(5):
        function(x, y)
        function(y, y, out=torch.empty_like(x))
    x.untyped_storage().resize_(0)
    with pytest.raises(UnsupportedError, match="'x' has no memory"):
        function(x, y)
    with pytest.raises(UnsupportedError, match="out has no memory"):
        function(y, y, out=x)


def test_without_gradients_nothing_is_recorded() -> None:
    function = fusec.compile("x * 2")
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        same(function(x), torch.full((3,), 2.0))
    same(function(x.detach()), torch.full((3,), 2.0))
    plain = function(torch.nn.Parameter(torch.ones(3), requires_grad=False))
    same(plain, torch.full((3,), 2.0))
    assert not plain.requires_grad
    assert function._steps == {}


@pytest.mark.gpu
def test_a_0_d_cpu_tensor_joins_tensors_on_a_gpu_at_every_call() -> None:
    function = fusec.compile("x * s")
    x = torch.arange(4.0, device="cuda")
    for factor in (2.0, 3.0, 4.0):
        same(function(x, torch.tensor(factor)).cpu(), torch.arange(4.0) * factor)
    with pytest.raises(UnsupportedError, match="on cpu"):
        function(x, torch.ones(4))


# -- bind -------------------------------------------------------------------------------------


@on_every_backend
def test_bound_calls(backend: Backend) -> None:
    x, y = torch.arange(8.0).reshape(2, 4), torch.tensor([1.0, 2.0, 3.0, 4.0])
    function = backend.compile("x * s + y, max(x, axis=0) - sum(y)")
    bound = function.bind(backend.place(x), 2.0, y=backend.place(y))
    first = bound()
    same(first[0].cpu(), x * 2 + y)
    other = backend.place(x + 10)
    second = bound(other, 3.0, backend.place(y))
    same(second[0].cpu(), (x + 10) * 3 + y)
    same(second[1].cpu(), (x + 10).amax(0) - 10)
    same(first[0].cpu(), x * 2 + y)  # fresh outputs: the first result is still there


@on_every_backend
def test_a_bound_call_into_given_memory(backend: Backend) -> None:
    function = backend.compile("softmax(x)")
    first = backend.place(torch.tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 0.0]]))
    other = backend.place(torch.tensor([[2.0, 2.0, 1.0], [1.0, 5.0, 0.0]]))
    x, out = first.clone(), torch.zeros_like(first)
    bound = function.bind(x, out=out)
    for _ in range(5):  # from some call on by the compiled launcher
        out.zero_()
        assert bound() is out
        same(out, function(first))
    x.copy_(other)  # the memory is bound, not the numbers
    same(bound(), function(other))
    out.copy_(first)
    same(bound(out), function(first))  # what is read is what is written
    over = function.bind(x, out=x)
    same(over(), function(other))
    same(over(), function(function(other)))
    with pytest.raises(ShapeError, match="out"):
        function.bind(x, out=backend.place(torch.zeros(3)))


def test_a_sparse_result_is_refused() -> None:
    x = torch.ones(3, 3)
    with pytest.raises(UnsupportedError, match=r"out has the layout torch\.sparse_coo"):
        fusec.compile("x + 1")(x, out=x.to_sparse())


@on_every_backend
@pytest.mark.parametrize("bound", [False, True])
def test_what_is_written_to_cannot_be_a_saved_value(backend: Backend, bound: bool) -> None:
    function = backend.compile("2*x")
    x = backend.place(torch.ones(4))
    for _ in range(5):  # from some call on by the compiled launcher
        out, weight = torch.full_like(x, 3.0), torch.ones_like(x).requires_grad_()
        call = function.bind(x, out=out) if bound else lambda out=out: function(x, out=out)
        loss = (weight * out).sum()
        call()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    base = torch.zeros_like(x)
    function(x[:2], out=base[:2])
    assert base._version > 0
    with torch.inference_mode():
        same(function(x, out=torch.empty_like(x)), 2 * x)  # such a tensor has no counter


@pytest.mark.parametrize("backend", [CPP, EAGER, INTERPRETER], ids=str)
def test_a_bound_call_copies_what_it_copied_before(backend: Backend) -> None:
    """What has to be copied to be read may have other elements by the next call."""
    function = backend.compile("2*x + y")
    y, pairs = torch.ones(4), torch.zeros(4, dtype=torch.complex64)
    bound = function.bind(torch.conj(pairs).imag, y)  # a bit says that its elements are negated
    for turn in range(4):
        pairs.fill_(-turn * 1j)
        same(bound(), torch.full((4,), 2.0 * turn + 1))
        same(bound(torch.conj(pairs + 1j).imag, y), torch.full((4,), 2.0 * turn - 1))
    ones = numpy.ones((2, 3), numpy.float32)
    for array in (numpy.zeros((2, 3), numpy.float32)[::-1], numpy.zeros((2, 3), ">f4")):
        bound = function.bind(array, ones)
        array[:] = 5
        assert bound().tolist() == [[11.0] * 3] * 2


def test_a_bound_call_is_copied_and_not_pickled() -> None:
    x, out = torch.arange(3.0), torch.empty(3)
    function = fusec.compile("x * 2 + s")
    for bound in (function.bind(x, 1.0), function.bind(x, 1.0, out=out)):
        for _ in range(4):  # the compiled launcher may have it by then
            bound()
        deep, shallow = copy.deepcopy(bound), copy.copy(bound)
        with pytest.raises(UnsupportedError, match="a bound call cannot be pickled"):
            pickle.dumps(bound)
        x.add_(1)
        same(bound(), x * 2 + 1)
        same(shallow(), x * 2 + 1)
        same(deep(), (x - 1) * 2 + 1)
        assert (shallow() is out) == (bound() is out)
        assert deep() is not out
    same(copy.deepcopy([bound, bound])[1](), x * 2 + 1)


@on_every_backend
def test_a_bound_call_of_memory_that_is_gone(backend: Backend) -> None:
    function = backend.compile("2*x")
    for calls in (0, 5):
        x = backend.place(torch.ones(64))
        out = torch.empty_like(x)
        bound, into = function.bind(x), function.bind(x, out=out)
        for _ in range(calls):
            same(bound(), into())
        x.untyped_storage().resize_(0)
        for call in (bound, into):
            with pytest.raises(fusec.FusecError, match="memory"):
                call()
        x = backend.place(torch.ones(64))
        into = function.bind(x, out=out)
        out.untyped_storage().resize_(0)
        with pytest.raises(fusec.FusecError, match="memory"):
            into()


@on_every_backend
def test_a_bound_call_of_empty_tensors(backend: Backend) -> None:
    bound = backend.compile("x + 1").bind(backend.place(torch.empty(0, 3)))
    assert bound().shape == (0, 3)


# -- variants ---------------------------------------------------------------------------------


def test_many_shapes_build_few_kernels() -> None:
    function = fusec.compile("softmax(x) * 2 + b", backend="cpp")
    for length in (1, 2, 63, 64, 65, 1000, 5000):
        b = torch.linspace(-1, 1, length)
        for rows in (*range(9), 64, 65, 100, 255, 256, 300):
            x = torch.arange(rows * length, dtype=torch.float32).reshape(rows, length) % 11
            result = function(x, b)
            assert result.shape == (rows, length)
            if rows in (0, 1, 3, 300):
                torch.testing.assert_close(result, x.softmax(-1) * 2 + b)
    assert 1 <= len(function.variants) <= 12


def test_every_row_count_uses_the_same_kernels() -> None:
    function = fusec.compile("softmax(x) * 2 + b", backend="cpp")
    for rows in range(301):
        function(torch.zeros(rows, 65), torch.zeros(65))
    assert len(function.variants) <= 3


@pytest.mark.parametrize("backend", [INTERPRETER], ids=str)
def test_triton_classes_of_rows_are_few(backend: Backend) -> None:
    function = backend.compile("softmax(x) * 2 + b")
    for length in (1, 2, 63, 64, 65, 1000, 5000):
        for rows in (0, 1, 2, 3, 300 if length < 100 else 5):
            x = torch.arange(rows * length, dtype=torch.float32).reshape(rows, length) % 11
            torch.testing.assert_close(function(x, torch.ones(length)), x.softmax(-1) * 2 + 1)
    # For each of six powers of two rows of any number and, of some, one row; rows that fill theirs;
    # one flat index whose number of elements fills vectors, and one whose does not.
    assert 1 <= len(function.variants) <= 15


def test_variants_say_what_and_why() -> None:
    function = fusec.compile("x + 1", backend="cpp")
    assert function.variants == ()
    before = fusec.stats()
    function(torch.ones(3))
    function(torch.ones(5))
    function(torch.ones(3, dtype=torch.int32))
    after = fusec.stats()
    assert (after.compiles - before.compiles, after.specializations - before.specializations) == (
        2,
        2,
    )
    first, second = function.variants
    assert first.backend == "cpp"
    assert "f32" in first.key
    assert "i32" in second.key
    assert first.kernel in str(first)
    assert first.why in str(first)


# -- threads, forks, pickles ------------------------------------------------------------------


@pytest.mark.parametrize("backend", [CPP, INTERPRETER, EAGER], ids=str)
def test_threads_may_share_a_function(backend: Backend) -> None:
    function = backend.compile("softmax(x * s), sum(x) + s")
    wrong: list[object] = []
    barrier = threading.Barrier(6)

    def work(seed: int) -> None:
        barrier.wait()
        try:
            for turn in range(6):
                x = torch.arange(40.0 + turn).repeat(3, 1) + seed
                soft, total = function(x, float(seed))
                torch.testing.assert_close(soft, (x * seed).softmax(-1))
                torch.testing.assert_close(total, x.sum(-1) + seed)
        except BaseException as failure:
            wrong.append(failure)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    built = [v for v in function.variants if v.backend == "cpp"]
    assert len(built) == (1 if backend == CPP else 0)


def test_two_outputs_in_one_place_are_refused() -> None:
    function = fusec.compile("x + 1, x + 2")
    x, out = torch.randn(3, 4), torch.empty(3, 4)
    flat = torch.empty(20)
    wide = torch.empty(4, 6)
    for outs in (
        (out, out),
        (out, out.view(4, 3).T),
        (flat[:12].view(3, 4), flat[5:17].view(3, 4)),
        (wide[:3, :4], wide[1:, 2:]),
        (wide[:3, :4], wide.view(-1)[3:15].view(3, 4)),
    ):
        with pytest.raises(ShapeError, match=r"out\[0\] and out\[1\] share memory"):
            function(x, out=outs)
    both = torch.empty(3, 8)
    function(x, out=(both[:, 0::2], both[:, 1::2]))  # interleaved, and yet apart
    assert torch.equal(both[:, 0::2], x + 1)
    assert torch.equal(both[:, 1::2], x + 2)


def _in_child(function: fusec.CompiledFunction, inputs: list[torch.Tensor], end: Any) -> None:
    # PyTorch itself hangs here where it wants threads: only call fusec and read one element.
    end.send([function(x)[-1, -1].item() for x in inputs])


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_can_call_what_the_parent_called() -> None:
    function = fusec.compile("softmax(x) * 0 + x * 2 + 1", backend="cpp")
    x = torch.ones(600, 600)
    right = torch.full((600, 600), 3.0)
    same(function(x), right)  # on several threads, which the child does not have
    inputs = [x, x[:5], x.double(), torch.ones(2, 3, dtype=torch.float16)]
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_in_child, args=(function, inputs, sender))
    child.start()
    try:
        assert receiver.poll(60), "the child hangs"
        assert receiver.recv() == [3.0] * 4
    finally:
        child.join(10)
        if child.is_alive():
            child.kill()
    assert child.exitcode == 0
    same(function(x), right)


@pytest.mark.parametrize("backend", [CPP, INTERPRETER, EAGER], ids=str)
def test_functions_can_be_pickled_and_copied(backend: Backend) -> None:
    function = backend.compile(
        "sum(x) * y", inputs=["y", "x"], keepdim=True, numerics="precise", name="weighted"
    )
    x, y = torch.arange(6.0).reshape(2, 3), torch.tensor([2.0, 3.0, 4.0])
    right = function(y, x)
    for other in (
        pickle.loads(pickle.dumps(function)),
        copy.copy(function),
        copy.deepcopy(function),
    ):
        assert other.inputs == ("y", "x")
        assert repr(other) == repr(function)
        assert other.__name__ == "weighted_kernel"
        same(other(y, x), right)
