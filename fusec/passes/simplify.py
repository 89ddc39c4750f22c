"""Simplification: folds constants and applies the rules of a numerics mode until nothing changes.

Before: any well-typed graph. After: the same outputs, of the same types and shapes, and no rule of
the mode applies.

>>> from fusec.ir.text import parse_graph, print_graph
>>> text = "%0 = constant 2.0 : f32[]\\n%1 = mul %0, %0 : f32[]\\nreturn y = %1\\n"
>>> print(print_graph(simplify(parse_graph(text))), end="")
%0 = constant 4.0 : f32[]
return y = %0

May import ``fusec.ir``, ``passes/rewrite.py``, ``passes/rules.py`` and ``passes/fold.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Literal, TypeAlias

from fusec.ir.graph import Graph
from fusec.passes.fold import fold
from fusec.passes.rewrite import RuleSet, Soundness, rewrite
from fusec.passes.rules import RULES

Numerics: TypeAlias = Literal["torch", "precise", "fast"]

ALLOWED: Mapping[str, frozenset[Soundness]] = MappingProxyType(
    {
        "precise": frozenset({"exact"}),
        "torch": frozenset({"exact", "accurate"}),
        "fast": frozenset({"exact", "accurate", "real"}),
    }
)


@cache
def rules_for(numerics: Numerics) -> RuleSet:
    """The rules of a mode, in the order of the table; KeyError if there is no such mode."""
    return RuleSet(rule for rule in RULES if rule.soundness in ALLOWED[numerics])


def simplify(graph: Graph, numerics: Numerics = "torch") -> Graph:
    """``graph`` in the simplest form that ``numerics`` allows; spans and names go along.

    ``precise`` keeps every bit, ``torch`` also allows forms that are at least as accurate as the
    one written, ``fast`` the algebra of real numbers.
    """
    return rewrite(graph, rules_for(numerics), fold)
