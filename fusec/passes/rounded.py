"""Which results a gradient may read although they are rounded when they are stored.

The forward program uses a value before it is rounded to 16 bits, and so should the gradient. One
that only multiplies by it, as those of ``exp``, ``tanh`` and a softmax do by their results, changes
no more than rounding itself changes it. Where the value is an exponent, or something like it is
taken away from it, every digit may be wrong. May import ``fusec.ir``, ``passes/grad.py`` and
``passes/rules.py``.
"""

from __future__ import annotations

from enum import IntEnum

from fusec.ir.graph import Graph
from fusec.ir.node import Node
from fusec.ir.ops import Kind
from fusec.passes.grad import own_uses
from fusec.passes.rules import is_rounded

_CHOOSING = ("max", "min", "maximum", "minimum", "abs", "neg")
_SCALING = ("mul", "div", "neg", "abs", "sqrt", "rsqrt", "cast", "maximum", "minimum", "where",
            "gather", "copysign")  # fmt: skip
_EXPONENTIAL = ("exp", "exp2", "expm1", "sinh", "cosh")
_COMPARING = ("eq", "ne", "lt", "le", "gt", "ge")


class Harm(IntEnum):
    """What a gradient suffers from a rounded value: nothing beyond its own rounding, some error
    where terms cancel, or any error.
    """

    NONE = 0
    SOME = 1
    ANY = 2


def is_exact(node: Node) -> bool:
    """Whether the result ``node`` is stored as it is computed."""
    if node.op.name in _CHOOSING:
        return all(is_rounded(a) for a in node.args)
    return is_rounded(node)


class Reading:
    """Who reads what in a gradient that computes everything from the inputs of ``graph``."""

    def __init__(self, graph: Graph, backward: Graph) -> None:
        given = {spec.name for spec in backward.inputs} - {spec.name for spec in graph.inputs}
        self.readers: dict[Node, list[Node]] = {}
        self.moved: set[Node] = set()  # what the gradients of results are in already
        for node in backward.nodes():
            for argument in dict.fromkeys(node.args):
                self.readers.setdefault(argument, []).append(node)
            own = node.op.name == "input" and node.name in given
            if own or any(a in self.moved for a in node.args):
                self.moved.add(node)

    def harm(self, result: Node) -> Harm:
        """What reading ``result`` as it is stored does to the gradient."""
        own = own_uses(result)
        found, seen, stack = Harm.NONE, {result}, [result]
        while stack:
            value = stack.pop()
            for reader in self.readers.get(value, ()):
                if reader in self.moved or reader in own or reader in seen:
                    continue
                seen.add(reader)
                found = max(found, self._harm(reader, value))
                if found is Harm.ANY:
                    return found
                if reader.op.kind is not Kind.REDUCTION:  # which is kept, before it is rounded
                    stack.append(reader)
        return found

    def _harm(self, reader: Node, value: Node) -> Harm:
        """What one operation makes of the error of ``value``."""
        name = reader.op.name
        if name in _SCALING or reader.op.kind is Kind.REDUCTION:
            return Harm.NONE
        if name in _COMPARING:
            return _of_comparison(reader, value)
        if name == "pow":
            return Harm.NONE if _is_number(reader.args[1]) else Harm.ANY
        if name in _EXPONENTIAL:
            return Harm.SOME if self._is_of_sigmoid(reader) else Harm.ANY
        return Harm.SOME

    def _is_of_sigmoid(self, node: Node) -> bool:
        """Whether nothing but ``1 + node`` is asked for, in which a large error is none."""
        readers = self.readers.get(node, ())
        return all(r.op.name == "add" and any(map(_is_number, r.args)) for r in readers)


def _of_comparison(reader: Node, value: Node) -> Harm:
    other = next((a for a in reader.args if a is not value), value)
    if not _is_number(other):
        return Harm.ANY
    return Harm.NONE if other.value == 0 else Harm.SOME


def _is_number(node: Node) -> bool:
    return node.op.name == "constant"
