"""Reductions, positions and lengths: everything that names an axis.

May import ``fusec.errors``, ``fusec.ir`` and, of the frontend, ``resolve_build``, ``resolve_place``
and ``resolve_values``.
"""

from __future__ import annotations

from fusec.errors import DTypeError, ShapeError, UnsupportedError
from fusec.frontend.resolve_build import Builder
from fusec.frontend.resolve_place import Place
from fusec.frontend.resolve_values import (
    Axes,
    Literal,
    Tensor,
    Value,
    axis_bit,
)
from fusec.ir.dtypes import I64, U8
from fusec.ir.graph import InputSpec, Nonempty
from fusec.ir.node import Dim, Extent, Shape, TensorType, constant, make
from fusec.ir.ops import OPS


class Reducer:
    """Makes reductions, ``index`` and ``size``; ``positions`` are the inputs inside ``x[...]``."""

    def __init__(
        self, builder: Builder, specs: tuple[InputSpec, ...], positions: frozenset[str]
    ) -> None:
        self.builder = builder
        self.place: Place = builder.place
        self._shapes = _index_space(specs, positions)

    def axes(self, axis: Value, shape: Shape, what: str) -> tuple[int, ...]:
        """The negative axes that ``axis`` names, ascending; raises ShapeError."""
        rank = len(shape)
        if isinstance(axis, Literal) and type(axis.value) is int:
            wanted: tuple[int, ...] = (axis.value,)
        elif isinstance(axis, Axes):
            wanted = axis.axes if axis.axes is not None else tuple(range(-rank, 0))
        else:
            raise self.place.error(
                ShapeError,
                "axis must be an integer, a tuple of integers or 'all'",
                hint="an axis is chosen when the formula is compiled, not when it runs",
            )
        result = [self._axis(a, rank, what) for a in wanted]
        if len(set(result)) < len(result):
            raise self.place.error(ShapeError, f"axis {wanted} names an axis twice")
        return tuple(sorted(a for a in result if -a <= rank))

    def _axis(self, axis: int, rank: int, what: str) -> int:
        length = max(rank, 1)  # as in PyTorch, a number has an axis to reduce, of length 1
        if not -length <= axis < length:
            raise self.place.error(
                ShapeError,
                f"axis {axis} is out of range: {what} has rank {rank}",
                hint=f"axes go from {-length} to {length - 1}",
            )
        return axis - length if axis >= 0 else axis

    def reduce(self, name: str, value: Value, axis: Value, keepdim: Value) -> Tensor:
        """``sum``, ``prod``, ``max`` or ``min`` of a value along axes, which stay with length 1."""
        builder, op = self.builder, OPS[name]
        tensor = self._operand(name, value)
        shape = tensor.node.shape
        axes = self.axes(axis, shape, self.place.label(0, "its operand"))
        for a in axes:
            extent = shape[a]
            if name in ("max", "min") and not self.place.frame.internal and isinstance(extent, Dim):
                self.require_nonempty(name, extent)
        is_truth = tensor.node.dtype.is_bool
        if is_truth:  # max and min: through bytes, which every backend reduces
            tensor = builder.like(tensor, builder.convert(tensor, U8))
        long = tuple(a for a in axes if shape[a] != 1)
        if long:
            left = tuple(1 if i - len(shape) in long else e for i, e in enumerate(shape))
            node = make(op, (tensor.node,), TensorType(tensor.node.dtype, left), axes=long)
            self.place.note(node)
        else:
            node = tensor.node
            if (
                name == "sum" and node.dtype.is_float
            ):  # a sum starts from 0, which turns -0.0 into 0
                node = builder.tensor(self._plus_zero(tensor)).node
        result = self.drop(
            Tensor(node, tensor.priority, tensor.kept, tensor.reduced), axes, keepdim
        )
        if not is_truth:
            return result
        truth = builder.apply("ne", result, Literal(0))
        assert isinstance(truth, Tensor)
        return truth

    def _plus_zero(self, tensor: Tensor) -> Literal | Tensor:
        return self.builder.number_or_tensor(self.builder.apply("add", tensor, Literal(0)))

    def _operand(self, name: str, value: Value) -> Tensor:
        builder = self.builder
        tensor = builder.arithmetic(builder.tensor(builder.number_or_tensor(value)))
        if name in ("sum", "prod") and not tensor.node.dtype.is_float:
            return builder.like(tensor, builder.convert(tensor, I64))
        return tensor

    def drop(self, value: Tensor, axes: tuple[int, ...], keepdim: Value) -> Tensor:
        """``value`` with ``axes`` marked as reduced away, or with keepdim as kept."""
        if not (isinstance(keepdim, Literal) and keepdim.value in (0, 1)):
            raise self.place.error(DTypeError, "keepdim must be true or false")
        bits = sum(axis_bit(a) for a in axes)
        if keepdim.value:
            return Tensor(value.node, value.priority, value.kept | bits, value.reduced & ~bits)
        return Tensor(value.node, value.priority, value.kept & ~bits, value.reduced | bits)

    def require_nonempty(self, function: str, dim: Dim) -> None:
        """Record that ``function`` needs ``dim`` to be at least 1."""
        dim = self.place.canonical(dim)
        self.place.nonempty.setdefault((function, dim), Nonempty(function, dim, self.place.span))

    def refuse_integers(self, name: str, value: Value) -> None:
        """Raise DTypeError for an integer or bool operand of a function of floats."""
        if not isinstance(value, Tensor) or value.node.dtype.is_float:
            return
        label = self.place.label(0, "x")
        raise self.place.error(
            DTypeError,
            f"{name} needs floats, and {label} is {value.node.dtype.name}",
            hint=f"convert it first, as in '{name}(f32({label}))'",
        )

    def index(self, of: Value | None, axis: Value) -> Tensor:
        """Positions along one axis, of a value or of all inputs together."""
        shape, axes = self._space(of, axis, "index")
        if len(axes) > 1:
            raise self.place.error(
                UnsupportedError,
                f"index, argmax and argmin take one axis, and here are {len(axes)}",
                hint="name one, as in 'argmax(x, axis=0)'",
            )
        if not axes:
            return Tensor(self.place.note(constant(0, I64)))
        extent = shape[axes[0]]
        own: Shape = (extent, *([1] * (-axes[0] - 1)))
        node = make("index", (), TensorType(I64, own), axis=axes[0], dim=str(extent))
        return Tensor(self.place.note(node), kept=axis_bit(axes[0]))

    def size(self, of: Value | None, axis: Value) -> Value:
        """The length of an axis, or the product over several, as a run-time number."""
        shape, axes = self._space(of, axis, "size")
        result: Value = Literal(1)
        for a in axes:
            extent = shape[a]
            if isinstance(extent, Dim):
                node = make("size", (), TensorType(I64, ()), axis=a, dim=extent.name)
                length = Tensor(self.place.note(node), priority=2)
                whole = not isinstance(result, Literal)
                result = self.builder.apply("mul", result, length) if whole else length
        return result

    def _space(self, of: Value | None, axis: Value, function: str) -> tuple[Shape, tuple[int, ...]]:
        if of is None:
            shape: Shape = self._all_inputs(axis, function)
            return shape, self.axes(axis, shape, "the inputs together")
        tensor = self.builder.tensor(self.builder.number_or_tensor(of))
        shape = tensor.node.shape
        return shape, self.axes(axis, shape, self.place.label(0, "its operand"))

    def _all_inputs(self, axis: Value, function: str) -> Shape:
        rank = max(map(len, self._shapes.values()), default=0)
        result: list[Extent] = [1] * rank
        wanted = self.axes(axis, tuple(result), "the inputs together")
        for name, shape in self._shapes.items():
            for a in wanted:
                if len(shape) < -a:
                    continue
                common = self.place.unify(result[a], shape[a])
                if common is None:
                    raise self._ambiguous(function, a, name, (result[a], shape[a]))
                result[a] = common
        return tuple(result)

    def _ambiguous(
        self, function: str, axis: int, name: str, extents: tuple[Extent, Extent]
    ) -> Exception:
        a, b = map(self.place.length, extents)
        return self.place.error(
            ShapeError,
            f"{function}({axis}) has no one meaning: axis {axis} has length {a}, but {b} in {name}",
            hint=f"name the tensor, as in '{function}({name}, {axis})'",
        )


def _index_space(specs: tuple[InputSpec, ...], positions: frozenset[str]) -> dict[str, Shape]:
    """The shapes of the tensor inputs, those of positions with the axis that they pick from."""
    tensors = [s for s in specs if not s.scalar]
    rank = max((len(s.shape) for s in tensors if s.name not in positions), default=0)
    return {
        s.name: (*s.shape, 1) if s.name in positions and len(s.shape) < rank else s.shape
        for s in tensors
    }
