"""Softmax of attention scores with a causal mask that is never stored."""

from __future__ import annotations

from pathlib import Path

import torch

import fusec

HERE = Path(__file__).parent


def inputs(device: str) -> dict[str, torch.Tensor | float]:
    """What the kernel in tests/golden was made for."""
    torch.manual_seed(0)
    return {"scores": torch.randn(2, 4, 256, 256, device=device), "scale": 0.125}


def largest_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest distance from the float64 answer."""
    return (result.double() - exact).abs().max().item()


def main() -> tuple[float, float]:
    """Print, and return, the errors of fusec and of PyTorch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    causal = fusec.compile((HERE / "causal_softmax.fuse").read_text(), name="causal_softmax")
    given = inputs(device)
    scores, scale = given["scores"], given["scale"]
    hidden = torch.ones(256, 256, device=device, dtype=torch.bool).triu(1)
    exact = torch.softmax((scores.double() * scale).masked_fill(hidden, -torch.inf), -1)
    eager = torch.softmax((scores * scale).masked_fill(hidden, -torch.inf), -1)
    ours, torch_s = largest_error(causal(**given), exact), largest_error(eager, exact)
    print(f"causal softmax on {device}: largest error {ours:.3g}, of eager {torch_s:.3g}")
    return ours, torch_s


if __name__ == "__main__":
    main()
