"""Gradients of formulas by ``passes/grad.py``, and by PyTorch's autograd over the reference
evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fusec.ir.evaluate import evaluate, lengths
from fusec.ir.graph import Graph
from fusec.ir.verify import verify
from fusec.passes.grad import gradient
from fusec.passes.pipeline import run as run_passes
from tests.formulas import graph_of


def float_inputs(values: Mapping[str, Any]) -> list[str]:
    """The names of the tensors that have a gradient."""
    return [n for n, v in values.items() if torch.is_tensor(v) and v.is_floating_point()]


def cotangents(graph: Graph, values: Mapping[str, Any], seed: int = 0) -> list[torch.Tensor]:
    """A random gradient for each float result, in the shape with reduced axes kept."""
    generator = torch.Generator().manual_seed(seed)
    sizes = lengths(graph.inputs, values)
    found = []
    for output in graph.outputs:
        if output.node.dtype.is_float:
            shape = [sizes[e.name] if not isinstance(e, int) else e for e in output.node.shape]
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            found.append(drawn.to(getattr(torch, output.node.dtype.torch)))
    return found


def ours(
    graph: Graph,
    values: Mapping[str, Any],
    given: Sequence[torch.Tensor],
    names: Sequence[str],
    *,
    precision: str | None = None,
    simplified: bool = True,
) -> list[torch.Tensor]:
    """The gradients of the inputs ``names`` from the gradient graph, zeros where it has none."""
    backward = gradient(graph, names)
    made = backward.graph
    if made.outputs:
        verify(made)
        if simplified:
            made = run_passes(made, verify=True)
    arrays = {**values, **{n: g for (n, _), g in zip(backward.given, given, strict=True)}}
    known = lengths(graph.inputs, values)
    results = evaluate(made, arrays, torch, precision, known=known) if made.outputs else []
    found: dict[str, torch.Tensor] = {}
    for name, part in zip(backward.of, results, strict=True):
        found[name] = found[name] + part if name in found else part
    return [
        found[n].expand(values[n].shape) if n in found else torch.zeros_like(values[n])
        for n in names
    ]


def torchs(
    graph: Graph, values: Mapping[str, Any], given: Sequence[torch.Tensor], names: Sequence[str]
) -> list[torch.Tensor]:
    """The same by PyTorch's autograd over the reference evaluator, in float64."""
    tracked = {
        n: v.detach().clone().requires_grad_() if n in names else v for n, v in values.items()
    }
    results = evaluate(graph, tracked, torch, "float64", track=True)
    pairs = [
        (r, g.double().reshape(r.shape))
        for r, g in zip([r for r in results if r.is_floating_point()], given, strict=True)
        if r.requires_grad
    ]
    wanted = [tracked[n] for n in names]
    if not pairs:
        return [torch.zeros_like(w) for w in wanted]
    found = torch.autograd.grad(
        [r for r, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True
    )
    return [torch.zeros_like(w) if f is None else f for f, w in zip(found, wanted, strict=True)]


def check(formula: str, values: Mapping[str, Any], tolerance: float = 1e-10) -> None:
    """Fail where the gradient of a formula is not that of PyTorch, for float64 inputs."""
    graph = graph_of(formula, values).graph
    names = float_inputs(values)
    given = cotangents(graph, values)
    wanted = torchs(graph, values, given, names)
    for simplified in (False, True):
        got = ours(graph, values, given, names, simplified=simplified)
        for name, a, b in zip(names, got, wanted, strict=True):
            torch.testing.assert_close(
                a, b, rtol=tolerance, atol=tolerance, equal_nan=True,
                msg=lambda m, n=name: f"gradient of {n} in {formula}: {m}",
            )  # fmt: skip
