"""Every row of the rule table, by its tag: `exact` in bits, `accurate` in ulp, `real` by
algebra.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from fusec.ir.dtypes import DType
from fusec.ir.evaluate import evaluate
from fusec.ir.graph import Graph
from fusec.ir.node import TensorType, make
from fusec.ir.verify import verify
from fusec.passes.algebra import to_sympy
from fusec.passes.rewrite import Rule
from fusec.passes.rules import ACCURATE, EXACT, REAL, RULES
from tests.passes.instances import Instance, instances, torch_of_numbers

TORCH = torch_of_numbers()
RANDOM = 256  # random values beside the special ones
# The largest error in ulp that a form of `accurate` may have, or that of the form it replaces.
ULP = 3.0


def by_name(rule: Rule) -> str:
    return rule.name


def specials(dtype: DType) -> list[float]:
    if dtype.is_bool:
        return [0, 1]
    if dtype.is_integer:
        low, high = int(dtype.minimum), int(dtype.maximum)
        return [v for v in (low, low + 1, -3, -1, 0, 1, 2, 7, high - 1, high) if low <= v <= high]
    info = torch.finfo(getattr(torch, dtype.torch))
    small = [info.tiny / 4, info.smallest_normal, info.max]
    ordinary = [0.0, 0.5, 1.0, 1.5, 2.0, 3.25, float("inf")]
    return [float("nan"), *(s * v for v in ordinary + small for s in (1, -1))]


def tensors(instance: Instance, values: Any = specials) -> dict[str, torch.Tensor]:
    """All combinations of special values of the inputs, then random ones; columns are cut out of
    rows.
    """
    nodes = instance.inputs
    columns = list(zip(*itertools.product(*(values(n.dtype) for n in nodes.values())), strict=True))
    generator = torch.Generator().manual_seed(1)
    made = {}
    for (name, node), column in zip(nodes.items(), columns, strict=True):
        storage = getattr(torch, node.dtype.torch)
        special = torch.tensor(column, dtype=torch.float64 if node.dtype.is_float else torch.int64)
        noise = random_values(node.dtype, generator) if values is specials else special[:0]
        data = torch.cat([special, noise]).to(storage)
        rows = data.reshape(-1, 1) if len(node.shape) == 2 else data
        if len(node.shape) == 2 and node.shape[1] != 1:
            rows = rows[: len(rows) // 4 * 4].reshape(-1, 4)
        made[name] = rows
    return made


def random_values(dtype: DType, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_float:
        exponent = torch.rand(RANDOM, generator=generator, dtype=torch.float64) * 60 - 30
        return torch.randn(RANDOM, generator=generator, dtype=torch.float64) * 2.0**exponent
    if dtype.is_bool:
        return torch.randint(0, 2, (RANDOM,), generator=generator)
    return torch.randint(-(2**62), 2**62, (RANDOM,), generator=generator)


def bits(value: torch.Tensor) -> torch.Tensor:
    """The bits of ``value``, those of one NaN for every NaN."""
    if not value.is_floating_point():
        return value
    return torch.where(value.isnan(), torch.nan, value).view(
        torch.int64 if value.dtype == torch.float64 else torch.int32
    )


def run(graph: Graph, inputs: dict[str, torch.Tensor], precision: str | None = None) -> Any:
    return evaluate(graph, inputs, TORCH, precision)[0]


def test_names_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=by_name)
def test_every_rule_applies_somewhere_and_gives_a_legal_graph(rule: Rule) -> None:
    found = list(instances(rule))
    assert found, "no type at which the rule applies"
    for instance in found[:50]:
        assert instance.after.dtype is instance.before.dtype
        for graph in instance.graphs():
            verify(graph)


@pytest.mark.parametrize("rule", EXACT, ids=by_name)
def test_exact_rules_keep_every_bit(rule: Rule) -> None:
    for instance in instances(rule):
        before, after = instance.graphs()
        inputs = tensors(instance)
        expected = bits(run(before, inputs))
        actual = bits(run(after, inputs)).expand(expected.shape)
        wrong = (expected != actual).nonzero()
        assert not len(wrong), report(instance, inputs, before, after, wrong[0])


def report(
    instance: Instance, inputs: dict[str, torch.Tensor], before: Graph, after: Graph, at: Any
) -> str:
    types = {name: node.dtype for name, node in instance.inputs.items()}
    values = {name: t[at[0]].tolist() for name, t in inputs.items()}
    old, new = (run(g, inputs).expand(run(before, inputs).shape) for g in (before, after))
    return f"{types} {values} {instance.literals}: {old[tuple(at)]} became {new[tuple(at)]}"


@pytest.mark.parametrize("rule", ACCURATE, ids=by_name)
def test_accurate_rules_keep_special_values_and_the_size_of_the_error(rule: Rule) -> None:
    for instance in instances(rule):
        before, after = instance.graphs()
        inputs = tensors(instance)
        old, new = run(before, inputs), run(after, inputs)
        assert not (new.isnan() & ~old.isnan()).any()
        # inf * (1 + tanh(-20)) is NaN only because the second factor has rounded to 0.
        assert new[old.isnan() & ~new.isnan()].isinf().all()
        assert "gate" in rule.name or torch.equal(old.isnan(), new.isnan())
        finite = run(after, inputs, "float64").abs() <= torch.finfo(old.dtype).max
        both = ~finite & ~old.isnan()
        assert torch.equal(old[both], new[both])
        assert torch.isfinite(new[finite & torch.isfinite(old)]).all()
        if instance.before.dtype.bits == 64:
            continue  # no wider type to measure against
        inputs = tensors(instance, grid)
        # In float64 the new form of 1 + tanh is the accurate one; the algebra is checked below.
        truth = run(after, inputs, "float64")
        least = torch.finfo(torch.float32).smallest_normal
        ulp = torch.maximum(truth.abs(), torch.tensor(least)) * 2.0**-23
        off = [((run(g, inputs) - truth).abs() / ulp)[truth.isfinite()] for g in (before, after)]
        errors = [o.max().item() for o in off]
        assert errors[1] <= max(errors[0], ULP)


def grid(dtype: DType) -> list[float]:
    points: list[float] = torch.linspace(-9, 9, 300).tolist()
    return points


REDUCING = ("sum-scaled", "sum-of-neg", "sum-of-one")
# Its constant is the float32 nearest to sqrt(1/2), so it is no identity of real numbers: the bound
# on the error above is what holds it.
ROUNDED = ("erf-gate-narrow", "erf-gate-last-narrow", "erf-half-narrow")
# Differs from the truth by less than 1e-17 above a limit, which is no identity for sympy either.
LIMITED = ("tanh-softplus", "tanh-log1pexp", "log1pexp")


@pytest.mark.parametrize(
    "rule", [r for r in (*ACCURATE, *REAL) if r.name not in ROUNDED], ids=by_name
)
def test_rules_hold_for_real_numbers(rule: Rule) -> None:
    """In float64, at values where nothing overflows or cancels."""
    for instance in instances(rule):
        if not instance.before.dtype.is_float:
            continue
        before, after = instance.graphs()
        inputs = tensors(instance, lambda dtype: [0.5, 0.75, 1.25, 1.5, 2.0, 2.5, 0.625, 1.0])
        expected, actual = (run(g, inputs, "float64") for g in (before, after))
        assert torch.allclose(actual, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "rule",
    [r for r in (*ACCURATE, *REAL) if r.name not in REDUCING + ROUNDED + LIMITED],
    ids=by_name,
)
def test_sympy_agrees(rule: Rule) -> None:
    import sympy

    instance = next(i for i in instances(rule) if i.before.dtype.is_float)
    before, after = (to_sympy(g, positive=True) for g in instance.graphs())
    assert sympy.simplify((before - after).rewrite(sympy.exp)) == 0


def test_a_rounded_value_is_told_from_one_that_is_not() -> None:
    """bf16(a * b) rounds, though its operand has the type already."""
    rule = next(r for r in EXACT if r.name == "cast-same")
    instance = next(i for i in instances(rule) if i.before.dtype.name == "bf16")
    (x,) = instance.inputs.values()
    square = make("mul", (x, x), x.type)
    rounded = make("cast", (square,), TensorType(x.dtype, x.shape))
    from fusec.passes.rewrite import RuleSet

    assert list(RuleSet([rule]).replacements(rounded)) == []
