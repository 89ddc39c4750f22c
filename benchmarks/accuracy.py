"""Measures the error of functions in ulp and prints the tables of docs/numerics.md.

    python -m benchmarks.accuracy [--device cpu|cuda] [--numerics torch|precise|fast]

Float32 functions take every 1009th of all float32 values, 16-bit results all 65536 inputs. An ulp
is the distance between neighbours of the result's type at the exact value, which float64 gives. The
best is 0.5, which correct rounding reaches; inf is an overflow or NaN where the exact value is a
number, or the other way round. Errors of 16-bit results below 2^-14, float16's smallest normal
number, are counted in the ulp of 2^-14: tails of activations cancel in every float32 computation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

import fusec

STRIDE = 1009
# Digits after the point, and the lowest exponent whose ulp is counted.
PLACES = {torch.float32: (23, -126), torch.bfloat16: (7, -14), torch.float16: (10, -14)}
FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan",
    "sinh", "cosh", "tanh", "sigmoid", "erf", "erfc", "asin", "acos", "atan",
)  # fmt: skip
Function = Callable[[torch.Tensor], torch.Tensor]
ACTIVATIONS: tuple[tuple[str, str, Function], ...] = (
    ("exp", "exp(x)", torch.exp),
    ("tanh", "tanh(x)", torch.tanh),
    ("sigmoid", "sigmoid(x)", torch.sigmoid),
    ("silu", "silu(x)", F.silu),
    ("gelu, erf", "gelu(x)", F.gelu),
    ("gelu, tanh", "gelu_tanh(x)", lambda x: F.gelu(x, approximate="tanh")),
    ("softplus", "softplus(x)", F.softplus),
    ("mish", "mish(x)", F.mish),
    ("log1p", "log1p(x)", torch.log1p),
    ("rsqrt", "rsqrt(x)", torch.rsqrt),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables and return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--numerics", default="torch", choices=("torch", "precise", "fast"))
    options = parser.parse_args(arguments)
    print("| float32 | fusec | eager |\n|---|---:|---:|")
    for name in FUNCTIONS:
        given = every_float(options.device)
        eager = getattr(torch, name)
        print(row(name, f"{name}(x)", eager, given, options.numerics))
    for dtype, short in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        print(f"\n| {short} | fusec | eager |\n|---|---:|---:|")
        for label, formula, eager in ACTIVATIONS:
            given = every_short(dtype, options.device)
            print(row(label, formula, eager, given, options.numerics))
    return 0


def row(label: str, formula: str, eager: Function, given: torch.Tensor, numerics: str) -> str:
    """One line of a table: the largest error of fusec's kernel and of eager PyTorch."""
    exact = eager(given.double())
    ours = largest_ulp(fusec.compile(formula, numerics=numerics)(given), exact)
    theirs = largest_ulp(eager(given), exact)
    return f"| {label} | {ours:.2f} | {theirs:.2f} |"


def every_float(device: str) -> torch.Tensor:
    """Every STRIDE-th float32 by its bits: all magnitudes, both signs, subnormals, inf and NaN."""
    bits = torch.arange(-(2**31), 2**31, STRIDE, dtype=torch.int64).to(torch.int32)
    return bits.view(torch.float32).to(device)


def every_short(dtype: torch.dtype, device: str) -> torch.Tensor:
    """All 65536 values of a 16-bit type."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int64).to(torch.int16).view(dtype).to(device)


def largest_ulp(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error in units in the last place; infinite for a wrong NaN or infinity."""
    digits, lowest = PLACES[result.dtype]
    rounded = exact.to(result.dtype)
    exponent = torch.frexp(exact).exponent.double().sub(1).clamp(min=lowest)
    error = (result.double() - exact).abs() / torch.exp2(exponent - digits)
    same = (result == rounded) | (result.isnan() & rounded.isnan())
    # The last step before infinity may be taken one value early or late.
    same |= (exact.abs() / torch.finfo(result.dtype).max - 1).abs() < 2.0**-digits
    finite = result.isfinite() & rounded.isfinite()
    error = torch.where(finite, error, torch.where(same, 0.0, torch.inf))
    return float(error.max())


if __name__ == "__main__":
    sys.exit(main())
