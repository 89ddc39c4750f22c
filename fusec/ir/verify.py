"""What a legal graph is, as a list of checks.

May import ``fusec.errors`` and ``fusec.ir``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fusec.errors import InternalError
from fusec.ir.dtypes import BOOL, F32, I64, DType
from fusec.ir.graph import Graph, InputSpec
from fusec.ir.node import Dim, Node, broadcast, encode, make
from fusec.ir.ops import Kind, Rule


def verify(graph: Graph) -> None:
    """Raise InternalError, naming the node, where ``graph`` breaks a rule of the IR.

    Arity, attributes, operand types, the result's type and shape, axes, interning, and agreement of
    inputs and outputs with the graph's own tables.
    """
    specs = {spec.name: spec for spec in graph.inputs}
    if len(specs) < len(graph.inputs):
        raise InternalError("two inputs have the same name")
    for node in graph.nodes():
        problem = next(_problems(node, specs), None)
        if problem is not None:
            raise InternalError(f"{node!r}: {problem}")
    names = [output.name for output in graph.outputs]
    if not names or len(set(names)) < len(names):
        raise InternalError(f"outputs must have names of their own, not {names}")
    for output in graph.outputs:
        shape = output.node.shape
        bad = [a for a in output.squeeze if not -len(shape) <= a < 0 or shape[a] != 1]
        if bad or list(output.squeeze) != sorted(set(output.squeeze)):
            raise InternalError(f"output {output.name} {shape} cannot drop {output.squeeze}")
        seen = range(len(shape) - len(output.squeeze))
        if output.order is not None and sorted(output.order) != list(seen):
            raise InternalError(f"output {output.name} {shape} cannot lie as {output.order}")


def _problems(node: Node, specs: dict[str, InputSpec]) -> Iterator[str]:
    if len(node.args) != node.op.arity:
        yield f"{len(node.args)} arguments, not {node.op.arity}"
    if any(e != 1 and not isinstance(e, Dim) for e in node.shape):
        yield f"extents are names or 1, not {node.shape}"
    if make(node.op, node.args, node.type, **dict(node.attributes)) is not node:
        yield "not interned"
    expected = _ATTRIBUTES.get(node.op.name, ("axes",) if node.op.kind is Kind.REDUCTION else ())
    if tuple(name for name, _ in node.attributes) != expected:
        yield f"attributes {node.attributes}, not {expected}"
        return
    if node.op.name == "input":
        yield from _input(node, specs)
    elif node.op.kind is Kind.LEAF:
        yield from _LEAVES[node.op.name](node)
    elif node.op.kind is Kind.REDUCTION:
        yield from _reduction(node)
    else:
        yield from _elementwise(node)


_ATTRIBUTES = {
    "input": ("name", "scalar", "unsqueezed"),
    "constant": ("bits",),
    "index": ("axis", "dim"),
    "size": ("axis", "dim"),
}


def _input(node: Node, specs: dict[str, InputSpec]) -> Iterator[str]:
    spec = specs.get(node.name)
    if spec is None:
        yield f"no input is called {node.name}"
        return
    unsqueezed = node.attribute("unsqueezed")
    if not isinstance(unsqueezed, int) or unsqueezed < 0:
        yield f"unsqueezed is {unsqueezed!r}"
        return
    if node.type.shape != (*spec.shape, *[1] * unsqueezed) or node.dtype is not spec.dtype:
        yield f"the input is {spec.dtype}{list(spec.shape)}, unsqueezed by {unsqueezed}"
    if node.attribute("scalar") != spec.scalar or (spec.scalar and node.shape):
        yield "scalar inputs have no shape, and only they are scalar"


def _constant(node: Node) -> Iterator[str]:
    if node.shape:
        yield "constants have no shape"
    if node.attribute("bits") != encode(node.value, node.dtype):
        yield f"{node.attribute('bits')!r} is no value of {node.dtype}"


def _index(node: Node) -> Iterator[str]:
    axis = node.attribute("axis")
    shape = node.shape
    fits = isinstance(axis, int) and axis < 0 and len(shape) == -axis
    if not fits or any(e != 1 for e in shape[1:]):
        yield f"index({axis}) has its axis first, then 1s"
    elif node.attribute("dim") != str(shape[0]):
        yield "dim is not the name of the axis"
    if node.dtype is not I64:
        yield "positions are i64"


def _size(node: Node) -> Iterator[str]:
    if node.shape or node.dtype is not I64 or not isinstance(node.attribute("dim"), str):
        yield "a size is i64[] with the name of a Dim"


def _cast(node: Node) -> Iterator[str]:
    if node.shape != node.args[0].shape:
        yield "a cast keeps the shape"


def _gather(node: Node) -> Iterator[str]:
    x, t = node.args
    if x.op.name != "input" or not x.shape:
        yield "only inputs are gathered"
    elif not t.dtype.is_integer:
        yield "positions are integers"
    elif t.shape and t.shape[-1] != 1:
        yield "positions have a last axis of length 1"
    elif node.shape != (*broadcast([x.shape[:-1], t.shape[:-1]]), 1) or node.dtype is not x.dtype:
        yield f"x is {x.type}, t is {t.type}"


_LEAVES: dict[str, Callable[[Node], Iterator[str]]] = {
    "constant": _constant,
    "index": _index,
    "size": _size,
    "cast": _cast,
    "gather": _gather,
}


def _reduction(node: Node) -> Iterator[str]:
    (argument,) = node.args
    axes, shape = node.axes, argument.shape
    if not axes or list(axes) != sorted(set(axes)):
        yield f"axes {axes} are not ascending"
    elif not all(-len(shape) <= a < 0 for a in axes):
        yield f"axes {axes} are out of range of {shape}"
    elif node.shape != tuple(1 if i - len(shape) in axes else e for i, e in enumerate(shape)):
        yield f"the shape of {argument!r} without axes {axes} is not {node.shape}"
    if node.dtype is not argument.dtype:
        yield f"a reduction keeps the type, {argument.dtype}"
    if node.op.rule is Rule.ACCUMULATE and not node.dtype.is_float and node.dtype is not I64:
        yield "integers accumulate in i64"


def _elementwise(node: Node) -> Iterator[str]:
    try:
        shape = broadcast(a.shape for a in node.args)
    except ValueError as problem:
        yield f"arguments do not broadcast: {problem}"
        return
    if shape != node.shape:
        yield f"arguments broadcast to {shape}"
    yield from _types(node)


def _types(node: Node) -> Iterator[str]:
    operands = [a.dtype for a in node.args]
    if node.op.rule is Rule.SELECT and operands.pop(0) is not BOOL:
        yield "the condition is not bool"
    if node.op.rule is Rule.BOOL and node.dtype is not BOOL:
        yield "the result is not bool"
    common = _common(operands) if node.op.rule is Rule.BOOL else node.dtype
    if not all(_fits(dtype, common) for dtype in operands):
        yield f"operands are {operands}"
    if common.is_float and common.bits == 8 and node.op.rule is not Rule.SELECT:
        yield "8-bit floats have no arithmetic"
    if node.op.rule is Rule.FLOAT and not common.is_float:
        yield "the result is not a float"
    if node.op.rule is Rule.BITWISE and common.is_float:
        yield "bit operations need integers or bools"


def _common(operands: list[DType]) -> DType:
    """The narrowest operand type: where types differ, the others are its compute type."""
    return min(operands, key=lambda dtype: dtype.bits)


def _fits(operand: DType, common: DType) -> bool:
    """An operand has the type of the operation, or float32 in a 16-bit one."""
    return operand is common or (operand is F32 and common.compute is F32)
