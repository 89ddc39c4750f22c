"""From what a function called to a Graph: every call becomes nodes, with the resolver's own rules
for types, numbers and composites.

May import ``fusec.errors``, ``fusec.ir`` and, of the frontend, the ``resolve_*`` modules,
``parser`` and the ``trace_*`` modules but ``trace`` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

from fusec.errors import DTypeError, InternalError, UnsupportedError
from fusec.frontend import trace_rows as rows
from fusec.frontend.parser import parse
from fusec.frontend.resolve_place import Frame
from fusec.frontend.resolve_values import Axes, Literal, Tensor, Value
from fusec.frontend.resolve_walk import Walker
from fusec.frontend.syntax import Program
from fusec.frontend.trace_numbers import ARITHMETIC, in_words
from fusec.frontend.trace_place import TracePlace
from fusec.frontend.trace_record import Call, Tape
from fusec.frontend.trace_reshaped import (
    in_two,
    merged_axis,
    reduced_under,
    under_one_reshape,
)
from fusec.frontend.trace_types import in_common, stored
from fusec.frontend.trace_values import Traced, aligned, common_lengths
from fusec.frontend.trace_views import Length, Views
from fusec.ir.derived import DERIVED
from fusec.ir.dtypes import I64, DType, by_torch_name
from fusec.ir.node import Dim, TensorType, make
from fusec.ir.ops import OPS
from fusec.source import Source

Special: TypeAlias = "Callable[[Converter, Call], Any]"


class Specials(dict[str, Special]):
    """Operators by name, with the functions that give the value of a call of them."""

    def of(self, *names: str) -> Callable[[Special], Special]:
        """A decorator: the function is that of these operators."""

        def keep(function: Special) -> Special:
            self.update(dict.fromkeys(names, function))
            return function

        return keep


class Converter:
    """Holds the value of every traced tensor. ``length`` gives a torch length its one form."""

    def __init__(
        self,
        place: TracePlace,
        views: Views,
        special: Mapping[str, Special],
        length: Callable[[Any], Length],
    ) -> None:
        self.place = place
        self.views = views
        self.special = special
        self.length = length
        self.values: dict[int, Traced] = {}
        self.numbers: dict[Any, Tensor] = {}
        self.walker = Walker(place, (), frozenset())
        self.builder = self.walker.builder
        self.site = Frame({})

    def run(self, tape: Tape) -> None:
        """The values of all calls, in order."""
        for call in tape.calls:
            self.place.stand(call.where)
            self.site = Frame({}, site=call.where.span, internal=True)
            self.place.frame = self.site
            try:
                self._keep(call, self._result(call))
            except UnsupportedError as error:
                raise _of_the_user(call, error) from None
            self._name(call, tape)

    def _result(self, call: Call) -> Any:
        special = self.special.get(call.overload) or self.special.get(call.name)
        if special is not None:
            return special(self, call)
        if call.name in rows.REDUCTIONS:
            return self.reduction(call)
        return self.elementwise(call)

    def _keep(self, call: Call, result: Any) -> None:
        several = isinstance(result, tuple | list)
        pairs = zip(call.result, result, strict=True) if several else ((call.result, result),)
        for tensor, value in pairs:
            if value is not None:
                own = value if call.tracked else self._untracked(call, value)
                self.values[id(tensor)] = self._as(tensor, own)

    def _untracked(self, call: Call, value: Traced) -> Traced:
        """A result that has no gradient; one that was changed in place keeps the one it had."""
        before = call.arguments.get("self")
        if call.result is not before or not value.node.dtype.is_float:
            return replace(value, stopped=True)
        return self.pointwise("gradient_as(a, b)", a=value, b=self.tensor(before))

    def _as(self, tensor: Any, value: Traced) -> Traced:
        """``value`` in the type and with the lengths that PyTorch gave the result."""
        dtype = self.dtype(tensor.dtype)
        if dtype.is_float and value.node.dtype.is_float and dtype.bits > value.node.dtype.bits:
            raise self.unsupported(
                f"a result in {dtype.torch} of numbers in {value.node.dtype.torch}",
                "cast an operand; torch.set_default_dtype is not looked at",
            )
        if value.node.dtype is not dtype:
            node = self.builder.cast(value.operand(), dtype).node
            value = replace(value, node=node)
        if value.after:
            return value
        lengths = tuple(map(self.length, tensor.shape))
        if len(lengths) != len(value.axes):
            raise InternalError(f"{value.axes} are the axes of {list(tensor.shape)}")
        return replace(value, lengths=lengths)

    def _name(self, call: Call, tape: Tape) -> None:
        name = tape.names.get(id(call.result))
        value = self.values.get(id(call.result))
        if name is not None and value is not None and value.node.op.name not in _NAMELESS:
            self.place.side.note(value.node, name=name)

    # -- arguments --------------------------------------------------------------------------------

    def tensor(self, value: Any, whole: bool = True) -> Traced:
        """The value of a traced tensor, which if ``whole`` must not have pending views."""
        found = self.values.get(id(value))
        if found is None:
            raise self.place.error(DTypeError, f"fusec has no type {value.dtype}")
        if found.after and whole:
            raise self._reshaped()
        return found

    def _reshaped(self) -> Exception:
        return self.unsupported(
            "a computed value is reshaped and then computed with",
            "reshape the arguments, or the result",
        )

    def dtype(self, dtype: Any) -> DType:
        """fusec's name of a torch type; DTypeError where there is none."""
        found = by_torch_name(str(dtype).removeprefix("torch."))
        if found is None:
            raise self.place.error(DTypeError, f"fusec has no type {dtype}")
        return found

    def unsupported(self, message: str, hint: str | None = None) -> Exception:
        return self.place.error(UnsupportedError, message, hint=hint)

    def number(self, value: Any) -> Literal | Tensor:
        """A Python number, or one that is computed from lengths and numbers of the call."""
        if isinstance(value, bool | int | float):
            return Literal(value)
        node = getattr(value, "node", None)
        if node is None:
            raise self.unsupported(f"{value!r} is no real number")
        found = self._symbolic(self.length(value))
        if isinstance(found, Literal) and node.pytype is float:  # s - s is 0 to sympy, and no float
            return Literal(float(found.value))
        return found

    def _symbolic(self, expression: Length) -> Literal | Tensor:
        """An expression over lengths and numbers, as nodes."""
        if isinstance(expression, int):
            return Literal(expression)
        dim = self.views.dims.get(expression)
        if dim is not None:
            return self._size(dim)
        if expression in self.numbers:
            return self.numbers[expression]
        if not expression.args:
            if expression.is_Integer:
                return Literal(int(expression))
            if expression.is_number:
                return Literal(float(expression))
            raise self.unsupported(f"no input has the length {expression}")
        name = type(expression).__name__
        if name not in ARITHMETIC:
            names = {s: t.node.name for s, t in self.numbers.items()}
            names |= {s: dim.name for s, dim in self.views.dims.items()}
            raise self.unsupported(
                f"no kernel computes the number {in_words(expression, names)}",
                "compute it outside, and pass it as an argument",
            )
        parts = [self._symbolic(a) for a in expression.args]
        text = ARITHMETIC[name]
        result = parts[0] if len(parts) > 1 or text == "a" else None
        if result is None:
            return self._number(text, a=parts[0])
        for part in parts[1:]:
            result = self._number(text, a=result, b=part)
        return result

    def _number(self, text: str, /, **values: Value) -> Literal | Tensor:
        result = self.walker.evaluate(_parsed(text).result[0], self._frame(values))
        return self.builder.number_or_tensor(result)

    def positions(self, length: Length) -> Traced:
        """0, 1, 2 ... to ``length``."""
        if length == 1:
            return Traced(self.builder.tensor(Literal(0)).node, (None,), (1,))
        return Traced(self.views.positions(length), (-1,), (length,))

    def _size(self, dim: Dim) -> Tensor:
        owner, _, axis = dim.name.rpartition(".")
        place = int(axis) - len(self.views.specs[owner].shape)
        node = make("size", (), TensorType(I64, ()), axis=place, dim=dim.name)
        return Tensor(node, priority=2)

    # -- operations -------------------------------------------------------------------------------

    def evaluate(self, text: str, /, **values: Value) -> Tensor:
        """An expression of the language over these values."""
        result = self.walker.evaluate(_parsed(text).result[0], self._frame(values))
        return self.builder.tensor(self.builder.number_or_tensor(result))

    def _frame(self, values: Mapping[str, Value]) -> Frame:
        return Frame(dict(values), site=self.site.site, internal=True)

    def pointwise(self, text: str, /, **operands: Any) -> Traced:
        """An expression over tensors and numbers that broadcast against each other."""
        tensors: dict[str, Traced] = {k: v for k, v in operands.items() if isinstance(v, Traced)}
        under = under_one_reshape(self.views, list(tensors.values()))
        if under is None:
            raise self._reshaped()
        own, after = under
        moved, axes = aligned(self.views, own) if own else ([], ())
        values: dict[str, Value] = {
            k: self.number(v)
            for k, v in operands.items()
            if k not in tensors and not isinstance(v, Literal | Tensor)
        }
        values.update({k: v for k, v in operands.items() if isinstance(v, Literal | Tensor)})
        values.update(zip(tensors, (m.operand() for m in moved), strict=True))
        node = self.evaluate(text, **values).node
        # Of what an operand only gives its type to, as in cast_like, the result has no axes.
        axes = tuple(a if a is not None and -a <= len(node.shape) else None for a in axes)
        return Traced(node, axes, common_lengths(own), after)

    def elementwise(self, call: Call) -> Traced:
        """A row of the table, or an operator named as in fusec."""
        operands = {k: v for k, v in call.arguments.items() if not isinstance(v, str)}
        operands = {k: self.operand(v) for k, v in operands.items() if v is not None}
        if call.name in rows.EXACT:
            operands = {k: stored(self.builder, v) for k, v in operands.items()}
        if call.name in rows.IN_COMMON:
            operands = in_common(self.builder, operands, self.number)
        text = rows.EXPRESSIONS.get(call.overload) or rows.EXPRESSIONS.get(call.name)
        if text is None:
            text = _text(rows.SAME_NAMES[call.name], tuple(operands))
            if len(operands) > _most(rows.SAME_NAMES[call.name]):
                raise self.unsupported(f"aten.{call.overload} with {', '.join(operands)}")
        scale = operands.pop("alpha", 1)
        if "alpha" in text and not isinstance(scale, bool) and isinstance(scale, int):
            text = text.replace("alpha * ", "") if scale == 1 else text
        if "alpha" in text:
            operands["alpha"] = scale
        return self.pointwise(text, **operands)

    def operand(self, value: Any) -> Any:
        """The value of a tensor, reshaped afterwards or not; numbers stay."""
        if not hasattr(value, "untyped_storage"):
            return value
        return self.tensor(value, whole=False)

    def reduction(self, call: Call) -> Traced:
        """A reduction, by the function of the language that the table names."""
        arguments = call.arguments
        value: Traced = self.operand(arguments["self"])
        dtype = arguments.get("dtype")
        if dtype is not None:
            node = self.builder.cast(value.operand(), self.dtype(dtype)).node
            value = replace(value, node=node)
        if call.name == "count_nonzero":
            value = self.pointwise("x != 0", x=value)
        extra = {}
        if call.name in ("var", "std"):
            extra["correction"] = correction_of(arguments)
        function, keepdim = rows.REDUCTIONS[call.name], bool(arguments.get("keepdim", False))
        wanted = dims(arguments.get("dim"), len(value.shape), call.name, self)
        if not value.after:
            return self.reduce(function, value, wanted, keepdim, **extra)
        merged = merged_axis(value)
        if merged is None or call.name in ("argmax", "argmin"):
            raise self._reshaped()
        inner = in_two(wanted, merged)
        found = self.reduce(function, replace(value, after=()), inner, True, **extra)
        return reduced_under(found, value.shape, merged, wanted, keepdim)

    def reduce(
        self, function: str, value: Traced, dims: Sequence[int], keepdim: bool, **extra: Any
    ) -> Traced:
        """``function`` along axes of the tensor."""
        own = [value.axes[d] for d in dims]
        numbers = {k: self.number(v) for k, v in extra.items()}
        expanded = [d for d in dims if value.is_expanded(d)]
        if expanded and function not in ("sum", "mean", "max", "min", "any", "all"):
            raise self.unsupported(f"'{function}' runs over an expanded axis", "expand afterwards")
        axes = tuple(sorted(a for a in own if a is not None))
        text = ", ".join((f"{function}(x, axis=axis", *(f"{k}={k}" for k in numbers))) + ")"
        result = self.evaluate(text, x=value.operand(), axis=Axes(axes), **numbers)
        for d in expanded if function == "sum" else ():
            result = self.evaluate(
                "x * n", x=Tensor(result.node), n=self._symbolic(value.lengths[d])
            )
        kept = [i for i in range(len(value.axes)) if keepdim or i not in dims]
        lengths = tuple(1 if i in dims else value.lengths[i] for i in kept)
        return Traced(result.node, tuple(value.axes[i] for i in kept), lengths)


def _of_the_user(call: Call, error: UnsupportedError) -> UnsupportedError:
    """``error``, named by the operator that the function calls where PyTorch took that apart."""
    if call.origin is None:
        return error
    return UnsupportedError(
        f"{call.origin} is made of what fusec cannot fuse: {error.message}",
        source=error.diagnostic.source,
        span=error.diagnostic.span,
        hint="call it outside, between fused functions",
    )


_NAMELESS = ("input", "constant", "index", "size")


@cache
def _parsed(text: str) -> Program:
    return parse(Source(text, "<row>"))


@cache
def _text(function: str, names: tuple[str, ...]) -> str:
    """A call of an op or composite with as many of these arguments as it takes."""
    if function in OPS:
        op = OPS[function]
        if op.symbol is not None:
            return op.symbol.join(names[:2]) if op.arity == 2 else f"{op.symbol}{names[0]}"
        return f"{function}({', '.join(names[: op.arity])})"
    return f"{function}({', '.join(names[: _most(function)])})"


def _most(function: str) -> int:
    """How many operands an op or composite takes at most."""
    if function in OPS:
        return OPS[function].arity
    return max(len(row.parameters) for row in DERIVED[function])


def correction_of(arguments: Mapping[str, Any]) -> Any:
    """What is taken from the number of elements in a variance."""
    correction = arguments.get("correction", int(arguments.get("unbiased", True)))
    return 1 if correction is None else correction


def dims(dim: Any, rank: int, name: str, convert: Converter) -> list[int]:
    """The axes that ``dim`` names, counted from the left; all for None and for no axis."""
    listed = [dim] if isinstance(dim, int) else list(dim or range(rank))
    if name in ("argmax", "argmin") and dim is None and rank > 1:
        raise convert.unsupported(f"{name} over all axes of a tensor of rank {rank}", "name a dim")
    return [d % rank for d in listed] if rank else []
