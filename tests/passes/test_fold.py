"""Constant folding against PyTorch: the same bits, or no folding."""

import itertools
import math

import pytest
import torch

from fusec.ir.dtypes import BF16, BOOL, F8E4M3, F16, F32, F64, I8, I32, I64, U8, DType
from fusec.ir.evaluate import evaluate
from fusec.ir.graph import Graph, Output, SideTable
from fusec.ir.node import Node, TensorType, constant, make
from fusec.ir.ops import Rule, elementwise
from fusec.passes.fold import fold, store_rounded
from fusec.source import Source

FLOATS = [float("nan"), math.inf, -math.inf, 0.0, -0.0, 1.0, -1.5, 0.1, 2.5, -0.5, 3e38, 1e-40]
INTEGERS = [0, 1, -1, 2, 3, -7, 100, 127, -128, 2**31 - 1, -(2**63)]
TYPES = (F64, F32, BF16, F16, I64, I32, I8, U8, BOOL)
NO_BOOLS = ("neg", "abs", "sub", "pow", "floor", "ceil", "trunc", "round", "remainder", "fmod")


def value(node: Node) -> torch.Tensor:
    if node.op.name == "sqrt" and node.dtype is not F64:
        # PyTorch's own, a vector library's, is a unit off on some processors. A root in float64,
        # rounded once more, is the nearest float32.
        return value(node.args[0]).double().sqrt().float()
    if node.dtype in (BF16, F16):
        node = make("cast", (node,), TensorType(F32, ()))
    return evaluate(Graph((), (Output("y", node),), SideTable(), Source("")), {}, torch)[0]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.isnan() or b.isnan():
        return bool(a.isnan() and b.isnan())
    return bool(a == b) and bool(torch.signbit(a) == torch.signbit(b))


def constants(dtype: DType) -> list[Node]:
    values = FLOATS if dtype.is_float else INTEGERS
    return list(dict.fromkeys(constant(v, dtype) for v in values))


@pytest.mark.parametrize("op", [o for o in elementwise() if o.arity < 3], ids=repr)
@pytest.mark.parametrize("dtype", TYPES, ids=repr)
def test_folding_is_what_pytorch_computes(op: object, dtype: DType) -> None:
    rule = op.rule
    if (rule is Rule.FLOAT and not dtype.is_float) or (rule is Rule.BITWISE and dtype.is_float):
        return
    if dtype is BOOL and op.name in (*NO_BOOLS, "floor_divide"):
        return
    result = BOOL if rule is Rule.BOOL else dtype
    for args in itertools.product(constants(dtype), repeat=op.arity):
        node = make(op, args, TensorType(result, ()))
        folded = fold(node)
        if folded is not None:
            assert folded.dtype is result
            assert same(value(folded), value(node)), [a.value for a in args]


@pytest.mark.parametrize("source", TYPES, ids=repr)
@pytest.mark.parametrize("target", TYPES, ids=repr)
def test_casts_round_as_pytorch_does(source: DType, target: DType) -> None:
    for arg in constants(source):
        node = make("cast", (arg,), TensorType(target, ()))
        folded = fold(node)
        if folded is not None:
            assert same(value(folded), value(node)), arg.value


@pytest.mark.parametrize("dtype", [F16, BF16], ids=repr)
def test_sixteen_bits_round_to_nearest_even(dtype: DType) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(2000, generator=generator) * 2.0 ** torch.randint(
        -30, 20, (2000,), generator=generator
    )
    ties = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 65519.0, 65520.0, 2.0**-25])
    for number in torch.cat([drawn, ties]).tolist():
        expected = torch.tensor(number).to(getattr(torch, dtype.torch)).item()
        assert store_rounded(number, dtype) == expected


def test_what_is_not_certain_is_left_alone() -> None:
    one, zero = constant(1.0, F32), constant(0.0, F32)
    for name, args in [
        ("exp", (one,)), ("pow", (one, one)), ("maximum", (zero, constant(-0.0, F32))),
    ]:  # fmt: skip
        assert fold(make(name, args, TensorType(F32, ()))) is None
    for number in (math.inf, math.nan, 300.0):
        assert fold(make("cast", (constant(number, F32),), TensorType(I8, ()))) is None
    assert fold(make("cast", (one,), TensorType(F8E4M3, ()))) is None
    assert (
        fold(make("remainder", (constant(1, I32), constant(0, I32)), TensorType(I32, ()))) is None
    )


def test_selection_of_constants() -> None:
    a, b, yes = constant(1.0, F32), constant(2.0, F32), constant(True, BOOL)
    assert fold(make("where", (yes, a, b), TensorType(F32, ()))) is a
