"""Layer norm over the last axis."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

import fusec

HERE = Path(__file__).parent


def inputs(device: str) -> dict[str, torch.Tensor]:
    """What the kernel in tests/golden was made for."""
    torch.manual_seed(0)
    x = torch.randn(512, 4096, device=device, dtype=torch.bfloat16)
    weight, bias = torch.randn(2, 4096, device=device, dtype=torch.bfloat16)
    return {"x": x, "weight": weight, "bias": bias}


def largest_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest distance from the float64 answer."""
    return (result.double() - exact).abs().max().item()


def main() -> tuple[float, float]:
    """Print, and return, the errors of fusec and of PyTorch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer_norm = fusec.compile((HERE / "layer_norm.fuse").read_text(), name="layer_norm")
    given = inputs(device)
    x, weight, bias = given["x"], given["weight"], given["bias"]
    exact = F.layer_norm(x.double(), (4096,), weight.double(), bias.double())
    ours = largest_error(layer_norm(**given), exact)
    torch_s = largest_error(F.layer_norm(x, (4096,), weight, bias), exact)
    print(f"layer norm on {device}: largest error {ours:.3g}, of F.layer_norm {torch_s:.3g}")
    return ours, torch_s


if __name__ == "__main__":
    main()
