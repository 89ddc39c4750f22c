"""Rows of every length and layout in CUDA C++: lanes, blocks, clusters, loops and shared rows, with
whole vectors and without. Emulated on the CPU; on a GPU where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import fusec
from fusec.codegen import schedule_cuda
from fusec.codegen.kernel import Config, Form
from fusec.codegen.layout import arrange, operands
from fusec.frontend.parser import parse
from fusec.frontend.resolve import resolve
from fusec.ir.dtypes import by_torch_name
from fusec.ir.graph import InputSpec
from fusec.ir.node import Dim
from fusec.passes.fuse import plan
from fusec.runtime.build_cuda import compile_cuda, find_compiler
from fusec.runtime.build_triton import Target
from fusec.runtime.cuda_host import sources_of
from fusec.runtime.show import View, example_arguments
from fusec.source import Source
from tests.oracle import (
    DTYPES,
    EMULATED,
    Backend,
    assert_close,
    dtype_of,
    reduction_tolerance,
    reference,
)
from tests.test_ops import BINARY, UNARY, spelled

BOTH = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(EMULATED, id="emulated"),
        pytest.param(Backend("cuda", "cuda"), id="gpu", marks=pytest.mark.gpu),
    ],
)
NORM = "layer_norm(x) * w + b"


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def near(backend: Backend, text: str, *inputs: torch.Tensor) -> None:
    """Every result within the error of a good sum, relative to the largest of its row."""
    results = backend.run(text, *inputs)
    for actual, expected in zip(results, reference(text, *inputs), strict=True):
        relative = 4 * reduction_tolerance(actual.dtype, inputs[0].shape[-1])
        most = expected.double().abs().amax(dim=-1, keepdim=True) if expected.dim() else 1.0
        assert_close(actual, expected, 1, absolute=relative * most, what=text)


LENGTHS = [1, 7, 31, 64, 100, 129, 1000, 1024, 4096, 4097, 8200]


@BOTH
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_resident_rows(backend: Backend, name: str, length: int) -> None:
    x = values(5, length, dtype=dtype_of(name))
    w, b = values(length, dtype=x.dtype, seed=1), values(length, dtype=x.dtype, seed=2)
    near(backend, f"softmax(x), max(x), {NORM}", x, w, b)


@BOTH
@pytest.mark.parametrize("length", [1, 9, 63, 64, 65, 96, 100, 129, 255, 256, 1000, 1024, 1031])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_short_rows_that_are_only_read(backend: Backend, name: str, length: int) -> None:
    """A few threads share a row, and each element around its whole vectors has one of its own."""
    x = values(37, length, dtype=dtype_of(name))
    x[:, 0], x[:, -1] = 40.0, 30.0  # what a thread does not take is missed
    near(backend, "sum(x), max(x), logsumexp(x)", x)
    near(backend, "sum(x * x), min(x)", x[:1])


@BOTH
@pytest.mark.parametrize("length", [32768, 50257, 61440, 65536])
def test_rows_shared_by_a_cluster(backend: Backend, length: int) -> None:
    x = values(3, length, dtype=torch.bfloat16)
    w, b = values(length, dtype=x.dtype, seed=1), values(length, dtype=x.dtype, seed=2)
    near(backend, "softmax(x), max(x)", x)
    near(backend, NORM, x, w, b)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of small registers and no clusters: rows loop that else would not."""
    for name, value in (
        ("LARGEST_CLUSTER", 1), ("LARGEST_BLOCK", 64), ("BLOCK_THREADS", 64),
        ("LOOP_THREADS", 64), ("CLUSTERS_SINCE", 1000),
    ):  # fmt: skip
        monkeypatch.setattr(schedule_cuda, name, value)


@BOTH
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("length", [9000, 9001, 12345])
@pytest.mark.parametrize("shared", [True, False])
def test_looped_rows(
    backend: Backend, shared: bool, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows are shared out over blocks, many are not."""
    if not shared:
        monkeypatch.setattr(schedule_cuda, "splits_of", lambda *counts: 1)
    x = values(2, length)
    near(backend, "softmax(x), mean(x), logsumexp(x)", x)
    near(backend, NORM, x, values(length, seed=1), values(length, seed=2))


@BOTH
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("special", [float("inf"), float("-inf"), float("nan")])
def test_special_values_in_a_running_maximum(backend: Backend, special: float) -> None:
    x = values(6, 9001)
    x[0, 17] = special
    x[1, 9000] = special
    x[2] = special
    x[3, :9000] = float("-inf")
    x[4, 1:] = special
    for text in ("softmax(x)", "logsumexp(x)", "max(x)"):
        actual, expected = backend.one(text, x), reference(text, x)[0]
        assert_close(actual, expected, 64, absolute=1e-6, what=text)


@BOTH
def test_operands_that_lie_otherwise(backend: Backend) -> None:
    """Bases off 16 bytes, rows with gaps, strides of two, columns that are contiguous."""
    near(backend, "softmax(x) * y", values(70, 128)[:, 1:], values(70, 127))
    near(backend, "softmax(x) * y", values(70, 130)[:, :128], values(70, 128))
    near(backend, "softmax(x)", values(70, 256)[:, ::2])
    near(backend, "softmax(x)", values(100, 37).t())
    near(backend, "x * 2 + y", values(129)[1:], values(128))
    for shapes in (((33, 64), (64,)), ((33, 65), (65,)), ((33, 1), (33, 65)), ((1, 65), (33, 65))):
        x, y = (values(*shape, dtype=torch.bfloat16, seed=k) for k, shape in enumerate(shapes))
        near(backend, "x + y", x, y)
    near(backend, "x + 2 * y", values(70, 65), values(65, 70).t())


@BOTH
def test_columns(backend: Backend) -> None:
    for rows, columns in ((170, 100), (3000, 33)):
        x = values(rows, columns)
        results = backend.run("sum(x, axis=0), mean(x, axis=0), max(x, axis=0)", x)
        expected = (x.double().sum(0), x.double().mean(0), x.double().amax(0))
        for actual, wanted in zip(results, expected, strict=True):
            assert_close(actual, wanted, 1, absolute=1e-5 * rows**0.5)


@BOTH
def test_a_mean_is_finite_where_the_sum_is_not(backend: Backend) -> None:
    """A thread adds up to 32 elements one by one, each sum off by half a unit at most."""
    x = torch.full((3, 1000), 3e38)
    assert_close(backend.one("mean(x)", x), x.double().mean(-1), 16)


@BOTH
def test_a_row_gives_the_same_bits_among_few_and_among_many(backend: Backend) -> None:
    """Rows of odd length only if that is asked for: where one begins in memory decides which
    thread adds what.
    """
    for length, asked in ((100, False), (4096, False), (4097, True)):
        function = backend.compile("layer_norm(x)", batch_invariant=asked)
        x = values(40, length)
        many = function(backend.place(x)).cpu()
        for first in (0, 3, 38):
            few = function(backend.place(x[first : first + 2].clone())).cpu()
            assert torch.equal(few, many[first : first + 2])


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [64, 100, 256, 1024])
def test_rows_in_place(columns: int) -> None:
    """What stands in for a row beyond the last reads a row that may have been written."""
    function = fusec.compile("softmax(x)", backend="cuda")
    for rows in (1, 5, 1003, 200_001):
        x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
        expected = function(x)
        assert torch.equal(function(x, out=x), expected)


@pytest.mark.gpu
def test_the_quick_exponential() -> None:
    """Good to 2^-17 of every normal number, 0 below those, and what it should be at the ends."""
    function = fusec.compile("exp(x)", backend="cuda", numerics="fast")
    assert "quick_exp" in function.show("cuda")
    x = torch.linspace(-110, 90, 4_000_001, device="cuda")
    expected, actual = x.double().exp(), function(x).double()
    normal = (expected > 1.18e-38) & (expected < 3.4e38)
    error = (actual - expected).abs()[normal] / expected[normal]
    assert float(error.max()) < 2.0**-17
    assert bool((actual[expected < 1.17e-38] == 0).all())
    ends = torch.tensor([0.0, float("-inf"), float("inf"), float("nan"), 1e-40], device="cuda")
    assert function(ends).tolist()[:3] == [1.0, 0.0, float("inf")]
    assert bool(function(ends)[3].isnan())
    assert float(function(ends)[4]) == 1.0


@BOTH
@pytest.mark.parametrize("length", [64, 100, 256, 1000])
def test_a_short_row_that_is_only_read_gives_the_same_bits_alone(
    backend: Backend, length: int
) -> None:
    function = backend.compile("sum(x), logsumexp(x)", batch_invariant=True)
    x = values(40, length)
    many = function(backend.place(x))
    for row in (0, 3, 39):
        alone = function(backend.place(x[row : row + 1].clone()))
        for one, all_rows in zip(alone, many, strict=True):
            assert torch.equal(one, all_rows[row : row + 1])


# -- what the compilers say -----------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(
    find_compiler() is None, reason="neither NVRTC nor nvcc is installed"
)


def compiled(
    texts: Sequence[str], target: str, *shapes: tuple[tuple[int, ...], torch.dtype]
) -> None:
    """Every kernel of the formulas compiles for ``target``; all of them as one source."""
    examples = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes]
    chosen = Target.parse(target)
    kernels = []
    for number, text in enumerate(texts):
        function = fusec.compile(text, backend="cuda", name=f"part_{number}")
        arguments = example_arguments(function._formula, examples[: len(function.inputs)])
        view = View(function._formula, function.specialization(arguments), arguments)
        kernels += view.kernels("cuda", chosen)
    assert compile_cuda(sources_of(kernels), "kernels", chosen).startswith(b"\x7fELF")


TARGETS = [("sm_90", name) for name in DTYPES] + [("sm_80", "float32"), ("sm_80", "bfloat16")]


@needs_compiler
@pytest.mark.parametrize(("target", "name"), TARGETS)
def test_every_op_compiles_for_every_type_it_claims(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A vector to a thread: more would only be more of the same to compile.
    monkeypatch.setattr(schedule_cuda, "FLAT_VECTORS", 1)
    dtype = dtype_of(name)
    ops = [op for op in UNARY if _takes(op.rule.value, dtype, op.arity)]
    ops += [op for op in BINARY if _takes(op.rule.value, dtype, op.arity)]
    texts = [spelled(op, *("xy"[: op.arity])) for op in ops]
    # The time for a kernel grows faster than its length.
    parts = [", ".join(texts[k : k + 6]) for k in range(0, len(texts), 6)]
    compiled(parts, target, ((64, 96), dtype), ((64, 96), dtype))


def _takes(rule: str, dtype: torch.dtype, arity: int) -> bool:
    if rule == "bitwise":
        return not dtype.is_floating_point
    return not (dtype is torch.bool and rule == "promote")


@needs_compiler
@pytest.mark.parametrize(("target", "name"), [("sm_90", "float32"), ("sm_80", "bfloat16")])
def test_every_reduction_compiles_for_rows_of_every_kind(name: str, target: str) -> None:
    text = "sum(x), mean(x), prod(x), max(x), min(x), any(x > 0), argmax(x), softmax(x)"
    for length in (40, 1000, 4097, 50257, 1 << 21):
        compiled([text], target, ((64, length), dtype_of(name)))


def config_of(text: str, *shapes: tuple[tuple[int, ...], str], running: bool = False) -> Config:
    """The Config of the one region of a formula for contiguous inputs."""
    source = Source(text)
    names = ("x", "w", "b")[: len(shapes)]
    specs, sizes = [], {}
    for name, (shape, kind) in zip(names, shapes, strict=True):
        dims = tuple(Dim(f"{name}.{k}") for k in range(len(shape)))
        sizes |= dict(zip(dims, shape, strict=True))
        dtype = by_torch_name(kind)
        assert dtype is not None
        specs.append(InputSpec(name, dtype, dims, False))
    graph = resolve(source, parse(source), tuple(specs), keepdim=False, sizes=sizes).graph
    (region,) = plan(graph, "kernel", True).regions
    accesses = operands(region)
    strides = []
    for operand in accesses:
        extents = [sizes[e] if isinstance(e, Dim) else e for e in operand.shape]
        strides.append(torch.empty(extents, device="meta").stride())
    laid = arrange(region, accesses, sizes, strides)
    form = Form.ROWS if region.axes else Form.TILE if laid.layout.rows else Form.FLAT
    even = [True] * len(accesses)
    return schedule_cuda.choose_cuda(form, accesses, laid, even, running=running)


def test_sizes_enter_as_classes() -> None:
    """Rows of one class and any number of rows share a kernel; vectors are 16 bytes."""
    for first, second in ((1000, 904), (4097, 4099), (2056, 4088)):
        one = config_of("softmax(x)", ((64, first), "bfloat16"))
        assert one == config_of("softmax(x)", ((6400, second), "bfloat16"))
    assert config_of("softmax(x)", ((64, 1000), "bfloat16")).lanes == 8
    assert config_of("softmax(x)", ((64, 1000), "float32")).lanes == 4
    assert config_of("softmax(x)", ((64, 1000), "float64")).lanes == 2


def test_vectors_that_need_no_mask() -> None:
    """Those that are inside the row of a thread wherever that begins, for all rows of a class."""
    seen = set()
    for length in (*range(300, 12000, 61), *range(12001, 260_000, 4999), 50257, 65536):
        config = config_of("softmax(x)", ((64, length), "bfloat16"))
        whole = length // config.lanes - (config.lead is not None)
        sure = config.full * config.threads * config.cluster
        assert sure <= whole, (length, config)
        assert config.full < config.vectors or config.even
        seen.add(config.full > 0)
    assert seen == {True, False}


def test_rows_that_are_read_once() -> None:
    """A row that nothing needs again is swept, unless it is short, or a sum has no maximum to wait
    for; few such rows are shared out.
    """
    for text, length, running, resident in (
        ("logsumexp(x)", 50257, True, False),
        ("logsumexp(x)", 32768, True, False),
        ("logsumexp(x)", 16384, True, True),
        ("sum(x)", 50257, False, True),
        ("softmax(x)", 50257, True, True),
    ):
        config = config_of(text, ((512, length), "bfloat16"), running=running)
        assert config.resident == resident, text
        assert config.splits == 1
        assert config.apart != resident
    few = config_of("logsumexp(x)", ((32, 1 << 22), "bfloat16"), running=True)
    assert few.splits == 16


def test_short_rows_that_are_only_read_have_fewer_threads() -> None:
    for length, read, stored in ((64, 4, 8), (256, 8, 32), (1000, 32, 32), (129, 16, 16)):
        one = config_of("sum(x)", ((64, length), "bfloat16"))
        other = config_of("softmax(x)", ((64, length), "bfloat16"))
        assert [c.threads // c.block_rows for c in (one, other)] == [read, stored]


def test_clusters_that_leave_few_places_empty() -> None:
    """Their size need be no power of two, but where rows share operands it is one: there blocks may
    stay, and however many rows there are, who adds what is the same.
    """
    for length, places in ((40960, (4, 5)), (50257, (5, 5)), (61440, (5, 6)), (65536, (4, 8))):
        config = config_of("softmax(x)", ((64, length), "bfloat16"))
        assert (config.cluster, config.vectors) == places
        assert config.even == (length != 50257)
    row = ((50257,), "bfloat16")
    for rows in (8, 8192):
        assert config_of(NORM, ((rows, 50257), "bfloat16"), row, row).cluster == 4


def test_the_words_of_a_long_row() -> None:
    assert config_of("softmax(x)", ((512, 262144), "bfloat16")).cluster == 8
    looped = config_of("softmax(x)", ((8, 1 << 22), "float32"))
    assert not looped.resident
    assert looped.splits > 1
    odd = config_of("softmax(x)", ((64, 4097), "bfloat16"))
    assert odd.edges
    assert odd.block_cols == config_of("softmax(x)", ((64, 4096), "bfloat16")).block_cols
