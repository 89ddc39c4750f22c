"""Gradients of every op, reduction and composite, kinks included, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fusec.ir.derived import rows
from fusec.ir.ops import Kind, Op, elementwise, reductions
from fusec.ir.verify import verify
from fusec.passes.grad import gradient
from tests.formulas import graph_of
from tests.gradients import check, cotangents, float_inputs, ours
from tests.test_ops import reference_of, spelled

INF, NAN = float("inf"), float("nan")
DIFFERENTIABLE = [op for op in elementwise() if op.derivative is not None]
CONSTANT = {  # nothing flows through these: comparisons, bits, steps
    "floor_divide", "lt", "le", "gt", "ge", "eq", "ne", "bit_and", "bit_or", "bit_xor", "bit_not",
    "floor", "ceil", "trunc", "round",
}  # fmt: skip


def inside(op: Op, count: int = 12, seed: int = 0) -> torch.Tensor:
    """Values well inside the domain of an op."""
    low, high = op.domain
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(3, count, generator=generator, dtype=torch.float64)
    return low + (high - low) * (0.05 + 0.9 * drawn)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(list(shape), generator=generator, dtype=torch.float64)


def test_every_op_has_a_derivative_or_is_a_step() -> None:
    named = {op.name for op in elementwise() if op.derivative is None}
    assert named == CONSTANT
    assert all(op.derivative is not None for op in reductions())


# The gradient of gradient_as is no derivative: it has a test of its own.
@pytest.mark.parametrize(
    "op", [op for op in DIFFERENTIABLE if op.name != "gradient_as"], ids=lambda op: op.name
)
def test_elementwise(op: Op) -> None:
    names = ("c", "a", "b")[-op.arity :]
    values: dict[str, torch.Tensor] = {n: inside(op, seed=k) for k, n in enumerate(names)}
    if op.name == "where":
        values["c"] = values["c"] > 0
    if op.name in ("remainder", "fmod"):
        values["b"] = values["b"].abs() + 0.5
    check(spelled(op, *names), values)
    check(f"x = {spelled(op, *names)}; x * x", values)


@pytest.mark.parametrize(
    "op", [op for op in DIFFERENTIABLE if op.arity == 1], ids=lambda op: op.name
)
def test_second_derivatives(op: Op) -> None:
    """The gradient of the gradient graph, against autograd twice."""
    x = inside(op)
    graph = graph_of(spelled(op, "a"), {"a": x}).graph
    first = gradient(graph, ["a"]).graph
    g, h = randn(*x.shape, seed=1), randn(*x.shape, seed=2)
    values = {"a": x, "grad_out": g}
    got = ours(first, values, [h], ["a", "grad_out"])
    a, go = x.clone().requires_grad_(), g.clone().requires_grad_()
    function = reference_of(op)
    (da,) = torch.autograd.grad(function(a), a, go, create_graph=True)
    wanted: Sequence[torch.Tensor | None] = (None, None)  # of a gradient that depends on nothing
    if da.requires_grad:
        wanted = torch.autograd.grad(da, [a, go], h, allow_unused=True)
    for mine, want in zip(got, wanted, strict=True):
        want = torch.zeros_like(mine) if want is None else want
        torch.testing.assert_close(mine, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("axis", ["-1", "0", "(0, 2)", "all"])
@pytest.mark.parametrize("op", reductions(), ids=lambda op: op.name)
def test_reductions(op: Op, axis: str) -> None:
    if op.name == "mean":
        check(f"mean(x, axis={axis}) + 0 * x", {"x": randn(3, 4, 5)})
    check(f"{op.name}(x, axis={axis})", {"x": randn(3, 4, 5)})
    check(f"x * {op.name}(x * x, axis={axis})", {"x": randn(3, 4, 5)})
    check(f"{op.name}(x * y, axis={axis})", {"x": randn(3, 1, 5), "y": randn(4, 1)})


def calls() -> list[str]:
    """A call of every composite with a smooth result."""
    found = []
    for row in rows():
        smooth = not row.name.startswith(("is", "any", "all", "arg", "heaviside", "sign"))
        if smooth:
            given = [p.name for p in row.parameters if p.default is None]
            found.append(f"{row.name}({', '.join(given)})")
    return found


@pytest.mark.parametrize("call", calls())
def test_composites(call: str) -> None:
    names = [n.strip() for n in call[:-1].partition("(")[2].split(",")]
    shapes: dict[str, tuple[int, ...]] = {
        "w": (6,),
        "b": (6,),
        "beta": (),
        "lo": (6,),
        "hi": (3, 1),
    }
    values: dict[str, Any] = {
        n: torch.tensor([1, 5, 0]) if n == "t" else randn(*shapes.get(n, (3, 6)), seed=k)
        for k, n in enumerate(names)
    }
    if call.startswith(("logit", "xlogy")):
        values = {n: v.sigmoid() for n, v in values.items()}
    check(call, values)
    check(f"y = {call}; y * y", values)


def native(function: Callable[..., Any], *values: torch.Tensor) -> list[torch.Tensor]:
    tracked = [v.clone().requires_grad_() for v in values]
    return list(torch.autograd.grad(function(*tracked).sum(), tracked))


def formula_gradients(text: str, *values: torch.Tensor) -> list[torch.Tensor]:
    named = dict(zip("xyz", values, strict=False))
    graph = graph_of(text, named).graph
    ones = [torch.ones_like(g) for g in cotangents(graph, named)]
    return ours(graph, named, ones, list(named))


KINKS = torch.tensor([-6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 20.0, 25.0],
                     dtype=torch.float64)  # fmt: skip
AT_KINKS: dict[str, Callable[..., Any]] = {
    "relu(x)": torch.relu,
    "relu6(x)": F.relu6,
    "leaky_relu(x)": F.leaky_relu,
    "elu(x)": F.elu,
    "selu(x)": F.selu,
    "celu(x)": F.celu,
    "hardtanh(x)": F.hardtanh,
    "hardsigmoid(x)": F.hardsigmoid,
    "hardswish(x)": F.hardswish,
    "softplus(x)": F.softplus,
    "softshrink(x)": F.softshrink,
    "hardshrink(x)": F.hardshrink,
    "softsign(x)": F.softsign,
    "logsigmoid(x)": F.logsigmoid,
    "abs(x)": torch.abs,
    "sign(x)": torch.sign,
    "clamp(x, -1, 1)": lambda x: torch.clamp(x, -1, 1),
    "clamp(x, 3, -3)": lambda x: torch.clamp(x, 3, -3),
    "clamp_min(x, 0.5)": lambda x: x.clamp_min(0.5),
    "clamp_max(x, 0.5)": lambda x: x.clamp_max(0.5),
    "floor(x)": torch.floor,
    "round(x)": torch.round,
    "sinc(x)": torch.sinc,
    "square(x)": torch.square,
    "x^0": lambda x: x**0,
    "x^1": lambda x: x**1,
    "x^2": lambda x: x**2,
    "x^3": lambda x: x**3,
    "copysign(x, -2)": lambda x: torch.copysign(x, torch.tensor(-2.0)),
    "x if x > 0 else -x": lambda x: torch.where(x > 0, x, -x),
    "sigmoid(x)": torch.sigmoid,
    "silu(x)": F.silu,
    "mish(x)": F.mish,
    "tanh(x)": torch.tanh,
}


@pytest.mark.parametrize("text", AT_KINKS)
def test_kinks_of_one_value(text: str) -> None:
    far = torch.tensor([-1000.0, 1000.0, -100.0, 100.0], dtype=torch.float64)
    x = torch.cat([KINKS, far])
    (got,), (want,) = formula_gradients(text, x), native(AT_KINKS[text], x)
    # PyTorch's hardsigmoid has a sixth in float32.
    bound = 1e-8 if text == "hardsigmoid(x)" else 1e-12
    torch.testing.assert_close(got, want, rtol=bound, atol=bound)


@pytest.mark.parametrize("text", ["relu(x)", "clamp(x, -1, 1)", "tanh(x)", "x * x", "exp(x)"])
def test_nan_in_the_input(text: str) -> None:
    x = torch.tensor([NAN, 1.0], dtype=torch.float64)
    (got,), (want,) = formula_gradients(text, x), native(AT_KINKS.get(text, lambda v: {
        "x * x": v * v, "exp(x)": v.exp()}[text]), x)  # fmt: skip
    torch.testing.assert_close(got, want, equal_nan=True)


AT_PAIRS: dict[str, Callable[..., Any]] = {
    "maximum(x, y)": torch.maximum,
    "minimum(x, y)": torch.minimum,
    "x ^ y": torch.pow,
    "x / y": torch.div,
    "x * y": torch.mul,
    "atan2(x, y)": torch.atan2,
    "logaddexp(x, y)": torch.logaddexp,
    "copysign(x, y)": lambda x, y: torch.copysign(x, y.detach()) + 0 * y,
    "clamp_min(x, y)": lambda x, y: torch.clamp(x, min=y),
    "clamp_max(x, y)": lambda x, y: torch.clamp(x, max=y),
    "x + y if x < y else x": lambda x, y: torch.where(x < y, x + y, x),
}


@pytest.mark.parametrize("text", AT_PAIRS)
def test_kinks_of_two_values(text: str) -> None:
    points = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    x, y = points.repeat_interleave(6), points.repeat(6)
    got, want = formula_gradients(text, x, y), native(AT_PAIRS[text], x, y)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_bounds_of_clamp_get_gradients() -> None:
    x = torch.tensor([-3.0, -1, 0, 1, 3, 0], dtype=torch.float64)
    lo = torch.tensor([-1.0, -1, -1, -1, -1, 2], dtype=torch.float64)
    hi = torch.ones(6, dtype=torch.float64)
    got = formula_gradients("clamp(x, y, z)", x, lo, hi)
    for mine, theirs in zip(got, native(torch.clamp, x, lo, hi), strict=True):
        torch.testing.assert_close(mine, theirs)


ROWS = torch.tensor(
    [[3.0, 3, 1, 0], [0, 0, 0, 0], [5, 5, 5, 5], [2, 0, 3, 4], [0, 1, 0, 2], [0, 0, 0, 7.0]],
    dtype=torch.float64,
)
AT_ROWS: dict[str, Callable[..., Any]] = {
    "max(x)": lambda x: x.amax(-1),
    "min(x)": lambda x: x.amin(-1),
    "max(x, axis=all)": lambda x: x.amax(),
    "prod(x)": lambda x: x.prod(-1),
    "std(x)": lambda x: x.std(-1),
    "var(x)": lambda x: x.var(-1),
    "norm(x)": lambda x: torch.linalg.vector_norm(x, 2, -1),
    "norm(x, p=1)": lambda x: torch.linalg.vector_norm(x, 1, -1),
    "norm(x, p=inf)": lambda x: torch.linalg.vector_norm(x, INF, -1),
    "normalize(x)": lambda x: F.normalize(x, dim=-1),
    "logsumexp(x)": lambda x: torch.logsumexp(x, -1),
    "softmax(x) * x": lambda x: torch.softmax(x, -1) * x,
    "log_softmax(x) * x": lambda x: torch.log_softmax(x, -1) * x,
    "exp(x) / sum(exp(x)) * x": lambda x: torch.softmax(x, -1) * x,
    "layer_norm(x) * x": lambda x: F.layer_norm(x, x.shape[-1:]) * x,
    "rms_norm(x) * x": lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6) * x,
    "sum(x)": lambda x: x.sum(-1),
    "mean(x, axis=0)": lambda x: x.mean(0),
}


@pytest.mark.parametrize("text", AT_ROWS)
def test_ties_and_zeros_in_rows(text: str) -> None:
    (got,), (want,) = formula_gradients(text, ROWS), native(AT_ROWS[text], ROWS)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_the_product_has_second_derivatives_at_zeros() -> None:
    x = torch.tensor([[2.0, 3, 4], [2, 0, 4], [0, 3, 0], [0, 0, 0]], dtype=torch.float64)
    graph = graph_of("prod(x)", {"x": x}).graph
    first = gradient(graph, ["x"]).graph
    g, h = randn(4, 1, seed=1), randn(4, 3, seed=2)
    got = ours(first, {"x": x, "grad_out": g}, [h], ["x", "grad_out"])
    a, go = x.clone().requires_grad_(), g.clone().requires_grad_()
    (da,) = torch.autograd.grad(a.prod(-1, keepdim=True), a, go, create_graph=True)
    for mine, want in zip(got, torch.autograd.grad(da, [a, go], h), strict=True):
        torch.testing.assert_close(mine, want)


def test_nan_rows_of_max_are_nan() -> None:
    x = torch.tensor([[1.0, NAN], [1.0, 2.0]], dtype=torch.float64)
    (got,), (want,) = formula_gradients("max(x)", x), native(lambda v: v.amax(-1), x)
    torch.testing.assert_close(got, want, equal_nan=True)


# An infinite derivative of a branch that is not taken stays out, where PyTorch gives NaN.
@pytest.mark.parametrize(
    ("text", "x", "want"),
    [
        ("where(x <= 0, exp(x), 1 + x)", [1000.0, -1.0, 0.0], [1.0, 0.36787944117144233, 1.0]),
        ("where(x == 0, 0.0, 1 / x)", [0.0, 2.0], [0.0, -0.25]),
        ("where(x > 0, sqrt(x), 0)", [0.0, 4.0, -1.0], [0.0, 0.25, 0.0]),
        (
            "where(x > 0, where(x > 1, log(x - 1), 0), x)",
            [0.5, 2.0, -1.0, 1.0],
            [0.0, 1.0, 1.0, 0.0],
        ),
        ("silu(x) if x < 90 else exp(x)", [-1000.0, 0.0], [0.0, 0.5]),
    ],
)
def test_branches_not_taken(text: str, x: list[float], want: list[float]) -> None:
    (got,) = formula_gradients(text, torch.tensor(x, dtype=torch.float64))
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64))


BROADCAST = {
    "x + y * z": ((2, 3, 4), (4,), (3, 1)),
    "x * y": ((3, 1), (1, 4)),
    "sum(x * y) * z": ((3, 4), (3, 1), ()),
    "softmax(x + y) * z": ((3, 4), (4,), (3, 1)),
    "mean(x, axis=0) * y": ((3, 4), (5, 1, 4)),
    "maximum(x, y) + sum(y, axis=all)": ((2, 3), (3,)),
    "sum(x) + y": ((3, 4), (2, 3, 1)),
    "sum(x - y, axis=(0, 1))": ((2, 1, 4), (3, 1)),
    "x - mean(x) - mean(x, axis=0) + mean(x, axis=all)": ((3, 4),),
    "where(x > 0, y, z)": ((2, 3), (3,), ()),
    "x": ((2, 3),),
    "x, x + y": ((2, 3), (3,)),
    "sum(x), x * 2, max(x)": ((2, 3),),
}


@pytest.mark.parametrize("text", BROADCAST)
def test_broadcast_inputs_get_sums(text: str) -> None:
    check(
        text,
        {
            n: randn(*s, seed=k)
            for k, (n, s) in enumerate(zip("xyz", BROADCAST[text], strict=False))
        },
    )


def test_positions_and_lengths() -> None:
    t = torch.tensor([[1], [4], [0]])
    x = randn(3, 5)
    check("where(index(-1) <= index(-2), x, 0) * size(-1)", {"x": x})
    check("x[t] * sum(x)", {"x": x, "t": t})
    check("logsumexp(x) - x[t]", {"x": x, "t": t})
    check("exp(x * y)[t]", {"x": x, "t": t, "y": randn(5, seed=1)})
    outside = torch.tensor([7, -1, 2])
    graph = graph_of("x[t]", {"x": x, "t": outside}).graph
    (got,) = ours(graph, {"x": x, "t": outside}, [torch.ones(3, 1, dtype=torch.float64)], ["x"])
    want = torch.zeros(3, 5, dtype=torch.float64)
    want[2, 2] = 1
    torch.testing.assert_close(got, want)


def test_gradient_as() -> None:
    x = torch.tensor([-1.4, 0.3, 2.6], dtype=torch.float64)
    (got,) = formula_gradients("gradient_as(round(x), x * x)", x)
    torch.testing.assert_close(got, 2 * x)


def test_each_gradient_has_the_type_of_its_input() -> None:
    values = {
        "x": randn(3, 4).bfloat16(), "y": randn(4).float(), "z": randn(3, 1).half(),
        "n": torch.tensor([1, 2, 3, 4]), "k": randn(),
    }  # fmt: skip
    graph = graph_of("x * y + z * n * f32(k), bf16(x * k)", values).graph
    made = gradient(graph, float_inputs(values)).graph
    verify(made)
    assert [o.node.dtype.torch for o in made.outputs] == [
        "bfloat16",
        "float32",
        "float16",
        "float64",
    ]


def test_scalars_and_integers_get_none() -> None:
    graph = graph_of("x * s + n", {"x": randn(3), "s": 2.0, "n": torch.tensor([1, 2, 3])}).graph
    assert [o.name for o in gradient(graph, ["x"]).graph.outputs] == ["grad_x"]
    assert not gradient(graph_of("floor(x)", {"x": randn(3)}).graph, ["x"]).graph.outputs
    assert not gradient(graph_of("x > 0, argmax(x)", {"x": randn(3)}).graph, ["x"]).graph.outputs


def test_only_the_results_that_have_a_gradient_count() -> None:
    graph = graph_of("x * y, x + y", {"x": randn(3), "y": randn(3)}).graph
    made = gradient(graph, ["x"], [1]).graph
    assert [s.name for s in made.inputs] == ["x", "y", "grad_out_1"]
    assert {n.op.name for n in made.nodes()} == {"input"}


def test_long_chains_do_not_overflow_the_stack() -> None:
    text = "(" * 2500 + "x" + " * 1.001 + 0.1)" * 2500
    graph = graph_of(text, {"x": randn(3)}).graph
    (got,) = ours(graph, {"x": randn(3)}, [torch.ones(3, dtype=torch.float64)], ["x"])
    torch.testing.assert_close(
        got, torch.full((3,), 1.001**2500, dtype=torch.float64), rtol=1e-9, atol=0
    )


def test_a_gradient_takes_one_sweep() -> None:
    """The gradient of a layer norm needs two sums, and neither waits for the other."""
    values = {"x": randn(3, 4), "w": randn(4), "b": randn(4)}
    made = gradient(graph_of("layer_norm(x, w, b)", values).graph, ["x", "w", "b"]).graph
    depth: dict[Any, int] = {}
    for node in made.nodes():
        below = max((depth[a] for a in node.args), default=0)
        seeded = node.op.kind is Kind.REDUCTION and any("grad_" in n.name for n in _inputs(node))
        depth[node] = below + seeded
    assert max(depth[o.node] for o in made.outputs) == 1


def _inputs(node: Any) -> list[Any]:
    found, stack, seen = [], [node], set()
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        stack.extend(current.args)
        if current.op.name == "input":
            found.append(current)
    return found
