"""The one place for an operator: everything fusec knows of an op is its row here.

From this table alone come the names the parser knows, ``did you mean``, ``docs/ops.md`` and the
parametrised tests of each backend against the PyTorch reference. A lowering is data (infix, call,
template); where a backend has none it is an explicit ``unsupported`` with the reason. Composite
functions (gelu, softmax) are in ``ir/derived.py``.

A derivative is a function of ``o`` (through which it reaches other ops: ``o.exp(x)``), the gradient
``g`` of the result, the result ``y`` and the operands, all expressions with overloaded operators.
It returns the gradient of each operand, as PyTorch defines it; None where there is none. In a
reduction ``o.sum`` and ``o.prod`` run over its axes and ``o.count()`` is the number of elements.

May import ``ir.dtypes`` and ``ir.derivatives``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeAlias

from fusec.ir.derivatives import angle, digamma, extreme, power, product
from fusec.ir.dtypes import DType

Derivative: TypeAlias = "Callable[..., tuple[Any, ...]]"


class Kind(Enum):
    """How an op uses its index space."""

    LEAF = "leaf"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"


class Rule(Enum):
    """The type of a result, from the common type of the operands (PyTorch's promotion)."""

    PROMOTE = "promote"  # the common type
    FLOAT = "float"  # the common type, float32 for integers and bools
    BOOL = "bool"  # operands promoted, result bool
    BITWISE = "bitwise"  # integers and bools only
    SELECT = "select"  # the first operand is a bool condition, the rest promoted
    ACCUMULATE = "accumulate"  # sums: integers and bools give int64
    SAME = "same"  # the operand's own type
    SPECIAL = "special"  # the frontend decides (leaves, casts, gathers)


@dataclass(frozen=True, slots=True)
class Infix:
    """``a symbol b``. ``precedence`` orders the printers' parentheses;

    Comparisons never chain without them.
    """

    symbol: str
    precedence: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """``symbol a``."""

    symbol: str
    precedence: int = 13


@dataclass(frozen=True, slots=True)
class Suffix:
    """``a text``: an operation that is printed behind its operand."""

    text: str
    precedence: int


@dataclass(frozen=True, slots=True)
class Call:
    """``name(a, b)``. ``long``: how long its code is, counted in sines, if arguments far out take
    ways of their own.
    """

    name: str
    long: int = 0


@dataclass(frozen=True, slots=True)
class Template:
    """Text with ``{0}``, ``{1}`` for the arguments (each printed as an argument of a call) and
    ``{type}``.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Unsupported:
    """This backend cannot do it; ``reason`` goes into the error."""

    reason: str


Form: TypeAlias = "Infix | Prefix | Suffix | Call | Template | Unsupported"


@dataclass(frozen=True, slots=True)
class Lowering:
    """How one backend spells an op: the usual form, and others for some operand types.

    ``fast`` is used where the storage type is 16 bits or fewer and the mode allows it: a function
    whose relative error is below a sixteenth of a bfloat16 or float16 rounding step.
    """

    usual: Form
    fast: Form | None = None
    double: Form | None = None
    integer: Form | None = None
    boolean: Form | None = None

    def pick(self, operand: DType, fast: bool = False) -> Form:
        """The form for operands of type ``operand``."""
        if operand.is_bool:
            return self.boolean or self.integer or self.usual
        if operand.is_integer:
            return self.integer or self.usual
        if operand.bits == 64:
            return self.double or self.usual
        return self.fast if fast and self.fast else self.usual


@dataclass(frozen=True, slots=True)
class Op:
    """One operator. ``torch`` is the name of the reference in PyTorch, or a function of (torch,
    *args).
    """

    name: str
    doc: str
    arity: int
    kind: Kind
    rule: Rule
    torch: str | Callable[..., Any]
    triton: Lowering
    cpp: Lowering
    cuda: Lowering
    sympy: str | None = None
    domain: tuple[float, float] = (-4.0, 4.0)
    costly: bool = False  # worth keeping rather than computing twice
    symbol: str | None = None  # how the language and the printed graph spell it, if not as a call
    identity: Callable[[DType], int | float] | None = None  # reductions: what a masked lane holds
    combine: str | None = None  # reductions: the op that joins two partial results
    empty: float | None = None  # reductions: the value of an axis of length 0, if not the identity
    derivative: Derivative | None = None  # None: the result does not depend smoothly on operands
    jumps: bool = False  # the result may be another at once where an operand hardly is

    def __repr__(self) -> str:
        return f"Op({self.name})"

    def __reduce__(self) -> tuple[object, ...]:
        return (lookup, (self.name,))


_NOT_PRINTED = Lowering(Unsupported("it is not an operation of a kernel"))
# comparisons and bit operations: Python and C order them differently, so they always get
# parentheses
_LOW = 5


def _leaf(name: str, doc: str, arity: int = 0, derivative: Derivative | None = None) -> Op:
    spelled = (_NOT_PRINTED,) * 3
    return Op(name, doc, arity, Kind.LEAF, Rule.SPECIAL, name, *spelled, derivative=derivative)


def _unary(
    name: str,
    doc: str,
    *,
    triton: Lowering | Form,
    cpp: Lowering | Form | None = None,
    cuda: Lowering | Form | None = None,
    rule: Rule = Rule.FLOAT,
    torch: str | Callable[..., Any] | None = None,
    sympy: str | None = None,
    domain: tuple[float, float] = (-4.0, 4.0),
    costly: bool = True,
    symbol: str | None = None,
    derivative: Derivative | None = None,
    jumps: bool = False,
) -> Op:
    return Op(
        name, doc, 1, Kind.ELEMENTWISE, rule, torch or name, _lowering(triton),
        _lowering(cpp or Call(f"fusec::{name}")), _lowering(cuda or _cuda(name)), sympy, domain,
        costly, symbol, derivative=derivative, jumps=jumps,
    )  # fmt: skip


def _binary(
    name: str,
    doc: str,
    *,
    triton: Lowering | Form,
    cpp: Lowering | Form | None = None,
    cuda: Lowering | Form | None = None,
    rule: Rule = Rule.PROMOTE,
    torch: str | Callable[..., Any] | None = None,
    sympy: str | None = None,
    domain: tuple[float, float] = (-4.0, 4.0),
    costly: bool = False,
    symbol: str | None = None,
    derivative: Derivative | None = None,
    jumps: bool = False,
) -> Op:
    return Op(
        name, doc, 2, Kind.ELEMENTWISE, rule, torch or name, _lowering(triton),
        _lowering(cpp or Call(f"fusec::{name}")), _lowering(cuda or _cuda(name)), sympy, domain,
        costly, symbol, derivative=derivative, jumps=jumps,
    )  # fmt: skip


def _infix(
    name: str,
    symbol: str,
    doc: str,
    precedence: int,
    rule: Rule,
    sympy: str | None = None,
    derivative: Derivative | None = None,
) -> Op:
    """A binary operator that Python and C++ spell alike;

    Bools multiply and add as ``&`` and ``|``. Signed arithmetic that overflows is undefined in
    CUDA C++, whose compilers cannot be told to wrap: there a function wraps.
    """
    boolean = {"add": Infix("|", _LOW), "mul": Infix("&", _LOW)}.get(name)
    both = Lowering(Infix(symbol, precedence), boolean=boolean)
    wraps = Call(f"wrapping_{name}") if name in ("add", "sub", "mul") else None
    return _binary(
        name,
        doc,
        triton=both,
        cpp=both,
        cuda=replace(both, integer=wraps),
        rule=rule,
        sympy=sympy,
        symbol=symbol,
        torch=_TORCH_NAMES.get(name),
        derivative=derivative,
    )


_TORCH_NAMES = {"bit_and": "bitwise_and", "bit_or": "bitwise_or", "bit_xor": "bitwise_xor"}


def _reduction(
    name: str,
    doc: str,
    rule: Rule,
    combine: str,
    *,
    torch: str,
    triton: str,
    identity: Callable[[DType], int | float],
    cpp: str = "fusec::finish_{name}({{0}})",
    cuda: str,
    empty: float | None = None,
    derivative: Derivative | None = None,
) -> Op:
    """``triton`` and ``cpp`` combine the lanes of a block, ``cuda`` names what joins the parts of
    two threads (with ``Wrapping`` before it two integers, where they may overflow); ``combine``
    joins two values.
    """
    block = Lowering(Template(triton)), Lowering(Template(cpp.format(name=name)))
    wraps = Call(f"Wrapping{cuda}") if combine in ("add", "mul") else None
    lowerings = (*block, Lowering(Call(cuda), integer=wraps))
    return Op(
        name, doc, 1, Kind.REDUCTION, rule, torch, *lowerings, identity=identity, combine=combine,
        empty=empty, derivative=derivative,
    )  # fmt: skip


def _lowering(form: Lowering | Form) -> Lowering:
    return form if isinstance(form, Lowering) else Lowering(form)


def _cuda(name: str, fast: str | None = None, long: int = 0) -> Lowering:
    """A function of the CUDA mathematics library, which has one for each width."""
    quick = Call(fast) if fast else None
    return Lowering(Call(f"{name}f", long=long), fast=quick, double=Call(name, long=long))


def _libdevice(name: str, fast: str | None = None) -> Lowering:
    return Lowering(Call(f"libdevice.{name}"), fast=Call(fast) if fast else None)


_NAN_MAX = Template("tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)")
_NAN_MIN = Template("tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)")

_ROWS: tuple[Op, ...] = (
    # Leaves: values that come from outside the arithmetic.
    _leaf("input", "a tensor or a run-time number"),
    _leaf("constant", "a literal"),
    _leaf("index", "the position along an axis, int64"),
    _leaf("size", "the length of an axis, int64"),
    _leaf("gather", "x[t]: the element of the last axis of an input that t names", 2,
          derivative=lambda o, g, y, x, t: (o.where(o.positions(x) == t, g, 0), None)),
    _leaf("cast", "the value in another type; rounds", 1,
          derivative=lambda o, g, y, x: (o.like(g, x),)),
    # Arithmetic.
    _infix("add", "+", "sum of two values", 11, Rule.PROMOTE, "Add",
           derivative=lambda o, g, y, a, b: (g, g)),
    _infix("sub", "-", "difference of two values", 11, Rule.PROMOTE,
           derivative=lambda o, g, y, a, b: (g, -g)),
    _infix("mul", "*", "product of two values", 12, Rule.PROMOTE, "Mul",
           derivative=lambda o, g, y, a, b: (g * b, g * a)),
    _binary(
        "div", "true division; integers give float32", rule=Rule.FLOAT, torch="true_divide",
        symbol="/",
        triton=Lowering(Call("tl.div_rn"), fast=Infix("/", 12), double=Infix("/", 12)),
        cpp=Infix("/", 12),
        cuda=Lowering(Infix("/", 12), fast=Call("quick_divide"), double=Infix("/", 12)),
        derivative=lambda o, g, y, a, b: (g / b, -g * (y / b)),
    ),
    _binary(
        "floor_divide", "quotient rounded towards minus infinity", symbol="//", costly=True,
        sympy=None, jumps=True,
        triton=Lowering(Call("_floor_divide"), integer=Call("_floor_divide_int")),
        cuda=Lowering(Call("floor_divide"), integer=Call("floor_divide_int")),
    ),
    _binary(
        "remainder", "remainder with the sign of the divisor", symbol="%", costly=True, sympy="Mod",
        jumps=True,
        triton=Lowering(Call("_remainder"), integer=Call("_remainder_int")),
        cuda=Lowering(Call("floor_remainder"), integer=Call("floor_remainder_int")),
        derivative=lambda o, g, y, a, b: (g, -g * o.floor(a / b)),
    ),
    _binary(
        "fmod", "remainder with the sign of the dividend", costly=True, jumps=True,
        triton=Lowering(Call("libdevice.fmod"), integer=Call("_fmod_int")),
        cuda=Lowering(Call("fmodf"), double=Call("fmod"), integer=Call("trunc_remainder")),
        derivative=lambda o, g, y, a, b: (g, -g * o.trunc(a / b)),
    ),
    _binary(
        "pow", "a to the power b", symbol="^", costly=True, sympy="Pow", domain=(0.1, 4.0),
        triton=Lowering(Call("libdevice.pow"), integer=Call("_pow_int")),
        cuda=replace(_cuda("pow", long=1), integer=Call("integer_power")),
        derivative=power,
    ),
    # Triton before 3.7 compiles -x as 0 - x, which loses the sign of zero.
    _unary("neg", "minus the value", rule=Rule.PROMOTE, costly=False, symbol="-",
           triton=Lowering(Suffix("* -1.0", 12), integer=Prefix("-")), cpp=Prefix("-"),
           cuda=Lowering(Prefix("-"), integer=Call("negated")),
           derivative=lambda o, g, y, x: (-g,)),
    _unary("abs", "absolute value", rule=Rule.PROMOTE, triton=Call("tl.abs"), sympy="Abs",
           cuda=Lowering(Call("fabsf"), double=Call("fabs"), integer=Call("absolute")),
           costly=False, derivative=lambda o, g, y, x: (g * o.sign(x),)),
    # Comparisons and logic.
    _infix("lt", "<", "a below b", _LOW, Rule.BOOL),
    _infix("le", "<=", "a at most b", _LOW, Rule.BOOL),
    _infix("gt", ">", "a above b", _LOW, Rule.BOOL),
    _infix("ge", ">=", "a at least b", _LOW, Rule.BOOL),
    _infix("eq", "==", "a equals b", _LOW, Rule.BOOL),
    _infix("ne", "!=", "a differs from b", _LOW, Rule.BOOL),
    _infix("bit_and", "&", "and of bools or of the bits of integers", _LOW, Rule.BITWISE),
    _infix("bit_or", "|", "or of bools or of the bits of integers", _LOW, Rule.BITWISE),
    _binary(
        "bit_xor", "exclusive or of bools or of the bits of integers", rule=Rule.BITWISE,
        torch="bitwise_xor",
        triton=Infix("^", _LOW), cpp=Infix("^", _LOW), cuda=Infix("^", _LOW),
    ),
    _unary(
        "bit_not", "not of a bool or of the bits of an integer", rule=Rule.BITWISE,
        torch="bitwise_not", symbol="~",
        triton=Prefix("~"), cpp=Lowering(Prefix("~"), boolean=Prefix("!")),
        cuda=Lowering(Prefix("~"), boolean=Prefix("!")), costly=False,
    ),
    Op(
        "where", "a where the condition holds, else b", 3, Kind.ELEMENTWISE, Rule.SELECT, "where",
        Lowering(Call("tl.where")), Lowering(Template("({0} ? {1} : {2})")),
        Lowering(Template("({0} ? {1} : {2})")),
        derivative=lambda o, g, y, c, a, b: (None, o.masked(g, c), o.masked(g, ~c)),
    ),
    _binary(
        "gradient_as", "the value of a with the gradient of b", triton=Template("{0}"),
        cpp=Template("{0}"), cuda=Template("{0}"),
        torch=lambda torch, a, b: torch.broadcast_tensors(a, b)[0],
        derivative=lambda o, g, y, a, b: (None, g),
    ),
    _binary("maximum", "the larger of two values; NaN wins", triton=Lowering(_NAN_MAX,
            boolean=Infix("|", _LOW)), cuda=Call("maximum"), sympy="Max",
            derivative=lambda o, g, y, a, b: extreme(o, g, a, b, a < b, b < a)),
    _binary("minimum", "the smaller of two values; NaN wins", triton=Lowering(_NAN_MIN,
            boolean=Infix("&", _LOW)), cuda=Call("minimum"), sympy="Min",
            derivative=lambda o, g, y, a, b: extreme(o, g, a, b, a > b, b > a)),
    # Exponentials and logarithms.
    _unary("exp", "e to the power x", triton=_libdevice("exp", "_exp"), sympy="exp",
           cpp=Lowering(Call("fusec::exp"), fast=Call("fusec::fast::exp")),
           cuda=_cuda("exp", "quick_exp"),
           derivative=lambda o, g, y, x: (g * y,)),
    _unary("exp2", "2 to the power x", triton=_libdevice("exp2", "tl.exp2"),
           derivative=lambda o, g, y, x: (g * (y * math.log(2)),)),
    _unary("expm1", "exp(x) - 1, accurate near 0", triton=_libdevice("expm1"),
           derivative=lambda o, g, y, x: (g * o.exp(x),)),  # y + 1 cancels
    _unary("log", "natural logarithm", triton=_libdevice("log", "_log"), sympy="log",
           cuda=_cuda("log", "quick_log"),
           domain=(0.1, 8.0),
           derivative=lambda o, g, y, x: (g / x,)),
    _unary("log2", "logarithm to base 2", triton=_libdevice("log2"), domain=(0.1, 8.0),
           derivative=lambda o, g, y, x: (g / (x * math.log(2)),)),
    _unary("log10", "logarithm to base 10", triton=_libdevice("log10"), domain=(0.1, 8.0),
           derivative=lambda o, g, y, x: (g / (x * math.log(10)),)),
    _unary("log1p", "log(1 + x), accurate near 0", triton=_libdevice("log1p", "_log1p"),
           cpp=Lowering(Call("fusec::log1p"), fast=Call("fusec::fast::log1p")),
           cuda=_cuda("log1p", "quick_log1p"),
           domain=(-0.9, 8.0),
           derivative=lambda o, g, y, x: (g / (x + 1),)),
    _unary("log1pexp", "log(1 + exp(x)) without overflow",
           triton=Lowering(Call("_log1pexp"), fast=Call("_quick_log1pexp")),
           cpp=Lowering(Call("fusec::log1pexp"), fast=Call("fusec::fast::log1pexp")),
           cuda=_cuda("log1pexp", "quick_log1pexp"),
           torch=lambda torch, x: torch.logaddexp(x, torch.zeros_like(x)),
           derivative=lambda o, g, y, x: (g / (o.exp(-x) + 1),)),
    _unary("sqrt", "square root", sympy="sqrt", domain=(0.0, 8.0),
           triton=Lowering(Call("tl.sqrt_rn"), fast=Call("tl.sqrt"),
           double=Call("libdevice.sqrt")),
           derivative=lambda o, g, y, x: (g / (y * 2),)),
    _unary("rsqrt", "one over the square root", triton=_libdevice("rsqrt"), domain=(0.1, 8.0),
           derivative=lambda o, g, y, x: (g * -0.5 * (y * y * y),)),
    # Trigonometry.
    _unary("sin", "sine of an angle in radians", triton=_libdevice("sin"), sympy="sin",
           cuda=_cuda("sin", long=1),
           derivative=lambda o, g, y, x: (g * o.cos(x),)),
    _unary("cos", "cosine of an angle in radians", triton=_libdevice("cos"), sympy="cos",
           cuda=_cuda("cos", long=1),
           derivative=lambda o, g, y, x: (-g * o.sin(x),)),
    _unary("tan", "tangent of an angle in radians", triton=_libdevice("tan"), sympy="tan",
           cuda=_cuda("tan", long=1),
           domain=(-1.4, 1.4),
           derivative=lambda o, g, y, x: (g * (1 + y * y),)),
    _unary("asin", "inverse sine", triton=_libdevice("asin"), sympy="asin", domain=(-1.0, 1.0),
           derivative=lambda o, g, y, x: (g * o.rsqrt(1 - x * x),)),
    _unary("acos", "inverse cosine", triton=_libdevice("acos"), sympy="acos", domain=(-1.0, 1.0),
           derivative=lambda o, g, y, x: (-g * o.rsqrt(1 - x * x),)),
    _unary("atan", "inverse tangent", triton=_libdevice("atan"), sympy="atan",
           derivative=lambda o, g, y, x: (g / (x * x + 1),)),
    _unary("sinh", "hyperbolic sine", triton=_libdevice("sinh"), sympy="sinh",
           derivative=lambda o, g, y, x: (g * o.cosh(x),)),
    _unary("cosh", "hyperbolic cosine", triton=_libdevice("cosh"), sympy="cosh",
           derivative=lambda o, g, y, x: (g * o.sinh(x),)),
    _unary("tanh", "hyperbolic tangent", triton=_libdevice("tanh", "_tanh"), sympy="tanh",
           cpp=Lowering(Call("fusec::tanh"), fast=Call("fusec::fast::tanh")),
           cuda=_cuda("tanh", "quick_tanh"),
           derivative=lambda o, g, y, x: (g * (1 - y * y),)),
    _unary("asinh", "inverse hyperbolic sine", triton=_libdevice("asinh"), sympy="asinh",
           derivative=lambda o, g, y, x: (g * o.rsqrt(x * x + 1),)),
    _unary("acosh", "inverse hyperbolic cosine", triton=_libdevice("acosh"), sympy="acosh",
           domain=(1.0, 8.0),
           derivative=lambda o, g, y, x: (g * o.rsqrt(x * x - 1),)),
    _unary("atanh", "inverse hyperbolic tangent", triton=_libdevice("atanh"), sympy="atanh",
           domain=(-0.9, 0.9),
           derivative=lambda o, g, y, x: (g / (1 - x * x),)),
    _binary("atan2", "angle of the point (b, a)", rule=Rule.FLOAT, triton=_libdevice("atan2"),
            sympy="atan2", costly=True,
            derivative=angle),
    # Error functions.
    _unary("erf", "error function", triton=_libdevice("erf"), sympy="erf",
           derivative=lambda o, g, y, x: (g * o.exp(-x * x) * (2 / math.sqrt(math.pi)),)),
    _unary("erfc", "complement of the error function", triton=_libdevice("erfc"), sympy="erfc",
           derivative=lambda o, g, y, x: (g * o.exp(-x * x) * (-2 / math.sqrt(math.pi)),)),
    _unary("ndtr", "standard normal distribution function", triton=_libdevice("normcdf", "_ndtr"),
           cpp=Lowering(Call("fusec::ndtr"), fast=Call("fusec::fast::ndtr")),
           cuda=_cuda("normcdf", "quick_ndtr"),
           torch=lambda torch, x: torch.special.ndtr(x),
           derivative=lambda o, g, y, x: (g * o.exp(x * x * -0.5) * math.sqrt(0.5 / math.pi),)),
    _unary("lgamma", "logarithm of the absolute value of the gamma function",
           triton=_libdevice("lgamma"), cuda=_cuda("lgamma", long=2),
           torch="lgamma", domain=(0.1, 8.0),
           derivative=lambda o, g, y, x: (g * digamma(o, x),)),
    # Rounding.
    _unary("floor", "the largest integer not above x", rule=Rule.PROMOTE, triton=Call("tl.floor"),
           sympy="floor", jumps=True, costly=False),
    _unary("ceil", "the smallest integer not below x", rule=Rule.PROMOTE, triton=Call("tl.ceil"),
           sympy="ceiling", jumps=True, costly=False),
    _unary("trunc", "x without its fraction", rule=Rule.PROMOTE, triton=Call("libdevice.trunc"),
           jumps=True, costly=False),
    _unary("round", "the nearest integer, ties to even", rule=Rule.PROMOTE,
           triton=Call("libdevice.rint"), cuda=_cuda("rint"), jumps=True, costly=False),
    _binary("copysign", "a with the sign of b", rule=Rule.FLOAT, triton=_libdevice("copysign"),
            derivative=lambda o, g, y, a, b: (g * (o.sign(a) * o.sign(y)), None)),
    # Reductions. The axis of length 1 stays.
    _reduction("sum", "sum along axes", Rule.ACCUMULATE, "add", torch="sum", cuda="Sum",
               triton="tl.sum({0}, axis={axis})", identity=lambda d: 0,
               derivative=lambda o, g, y, x: (g,)),
    _reduction("mean", "sum over the number of elements; finite where the plain sum overflows",
    Rule.SAME, "add",
               torch="mean", triton="_mean({0}, {count}, axis={axis})", cuda="Sum",
               identity=lambda d: 0,
               empty=float("nan"),
               cpp="fusec::finish_mean({{0}}, cols)",
               derivative=lambda o, g, y, x: (g / o.count(),)),
    _reduction("prod", "product along axes", Rule.ACCUMULATE, "mul", torch="prod", cuda="Product",
               triton="tl.reduce({0}, axis={axis}, combine_fn=_multiply)", identity=lambda d: 1,
               derivative=product),
    _reduction("max", "largest value along axes; NaN wins", Rule.SAME, "maximum", torch="amax",
               cuda="Maximum",
               triton="tl.reduce({0}, axis={axis}, combine_fn=_maximum)",
               identity=lambda d: d.minimum,
               derivative=lambda o, g, y, x: (o.like(x == y, g) * (g / o.sum(o.like(x == y, g))),)),
    _reduction("min", "smallest value along axes; NaN wins", Rule.SAME, "minimum", torch="amin",
               cuda="Minimum",
               triton="tl.reduce({0}, axis={axis}, combine_fn=_minimum)",
               identity=lambda d: d.maximum,
               derivative=lambda o, g, y, x: (o.like(x == y, g) * (g / o.sum(o.like(x == y, g))),)),
)  # fmt: skip

OPS: Mapping[str, Op] = MappingProxyType({op.name: op for op in _ROWS})


def lookup(name: str) -> Op:
    """The op called ``name``; KeyError if there is none."""
    return OPS[name]


def elementwise() -> list[Op]:
    """Every elementwise op, in the order of the table."""
    return [op for op in _ROWS if op.kind is Kind.ELEMENTWISE]


def reductions() -> list[Op]:
    """Every primitive reduction, in the order of the table."""
    return [op for op in _ROWS if op.kind is Kind.REDUCTION]
