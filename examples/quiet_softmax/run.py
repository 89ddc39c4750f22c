"""Quiet softmax with a temperature, and the share of attention that went nowhere."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

import fusec

HERE = Path(__file__).parent


def inputs(device: str) -> dict[str, torch.Tensor | float]:
    """What the kernel in tests/golden was made for."""
    torch.manual_seed(0)
    return {"scores": 3 * torch.randn(512, 1000, device=device), "temperature": 1.5}


def largest_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest distance from the float64 answer."""
    return (result.double() - exact).abs().max().item()


def main() -> tuple[float, float]:
    """Print, and return, the errors of fusec and of the same formula in eager PyTorch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    quiet = fusec.compile((HERE / "quiet_softmax.fuse").read_text(), name="quiet_softmax")
    given = inputs(device)
    scaled = given["scores"] / given["temperature"]
    exact = torch.softmax(F.pad(given["scores"].double() / given["temperature"], (0, 1)), -1)
    eager = torch.softmax(F.pad(scaled, (0, 1)), -1)
    weights, nothing = quiet(**given)
    ours = largest_error(torch.cat([weights, nothing[:, None]], -1), exact)
    torch_s = largest_error(eager, exact)
    print(f"quiet softmax on {device}: largest error {ours:.3g}, of eager {torch_s:.3g}")
    print(f"attention spent on nothing: {nothing.mean().item():.3g}")
    return ours, torch_s


if __name__ == "__main__":
    main()
