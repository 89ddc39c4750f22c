"""Softmax over the last axis."""

from __future__ import annotations

from pathlib import Path

import torch

import fusec

HERE = Path(__file__).parent


def inputs(device: str) -> dict[str, torch.Tensor]:
    """What the kernel in tests/golden was made for."""
    torch.manual_seed(0)
    return {"x": 3 * torch.randn(512, 4096, device=device, dtype=torch.bfloat16)}


def largest_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest distance from the float64 answer."""
    return (result.double() - exact).abs().max().item()


def main() -> tuple[float, float]:
    """Print, and return, the errors of fusec and of PyTorch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    softmax = fusec.compile((HERE / "softmax.fuse").read_text(), name="softmax")
    given = inputs(device)
    exact = torch.softmax(given["x"].double(), -1)
    ours = largest_error(softmax(**given), exact)
    torch_s = largest_error(torch.softmax(given["x"], -1), exact)
    print(f"softmax on {device}: largest error {ours:.3g}, of torch.softmax {torch_s:.3g}")
    return ours, torch_s


if __name__ == "__main__":
    main()
