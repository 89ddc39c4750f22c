"""Builds tests/codegen/header_driver.cpp and calls its loops; values to call them with.

Imports only the standard library, numpy and torch.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

INCLUDE = Path(__file__).parents[2] / "fusec" / "codegen" / "include"
DRIVER = Path(__file__).with_name("header_driver.cpp")
FLAGS = ["-O3", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
FLAGS += ["-std=c++17", "-Wall", "-Wextra", "-Werror"]
HAS_COMPILER = shutil.which("g++") is not None
Array = np.ndarray[Any, np.dtype[Any]]


@functools.cache
def compile_driver(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and report of g++; cached, so that a header that fails to build fails once."""
    command = ["g++", *FLAGS, f"-I{INCLUDE}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def run_compiler(*arguments: str | Path) -> str:
    """Run g++ and give what it reports; a failing build shows its own output."""
    code, report = compile_driver(*arguments)
    assert code == 0, report[-4000:]
    return report


@functools.cache
def build_folder() -> Path:
    """A temporary directory that goes away with the process."""
    folder = Path(tempfile.mkdtemp(prefix="fusec-header-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def library(march: str = "native") -> ctypes.CDLL:
    """The driver built once for an instruction set, e4m3 overflow as the installed torch has it."""
    overflow = int(torch.tensor([1e30]).to(torch.float8_e4m3fn).view(torch.uint8).item())
    target = build_folder() / f"driver_{march}.so"
    options = [f"-march={march}", f"-DFUSEC_E4M3_OVERFLOW={overflow}", "-shared", "-fPIC"]
    run_compiler(*options, DRIVER, "-o", target)
    return ctypes.CDLL(str(target))


def call(name: str, out: Any, x: Array, y: Array | None = None, march: str = "native") -> Array:
    """out[i] = name(x[i], y[i]); contiguous arrays of equal length, result of dtype out."""
    result = np.empty(x.shape, dtype=out)
    second = x if y is None else y
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, second, result)]
    getattr(library(march), name)(*pointers, ctypes.c_int64(x.size))
    return result


def every_float(stride: int = 2147) -> Array:
    """About two million floats spread over all bit patterns, with the special values."""
    spread = np.arange(0, 2**32, stride, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([spread, special_floats()])


def special_floats() -> Array:
    """Zeros, ones, infinities, NaN, subnormals, the largest numbers and the edges of exp."""
    values = [0.0, 1.0, 0.5, 1.5, 2.0, 3.0, 104.5, 103.9, 95.0, 88.72284, 88.72283, 89.5]
    values += [1e-45, 1e-40, 1.1754944e-38, 3.4028235e38, 16777216.0, 16777217.0, 1e30, 0.6, 0.92]
    values += [2 / 3, 4 / 3]
    signed = np.array([*values, float("inf"), float("nan")], dtype=np.float32)
    return np.concatenate([signed, -signed])


def pairs(values: Array) -> tuple[Array, Array]:
    """Every ordered pair of the values, as two arrays."""
    x, y = (np.array(side) for side in zip(*itertools.product(values, values), strict=True))
    return x.astype(values.dtype), y.astype(values.dtype)


def random_pairs(count: int, scale: float = 4.0) -> tuple[Array, Array]:
    """Random float pairs over many magnitudes, a third of them integers."""
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(2, count)) * np.exp(generator.normal(size=(2, count)) * scale)
    x[: count // 3], y[: count // 3] = np.rint(x[: count // 3]), np.rint(y[: count // 3])
    return x.astype(np.float32), y.astype(np.float32)


def differing(got: Array, expected: Array) -> Array:
    """Where the bits differ, except that any NaN equals any NaN."""
    both_nan = np.isnan(got) & np.isnan(expected)
    equal = (got == expected) & (np.signbit(got) == np.signbit(expected))
    return np.flatnonzero(~(both_nan | equal))


def same_bits(got: Array, expected: Array) -> bool:
    """Equal bit for bit, except that any NaN equals any NaN."""
    return differing(got, expected).size == 0
