"""C++ kernels whose rows or columns are several axes: lanes stay on the innermost."""

from __future__ import annotations

import itertools

import pytest
import torch

import fusec
from tests.oracle import assert_close, reduction_tolerance, reference

TEXTS = (
    "softmax(x, axis=1)",
    "sum(x, axis=1)",
    "logsumexp(x, axis=1)",
    "mean(x, axis=(0, 2))",
    "var(x, axis=(0, 2))",
    "max(x, axis=(0, 2))",
    "x - mean(x, axis=(0, 2))",
    "softmax(x, axis=(0, 2))",
    "logsumexp(x, axis=(0, 2))",
    "sum(where(index(x, 2) > index(x, 1), x, 0), axis=(0, 2))",
    "sum(where(index(x, 2) > index(x, 1), x, 0), axis=1)",
)
# The innermost axis shorter than the lanes, longer, far longer; long columns that threads share,
# and long rows that go in parts and pieces.
SHAPES = [(3, 5, 7), (7, 33, 65), (2, 1100, 3), (2, 3, 2049), (65, 4, 130), (3, 2, 20000)]


def values(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (3 * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)


def check(text: str, x: torch.Tensor) -> None:
    (expected,) = reference(text, x)
    length = x.numel() // expected.numel() if expected.dim() < x.dim() else max(x.shape)
    most = expected.double().abs().max()
    tolerance = 4 * reduction_tolerance(x.dtype, length)
    got = fusec.compile(text, backend="cpp")(x)
    assert_close(got, expected, 1, absolute=tolerance * most, what=f"{text} {tuple(x.shape)}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("text", TEXTS)
def test_several_axes(text: str, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        check(text, values(*shape, dtype=dtype))


@pytest.mark.parametrize("order", [p for p in itertools.permutations(range(4)) if p[3] != 3][:9])
def test_axes_in_other_orders(order: tuple[int, ...]) -> None:
    x = values(4, 6, 33, 35).permute(order)
    for text in ("sum(x, axis=(1, 3))", "softmax(x, axis=(0, 2))", "layer_norm(x)"):
        check(text, x)


def test_nothing_along_an_axis() -> None:
    for shape in ((0, 4, 5), (3, 4, 0), (3, 0, 5)):
        x = torch.empty(*shape)
        got = fusec.compile("sum(x, axis=1)", backend="cpp")(x)
        assert torch.equal(got, x.sum(1))
        got = fusec.compile("sum(x, axis=(0, 2))", backend="cpp")(x)
        assert torch.equal(got, x.sum((0, 2)))


def test_lanes_divide_nothing() -> None:
    """Positions along outer axes are found once for all lanes."""
    x = torch.empty(8, 64, 96)
    for text in ("softmax(x, axis=1)", "softmax(x, axis=(0, 2))"):
        source = fusec.compile(text, backend="cpp").show("cpp", x)
        lanes = [part.split("}", 1)[0] for part in source.split("#pragma omp simd")[1:]]
        assert len(lanes) >= 3
        assert not any("/ row_size" in part or "/ col_size" in part for part in lanes)
