"""A Graph as the PyTorch program that a person would have written for it, one call per operation.

This is what measurements call *eager*, what ``torch.compile`` is given, and, over float64 inputs,
the reference for errors. The text is plain Python that needs ``torch`` and nothing else. May import
the ir; torch only where the text is run.
"""

from __future__ import annotations

import builtins
import itertools
import keyword
import linecache
from collections.abc import Callable
from dataclasses import dataclass

from fusec.ir import dtypes
from fusec.ir.graph import Graph, without_twins
from fusec.ir.node import Dim, Node
from fusec.ir.ops import Kind, Rule
from fusec.ir.text import number_text

# Names that a program's surroundings use, in the process that measures a first call.
_SURROUNDINGS = ("cuda", "fusec", "inf", "nan", "native", "result", "start", "synchronize", "sys")
_RESERVED = frozenset(
    ("torch", "time", *_SURROUNDINGS, *keyword.kwlist, *keyword.softkwlist, *dir(builtins))
)
_LONGEST = 90  # characters of an expression that is written in place where it is used once
# What Python calls an operator of the language where the two differ.
_PYTHON_SYMBOLS = {"^": "**"}
_files = itertools.count()


@dataclass(frozen=True)
class TorchProgram:
    """``function(*inputs)`` in the order of the Graph's inputs, and its text."""

    function: Callable[..., object]
    text: str
    name: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class _Value:
    """The text of a value: ``number`` if Python computes it, ``compound`` if it has operators."""

    text: str
    number: bool = False
    compound: bool = False

    @property
    def operand(self) -> str:
        """The text as an operand of an operator or of an attribute access."""
        return f"({self.text})" if self.compound else self.text


def torch_program(graph: Graph, name: str = "formula") -> TorchProgram:
    """The Graph as a Python function over torch tensors, compiled from its text."""
    text, parameters = torch_source(graph, name)
    file = f"<eager {next(_files)}>"
    code = compile(text, file, "exec")
    import torch

    namespace: dict[str, object] = {"torch": torch}
    exec(code, namespace)
    # torch.compile and tracebacks look for the text of a function here.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    function = namespace[name]
    assert callable(function)
    return TorchProgram(function, text, name, parameters)


def torch_source(graph: Graph, name: str = "formula") -> tuple[str, tuple[str, ...]]:
    """The text of the function, and its parameters in the order of the Graph's inputs."""
    graph = without_twins(graph)
    writer = _Writer(graph, name)
    for node in graph.nodes():
        writer.add(node)
    results = [writer.result(o.node, o.squeeze) for o in graph.outputs]
    lines = [
        f"def {name}({', '.join(writer.parameters.values())}):",
        *(f"    {line}" for line in writer.lines),
        f"    return {', '.join(results)}",
    ]
    return "\n".join(lines) + "\n", tuple(writer.parameters.values())


class _Writer:
    """Goes over the nodes, arguments first, and collects statements and the text of each value."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph = graph
        self.lines: list[str] = []
        self.values: dict[Node, _Value] = {}
        self.taken = {name}
        self.parameters = {spec.name: self.unique(spec.name) for spec in graph.inputs}
        self.users: dict[Node, list[Node | None]] = {}  # None stands for the caller
        for node in graph.nodes():
            for argument in node.args:
                self.users.setdefault(argument, []).append(node)
        for output in graph.outputs:
            self.users.setdefault(output.node, []).append(None)

    def unique(self, wanted: str) -> str:
        """A Python name that nothing else has."""
        name = wanted
        while name in _RESERVED or name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def add(self, node: Node) -> None:
        """Write a node: in place when it is short and used once, else as a statement."""
        value = self.value(node)
        trivial = node.op.kind is Kind.LEAF and not node.args
        alone = len(self.users[node]) == 1 and len(value.text) <= _LONGEST
        if not (trivial or alone or value.text.isidentifier()):
            name = self.unique(self.graph.side.names.get(node) or f"t{len(self.lines)}")
            self.lines.append(f"{name} = {value.text}")
            value = _Value(name, value.number)
        self.values[node] = value

    def result(self, node: Node, squeeze: tuple[int, ...]) -> str:
        """The text of an output, without the axes that the caller does not see."""
        value = self.values[node]
        if value.number:
            value = self.as_tensor(node, value)
        if not squeeze:
            return value.text
        return f"{value.operand}.squeeze({squeeze[0] if len(squeeze) == 1 else squeeze})"

    def value(self, node: Node) -> _Value:
        match node.op.name:
            case "input":
                return self.input(node)
            case "constant":
                return _number(node)
            case "index":
                return self.index(node)
            case "size":
                return _Value(self.length(node.attribute("dim")), number=True)
            case "gather":
                source, position = (self.values[a] for a in node.args)
                return _Value(f"torch.take_along_dim({source.text}, {position.operand}.long(), -1)")
            case "cast":
                return self.cast(node)
            case "where":
                return self.where(node)
        if node.op.kind is Kind.REDUCTION:
            return self.reduction(node)
        return self.operation(node)

    def input(self, node: Node) -> _Value:
        name = self.parameters[node.name]
        spec = self.graph.input_named(node.name)
        unsqueezed = node.attribute("unsqueezed")
        assert isinstance(unsqueezed, int)
        return _Value(name + ".unsqueeze(-1)" * unsqueezed, number=spec.scalar)

    def index(self, node: Node) -> _Value:
        axis = node.attribute("axis")
        assert isinstance(axis, int)
        positions = f"torch.arange({self.length(node.attribute('dim'))}, device={self.device()})"
        return _Value(positions + ".unsqueeze(-1)" * (-axis - 1))

    def length(self, dim: object) -> str:
        """The text of the length that has this name."""
        for spec in self.graph.inputs:
            for axis, extent in enumerate(spec.shape):
                if isinstance(extent, Dim) and extent.name == dim:
                    return f"{self.parameters[spec.name]}.shape[{axis - len(spec.shape)}]"
        raise AssertionError(f"no input has the length {dim}")

    def device(self) -> str:
        tensors = [s.name for s in self.graph.inputs if not s.scalar]
        return f"{self.parameters[tensors[0]]}.device" if tensors else '"cpu"'

    def cast(self, node: Node) -> _Value:
        """A cast that promotion makes anyway is left out; the rest is ``.to``."""
        (argument,) = node.args
        value = self.values[argument]
        if value.number or argument.dtype is node.dtype or self.promotes(argument, node):
            return value
        return _Value(f"{value.operand}.to(torch.{node.dtype.torch})")

    def promotes(self, argument: Node, cast: Node) -> bool:
        """Whether PyTorch's own promotion makes the cast at every place it is used."""
        if argument.dtype.is_float and argument.dtype.bits == 8:
            return False  # PyTorch does not compute on 8-bit floats
        return all(
            user is not None and _promotes_in(user, argument, cast) for user in self.users[cast]
        )

    def where(self, node: Node) -> _Value:
        condition, left, right = (self.values[a] for a in node.args)
        if condition.number:
            condition = self.as_tensor(node.args[0], condition)
        if left.number and right.number:
            left = self.as_tensor(node.args[1], left)
        return _Value(f"torch.where({condition.text}, {left.text}, {right.text})")

    def reduction(self, node: Node) -> _Value:
        (argument,) = node.args
        value = self.values[argument]
        if value.number:
            value = self.as_tensor(argument, value)
        if node.op.name != "prod":
            axes = str(node.axes[0]) if len(node.axes) == 1 else str(node.axes)
            return _Value(f"torch.{node.op.torch}({value.text}, {axes}, keepdim=True)")
        text = value.text  # torch.prod takes one axis at a time
        for axis in node.axes:
            text = f"torch.prod({text}, {axis}, keepdim=True)"
        return _Value(text)

    def operation(self, node: Node) -> _Value:
        """An elementwise operation: an operator of Python where there is one, else a call."""
        values = [self.values[a] for a in node.args]
        symbol = _PYTHON_SYMBOLS.get(node.op.symbol or "", node.op.symbol)
        all_numbers = all(v.number for v in values)
        if symbol is not None and len(values) == 2 and not (all_numbers and symbol not in "+-*"):
            text = f"{values[0].operand} {symbol} {values[1].operand}"
            return _Value(text, number=all_numbers, compound=True)
        if symbol is not None and len(values) == 1 and not (all_numbers and symbol != "-"):
            return _Value(f"{symbol}{values[0].operand}", number=all_numbers, compound=True)
        if node.op.name in ("maximum", "minimum") and all_numbers and node.dtype.is_integer:
            call = f"{node.op.name[:3]}({values[0].text}, {values[1].text})"
            return _Value(call, number=True)
        if node.op.name in ("maximum", "minimum") and any(v.number for v in values[1:]):
            bound = "min" if node.op.name == "maximum" else "max"
            first = values[0] if not values[0].number else self.as_tensor(node.args[0], values[0])
            return _Value(f"torch.clamp({first.text}, {bound}={values[1].text})")
        return self.call(node, values)

    def call(self, node: Node, values: list[_Value]) -> _Value:
        assert isinstance(node.op.torch, str), f"{node.op.name} has no name in PyTorch"
        # Functions of one tensor and a number exist for these; the others want tensors alone.
        takes_number = node.op.name in ("fmod", "copysign", "pow", "div", "remainder")
        arguments = [
            self.as_tensor(a, v).text if v.number and not (takes_number and i) else v.text
            for i, (a, v) in enumerate(zip(node.args, values, strict=True))
        ]
        return _Value(f"torch.{node.op.torch}({', '.join(arguments)})")

    def as_tensor(self, node: Node, value: _Value) -> _Value:
        dtype = f"torch.{node.dtype.torch}"
        return _Value(f"torch.tensor({value.text}, dtype={dtype}, device={self.device()})")


def _promotes_in(user: Node, argument: Node, cast: Node) -> bool:
    """Whether PyTorch gives the type of ``cast`` to ``argument`` in ``user`` without being told."""
    if user.op.kind is not Kind.ELEMENTWISE:
        return False
    whole = argument.dtype.category < dtypes.Category.FLOAT
    if len(user.args) == 1:
        # Float functions of integers; PyTorch has no others that convert by themselves.
        return cast.dtype is dtypes.F32 and whole and user.op.rule is Rule.FLOAT
    if user.op.name == "div" and whole and cast.dtype is dtypes.F32:
        return True
    # A tensor with dimensions of the wider type decides, and nothing that is a number does.
    others = [a for a in user.args if a.op.kind is not Kind.LEAF or a.op.name == "input"]
    return any(
        (other.dtype is cast.dtype and _joins(argument, other)) or (whole and other.dtype.is_float)
        for other in others
        if other is not cast and other.shape
    )


def _joins(argument: Node, other: Node) -> bool:
    operands = [dtypes.Operand(argument.dtype), dtypes.Operand(other.dtype)]
    return dtypes.promote(operands) is other.dtype


def _number(node: Node) -> _Value:
    value = node.value
    if value != value or value in (float("inf"), float("-inf")):
        return _Value(f'float("{value}")', number=True)
    if node.dtype.is_bool:
        return _Value(str(bool(value)), number=True)
    return _Value(number_text(value, node.dtype), number=True, compound=value < 0)
