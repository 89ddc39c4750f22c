"""GELU in its tanh form, from the formula in the paper."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

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
    gelu = fusec.compile((HERE / "gelu.fuse").read_text(), name="gelu")
    given = inputs(device)
    exact = F.gelu(given["x"].double(), approximate="tanh")
    ours = largest_error(gelu(**given), exact)
    torch_s = largest_error(F.gelu(given["x"], approximate="tanh"), exact)
    print(f"gelu on {device}: largest error {ours:.3g}, of F.gelu {torch_s:.3g}")
    return ours, torch_s


if __name__ == "__main__":
    main()
