"""Rows in CUDA C++ whose blocks stay and keep what all rows share: every row of every cluster,
wherever it begins, gives the bits that a block of its own would. Emulated on the CPU; on a GPU
where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import fusec
from fusec.codegen import schedule_cuda
from fusec.codegen.candidates import relaxed, unspilled
from fusec.codegen.cuda_turns import shared_bytes
from fusec.codegen.kernel import Config, Form, Kernel
from fusec.runtime.build_cuda import find_compiler
from fusec.runtime.build_triton import Target
from fusec.runtime.codes import code_of
from fusec.runtime.driver import CudaFunction
from fusec.runtime.show import View, example_arguments
from fusec.runtime.specialize import LaidOut
from tests.oracle import EMULATED, Backend, assert_close, reduction_tolerance, reference

BOTH = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(EMULATED, id="emulated"),
        pytest.param(Backend("cuda", "cuda"), id="gpu", marks=pytest.mark.gpu),
    ],
)
LAYER_NORM, RMS_NORM = "layer_norm(x, w, b)", "rms_norm(x, w) + b"
TWO_RESULTS = "h = x + r\n(h * rsqrt(mean(h^2) + 1e-6) * w + b) * c + d, h"
THREE_REDUCTIONS = "softmax(x * w) + max(x) * b"
BF16, F32 = torch.bfloat16, torch.float32


def values(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def inputs_of(text: str, rows: int, length: int, dtype: torch.dtype) -> list[torch.Tensor]:
    whole = {"x": values(rows, length, dtype=dtype), "r": values(rows, length, dtype=dtype, seed=3)}
    shared = {name: values(length, dtype=dtype, seed=ord(name)) for name in "wbcd"}
    return [{**whole, **shared}[name] for name in fusec.compile(text).inputs]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets blocks stay however few rows there are, and a device hold so many clusters."""

    def hold(clusters: int) -> None:
        monkeypatch.setattr(schedule_cuda, "TURNS", 0)
        monkeypatch.setattr(schedule_cuda, "MULTIPROCESSORS", _Clusters(clusters))
        monkeypatch.setattr(CudaFunction, "clusters_at_once", lambda *_: clusters)

    return hold


class _Clusters(int):
    """As many multiprocessors as so many clusters take, whatever their size."""

    def __floordiv__(self, size: int) -> int:
        return int(self)


def run(backend: Backend, text: str, *inputs: torch.Tensor, stay: bool) -> list[torch.Tensor]:
    """The results, by blocks that stay or by the others."""
    with pytest.MonkeyPatch.context() as patch:
        if not stay:
            patch.setattr(schedule_cuda, "in_turns", lambda config, *_: config)
        function = backend.compile(text, name="stay" if stay else "go")
        placed = [backend.place(value) for value in inputs]
        results = function(*placed)
        kernel = kernel_of(function, placed)
    assert kernel.config.turns == stay
    return [value.cpu() for value in (results if isinstance(results, tuple) else (results,))]


def laid_out(
    function: fusec.CompiledFunction, examples: list[torch.Tensor], capability: int = 90
) -> tuple[View, LaidOut]:
    arguments = example_arguments(function._formula, examples)
    view = View(function._formula, function.specialization(arguments), arguments)
    _, (laid,) = view.laid_out("cuda", Target.parse(f"sm_{capability}"))
    return view, laid


def kernel_of(function: fusec.CompiledFunction, examples: list[torch.Tensor]) -> Kernel:
    view, _ = laid_out(function, examples)
    ((_, kernel),) = view.kernels("cuda", Target.parse("sm_90"))
    return kernel


def same(backend: Backend, text: str, *inputs: torch.Tensor) -> None:
    """Both forms give the same bits, and those are near the exact results."""
    results = run(backend, text, *inputs, stay=True)
    for actual, other in zip(results, run(backend, text, *inputs, stay=False), strict=True):
        assert torch.equal(actual, other)
    for actual, expected in zip(results, reference(text, *inputs), strict=True):
        relative = 4 * reduction_tolerance(actual.dtype, inputs[0].shape[-1])
        whole = expected.dim() == inputs[0].dim()
        most = expected.double().abs().amax(dim=-1, keepdim=True) if whole else 1.0
        assert_close(actual, expected, 1, absolute=relative * most, what=text)


@BOTH
@pytest.mark.parametrize(
    ("text", "rows", "length", "dtype", "clusters"),
    [
        pytest.param(LAYER_NORM, 70, 50257, BF16, 3, id="odd"),
        pytest.param(LAYER_NORM, 13, 50257, F32, 2, id="odd-f32"),
        pytest.param(LAYER_NORM, 21, 50258, BF16, 2, id="every-fourth-row-alike"),
        pytest.param(RMS_NORM, 19, 65536, BF16, 2, id="even"),
        pytest.param(RMS_NORM, 9, 131072, BF16, 1, id="one-cluster"),
        pytest.param(TWO_RESULTS, 27, 50257, BF16, 2, id="two-results"),
        pytest.param(TWO_RESULTS, 5, 40001, F32, 2, id="two-results-f32"),
        pytest.param(THREE_REDUCTIONS, 11, 40001, BF16, 1, id="three-reductions"),
    ],
)
def test_many_rows_for_each_cluster(
    backend: Backend, text: str, rows: int, length: int, dtype: torch.dtype, clusters: int,
    at_once: Callable[[int], None],
) -> None:  # fmt: skip
    at_once(clusters)
    same(backend, text, *inputs_of(text, rows, length, dtype))


@BOTH
@pytest.mark.parametrize("rows", [2, 7, 33])
@pytest.mark.parametrize("length", [50257, 65536])
def test_few_rows_for_many_clusters(
    backend: Backend, length: int, rows: int, at_once: Callable[[int], None]
) -> None:
    at_once(30)
    same(backend, LAYER_NORM, *inputs_of(LAYER_NORM, rows, length, BF16))


@BOTH
def test_operands_that_lie_otherwise(backend: Backend, at_once: Callable[[int], None]) -> None:
    """Rows with gaps, of which all or every second begin alike; weights off 16 bytes; of another
    type; one value for each row; and 64-bit offsets.
    """
    at_once(2)
    w, b = values(50257, dtype=BF16, seed=1), values(50257, dtype=BF16, seed=2)
    for apart in (50264, 50260):
        same(backend, "mean(x * w)", values(21, apart, dtype=BF16)[:, :50257], w)
    x = values(21, 50257, dtype=BF16)
    even = inputs_of(f"{LAYER_NORM} * c", 9, 65536, BF16)
    same(backend, f"{LAYER_NORM} * c", *even[:3], values(65537, dtype=BF16)[1:])
    same(backend, f"{LAYER_NORM} * s", x, w, b, values(21, 1, dtype=BF16))
    wide = values(9, 40008, dtype=BF16), values(40008, seed=1), values(40008, seed=2)
    same(backend, RMS_NORM, *wide)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_cuda, "WIDE_OFFSETS", 0)
        same(backend, LAYER_NORM, x, w, b)


@BOTH
def test_what_an_earlier_kernel_left_is_kept_as_wide_as_it_was_computed(
    backend: Backend, at_once: Callable[[int], None]
) -> None:
    at_once(2)
    text = "softmax(x - mean(x, axis=0)) * w"
    x, w = inputs_of(text, 9, 40001, BF16)
    function = backend.compile(text)
    result = function(backend.place(x), backend.place(w)).cpu()
    view = View(function._formula, function.specialization(example_arguments(
        function._formula, [x, w])), example_arguments(function._formula, [x, w]))  # fmt: skip
    kernel = view.kernels("cuda", Target.parse("sm_90"))[-1][1]
    assert [stage.storage.itemsize for stage in kernel.staged] == [4, 2]
    assert room(kernel, 2) + 1024 <= 227 * 1024
    (expected,) = reference(text, x, w)
    assert_close(result, expected, 4, absolute=1e-6)


@BOTH
def test_special_values_stay_in_their_row(backend: Backend, at_once: Callable[[int], None]) -> None:
    """What a thread holds of no row (beyond its end, or of the row before) reaches no sum."""
    at_once(1)
    x, w, b = inputs_of(LAYER_NORM, 24, 40001, BF16)
    x[3, 5], x[8, -1], x[16] = float("inf"), float("nan"), 3e38
    results = run(backend, LAYER_NORM, x, w, b, stay=True)[0]
    spoiled = [3, 8, 16]
    assert torch.equal(results.isfinite().all(-1).logical_not().nonzero().ravel()[:2],
                       torch.tensor(spoiled[:2]))  # fmt: skip
    others = [row for row in range(24) if row not in spoiled]
    (expected,) = reference(LAYER_NORM, x[others], w, b)
    relative = 4 * reduction_tolerance(BF16, 40001)
    most = expected.double().abs().amax(dim=-1, keepdim=True)
    assert_close(results[others], expected, 1, absolute=relative * most)


# -- the rule -------------------------------------------------------------------------------------


def config_of(
    text: str, rows: int, length: int, dtype: torch.dtype = BF16, capability: int = 90
) -> Config:
    function = fusec.compile(text, backend="cuda")
    examples = [
        torch.empty((rows, length) if name in "xr" else (length,), dtype=dtype, device="meta")
        for name in function.inputs
    ]
    return laid_out(function, examples, capability)[1].config


def test_blocks_stay_where_rows_share_operands_and_there_are_many() -> None:
    config = config_of(LAYER_NORM, 2670, 50257)
    assert (config.turns, config.block_rows, config.staged) == (True, 4, (1, 2))
    assert config.ahead == config.vectors
    assert not config_of(LAYER_NORM, 100, 50257).turns
    for text in ("softmax(x)", "rms_norm(x, w)", "layer_norm(x + r, w, b)"):
        assert not config_of(text, 2670, 50257).turns
    for length in (1001, 4096, 4097, 30001):  # a block of its own has all of the row
        assert not config_of(LAYER_NORM, 32768, length).turns
    assert not config_of(LAYER_NORM, 2670, 50257, capability=80).turns


def test_vectors_that_are_not_masked_are_inside_every_row_of_the_class() -> None:
    for length in (40001, 50257, 57337, 100003):
        config = config_of(LAYER_NORM, 2670, length)
        width = config.cluster * config.threads // config.block_rows
        assert 0 < config.full < config.vectors
        assert config.full * width <= length // 8 - 1
        assert config_of(LAYER_NORM, 2670, length + 8).full == config.full


def test_who_adds_what_is_the_same_in_both_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    stay = config_of(LAYER_NORM, 2670, 50257)
    monkeypatch.setattr(schedule_cuda, "in_turns", lambda config, *_: config)
    go = config_of(LAYER_NORM, 2670, 50257)
    assert go.warps * stay.block_rows == stay.warps
    for name in ("cluster", "vectors", "lanes", "block_cols", "across", "lead", "keep"):
        assert getattr(stay, name) == getattr(go, name)


def room(kernel: Kernel, reductions: int) -> int:
    config = kernel.config
    slots = config.cluster * config.warps // config.block_rows
    return shared_bytes(kernel) + reductions * config.block_rows * 2 * 8 * (slots + 1)


@pytest.mark.parametrize("dtype", [BF16, F32, torch.float16])
@pytest.mark.parametrize("length", [32769, 50257, 65536, 131072, 262144, 262141])
def test_shared_memory_suffices(length: int, dtype: torch.dtype) -> None:
    many = "softmax(x * w + b) * max(x) + sum(x) + mean(x * x)"
    for text, reductions in ((LAYER_NORM, 2), (RMS_NORM, 1), (TWO_RESULTS, 1), (many, 5)):
        function = fusec.compile(text, backend="cuda")
        examples = [
            torch.empty((9000, length) if name in "xr" else (length,), dtype=dtype, device="meta")
            for name in function.inputs
        ]
        kernel = kernel_of(function, examples)
        assert room(kernel, reductions) + 1024 <= 227 * 1024
        small = laid_out(function, examples, capability=120)[1].config
        assert not small.turns or small.ahead * small.threads * 16 < 99 * 1024


def test_a_block_takes_fewer_rows_where_threads_spill() -> None:
    config = config_of(LAYER_NORM, 2670, 50257)
    fewer = relaxed(config, Form.ROWS, "cuda")
    assert fewer == replace(config, block_rows=3, warps=24)
    spilled = {config: 200, fewer: 0}
    found, why = unspilled(config, Form.ROWS, "cuda", spilled.__getitem__)
    assert found == fewer
    assert why == (
        "3 rows of a block at a time instead of 4, since 200 bytes a thread spilled, and 0 do now"
    )


def test_the_plan_says_it() -> None:
    function = fusec.compile(LAYER_NORM, backend="cuda")
    shapes: dict[str, Any] = {"x": (2670, 50257), "w": (50257,), "b": (50257,)}
    examples = [torch.empty(shapes[n], dtype=BF16, device="meta") for n in function.inputs]
    said = (
        "blocks stay, take 4 rows at a time and keep w, b; "
        "of the next row 7 vectors of each thread come meanwhile"
    )
    assert said in function.show("plan", *examples)
    assert said.replace("w, b", "w_ptr, b_ptr") in function.show("kernel", *examples)
    host = "std::min(rows, clusters_at_once(layer_norm_kernel_code::layer_norm_kernel, 1024, 4, "
    assert host in function.show("cuda", *examples)


# -- what the compilers say -----------------------------------------------------------------------


# Machine code is looked at, and only NVIDIA's compilers make it; results are tested without them.
@pytest.mark.skipif(find_compiler() is None, reason="neither NVRTC nor nvcc is installed")
@pytest.mark.parametrize(
    ("text", "length", "dtype"),
    [
        (LAYER_NORM, 50257, BF16), (LAYER_NORM, 262144, BF16), (LAYER_NORM, 50257, F32),
        (TWO_RESULTS, 50257, BF16), (RMS_NORM, 131072, BF16), (RMS_NORM, 50257, F32),
        (THREE_REDUCTIONS, 40001, BF16), (LAYER_NORM, 40001, torch.float16),
    ],
)  # fmt: skip
def test_blocks_that_stay_compile_and_hardly_spill(
    text: str, length: int, dtype: torch.dtype
) -> None:
    function = fusec.compile(text, backend="cuda")
    examples = [
        torch.empty((9000, length) if name in "xr" else (length,), dtype=dtype, device="meta")
        for name in function.inputs
    ]
    kernel = kernel_of(function, examples)
    assert kernel.config.turns
    code = code_of(function._formula, kernel, "cuda", Target.parse("sm_90"))
    assert code.shared == shared_bytes(kernel)
    assert code.facts is not None
    assert code.facts.local_bytes <= 40
