"""What a traced function returns: outputs of the graph, views of arguments, and constants.

May import ``fusec.source``, ``fusec.errors``, ``fusec.ir`` and, of the frontend, ``resolve`` and
the ``trace_*`` modules but ``trace`` itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fusec.errors import UnsupportedError
from fusec.frontend.resolve import Resolved
from fusec.frontend.trace_convert import Converter
from fusec.frontend.trace_joined import Joined
from fusec.frontend.trace_layout import axes_in_memory
from fusec.frontend.trace_place import TracePlace
from fusec.frontend.trace_record import Owner, Tape
from fusec.frontend.trace_reshaped import in_two, merged_axis
from fusec.frontend.trace_values import Traced
from fusec.frontend.trace_views import Length, Step, View, Views
from fusec.ir.graph import Graph, InputSpec, Output
from fusec.ir.node import Dim, toposort
from fusec.source import Source


@dataclass(frozen=True, slots=True)
class Whole:
    """A concatenation: its lengths, how its axes lie in memory, outermost first, the name of its
    type in torch, and for each part the slices that lead to its place, and what belongs there.
    """

    lengths: tuple[Length, ...]
    order: tuple[int, ...] | None
    dtype: str
    parts: tuple[tuple[tuple[Step, ...], Result], ...]


@dataclass(frozen=True, slots=True)
class Result:
    """One value that the function returns: output ``output`` of the graph, or ``argument``, under
    ``steps``; a ``whole`` of such outputs; a number of type ``kind`` over lengths and floats of the
    call (``length``); or a ``constant``.
    """

    output: int | None = None
    argument: int | None = None
    length: Length = None
    kind: type = int
    constant: Any = None
    steps: tuple[Step, ...] = ()
    whole: Whole | None = None


@dataclass(slots=True)
class Results:
    """Collects what is returned. ``captured`` are tensors of variables, numbered from ``first``;
    ``joins`` are the tensors in parts, by their ids. ``shapes`` has the lengths of each output.
    """

    convert: Converter
    tape: Tape
    owner: Owner
    captured: Sequence[Any]
    first: int
    joins: Mapping[int, Joined] = field(default_factory=dict)
    found: list[Result] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    shapes: list[tuple[Length, ...]] = field(default_factory=list)

    def add(self, value: Any) -> None:
        """One leaf of what the function returned."""
        import torch

        if isinstance(value, torch.Tensor):
            self.found.append(self._tensor(value))
            return
        node = getattr(value, "node", None)
        if node is None:
            self.found.append(Result(constant=value))
        else:
            self.found.append(Result(length=node.expr, kind=node.pytype))

    def _tensor(self, tensor: Any) -> Result:
        joined = self.joins.get(id(tensor))
        if joined is not None:
            return self._whole(joined)
        value = self.convert.values.get(id(tensor))
        if value is None:
            return Result(argument=self._returned(tensor))
        if self.owner.argument(tensor) is not None and value.node.op.name == "input":
            view = self.convert.views.views[value.node.name]
            return Result(argument=view.argument, steps=_alias_steps(view, value))
        return self._output(tensor, self._name(tensor))

    def _whole(self, joined: Joined) -> Result:
        """A concatenation, each of whose parts is an output."""
        length = self.convert.length
        if joined.before is not None:
            step = Step("reshape", tuple(map(length, joined.whole.shape)))
            return replace(self._whole(joined.before), steps=(step,))
        whole = joined.whole
        order = axes_in_memory(whole, range(whole.dim()))
        parts = []
        for tensor, slices in self._parts(joined, ()):
            parts.append((slices, self._output(tensor, self._name(whole))))
        dtype = self.convert.dtype(whole.dtype).torch
        lengths = tuple(map(length, whole.shape))
        return Result(whole=Whole(lengths, order, dtype, tuple(parts)))

    def _parts(
        self, joined: Joined, slices: tuple[Step, ...]
    ) -> Iterator[tuple[Any, tuple[Step, ...]]]:
        """Every part that is a tensor, with the slices of the whole that lead to its place."""
        axis = joined.axis - joined.whole.dim()
        for piece in joined.pieces:
            end = piece.start + piece.tensor.shape[axis] * piece.step
            bounds = self.convert.length(piece.start), self.convert.length(end)
            own = (*slices, Step("slice", (axis, *bounds, piece.step)))
            inner = self.joins.get(id(piece.tensor))
            if inner is not None:
                yield from self._parts(inner, own)
            else:
                yield piece.tensor, own

    def _output(self, tensor: Any, name: str) -> Result:
        value = self.convert.values[id(tensor)]
        self.outputs.append(Output(name, value.value, value.hidden, _order(tensor, value)))
        pairs = [(k, n) for k, n in enumerate(value.lengths) if value.axes[k] is not None]
        self.shapes.append(tuple(1 if value.is_expanded(k) else n for k, n in pairs))
        return Result(output=len(self.outputs) - 1, steps=_steps_behind(value))

    def _returned(self, tensor: Any) -> int:
        """The number of a captured tensor that the function returns as it is."""
        for offset, known in enumerate(self.captured):
            if known is tensor:
                return self.first + offset
        message = "the function returns a tensor that it did not compute"
        if self.tape.last is None:
            raise UnsupportedError(message)
        raise self.tape.last.error(UnsupportedError, message)

    def _name(self, tensor: Any) -> str:
        wanted = self.tape.names.get(id(tensor), "out")
        views = self.convert.views.views
        taken = {*views, *(o.name for o in self.outputs)}
        wanted = "out" if wanted in views or not wanted.isidentifier() else wanted
        name, serial = wanted, 1
        while name in taken:
            name, serial = f"{wanted}_{serial}", serial + 1
        return name


def _order(tensor: Any, value: Traced) -> tuple[int, ...] | None:
    """How PyTorch lays out the kernel's result: row by row if it is reshaped or spread then, unless
    that makes one axis of two.
    """
    present = [k for k, a in enumerate(value.axes) if a is not None]
    expanded = any(value.is_expanded(k) for k in range(len(value.axes)))
    merged = merged_axis(value) if value.after else None
    if merged is not None and not expanded and len(present) == len(value.axes):
        above = axes_in_memory(tensor, range(len(present) - 1))
        return None if above is None else tuple(in_two(above, merged))
    if value.after or expanded:
        return tuple(range(len(present)))
    return axes_in_memory(tensor, present)


def _steps_behind(value: Traced) -> tuple[Step, ...]:
    """The views that turn a kernel's result into what the function returns."""
    steps: list[Step] = []
    present = [a for a in value.axes if a is not None]
    if len(present) < len(value.axes):
        places = {a: k - len(present) for k, a in enumerate(present)}
        order = tuple(None if a is None else places[a] for a in value.axes)
        steps.append(Step("arrange", order))
    if any(value.is_expanded(i) for i in range(len(value.axes))):
        steps.append(Step("spread", value.lengths))
    return (*steps, *value.after)


def _alias_steps(view: View, value: Traced) -> tuple[Step, ...]:
    """The views that lead from an argument to a view of it that the function returns."""
    unsqueezed = value.node.integer("unsqueezed")
    order = tuple(None if a is None or a >= -unsqueezed else a + unsqueezed for a in value.axes)
    steps = list(view.steps)
    if order != tuple(range(-len(view.lengths), 0)):
        steps.append(Step("arrange", order))
    if any(value.is_expanded(i) for i in range(len(value.axes))):
        steps.append(Step("expand", value.lengths))
    if value.stopped:
        steps.append(Step("detach", ()))
    return (*steps, *value.after)


def graph_of(
    views: Views, outputs: Sequence[Output], place: TracePlace, source: Source
) -> Resolved:
    """The graph over the inputs that it reads and those that its lengths belong to."""
    nodes = toposort(o.node for o in outputs)
    dims = {e for n in nodes for e in n.shape if isinstance(e, Dim)}
    named = (str(n.attribute("dim")) for n in nodes if n.op.name in ("index", "size"))
    dims |= {Dim(name) for name in named if name != "1"}
    pending = {n.name for n in nodes if n.op.name == "input"}
    pending |= {d.name.rpartition(".")[0] for d in dims}
    needed: set[str] = set()
    while pending:
        needed |= pending
        lengths = (e for n in pending for e in views.specs[n].shape if isinstance(e, Dim))
        pending = {e.name.rpartition(".")[0] for e in lengths} - needed
    if not any(not views.specs[n].scalar for n in needed):  # constants alone: a tensor says where
        needed |= {n for n, spec in views.specs.items() if not spec.scalar}
    specs = tuple(views.specs[n] for n in views.views if n in needed)
    graph = Graph(specs, tuple(outputs), place.side, source)
    return Resolved(graph, tuple(_equal(specs)))


def _equal(specs: Sequence[InputSpec]) -> list[tuple[Dim, Dim]]:
    """Lengths that the trace took for equal: guards have checked them."""
    pairs = []
    for spec in specs:
        for axis, extent in enumerate(spec.shape):
            own = Dim(f"{spec.name}.{axis}")
            if isinstance(extent, Dim) and extent != own:
                pairs.append((extent, own))
    return pairs
