"""What results are compared with, and how close they have to be.

The oracle is :func:`reference`: the graph in float64 through ``fusec.ir.evaluate``. Distances are
counted in units in the last place (ulp) of the result's type: NaN matches NaN alone, infinities
have their neighbours, zeros their sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch

import fusec
from fusec.frontend.parser import parse
from fusec.frontend.resolve_names import check
from fusec.source import Source
from tests.formulas import run_all

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
DTYPES = (*FLOATS, *INTEGERS, "bool")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Backend:
    """Where a test runs: a backend of fusec and the device of its tensors."""

    name: str
    device: str = "cpu"

    @property
    def is_cuda(self) -> bool:
        return self.device == "cuda"

    def __str__(self) -> str:
        return f"{self.name}-{self.device}"

    def compile(self, text: str, **options: Any) -> fusec.CompiledFunction:
        """The formula for this backend."""
        return fusec.compile(text, backend=self.name, **options)

    def run(self, text: str, *args: Any, keepdim: bool = False, **named: Any) -> list[torch.Tensor]:
        """Every result of a formula for CPU inputs, computed on this backend's device and brought
        back.
        """
        function = self.compile(text, keepdim=keepdim)
        args = tuple(self.place(a) for a in args)
        results = function(*args, **{k: self.place(v) for k, v in named.items()})
        return [r.cpu() for r in (results if isinstance(results, tuple) else (results,))]

    def one(self, text: str, *args: Any, keepdim: bool = False, **named: Any) -> torch.Tensor:
        """The one result of a formula."""
        (result,) = self.run(text, *args, keepdim=keepdim, **named)
        return result

    def place(self, value: Any) -> Any:
        """``value`` on this backend's device with the strides it has; numbers stay."""
        if not isinstance(value, torch.Tensor) or not self.is_cuda:
            return value
        return _keeping_strides(value, self.device)


def _keeping_strides(value: torch.Tensor, device: str) -> torch.Tensor:
    count = value.untyped_storage().nbytes() // value.element_size()
    whole = value.as_strided((count,), (1,), 0).to(device)
    return whole.as_strided(value.shape, value.stride(), value.storage_offset())


CPP, INTERPRETER, EAGER = Backend("cpp"), Backend("triton"), Backend("torch")
EMULATED = Backend("cuda")  # each CUDA thread a fiber on the CPU
BACKENDS = (
    pytest.param(CPP, id="cpp"),
    pytest.param(INTERPRETER, id="interpreter"),
    pytest.param(EMULATED, id="emulated"),
    pytest.param(EAGER, id="torch"),
    pytest.param(Backend("triton", "cuda"), id="cuda", marks=pytest.mark.gpu),
    pytest.param(Backend("cuda", "cuda"), id="cuda-c++", marks=pytest.mark.gpu),
)
on_every_backend = pytest.mark.parametrize("backend", BACKENDS)


def dtype_of(name: str) -> torch.dtype:
    """The PyTorch type called ``name``."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def arithmetic_type(dtype: torch.dtype) -> torch.dtype:
    """The type that arithmetic on floats of ``dtype`` runs in."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def reference(text: str, *args: Any, keepdim: bool = False) -> list[torch.Tensor]:
    """Every result of a formula with floats in float64 throughout; integers and bools in their own
    types.
    """
    source = Source(text)
    names = check(parse(source), source, None)
    values = dict(zip(names, args, strict=True))
    return run_all(text, keepdim=keepdim, precision="float64", **values)


_FAR = 2.0**62  # the distance of NaN from a number


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """Floats as integers in the same order: neighbours one apart, both zeros 0."""
    width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    bits = values.contiguous().view(width).to(torch.int64)
    lowest = -(1 << (8 * values.element_size() - 1))
    return torch.where(bits < 0, lowest - bits, bits)


def ulps(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """How many representable values lie between; ``expected`` (often float64) rounds to the type
    first.

    NaN against a number counts as 2^62, and so does an exact zero of the wrong sign.
    """
    assert actual.dtype.is_floating_point
    assert actual.shape == expected.shape, f"{list(actual.shape)} against {list(expected.shape)}"
    rounded = expected.to(actual.dtype)
    a, b = _ordered(actual), _ordered(rounded)
    apart = (a - b).abs().double()
    across = a.abs().double() + b.abs().double()
    distance = torch.where((a < 0) == (b < 0), apart, across)
    a_nan, b_nan = actual.double().isnan(), expected.double().isnan()
    distance = torch.where(a_nan | b_nan, torch.where(a_nan & b_nan, 0.0, _FAR), distance)
    signs = actual.double().signbit() != expected.double().signbit()
    wrong_zero = (actual.double() == 0) & (expected.double() == 0) & signs
    return torch.where(wrong_zero, _FAR, distance)


def assert_close(
    actual: torch.Tensor,
    expected: torch.Tensor,
    most: float,
    *,
    absolute: float | torch.Tensor = 0.0,
    what: str = "",
    inputs: Sequence[torch.Tensor] = (),
) -> None:
    """Fail unless every element is within ``most`` ulp, or within ``absolute`` where both are
    finite.

    Integers and bools have to be equal. The message names the worst element
    and the ``inputs`` there.
    """
    if not actual.dtype.is_floating_point:
        assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, not {expected.dtype}"
        assert actual.shape == expected.shape, f"{what}: {actual.shape}, not {expected.shape}"
        distance = (actual != expected).double() * _FAR
    else:
        distance = ulps(actual, expected)
    if isinstance(absolute, torch.Tensor) or absolute:
        near = (actual.double() - expected.double()).abs() <= absolute
        distance = torch.where(near, 0.0, distance)
    worst = float(distance.max()) if distance.numel() else 0.0
    if worst <= most:
        return
    place = int(distance.reshape(-1).argmax())
    at = ", ".join(str(i.expand(actual.shape).reshape(-1)[place].item()) for i in inputs)
    pytest.fail(
        f"{what}: {int((distance > most).sum())} of {distance.numel()} elements beyond {most} ulp, "
        f"the worst by {worst:g}: {actual.reshape(-1)[place].item()!r} for "
        f"{expected.reshape(-1)[place].item()!r} at ({at})"
    )


def same(actual: torch.Tensor, expected: torch.Tensor, what: str = "") -> None:
    """Fail unless type, shape and values agree; NaN equals NaN, zeros have their signs."""
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, not {expected.dtype}"
    assert_close(actual, expected, 0, what=what)


def reduction_tolerance(dtype: torch.dtype, terms: int) -> float:
    """Relative error allowed for a sum of ``terms`` values: a pairwise sum in the compute type,
    and one rounding.
    """
    compute = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps
    levels = max(1, terms).bit_length() + 4
    return levels * compute + torch.finfo(dtype).eps


_SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0)


def floats(
    dtype: torch.dtype, low: float = -4.0, high: float = 4.0, count: int = 41
) -> torch.Tensor:
    """Values between ``low`` and ``high``, then NaN, infinities, zeros, subnormals, tiny, large
    and huge ones.
    """
    info = torch.finfo(dtype)
    edges = (info.smallest_normal, info.smallest_normal * 0.5, info.eps, 1.0, 88.5, info.max * 0.5)
    both = [sign * e for e in (*edges, info.max) for sign in (1.0, -1.0)]
    inside = numpy.linspace(low, high, count).tolist()
    return torch.tensor([*inside, *_SPECIAL, *both], dtype=torch.float64).to(dtype)


def integers(dtype: torch.dtype) -> torch.Tensor:
    """Small numbers of both signs, and those near the ends of the type."""
    info = torch.iinfo(dtype)
    found = [n for n in range(-9, 10) if n >= info.min] + [37, 100]
    found += [info.min, info.min + 1, info.max - 1, info.max, info.max // 2, info.min // 3]
    return torch.tensor(found, dtype=dtype)


def values(
    dtype: torch.dtype, low: float = -4.0, high: float = 4.0, count: int = 41
) -> torch.Tensor:
    """Ordinary and special values of any type."""
    if dtype is torch.bool:
        return torch.tensor([True, False, False, True, True])
    return floats(dtype, low, high, count) if dtype.is_floating_point else integers(dtype)


def pairs(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every value of ``a`` with every one of ``b``, as two vectors."""
    return a.repeat_interleave(len(b)), b.repeat(len(a))
