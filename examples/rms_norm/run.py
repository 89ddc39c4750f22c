"""RMS norm with the residual addition before it, both results in one kernel."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

import fusec

HERE = Path(__file__).parent


def inputs(device: str) -> dict[str, torch.Tensor]:
    """What the kernel in tests/golden was made for."""
    torch.manual_seed(0)
    x, residual = torch.randn(2, 512, 4096, device=device, dtype=torch.bfloat16)
    weight = torch.randn(4096, device=device, dtype=torch.bfloat16)
    return {"x": x, "residual": residual, "weight": weight}


def largest_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest distance from the float64 answer."""
    return (result.double() - exact).abs().max().item()


def main() -> tuple[float, float]:
    """Print, and return, the errors of fusec and of PyTorch for the normalised result."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rms_norm = fusec.compile((HERE / "rms_norm.fuse").read_text(), name="rms_norm")
    given = inputs(device)
    x, residual, weight = given["x"], given["residual"], given["weight"]
    hidden = x.double() + residual.double()
    exact = F.rms_norm(hidden, (4096,), weight.double(), 1e-6)
    normed, carried = rms_norm(**given)
    ours = largest_error(normed, exact)
    torch_s = largest_error(F.rms_norm(x + residual, (4096,), weight, 1e-6), exact)
    print(f"rms norm on {device}: largest error {ours:.3g}, of F.rms_norm {torch_s:.3g}")
    print(f"residual stream: largest error {largest_error(carried, hidden):.3g}")
    return ours, torch_s


if __name__ == "__main__":
    main()
