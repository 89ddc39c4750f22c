"""Graphs that a rule applies to, made from its pattern: every type, types of casts included."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from fusec.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType
from fusec.ir.graph import Graph, InputSpec, Output, SideTable
from fusec.ir.node import Dim, Node, Shape, TensorType, broadcast, constant, make
from fusec.ir.ops import Kind
from fusec.ir.ops import Rule as TypeRule
from fusec.passes.rewrite import Apply, Number, Pattern, Rule, RuleSet, Variable
from fusec.source import Source

TYPES = (F32, F64, BF16, F16, I64, I32, I16, I8, U8, BOOL)
ROWS, COLUMNS = Dim("n.0"), Dim("n.1")
_LITERALS = {"f": (2.0, 3.0, -0.25, 0.7), "i": (3, -2, 64), "b": (True, False)}
_NO_BOOLS = frozenset(
    {
        *("sub", "neg", "abs", "pow", "floor_divide", "remainder", "fmod"),
        *("floor", "ceil", "trunc", "round"),
    }
)


@dataclass(frozen=True)
class Instance:
    """A node that ``rule`` matches, and what it makes of it."""

    rule: Rule
    before: Node
    after: Node
    inputs: dict[str, Node]
    literals: tuple[float, ...]

    def graphs(self, wide: bool = False) -> tuple[Graph, Graph]:
        """Both sides as programs; float results of 16 bits come as the float32 that they are."""
        return self._graph(self.before), self._graph(self.after)

    def _graph(self, node: Node) -> Graph:
        if node.dtype in (BF16, F16):
            node = make("cast", (node,), TensorType(F32, node.shape))
        specs = (InputSpec(n.name, n.dtype, n.shape) for n in self.inputs.values())
        return Graph(tuple(specs), (Output("y", node),), SideTable(), Source(""))


class _NoSuchNodeError(Exception):
    """The pattern has no instance of these types."""


@dataclass
class _Maker:
    """``types`` are those of operands that the result does not tell (of casts and comparisons), in
    order.
    """

    types: Iterator[DType]
    literals: Iterator[float]
    shape: Shape
    made: dict[str, Node] = field(default_factory=dict)

    def node(self, pattern: Pattern, dtype: DType) -> Node:
        if isinstance(pattern, Number):
            return constant(pattern.value, dtype)
        if isinstance(pattern, Variable):
            node = self.made.get(pattern.name) or self.leaf(pattern, dtype)
            self.made[pattern.name] = node
            if node.dtype is not dtype:
                raise _NoSuchNodeError
            return node
        assert isinstance(pattern, Apply)
        return self.apply(pattern, dtype)

    def leaf(self, pattern: Variable, dtype: DType) -> Node:
        if pattern.literal:
            return constant(next(self.literals), dtype)
        return make(
            "input",
            (),
            TensorType(dtype, self.shape),
            name=pattern.name,
            unsqueezed=0,
            scalar=False,
        )

    def apply(self, pattern: Apply, dtype: DType) -> Node:
        op = pattern.op
        _check_type(op.name, op.rule, dtype)
        operands = [dtype] * op.arity
        if op.rule is TypeRule.BOOL or op.name == "cast":
            operands = [next(self.types)] * op.arity
        elif op.rule is TypeRule.SELECT:
            operands[0] = BOOL
        args = tuple(self.node(p, d) for p, d in zip(pattern.args, operands, strict=True))
        if op.kind is Kind.REDUCTION:
            shape = (*args[0].shape[:-1], 1)
            return make(op, args, TensorType(dtype, shape), axes=(-1,))
        return make(op, args, TensorType(dtype, broadcast(a.shape for a in args)))


def _check_type(name: str, rule: TypeRule, dtype: DType) -> None:
    wrong = (
        (rule is TypeRule.BOOL and dtype is not BOOL)
        or (rule is TypeRule.FLOAT and not dtype.is_float)
        or (rule is TypeRule.BITWISE and dtype.is_float)
        or (rule is TypeRule.ACCUMULATE and not dtype.is_float and dtype is not I64)
        or (name in _NO_BOOLS and dtype is BOOL)
    )
    if wrong:
        raise _NoSuchNodeError


def instances(rule: Rule) -> Iterator[Instance]:
    """What ``rule`` applies to, over all types of the result and of operands that it does not
    tell.
    """
    free = _free_types(rule.pattern)
    count = sum(1 for v in _variables(rule.pattern) if v.literal)
    shapes: tuple[Shape, ...] = (
        ((ROWS, COLUMNS), (ROWS, 1)) if _reduces(rule.pattern) else ((ROWS,),)
    )
    alone = RuleSet([rule])
    for dtype in TYPES:
        values = _LITERALS["f" if dtype.is_float else "b" if dtype is BOOL else "i"]
        for types in itertools.product(TYPES, repeat=free):
            for literals in itertools.product(values, repeat=count):
                for shape in shapes:
                    maker = _Maker(iter(types), iter(literals), shape)
                    try:
                        node = maker.node(rule.pattern, dtype)
                    except _NoSuchNodeError:
                        continue
                    inputs = {k: n for k, n in maker.made.items() if n.op.name == "input"}
                    found = [result for _, result in alone.replacements(node)]
                    if found:
                        yield Instance(rule, node, found[0], inputs, literals)


def _parts(pattern: Pattern) -> Iterator[Pattern]:
    yield pattern
    if isinstance(pattern, Apply):
        for arg in pattern.args:
            yield from _parts(arg)


def _free_types(pattern: Pattern) -> int:
    ops = [p.op for p in _parts(pattern) if isinstance(p, Apply)]
    return sum(op.rule is TypeRule.BOOL or op.name == "cast" for op in ops)


def _variables(pattern: Pattern) -> set[Variable]:
    return {p for p in _parts(pattern) if isinstance(p, Variable)}


def _reduces(pattern: Pattern) -> bool:
    return any(isinstance(p, Apply) and p.op.kind is Kind.REDUCTION for p in _parts(pattern))


def torch_of_numbers() -> ModuleType:
    """Torch with a ``pow`` that takes a 0-d operand as a Python number, as ``x**0.5`` in PyTorch
    does.
    """
    import torch

    def power(a: Any, b: Any) -> Any:
        if b.ndim == 0:
            return torch.pow(a, b.item())
        return torch.pow(a.item(), b) if a.ndim == 0 else torch.pow(a, b)

    module = ModuleType("torch_of_numbers")
    module.__dict__.update(torch.__dict__)
    module.__dict__["pow"] = power
    return module
