"""Syntax tree to Graph: names, shapes, types, broadcasting, reductions, gathers; all semantic
errors are raised here.

``free_names`` and ``check`` need no shapes and serve ``fusec.compile``; ``resolve`` runs for each
new pattern of types and shapes. It walks the tree with a stack of its own, so depth costs memory
only, and expands functions in place.

May import ``fusec.source``, ``fusec.errors``, ``fusec.ir`` and, of the frontend, ``syntax``,
``parser`` and ``resolve_*``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fusec.frontend.resolve_names import check, free_names, index_names, output_names
from fusec.frontend.resolve_place import Frame, Place
from fusec.frontend.resolve_values import Tensor, all_axes, axes_of
from fusec.frontend.resolve_walk import Walker
from fusec.frontend.syntax import Assign, Expression, FunctionDef, Program
from fusec.ir.graph import Graph, InputSpec, Output
from fusec.ir.node import Dim, Extent, TensorType, make
from fusec.source import Source

__all__ = ["Resolved", "check", "free_names", "output_names", "resolve"]


@dataclass(frozen=True, slots=True)
class Resolved:
    """A graph, and the pairs of lengths that broadcasting took to be equal.

    The first of a pair stands for both in the graph.
    """

    graph: Graph
    equal: tuple[tuple[Dim, Dim], ...]


def resolve(
    source: Source,
    program: Program,
    specs: tuple[InputSpec, ...],
    *,
    keepdim: bool = False,
    sizes: Mapping[Dim, int] | None = None,
) -> Resolved:
    """The graph of a formula for inputs of these types and shapes.

    Extents are a Dim of its own for each axis, or 1. With ``sizes``, lengths that must be equal and
    are not raise ShapeError; without, they are assumed to be equal. Every such pair is in
    ``equal``, to be checked at later calls. Also raises UnknownNameError, DTypeError and
    UnsupportedError. ``keepdim`` keeps reduced axes in the outputs.
    """
    positions = index_names(program)
    place = _Pass(source, program, specs, sizes, positions)
    outputs = place.run(keepdim)
    if place.place.equal:  # again, so that equal lengths have one name everywhere
        first = place.place
        specs = tuple(replace(s, shape=tuple(_canonical(e, first) for e in s.shape)) for s in specs)
        place = _Pass(source, program, specs, sizes, positions)
        outputs = place.run(keepdim)
        place.place.equal = first.equal
    state = place.place
    graph = Graph(specs, outputs, state.side, source, tuple(state.nonempty.values()))
    return Resolved(graph, tuple(state.equal))


def _canonical(extent: Extent, place: Place) -> Extent:
    return place.canonical(extent) if isinstance(extent, Dim) else extent


class _Pass:
    """One walk over the program."""

    def __init__(
        self,
        source: Source,
        program: Program,
        specs: tuple[InputSpec, ...],
        sizes: Mapping[Dim, int] | None,
        positions: frozenset[str],
    ) -> None:
        self.program = program
        self.inputs = {spec.name for spec in specs}
        self.place = Place(source, sizes)
        self.walker = Walker(self.place, specs, positions)
        self.frame = Frame({spec.name: _input(spec) for spec in specs})

    def run(self, keepdim: bool) -> tuple[Output, ...]:
        for statement in self.program.statements:
            if isinstance(statement, FunctionDef):
                self._define(statement)
            else:
                self._assign(statement)
        results = zip(output_names(self.program, self.inputs), self.program.result, strict=True)
        return tuple(self._output(name, expression, keepdim) for name, expression in results)

    def _define(self, statement: FunctionDef) -> None:
        self.walker.define(statement, self.frame)

    def _assign(self, statement: Assign) -> None:
        value = self.walker.evaluate(statement.value, self.frame)
        self.frame.values[statement.name] = value
        if isinstance(value, Tensor) and value.node.op.name not in ("input", "constant"):
            self.place.side.note(value.node, name=statement.name)

    def _output(self, name: str, expression: Expression, keepdim: bool) -> Output:
        tensor = self.walker.result(expression, self.frame)
        squeeze = () if keepdim else axes_of(tensor.reduced)
        return Output(name, tensor.node, squeeze)


def _input(spec: InputSpec) -> Tensor:
    type = TensorType(spec.dtype, spec.shape)
    node = make("input", (), type, name=spec.name, unsqueezed=0, scalar=spec.scalar)
    priority = 2 if spec.scalar else 0 if spec.shape else 1
    return Tensor(node, priority, all_axes(len(spec.shape)))
