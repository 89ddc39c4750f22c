"""Gradients that are better taken of several ops at once, and sums along axes as few sweeps.

The chain rule over single ops is right for real numbers, but ``1 / (1 + exp(-x))`` gives 0 times
infinity where ``exp`` overflows, and the maximum that a softmax subtracts gets a gradient that is
always 0. So a sigmoid, a softmax, its logarithm and a logsumexp are recognised by their shape,
whoever wrote them. May import ``fusec.ir``, ``passes/expressions.py`` and
``passes/idioms.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from fusec.ir.node import Node, Shape, constant
from fusec.ir.ops import Kind
from fusec.passes.expressions import Expression, Words, lengths, reduce
from fusec.passes.idioms import summed

Parts: TypeAlias = "list[tuple[Node, Expression]]"
_MOST_TERMS = 64  # that the sum of a gradient is split into, and factors of each


def gate(node: Node, g: Expression) -> Parts | None:
    """``a / (1 + exp(u))``: the sigmoid of ``-u`` times ``a``. Finite where ``exp`` overflows.

    Times ``exp(u)`` it is the sigmoid of ``u`` times ``a``, as the gradient of ``log1p(exp(u))``
    has it: the derivatives of its two factors cancel where ``exp`` is large.
    """
    if node.op.name == "mul":
        return _odds(node, g)
    e = _exponential(node)
    if e is None:
        return None
    a, below = node.args
    y = Expression(node)
    s = y if _is_one(a) else 1 / Expression(below)
    return [(a, g * s), (e.args[0], -(g * (y * (1 - s))))]


def _odds(node: Node, g: Expression) -> Parts | None:
    """``a / (1 + exp(u)) * exp(u)``."""
    for quotient, e in (node.args, node.args[::-1]):
        if e.op.name == "exp" and _exponential(quotient) is e:
            a, below = quotient.args
            s = 1 / Expression(below)
            return [(a, g * (s * Expression(e))), (e.args[0], g * (Expression(node) * s))]
    return None


def _exponential(node: Node) -> Node | None:
    """``exp(u)``, if ``node`` is something divided by one more than that."""
    if node.op.name != "div" or node.args[1].op.name != "add":
        return None
    first, second = node.args[1].args
    one, e = (first, second) if _is_one(first) else (second, first)
    return e if _is_one(one) and e.op.name == "exp" else None


def of_rows(node: Node, g: Expression) -> Parts | None:
    """The gradients that ``g`` of a softmax, log-softmax or logsumexp gives to what it is of; None
    where ``node`` is none.
    """
    for rule in _RULES.get(node.op.name, ()):
        found = rule(node, g)
        if found is not None:
            return found
    return None


def _softmax(node: Node, g: Expression) -> Parts | None:
    """``e / sum(e)`` or ``e * (1 / sum(e))`` of ``e = exp(d)``."""
    found = _normalised(node)
    if found is None or found[0].op.name != "exp":
        return None
    e, total = found
    y = Expression(node)
    weighted = Expression(reduce("sum", (g * y).node, total.axes))
    return [(_unshifted(e.args[0], total.axes), y * (g - weighted))]


def _normalised(node: Node) -> tuple[Node, Node] | None:
    """``e`` and ``sum(e)``, if ``node`` divides the one by the other."""
    pairs = [node.args] if node.op.name == "div" else []
    if node.op.name == "mul":
        pairs = [
            (e, r.args[1])
            for e, r in (node.args, node.args[::-1])
            if r.op.name == "div" and _is_one(r.args[0])
        ]
    for e, total in pairs:
        if total.op.name == "sum" and total.args[0] is e:
            return e, total
    return None


def _log_softmax(node: Node, g: Expression) -> Parts | None:
    """``d - log(sum(exp(d)))``."""
    d, log = node.args
    total = _log_sum_exp(log, d)
    if total is None:
        return None
    y = Expression(node)
    part = g - Words().exp(y) * sum_over(g, node.shape, total.axes)
    return [(_unshifted(d, total.axes), part)]


def _logsumexp(node: Node, g: Expression) -> Parts | None:
    """``log(sum(exp(x - m))) + m``, which depends on ``x`` alone."""
    for log, m in (node.args, node.args[::-1]):
        total = _log_sum_exp(log, None)
        if total is None:
            continue
        d = total.args[0].args[0]
        if d.op.name != "sub" or d.args[1] is not m or not _is_constant(m, total.axes):
            continue
        return [(d.args[0], g * Words().exp(Expression(d.args[0]) - Expression(node)))]
    return None


def _log_sum_exp(log: Node, d: Node | None) -> Node | None:
    """The sum in ``log(sum(exp(d)))``; any ``d`` where none is given."""
    if log.op.name != "log" or log.args[0].op.name != "sum":
        return None
    total = log.args[0]
    e = total.args[0]
    return total if e.op.name == "exp" and (d is None or e.args[0] is d) else None


def _unshifted(d: Node, axes: tuple[int, ...]) -> Node:
    """``x`` of ``d = x - m``, where a shift of all along ``axes`` changes nothing."""
    while d.op.name == "sub" and _is_constant(d.args[1], axes) and d.args[0].shape == d.shape:
        d = d.args[0]
    return d


def _is_one(node: Node) -> bool:
    return node.op.name == "constant" and node.value == 1


def _is_constant(node: Node, axes: Iterable[int]) -> bool:
    """Whether ``node`` has one value along ``axes``."""
    return all(-a > len(node.shape) or node.shape[a] == 1 for a in axes)


_RULES: dict[str, tuple[Callable[[Node, Expression], Parts | None], ...]] = {
    "div": (_softmax,),
    "mul": (_softmax,),
    "sub": (_log_softmax,),
    "add": (_logsumexp,),
}


def sum_over(value: Expression, space: Shape, axes: Iterable[int]) -> Expression:
    """The sum over ``axes`` of a gradient of something of shape ``space``.

    Where the gradient is narrower, the same number is added again and again.
    """
    rank = len(space)
    shape = (1,) * (rank - len(value.node.shape)) + value.node.shape
    wide = [a for a in axes if space[a] != 1]
    repeated = [(a, space[a]) for a in wide if shape[a] == 1]
    if repeated:
        value = value * lengths(repeated, value.node.dtype)
    return _sum(value, tuple(sorted(a for a in wide if shape[a] != 1)))


def _sum(value: Expression, axes: tuple[int, ...]) -> Expression:
    """The sum along axes that ``value`` spans, as what one sweep over them can give.

    Terms that hold results of reductions (the gradient of a variance in that of a mean) are summed
    one by one, with what is constant along the axes in front: these sums wait for nothing. The sum
    of deviations from their mean is 0 and left out.
    """
    if not axes:
        return value
    terms = [(_factors(node, axes), sign) for node, sign in _terms(value.node)]
    if not any(f.op.kind is not Kind.LEAF for (_, outer), _ in terms for f, _ in outer):
        return Expression(reduce("sum", value.node, axes))
    total = Expression(constant(0, value.node.dtype))
    started = False
    for (inner, outer), sign in terms:
        if len(inner) == 1 and _is_deviation(inner[0], axes):
            continue
        part = _scaled(inner, outer, value.node, axes)
        part = part if sign > 0 else -part
        total, started = total + part if started else part, True
    return total


def _terms(node: Node) -> Iterator[tuple[Node, int]]:
    """What a sum of gradients is the sum of, with signs; the whole where there are too many."""
    found: list[tuple[Node, int]] = []
    stack = [(node, 1)]
    while stack:
        current, sign = stack.pop()
        if len(found) + len(stack) > _MOST_TERMS:
            return iter([(node, 1)])
        if current.op.name == "neg":
            stack.append((current.args[0], -sign))
        elif current.op.name in ("add", "sub"):
            a, b = current.args
            stack += [(b, sign if current.op.name == "add" else -sign), (a, sign)]
        else:
            found.append((current, sign))
    return iter(found)


Factors: TypeAlias = "tuple[list[Node], list[tuple[Node, bool]]]"


def _factors(node: Node, axes: tuple[int, ...]) -> Factors:
    """The factors of a product that vary along ``axes``, and those that do not, each with whether
    it divides.
    """
    inner: list[Node] = []
    outer: list[tuple[Node, bool]] = []
    stack = [node]
    while stack:
        current = stack.pop()
        if len(inner) + len(outer) + len(stack) > _MOST_TERMS:
            return [node], []
        if _is_constant(current, axes):
            outer.append((current, False))
        elif current.op.name == "mul":
            stack += current.args[::-1]
        elif current.op.name == "div" and _is_constant(current.args[1], axes):
            outer.append((current.args[1], True))
            stack.append(current.args[0])
        else:
            inner.append(current)
    return inner, outer


def _scaled(
    inner: list[Node], outer: list[tuple[Node, bool]], whole: Node, axes: tuple[int, ...]
) -> Expression:
    """The sum of the product of ``inner`` along ``axes``, times what is constant there."""
    missing = [(a, whole.shape[a]) for a in axes]
    if inner:
        product = Expression(inner[0])
        for factor in inner[1:]:
            product = product * Expression(factor)
        shape = product.node.shape
        missing = [(a, e) for a, e in missing if -a > len(shape) or shape[a] == 1]
        total = Expression(reduce("sum", product.node, axes))
    else:
        total = Expression(constant(1, whole.dtype))
    if missing:
        total = total * lengths(missing, whole.dtype)
    for factor, divides in outer:
        total = total / Expression(factor) if divides else total * Expression(factor)
    return total


def _is_deviation(node: Node, axes: tuple[int, ...]) -> bool:
    """Whether ``node`` is ``x - mean(x)`` along ``axes``."""
    if node.op.name != "sub":
        return False
    x, m = node.args
    total = m if m.op.name == "mean" else summed(m)
    return total is not None and total.args[0] is x and total.axes == axes
