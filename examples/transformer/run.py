"""One block of a transformer, compiled as a whole: forward and backward."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

import fusec
import fusec.torch_backend  # so that the backend is known where fusec is not installed

WIDTH, HEADS, HIDDEN = 128, 4, 384


class Block(nn.Module):
    """RMS norm, causal attention, SwiGLU, and a residual around each half."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_feed = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.heads = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.before_attention(x))
        gate, up = self.up(self.before_feed(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.heads(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.mix(mixed.transpose(1, 2).flatten(2))


def gradients(block: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The result of a block, and the gradient of every parameter."""
    result = block(x)
    parameters = list(block.parameters())
    return [result, *torch.autograd.grad(result.square().mean(), parameters)]


def largest_error(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The largest distance from the float64 answers, each measured by its largest element."""
    pairs = zip(found, exact, strict=True)
    return max(((a.double() - b).abs().max() / b.abs().max()).item() for a, b in pairs)


def main() -> tuple[float, float]:
    """Print, and return, the errors of fusec and of PyTorch."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    block = Block().to(device)
    x = torch.randn(2, 64, WIDTH, device=device)
    exact = gradients(copy.deepcopy(block).double(), x.double())
    ours = largest_error(gradients(torch.compile(block, backend="fusec"), x), exact)
    torch_s = largest_error(gradients(block, x), exact)
    print(fusec.last_report())
    print(f"block on {device}: largest error {ours:.3g}, of eager PyTorch {torch_s:.3g}")
    return ours, torch_s


if __name__ == "__main__":
    main()
