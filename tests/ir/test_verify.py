"""Each rule of the IR, broken once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusec.errors import InternalError
from fusec.ir.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, DType
from fusec.ir.graph import Graph, InputSpec, Output, SideTable
from fusec.ir.node import Dim, Node, Shape, TensorType, constant, make
from fusec.ir.ops import OPS
from fusec.ir.verify import verify
from fusec.source import Source
from tests.formulas import graph_of

ROWS, COLUMNS, OTHER = Dim("x.0"), Dim("x.1"), Dim("y.0")
SPECS = (
    InputSpec("x", F32, (ROWS, COLUMNS)),
    InputSpec("b", BF16, (ROWS, COLUMNS)),
    InputSpec("y", F32, (OTHER,)),
    InputSpec("t", I32, (ROWS,)),
    InputSpec("h", F64, (), scalar=True),
)


def leaf(name: str, unsqueezed: int = 0, dtype: DType | None = None) -> Node:
    spec = next(s for s in SPECS if s.name == name)
    shape = (*spec.shape, *[1] * unsqueezed)
    type = TensorType(dtype or spec.dtype, shape)
    return make("input", (), type, name=name, unsqueezed=unsqueezed, scalar=spec.scalar)


X, B, Y, T = leaf("x"), leaf("b"), leaf("y"), leaf("t", 1)
WHOLE: Shape = (ROWS, COLUMNS)
KEPT: Shape = (ROWS, 1)


def graph(node: Node, squeeze: tuple[int, ...] = ()) -> Graph:
    return Graph(SPECS, (Output("out", node, squeeze),), SideTable(), Source("x"))


def of(op: str, args: tuple[Node, ...], dtype: DType, shape: Shape, **attributes: object) -> Node:
    return make(op, args, TensorType(dtype, shape), **attributes)


H32 = of("cast", (leaf("h"),), F32, ())

LEGAL = [
    of("mul", (X, X), F32, WHOLE),
    of("mul", (B, H32), BF16, WHOLE),  # an operand may come in the compute type
    of("lt", (B, H32), BOOL, WHOLE),
    of("sum", (X,), F32, KEPT, axes=(-1,)),
    of("gather", (X, T), F32, KEPT),
    of("index", (), I64, (ROWS, 1), axis=-2, dim="x.0"),
    of("cast", (B,), BF16, WHOLE),
]
ILLEGAL = [
    (of("mul", (X,), F32, WHOLE), "1 arguments, not 2"),
    (of("mul", (X, X), F32, KEPT), "arguments broadcast to"),
    (of("add", (X, Y), F32, WHOLE), "do not broadcast"),
    (of("mul", (X, B), F32, WHOLE), "operands are"),
    (of("mul", (B, leaf("h")), BF16, WHOLE), "operands are"),
    (of("lt", (X, X), F32, WHOLE), "the result is not bool"),
    (of("lt", (B, of("cast", (B,), F16, WHOLE)), BOOL, WHOLE), "operands are"),
    (of("exp", (T,), I32, KEPT), "the result is not a float"),
    (of("bit_and", (X, X), F32, WHOLE), "bit operations need"),
    (of("where", (X, X, X), F32, WHOLE), "the condition is not bool"),
    (of("exp", (X,), F32, (ROWS, 7)), "extents are names or 1"),
    (of("exp", (X,), F32, WHOLE, axes=(-1,)), "attributes"),
    (of("sum", (X,), F32, KEPT), "attributes"),
    (of("sum", (X,), F32, KEPT, axes=()), "are not ascending"),
    (of("sum", (X,), F32, (1, 1), axes=(-1, -2)), "are not ascending"),
    (of("sum", (X,), F32, KEPT, axes=(-3,)), "out of range"),
    (of("sum", (X,), F32, WHOLE, axes=(-1,)), "without axes"),
    (of("sum", (X,), F64, KEPT, axes=(-1,)), "keeps the type"),
    (of("sum", (T,), I32, (1, 1), axes=(-2,)), "accumulate in i64"),
    (of("cast", (X,), F16, KEPT), "keeps the shape"),
    (of("gather", (of("exp", (X,), F32, WHOLE), T), F32, KEPT), "only inputs"),
    (of("gather", (X, X), F32, KEPT), "positions are integers"),
    (of("gather", (X, T), F16, KEPT), "x is"),
    (of("index", (), I64, (ROWS,), axis=-2, dim="x.0"), "has its axis first"),
    (of("index", (), I64, (ROWS,), axis=-1, dim="x.1"), "dim is not"),
    (of("index", (), I32, (ROWS,), axis=-1, dim="x.0"), "positions are i64"),
    (of("size", (), I32, (), axis=-1, dim="x.0"), "a size is i64"),
    (leaf("x", dtype=F16), "the input is"),
    (of("input", (), F32, (), name="z", unsqueezed=0, scalar=False), "no input is called z"),
    (of("constant", (), F32, KEPT, bits=constant(1.0, F32).attribute("bits")), "have no shape"),
]


@pytest.mark.parametrize("node", LEGAL, ids=lambda n: n.op.name)
def test_legal(node: Node) -> None:
    verify(graph(node))


@pytest.mark.parametrize(
    ("node", "problem"), ILLEGAL, ids=lambda p: p if isinstance(p, str) else ""
)
def test_illegal(node: Node, problem: str) -> None:
    with pytest.raises(InternalError, match=problem):
        verify(graph(node))


def test_nodes_must_be_interned() -> None:
    stranger = Node(OPS["exp"], (X,), (), TensorType(F32, WHOLE))
    with pytest.raises(InternalError, match="not interned"):
        make("exp", (X,), TensorType(F32, WHOLE)), verify(graph(stranger))


def test_outputs() -> None:
    with pytest.raises(InternalError, match="cannot drop"):
        verify(graph(X, squeeze=(-1,)))
    good = graph_of("sum(x), x", {"x": torch.zeros(2, 3)}).graph
    with pytest.raises(InternalError, match="names of their own"):
        verify(replace(good, outputs=(good.outputs[0], good.outputs[0])))
    across = replace(good.outputs[1], order=(1, 0))
    verify(replace(good, outputs=(across,)))
    for order in ((0,), (1, 1), (2, 0), (-1, 0)):
        with pytest.raises(InternalError, match="cannot lie as"):
            verify(replace(good, outputs=(replace(across, order=order),)))
    with pytest.raises(InternalError, match="the same name"):
        verify(replace(good, inputs=good.inputs * 2))
