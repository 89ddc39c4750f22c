"""What compute-sanitizer watches: every example, and rows and layouts at the edges of a schedule.

``python -m tests.sanitize`` runs them under its tools. Inputs are made on the CPU and copied: the
only kernels of a run are fusec's, so a run is quick and every finding is fusec's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tests.example_programs import FORMULAS, load_run
from tests.oracle import Backend, reference

BACKENDS = ("cuda", "triton")
F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
ROWS = "softmax(x), max(x), layer_norm(x) * w + b"
# Columns of a row that some lanes, a warp, a block and a cluster take; odd ones among each.
LENGTHS = (1, 7, 31, 64, 129, 1000, 1024, 4096, 4097, 8200, 16384, 32768, 50257, 65536)
LONG = ((2, 300001), (3, 1 << 20))  # a loop, shared out over blocks
_ERROR = {F64: 1e-10, F32: 1e-4, F16: 1e-2, BF16: 4e-2}  # of the largest value of a result


@dataclass(frozen=True)
class Case:
    """A formula and CPU inputs, which keep their strides and where they begin in memory."""

    name: str
    text: str
    inputs: Callable[[], tuple[Any, ...]]

    def run(self, backend: str, device: str) -> None:
        """Compute it and compare; AssertionError where a result is not what the formula says."""
        given = self.inputs()
        results = Backend(backend, device).run(self.text, *given)
        for actual, expected in zip(results, reference(self.text, *given), strict=True):
            assert actual.shape == expected.shape, f"{self.name}: {list(actual.shape)}"
            if not actual.numel():
                continue
            if not actual.dtype.is_floating_point:
                assert torch.equal(actual, expected), self.name
                continue
            distance = float((actual.double() - expected.double()).abs().max())
            allowed = _ERROR[actual.dtype] * max(1.0, float(expected.double().abs().max()))
            assert distance <= allowed, f"{self.name}: off by {distance:g}, {allowed:g} is allowed"


def values(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    """Random numbers, the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def cases() -> list[Case]:
    """All of them, the most telling first."""
    return [*_rows(), *_layouts(), *_types(), *_examples(), *_long_rows()]


def _rows() -> Iterator[Case]:
    for length in LENGTHS:
        dtype = BF16 if length > 8200 or length % 2 else F32

        def inputs(length: int = length, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
            weights = (values(length, dtype=dtype, seed=k) for k in (1, 2))
            return (values(5, length, dtype=dtype), *weights)

        yield Case(f"rows of {length}", ROWS, inputs)


def _long_rows() -> Iterator[Case]:
    for rows, length in LONG:
        text = "softmax(x), mean(x)"
        yield Case(
            f"{rows} rows of {length}", text, lambda r=rows, c=length: (values(r, c, dtype=BF16),)
        )


def _layouts() -> Iterator[Case]:
    """Bases off 16 bytes, rows with gaps, strides, transposed and broadcast operands, nothing."""
    softmax, joined = "softmax(x) * y", "x + 2 * y"
    found: dict[str, tuple[str, Callable[[], tuple[Any, ...]]]] = {
        "a base off 16 bytes": (joined, lambda: (values(129)[1:], values(128))),
        "16-bit bases off 16 bytes": (
            joined,
            lambda: (values(1030, dtype=BF16)[3:], values(1028, dtype=BF16)[1:]),
        ),
        "rows off 16 bytes": (softmax, lambda: (values(70, 128)[:, 1:], values(70, 127))),
        "rows with gaps": (softmax, lambda: (values(70, 130)[:, :128], values(70, 128))),
        "every second element": ("softmax(x)", lambda: (values(70, 256)[:, ::2],)),
        "transposed rows": ("softmax(x)", lambda: (values(100, 37).t(),)),
        "transposed operand": (joined, lambda: (values(70, 65), values(65, 70).t())),
        "broadcast row": ("x + y", lambda: (values(33, 65, dtype=BF16), values(65, dtype=BF16))),
        "broadcast column": ("x + y", lambda: (values(33, 1), values(33, 65))),
        "three axes": ("x * y + z", lambda: (values(3, 1, 9), values(5, 1), values(3, 5, 9))),
        "no element": ("x + 1", lambda: (values(0),)),
        "no row": ("softmax(x)", lambda: (values(0, 64),)),
        "one element": ("x * 2", lambda: (values(1),)),
        "a flat tail": ("gelu(x)", lambda: (values(4099),)),
        "columns": ("sum(x, axis=0), max(x, axis=0)", lambda: (values(170, 100),)),
        "many rows of columns": ("sum(x, axis=0)", lambda: (values(3000, 33),)),
    }
    for name, (text, inputs) in found.items():
        yield Case(name, text, inputs)


def _types() -> Iterator[Case]:
    """Elements of other widths, positions, gathers and masks."""
    integers = torch.arange(-2000, 2001).reshape(1, 4001)
    rows = torch.arange(33) * 7 % 100
    yield Case("float64 rows", "softmax(x), argmax(x)", lambda: (values(9, 1001, dtype=F64),))
    yield Case("float16 rows", "rms_norm(x)", lambda: (values(9, 1001, dtype=F16),))
    yield Case("int64 sums", "sum(x), max(x * 3)", lambda: (integers,))
    yield Case("int8 products", "x * x + 1", lambda: (integers.to(torch.int8),))
    yield Case("bools", "any(x > 2), x > 0", lambda: (values(17, 333),))
    yield Case("a gather", "logsumexp(x) - x[t]", lambda: (values(33, 100), rows))
    yield Case(
        "positions",
        "softmax(where(index(-1) <= index(-2), x, -inf))",
        lambda: (values(2, 37, 37),),
    )


def _examples() -> Iterator[Case]:
    for path in FORMULAS:

        def inputs(path: Any = path) -> tuple[Any, ...]:
            import fusec

            text = path.read_text(encoding="utf-8")
            given = load_run(path.parent).inputs("cpu")
            return tuple(given[name] for name in fusec.compile(text).inputs)

        yield Case(f"example {path.stem}", path.read_text(encoding="utf-8"), inputs)
