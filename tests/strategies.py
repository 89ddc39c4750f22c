"""Hypothesis strategy for random programs, each with the error that a good kernel may make.

A program comes with an error analysis done while it is drawn. Each value knows an interval it stays
in and a bound of its absolute error, from the derivative of each operation on that interval and the
rounding of the type it computes in. Nothing discontinuous (comparison, rounding to whole numbers,
argmax) is applied to a value that is not exact. So a kernel that is further from the float64 result
than ``tolerance`` is wrong, and not merely rounded otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from fusec.ir import dtypes
from fusec.ir.dtypes import DType

FLOATS = ("f32", "bf16", "f16", "f64")
INTEGERS = ("i64", "i32", "i16", "i8", "u8")
_LIMIT = 32.0  # magnitudes stay below this, so that no type overflows
_EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
_FUNCTION_ULP = 4.0  # a library function on a GPU is allowed this much
_INLINE = 60  # longer expressions get a name


@dataclass(frozen=True)
class Value:
    """An expression in a program: its text, what kind of type it has, its shape, interval, and
    error bound.
    """

    text: str
    kind: str  # float, int or bool
    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0
    error: float = 0.0  # absolute
    epsilon: float = 0.0  # of the type it was computed in; 0 for integers and bools
    direct: bool = False  # an input as it is

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True)
class Program:
    """A formula, its inputs (type and shape; shape None is a Python number) and how exact each
    output is.

    ``error`` and ``size`` hold an absolute error bound of the computation and the largest
    magnitude, per output.
    """

    formula: str
    inputs: dict[str, tuple[str, tuple[int, ...] | None]]
    seed: int
    error: tuple[float, ...] = field(default=(), compare=False)
    size: tuple[float, ...] = field(default=(), compare=False)
    exact: tuple[bool, ...] = field(default=(), compare=False)


def tolerance(program: Program, output: int, dtype: str) -> float:
    """The largest absolute error of an output stored as ``dtype`` (``f32``); 0 where it must be
    equal.
    """
    if program.exact[output]:
        return 0.0
    # Twice the bound of first order, half a step of the stored type (which float16 may have below
    # its normal range).
    stored = 0.5 * _EPSILON[dtype] * program.size[output] + (2.0**-25 if dtype == "f16" else 0.0)
    return 2.0 * program.error[output] + 1.01 * stored


def make_inputs(program: Program, device: str = "cpu") -> dict[str, Any]:
    """The inputs, by name: tensors on ``device``, floats in [-2, 2], integers in [-9, 9] (u8: [0,
    9]); numbers.
    """
    import torch

    generator = torch.Generator().manual_seed(program.seed)
    made: dict[str, Any] = {}
    for name, (dtype, shape) in program.inputs.items():
        kind = dtypes.by_name(dtype)
        if kind.is_float:
            drawn = torch.rand(shape or (), generator=generator, dtype=torch.float64) * 4 - 2
        elif kind.is_bool:
            drawn = torch.randint(0, 2, shape or (), generator=generator)
        else:
            drawn = torch.randint(-9 if kind.signed else 0, 10, shape or (), generator=generator)
        if shape is None:
            number = drawn.to(torch.float32).item() if kind.is_float else drawn.item()
            made[name] = bool(number) if kind.is_bool else number
        else:
            made[name] = drawn.to(getattr(torch, kind.torch)).to(device)
    return made


# Each row: name, the interval it may be applied to, and bound and slope on an interval.
_Bounds = Callable[[float, float], tuple[float, float]]
_Slope = Callable[[float, float], float]


def _monotone(function: Callable[[float], float]) -> _Bounds:
    return lambda low, high: (function(low), function(high))


def _within(low: float, high: float) -> _Bounds:
    return lambda a, b: (low, high)


_UNARY: tuple[tuple[str, float, float, _Bounds, _Slope], ...] = (
    ("exp", -8.0, 3.0, _monotone(math.exp), lambda a, b: math.exp(b)),
    ("exp2", -8.0, 4.0, _monotone(lambda v: 2.0**v), lambda a, b: 2.0**b),
    ("expm1", -8.0, 3.0, _monotone(math.expm1), lambda a, b: math.exp(b)),
    ("log", 0.25, _LIMIT, _monotone(math.log), lambda a, b: 1 / a),
    ("log2", 0.25, _LIMIT, _monotone(math.log2), lambda a, b: 1.5 / a),
    ("log1p", -0.5, _LIMIT, _monotone(math.log1p), lambda a, b: 1 / (1 + a)),
    ("sqrt", 0.25, _LIMIT, _monotone(math.sqrt), lambda a, b: 1.0),
    ("rsqrt", 0.25, _LIMIT, lambda a, b: (b**-0.5, a**-0.5), lambda a, b: 0.5 * a**-1.5),
    ("tanh", -_LIMIT, _LIMIT, _within(-1, 1), lambda a, b: 1.0),
    ("sigmoid", -_LIMIT, _LIMIT, _within(0, 1), lambda a, b: 0.25),
    ("sin", -_LIMIT, _LIMIT, _within(-1, 1), lambda a, b: 1.0),
    ("cos", -_LIMIT, _LIMIT, _within(-1, 1), lambda a, b: 1.0),
    ("atan", -_LIMIT, _LIMIT, _within(-1.6, 1.6), lambda a, b: 1.0),
    ("erf", -_LIMIT, _LIMIT, _within(-1, 1), lambda a, b: 1.13),
    ("relu", -_LIMIT, _LIMIT, _monotone(lambda v: max(v, 0.0)), lambda a, b: 1.0),
    ("silu", -_LIMIT, _LIMIT, lambda a, b: (-0.3, max(b, 0.1)), lambda a, b: 1.1),
    ("softplus", -_LIMIT, 15.0, lambda a, b: (0.0, max(b, 0.0) + 0.7), lambda a, b: 1.0),
    ("gelu", -_LIMIT, _LIMIT, lambda a, b: (-0.2, max(b, 0.1)), lambda a, b: 1.2),
)


def _spread(a: Value, b: Value, function: Callable[[float, float], float]) -> tuple[float, float]:
    corners = [function(u, v) for u in (a.low, a.high) for v in (b.low, b.high)]
    return min(corners), max(corners)


def _broadcast(*values: Value) -> tuple[int, ...]:
    rank = max(len(v.shape) for v in values)
    padded = [(1,) * (rank - len(v.shape)) + v.shape for v in values]
    return tuple(max(extents) for extents in zip(*padded, strict=True))


class _Builder:
    """Draws one program, a statement at a time, from a pool of values."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.pool: list[Value] = []
        self.inputs: dict[str, tuple[str, tuple[int, ...] | None]] = {}

    def choose(self, items: Any) -> Any:
        return self.draw(st.sampled_from(list(items)))

    def values(self, kind: str) -> list[Value]:
        """The newest first: what is drawn early in a list is drawn more often."""
        return [v for v in reversed(self.pool) if v.kind == kind]

    def add(self, value: Value) -> None:
        """Put ``value`` into the pool, named if it is long or by chance."""
        if value.kind != "bool" and not value.size <= _LIMIT:
            return
        if len(value.text) > _INLINE or self.draw(st.booleans()):
            name = f"t{len(self.lines)}"
            self.lines.append(f"{name} = {value.text}")
            value = Value(
                name, value.kind, value.shape, value.low, value.high, value.error, value.epsilon
            )
        self.pool.append(value)

    def add_inputs(self) -> None:
        outer = self.draw(st.lists(st.integers(1, 6), max_size=2))
        full = (*outer, self.choose((3, 1, 2, 4, 7, 8, 33, 130)))
        floating = self.choose(FLOATS)
        self.input("x", floating, full)
        for name in ("y", "w", "i", "b")[: self.draw(st.integers(0, 4))]:
            kinds = {"i": INTEGERS, "b": ("bool",)}.get(name, (floating, *FLOATS))
            shape = tuple(e if self.draw(st.booleans()) else 1 for e in full)
            shape = shape[self.draw(st.integers(0, len(full))) :]
            number = self.draw(st.integers(0, 5)) == 0
            self.input(name, self.choose(kinds), None if number else shape)

    def input(self, name: str, dtype: str, shape: tuple[int, ...] | None) -> None:
        kind = dtypes.by_name(dtype)
        if shape is None:
            dtype = {"float": "f64", "int": "i64", "bool": "bool"}[_kind(kind)]
        self.inputs[name] = (dtype, shape)
        extents = shape or ()
        if kind.is_float:
            epsilon = _EPSILON[kind.compute.name]
            if shape is None:  # a number takes the type of the tensors it meets, or float32
                self.pool.append(Value(name, "float", extents, -2, 2, 0.0, _EPSILON["f32"]))
            else:
                self.pool.append(Value(name, "float", extents, -2, 2, 0.0, epsilon, direct=True))
        elif kind.is_bool:
            self.pool.append(Value(name, "bool", extents, direct=True))
        elif shape is not None and not kind.signed:
            self.pool.append(Value(f"i32({name})", "int", extents, 0, 9, direct=True))
        else:
            self.pool.append(Value(name, "int", extents, -9, 9, direct=True))

    def step(self) -> None:
        """One more value, of an operation that has operands in the pool."""
        makers = [self.unary, self.unary, self.binary, self.binary, self.constant, self.reduce]
        makers += [self.cast, self.compare, self.select, self.integer, self.logic, self.whole]
        value = self.choose(makers)()
        if value is not None:
            self.add(value)

    def unary(self) -> Value | None:
        v = self.choose(self.values("float"))
        rows = [row for row in _UNARY if row[1] <= v.low and v.high <= row[2]]
        name, _, _, bounds, slope = self.choose(rows) if rows else ("neg", 0, 0, None, None)
        if bounds is None or slope is None:
            return Value(f"(-{v.text})", "float", v.shape, -v.high, -v.low, v.error, v.epsilon)
        low, high = bounds(v.low, v.high)
        error = slope(v.low, v.high) * v.error + _FUNCTION_ULP * v.epsilon * max(
            abs(low), abs(high), 1.0
        )
        return Value(f"{name}({v.text})", "float", v.shape, low, high, error, v.epsilon)

    def binary(self) -> Value | None:
        a = self.choose(self.values("float"))
        b = self.choose(self.values("float") + self.values("int"))
        if self.draw(st.booleans()) and b.kind == "float":
            a, b = b, a
        shape, epsilon = _broadcast(a, b), max(a.epsilon, b.epsilon)
        sign = self.choose("+-*/mM")
        if sign == "/" and b.low <= 0.2 and b.high >= -0.2:
            sign = "*"
        if sign in "mM":
            name, pick = ("minimum", min) if sign == "m" else ("maximum", max)
            low, high = pick(a.low, b.low), pick(a.high, b.high)
            return Value(f"{name}({a.text}, {b.text})", "float", shape, low, high,
                         max(a.error, b.error), epsilon)  # fmt: skip
        if sign in "+-":
            low, high = _spread(a, b, (lambda u, v: u + v) if sign == "+" else (lambda u, v: u - v))
            error = a.error + b.error
        elif sign == "*":
            low, high = _spread(a, b, lambda u, v: u * v)
            error = a.error * b.size + b.error * a.size
        else:
            least = min(abs(b.low), abs(b.high))
            low, high = _spread(a, b, lambda u, v: u / v)
            error = a.error / least + b.error * a.size / least**2
        error += epsilon * max(abs(low), abs(high))
        return Value(f"({a.text} {sign} {b.text})", "float", shape, low, high, error, epsilon)

    def constant(self) -> Value | None:
        v = self.choose(self.values("float"))
        number = self.choose((0.5, 1.0, 2.0, 0.1, 3.0, 1.5, 0.044715))
        form = self.choose(("{0} * {1}", "{0} + {1}", "{1} - {0}", "{0} / {1}", "square"))
        if form == "square":
            error = 2 * v.size * v.error + 2 * v.epsilon * v.size**2
            low = 0.0 if v.low <= 0 <= v.high else min(v.low**2, v.high**2)
            return Value(f"(({v.text})^2)", "float", v.shape, low, v.size**2, error, v.epsilon)
        scale = {"{0} * {1}": number, "{0} / {1}": 1 / number}.get(form, 1.0)
        at = {"{0} + {1}": lambda u: u + number, "{1} - {0}": lambda u: number - u}.get(
            form, lambda u: u * scale
        )
        low, high = sorted((at(v.low), at(v.high)))
        error = v.error * scale + v.epsilon * (max(abs(low), abs(high)) + number)
        return Value(
            f"({form.format(v.text, number)})", "float", v.shape, low, high, error, v.epsilon
        )

    def reduce(self) -> Value | None:
        v = self.choose([u for u in self.pool if u.shape and u.kind != "bool"])
        axis = self.draw(st.integers(-len(v.shape), -1))
        n = v.shape[axis]
        shape = tuple(1 if i - len(v.shape) == axis else e for i, e in enumerate(v.shape))
        where = "" if axis == -1 else f", axis={axis}"
        if v.kind == "int":
            name = self.choose(("sum", "max", "min"))
            factor = n if name == "sum" else 1
            return Value(f"{name}({v.text}{where})", "int", shape, v.low * factor, v.high * factor)
        fuzz = (n + 2) * v.epsilon * v.size  # of a sum, over n
        rows: list[tuple[str, tuple[int, ...], float, float, float]] = [
            ("sum", shape, n * v.low, n * v.high, n * (v.error + fuzz)),
            ("mean", shape, v.low, v.high, v.error + fuzz),
            ("max", shape, v.low, v.high, v.error),
            ("min", shape, v.low, v.high, v.error),
            (
                "logsumexp",
                shape,
                v.low,
                v.high + math.log(n),
                v.error + (n + 12) * v.epsilon * (1 + v.size),
            ),
            ("softmax", v.shape, 0.0, 1.0, 2 * v.error + (n + 12) * v.epsilon * (1 + v.size)),
        ]
        if v.size <= 1:
            rows.append(("prod", shape, -1.0, 1.0, n * v.error + n * v.epsilon))
        name, shape, low, high, error = self.choose(rows)
        return Value(f"{name}({v.text}{where})", "float", shape, low, high, error, v.epsilon)

    def cast(self) -> Value | None:
        v = self.choose([u for u in self.pool if u.kind != "int" or u.size <= _LIMIT])
        name = self.choose(("f32", "bf16", "f16"))
        step = _EPSILON[name] if name != "f32" or v.epsilon < _EPSILON["f32"] else 0.0
        error = v.error + step * v.size + (2.0**-24 if name == "f16" else 0.0)
        return Value(f"{name}({v.text})", "float", v.shape, v.low, v.high, error, _EPSILON["f32"])

    def compare(self) -> Value | None:
        exact = [v for v in self.pool if v.kind == "int" or (v.kind == "float" and v.direct)]
        if not exact:
            return None
        v, sign = self.choose(exact), self.choose(("<", "<=", ">", ">=", "==", "!="))
        return Value(f"({v.text} {sign} {self.choose(('0', '1', '-1', '0.5'))})", "bool", v.shape)

    def select(self) -> Value | None:
        if not self.values("bool"):
            return None
        condition, a, b = (self.choose(self.values(k)) for k in ("bool", "float", "float"))
        text = f"where({condition.text}, {a.text}, {b.text})"
        low, high = min(a.low, b.low), max(a.high, b.high)
        error, epsilon = max(a.error, b.error), max(a.epsilon, b.epsilon)
        return Value(text, "float", _broadcast(condition, a, b), low, high, error, epsilon)

    def integer(self) -> Value | None:
        if not self.values("int"):
            return None
        a, b = (self.choose(self.values("int")) for _ in "ab")
        form = self.choose(("+", "-", "*", "// 3", "% 5", "abs"))
        if form in "+-*":
            function = {"+": lambda u, v: u + v, "-": lambda u, v: u - v, "*": lambda u, v: u * v}[
                form
            ]
            low, high = _spread(a, b, function)
            return Value(f"({a.text} {form} {b.text})", "int", _broadcast(a, b), low, high)
        if form == "abs":
            return Value(f"abs({a.text})", "int", a.shape, 0, a.size)
        low, high = (0.0, 4.0) if form == "% 5" else (a.low / 3 - 1, a.high / 3)
        return Value(f"({a.text} {form})", "int", a.shape, low, high)

    def logic(self) -> Value | None:
        if not self.values("bool"):
            return None
        a, b = (self.choose(self.values("bool")) for _ in "ab")
        form = self.choose(("({0} and {1})", "({0} or {1})", "(not {0})"))
        shape = a.shape if form == "(not {0})" else _broadcast(a, b)
        return Value(form.format(a.text, b.text), "bool", shape)

    def whole(self) -> Value | None:
        """Rounding to whole numbers, of inputs only: they are exact."""
        direct = [v for v in self.values("float") if v.direct]
        if not direct:
            return None
        v, name = self.choose(direct), self.choose(("floor", "ceil", "trunc", "round", "i32"))
        kind, epsilon = ("int", 0.0) if name == "i32" else ("float", v.epsilon)
        return Value(f"{name}({v.text})", kind, v.shape, v.low, v.high, 0.0, epsilon)


def _kind(dtype: DType) -> str:
    return "float" if dtype.is_float else "bool" if dtype.is_bool else "int"


@st.composite
def programs(draw: Any, max_steps: int = 10) -> Program:
    """Formulas over tensors and numbers of several types, with one to three outputs."""
    builder = _Builder(draw)
    builder.add_inputs()
    for _ in range(draw(st.integers(2, max_steps))):
        builder.step()
    made = builder.pool[: len(builder.inputs) - 1 : -1][:4] or builder.pool[:1]
    chosen = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    lines = [*builder.lines, ", ".join(v.text for v in chosen)]
    formula = "\n".join(lines)
    return Program(
        formula,
        {name: spec for name, spec in builder.inputs.items() if _uses(formula, name)},
        draw(st.integers(0, 2**31 - 1)),
        tuple(v.error for v in chosen),
        tuple(v.size for v in chosen),
        tuple(v.kind != "float" for v in chosen),
    )


def _uses(formula: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", formula) is not None
