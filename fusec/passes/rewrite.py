"""Rewriting of graphs by rules: a pattern language, the rule record, the driver to the fixpoint.

Patterns are written as expressions: ``x * 1`` matches a product with one, ``exp(log(x))`` nested
calls. Afterwards no rule of the set applies anywhere that keeps a node's shape. Nothing here
recurses over a graph, only over a pattern.

>>> x = variable("x")
>>> rule = Rule("times-one", x * 1, x, "exact", why="1 is neutral")
>>> RuleSet([rule]).size
2

May import ``fusec.errors`` and ``fusec.ir``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, TypeAlias

from fusec.errors import InternalError
from fusec.ir.dtypes import BOOL, DType
from fusec.ir.graph import Graph, remake, substitute_outputs
from fusec.ir.node import Node, TensorType, broadcast, constant, make
from fusec.ir.ops import OPS, Kind, Op
from fusec.ir.ops import Rule as TypeRule

Soundness: TypeAlias = Literal["exact", "accurate", "real"]
PatternLike: TypeAlias = "Pattern | int | float | bool"

COMMUTATIVE = frozenset(
    {"add", "mul", "maximum", "minimum", "bit_and", "bit_or", "bit_xor", "eq", "ne"}
)
_STEPS_PER_NODE = 64


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """A shape of expression; operators build larger ones. Variables and numbers compare by
    identity.
    """

    def __add__(self, other: PatternLike) -> Pattern:
        return apply("add", self, other)

    def __radd__(self, other: PatternLike) -> Pattern:
        return apply("add", other, self)

    def __sub__(self, other: PatternLike) -> Pattern:
        return apply("sub", self, other)

    def __rsub__(self, other: PatternLike) -> Pattern:
        return apply("sub", other, self)

    def __mul__(self, other: PatternLike) -> Pattern:
        return apply("mul", self, other)

    def __rmul__(self, other: PatternLike) -> Pattern:
        return apply("mul", other, self)

    def __truediv__(self, other: PatternLike) -> Pattern:
        return apply("div", self, other)

    def __rtruediv__(self, other: PatternLike) -> Pattern:
        return apply("div", other, self)

    def __pow__(self, other: PatternLike) -> Pattern:
        return apply("pow", self, other)

    def __rpow__(self, other: PatternLike) -> Pattern:
        return apply("pow", other, self)

    def __neg__(self) -> Pattern:
        return apply("neg", self)


@dataclass(frozen=True, slots=True, eq=False)
class Variable(Pattern):
    """Any node, the same one wherever the name occurs; ``literal`` asks for a constant."""

    name: str
    literal: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Number(Pattern):
    """The constant of this value in the type at hand; 0 is +0.0, and -0.0 is another."""

    value: int | float | bool


@dataclass(frozen=True, slots=True)
class Apply(Pattern):
    """An op on patterns. In a result a cast and a reduction take type and axes from the node they
    replace.
    """

    op: Op
    args: tuple[Pattern, ...]


def variable(name: str) -> Variable:
    """A pattern for any node."""
    return Variable(name)


def literal(name: str) -> Variable:
    """A pattern for any constant."""
    return Variable(name, literal=True)


def apply(op: str, *args: PatternLike) -> Pattern:
    """The pattern of ``op`` on ``args``; KeyError if there is no such op."""
    return Apply(OPS[op], tuple(a if isinstance(a, Pattern) else Number(a) for a in args))


@dataclass(frozen=True, slots=True)
class Match:
    """A node that a pattern fits, and what each variable stands for."""

    root: Node
    bindings: dict[str, Node]

    def __getitem__(self, name: str) -> Node:
        return self.bindings[name]

    def value(self, name: str) -> int | float | bool:
        """The value of a literal."""
        return self.bindings[name].value


@dataclass(frozen=True, slots=True)
class Rule:
    """One rewriting; ``soundness`` says what it keeps.

    ``exact``: every bit of every result, NaN (whose payload is not compared), infinities and the
    sign of zero included. ``accurate``: special values, and an error of the same size as before.
    ``real``: only the algebra of real numbers.
    """

    name: str
    pattern: Pattern
    result: Pattern | Callable[[Match], Node | None]
    soundness: Soundness
    condition: Callable[[Match], bool] | None = None
    why: str = ""
    ordered: bool = False  # commutative ops of the pattern match in the written order only

    def replacement(self, match: Match) -> Node | None:
        """What ``match.root`` becomes, or None where the condition fails."""
        if self.condition is not None and not self.condition(match):
            return None
        if isinstance(self.result, Pattern):
            return build(self.result, match, match.root.dtype)
        return self.result(match)


def build(pattern: Pattern, match: Match, dtype: DType) -> Node:
    """The node of type ``dtype`` that ``pattern`` describes for the bindings of ``match``."""
    if isinstance(pattern, Variable):
        return match[pattern.name]
    if isinstance(pattern, Number):
        return _constant(pattern, dtype)
    assert isinstance(pattern, Apply)
    op = pattern.op
    if op.kind is Kind.REDUCTION:
        axes = match.root.axes
        (arg,) = (build(a, match, dtype) for a in pattern.args)
        shape = tuple(
            1 if i - len(arg.shape) in axes else extent for i, extent in enumerate(arg.shape)
        )
        return make(op, (arg,), TensorType(dtype, shape), axes=axes)
    wanted = [dtype] * op.arity
    if op.rule is TypeRule.BOOL or op.name == "cast":
        wanted = [_operand_type(pattern, match, dtype)] * op.arity
    elif op.rule is TypeRule.SELECT:
        wanted[0] = BOOL
    args = tuple(build(a, match, t) for a, t in zip(pattern.args, wanted, strict=True))
    return make(op, args, TensorType(dtype, broadcast(a.shape for a in args)))


def _operand_type(pattern: Apply, match: Match, dtype: DType) -> DType:
    """The type of the operands of a comparison or cast: that of the first variable among them."""
    named = [a for a in pattern.args if isinstance(a, Variable)]
    return match[named[0].name].dtype if named else dtype


@cache
def _constant(number: Number, dtype: DType) -> Node:
    return constant(number.value, dtype)


def fits(pattern: Pattern, node: Node, bindings: dict[str, Node]) -> bool:
    """Whether ``node`` has the shape of ``pattern``; adds to ``bindings``, which a failure leaves
    half filled.
    """
    if isinstance(pattern, Variable):
        if pattern.literal and node.op.name != "constant":
            return False
        return bindings.setdefault(pattern.name, node) is node
    if isinstance(pattern, Number):
        return node.op.name == "constant" and _constant(pattern, node.dtype) is node
    assert isinstance(pattern, Apply)
    if pattern.op is not node.op:
        return False
    return all(fits(p, a, bindings) for p, a in zip(pattern.args, node.args, strict=True))


class RuleSet:
    """Rules, indexed by the op of a node and the ops of its arguments."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._variants = [
            (r, p) for r in self.rules for p in ([r.pattern] if r.ordered else _orders(r.pattern))
        ]
        self._known: dict[tuple[str, ...], list[tuple[Rule, Pattern]]] = {}

    @property
    def size(self) -> int:
        """How many patterns there are once each commutative one is written both ways."""
        return len(self._variants)

    def candidates(self, node: Node) -> list[tuple[Rule, Pattern]]:
        """The rules whose outermost two levels have the ops of ``node``, in the order of the
        table.
        """
        key = (node.op.name, *[a.op.name for a in node.args])
        found = self._known.get(key)
        if found is None:
            found = [(r, p) for r, p in self._variants if _could_fit(p, node)]
            self._known[key] = found
        return found

    def replacements(self, node: Node) -> Iterable[tuple[Rule, Node]]:
        """What each rule that applies makes of ``node``, first come first."""
        for rule, pattern in self.candidates(node):
            match = Match(node, {})
            if fits(pattern, node, match.bindings):
                result = rule.replacement(match)
                if result is not None and result is not node:
                    yield rule, result


def _orders(pattern: Pattern) -> list[Pattern]:
    """``pattern`` with the arguments of commutative ops in every order."""
    if not isinstance(pattern, Apply):
        return [pattern]
    choices = list(itertools.product(*(_orders(a) for a in pattern.args)))
    if pattern.op.name in COMMUTATIVE:
        choices += [args[::-1] for args in choices]
    return list(dict.fromkeys(Apply(pattern.op, args) for args in choices))


def _could_fit(pattern: Pattern, node: Node) -> bool:
    if not isinstance(pattern, Apply):
        return True
    if pattern.op is not node.op:
        return False
    return all(_head_fits(p, a) for p, a in zip(pattern.args, node.args, strict=True))


def _head_fits(pattern: Pattern, node: Node) -> bool:
    """Whether the outermost op fits, the value of a constant aside."""
    if isinstance(pattern, Apply):
        return pattern.op is node.op
    if isinstance(pattern, Number) or (isinstance(pattern, Variable) and pattern.literal):
        return node.op.name == "constant"
    return True


@dataclass(slots=True)
class _Driver:
    """One run over one graph: ``settled`` maps a node to its final form.

    A rule may give a node of smaller shape that broadcasts to the old one (``x^0`` is the number
    1). Such a result cannot stand in for the node itself, so it waits in ``narrow`` until a user
    has its shape from another argument.
    """

    graph: Graph
    rules: RuleSet
    fold: Callable[[Node], Node | None]
    budget: int
    settled: dict[Node, Node] = field(default_factory=dict)
    forward: dict[Node, Node] = field(default_factory=dict)
    narrow: dict[Node, Node] = field(default_factory=dict)

    def settle(self, root: Node) -> Node:
        """The final form of ``root``, arguments first; iterative."""
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self.settled:
                stack.pop()
                continue
            pending = [a for a in node.args if a not in self.settled]
            if pending:
                stack.extend(reversed(pending))
                continue
            target = self.target(node)
            if target is node or target in self.settled:
                self.finish(node, target)
                stack.pop()
            else:
                self.spend(node)
                stack.append(target)
        return self.settled[root]

    def finish(self, node: Node, target: Node) -> None:
        final = node if target is node else self.settled[target]
        self.settled[node] = final
        self.graph.side.carry(node, final)
        if node in self.narrow:
            self.narrow.setdefault(final, self.narrow[node])

    def target(self, node: Node) -> Node:
        """The next form of ``node``, whose arguments are settled; itself when it is final."""
        if node in self.forward:
            return self.forward[node]
        args = tuple(self.settled[a] for a in node.args)
        result = node if args == node.args else remake(node, args)
        if result is node:
            result = self.step(node)
        self.forward[node] = result
        return result

    def spend(self, node: Node) -> None:
        self.budget -= 1
        if self.budget < 0:
            raise InternalError(
                f"the rewriting rules do not come to an end at {node!r}", source=self.graph.source
            )

    def step(self, node: Node) -> Node:
        """``node`` after the first thing that applies: folding, an argument narrowed, a rule."""
        folded = self.fold(node)
        if folded is not None and self.accepts(node, folded, "folding"):
            return folded
        narrowed = self.with_narrow_arguments(node) if self.narrow else node
        if narrowed is not node:
            return narrowed
        for rule, result in self.rules.replacements(node):
            if self.accepts(node, result, rule.name):
                return result
        return node

    def accepts(self, node: Node, result: Node, what: str) -> bool:
        """Whether ``result`` can stand for ``node``; remembers it where it is merely narrower.

        A 16-bit operation may have a float32 operand: it cannot stand for the result, which users
        and outputs know by its type.
        """
        if result.dtype is not node.dtype:
            if result.dtype.compute is node.dtype.compute:
                return False
            raise InternalError(f"{what} made {result!r} of {node!r}", source=self.graph.source)
        if result.shape == node.shape:
            return True
        self.narrow.setdefault(node, result)
        return False

    def with_narrow_arguments(self, node: Node) -> Node:
        """``node`` over narrower arguments as far as its own shape allows."""
        elementwise = node.op.kind is Kind.ELEMENTWISE or node.op.name == "cast"
        if not elementwise or not any(a in self.narrow for a in node.args):
            return node
        args = [self.narrow.get(a, a) for a in node.args]
        shape = broadcast(a.shape for a in args)
        if shape != node.shape:
            self.narrow.setdefault(
                node, make(node.op, args, TensorType(node.dtype, shape), **dict(node.attributes))
            )
            args = list(node.args)
            for i, arg in enumerate(node.args):
                args[i] = self.narrow.get(arg, arg)
                if broadcast(a.shape for a in args) != node.shape:
                    args[i] = arg
        return remake(node, tuple(args))


def rewrite(
    graph: Graph,
    rules: RuleSet | Sequence[Rule],
    fold: Callable[[Node], Node | None] = lambda node: None,
) -> Graph:
    """``graph`` with ``fold`` and the rules applied, bottom up, until none changes anything.

    Spans and names go along. InternalError if rules undo each other without end.
    """
    chosen = rules if isinstance(rules, RuleSet) else RuleSet(rules)
    nodes = graph.nodes()
    driver = _Driver(graph, chosen, fold, budget=_STEPS_PER_NODE * (len(nodes) + 1))
    settled = {output.node: driver.settle(output.node) for output in graph.outputs}
    return substitute_outputs(graph, settled)
