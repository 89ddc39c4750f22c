"""Named composites (gelu, softmax, layer norm ...), written once, in the language itself.

A row holds the parameters, a doc line, the body and the PyTorch function it agrees with, also in
its gradient: where the body has another one at a kink, ``gradient_as`` says which is meant. Here
the bodies are text: ``frontend/resolve`` parses one when a formula first uses it and expands it in
place, so every backend gets every row. A name may have several rows, which differ in their
parameters; the first that fits a call is meant.

May import the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from math import factorial
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter; without a default it must be given, and after ``*`` by keyword."""

    name: str
    default: int | float | None = None
    keyword_only: bool = False


@dataclass(frozen=True)
class Derived:
    """One composite. ``parameters`` is as in Python: ``"x, w, *, axis=-1"``; defaults are numbers.

    ``torch`` names the reference, in ``torch`` or, as ``F.name``, in ``torch.nn.functional``.
    ``reduction``: the axis is reduced away and ``keepdim=`` is understood. ``floats_only``: refuses
    integers, as PyTorch does. ``widens``: integers become float32 before the body sees them, which
    would leave their range. ``nonempty``: an axis of length 0 is an error.
    """

    name: str
    signature: str
    doc: str
    body: str
    torch: str | None = None
    reduction: bool = False
    floats_only: bool = False
    widens: bool = False
    nonempty: bool = False

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The signature as data."""
        return parse_signature(self.signature)


def parse_signature(signature: str) -> tuple[Parameter, ...]:
    """Parameters of ``"x, lo=0, *, axis=-1"``."""
    return tuple(_parameters(signature))


def _parameters(signature: str) -> Iterator[Parameter]:
    keyword_only = False
    for part in filter(None, (piece.strip() for piece in signature.split(","))):
        if part == "*":
            keyword_only = True
            continue
        name, _, default = part.partition("=")
        yield Parameter(name, _number(default) if default else None, keyword_only)


def _number(text: str) -> int | float:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.lstrip("-").isdigit() else float(text)


_AXIS = "x, *, axis=-1"
_SPREAD = "x, *, axis=-1, correction=1"  # var and std: the divisor is n - correction
# As in PyTorch, NaN passes a gradient as what is above does, and a 0 has no second derivative.
_KINK = """gradient_as(
    where(x <= 0, {below}, {above}), where(x < 0, {below}, where(x == 0, {at}, {above})))"""

# sin(u) / u in powers of v = u^2; what is left out is below 1e-22 for u up to 1.
_SINC = reduce(
    lambda rest, k: f"({(-1) ** k / factorial(2 * k + 1)!r} + v * {rest})",
    range(9, -1, -1),
    repr(1 / factorial(21)),
)

_ROWS: tuple[Derived, ...] = (
    # Activations.
    Derived("sigmoid", "x", "logistic function", "1 / (1 + exp(-x))", "sigmoid", widens=True),
    Derived("silu", "x", "x times its sigmoid", "x / (1 + exp(-x))", "F.silu", widens=True),
    Derived("swish", "x", "silu by its other name", "x / (1 + exp(-x))", "F.silu", widens=True),
    Derived("gelu", "x", "Gaussian error linear unit, by erf",
            "0.5 * x * (1 + erf(x * 0.7071067811865476))", "F.gelu"),
    Derived("gelu_tanh", "x", "gelu in its tanh approximation",
            "0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))"),
    # `where` and not `maximum`: it leaves NaN and -0.0 alone in every backend.
    Derived("relu", "x", "x where positive, else 0",
            "gradient_as(where(x < 0, cast_like(0, x), x), where(x <= 0, cast_like(0, x), x))",
            "relu"),
    Derived("relu2", "x", "square of relu", "r = relu(x); r * r"),
    Derived("relu6", "x", "x within 0 and 6", "hardtanh(x, 0, 6)", "F.relu6"),
    Derived("leaky_relu", "x, slope=0.01", "x where positive, else slope times x",
            "where(x > 0, x, x * slope)", "F.leaky_relu"),
    Derived("elu", "x, alpha=1", "x where positive, else alpha (exp(x) - 1)",
            _KINK.format(below="alpha * expm1(x)", at="alpha * x", above="x"), "F.elu"),
    Derived("selu", "x", "self-normalising elu",
            _KINK.format(below="1.7580993408473766 * expm1(x)", at="1.7580993408473766 * x",
                         above="1.0507009873554805 * x"), "F.selu"),
    Derived("celu", "x, alpha=1", "x where positive, else alpha (exp(x / alpha) - 1)",
            _KINK.format(below="alpha * expm1(x / alpha)", at="x", above="x"), "F.celu"),
    Derived("softplus", "x", "log(1 + exp(x)); x itself above 20",
            "where(x > 20, x, log1p(exp(x)))", "F.softplus"),
    Derived("softplus", "x, beta, threshold=20", "softplus that is sharper by beta",
            "where(x * beta > threshold, x, log1p(exp(x * beta)) / beta)", "F.softplus"),
    Derived("mish", "x", "x tanh(softplus(x))", "x * tanh(softplus(x))", "F.mish"),
    # Unlike clamp it has no gradient at its bounds.
    Derived("hardtanh", "x, lo=-1, hi=1", "x within lo and hi", """
        gradient_as(clamp(x, lo, hi), where(x <= lo, lo, where(x >= hi, hi, x)))""", "F.hardtanh"),
    Derived("hardsigmoid", "x", "sigmoid in straight lines",
            """gradient_as(
                hardtanh(x + 3, 0, 6) / 6, where(x > -3 and x < 3, x / 6, 0))""",
            "F.hardsigmoid", widens=True),
    Derived("hardswish", "x", "silu in straight lines",
            """gradient_as(
                x * hardtanh(x + 3, 0, 6) / 6,
                where(x <= -3, 0, where(x < 3, x * x / 6 + x / 2, x)))""",
            "F.hardswish", widens=True),
    Derived("softsign", "x", "x / (1 + abs(x))", "x / (1 + abs(x))", "F.softsign"),
    Derived("tanhshrink", "x", "x - tanh(x)", "x - tanh(x)", "F.tanhshrink"),
    # x * 0 and not 0 within the limits: NaN stays NaN.
    Derived("softshrink", "x, lambd=0.5", "x moved towards 0 by lambd",
            "where(x >= -lambd and x <= lambd, x * 0, where(x > 0, x - lambd, x + lambd))",
            "F.softshrink"),
    Derived("hardshrink", "x, lambd=0.5", "x, but 0 within lambd of 0",
            "where(x >= -lambd and x <= lambd, cast_like(0, x), x)", "F.hardshrink"),
    Derived("logsigmoid", "x", "logarithm of sigmoid",
            # abs has no second derivative at 0, and log1p(exp(-x)) none below -88.
            """gradient_as(
                minimum(x, 0) - log1p(exp(-abs(x))),
                where(x < -88, x, -log1p(exp(-where(x < -88, 0, x)))))""",
            "F.logsigmoid", widens=True),
    # NaN outside 0 and 1, and infinite slopes at these, in every derivative.
    Derived("logit", "x", "inverse of sigmoid", """
        gradient_as(log(x / (1 - x)), where(x < 0 or x > 1, nan * x, log(x) - log1p(-x)))""",
            "logit", widens=True),
    Derived("swiglu", "a, b", "silu(a) b", "silu(a) * b"),
    Derived("geglu", "a, b", "gelu(a) b", "gelu(a) * b"),
    # Elementwise helpers.
    Derived("square", "x", "x times x", "x ^ 2", "square"),
    Derived("reciprocal", "x", "1 / x", "1 / x", "reciprocal"),
    # A step: a gradient of 0 and not none.
    Derived("sign", "x", "-1, 0 or 1 in the type of x; 0 for NaN", """
        step = where(x > 0, cast_like(1, x), where(x < 0, cast_like(-1, x), cast_like(0, x)))
        gradient_as(step, floor(x))""", "sign"),
    Derived("isnan", "x", "whether x is NaN", "x != x", "isnan"),
    Derived("isinf", "x", "whether x is infinite", "x == inf or x == -inf", "isinf"),
    Derived("isfinite", "x", "whether x is neither infinite nor NaN",
            "x == x and x != inf and x != -inf", "isfinite"),
    Derived("clamp", "x, lo, hi", "x within lo and hi; hi wins where they cross, NaN wins over all",
            """
        inside = where(x < lo and lo <= hi, lo, where(x <= hi and lo <= hi, x, hi))
        gradient_as(minimum(maximum(x, lo), hi), inside)""", "clamp"),
    Derived("clamp_min", "x, lo", "x, at least lo",
            "gradient_as(maximum(x, lo), where(x >= lo, x, lo))", "clamp_min"),
    Derived("clamp_max", "x, hi", "x, at most hi",
            "gradient_as(minimum(x, hi), where(x <= hi, x, hi))", "clamp_max"),
    Derived("lerp", "a, b, w", "a at w = 0, b at w = 1, straight between",
            "d = b - a; where(abs(w) < 0.5, a + w * d, b - d * (1 - w))", "lerp",
            widens=True),
    Derived("hypot", "a, b", "sqrt(a^2 + b^2) without overflow; inf where either is infinite", """
        big = maximum(abs(a), abs(b))
        ratio = minimum(abs(a), abs(b)) / big
        length = where(big == 0, big, big * sqrt(1 + ratio * ratio))
        where(isinf(a) or isinf(b), inf, length)""", "hypot"),
    # Near 0 its derivatives are those of its series, whose terms do not cancel.
    Derived("sinc", "x", "sin(pi x) / (pi x); 1 at 0", f"""
        u = pi * x
        near = abs(u) < 1
        v = where(near, u * u, 0)
        far = where(near, 1, u)
        gradient_as(where(x == 0, 1, sin(u) / u), {_SINC} + where(near, 0, sin(far) / far))""",
            "sinc"),
    Derived("xlogy", "a, b", "a log(b); 0 where a is 0 and b is not NaN",
            """
        product = a * log(cast_like(b, a + b))
        value = where(b != b, nan, where(a == 0, 0, product))
        gradient_as(value, where(a == 0 and b <= 0, 0, product))""", "xlogy"),
    Derived("logaddexp", "a, b", "log(exp(a) + exp(b)) without overflow",
            "where(a == b and isinf(a), a, maximum(a, b) + log1p(exp(-abs(a - b))))", "logaddexp",
            widens=True),
    Derived("heaviside", "x, h", "0 below 0, 1 above, h at 0; 0 for NaN",
            "where(x == 0, h, cast_like(x > 0, x))", "heaviside"),
    # Reductions. Empty axes: `any` is false and `all` true, as the identities of these types say.
    Derived("mean", _AXIS, "arithmetic mean", "sum(x, axis=axis) / size(x, axis)", "mean",
            reduction=True, floats_only=True),
    Derived("var", _SPREAD, "variance, in two passes; unbiased unless correction=0", """
        d = x - mean(x, axis=axis)
        m = mean(d * d, axis=axis)
        rest = maximum(size(x, axis) - correction, 0)
        where(correction == 0, m, m + m * correction / rest)""", "var",
            reduction=True, floats_only=True),
    Derived("std", _SPREAD, "square root of var",
            """
        deviation = sqrt(var(x, axis=axis, correction=correction))
        gradient_as(deviation, where(deviation == 0, 0, deviation))""", "std",
            reduction=True, floats_only=True),
    Derived("any", _AXIS, "whether any element is not 0",
            "max(u8(x != 0), axis=axis) != 0", "any", reduction=True),
    Derived("all", _AXIS, "whether no element is 0",
            "min(u8(x != 0), axis=axis) != 0", "all", reduction=True),
    Derived("argmax", _AXIS, "position of the largest element; the first of ties, NaN is largest",
            """
        is_largest = x == max(x, axis=axis) or x != x
        min(where(is_largest, index(x, axis), size(x, axis)), axis=axis)""", "argmax",
            reduction=True, nonempty=True),
    Derived("argmin", _AXIS, "position of the smallest element; the first of ties, NaN is smallest",
            """
        is_smallest = x == min(x, axis=axis) or x != x
        min(where(is_smallest, index(x, axis), size(x, axis)), axis=axis)""", "argmin",
            reduction=True, nonempty=True),
    Derived("logsumexp", _AXIS, "log of the sum of exp, by the maximum; -inf for a row of -inf", """
        m = max(x, axis=axis)
        safe = where(isinf(m), 0, m)
        log(sum(exp(x - safe), axis=axis)) + safe""", "logsumexp", reduction=True, widens=True),
    Derived("norm_1", _AXIS, "sum of absolute values", "sum(abs(x), axis=axis)",
            reduction=True, floats_only=True),
    Derived("norm_2", _AXIS, "square root of the sum of squares", """
        length = sqrt(sum(x * x, axis=axis))
        gradient_as(length, where(length == 0, 0, length))""",
            reduction=True, floats_only=True),
    Derived("norm_inf", _AXIS, "largest absolute value", "max(abs(x), axis=axis)",
            reduction=True, floats_only=True, nonempty=True),
    Derived("rms", _AXIS, "square root of the mean square", "sqrt(mean(x * x, axis=axis))",
            reduction=True, floats_only=True),
    # Softmax and friends. An empty axis is no error here: its maximum meets no element.
    Derived("softmax", _AXIS, "exp(x) over its sum", """
        e = exp(x - max(x, axis=axis))
        e * (1 / sum(e, axis=axis))""", "softmax", widens=True),
    Derived("log_softmax", _AXIS, "logarithm of softmax", """
        d = x - max(x, axis=axis)
        d - log(sum(exp(d), axis=axis))""", "log_softmax", widens=True),
    Derived("cross_entropy", "x, t", "minus the log-probability of class t; x are logits",
            "logsumexp(x) - x[t]"),
    Derived("entropy", _AXIS, "entropy of softmax(x)", """
        d = x - gradient_as(max(x, axis=axis), cast_like(0, x))
        e = exp(d)
        s = sum(e, axis=axis)
        log(s) - sum(where(e == 0, 0, e * d), axis=axis) / s""", reduction=True, widens=True),
    # Norms.
    Derived("rms_norm", "x, *, axis=-1, eps=1e-6", "x over its root mean square",
            "x * rsqrt(mean(x * x, axis=axis) + eps)", floats_only=True),
    Derived("rms_norm", "x, w, *, axis=-1, eps=1e-6", "x over its root mean square, times w",
            "x * rsqrt(mean(x * x, axis=axis) + eps) * w", floats_only=True),
    Derived("layer_norm", "x, *, axis=-1, eps=1e-5", "x less its mean, over its deviation", """
        d = x - mean(x, axis=axis)
        d * rsqrt(mean(d * d, axis=axis) + eps)""", floats_only=True),
    Derived("layer_norm", "x, w, *, axis=-1, eps=1e-5", "layer_norm(x) w",
            "layer_norm(x, axis=axis, eps=eps) * w", floats_only=True),
    Derived("layer_norm", "x, w, b, *, axis=-1, eps=1e-5", "layer_norm(x) w + b",
            "layer_norm(x, axis=axis, eps=eps) * w + b", floats_only=True),
    Derived("normalize", "x, *, axis=-1, eps=1e-12", "x over its length, at least eps",
            "x / maximum(norm_2(x, axis=axis), eps)", "F.normalize", floats_only=True),
)  # fmt: skip


def _by_name() -> Mapping[str, tuple[Derived, ...]]:
    table: dict[str, tuple[Derived, ...]] = {}
    for row in _ROWS:
        table[row.name] = (*table.get(row.name, ()), row)
    return MappingProxyType(table)


DERIVED: Mapping[str, tuple[Derived, ...]] = _by_name()


def rows() -> tuple[Derived, ...]:
    """Every row, in the order of the table."""
    return _ROWS
