# Names stand in one string, as a list of words.
# ruff: noqa: SIM905
"""Which formula each operator of PyTorch's database is, and how its arguments become a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Call:
    """One sample as fusec sees it: a formula, its tensors and numbers."""

    formula: str
    inputs: dict[str, Any]
    keepdim: bool = True


class Inexpressible(Exception):
    """The sample asks for something the language does not have."""


Build = Callable[[list[Any], dict[str, Any]], Call]


@dataclass(frozen=True)
class Row:
    """How samples of one operator become calls."""

    build: Build
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64, torch.bfloat16, torch.int64)


def _simple(formula: str, names: tuple[str, ...], defaults: dict[str, Any] | None = None) -> Build:
    """Positional and keyword arguments in order, into a formula over ``names``."""

    def build(args: list[Any], kwargs: dict[str, Any]) -> Call:
        given = dict(zip(names, args, strict=False))
        if len(args) > len(names):
            raise Inexpressible("extra positional arguments")
        for name, value in kwargs.items():
            if name in names:
                given[name] = value
            elif value is not None and (name, value) not in _HARMLESS:
                raise Inexpressible(f"argument {name}={_short(value)}")
        for name, value in (defaults or {}).items():
            given.setdefault(name, value)
        missing = [n for n in names if n not in given]
        if missing:
            raise Inexpressible(f"no argument {', '.join(missing)}")
        return Call(formula, {n: given[n] for n in names})

    return build


_HARMLESS = {("rounding_mode", None), ("approximate", "none"), ("inplace", False), ("alpha", 1)}


def _short(value: Any) -> str:
    return type(value).__name__ if isinstance(value, torch.Tensor) else str(value)


def _axes(x: torch.Tensor, dim: Any) -> tuple[int, ...]:
    """Every reduced axis, negative and sorted."""
    if dim is None or dim == () or dim == []:
        return tuple(range(-x.dim(), 0))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(sorted((d - x.dim() if d >= 0 else d) for d in dims))


def _reduction(name: str, *, correction: bool = False) -> Build:
    """``name(x, axis=...)``; the result drops the axes unless the sample keeps them."""

    def build(args: list[Any], kwargs: dict[str, Any]) -> Call:
        kwargs = dict(kwargs)
        x, rest = args[0], list(args[1:])
        if rest and isinstance(rest[0], bool) and correction:
            kwargs.setdefault("correction", int(rest.pop(0)))
        dim = rest.pop(0) if rest else kwargs.pop("dim", None)
        keepdim = bool(rest.pop(0)) if rest else bool(kwargs.pop("keepdim", False))
        if rest:
            raise Inexpressible("extra positional arguments")
        extra = ""
        if correction:
            unbiased = kwargs.pop("unbiased", None)
            given = kwargs.pop("correction", 1 if unbiased in (None, True) else 0)
            extra = "" if given is None else f", correction={given}"
        if kwargs.get("dtype") is None:
            kwargs.pop("dtype", None)
        if kwargs:
            raise Inexpressible(
                f"argument {', '.join(f'{k}={_short(v)}' for k, v in kwargs.items())}"
            )
        if not x.dim():
            raise Inexpressible("a reduction of a tensor without axes")
        axes = _axes(x, dim)
        if name in ("argmax", "argmin") and len(axes) > 1:
            raise Inexpressible("a position along several axes")
        where = str(axes[0]) if len(axes) == 1 else f"({', '.join(map(str, axes))})"
        if len(axes) == x.dim() and len(axes) > 1:
            where = "all"
        return Call(f"{name}(x, axis={where}{extra})", {"x": x}, keepdim=keepdim)

    return build


def _softmax(name: str) -> Build:
    def build(args: list[Any], kwargs: dict[str, Any]) -> Call:
        kwargs = dict(kwargs)
        x, dim = args[0], args[1] if len(args) > 1 else kwargs.pop("dim")
        dtype = kwargs.pop("dtype", None)
        if kwargs:
            raise Inexpressible(f"argument {', '.join(kwargs)}")
        if not x.dim():
            raise Inexpressible("a reduction of a tensor without axes")
        (axis,) = _axes(x, dim)
        inner = f"{_CAST[dtype]}(x)" if dtype else "x"
        return Call(f"{name}({inner}, axis={axis})", {"x": x})

    return build


_CAST = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64"}


def _norm_over(name: str) -> Build:
    """layer_norm and rms_norm: over the last axes, with weight and bias."""

    def build(args: list[Any], kwargs: dict[str, Any]) -> Call:
        x, shape, *rest = args
        order = ("weight", "bias", "eps") if name == "layer_norm" else ("weight", "eps")
        given = {**dict(zip(order, rest, strict=False)), **kwargs}
        axes = tuple(range(-len(shape), 0))
        where = str(axes[0]) if len(axes) == 1 else f"({', '.join(map(str, axes))})"
        weight, bias = given.get("weight"), given.get("bias")
        if weight is None and bias is not None:
            raise Inexpressible("a bias without a weight")
        eps = given.get("eps")
        default = 1e-5 if name == "layer_norm" else torch.finfo(x.dtype).eps
        inputs = {"x": x, "w": weight, "b": bias}
        present = {k: v for k, v in inputs.items() if v is not None}
        text = f"{name}({', '.join(present)}, axis={where}, eps={default if eps is None else eps})"
        return Call(text, present)

    return build


def _gelu(args: list[Any], kwargs: dict[str, Any]) -> Call:
    name = "gelu_tanh" if kwargs.get("approximate") == "tanh" else "gelu"
    return Call(f"{name}(x)", {"x": args[0]})


def _clamp(args: list[Any], kwargs: dict[str, Any]) -> Call:
    given = {**dict(zip(("min", "max"), args[1:], strict=False)), **kwargs}
    low, high = given.get("min"), given.get("max")
    inputs = {"x": args[0], "lo": low, "hi": high}
    present = {k: v for k, v in inputs.items() if v is not None}
    name = {"xlohi": "clamp", "xlo": "clamp_min", "xhi": "clamp_max"}.get("".join(present))
    if name is None:
        raise Inexpressible("a clamp without bounds")
    return Call(f"{name}({', '.join(present)})", present)


def _div(mode: str | None) -> Build:
    text = {None: "x / y", "floor": "x // y", "trunc": "trunc(x / y)"}[mode]

    def build(args: list[Any], kwargs: dict[str, Any]) -> Call:
        if mode == "trunc" and not any(_is_float(a) for a in args):
            raise Inexpressible("integer division towards zero")
        return Call(text, {"x": args[0], "y": args[1]})

    return build


def _is_float(value: Any) -> bool:
    return value.is_floating_point() if torch.is_tensor(value) else isinstance(value, float)


def _addition(sign: str) -> Build:
    def build(args: list[Any], kwargs: dict[str, Any]) -> Call:
        alpha = kwargs.get("alpha", 1)
        if set(kwargs) - {"alpha"}:
            raise Inexpressible(f"argument {', '.join(kwargs)}")
        x, y = args
        return Call(f"x {sign} {'' if alpha == 1 else f'{alpha} * '}y", {"x": x, "y": y})

    return build


def _where(args: list[Any], kwargs: dict[str, Any]) -> Call:
    if len(args) != 3:
        raise Inexpressible("where with a condition alone gives positions")
    x, condition, y = args
    return Call("where(c, x, y)", {"c": condition, "x": x, "y": y})


def _normalize(args: list[Any], kwargs: dict[str, Any]) -> Call:
    given = {**dict(zip(("p", "dim", "eps"), args[1:], strict=False)), **kwargs}
    if given.get("p", 2) != 2:
        raise Inexpressible(f"p={given['p']}")
    if not args[0].dim():
        raise Inexpressible("a reduction of a tensor without axes")
    axes = _axes(args[0], given.get("dim", 1))
    return Call(f"normalize(x, axis={axes[0]}, eps={given.get('eps', 1e-12)})", {"x": args[0]})


def _softplus(args: list[Any], kwargs: dict[str, Any]) -> Call:
    given = {**dict(zip(("beta", "threshold"), args[1:], strict=False)), **kwargs}
    text = "softplus(x)"
    if given:
        text = f"softplus(x, {given.get('beta', 1)}, {given.get('threshold', 20)})"
    return Call(text, {"x": args[0]})


def _keyword(name: str, keyword: str, default: float) -> Build:
    """An activation with one parameter, a number that goes into the text."""

    def build(args: list[Any], kwargs: dict[str, Any]) -> Call:
        value = args[1] if len(args) > 1 else kwargs.get(keyword, default)
        if set(kwargs) - {keyword, "inplace"}:
            raise Inexpressible(f"argument {', '.join(kwargs)}")
        return Call(f"{name}(x, {value})", {"x": args[0]})

    return build


def _hardtanh(args: list[Any], kwargs: dict[str, Any]) -> Call:
    given = {**dict(zip(("min_val", "max_val"), args[1:], strict=False)), **kwargs}
    low, high = given.get("min_val", -1), given.get("max_val", 1)
    if not args[0].is_floating_point() and not (int(low) == low and int(high) == high):
        raise Inexpressible("bounds that PyTorch truncates to the integer type")
    return Call(f"hardtanh(x, {low:g}, {high:g})", {"x": args[0]})


def _cross_entropy(args: list[Any], kwargs: dict[str, Any]) -> Call:
    kwargs = {k: v for k, v in kwargs.items() if v is not None}
    x, t = args
    reduction = kwargs.pop("reduction", "mean")
    if kwargs or reduction != "none" or x.dim() != 2 or t.is_floating_point():
        what = ", ".join(kwargs) or f"reduction={reduction}, rank {x.dim()}"
        raise Inexpressible(f"cross_entropy with {what}")
    return Call("cross_entropy(x, t)", {"x": x, "t": t}, keepdim=False)


def _unary_rows() -> Iterator[tuple[str, Row]]:
    same = (
        "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor lgamma"
        " log log10 log1p log2 neg rsqrt sigmoid sin sinh sqrt tan tanh trunc square reciprocal"
        " sign isnan isinf isfinite sinc"
    ).split()
    for name in same:
        yield name, Row(_simple(f"{name}(x)" if name != "neg" else "-x", ("x",)))
    yield "bitwise_not", Row(_simple("~x", ("x",)), (torch.int64, torch.bool))
    yield "logical_not", Row(_simple("not (x != 0)", ("x",)))
    yield "positive", Row(_simple("+x", ("x",)))
    yield "round", Row(_simple("round(x)", ("x",)))
    for name in (
        "silu relu relu6 selu mish hardsigmoid hardswish softsign tanhshrink logsigmoid"
    ).split():
        yield f"nn.functional.{name}", Row(_simple(f"{name}(x)", ("x",)))
    yield "nn.functional.gelu", Row(_gelu)
    yield "nn.functional.softplus", Row(_softplus)
    yield "nn.functional.hardtanh", Row(_hardtanh)
    yield "nn.functional.leaky_relu", Row(_keyword("leaky_relu", "negative_slope", 0.01))
    yield "nn.functional.elu", Row(_keyword("elu", "alpha", 1.0))
    yield "nn.functional.celu", Row(_keyword("celu", "alpha", 1.0))
    yield "nn.functional.softshrink", Row(_keyword("softshrink", "lambd", 0.5))
    yield "nn.functional.hardshrink", Row(_keyword("hardshrink", "lambd", 0.5))
    yield "logit", Row(_simple("logit(x)", ("x",)))


def _binary_rows() -> Iterator[tuple[str, Row]]:
    infix = {"mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    for name, sign in {**infix, "floor_divide": "//", "remainder": "%", "pow": "^"}.items():
        yield name, Row(_simple(f"x {sign} y", ("x", "y")))
    yield "float_power", Row(_simple("f64(x) ^ f64(y)", ("x", "y")))
    for name, sign in {"bitwise_and": "&", "bitwise_or": "|"}.items():
        yield name, Row(_simple(f"x {sign} y", ("x", "y")), (torch.int64, torch.bool))
    yield "bitwise_xor", Row(_simple("bit_xor(x, y)", ("x", "y")), (torch.int64, torch.bool))
    for name, word in {"logical_and": "and", "logical_or": "or"}.items():
        yield name, Row(_simple(f"(x != 0) {word} (y != 0)", ("x", "y")))
    yield "logical_xor", Row(_simple("(x != 0) != (y != 0)", ("x", "y")))
    for name in "maximum minimum fmod atan2 copysign hypot xlogy logaddexp heaviside".split():
        yield name, Row(_simple(f"{name}(x, y)", ("x", "y")))
    yield "add", Row(_addition("+"))
    yield "sub", Row(_addition("-"))
    yield "rsub", Row(_simple("y - x", ("x", "y")))
    yield "true_divide", Row(_simple("x / y", ("x", "y")))
    yield "div:no_rounding_mode", Row(_div(None))
    yield "div:floor_rounding", Row(_div("floor"))
    yield "div:trunc_rounding", Row(_div("trunc"))
    yield "lerp", Row(_simple("lerp(x, y, w)", ("x", "y", "w")))
    yield "clamp", Row(_clamp)
    yield "clamp_min", Row(_simple("clamp_min(x, y)", ("x", "y")))
    yield "clamp_max", Row(_simple("clamp_max(x, y)", ("x", "y")))
    yield "where", Row(_where)


def _row_rows() -> Iterator[tuple[str, Row]]:
    for name, ours in {
        "sum": "sum", "mean": "mean", "prod": "prod", "amax": "max", "amin": "min", "any": "any",
        "all": "all", "argmax": "argmax", "argmin": "argmin", "logsumexp": "logsumexp",
    }.items():  # fmt: skip
        yield name, Row(_reduction(ours))
    for name in ("var", "std", "var:unbiased", "std:unbiased"):
        yield name, Row(_reduction(name.partition(":")[0], correction=True))
    yield "softmax", Row(_softmax("softmax"))
    yield "log_softmax", Row(_softmax("log_softmax"))
    yield "nn.functional.layer_norm", Row(_norm_over("layer_norm"))
    yield "nn.functional.rms_norm", Row(_norm_over("rms_norm"))
    yield "nn.functional.normalize", Row(_normalize)
    yield "nn.functional.cross_entropy", Row(_cross_entropy)


MAPPED: dict[str, Row] = dict([*_unary_rows(), *_binary_rows(), *_row_rows()])
