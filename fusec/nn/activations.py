"""Softmax and elementwise activations. May import torch and everything below the public names."""

from __future__ import annotations

import torch

from fusec.errors import ShapeError
from fusec.nn.support import as_type, can_fuse, cast_before, fused


class Softmax(torch.nn.Softmax):
    """``torch.nn.Softmax`` in one kernel. x: floats of any shape; y: like x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The softmax of ``x`` along ``dim``."""
        dim = self.dim
        if not isinstance(dim, int) or not can_fuse(x) or not -x.dim() <= dim < x.dim():
            return super().forward(x)
        axis = dim if dim < 0 else dim - x.dim()
        text = f"softmax({as_type(cast_before('softmax', x), 'x')}, axis={axis})"
        result: torch.Tensor = fused(text, "softmax", ("x",), x)
        return result


class GELU(torch.nn.GELU):
    """``torch.nn.GELU`` in one kernel. x: floats of any shape; y: like x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The activation of ``x``."""
        formulas = {"none": "gelu", "tanh": "gelu_tanh"}
        if self.approximate not in formulas or not can_fuse(x):
            return super().forward(x)
        name = formulas[self.approximate]
        text = f"{name}({as_type(cast_before('gelu', x), 'x')})"
        result: torch.Tensor = fused(text, name, ("x",), x)
        return result


class SwiGLU(torch.nn.Module):
    """``silu(gate) * up`` in one kernel: a gated activation, as ``torch.nn.GLU`` is another.

    Called with one tensor, its first half along ``dim`` is the gate and its second half is gated.
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        """gate, up: floats of shapes that broadcast. ShapeError for a half of an odd length."""
        if up is None:
            gate, up = self._halves(gate)
        if not can_fuse(gate, up) or gate.dtype != up.dtype:
            return torch.nn.functional.silu(gate) * up
        result: torch.Tensor = fused("swiglu(gate, up)", "swiglu", ("gate", "up"), gate, up)
        return result

    def _halves(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.shape[self.dim] % 2:
            raise ShapeError(
                f"axis {self.dim} of {list(x.shape)} has no two halves",
                hint="its first half is the gate, its second half is what is gated",
            )
        first, second = x.chunk(2, self.dim)
        return first, second

    def extra_repr(self) -> str:
        """The arguments, as ``torch.nn.GLU`` shows them."""
        return f"dim={self.dim}"
