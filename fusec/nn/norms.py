"""Layer norm and root mean square norm. May import torch and everything below the public names."""

from __future__ import annotations

from typing import Any

import torch

from fusec.nn.support import (
    CASTS,
    HALVES,
    as_type,
    can_fuse,
    cast_before,
    default_eps,
    fused,
    rms_norm_type,
)


def _axes(module: Any) -> tuple[int, ...]:
    return tuple(range(-len(module.normalized_shape), 0))


def _fits(module: Any, x: torch.Tensor, *parameters: torch.Tensor | None) -> bool:
    """Whether a kernel computes the norm of ``x``; what does not fit is for PyTorch to say."""
    shape = tuple(module.normalized_shape)
    given = [p for p in parameters if p is not None]
    return (
        can_fuse(x, *given)
        and tuple(x.shape[x.dim() - len(shape) :]) == shape
        and x.dim() >= len(shape)
        and all(tuple(p.shape) == shape and p.dtype in CASTS for p in given)
        and isinstance(module.eps, (int, float, type(None)))
    )


def _norm(
    module: Any, x: torch.Tensor, name: str, eps: float, **parameters: torch.Tensor | None
) -> torch.Tensor:
    """The norm in the type that PyTorch returns: that of ``x``, what autocast makes of it, or what
    this version of PyTorch gives for weights of another type.
    """
    before = cast_before(name, x)
    given = {n: p for n, p in parameters.items() if p is not None}
    text = f"{name}({as_type(before, 'x')}, axis={_axes(module)}, eps={float(eps)!r})"
    if "weight" in given:
        text += " * weight"
    if "bias" in given:
        text += " + bias"
    wanted = before or CASTS[_type_of(name, x, given)]
    if any(CASTS[p.dtype] != wanted for p in given.values()):
        text = f"{wanted}({text})"
    result: torch.Tensor = fused(text, name, ("x", *given), x, *given.values())
    return result


def _type_of(name: str, x: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.dtype:
    """The type of the norm where autocast has no say."""
    weight = given.get("weight")
    if name != "rms_norm" or weight is None or weight.dtype == x.dtype:
        return x.dtype
    return rms_norm_type(x.device.type, x.dtype, weight.dtype)


class RMSNorm(torch.nn.RMSNorm):
    """``torch.nn.RMSNorm`` in one kernel. x: ``[..., *normalized_shape]``, floats; y: like x, in
    the type that PyTorch's own has.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The norm of ``x``."""
        if not _fits(self, x, self.weight):
            return super().forward(x)
        eps = self.eps if self.eps is not None else default_eps(x.device.type, x.dtype)
        return _norm(self, x, "rms_norm", eps, weight=self.weight)


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm`` in one kernel. x: ``[..., *normalized_shape]``, floats; y: like x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The norm of ``x``."""
        if not _fits(self, x, self.weight, self.bias) or not self._types_fit(x):
            return super().forward(x)
        return _norm(self, x, "layer_norm", self.eps, weight=self.weight, bias=self.bias)

    def _types_fit(self, x: torch.Tensor) -> bool:
        """Whether PyTorch takes parameters of these types, all the same, beside ``x``."""
        kinds = {p.dtype for p in (self.weight, self.bias) if p is not None}
        if cast_before("layer_norm", x):
            return True
        return kinds <= {x.dtype} or (x.dtype in HALVES and kinds == {torch.float32})
