"""The gradient as a formula parses back to the gradient; the table of what it starts from."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusec
from fusec.errors import UnsupportedError
from fusec.frontend.parser import parse
from fusec.frontend.resolve_names import check
from fusec.ir.evaluate import evaluate, lengths
from fusec.ir.graph import without_twins
from fusec.passes.formula import formula_text
from fusec.passes.grad import gradient
from fusec.passes.pipeline import run as run_passes
from fusec.passes.save import keep, starting_from
from fusec.source import Source
from tests.formulas import graph_of, run_all
from tests.gradients import cotangents, float_inputs, torchs
from tests.passes.test_grad import BROADCAST, calls, randn

FORMULAS = [
    *calls(),
    *BROADCAST,
    "prod(x)",
    "max(x, axis=0) - min(x)",
    "x[t] ^ 2 * exp(x * 0.1)[t]",
    "where(index(-1) <= index(-2), x, 0) * size(-1)",
    "-(x + y) ^ 2 / (x - (y - x)) - abs(x) % 2",
    "where(x > 0 and not (y > 0) or x < y, x, y) * f64(f32(x))",
]


def values_for(text: str) -> dict[str, Any]:
    source = Source(text)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("w", "lo"), (4,)) | {
        "beta": (),
        "hi": (3, 1),
    }
    if text in BROADCAST:
        shapes = dict(zip("xyz", BROADCAST[text], strict=False))
    return {
        n: torch.tensor([1, 3, 0]) if n == "t" else randn(*shapes.get(n, (3, 4)), seed=k).sigmoid()
        for k, n in enumerate(check(parse(source), source, None))
    }


@pytest.mark.parametrize("text", FORMULAS)
def test_the_gradient_starts_from_what_is_kept_and_reads_back(text: str) -> None:
    """What crosses is enough, for the graph and for the text that a person reads."""
    values = values_for(text)
    graph = graph_of(text, values).graph
    names, given = float_inputs(values), cotangents(graph, values)
    backward = gradient(graph, names)
    kept = keep(graph, backward.graph)
    made = evaluate(kept.forward, values, torch)
    at_hand = {**values, **dict(zip([n for n, _ in backward.given], given, strict=True))}
    for output, value in zip(kept.forward.outputs, made, strict=True):
        rank = len(output.node.shape)
        visible = iter(value.shape)
        shape = [1 if k - rank in output.squeeze else next(visible) for k in range(rank)]
        at_hand[output.name] = value.reshape(shape)
    start = run_passes(starting_from(without_twins(backward.graph), kept.crossing), verify=True)
    arrays = {s.name: at_hand[s.name] for s in start.inputs}
    sizes = lengths(graph.inputs, values)
    from_graph = evaluate(start, arrays, torch, known=sizes)
    printed = formula_text(start, graph.inputs)
    source = Source(printed)
    unsqueezed = {"t": values["t"].unsqueeze(-1)} if "t" in values else {}
    free = check(parse(source), source, None)
    from_text = run_all(printed, **{n: {**at_hand, **unsqueezed}[n] for n in free})
    wanted = dict(zip(names, torchs(graph, values, given, names), strict=True))
    for name, a, b in zip(backward.of, from_graph, from_text, strict=True):
        torch.testing.assert_close(a.expand(values[name].shape), wanted[name])
        # The language drops reduced axes of results.
        torch.testing.assert_close(b.reshape(a.shape), a, msg=printed)


@pytest.mark.parametrize(
    ("text", "kept", "results", "inputs"),
    [
        ("softmax(x)", (), ("out",), ()),
        ("log_softmax(x)", (), ("out",), ()),
        ("tanh(x)", (), ("out",), ()),
        ("gelu(x)", (), (), ("x",)),
        ("swiglu(a, b)", (), (), ("a", "b")),
        ("layer_norm(x, w, b)", ("row_mean", "row_rsqrt"), (), ("x", "w")),
        ("mu = mean(x); d = x - mu; d * rsqrt(mean(d*d) + 1.0)", ("mu", "row_rsqrt"), (), ("x",)),
        ("rms_norm(x, w)", ("row_rsqrt",), (), ("x", "w")),
        ("logsumexp(x)", (), ("out",), ("x",)),
        ("cross_entropy(x, t)", ("row_add",), (), ("x", "t")),
        ("softplus(a + b + c + d)", ("add",), (), ()),  # one written and read, not four read
        ("tanh(a + b)", (), ("out",), ()),
        ("sum(x)", (), (), ()),
        ("x - mean(x, axis=0)", (), (), ()),
        ("x * sum(x, axis=0)", ("col_sum",), (), ("x",)),
        ("x[t] ^ 2", (), (), ("t",)),
    ],
)  # fmt: skip
def test_what_crosses(text: str, kept: tuple[str, ...], results: Any, inputs: Any) -> None:
    source = Source(text)
    values = {
        n: torch.tensor([1, 2, 0]) if n == "t" else randn(4) if n in "wb" and "x" in text
        else randn(3, 4) for n in check(parse(source), source, None)
    }  # fmt: skip
    graph = graph_of(text, values).graph
    crossing = keep(graph, gradient(graph, float_inputs(values)).graph).crossing
    found = {
        how: tuple(c.name for c in crossing if c.how == how) for how in ("kept", "result", "input")
    }
    assert found["kept"] == kept
    assert found["result"] == results
    assert sorted(found["input"]) == sorted(inputs)


def test_the_text_of_a_softmax() -> None:
    assert fusec.compile("softmax(x)").show("grad") == (
        "# the gradient of softmax(x)\n"
        "# out [x.0, x.1] is the result\n"
        "row_sum = sum(grad_out * out)\n"
        "grad_x = out * (grad_out - row_sum)\n"
        "grad_x\n"
    )


def test_the_table_of_a_norm() -> None:
    x = torch.empty(1024, 2048, dtype=torch.bfloat16, device="meta")
    w = torch.empty(2048, dtype=torch.bfloat16, device="meta")
    assert fusec.compile("rms_norm(x, w)").show("explain", x, w) == (
        "value      how    bytes  why\n"
        "x          input  4 MiB  read again; what depends on it is computed again\n"
        "row_rsqrt  kept   4 KiB  "
        "written and read once; to compute it again takes a sweep of 4 MiB\n"
        "w          input  4 KiB  read again; what depends on it is computed again\n"
        "\n"
        "computed again: mul\n"
        "written for the gradient alone: 4 KiB\n"
        "the gradient reads and writes at least: 12.01 MiB\n"
    )


def test_what_has_no_gradient_says_so() -> None:
    for stage in ("grad", "explain"):
        with pytest.raises(UnsupportedError, match="no gradient"):
            fusec.compile("x > 0").show(stage)
