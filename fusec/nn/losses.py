"""Cross-entropy. May import torch and everything below the public names."""

from __future__ import annotations

import torch

from fusec.nn.support import as_type, can_fuse, cast_before, fused
from fusec.runtime.operator_calls import seen_by_torch


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """``torch.nn.CrossEntropyLoss`` with no log-probabilities stored.

    x: logits ``[C]`` or ``[N, C, ...]``, floats; target: classes ``[]`` or ``[N, ...]``, int64, or
    probabilities like x. A class that is not there is an IndexError on the CPU, as in PyTorch, and
    a NaN on a GPU and inside of graphs.
    """

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss: ``[]``, or with ``reduction="none"`` like the classes."""
        weight = self.weight
        if not self._fits(x, target, weight):
            return super().forward(x, target)
        logits = x if x.dim() == 1 else x.movedim(1, -1)
        cast = cast_before("cross_entropy", x)
        values: dict[str, torch.Tensor] = {"logits": logits}
        if weight is not None:
            values["weight"] = weight.expand_as(logits)
        if target.dtype == torch.int64:
            _check_classes(x, target, self.ignore_index)
            values |= {"target": target, "classes": target.unsqueeze(-1)}
            text = self._of_classes(cast, weight is not None)
        else:
            values["target"] = target if x.dim() == 1 else target.movedim(1, -1)
            text = self._of_probabilities(cast, weight is not None)
        result: torch.Tensor = fused(text, "cross_entropy", tuple(values), *values.values())
        return result.reshape(logits.shape[:-1]) if self.reduction == "none" else result

    def _fits(self, x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None) -> bool:
        """Whether kernels compute the loss; what does not fit is for PyTorch to say."""
        if not can_fuse(x, target, weight) or x.dim() == 0 or not 0 <= self.label_smoothing <= 1:
            return False
        classes = x.shape[0] if x.dim() == 1 else x.shape[1]
        if self.reduction not in ("none", "mean", "sum") or not classes:
            return False
        if weight is not None and (weight.dtype != x.dtype or weight.shape != (classes,)):
            return False
        shape = x.shape[:0] if x.dim() == 1 else (x.shape[0], *x.shape[2:])
        if target.dtype == torch.int64:
            return tuple(target.shape) == tuple(shape)
        return target.dtype == x.dtype and target.shape == x.shape

    def _of_classes(self, cast: str, weighted: bool) -> str:
        """The formula of the loss for the numbers of classes."""
        lines = [
            f"total = logsumexp({as_type(cast, 'logits')})",
            f"kept = classes != {self.ignore_index}",
            f"loss = total - {as_type(cast, 'logits[target]')}",
        ]
        if weighted:
            lines += [
                f"share = where(kept, {as_type(cast, 'weight[target]')}, 0)",
                "loss = loss * share",
            ]
        lines += ["loss = where(kept, loss, 0)"]
        if self.label_smoothing > 0:
            lines += [*self._spread(cast, weighted), "spread = where(kept, spread, 0)"]
            lines += [self._smooth("loss", "spread")]
        count = "sum(share, axis=all)" if weighted else "sum(i64(kept), axis=all)"
        return "\n".join([*lines, self._reduced(count)])

    def _of_probabilities(self, cast: str, weighted: bool) -> str:
        """The formula of the loss for probabilities."""
        weight = f" * {as_type(cast, 'weight')}" if weighted else ""
        lines = [
            f"total = logsumexp({as_type(cast, 'logits')})",
            f"loss = sum({as_type(cast, 'target')}{weight} * (total - {as_type(cast, 'logits')}))",
        ]
        if self.label_smoothing > 0:
            lines += [*self._spread(cast, weighted), self._smooth("loss", "spread")]
        return "\n".join([*lines, self._reduced(None)])

    def _spread(self, cast: str, weighted: bool) -> list[str]:
        weight = f"{as_type(cast, 'weight')} * " if weighted else ""
        return [f"spread = sum({weight}(total - {as_type(cast, 'logits')})) / size(logits, -1)"]

    def _smooth(self, loss: str, spread: str) -> str:
        part = float(self.label_smoothing)
        return f"loss = {1 - part!r} * {loss} + {part!r} * {spread}"

    def _reduced(self, count: str | None) -> str:
        """The result; a mean divides by ``count``, or by the number of losses."""
        if self.reduction == "none":
            return "loss"
        if self.reduction == "mean" and count is None:
            return "mean(loss, axis=all)"
        total = "sum(loss, axis=all)"
        return total if self.reduction == "sum" else f"{total} / {count}"


def _check_classes(x: torch.Tensor, target: torch.Tensor, ignored: int) -> None:
    """IndexError for a class that is not there, where a look at it costs no wait for a GPU."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or seen_by_torch((x, target)):
        return
    classes = x.shape[0] if x.dim() == 1 else x.shape[1]
    outside = ((target < 0) | (target >= classes)) & (target != ignored)
    if outside.any():
        raise IndexError(f"Target {target[outside].flatten()[0].item()} is out of bounds.")
