"""A graph as LaTeX, for people: user names kept, one line for each named or often used value.

Precedence is a level from 0 (needs parentheses everywhere) to 4 (an atom). May import ``fusec.ir``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from fusec.ir.graph import Graph
from fusec.ir.node import Node
from fusec.ir.ops import Kind
from fusec.ir.text import number_text

_COMPARE, _SUM, _PRODUCT, _POWER, _ATOM = range(5)
_LONG = 160  # characters of a formula that get a line of their own
_WORTH_A_NAME = 40  # and of one that is used twice

# Template and level of the result, then the least level of each argument that needs no parentheses.
_FORMS: Mapping[str, tuple[str, int, tuple[int, ...]]] = MappingProxyType(
    {
        "add": ("{0} + {1}", _SUM, (_SUM, _SUM)),
        "sub": ("{0} - {1}", _SUM, (_SUM, _PRODUCT)),
        "mul": (r"{0} \, {1}", _PRODUCT, (_PRODUCT, _PRODUCT)),
        "div": (r"\frac{{{0}}}{{{1}}}", _PRODUCT, (_COMPARE, _COMPARE)),
        "floor_divide": (
            r"\left\lfloor \frac{{{0}}}{{{1}}} \right\rfloor", _ATOM, (_COMPARE, _COMPARE),
        ),
        "remainder": (r"{0} \bmod {1}", _PRODUCT, (_POWER, _POWER)),
        "pow": ("{{{0}}}^{{{1}}}", _POWER, (_ATOM, _COMPARE)),
        "neg": ("-{0}", _SUM, (_PRODUCT,)),
        "abs": (r"\left| {0} \right|", _ATOM, (_COMPARE,)),
        "sqrt": (r"\sqrt{{{0}}}", _ATOM, (_COMPARE,)),
        "rsqrt": (r"\frac{{1}}{{\sqrt{{{0}}}}}", _PRODUCT, (_COMPARE,)),
        "exp": ("e^{{{0}}}", _POWER, (_COMPARE,)),
        "exp2": ("2^{{{0}}}", _POWER, (_COMPARE,)),
        "floor": (r"\left\lfloor {0} \right\rfloor", _ATOM, (_COMPARE,)),
        "ceil": (r"\left\lceil {0} \right\rceil", _ATOM, (_COMPARE,)),
        "lt": ("{0} < {1}", _COMPARE, (_SUM, _SUM)),
        "le": (r"{0} \le {1}", _COMPARE, (_SUM, _SUM)),
        "gt": ("{0} > {1}", _COMPARE, (_SUM, _SUM)),
        "ge": (r"{0} \ge {1}", _COMPARE, (_SUM, _SUM)),
        "eq": ("{0} = {1}", _COMPARE, (_SUM, _SUM)),
        "ne": (r"{0} \ne {1}", _COMPARE, (_SUM, _SUM)),
        "bit_and": (r"{0} \land {1}", _COMPARE, (_SUM, _SUM)),
        "bit_or": (r"{0} \lor {1}", _COMPARE, (_SUM, _SUM)),
        "bit_xor": (r"{0} \oplus {1}", _COMPARE, (_SUM, _SUM)),
        "bit_not": (r"\lnot {0}", _POWER, (_POWER,)),
        "where": (
            r"\begin{{cases}} {1} & \text{{if }} {0} \\ {2} & \text{{otherwise}} \end{{cases}}",
            _SUM, (_COMPARE, _COMPARE, _COMPARE),
        ),
        "gather": ("{0}_{{{1}}}", _ATOM, (_ATOM, _COMPARE)),
    }
)  # fmt: skip
_BY_NAME = ("log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "max", "min")
_FUNCTIONS = {name: rf"\{name}" for name in _BY_NAME}
_FUNCTIONS |= {"maximum": r"\max", "minimum": r"\min", "asin": r"\arcsin", "acos": r"\arccos"}
_FUNCTIONS |= {"atan": r"\arctan", "log2": r"\log_2", "log10": r"\log_{10}"}
_LETTERS = """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho
sigma tau upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"""
_GREEK = frozenset(_LETTERS.split())
_SHORT = MappingProxyType({"eps": r"\epsilon"})


def latex(graph: Graph) -> str:
    """``graph`` as one equation, or as an ``aligned`` block with an equation for each named
    value.
    """
    lines = list(_equations(graph))
    if len(lines) == 1:
        return "{} = {}".format(*lines[0])
    body = " \\\\\n".join(f"{name} &= {text}" for name, text in lines)
    return f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"


def latex_name(name: str) -> str:
    """A name as mathematics writes it: ``mu`` the letter, ``x_max`` and ``w1`` with an index, long
    names upright.
    """
    head, _, rest = name.partition("_")
    if not rest and (digits := re.fullmatch(r"([^\W\d_]+)(\d+)", name)):
        head, rest = digits.groups()
    if not head or (name.endswith("_") and not rest):
        return rf"\mathrm{{{_escaped(name)}}}"
    if head in _GREEK or head in _SHORT:
        head = _SHORT.get(head, f"\\{head}")
    elif len(head) > 1:
        return rf"\mathrm{{{_escaped(name)}}}"
    if not rest:
        return head
    return (
        f"{head}_{{{rest}}}"
        if len(rest) == 1 or rest.isdigit()
        else rf"{head}_{{\mathrm{{{_escaped(rest)}}}}}"
    )


def _escaped(text: str) -> str:
    return text.replace("_", r"\_")


def _equations(graph: Graph) -> Iterator[tuple[str, str]]:
    """Name and text of each line, in the order they build on each other."""
    nodes = graph.nodes()
    uses = Counter(a for node in nodes for a in node.args)
    outputs = {o.node: o.name for o in graph.outputs}
    texts: dict[Node, tuple[str, int]] = {}
    temporaries = 0
    for node in nodes:
        text, level = _text(node, texts)
        texts[node] = (text, level)
        if node.op.kind is Kind.LEAF:
            continue
        name = graph.side.names.get(node)
        long = len(text) > (_WORTH_A_NAME if uses[node] > 1 else _LONG)
        if node in outputs and uses[node]:
            name = outputs[node]
        if (name is None and not long) or (node in outputs and not uses[node]):
            continue
        temporaries += name is None
        symbol = latex_name(name) if name is not None else f"t_{{{temporaries}}}"
        texts[node] = (symbol, _ATOM)
        yield symbol, text
    for output in graph.outputs:
        symbol, text = latex_name(output.name), texts[output.node][0]
        if symbol != text or output.node.op.kind is Kind.LEAF:
            yield symbol, text


def _text(node: Node, texts: Mapping[Node, tuple[str, int]]) -> tuple[str, int]:
    """The formula of ``node`` over those of its arguments, and its level."""
    name = node.op.name
    if name in ("input", "constant", "index", "size"):
        return _leaf(node)
    if (mean := _mean_of(node)) is not None:
        return rf"\operatorname{{mean}}{_axes(mean)}\left( {texts[mean.args[0]][0]} \right)", _ATOM
    if name == "cast":
        source = node.args[0].dtype
        if not node.dtype.is_float or node.dtype.bits >= source.bits or not source.is_float:
            return texts[node.args[0]]  # a promotion
        return rf"\operatorname{{{node.dtype.name}}}\left( {texts[node.args[0]][0]} \right)", _ATOM
    if name in _FORMS:
        template, level, least = _FORMS[name]
        parts = [_wrapped(*texts[a], at_least=n) for a, n in zip(node.args, least, strict=True)]
        return template.format(*parts), level
    function = _FUNCTIONS.get(name, rf"\operatorname{{{_escaped(name)}}}")
    if node.op.kind is Kind.REDUCTION:
        function += _axes(node)
    return rf"{function}\left( {', '.join(texts[a][0] for a in node.args)} \right)", _ATOM


def _wrapped(text: str, level: int, at_least: int) -> str:
    return text if level >= at_least else rf"\left( {text} \right)"


def _leaf(node: Node) -> tuple[str, int]:
    name = node.op.name
    if name == "input":
        return latex_name(node.name), _ATOM
    if name == "constant":
        return _number(node)
    letter = "n" if name == "size" else "i"
    return f"{letter}_{{{node.attribute('axis')}}}", _ATOM


def _number(node: Node) -> tuple[str, int]:
    if node.dtype.is_bool:
        return rf"\mathrm{{{str(node.value).lower()}}}", _ATOM
    text = number_text(node.value, node.dtype).removesuffix(".0")
    level = _SUM if text.startswith("-") else _ATOM
    if "inf" in text:
        return text.replace("inf", r"\infty"), level
    if text == "nan":
        return r"\mathrm{NaN}", _ATOM
    digits, _, exponent = text.partition("e")
    if not exponent:
        return text, level
    power = f"10^{{{int(exponent)}}}"
    return (power, _POWER) if digits == "1" else (rf"{digits} \cdot {power}", min(level, _PRODUCT))


def _axes(node: Node) -> str:
    """The axes as an index, where they are not just the last."""
    return "" if node.axes == (-1,) else f"_{{{', '.join(map(str, node.axes))}}}"


def _mean_of(node: Node) -> Node | None:
    """The sum that ``node`` divides by the length of its axis."""
    if node.op.name != "div" or node.args[0].op.name != "sum":
        return None
    count = node.args[1]
    while count.op.name == "cast":
        count = count.args[0]
    total = node.args[0]
    if count.op.name == "size" and total.axes == (count.attribute("axis"),):
        return total
    return None
