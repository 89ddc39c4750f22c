"""Hypothesis strategy for random typed graphs, made without the frontend."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fusec.ir import dtypes
from fusec.ir.dtypes import DType
from fusec.ir.graph import Graph, InputSpec, Output, SideTable
from fusec.ir.node import Dim, Node, Shape, TensorType, broadcast, constant, make
from fusec.ir.ops import Rule, elementwise, reductions
from fusec.source import Source


def numbers(dtype: DType) -> st.SearchStrategy[float | bool]:
    """Any value of a type: NaN, infinities, both zeros and subnormal floats included."""
    if dtype.is_float:
        return st.floats(width=64 if dtype.bits == 64 else 32)
    if dtype.is_bool:
        return st.booleans()
    return st.integers(int(dtype.minimum), int(dtype.maximum))


@st.composite
def graphs(draw: Any, max_nodes: int = 20) -> Graph:
    """Well-typed graphs, made without the frontend: every type, and every op that its type rule
    allows.
    """
    shape: Shape = (Dim("x.0"), Dim("x.1"))
    names = draw(
        st.lists(st.sampled_from(["x", "mu", "inf", "a b", "名"]), min_size=1, unique=True)
    )
    pool: list[Node] = []
    inputs: list[InputSpec] = []
    for name in names:
        dtype = draw(st.sampled_from(dtypes.ALL))
        own = draw(st.sampled_from([shape, shape[1:], (1, shape[1]), ()]))
        inputs.append(InputSpec(name, dtype, own))
        pool.append(
            make("input", (), TensorType(dtype, own), name=name, unsqueezed=0, scalar=False)
        )
    for _ in range(draw(st.integers(0, max_nodes))):
        pool.append(draw(_node(pool)))
    side = SideTable()
    side.note(pool[-1], name="last")
    results = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))
    outputs = tuple(Output(f"out{i}", node, ()) for i, node in enumerate(results))
    return Graph(tuple(inputs), outputs, side, Source(""))


@st.composite
def _node(draw: Any, pool: list[Node]) -> Node:
    node = draw(st.sampled_from(pool))
    dtype = node.dtype
    form = draw(st.sampled_from(["constant", "cast", "reduce", "elementwise", "elementwise"]))
    if form == "constant":
        return constant(draw(numbers(dtype)), dtype)
    if form == "cast":
        return make("cast", (node,), TensorType(draw(st.sampled_from(dtypes.ALL)), node.shape))
    if form == "reduce" and node.shape:
        kept = (*node.shape[:-1], 1)
        op = draw(st.sampled_from(reductions()))
        return make(op, (node,), TensorType(dtype, kept), axes=(-1,))
    same = [other for other in pool if other.dtype is dtype]
    op = draw(st.sampled_from([o for o in elementwise() if o.rule is not Rule.SELECT]))
    args = tuple(draw(st.sampled_from(same)) for _ in range(op.arity))
    result = dtypes.BOOL if op.rule is Rule.BOOL else dtype
    return make(op, args, TensorType(result, broadcast(a.shape for a in args)))
