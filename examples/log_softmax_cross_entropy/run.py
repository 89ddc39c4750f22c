"""Cross-entropy straight from logits, and the log-softmax it avoids."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

import fusec

HERE = Path(__file__).parent


def inputs(device: str) -> dict[str, torch.Tensor]:
    """What the kernel in tests/golden was made for."""
    torch.manual_seed(0)
    logits = 3 * torch.randn(512, 4096, device=device)
    return {"logits": logits, "target": torch.randint(4096, (512,), device=device)}


def largest_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest distance from the float64 answer."""
    return (result.double() - exact).abs().max().item()


def main() -> tuple[float, float]:
    """Print, and return, the errors of fusec and of PyTorch for the loss."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = "log_softmax_cross_entropy"
    loss = fusec.compile((HERE / f"{name}.fuse").read_text(), name=name)
    log_softmax = fusec.compile((HERE / "log_softmax.fuse").read_text(), name="log_softmax")
    given = inputs(device)
    logits, target = given["logits"], given["target"]
    exact = F.cross_entropy(logits.double(), target, reduction="none")
    ours = largest_error(loss(**given), exact)
    torch_s = largest_error(F.cross_entropy(logits, target, reduction="none"), exact)
    whole = largest_error(log_softmax(logits), torch.log_softmax(logits.double(), -1))
    print(f"log_softmax on {device}: largest error {whole:.3g}")
    print(f"cross-entropy on {device}: largest error {ours:.3g}, of F.cross_entropy {torch_s:.3g}")
    return ours, torch_s


if __name__ == "__main__":
    main()
