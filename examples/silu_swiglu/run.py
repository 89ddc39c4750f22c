"""SiLU, and the SwiGLU gate of today's language models."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

import fusec

HERE = Path(__file__).parent


def inputs(device: str) -> dict[str, torch.Tensor]:
    """What the kernel in tests/golden was made for."""
    torch.manual_seed(0)
    gate, up = 3 * torch.randn(2, 512, 4096, device=device, dtype=torch.bfloat16)
    return {"gate": gate, "up": up}


def largest_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest distance from the float64 answer."""
    return (result.double() - exact).abs().max().item()


def main() -> tuple[float, float]:
    """Print, and return, the errors of fusec and of PyTorch for the gate."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    silu = fusec.compile((HERE / "silu.fuse").read_text(), name="silu")
    swiglu = fusec.compile((HERE / "swiglu.fuse").read_text(), name="swiglu")
    given = inputs(device)
    gate, up = given["gate"], given["up"]
    exact = F.silu(gate.double()) * up.double()
    ours = largest_error(swiglu(**given), exact)
    torch_s = largest_error(F.silu(gate) * up, exact)
    alone = largest_error(silu(gate), F.silu(gate.double()))
    print(f"silu on {device}: largest error {alone:.3g}")
    print(f"swiglu on {device}: largest error {ours:.3g}, of F.silu(gate) * up {torch_s:.3g}")
    return ours, torch_s


if __name__ == "__main__":
    main()
