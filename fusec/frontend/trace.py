"""A PyTorch function as a Graph: it is run once over tensors without memory, whose lengths are
symbols, and what it calls is converted.

So a new length traces nothing again, unless the function asked for it (``if x.shape[0] > 8``): each
answer that it got is a guard, and a call with lengths that answer otherwise gets a program of its
own. Torch is imported when a function is traced. May import ``fusec.source``, ``fusec.errors``,
``fusec.ir`` and, of the frontend, ``resolve``, ``syntax`` and the ``trace_*`` modules.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from fusec.errors import FusecError, ShapeError, UnsupportedError
from fusec.frontend.resolve import Resolved
from fusec.frontend.resolve_values import Tensor
from fusec.frontend.trace_asked import unanswered
from fusec.frontend.trace_convert import Converter
from fusec.frontend.trace_functions import in_parts, in_the_place_of
from fusec.frontend.trace_joined import Joins
from fusec.frontend.trace_joined_views import VIEWS
from fusec.frontend.trace_layout import Order
from fusec.frontend.trace_place import TracePlace, Where, is_library, raised_at, text_of
from fusec.frontend.trace_record import Owner, Recorder, Tape
from fusec.frontend.trace_result import Result, Results, graph_of
from fusec.frontend.trace_returned import refuse_unknown, taken_apart
from fusec.frontend.trace_special import SPECIAL, knows
from fusec.frontend.trace_values import Traced
from fusec.frontend.trace_views import Length, View, Views
from fusec.ir.dtypes import F64, by_torch_name
from fusec.source import Source

_SHAPES = re.compile(
    r"\b(size|shape|dim|dims|dimension|dimensions|broadcast\w*|numel|index)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor or number of a call. ``dtype`` and ``device`` are torch's; a number has neither.

    ``shape`` holds lengths to trace with, none of them 0; ``order`` is how it lies in memory, if
    not row by row.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: Any = None
    device: Any = None
    value: float = 0.0
    order: Order | None = None


@dataclass(frozen=True, slots=True)
class TracedProgram:
    """What a function does for one kind of arguments.

    ``views`` are the graph's inputs in order; argument numbers above those of the leaves stand for
    ``captured``. ``symbols`` are the names of each leaf's lengths, or of its value, and ``guards``
    what has to hold of them. ``shapes`` has the lengths of each of the graph's outputs; those of
    a region of a model are not kept.
    """

    source: Source
    views: tuple[View, ...]
    resolved: Resolved | None
    results: tuple[Result, ...]
    structure: Any  # a Structure; a region of a model has none
    captured: tuple[Any, ...]
    symbols: tuple[tuple[Any, ...], ...]
    guards: tuple[Any, ...]
    shapes: tuple[tuple[Length, ...], ...] = ()


def trace(
    function: Callable[..., Any],
    run: Callable[[list[Any]], Any],
    leaves: Sequence[Leaf],
    variables: Sequence[tuple[str, Any]],
) -> TracedProgram:
    """Run ``function`` by ``run``, which puts stand-ins in the place of ``leaves``, and convert it.

    ``variables`` are the tensors that it may read besides, with their names. Raises
    UnsupportedError, ShapeError and DTypeError with the user's file and line, and what the function
    itself raises.
    """
    return _Trace(function, leaves, variables).program(run)


@dataclass(slots=True)
class _Trace:
    """One run of a function, and its conversion."""

    function: Callable[..., Any]
    leaves: Sequence[Leaf]
    variables: Sequence[tuple[str, Any]]
    tape: Tape = field(default_factory=Tape)
    owner: Owner = field(default_factory=Owner)
    joins: Joins = field(default_factory=lambda: Joins(knows, VIEWS))
    captured: list[tuple[str, Any, Any]] = field(default_factory=list)  # name, tensor, stand-in
    hints: dict[str, float] = field(default_factory=dict)
    env: Any = None
    same: dict[Any, Any] = field(default_factory=dict)

    def program(self, run: Callable[[list[Any]], Any]) -> TracedProgram:
        standins, symbols, outputs = self._record(run)
        self._find_equal()
        results, structure = taken_apart(outputs)
        source = text_of(self.function)
        place = TracePlace(source, None)
        views = Views(place, self._length)
        convert = Converter(place, views, SPECIAL, self._length)
        self._inputs(convert, standins)
        convert.run(self.tape)
        tensors = tuple(tensor for _, tensor, _ in self.captured)
        count = len(self.leaves)
        returned = Results(convert, self.tape, self.owner, tensors, count, self.joins.known)
        for result in results:
            refuse_unknown(result, self.function, self.hints)
            returned.add(result)
        made = returned.outputs
        resolved = graph_of(views, made, place, source) if made else None
        names = [s.name for s in resolved.graph.inputs] if resolved else []
        return TracedProgram(
            source,
            tuple(views.views[n] for n in names),
            resolved,
            tuple(returned.found),
            structure,
            tensors,
            tuple(symbols),
            tuple(guard.expr for guard in self.env.guards),
            tuple(returned.shapes),
        )

    # -- running ----------------------------------------------------------------------------------

    def _record(self, run: Callable[[list[Any]], Any]) -> tuple[list[Any], list[Any], Any]:
        import torch
        from torch._dispatch.python import enable_python_dispatcher
        from torch._subclasses.fake_tensor import FakeTensorMode

        self.env = _shape_env()
        fake = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        kinds = {leaf.device.type for leaf in self.leaves if leaf.device is not None}
        with ExitStack() as stack:
            for kind in kinds - {"meta"}:
                stack.enter_context(torch.autocast(kind, enabled=False))
            stack.enter_context(fake)
            stack.enter_context(enable_python_dispatcher())
            made = [self._standin(leaf) for leaf in self.leaves]
            for leaf, (standin, _) in zip(self.leaves, made, strict=True):
                if leaf.dtype is not None:
                    self.owner.add(standin, leaf.name)
            code = getattr(self.function, "__code__", None)
            grad = torch.is_grad_enabled()
            recorder = Recorder(self.tape, self.owner, knows, self._capture, code, grad, self.joins)
            standins = [standin for standin, _ in made]
            parameters = [t for _, t in self.variables if t.requires_grad]
            stack.enter_context(in_parts())
            stack.enter_context(unanswered(self._lies_as_given))
            if parameters:
                known = {id(t): self._capture(t, None, "") for t in parameters}
                stack.enter_context(in_the_place_of(known))
            with recorder.mode():
                outputs = self._guarded(lambda: run(standins))
        return standins, [symbols for _, symbols in made], outputs

    def _guarded(self, run: Callable[[], Any]) -> Any:
        """What ``run`` gives; errors of PyTorch's own as fusec's, at the user's line."""
        try:
            return run()
        except FusecError as error:
            raise error.with_traceback(None) from None
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
            where = raised_at(error)
            if where is None or _raised_by_hand(error):
                raise
            lines = str(error).strip().splitlines() or [type(error).__name__]
            message = re.sub(r"\b[sz]f?\d+\b", lambda m: self._hint(m.group()), lines[0])
            kind = ShapeError if _SHAPES.search(message) else UnsupportedError
            message = message.rstrip(".")
            if message.count(")") > message.count("("):  # PyTorch's own slip
                message = message.rstrip(")")
            raise where.error(kind, f"PyTorch refuses this: {message}") from None

    def _hint(self, name: str) -> str:
        return str(self.hints.get(name, name))

    def _standin(self, leaf: Leaf) -> tuple[Any, tuple[Any, ...]]:
        """A tensor without memory, or a symbolic number, and its symbols."""
        import torch

        if leaf.dtype is None:
            symbol = self._symbol(leaf.value, leaf.name)
            source = _named_source(leaf.name)
            made = self.env.create_symfloatnode(symbol, hint=leaf.value, source=source)
            return made, (symbol,)
        sizes: list[Any] = []
        symbols: list[Any] = []
        for axis, length in enumerate(leaf.shape):
            name = f"{leaf.name}.{axis}"
            symbol = self._symbol(length, name) if length != 1 else 1
            symbols.append(symbol)
            sizes.append(
                1
                if length == 1
                else self.env.create_symintnode(symbol, hint=length, source=_named_source(name))
            )
        device = "cpu" if leaf.device.type == "meta" else leaf.device
        order = leaf.order or Order(tuple(range(len(sizes))))
        strides = order.strides(sizes)
        made = torch.empty_strided(sizes, strides, dtype=leaf.dtype, device=device)
        return made, tuple(symbols)

    def _lies_as_given(self, tensor: Any, dim: int | None = None) -> bool:
        """Whether the strides of a stand-in, or that along an axis, are those that it stands for:
        over gaps they are not, nor those of an argument along an axis of length 1.
        """
        if any(leaf.order is not None and leaf.order.gaps for leaf in self.leaves):
            return False
        if self.owner.argument(tensor) not in {leaf.name for leaf in self.leaves}:
            return True
        lengths = tensor.shape if dim is None else (tensor.shape[dim],)
        return not any(type(n) is int and n == 1 for n in lengths)

    def _symbol(self, value: float, name: str) -> Any:
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        source = _named_source(name)
        make = (
            self.env.create_unspecified_symbol
            if isinstance(value, float)
            else self.env.create_symbol
        )
        symbol = make(value, source, DimDynamic.DYNAMIC, None)
        self.hints[str(symbol)] = value
        return symbol

    def _capture(self, tensor: Any, where: Where | None, reader: str) -> Any:
        """The stand-in for a tensor that a variable holds, or that is made of numbers."""
        import torch

        for _, known, standin in self.captured:
            if known is tensor:
                return standin
        name = next((n for n, v in self.variables if v is tensor), None)
        if reader == "lift_fresh":  # torch.tensor([1, 2])
            name = "numbers"
        if name is None:
            assert where is not None
            raise where.error(
                UnsupportedError,
                "a tensor is read that is neither an argument nor a variable of the function",
                "pass it as an argument; what hangs on an object could be replaced unseen",
            )
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        standin = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
        taken = {leaf.name for leaf in self.leaves} | {n for n, _, _ in self.captured}
        while name in taken:
            name += "_"
        self.captured.append((name, tensor, standin))
        self.owner.add(standin, name)
        return standin

    # -- converting -------------------------------------------------------------------------------

    def _length(self, size: Any) -> Length:
        """The one form of a length: an integer, or an expression of the first of equal symbols."""
        node = getattr(size, "node", None)
        expression = node.expr if node is not None else size
        if isinstance(expression, int | float):
            return expression
        expression = self.env.replace(expression)
        expression = self.same.get(expression, expression)
        return int(expression) if expression.is_Integer else expression

    def _find_equal(self) -> None:
        """Lengths that PyTorch took for equal though they are computed differently: two halves."""
        import sympy

        for guard in self.env.guards:
            if isinstance(guard.expr, sympy.Eq) and guard.expr.lhs.is_integer:
                sides = [self.env.replace(side) for side in guard.expr.args]
                first, second = sorted((self.same.get(s, s) for s in sides), key=_simplest)
                if first != second:
                    again = {old: first for old, new in self.same.items() if new == second}
                    self.same |= {second: first, **again}

    def _inputs(self, convert: Converter, standins: Sequence[Any]) -> None:
        everything = [*zip(self.leaves, standins, strict=True)]
        for number, (leaf, standin) in enumerate(everything):
            if leaf.dtype is None:
                node = convert.views.add(View(leaf.name, number, (), ()), F64, scalar=True)
                convert.numbers[self._length(standin)] = Tensor(node, priority=2)
            else:
                self._input(convert, leaf.name, number, standin)
        for offset, (name, _, standin) in enumerate(self.captured):
            self._input(convert, name, len(self.leaves) + offset, standin)

    def _input(self, convert: Converter, name: str, number: int, standin: Any) -> None:
        dtype = by_torch_name(str(standin.dtype).removeprefix("torch."))
        if dtype is None:
            return  # complex, say; whoever uses it is told
        lengths = tuple(map(self._length, standin.shape))
        node = convert.views.add(View(name, number, (), lengths), dtype)
        axes = tuple(range(-len(lengths), 0))
        convert.values[id(standin)] = Traced(node, axes, lengths)


def _simplest(expression: Any) -> tuple[bool, int, str]:
    """Numbers first, then symbols, then what is computed."""
    return not expression.is_Integer, int(expression.count_ops()), str(expression)


def _shape_env() -> Any:
    """A shape environment in which no two symbols are taken for equal, and no float for a number.

    PyTorch 2.6 and 2.7 import their compiler to tell which line made a symbol, and beside a newer
    Triton than theirs that fails. Nothing here reads these lines, so none are looked for then.
    """
    import torch.fx.experimental.symbolic_shapes

    symbolic_shapes: Any = torch.fx.experimental.symbolic_shapes
    made = symbolic_shapes.ShapeEnv(duck_shape=False)
    # What equals a float would take its place: an integer, in the place of 0.0.
    replaced = made._set_replacement
    made._set_replacement = lambda a, *rest: replaced(a, *rest) if a.is_integer else None
    try:
        symbolic_shapes.uninteresting_files()
    except ImportError:
        made._get_stack_summary = lambda *_, **__: (symbolic_shapes.SLoc(None, None), "")
    return made


def _named_source(name: str) -> Any:
    from torch._dynamo.source import ConstantSource

    return ConstantSource(name)


def _raised_by_hand(error: BaseException) -> bool:
    """Whether a ``raise`` of the user's own code made this error."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    if step is None:
        return False
    code = step.tb_frame.f_code.co_code
    return not is_library(step.tb_frame) and dis.opname[code[step.tb_lasti]] == "RAISE_VARARGS"
