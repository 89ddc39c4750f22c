"""Regions of a model as Graphs: cut out of the model's graph, converted like a traced function.

May import ``fusec.errors``, ``fusec.ir``, ``fusec.source`` and, of the frontend, ``trace``,
``trace_*`` and ``model_*``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusec.errors import FusecError
from fusec.frontend.model_alike import is_tensor, region_form
from fusec.frontend.model_calls import (
    COMPUTE,
    JOIN,
    LEFT,
    RESHAPES,
    SOURCE,
    SPREADS,
    VIEW,
    Operation,
    Operations,
    drops_axes,
)
from fusec.frontend.model_lengths import Layout, all_known, layout_of, lengths_of, place_of
from fusec.frontend.model_regions import regions
from fusec.frontend.trace import TracedProgram
from fusec.frontend.trace_convert import Converter
from fusec.frontend.trace_place import TracePlace
from fusec.frontend.trace_record import Owner, Tape
from fusec.frontend.trace_result import Results, graph_of
from fusec.frontend.trace_rows import words
from fusec.frontend.trace_special import SPECIAL
from fusec.frontend.trace_values import Traced
from fusec.frontend.trace_views import Length, View, Views
from fusec.ir.dtypes import by_torch_name
from fusec.ir.node import toposort
from fusec.ir.ops import Kind
from fusec.source import Source

_MANY_ROUNDS = 100
_SINGLE = words("t transpose permute view _unsafe_view squeeze unsqueeze alias detach")


@dataclass(slots=True)
class ModelRegion:
    """Some operators of a model, and the program that computes their ``results``.

    ``nodes`` are the model's, ``absorbed`` those that it computes too (numbers, expanded tensors)
    but others may need as well; ``inputs`` are the tensors outside that it reads, ``numbers`` the
    lengths that PyTorch's own operators would. ``layouts`` has one for each result.
    """

    nodes: list[Any]
    absorbed: list[Any]
    inputs: list[Any]
    numbers: list[Any]
    results: list[Any]
    program: TracedProgram
    layouts: tuple[Layout, ...]
    operators: int  # of PyTorch, without views
    alike: Any  # equal for regions that are the same but for which tensors they read


class _Refused(Exception):
    """A region cannot be converted because of one operator."""

    def __init__(self, operation: Operation, reason: str) -> None:
        super().__init__(reason)
        self.operation = operation
        self.reason = reason


@dataclass(slots=True)
class Model:
    """One graph of a model over aten, cut into regions and what stays with PyTorch."""

    operations: Operations = field(default_factory=Operations)
    regions: list[ModelRegion] = field(default_factory=list)
    _converted: dict[tuple[Any, ...], ModelRegion | None] = field(default_factory=dict)
    _programs: dict[Any, TracedProgram] = field(default_factory=dict)  # of regions that are alike
    _plain: set[tuple[Any, ...]] = field(default_factory=set)  # those that absorb nothing

    def cut(self, nodes: Sequence[Any], returned: Iterable[Any]) -> None:
        """Fill ``regions``. What cannot be converted is left to PyTorch, with its reason.

        ``returned`` are the nodes whose values the graph gives. May be called again, after
        :meth:`leave` and :meth:`part`.
        """
        for node in nodes if not self.operations.by_node else ():
            self.operations.add(node)
        for _ in range(_MANY_ROUNDS):
            parts = [(part, self._absorbed(part)) for part in self._partition(nodes)]
            needed = self._needed(nodes, parts, returned)
            made = [self._try(part, absorbed, needed) for part, absorbed in parts]
            self.regions = [region for region in made if isinstance(region, ModelRegion)]
            if False not in made:
                return
        self.regions = []

    def leave(self, region: ModelRegion, reason: str) -> None:
        """Let PyTorch run a region after all."""
        for node in region.nodes:
            self.operations.by_node[node].leave(reason)

    def part(self, region: ModelRegion) -> bool:
        """Let PyTorch take the views inside of a region, which parts it there, if there are any."""
        known = [self.operations.by_node[n] for n in region.nodes]
        views = [o for o in known if o.kind == VIEW and o.name not in SPREADS]
        for operation in views:
            self._refuse(operation, "it moves what was computed")
        return bool(views)

    def same(self, view: Any) -> Any:
        """The tensor that a view is of, where nothing is moved in between; else the view itself.

        Gradients of linear layers transpose their weights back and forth.
        """
        known, values = self.operations.by_node, self.operations.values
        base = view
        while known[base].name in _SINGLE and is_tensor(values[base.args[0]]):
            base = base.args[0]
            if place_of(values[base]) == place_of(values[view]):
                return base
        return view

    # -- cutting ----------------------------------------------------------------------------------

    def _partition(self, nodes: Sequence[Any]) -> list[list[Any]]:
        known = self.operations.by_node
        place = {node: k for k, node in enumerate(nodes)}
        fused = [known[n].kind in (COMPUTE, VIEW) for n in nodes]
        reads = [[place[i] for i in n.all_input_nodes] for n in nodes]
        after = [[place[i] for i in known[n].after] for n in nodes]
        shared = [
            [place[u] for u in n.users if u in known and known[u].kind == COMPUTE]
            for n in nodes
            if known[n].kind == LEFT and len(n.users) > 1
        ]
        # What is put together is written by one region, or would be copied.
        shared += [[place[p] for p in n.args[0]] for n in nodes if JOIN in n.meta]
        found = regions(fused, reads, after, shared)
        trimmed = ([nodes[k] for k in region] for region in found)
        return [r for r in map(self._trimmed, trimmed) if r]

    def _trimmed(self, nodes: list[Any]) -> list[Any]:
        """A region without the views that it begins and ends with: they cost PyTorch nothing."""
        known = self.operations.by_node
        inside, changed = set(nodes), True
        while changed:
            changed = False
            for node in [n for n in nodes if n in inside and known[n].kind == VIEW]:
                begins = not any(i in inside for i in node.all_input_nodes)
                ends = not any(u in inside for u in node.users) and not drops_axes(
                    node, self.operations.values
                )
                if begins or ends:
                    parts = [u for u in node.users if u in known and known[u].name == "getitem"]
                    inside.difference_update([node, *parts])
                    changed = True
        kept = [n for n in nodes if n in inside]
        return kept if any(known[n].kind == COMPUTE for n in kept) else []

    def _computed(self, view: Any, home: dict[Any, int]) -> bool:
        """Whether a region is to compute a view rather than what it is of: a reshape that it goes
        on with, so that it runs over one shape, or ends with, if it drops axes of length 1.
        """
        if self.operations.by_node[view].name not in RESHAPES:
            return False
        if drops_axes(view, self.operations.values):
            return home.get(view.args[0]) == home[view]
        base = view.args[0]
        own = home[view]
        goes_on = any(home.get(u) == own for u in view.users)
        return goes_on and all(home.get(u) == own for u in base.users)

    # -- converting -------------------------------------------------------------------------------

    def _try(
        self, nodes: list[Any], absorbed: list[Any], needed: set[Any]
    ) -> ModelRegion | bool | None:
        """The region; None if it is nothing to fuse, False if an operator of it is refused."""
        results = [n for n in nodes if n in needed and is_tensor(self.operations.values[n])]
        key = (tuple(nodes), tuple(absorbed), tuple(results))
        if key in self._converted:
            return self._converted[key]
        try:
            made = self._converted[key] = self._convert(nodes, absorbed, results)
            return made
        except _Refused as refused:
            if absorbed:
                self._plain.add(tuple(nodes))
                return False
            self._refuse(refused.operation, refused.reason)
            return False

    def _refuse(self, operation: Operation, reason: str) -> None:
        operation.leave(reason)
        for user in operation.node.users:
            known = self.operations.by_node.get(user)
            if known is not None and known.name == "getitem":
                known.leave(reason)

    def _needed(
        self,
        nodes: Sequence[Any],
        parts: Sequence[tuple[list[Any], list[Any]]],
        returned: Iterable[Any],
    ) -> set[Any]:
        """Every node that something outside of its own region reads.

        Views of what a region computes are PyTorch's there, so what they are of is needed instead.
        """
        found = set(returned)
        for own, absorbed in parts:
            found.update(_outside(absorbed + own, {*own, *absorbed}))
        home = {n: k for k, (own, _) in enumerate(parts) for n in own}
        for node in reversed(nodes):
            kind = self.operations.by_node[node].kind
            if node in home and (kind != VIEW or self._computed(node, home)):
                continue
            if node in found and node in home:
                found.remove(node)
                found.update(node.all_input_nodes)
            elif node in found or kind not in (VIEW, SOURCE):
                found.update(node.all_input_nodes)
        return found

    def _absorbed(self, nodes: list[Any]) -> list[Any]:
        """Numbers and expanded tensors that a region reads: it makes them itself."""
        known, found = self.operations.by_node, set()
        if tuple(nodes) in self._plain:
            return []
        pending = [i for n in nodes for i in n.all_input_nodes]
        while pending:
            node = pending.pop()
            operation = known[node]
            spreads = operation.kind == VIEW and operation.name in SPREADS
            if node in found or node in nodes or not (spreads or operation.kind == SOURCE):
                continue
            found.add(node)
            pending += node.all_input_nodes
        return [n for n in known if n in found]

    def _convert(
        self, nodes: list[Any], absorbed: list[Any], results: list[Any]
    ) -> ModelRegion | None:
        known, values = self.operations.by_node, self.operations.values
        inside = {*nodes, *absorbed}
        outside = _outside(absorbed + nodes, inside)
        inputs = [n for n in outside if is_tensor(values[n])]
        numbers = [n for n in outside if not is_tensor(values[n])]
        if not inputs:
            return None
        alike = region_form(absorbed + nodes, inputs, results, values)
        program = self._programs.get(alike)
        if program is None:
            program = _Conversion(known, values, inputs).program(absorbed + nodes, results)
            self._programs[alike] = program
        lengths = lengths_of(values[inputs[0]])
        layouts = tuple(layout_of(values[n], lengths) for n in results)
        used = [n for own in layouts for n in (*own.shape, *own.strides)]
        if not all_known([*used, *_parts(program)], program.symbols):
            raise _Refused(known[nodes[0]], "a length in it is that of none of its tensors")
        operators = sum(known[n].kind == COMPUTE and known[n].name != "getitem" for n in nodes)
        if operators == 1 and _is_one_step(program):
            for node in nodes:
                known[node].leave("alone, it is one kernel of PyTorch's as well")
            return None
        parts = nodes, absorbed, inputs, numbers, results
        return ModelRegion(*parts, program, layouts, operators, (alike, len(absorbed)))


def _outside(nodes: Sequence[Any], inside: set[Any]) -> list[Any]:
    """What comes from outside, in the order in which it is read."""
    return list(dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in inside))


def _is_one_step(program: TracedProgram) -> bool:
    assert program.resolved is not None
    found = toposort(o.node for o in program.resolved.graph.outputs)
    return sum(n.op.kind in (Kind.ELEMENTWISE, Kind.REDUCTION) for n in found) <= 1


def _parts(program: TracedProgram) -> Iterable[Length]:
    """Every length that a view of the program names."""
    steps = [s for v in program.views for s in v.steps]
    steps += [s for r in program.results for s in r.steps]
    return [p for s in steps for p in s.parts]


class _Conversion:
    """The conversion of one region."""

    def __init__(
        self, operations: dict[Any, Operation], values: dict[Any, Any], inputs: Sequence[Any]
    ) -> None:
        self.operations = operations
        self.values = values
        self.inputs = inputs
        self.length = lengths_of(values[inputs[0]])

    def program(self, nodes: Sequence[Any], results: Sequence[Any]) -> TracedProgram:
        """Raises _Refused, with the operator that cannot be in this region."""
        source = Source(self._text(nodes, results), "<model>")
        place = TracePlace(source, None)
        views = Views(place, self.length)
        convert = Converter(place, views, SPECIAL, self.length)
        symbols = [self._input(convert, k, self.values[n]) for k, n in enumerate(self.inputs)]
        for node in nodes:
            self._step(convert, self.operations[node])
        returned = Results(convert, Tape(), Owner(), (), len(self.inputs))
        for node in results:
            try:
                returned.add(self.values[node])
            except FusecError as error:
                origin = node.args[0] if self.operations[node].name == "getitem" else node
                raise _Refused(self.operations[origin], error.message) from None
        resolved = graph_of(views, returned.outputs, place, source)
        return TracedProgram(
            source,
            tuple(views.views[s.name] for s in resolved.graph.inputs),
            resolved,
            tuple(returned.found),
            None,
            (),
            tuple(symbols),
            (),
        )

    def _input(self, convert: Converter, number: int, tensor: Any) -> tuple[Length, ...]:
        dtype = by_torch_name(str(tensor.dtype).removeprefix("torch."))
        lengths = tuple(map(self.length, tensor.shape))
        if dtype is not None:
            node = convert.views.add(View(f"x{number}", number, (), lengths), dtype)
            axes = tuple(range(-len(lengths), 0))
            convert.values[id(tensor)] = Traced(node, axes, lengths)
        return lengths

    def _step(self, convert: Converter, operation: Operation) -> None:
        try:
            convert.run(Tape(operation.calls))
        except FusecError as error:
            raise _Refused(operation, error.message) from None
        if operation.kind != VIEW:
            return
        made = self.values[operation.node]
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if convert.values[id(tensor)].after:
                raise _Refused(operation, "it reshapes what was computed")

    def _text(self, nodes: Sequence[Any], results: Sequence[Any]) -> str:
        """The region as a person would write it down: an operator a line, without lengths."""
        names = {n: f"x{k}" for k, n in enumerate(self.inputs)}
        lines: list[str] = []
        for node in nodes:
            if self.operations[node].name == "getitem":
                names[node] = f"{names[node.args[0]]}[{node.args[1]}]"
                continue
            names[node] = f"t{len(lines)}"
            arguments = [names.get(a, a) for a in node.args if a in names or type(a) is float]
            call = f"{self.operations[node].name}({', '.join(map(str, arguments))})"
            lines.append(f"{names[node]} = {call}")
        lines.append("return " + ", ".join(names[n] for n in results))
        return "\n".join(lines)
