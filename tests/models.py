"""Small models of the usual kinds, and how a compiled one is compared with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS = 16, 2


class MLP(nn.Module):
    """Linear and GELU, in turns."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x


class Attention(nn.Module):
    """Attention with as many heads for keys as ``groups``, masked where it is ``causal``."""

    def __init__(self, causal: bool, groups: int = HEADS, by_hand: bool = False) -> None:
        super().__init__()
        self.causal, self.groups, self.by_hand = causal, groups, by_hand
        self.size = WIDTH // HEADS
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, groups * self.size)
        self.value = nn.Linear(WIDTH, groups * self.size)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self._heads(self.query(x), HEADS)
        k, v = (self._heads(f(x), self.groups) for f in (self.key, self.value))
        if self.by_hand:
            scores = q @ k.transpose(-1, -2) / self.size**0.5
            length = x.shape[1]
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
            mixed = weights @ v
        else:
            grouped = self.groups != HEADS
            mixed = F.scaled_dot_product_attention(
                q, k, v, is_causal=self.causal, enable_gqa=grouped
            )
        return self.out(mixed.transpose(1, 2).reshape(x.shape))

    def _heads(self, x: torch.Tensor, count: int) -> torch.Tensor:
        return x.view(*x.shape[:2], count, self.size).transpose(1, 2)


class SwiGLU(nn.Module):
    """The gated feed-forward part of newer transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(WIDTH, 4 * WIDTH)
        self.out = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.out(F.silu(gate) * up)


class Experts(nn.Module):
    """Two of three experts for each token, by a softmax gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        full = weights.new_zeros(*x.shape[:-1], 3).scatter(-1, chosen, weights)
        made = torch.stack([F.gelu(e(x)) for e in self.experts], dim=-1)
        return (made * full.unsqueeze(-2)).sum(-1)


class Block(nn.Module):
    """A transformer block: attention and a feed-forward part, each with a norm and a residual."""

    def __init__(
        self,
        attention: nn.Module,
        feed: nn.Module | None = None,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        before: bool = True,
    ) -> None:
        super().__init__()
        hidden = [nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)]
        self.attention, self.feed = attention, feed or nn.Sequential(*hidden)
        self.first, self.second, self.before = norm(WIDTH), norm(WIDTH), before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.before:
            x = x + self.attention(self.first(x))
            return x + self.feed(self.second(x))
        x = self.first(x + self.attention(x))
        return self.second(x + self.feed(x))


def results(
    function: Callable[..., Any], model: nn.Module, *inputs: torch.Tensor, **named: Any
) -> dict[str, torch.Tensor]:
    """What ``function`` gives, and the gradients of a weighted sum of it: of floating inputs, and
    of the parameters of ``model`` by name.
    """
    model.zero_grad()
    moving = [i.detach().requires_grad_() if i.is_floating_point() else i for i in inputs]
    out = function(*moving, **named)
    out = getattr(out, "logits", out)
    weights = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape)
    (out.float() * weights).sum().backward()
    found = {"out": out.detach()}
    found |= {f"input {k}": t.grad for k, t in enumerate(moving) if t.grad is not None}
    found |= {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return found


def check_same(ours: dict[str, torch.Tensor], eager: dict[str, torch.Tensor]) -> None:
    """Assert that results agree as two ways to round do.

    Gradients may vanish by cancellation, so they are compared at the scale of the largest one.
    """
    assert ours.keys() == eager.keys()
    scale = max(float(t.abs().max()) for n, t in eager.items() if n != "out")
    for name, expected in eager.items():
        size = float(expected.abs().max()) if name == "out" else scale
        error = float((ours[name] - expected).abs().max())
        assert error <= 2e-6 * size + 1e-7, name
        assert ours[name].stride() == expected.stride(), name
