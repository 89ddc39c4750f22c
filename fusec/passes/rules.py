"""The simplification rules, a row each: name, pattern, result, soundness, condition, and why.

``exact`` rows keep every bit in the compute type of the node, as PyTorch would give it: its special
cases of ``pow`` are here. ``accurate`` rows keep special values and the size of the error. ``real``
rows hold for real numbers only and are for fast mode. Constants that a result combines are folded
by ``passes/fold.py``.

May import ``fusec.ir`` and ``passes/rewrite.py``.
"""

from __future__ import annotations

import math
from functools import partial

from fusec.ir.dtypes import DType
from fusec.ir.node import Node
from fusec.passes.fold import store_rounded
from fusec.passes.rewrite import Match, Number, Rule, apply, literal, variable

a, b, p, x, y, z = (variable(name) for name in "abpxyz")
c, d = literal("c"), literal("d")
ZERO, ONE = Number(0), Number(1)

cast, neg, absolute = partial(apply, "cast"), partial(apply, "neg"), partial(apply, "abs")
where, maximum, minimum = (
    partial(apply, "where"),
    partial(apply, "maximum"),
    partial(apply, "minimum"),
)
conj, disj, xor, invert = (partial(apply, f"bit_{n}") for n in ("and", "or", "xor", "not"))
lt, le, gt, ge, eq, ne = (partial(apply, n) for n in ("lt", "le", "gt", "ge", "eq", "ne"))
exp, log, exp2, log2 = (partial(apply, n) for n in ("exp", "log", "exp2", "log2"))
expm1, log1p, tanh = (partial(apply, n) for n in ("expm1", "log1p", "tanh"))
log1pexp = partial(apply, "log1pexp")
sqrt, rsqrt = partial(apply, "sqrt"), partial(apply, "rsqrt")
erf, ndtr = partial(apply, "erf"), partial(apply, "ndtr")
remainder, floor_divide = partial(apply, "remainder"), partial(apply, "floor_divide")
total, product = partial(apply, "sum"), partial(apply, "prod")
largest, smallest = partial(apply, "max"), partial(apply, "min")


def floats(m: Match) -> bool:
    return m.root.dtype.is_float


def narrow(m: Match) -> bool:
    """The value is of a 16-bit type, so an error of a few ulp of float32 is far below what the
    store rounds away.
    """
    return m.root.dtype.is_float and m.root.dtype.bits == 16


def up_to_single(m: Match) -> bool:
    """The value is of a float type of at most 32 bits."""
    return m.root.dtype.is_float and m.root.dtype.bits <= 32


def same_floats(m: Match) -> bool:
    return m.root.dtype.is_float and m["x"].dtype is m.root.dtype


def no_floats(m: Match) -> bool:
    return not m.root.dtype.is_float


def no_bools(m: Match) -> bool:
    return not m.root.dtype.is_bool


def bools(m: Match) -> bool:
    return m["x"].dtype.is_bool


def operands_without_nan(m: Match) -> bool:
    """The operands of a comparison are integers or bools."""
    return not m["a"].dtype.is_float


def unsigned(m: Match) -> bool:
    return m.root.dtype.is_integer and not m.root.dtype.signed


def signed(m: Match) -> bool:
    return m.root.dtype.signed


def power_of_two(m: Match) -> bool:
    """The divisor is a power of two whose reciprocal is a normal number of the compute type."""
    value = float(m.value("c"))
    if not m.root.dtype.is_float or value == 0 or not math.isfinite(value):
        return False
    mantissa, exponent = math.frexp(value)
    return abs(mantissa) == 0.5 and abs(exponent) <= (1000 if m.root.dtype.bits == 64 else 120)


def length_one(m: Match) -> bool:
    """The reduction runs over axes of length 1 and keeps the type."""
    shape = m["x"].shape
    return m["x"].dtype is m.root.dtype and all(shape[axis] == 1 for axis in m.root.axes)


def integer_length_one(m: Match) -> bool:
    return length_one(m) and not m.root.dtype.is_float


def is_rounded(node: Node) -> bool:
    """Whether ``node`` holds a value of its storage type (a product of 16-bit floats holds
    float32).
    """
    if node.dtype.compute is node.dtype:
        return True
    if node.op.name == "constant":
        value = float(node.value)
        return store_rounded(value, node.dtype) == value or value != value
    return node.op.name in ("input", "gather", "cast")


def same_type(m: Match) -> bool:
    return m["x"].dtype is m.root.dtype and is_rounded(m["x"])


def holds_all(dtype: DType, source: DType) -> bool:
    """Whether type ``dtype`` has every value that a node of type ``source`` may hold."""
    if source.is_bool:
        return True
    if source.is_float:
        return dtype.is_float and dtype.bits >= source.compute.bits
    if dtype.is_float:
        digits = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}.get(dtype.name, 0)
        return source.bits - source.signed <= digits
    return dtype.minimum <= source.minimum and source.maximum <= dtype.maximum


def detour(m: Match) -> bool:
    """Cast through a type that has every value. A float out of an integer's range has no defined
    integer.
    """
    source, middle, target = m["x"].dtype, m.root.args[0].dtype, m.root.dtype
    if not holds_all(middle, source):
        return False
    if middle.is_float and target.is_integer:
        return not source.is_float and holds_all(target, source)
    return True


def wraps_further(m: Match) -> bool:
    source, middle, target = m["x"].dtype, m.root.args[0].dtype, m.root.dtype
    return (
        source.is_integer and middle.is_integer and target.is_integer and target.bits <= middle.bits
    )


_RELU = where(lt(x, 0), 0, x)  # as ir/derived.py spells it

EXACT: tuple[Rule, ...] = (
    # Neutral elements. 0 is +0.0; x + 0 would turn -0.0 into +0.0. As integer and bool, -0.0 is 0.
    Rule("mul-one", x * 1, x, "exact"),
    Rule("div-one", x / 1, x, "exact"),
    Rule("sub-zero", x - 0, x, "exact", why="-0.0 - 0 = -0.0"),
    Rule("add-minus-zero", x + -0.0, x,
         "exact", why="-0.0 is the neutral element of IEEE addition"),
    Rule("zero-sub", -0.0 - x, -x, "exact"),
    Rule("mul-zero-integer", x * 0, ZERO, "exact", no_floats),
    Rule("sub-self-integer", x - x, ZERO, "exact", no_floats),
    Rule("floor-divide-one", floor_divide(x, 1), x, "exact", no_floats),
    Rule("remainder-one", remainder(x, 1), ZERO, "exact", no_floats),
    # Signs. IEEE defines a - b as a + (-b); products and quotients have the sign rule.
    Rule("mul-minus-one", x * -1, -x, "exact", no_bools),
    Rule("div-minus-one", x / -1, -x, "exact"),
    Rule("neg-neg", neg(neg(x)), x, "exact"),
    Rule("add-neg", a + -b, a - b, "exact"),
    Rule("sub-neg", a - -b, a + b, "exact"),
    Rule("mul-neg-neg", -a * -b, a * b, "exact"),
    Rule("div-neg-neg", -a / -b, a / b, "exact"),
    Rule("neg-sub-integer", -(a - b), b - a, "exact", no_floats),
    Rule("abs-abs", absolute(absolute(x)), absolute(x), "exact"),
    Rule("abs-neg", absolute(-x), absolute(x), "exact", signed, "-x of u8 is 256 - x"),
    Rule("abs-unsigned", absolute(x), x, "exact", unsigned),
    # Division by a power of two: both forms round the same real number.
    Rule("div-power-of-two", x / c, x * (1 / c), "exact", power_of_two),
    # Integers wrap, so their arithmetic is that of a ring.
    Rule("add-add-integer", (x + c) + d, x + (c + d), "exact", no_floats),
    Rule("sub-add-integer", (x - c) + d, x + (d - c), "exact", no_floats),
    Rule("add-sub-integer", (x + c) - d, x + (c - d), "exact", no_floats),
    Rule("sub-sub-integer", (x - c) - d, x - (c + d), "exact", no_floats),
    Rule("mul-mul-integer", (x * c) * d, x * (c * d), "exact", no_floats),
    # PyTorch's pow with a number as exponent.
    Rule("pow-zero", x ** 0, ONE, "exact", no_bools, "NaN^0 = 1 in PyTorch and C"),
    Rule("pow-one", x ** 1, x, "exact", no_bools),
    Rule("pow-two", x ** 2, x * x, "exact", no_bools),
    Rule("pow-three", x ** 3, x * x * x, "exact", no_bools),
    Rule("pow-half", x ** 0.5, sqrt(x), "exact", floats, "PyTorch takes sqrt, so -inf^0.5 is NaN"),
    Rule("pow-minus-half", x ** -0.5, rsqrt(x), "exact", floats),
    Rule("pow-minus-one", x ** -1, 1 / x, "exact", floats),
    Rule("pow-minus-two", x ** -2, 1 / (x * x), "exact", floats),
    Rule("one-pow", 1 ** x, ONE, "exact", floats, "1^NaN = 1 in PyTorch and C"),
    Rule("gradient-as", apply("gradient_as", a, b), a, "exact", why="only gradients ask for b"),
    # Selections.
    Rule("where-true", where(True, a, b), a, "exact"),
    Rule("where-false", where(False, a, b), b, "exact"),
    Rule("where-same", where(p, a, a), a, "exact"),
    Rule("where-not", where(invert(p), a, b), where(p, b, a), "exact"),
    Rule("where-then-again", where(p, where(p, a, b), z), where(p, a, z), "exact"),
    Rule("where-else-again", where(p, a, where(p, b, z)), where(p, a, z), "exact"),
    Rule("where-identity", where(x, True, False), x, "exact", lambda m: m.root.dtype.is_bool),
    Rule("where-inverse", where(x, False, True), invert(x),
         "exact", lambda m: m.root.dtype.is_bool),
    # Idempotent ones. In the written order only: max(-0.0, 0.0) may give either, but always the
    # same.
    Rule("max-self", maximum(x, x), x, "exact"),
    Rule("min-self", minimum(x, x), x, "exact"),
    Rule("max-again", maximum(maximum(x, y), y), maximum(x, y), "exact", ordered=True),
    Rule("min-again", minimum(minimum(x, y), y), minimum(x, y), "exact", ordered=True),
    Rule("relu-again", where(lt(_RELU, 0), 0, _RELU), _RELU, "exact"),
    *(
        Rule(f"{outer}-{inner}", apply(outer, apply(inner, x)), apply(inner, x), "exact")
        for outer in ("floor", "ceil", "trunc", "round")
        for inner in ("floor", "ceil", "trunc", "round")
    ),  # a whole number, an infinity or NaN is its own rounding
    *(
        Rule(f"{name}-integer", apply(name, x), x, "exact", no_floats)
        for name in ("floor", "ceil", "trunc", "round")
    ),
    # Bits and truth. -1 has every bit set, and is `true` for bools.
    Rule("not-not", invert(invert(x)), x, "exact"),
    Rule("and-self", conj(x, x), x, "exact"),
    Rule("or-self", disj(x, x), x, "exact"),
    Rule("xor-self", xor(x, x), ZERO, "exact"),
    Rule("and-ones", conj(x, -1), x, "exact"),
    Rule("and-zero", conj(x, 0), ZERO, "exact"),
    Rule("or-zero", disj(x, 0), x, "exact"),
    Rule("or-ones", disj(x, -1), Number(-1), "exact"),
    Rule("xor-zero", xor(x, 0), x, "exact"),
    Rule("xor-ones", xor(x, -1), invert(x), "exact"),
    # Comparisons. With NaN, not (a < b) is not a >= b.
    Rule("not-eq", invert(eq(a, b)), ne(a, b), "exact"),
    Rule("not-ne", invert(ne(a, b)), eq(a, b), "exact"),
    Rule("not-lt", invert(lt(a, b)), ge(a, b), "exact", operands_without_nan),
    Rule("not-le", invert(le(a, b)), gt(a, b), "exact", operands_without_nan),
    Rule("not-gt", invert(gt(a, b)), le(a, b), "exact", operands_without_nan),
    Rule("not-ge", invert(ge(a, b)), lt(a, b), "exact", operands_without_nan),
    Rule("eq-true", eq(x, True), x, "exact", bools),
    Rule("eq-false", eq(x, False), invert(x), "exact", bools),
    Rule("ne-true", ne(x, True), invert(x), "exact", bools),
    Rule("ne-false", ne(x, False), x, "exact", bools),
    *(
        Rule(f"{name}-self-integer", apply(name, a, a),
             Number(name in "eq le ge"), "exact", operands_without_nan)
        for name in ("eq", "le", "ge", "ne", "lt", "gt")
    ),
    # Casts.
    Rule("cast-same", cast(x), x, "exact", same_type, "rounding a rounded value changes nothing"),
    Rule("cast-detour", cast(cast(x)), cast(x), "exact", detour),
    Rule("cast-wrap", cast(cast(x)), cast(x), "exact", wraps_further),
    # Reductions over one element. (A float sum starts at +0.0 and loses -0.0.)
    Rule("max-of-one", largest(x), x, "exact", length_one),
    Rule("min-of-one", smallest(x), x, "exact", length_one),
    Rule("prod-of-one", product(x), x, "exact", length_one),
    Rule("sum-of-one-integer", total(x), x, "exact", integer_length_one),
)  # fmt: skip

# For negative u, tanh is near -1 and 1 + tanh(u) loses all its digits; 1 / (1 + exp(-2u)) never
# does, and costs one exponential. For positive u both are right to about 1 ulp. The product -2u is
# exact. Where exp overflows the quotient is 0, and so is eager's result. One special value differs:
# inf * (1 + tanh(u)) for finite u below -9 is inf, where eager's factor has rounded to 0 and gives
# NaN.
_SIGMOID = 1 + exp(x * -2)

# tanh(log(1 + u)) = ((1 + u)^2 - 1) / ((1 + u)^2 + 1), which neither cancels nor needs a logarithm.
# Above 20 it is 1, and stopping there keeps u^2 finite.
_SOFTPLUS = where(gt(x, 20), x, log1p(exp(x)))  # as ir/derived.py spells it
_U = exp(minimum(x, 20))

ACCURATE: tuple[Rule, ...] = (
    Rule("rsqrt", 1 / sqrt(x), rsqrt(x),
         "accurate", why="one rounding less, or the machine's 2 ulp"),
    Rule("div-sqrt-narrow", a / sqrt(x), a * rsqrt(x),
         "accurate", narrow, "3 ulp of float32 at most"),
    Rule("reciprocal-exp", 1 / exp(x), exp(-x), "accurate", why="one rounding less"),
    Rule("tanh-sigmoid", 0.5 * (1 + tanh(x)), 1 / _SIGMOID, "accurate"),
    Rule("tanh-sigmoid-spread", 0.5 + 0.5 * tanh(x), 1 / _SIGMOID, "accurate"),
    Rule("tanh-gate", (0.5 * a) * (1 + tanh(x)), a / _SIGMOID, "accurate"),
    Rule("tanh-gate-last", 0.5 * (a * (1 + tanh(x))), a / _SIGMOID, "accurate"),
    Rule("erf-gate-narrow", (0.5 * a) * (1 + erf(x * math.sqrt(0.5))), a * ndtr(x),
         "accurate", narrow, "1 + erf cancels for negative x, the distribution does not"),
    Rule("erf-gate-last-narrow", (a * (1 + erf(x * math.sqrt(0.5)))) * 0.5, a * ndtr(x),
         "accurate", narrow, "as gradients have it"),
    Rule("erf-half-narrow", 0.5 * (1 + erf(x * math.sqrt(0.5))), ndtr(x),
         "accurate", narrow, "as PyTorch takes a gelu apart"),
    Rule("tanh-softplus", tanh(_SOFTPLUS), (_U * (_U + 2)) / (_U * (_U + 2) + 2),
         "accurate", floats, "3 ulp, as far as tanh of a rounded logarithm is"),
    Rule("tanh-log1pexp", tanh(log1pexp(x)), (_U * (_U + 2)) / (_U * (_U + 2) + 2),
         "accurate", floats, "the same"),
    Rule("log1pexp", _SOFTPLUS, log1pexp(x),
         "accurate", up_to_single, "x is the rounded logarithm from 17 on"),
    Rule("pow-four-narrow", x ** 4, (x * x) * (x * x),
         "accurate", narrow, "1.5 ulp of float32 at most"),
    Rule("two-pow", 2 ** x, exp2(x), "accurate", floats),
)  # fmt: skip

REAL: tuple[Rule, ...] = (
    # What NaN, infinities and the sign of zero forbid.
    Rule("add-zero", x + 0, x, "real", floats, "-0.0 + 0 = 0"),
    Rule("mul-zero", x * 0, ZERO, "real", floats, "NaN * 0, inf * 0, -1 * 0"),
    Rule("zero-div", 0 / x, ZERO, "real", floats),
    Rule("sub-self", x - x, ZERO, "real", floats, "inf - inf"),
    Rule("div-self", x / x, ONE, "real", floats, "0 / 0"),
    Rule("zero-minus", 0 - x, -x, "real", floats),
    Rule("neg-sub", -(a - b), b - a, "real", floats, "a = b gives -0.0"),
    # Inverse functions.
    Rule("exp-log", exp(log(x)), x, "real"),
    Rule("log-exp", log(exp(x)), x, "real"),
    Rule("exp2-log2", exp2(log2(x)), x, "real"),
    Rule("log2-exp2", log2(exp2(x)), x, "real"),
    Rule("expm1-log1p", expm1(log1p(x)), x, "real"),
    Rule("log1p-expm1", log1p(expm1(x)), x, "real"),
    Rule("sqrt-squared", sqrt(x) * sqrt(x), x, "real"),
    Rule("rsqrt-squared", rsqrt(x) * rsqrt(x), 1 / x, "real"),
    Rule("sqrt-square", sqrt(x * x), absolute(x), "real"),
    Rule("div-rsqrt", a / rsqrt(x), a * sqrt(x), "real"),
    Rule("div-div", a / (x / y), (a * y) / x, "real"),
    # Constants together.
    Rule("add-add", (x + c) + d, x + (c + d), "real", floats),
    Rule("sub-add", (x - c) + d, x + (d - c), "real", floats),
    Rule("add-sub", (x + c) - d, x + (c - d), "real", floats),
    Rule("sub-sub", (x - c) - d, x - (c + d), "real", floats),
    Rule("mul-mul", (x * c) * d, x * (c * d), "real", floats),
    Rule("div-constant", x / c, x * (1 / c), "real", floats, "1 / c is rounded"),
    Rule("constant-div-mul", c / (x * d), (c / d) / x, "real", floats),
    # Factorings and fusions.
    Rule("factor-sum", x * y + x * z, x * (y + z), "real", floats),
    Rule("factor-difference", x * y - x * z, x * (y - z), "real", floats),
    Rule("factor-quotient", x / z + y / z, (x + y) / z, "real", floats),
    Rule("exp-mul-exp", exp(x) * exp(y), exp(x + y), "real"),
    Rule("exp-div-exp", exp(x) / exp(y), exp(x - y), "real"),
    Rule("div-exp", a / exp(x), a * exp(-x),
         "real", why="exp(-x) may overflow where a / exp(x) does not"),
    Rule("pow-three-halves", x ** 1.5, x * sqrt(x), "real", floats),
    Rule("div-sqrt", a / sqrt(x), a * rsqrt(x),
         "real", why="where rsqrt is off by 2 ulp, eager is not"),
    Rule("pow-four", x ** 4, (x * x) * (x * x), "real", floats),
    Rule("pow-five", x ** 5, (x * x) * (x * x) * x, "real", floats),
    Rule("pow-six", x ** 6, (x * x) * (x * x) * (x * x), "real", floats),
    # Constants out of sums.
    Rule("sum-scaled", total(x * c), total(x) * c, "real", same_floats),
    Rule("sum-of-neg", total(-x), -total(x), "real", same_floats),
    Rule("sum-of-one", total(x), x, "real", length_one),
)  # fmt: skip

RULES: tuple[Rule, ...] = EXACT + ACCURATE + REAL
