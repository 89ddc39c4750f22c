"""What the modules share: which tensors kernels can read, formulas by their text, and in which type
PyTorch computes under autocast.

May import torch and everything below the public names.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import _disable_current_modes

from fusec import api
from fusec.runtime import operators  # graphs that were saved name its operators
from fusec.runtime.operator_calls import constant_for_dynamo, through_operator

# Types that the modules fuse, and the cast of each in the language.
CASTS = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}
HALVES = (torch.float16, torch.bfloat16)
DEVICES = ("cpu", "cuda")
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_TRACED = ("FakeTensor", "FunctionalTensor")  # to import these classes takes a second
_forward_ad: Any = torch.autograd.forward_ad

assert operators.LIBRARY is not None


def can_fuse(x: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether kernels can read ``x``, a float tensor, and ``others`` beside it.

    Where forward-mode derivatives are taken they cannot: a kernel has none.
    """
    if _forward_ad._current_level >= 0 or not _readable(x):
        return False
    if x.dtype not in CASTS or x.device.type not in DEVICES:
        return False
    return all(t is None or (_readable(t) and t.device == x.device) for t in others)


def _readable(tensor: Any) -> bool:
    known = type(tensor) in _PLAIN or type(tensor).__name__ in _TRACED
    return known and tensor.layout is torch.strided and not tensor.is_nested


def fused(text: str, name: str, inputs: tuple[str, ...], *values: Any) -> Any:
    """The result of the formula ``text`` for these values of its inputs."""
    if torch.compiler.is_compiling():
        return through_operator(_written(text, name, inputs), values)
    return function(text, name, inputs)(*values)


@functools.lru_cache(maxsize=1024)
def function(text: str, name: str, inputs: tuple[str, ...]) -> api.CompiledFunction:
    """The compiled formula."""
    made: api.CompiledFunction = api.compile(text, name=name, inputs=inputs)
    return made


@constant_for_dynamo
def _written(text: str, name: str, inputs: tuple[str, ...]) -> str:
    return function(text, name, inputs)._written


def as_type(cast: str, text: str) -> str:
    """``text`` in the language, behind a cast if there is one."""
    return f"{cast}({text})" if cast else text


# -- autocast -------------------------------------------------------------------------------------

_PROBES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "layer_norm": lambda x: F.layer_norm(x, (1,)),
    "rms_norm": lambda x: F.rms_norm(x, (1,)),
    "softmax": lambda x: F.softmax(x, -1),
    "gelu": F.gelu,
    "cross_entropy": lambda x: F.cross_entropy(
        x, torch.zeros(1, dtype=torch.int64, device=x.device)
    ),
}


def cast_before(operation: str, x: torch.Tensor) -> str:
    """The cast of ``x`` that autocast has before ``operation``, in the language; or nothing."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return ""
    wanted = _type_under_autocast(operation, kind, torch.get_autocast_dtype(kind), x.dtype)
    return "" if wanted == x.dtype else CASTS[wanted]


@constant_for_dynamo
def _type_under_autocast(
    operation: str, kind: str, autocast: torch.dtype, dtype: torch.dtype
) -> torch.dtype:
    return _probed_type(operation, kind, autocast, dtype)


@functools.cache
def _probed_type(
    operation: str, kind: str, autocast: torch.dtype, dtype: torch.dtype
) -> torch.dtype:
    """The type that PyTorch's own function returns; its version and the device decide."""
    with _disable_current_modes(), torch.no_grad(), torch.autocast(kind, dtype=autocast):
        return _PROBES[operation](torch.ones(1, 1, dtype=dtype, device=kind)).dtype


@constant_for_dynamo
def default_eps(kind: str, dtype: torch.dtype) -> float:
    """What ``eps=None`` means to ``F.rms_norm``: the epsilon of the type of x, or in newer versions
    of the type that it computes in.
    """
    return _probed_eps(kind, dtype)


@functools.cache
def _probed_eps(kind: str, dtype: torch.dtype) -> float:
    choices = sorted({torch.finfo(dtype).eps, torch.finfo(torch.float32).eps})
    if dtype not in HALVES:
        return torch.finfo(dtype).eps
    with _disable_current_modes(), torch.no_grad(), torch.autocast(kind, enabled=False):
        small = torch.full((1, 1), 2.0**-12, dtype=dtype, device=kind)
        found = F.rms_norm(small, (1,)).item()
    return min(choices, key=lambda eps: abs(2.0**-12 / (2.0**-24 + eps) ** 0.5 - found))


@constant_for_dynamo
def rms_norm_type(kind: str, dtype: torch.dtype, weight: torch.dtype) -> torch.dtype:
    """The type of ``F.rms_norm`` for a weight of another type than x: that of x, or in older
    versions the wider of both.
    """
    return _probed_rms_norm_type(kind, dtype, weight)


@functools.cache
def _probed_rms_norm_type(kind: str, dtype: torch.dtype, weight: torch.dtype) -> torch.dtype:
    with _disable_current_modes(), torch.no_grad(), torch.autocast(kind, enabled=False):
        x, w = (torch.ones(1, 1, dtype=t, device=kind) for t in (dtype, weight))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that PyTorch's own is slow for two types
            return F.rms_norm(x, (1,), w[0], 1e-6).dtype
