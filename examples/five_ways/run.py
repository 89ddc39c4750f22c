"""GELU and softmax in five ways: the sources one after the other, and with a GPU their times."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import fusec
from fusec.cli import main as command

HERE = Path(__file__).parent


def gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU op by op: each of its operations reads and writes the whole matrix."""
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax op by op."""
    e = torch.exp(x - x.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def own_gelu(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's own GELU."""
    return F.gelu(x, approximate="tanh")


def own_softmax(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's own softmax."""
    return torch.softmax(x, -1)


WAYS = {"gelu_f32": (gelu, own_gelu), "softmax_f32": (softmax, own_softmax)}


def inputs(device: str) -> dict[str, torch.Tensor]:
    """What the kernels in tests/golden were made for; a smaller matrix for a CPU."""
    torch.manual_seed(0)
    side = 1024 if device == "cpu" else 16384
    return {"x": torch.randn(side, side, device=device)}


def largest_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest distance from the float64 answer."""
    return (result.double() - exact).abs().max().item()


def show(title: str, source: str) -> None:
    """A source under its title."""
    print(f"== {title} ==\n\n{source.strip()}\n")


def show_sources(name: str, function: fusec.CompiledFunction) -> None:
    """The five sources of a formula; without a GPU its C++ too, since that is what runs."""
    op_by_op, own = WAYS[name]
    example = torch.empty(16384, 16384, device="meta")
    show(f"{name}: PyTorch, op by op", inspect.getsource(op_by_op))
    show(f"{name}: PyTorch's own", inspect.getsource(own))
    show(f"{name}: fusec, CUDA C++", function.show("cuda", example))
    show(f"{name}: fusec, Triton", function.show("triton", example))
    show(f"{name}: torch.compile", f"compiled = torch.compile({op_by_op.__name__})")
    if not torch.cuda.is_available():
        show(f"{name}: fusec, C++", function.show("cpp", example))


def errors(function: Callable[..., torch.Tensor], name: str, device: str) -> tuple[float, float]:
    """The errors of fusec and of PyTorch's own function, in part of the rows."""
    x = inputs(device)["x"][:1024]
    op_by_op, own = WAYS[name]
    exact = op_by_op(x.double())
    return largest_error(function(x), exact), largest_error(own(x), exact)


def main() -> tuple[float, float]:
    """Print the sources; print, and return, the errors of fusec and of PyTorch for softmax."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name in WAYS:
        function = fusec.compile((HERE / f"{name}.fuse").read_text(), name=name)
        show_sources(name, function)
        ours, torch_s = errors(function, name, device)
        print(f"{name} on {device}: largest error {ours:.3g}, of PyTorch's own {torch_s:.3g}\n")
    return ours, torch_s


if __name__ == "__main__":
    main()
    if torch.cuda.is_available():
        with tempfile.TemporaryDirectory() as folder:
            command(["bench", "--suite", "five-ways", "--dtype", "f32", "--json", folder])
