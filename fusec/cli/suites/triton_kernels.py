"""Triton kernels as a person writes them by hand: the competitors called ``triton``.

Fused softmax and layer norm as the tutorials of Triton teach them (a row in one block), and plain
elementwise kernels, launched with ``kernel[grid]``. Imports triton: only measuring may import this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

jit: Callable[[Any], Any] = (
    triton.jit
)  # typed, for the checker, which reads `tl.tensor` below; Triton skips it

_BLOCK = 1024
_LONGEST_ROW = 1 << 17  # elements of a row that one program can hold at all
_EPSILON = 1e-5


@jit
def _silu_kernel(
    x_ptr: tl.tensor, out_ptr: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr
) -> None:
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, x * tl.sigmoid(x), mask=mask)


@jit
def _gelu_tanh_kernel(
    x_ptr: tl.tensor, out_ptr: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr
) -> None:
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    # (1 + tanh(z)) / 2 is the sigmoid of 2 z.
    tl.store(out_ptr + offsets, x * tl.sigmoid(2.0 * inner), mask=mask)


@jit
def _relu2_kernel(
    x_ptr: tl.tensor, out_ptr: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr
) -> None:
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.maximum(tl.load(x_ptr + offsets, mask=mask).to(tl.float32), 0.0)
    tl.store(out_ptr + offsets, x * x, mask=mask)


@jit
def _axpy_kernel(
    a: tl.tensor,
    x_ptr: tl.tensor,
    y_ptr: tl.tensor,
    out_ptr: tl.tensor,
    count: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, a * x + y, mask=mask)


@jit
def _swiglu_kernel(
    x_ptr: tl.tensor, y_ptr: tl.tensor, out_ptr: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr
) -> None:
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, x * tl.sigmoid(x) * y, mask=mask)


@jit
def _softmax_kernel(
    x_ptr: tl.tensor, out_ptr: tl.tensor, rows: tl.tensor, cols: tl.tensor, BLOCK: tl.constexpr
) -> None:
    columns = tl.arange(0, BLOCK)
    mask = columns < cols
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        start = (tl.zeros((), tl.int64) + row) * cols  # rows x cols may pass 2^31
        x = tl.load(x_ptr + start + columns, mask=mask, other=-float("inf")).to(tl.float32)
        numerator = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + start + columns, numerator / tl.sum(numerator, axis=0), mask=mask)


@jit
def _layer_norm_kernel(
    x_ptr: tl.tensor,
    w_ptr: tl.tensor,
    b_ptr: tl.tensor,
    out_ptr: tl.tensor,
    cols: tl.tensor,
    epsilon: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    start = tl.program_id(0).to(tl.int64) * cols
    columns = tl.arange(0, BLOCK)
    mask = columns < cols
    x = tl.load(x_ptr + start + columns, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, x - tl.sum(x, axis=0) / cols, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + epsilon)
    w = tl.load(w_ptr + columns, mask=mask).to(tl.float32)
    b = tl.load(b_ptr + columns, mask=mask).to(tl.float32)
    tl.store(out_ptr + start + columns, centred * scale * w + b, mask=mask)


def silu(x: torch.Tensor) -> torch.Tensor:
    """Launch the kernel over the elements of ``x``, one dense tensor."""
    return _elementwise(_silu_kernel, x, x)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Launch the kernel over the elements of ``x``, one dense tensor."""
    return _elementwise(_gelu_tanh_kernel, x, x)


def relu2(x: torch.Tensor) -> torch.Tensor:
    """Launch the kernel over the elements of ``x``, one dense tensor."""
    return _elementwise(_relu2_kernel, x, x)


def swiglu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Launch the kernel over the elements of two dense tensors of one shape."""
    return _elementwise(_swiglu_kernel, x, x, y)


def axpy(a: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Launch the kernel over the elements of two dense tensors of one shape."""
    return _elementwise(_axpy_kernel, x, a, x, y)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax of the rows of a contiguous matrix; programs go over the rows in turn."""
    rows, cols = x.shape
    out = torch.empty_like(x)
    block, warps = _row_block(cols)
    programs = min(rows, _processors(x.device.index or 0) * max(1, 32 // warps))
    _softmax_kernel[(programs,)](x, out, rows, cols, BLOCK=block, num_warps=warps)
    return out


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Layer norm of the rows of a contiguous matrix, a program a row."""
    rows, cols = x.shape
    out = torch.empty_like(x)
    block, warps = _row_block(cols)
    _layer_norm_kernel[(rows,)](x, w, b, out, cols, _EPSILON, BLOCK=block, num_warps=warps)
    return out


KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "relu2": relu2,
    "swiglu": swiglu,
    "axpy": axpy,
    "softmax": softmax,
    "layer_norm": layer_norm,
}


def takes(operation: str, columns: int) -> bool:
    """Whether there is a kernel, and a row is short enough for it."""
    by_row = operation in ("softmax", "layer_norm")
    return operation in KERNELS and (not by_row or columns <= _LONGEST_ROW)


def _elementwise(kernel: Any, like: torch.Tensor, *inputs: object) -> torch.Tensor:
    out = torch.empty_like(like)
    count = like.numel()
    kernel[(triton.cdiv(count, _BLOCK),)](*inputs, out, count, BLOCK=_BLOCK)
    return out


@functools.cache
def _processors(index: int) -> int:
    """Multiprocessors of a GPU; 1 without one, for Triton's interpreter."""
    if not torch.cuda.is_available():
        return 1
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def _row_block(cols: int) -> tuple[int, int]:
    """The block that holds a row, and its warps: more for longer rows."""
    block = triton.next_power_of_2(cols)
    return block, min(32, max(1, block // 256))
