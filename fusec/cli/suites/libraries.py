"""Kernel libraries as competitors: Liger and QuACK on a GPU, numexpr and JAX on a CPU.

Each takes part where it is installed and computes the same formula. A row of a table is the name of
an operation of ``declared.py`` and its call there. Imports the libraries inside functions.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Sequence
from typing import Any

from fusec.cli.suites.declared import POLYNOMIAL

Function = Callable[..., Any]

_WIDEST = 4096  # columns that a flat tensor is cut into for kernels that take rows
_CONSTANT = re.compile(r"\d+\.\d+")


def installed(package: str) -> bool:
    """Whether a package can be found, without importing it."""
    return importlib.util.find_spec(package) is not None


def liger(operation: str, inputs: Sequence[Any]) -> Function | None:
    """Liger's function on these inputs, called without arguments; None where it has none."""
    if not installed("liger_kernel"):
        return None
    functional = importlib.import_module("liger_kernel.transformers.functional")
    if operation in ("swiglu", "geglu"):
        rows = [tensor.view(-1, min(_WIDEST, tensor.numel())) for tensor in inputs]
        call, shape = getattr(functional, f"liger_{operation}"), inputs[0].shape
        return lambda: call(*rows).view(shape)
    calls: dict[str, Function] = {
        "softmax": lambda x: functional.liger_softmax(x),
        # Everything in float32, as the formula: `llama` would round before it multiplies by w.
        "rms_norm": lambda x, w: functional.liger_rms_norm(x, w, 1e-6, 0.0, "gemma"),
        "layer_norm": lambda x, w, b: functional.liger_layer_norm(x, w, b, 1e-5),
        "add_rms_norm": lambda x, r, w: functional.liger_fused_add_rms_norm(
            x, r, w, 1e-6, 0.0, "gemma"
        ),
        "cross_entropy": lambda x, t: functional.liger_cross_entropy(x, t, reduction="none"),
        "relu2": lambda x: functional.liger_relu_squared(x.view(-1, min(_WIDEST, x.numel()))).view(
            x.shape
        ),
    }
    return _applied(calls.get(operation), inputs)


def quack(operation: str, inputs: Sequence[Any]) -> Function | None:
    """QuACK's function on these inputs, called without arguments; None where it has none."""
    if not installed("quack"):
        return None
    if operation == "softmax":
        return _applied(importlib.import_module("quack.softmax").softmax_fwd, inputs)
    if operation == "cross_entropy":
        return _applied(importlib.import_module("quack.cross_entropy").cross_entropy_fwd, inputs)
    if operation not in ("rms_norm", "layer_norm", "add_rms_norm"):
        return None
    module = importlib.import_module("quack.rmsnorm")
    if operation == "rms_norm":
        x, w = inputs
        return lambda: module.rmsnorm_fwd(x, w, eps=1e-6)[0]
    if operation == "add_rms_norm":
        x, r, w = inputs
        return lambda: module.rmsnorm_fwd(x, w, residual=r, eps=1e-6)[:2]
    x, w, b = inputs[0], inputs[1].float(), inputs[2].float()  # it takes no other weights
    return lambda: module.layernorm_fwd(x, w, b, eps=1e-5)


_SIGMOID = "(1 / (1 + exp(-x)))"
_TANH_GELU = "0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))"
NUMEXPR = {
    "gelu_tanh": _TANH_GELU,
    "silu": f"x * {_SIGMOID}",
    "swiglu": f"x * {_SIGMOID} * y",
    "geglu": f"{_TANH_GELU} * y",
    "axpy": "a * x + y",
    "scale": "x * 2 + 1",
    "relu2": "where(x > 0, x * x, 0)",
    "softplus": "where(x > 20, x, log1p(exp(x)))",
    "mish": "x * tanh(where(x > 20, x, log1p(exp(x))))",
    "polynomial": POLYNOMIAL,
    "bias_row": "x + b",
    "bias_column": "x + b",
    "transposed": f"x * {_SIGMOID} + y",
    "channels_last": "(x * w + b) / (1 + exp(-(x * w + b)))",
}


def numexpr(operation: str, names: Sequence[str], inputs: Sequence[Any]) -> Function | None:
    """numexpr on float32 inputs: NumPy arrays that share their memory."""
    expression = NUMEXPR.get(operation)
    wide = all(isinstance(v, float) or str(v.dtype) == "torch.float32" for v in inputs)
    if expression is None or not wide or not installed("numexpr"):
        return None
    import numpy

    evaluate = importlib.import_module("numexpr").evaluate
    arrays = [numpy.float32(v) if isinstance(v, float) else v.numpy() for v in inputs]
    values = dict(zip(names, arrays, strict=True))

    def constant(match: re.Match[str]) -> str:
        """A name for a constant in float32: as it is written it would make all float64."""
        name = f"k{len(values)}"
        values[name] = numpy.float32(match[0])
        return name

    expression = _CONSTANT.sub(constant, expression)
    return lambda: evaluate(expression, local_dict=values, global_dict={})


def jax(operation: str, inputs: Sequence[Any]) -> Function | None:
    """JAX's compiled function on these inputs; the call ends when the result is there."""
    if not installed("jax"):
        return None
    module = importlib.import_module("jax")
    formula = _jax_formulas(module).get(operation)
    if formula is None:
        return None
    compiled = module.jit(formula)
    given = [v if isinstance(v, float) else module.numpy.from_dlpack(_plain(v)) for v in inputs]
    return lambda: module.block_until_ready(compiled(*given))


def _jax_formulas(jax: Any) -> dict[str, Function]:
    """The operations in JAX; statistics in float32, as in the formulas."""
    nn, np = jax.nn, jax.numpy

    def wide(x: Any) -> Any:
        return x.astype(np.float32)

    def rms_norm(x: Any, w: Any) -> Any:
        scale = jax.lax.rsqrt(np.mean(wide(x) ** 2, -1, keepdims=True) + 1e-6)
        return (wide(x) * scale * w).astype(x.dtype)

    def layer_norm(x: Any, w: Any, b: Any) -> Any:
        centred = wide(x) - np.mean(wide(x), -1, keepdims=True)
        scale = jax.lax.rsqrt(np.mean(centred**2, -1, keepdims=True) + 1e-5)
        return (centred * scale * w + b).astype(x.dtype)

    def cross_entropy(x: Any, t: Any) -> Any:
        return nn.logsumexp(x, -1) - np.take_along_axis(x, t[:, None], -1)[:, 0]

    return {
        "gelu_tanh": nn.gelu,
        "gelu": lambda x: nn.gelu(x, approximate=False),
        "silu": nn.silu,
        "swiglu": lambda x, y: nn.silu(x) * y,
        "geglu": lambda x, y: nn.gelu(x) * y,
        "axpy": lambda a, x, y: a * x + y,
        "scale": lambda x: x * 2 + 1,
        "relu2": lambda x: nn.relu(x) ** 2,
        "polynomial": eval(f"lambda x: {POLYNOMIAL}"),
        "softplus": nn.softplus,
        "mish": lambda x: x * np.tanh(nn.softplus(x)),
        "bias_row": lambda x, b: x + b,
        "bias_column": lambda x, b: x + b,
        "transposed": lambda x, y: nn.silu(x) + y,
        "channels_last": lambda x, w, b: nn.silu(x * w + b),
        "softmax": lambda x: nn.softmax(x, -1),
        "log_softmax": lambda x: nn.log_softmax(x, -1),
        "logsumexp": lambda x: nn.logsumexp(x, -1),
        "entropy": lambda x: -np.sum(nn.softmax(x, -1) * nn.log_softmax(x, -1), -1),
        "row_sum": lambda x: np.sum(x, -1),
        "row_variance": lambda x: np.var(x, -1, ddof=1),
        "column_sum": lambda x: np.sum(x, 0),
        "rms_norm": rms_norm,
        "add_rms_norm": lambda x, r, w: (rms_norm(x + r, w), x + r),
        "layer_norm": layer_norm,
        "cross_entropy": cross_entropy,
    }


def _plain(tensor: Any) -> Any:
    """The tensor as JAX takes it: contiguous, and integers of 32 bits."""
    return (tensor if tensor.is_floating_point() else tensor.int()).contiguous()


def _applied(function: Function | None, inputs: Sequence[Any]) -> Function | None:
    if function is None:
        return None
    return lambda: function(*inputs)
