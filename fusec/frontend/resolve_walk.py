"""Walks expressions and calls: one step for each piece of syntax, on a stack of its own.

May import ``fusec.source``, ``fusec.errors``, ``fusec.ir`` and, of the frontend, ``syntax``,
``parser`` and the ``resolve_*`` modules but ``resolve`` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from fusec.errors import (
    DTypeError,
    FusecError,
    Note,
    UnknownNameError,
    UnsupportedError,
    did_you_mean,
)
from fusec.frontend import resolve_functions as functions
from fusec.frontend import syntax
from fusec.frontend.parser import parse
from fusec.frontend.resolve_build import Builder
from fusec.frontend.resolve_functions import Function, UserFunction
from fusec.frontend.resolve_gather import Gatherer
from fusec.frontend.resolve_names import is_all
from fusec.frontend.resolve_place import Frame, Place
from fusec.frontend.resolve_reduce import Reducer
from fusec.frontend.resolve_values import (
    CONSTANTS,
    Axes,
    FoldError,
    Literal,
    Tensor,
    Value,
    checked,
)
from fusec.frontend.syntax import Expression
from fusec.ir.derived import DERIVED, Derived
from fusec.ir.dtypes import F32
from fusec.ir.graph import InputSpec
from fusec.ir.node import Dim
from fusec.source import Source

# A formula of a few lines can name a function that calls a function that calls a function, twice
# each.
MOST_STEPS = 1_000_000

_BINARY = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floor_divide", "%": "remainder",
    "^": "pow", "&": "bit_and", "|": "bit_or", "and": "bit_and", "or": "bit_or",
    "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne",
}  # fmt: skip


class Walker:
    """Evaluates expressions. ``_steps`` holds what is to be done, ``_values`` what was found."""

    def __init__(
        self, place: Place, specs: tuple[InputSpec, ...], positions: frozenset[str]
    ) -> None:
        self.place = place
        self.builder = Builder(place)
        self.reducer = Reducer(self.builder, specs, positions)
        self.gatherer = Gatherer(place)
        self._names = [spec.name for spec in specs]
        self._steps: list[tuple[Callable[..., None], object, Frame]] = []
        self._values: list[Value] = []
        self._count = 0
        self._visitors: dict[type, Callable[..., None]] = {
            syntax.Number: self._number,
            syntax.Name: self._name,
            syntax.Unary: self._unary,
            syntax.Binary: self._two,
            syntax.Logical: self._two,
            syntax.Compare: self._compare,
            syntax.Conditional: self._conditional,
            syntax.Call: self._call,
            syntax.Index: self._index,
            syntax.TupleExpression: self._tuple,
        }

    def evaluate(self, expression: Expression, frame: Frame) -> Value:
        """The value of an expression; raises every semantic error."""
        self._visit(expression, frame)
        steps = self._steps
        while steps:
            action, what, at = steps.pop()
            action(what, at)
            self._count += 1
            if self._count > MOST_STEPS:
                raise self.place.error(
                    UnsupportedError,
                    f"the formula expands to more than {MOST_STEPS} steps",
                    hint="its functions call each other too often; assign what is used twice",
                )
        return self._values.pop()

    def define(self, statement: syntax.FunctionDef, frame: Frame) -> None:
        """Make a function visible, with all that its body sees."""
        known = {n: f for n, f in frame.functions.items() if n != statement.name}
        function = UserFunction(statement, dict(frame.values), known)
        frame.functions[statement.name] = function

    def result(self, expression: Expression, frame: Frame) -> Tensor:
        """A value that a kernel returns: numbers get the types PyTorch gives them."""
        value = self.evaluate(expression, frame)
        self._at(expression, frame)
        number = self.builder.number_or_tensor(value)
        tensor = self.builder.tensor(number)
        if tensor.priority == 2 and tensor.node.dtype.is_float:
            return Tensor(self.builder.convert(number, F32))
        return tensor

    def _at(self, node: syntax.Node, frame: Frame) -> None:
        self.place.syntax = node
        self.place.frame = frame
        self.place.offset = 0

    def _push(self, action: Callable[..., None], what: object, frame: Frame) -> None:
        self._steps.append((action, what, frame))

    def _visit(self, expression: Expression, frame: Frame) -> None:
        self._steps.append((self._visitors[type(expression)], expression, frame))

    def _number(self, node: syntax.Number, frame: Frame) -> None:
        try:
            self._values.append(Literal(checked(node.value)))
        except FoldError as problem:
            self._at(node, frame)
            raise self.place.error(UnsupportedError, str(problem)) from None

    def _name(self, node: syntax.Name, frame: Frame) -> None:
        value = frame.lookup(node.name)
        if value is None:
            if node.name not in CONSTANTS:
                self._at(node, frame)
                raise self._unknown_name(node)
            value = Literal(CONSTANTS[node.name])
        self._values.append(value)

    def _unknown_name(self, node: syntax.Name) -> FusecError:
        return self.place.error(
            UnknownNameError,
            f"unknown name '{node.name}'; the inputs are {', '.join(self._names) or 'none'}",
            hint=did_you_mean(node.name, self._names),
        )

    def _unary(self, node: syntax.Unary, frame: Frame) -> None:
        self._push(self._apply_unary, node, frame)
        self._visit(node.operand, frame)

    def _apply_unary(self, node: syntax.Unary, frame: Frame) -> None:
        self._at(node, frame)
        value = self._values.pop()
        if node.operator == "not":
            truth = self.builder.truth(value)
            flipped = (
                Literal(not truth.value)
                if isinstance(truth, Literal)
                else self.builder.apply("bit_not", truth)
            )
            self._values.append(flipped)
        elif node.operator == "+":
            self._values.append(self.builder.number_or_tensor(value))
        else:
            self._values.append(
                self.builder.apply("neg" if node.operator == "-" else "bit_not", value)
            )

    def _two(self, node: syntax.Binary | syntax.Logical, frame: Frame) -> None:
        self._push(self._apply_two, node, frame)
        self._visit(node.right, frame)
        self._visit(node.left, frame)

    def _apply_two(self, node: syntax.Binary | syntax.Logical, frame: Frame) -> None:
        self._at(node, frame)
        right, left = self._values.pop(), self._values.pop()
        if isinstance(node, syntax.Logical):
            left, right = self.builder.truth(left), self.builder.truth(right)
        self._values.append(self.builder.apply(_BINARY[node.operator], left, right))

    def _compare(self, node: syntax.Compare, frame: Frame) -> None:
        self._push(self._apply_compare, node, frame)
        for operand in reversed(node.operands):
            self._visit(operand, frame)

    def _apply_compare(self, node: syntax.Compare, frame: Frame) -> None:
        self._at(node, frame)
        count = len(node.operands)
        operands, self._values[-count:] = self._values[-count:], []
        result: Value | None = None
        for offset, operator in enumerate(node.operators):
            self.place.offset = offset
            pair = self.builder.apply(_BINARY[operator], operands[offset], operands[offset + 1])
            self.place.offset = count  # the operands of the "and" are no operands of the syntax
            result = pair if result is None else self.builder.apply("bit_and", result, pair)
        assert result is not None
        self._values.append(result)

    def _conditional(self, node: syntax.Conditional, frame: Frame) -> None:
        self._push(self._apply_conditional, node, frame)
        self._visit(node.otherwise, frame)
        self._visit(node.then, frame)
        self._visit(node.condition, frame)

    def _apply_conditional(self, node: syntax.Conditional, frame: Frame) -> None:
        self._at(node, frame)
        otherwise, then, condition = (self._values.pop() for _ in range(3))
        truth = self.builder.truth(condition)
        self._values.append(self.builder.apply("where", truth, then, otherwise))

    def _tuple(self, node: syntax.TupleExpression, frame: Frame) -> None:
        self._push(self._apply_tuple, node, frame)
        for item in reversed(node.items):
            self._visit(item, frame)

    def _apply_tuple(self, node: syntax.TupleExpression, frame: Frame) -> None:
        self._at(node, frame)
        count = len(node.items)
        items, self._values[-count:] = self._values[-count:], []
        axes = [v.value for v in items if isinstance(v, Literal) and type(v.value) is int]
        if len(axes) < count:
            raise self.place.error(
                DTypeError,
                "a tuple of values stands only in the last line of a formula",
                hint="axis= takes a tuple of integers",
            )
        self._values.append(Axes(tuple(axes)))

    def _index(self, node: syntax.Index, frame: Frame) -> None:
        self._push(self._apply_index, node, frame)
        self._visit(node.index, frame)
        self._visit(node.value, frame)

    def _apply_index(self, node: syntax.Index, frame: Frame) -> None:
        self._at(node, frame)
        index = self.builder.number_or_tensor(self._values.pop())
        value = self.builder.number_or_tensor(self._values.pop())
        self._values.append(self.gatherer.gather(value, index))

    def _call(self, node: syntax.Call, frame: Frame) -> None:
        function, bound = functions.find(node, frame.functions, self.place.source)
        self._push(self._apply_call, (node, function, [name for name, _ in bound]), frame)
        for name, argument in reversed(bound):
            if isinstance(argument, Literal):
                self._push(self._keep, argument, frame)
            elif name == "axis" and is_all(argument):
                self._push(self._keep, Axes(None), frame)
            else:
                self._visit(argument, frame)

    def _keep(self, value: Value, frame: Frame) -> None:
        self._values.append(value)

    def _apply_call(self, what: tuple[syntax.Call, Function, list[str]], frame: Frame) -> None:
        node, function, names = what
        self._at(node, frame)
        start = len(self._values) - len(names)
        arguments = dict(zip(names, self._values[start:], strict=True))
        del self._values[start:]
        match function:
            case UserFunction():
                self._expand_user(node, function, arguments, frame)
            case functions.Composite():
                self._expand(node, function.row, function.row.name, arguments, frame)
            case functions.Special():
                self._special(node, function.name, arguments, frame)
            case functions.Elementwise():
                self._values.append(self.builder.apply(function.op.name, *arguments.values()))
            case functions.Reduction():
                self._values.append(self.reducer.reduce(function.op.name, *arguments.values()))
            case functions.Cast():
                self._values.append(self.builder.cast(arguments["x"], function.dtype))

    def _special(
        self, node: syntax.Call, name: str, arguments: dict[str, Value], frame: Frame
    ) -> None:
        if name == "norm":
            self._norm(node, arguments, frame)
        elif name == "cast_like":
            self._values.append(self._cast_like(arguments["value"], arguments["like"]))
        else:
            of, axis = arguments.get("x"), arguments["axis"]
            if of is None and isinstance(axis, Tensor):
                of, axis = axis, Literal(-1)
            measure = self.reducer.index if name == "index" else self.reducer.size
            self._values.append(measure(of, axis))

    def _norm(self, node: syntax.Call, arguments: dict[str, Value], frame: Frame) -> None:
        p = arguments.pop("p")
        rows = {1: "norm_1", 2: "norm_2", float("inf"): "norm_inf"}
        if not (isinstance(p, Literal) and p.value in rows):
            raise self.place.error(
                UnsupportedError,
                "norm takes p=1, p=2 or p=inf",
                hint="write it out, as in 'sum(abs(x)^3)^(1/3)'",
            )
        self._expand(node, DERIVED[rows[p.value]][0], "norm", arguments, frame)

    def _cast_like(self, value: Value, like: Value) -> Value:
        if not isinstance(like, Tensor):
            return value
        like = self.builder.arithmetic(like)
        dtype = like.node.dtype
        if isinstance(value, Literal) and (dtype.is_float or not isinstance(value.value, float)):
            return Tensor(self.builder.convert(value, dtype), like.priority)
        return self.builder.cast(value, dtype)

    def _expand_user(
        self, node: syntax.Call, function: UserFunction, arguments: dict[str, Value], frame: Frame
    ) -> None:
        name = function.definition.name
        callers = (Note(f"in this call of '{name}'", node.span), *frame.callers[:3])
        inner = Frame(arguments, function.functions, function.values, callers=callers)
        self._visit(function.definition.body, inner)

    def _expand(
        self, node: syntax.Call, row: Derived, name: str, arguments: dict[str, Value], frame: Frame
    ) -> None:
        if row.floats_only:
            self.reducer.refuse_integers(name, arguments["x"])
        if row.widens:
            arguments = {k: self.builder.floating(v) for k, v in arguments.items()}
        unbiased = arguments.pop("unbiased", Literal(True))
        if not (isinstance(unbiased, Literal) and unbiased.value in (0, 1)):
            raise self.place.error(DTypeError, "unbiased must be true or false")
        if not unbiased.value:
            arguments["correction"] = Literal(0)
        keepdim = arguments.pop("keepdim", Literal(False))
        if row.reduction:
            self._reduced(row, name, arguments, keepdim, frame)
        inner = Frame(arguments, site=self.place.span, internal=True, callers=frame.callers)
        body = _body(row)
        self._visit(body.result[0], inner)
        for statement in reversed(body.statements):
            assert isinstance(statement, syntax.Assign)
            self._push(self._assign, statement.name, inner)
            self._visit(statement.value, inner)

    def _reduced(
        self, row: Derived, name: str, arguments: dict[str, Value], keepdim: Value, frame: Frame
    ) -> None:
        """What a composite that reduces checks before, and does after, its body."""
        x = self.builder.tensor(self.builder.number_or_tensor(arguments["x"]))
        shape = x.node.shape
        axes = self.reducer.axes(arguments["axis"], shape, self.place.label(0, "its operand"))
        if row.nonempty and not frame.internal:
            for axis in axes:
                extent = shape[axis]
                if isinstance(extent, Dim):
                    self.reducer.require_nonempty(name, extent)
        self._push(self._drop, (axes, keepdim), frame)

    def _drop(self, what: tuple[tuple[int, ...], Value], frame: Frame) -> None:
        value = self.builder.tensor(self.builder.number_or_tensor(self._values.pop()))
        self._values.append(self.reducer.drop(value, *what))

    def _assign(self, name: str, frame: Frame) -> None:
        frame.values[name] = self._values.pop()


@cache
def _body(row: Derived) -> syntax.Program:
    return parse(Source(row.body, f"<{row.name}>"))
