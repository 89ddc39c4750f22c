"""Makes the nodes of elementwise operations: promotion, literals, broadcasting, casts, and their
errors.

Promotion is PyTorch's. A value that joins a 16-bit operation from another category or priority (a
run-time number, a length, integers) comes in the compute type, float32, so that implicit conversion
never rounds to 16 bits.

May import ``fusec.source``, ``fusec.errors``, ``fusec.ir`` and, of the frontend, ``syntax``,
``resolve_values`` and ``resolve_place``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeGuard

from fusec.errors import DTypeError, UnsupportedError
from fusec.frontend import resolve_values as values
from fusec.frontend.resolve_place import Place
from fusec.frontend.resolve_values import Axes, FoldError, Literal, Tensor, Value
from fusec.ir.dtypes import BOOL, F32, F64, I64, Category, DType, Operand, promote
from fusec.ir.node import Node, TensorType, constant, make
from fusec.ir.ops import OPS, Op, Rule

_NO_BOOLS = frozenset(
    ("sub", "neg", "floor_divide", "remainder", "fmod", "abs", "floor", "ceil", "trunc", "round")
)
_FLOAT_IN_FLOAT_OUT = (Rule.PROMOTE, Rule.FLOAT)
_ROUNDINGS = frozenset(("floor", "ceil", "trunc", "round"))
# Here a literal that wraps would be a wrong number without a word; PyTorch refuses it too.
_NO_WRAPPING = frozenset(("pow", "where", "maximum", "minimum", "fmod"))
_SYMBOL_FOR_FLOATS = {"bit_and": "and", "bit_or": "or", "bit_not": "not", "bit_xor": "!="}


@cache
def _promote(*operands: tuple[DType, int]) -> DType:
    return promote([Operand(dtype, priority) for dtype, priority in operands])


def _of_numbers(categories: list[Category]) -> DType:
    """The common type of Python numbers, which compute as in Python."""
    return {Category.BOOL: BOOL, Category.INTEGER: I64, Category.FLOAT: F64}[max(categories)]


def category(value: Literal | Tensor) -> Category:
    """What promotion compares first."""
    if isinstance(value, Tensor):
        return value.node.dtype.category
    if isinstance(value.value, bool):
        return Category.BOOL
    return Category.INTEGER if isinstance(value.value, int) else Category.FLOAT


def default_dtype(value: Literal) -> DType:
    """The type of a literal among Python numbers."""
    return _of_numbers([category(value)])


class Builder:
    """Turns operations on values into nodes; ``place`` says where, for spans, shapes and errors."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def apply(self, name: str, *operands: Value) -> Value:
        """The value of an elementwise op; raises DTypeError, ShapeError or UnsupportedError."""
        op = OPS[name]
        if _is_plain(operands, op):
            return self._finish(op, [v.node for v in operands], operands[0].node.dtype, operands)
        numbers = [self.number_or_tensor(v) for v in operands]
        if all(isinstance(v, Literal) for v in numbers):
            folded = self._fold(op, numbers)
            if folded is not None:
                return folded
        if op.rule is Rule.SELECT:
            return self._where(op, *numbers)
        common = self.common(op, numbers)
        if common.is_bool or name in ("sub", "neg"):
            self._refuse_bools(op, numbers)
        if name in _ROUNDINGS and not common.is_float:
            return numbers[0]
        if op.rule is Rule.BITWISE and common.is_float:
            raise self._no_bits(op)
        return self._make(op, numbers, common)

    def number_or_tensor(self, value: Value) -> Literal | Tensor:
        """``value``, which must not be axes."""
        if isinstance(value, Axes):
            raise self.place.error(
                DTypeError,
                "a tuple is no operand",
                hint="tuples serve as axis=(0, 1) and as the last line of a formula",
            )
        return value

    def common(self, op: Op, operands: list[Literal | Tensor]) -> DType:
        """The type ``operands`` compute in."""
        if all(isinstance(v, Literal) or v.priority == 2 for v in operands):
            return self._common_of_numbers(op, operands)
        pairs = [
            (v.node.dtype, v.priority) if isinstance(v, Tensor) else (default_dtype(v), 2)
            for v in operands
        ]
        common = _promote(*pairs)
        if op.rule is Rule.FLOAT and not common.is_float:
            return F32
        if op.name == "pow" and common.is_integer:
            self._check_integer_power(operands)
        return common

    def _common_of_numbers(self, op: Op, operands: list[Literal | Tensor]) -> DType:
        common = _of_numbers([category(v) for v in operands])
        if op.rule is Rule.FLOAT or (op.name == "pow" and _is_negative(operands[1])):
            return F64
        return I64 if common.is_bool and op.rule is Rule.PROMOTE else common

    def convert(self, value: Literal | Tensor, dtype: DType, wrap: bool = True) -> Node:
        """``value`` as an operand of an operation in ``dtype``."""
        if isinstance(value, Literal):
            return self._constant(value, dtype, wrap)
        node = value.node
        target = dtype if node.dtype is dtype else dtype.compute
        if node.dtype is target:
            return node
        return make("cast", (node,), TensorType(target, node.shape))

    def tensor(self, value: Literal | Tensor) -> Tensor:
        """``value`` as a node, a literal in the type of a Python number."""
        if isinstance(value, Tensor):
            return value
        return Tensor(self._constant(value, default_dtype(value), wrap=False), priority=2)

    def arithmetic(self, value: Tensor) -> Tensor:
        """``value`` in a type that has arithmetic: 8-bit floats become float32."""
        node = value.node
        if not (node.dtype.is_float and node.dtype.bits == 8):
            return value
        return self.like(value, make("cast", (node,), TensorType(F32, node.shape)))

    def floating(self, value: Value) -> Value:
        """``value``, integers and bools as float32; a number keeps giving way to tensors."""
        if not isinstance(value, Tensor) or value.node.dtype.is_float:
            return value
        return self.like(value, self.convert(value, F64 if value.priority == 2 else F32))

    def like(self, value: Tensor, node: Node) -> Tensor:
        """``node`` with the axes and the priority of ``value``; notes where it stands."""
        self.place.note(node)
        return Tensor(node, value.priority, value.kept, value.reduced)

    def truth(self, value: Value) -> Literal | Tensor:
        """``value`` as a bool: whether it is not 0."""
        number = self.number_or_tensor(value)
        if isinstance(number, Literal):
            return Literal(bool(number.value))
        return number if number.node.dtype.is_bool else self._tensor("ne", number, Literal(0))

    def cast(self, value: Value, dtype: DType) -> Tensor:
        """``value`` in the type a formula names; narrower floats round."""
        number = self.number_or_tensor(value)
        if dtype.is_bool:
            truth = self.tensor(self.truth(number))
            return Tensor(truth.node, min(truth.priority, 1), truth.kept, truth.reduced)
        if isinstance(number, Literal) and self._exact_as_constant(number, dtype):
            return Tensor(constant(number.value, dtype), priority=1)
        tensor = self.tensor(number)
        node, priority = tensor.node, min(tensor.priority, 1)
        rounded = dtype.compute is dtype or node.op.name in ("input", "gather", "cast")
        if node.dtype is not dtype or not rounded:
            node = self.place.note(make("cast", (node,), TensorType(dtype, node.shape)))
        return Tensor(node, priority, tensor.kept, tensor.reduced)

    def _tensor(self, name: str, *operands: Value) -> Tensor:
        result = self.apply(name, *operands)
        assert isinstance(result, Tensor)
        return result

    def _exact_as_constant(self, number: Literal, dtype: DType) -> bool:
        if dtype.is_float:
            return dtype.bits >= 32
        return not isinstance(number.value, float)

    def _make(self, op: Op, operands: list[Literal | Tensor], common: DType) -> Tensor:
        wrap = op.name not in _NO_WRAPPING
        nodes = [self.convert(v, common, wrap) for v in operands]
        dtype = BOOL if op.rule is Rule.BOOL else common
        return self._finish(op, nodes, dtype, operands)

    def _finish(
        self, op: Op, nodes: list[Node], dtype: DType, operands: Sequence[Literal | Tensor]
    ) -> Tensor:
        shape = nodes[0].shape
        if any(n.shape != shape for n in nodes):
            shape = self.place.broadcast(nodes)
        kept = reduced = 0
        priority = 2
        for value in operands:
            if isinstance(value, Tensor):
                kept |= value.kept
                reduced |= value.reduced
                priority = min(priority, value.priority)
        node = make(op, nodes, TensorType(dtype, shape))
        self.place.note(node)
        return Tensor(node, priority, kept, reduced & ~kept)

    def _where(
        self, op: Op, condition: Literal | Tensor, a: Literal | Tensor, b: Literal | Tensor
    ) -> Tensor:
        if category(condition) is not Category.BOOL:
            raise self.place.error(
                DTypeError,
                f"the condition of where must be bool, and {self._described(condition, 0)}",
                hint="compare it, as in 'where(c != 0, a, b)'",
                operand=0,
            )
        if isinstance(condition, Tensor) and condition.priority < 2:
            pairs = [
                (v.node.dtype, v.priority) if isinstance(v, Tensor) else (default_dtype(v), 2)
                for v in (a, b)
            ]
            common = _promote(*pairs)
        else:
            common = self.common(op, [a, b])
        nodes = [self.convert(condition, BOOL)]
        nodes += [self.convert(v, common, wrap=False) for v in (a, b)]
        return self._finish(op, nodes, common, [condition, a, b])

    def _fold(self, op: Op, operands: list[Literal | Tensor]) -> Literal | None:
        numbers = [v.value for v in operands if isinstance(v, Literal)]
        try:
            if op.name in values.BINARY:
                return Literal(values.fold_binary(op.name, *numbers))
            folded = values.fold_unary(op.name, numbers[0]) if op.arity == 1 else None
        except FoldError as problem:
            raise self.place.error(UnsupportedError, str(problem)) from None
        return None if folded is None else Literal(folded)

    def _constant(self, value: Literal, dtype: DType, wrap: bool) -> Node:
        number = value.value
        if dtype.is_integer and isinstance(number, int):
            limits = I64 if wrap else dtype
            if not limits.minimum <= number <= limits.maximum:
                raise self.place.error(
                    DTypeError,
                    f"{_short(number)} does not fit {limits.name}",
                    hint="convert the other operand to a wider type, or write a float",
                )
        return constant(number, dtype)

    def _refuse_bools(self, op: Op, operands: list[Literal | Tensor]) -> None:
        if op.name not in _NO_BOOLS and op.name != "pow":
            return
        if all(isinstance(v, Literal) or v.priority == 2 for v in operands):
            return
        for position, value in enumerate(operands):
            if category(value) is not Category.BOOL:
                continue
            hint = (
                "use 'not' for a bool" if op.name == "neg" else "convert it first, as in 'i32(x)'"
            )
            if op.name == "sub":
                hint = "use '!=' for bools, or convert them first, as in 'i32(x)'"
            symbol = op.symbol or op.name
            raise self.place.error(
                DTypeError,
                f"'{symbol}' does not work on bools, and {self._described(value, position)}",
                hint=hint,
            )

    def _no_bits(self, op: Op) -> Exception:
        word = _SYMBOL_FOR_FLOATS[op.name]
        return self.place.error(
            DTypeError,
            f"'{op.symbol or op.name}' needs integers or bools, not floats",
            hint=f"use '{word}' for logic",
        )

    def _check_integer_power(self, operands: list[Literal | Tensor]) -> None:
        if _is_negative(operands[1]):
            raise self.place.error(
                DTypeError,
                "integers to negative integer powers are not allowed",
                hint=f"convert the base first, as in 'f32({self.place.label(0, 'a')})^-1'",
            )

    def _described(self, value: Literal | Tensor, position: int) -> str:
        dtype = value.node.dtype if isinstance(value, Tensor) else default_dtype(value)
        return f"{self.place.label(position, 'it')} is {dtype.name}"


def _is_plain(operands: tuple[Value, ...], op: Op) -> TypeGuard[tuple[Tensor, ...]]:
    """Whether nothing needs to be converted: tensors of one float type, the usual case."""
    first = operands[0]
    if op.rule not in _FLOAT_IN_FLOAT_OUT or not isinstance(first, Tensor) or first.priority == 2:
        return False
    dtype = first.node.dtype
    if not dtype.is_float or dtype.bits == 8:
        return False
    return all(
        isinstance(v, Tensor) and v.node.dtype is dtype and v.priority < 2 for v in operands[1:]
    )


def _is_negative(value: Literal | Tensor) -> bool:
    return isinstance(value, Literal) and isinstance(value.value, int) and value.value < 0


def _short(number: int) -> str:
    return str(number) if abs(number) < 10**24 else "the number"
