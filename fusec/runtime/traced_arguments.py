"""The arguments of a traced function: what of them a trace is for, and what it can vary.

May import everything below the API.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

from fusec.errors import DTypeError, ShapeError, UnknownNameError, UnsupportedError, did_you_mean
from fusec.frontend.trace import Leaf
from fusec.frontend.trace_layout import order_of
from fusec.ir.dtypes import by_torch_name
from fusec.runtime.addresses import share_memory
from fusec.runtime.arrays import is_array, tensor_of, why_refused

_STATIC = (bool, int, str, type(None), type(Ellipsis))
_OF_TORCH = ("dtype", "device", "memory_format", "layout")


@dataclass(frozen=True, slots=True)
class _Nesting:
    """How arguments were nested, where PyTorch's own description of it (2.6) has no hash."""

    structure: Any

    def __hash__(self) -> int:
        return hash(self.structure.num_leaves)


def nesting(structure: Any) -> Any:
    """A key for ``structure``, which is PyTorch's description of how arguments were nested."""
    try:
        hash(structure)
    except TypeError:
        return _Nesting(structure)
    return structure


def names_of(count: int, structure: Any) -> list[str]:
    """A name for each leaf of nested arguments: ``pair_0`` is the first of the parameter pair."""
    from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

    paths, _ = tree_flatten_with_path(tree_unflatten([0] * count, structure))
    found: list[str] = []
    for path, _ in paths:
        parts = [str(getattr(p, "key", getattr(p, "idx", p))) for p in path]
        name = "_".join(parts)
        name = name if name.isidentifier() else f"input_{len(found)}"
        while name in found:
            name += "_"
        found.append(name)
    return found


def constants_of(signature: Signature) -> frozenset[str]:
    """The parameters whose default is no argument of a trace: a function, or another object."""
    from torch.utils._pytree import tree_leaves

    found = []
    for name, parameter in signature.parameters.items():
        default = parameter.default
        alone = len(leaves := tree_leaves(default)) == 1 and leaves[0] is default
        if alone and default is not Parameter.empty and not is_argument(default):
            found.append(name)
    return frozenset(found)


def is_argument(value: Any) -> bool:
    """Whether a value can be one of the leaves of a call."""
    return hasattr(value, "shape") or is_static(value) or type(value) is float


def arguments(
    name: str,
    signature: Signature,
    constants: frozenset[str],
    args: Sequence[Any],
    named: Mapping[str, Any],
) -> dict[str, Any]:
    """The arguments of a call by name, with defaults, which if they are ``constants`` the function
    takes itself. Raises UnknownNameError.
    """
    try:
        bound = signature.bind(*args, **named)
    except TypeError as error:
        unknown = [n for n in named if n not in signature.parameters]
        hint = did_you_mean(unknown[0], tuple(signature.parameters)) if unknown else None
        raise UnknownNameError(
            f"{name}: {error}", hint=hint or f"call it as {name}{signature}"
        ) from None
    bound.apply_defaults()
    found = dict(bound.arguments)
    for own in constants:
        if found[own] is signature.parameters[own].default:
            del found[own]
    return found


def is_static(value: Any) -> bool:
    """Whether a value belongs to the kind that a trace is for."""
    kind = type(value)
    if kind is float:
        return not is_common(value)
    of_torch = kind.__module__ == "torch" and kind.__name__ in _OF_TORCH
    return of_torch or (isinstance(value, _STATIC) and not hasattr(value, "shape"))


def is_common(value: float) -> bool:
    """Whether a float is one that a trace can compare and tell from others: neither a NaN nor an
    infinity nor -0.0.
    """
    return math.isfinite(value) and (value != 0.0 or math.copysign(1.0, value) > 0)


def refuse_layouts(leaves: Sequence[Any], name_of: Callable[[int], str]) -> None:
    """UnsupportedError or DTypeError for tensors that are not plain numbers in a row."""
    import torch

    for position, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            continue
        own = f"input {name_of(position)!r}"
        if leaf.is_nested:
            hint = "pass its parts, or torch.nested.to_padded_tensor(x, 0.0)"
            raise UnsupportedError(f"{own} is a nested tensor", hint=hint)
        if leaf.layout is not torch.strided:
            raise UnsupportedError(f"{own} has the layout {leaf.layout}", hint="pass x.to_dense()")
        if leaf.is_quantized:
            raise DTypeError(f"{own} is quantized, as {leaf.dtype}", hint="pass x.dequantize()")


def is_empty_or_traced(value: Any) -> bool:
    """Whether a tensor has no element, or stands in for one in another trace."""
    return hasattr(value, "shape") and (0 in value.shape or type(value).__name__ == "FakeTensor")


def as_tensor(value: Any) -> Any:
    """The tensor of an array; anything else as it is."""
    if not is_array(value):
        return value
    refused = why_refused(value)
    if refused is not None:
        raise DTypeError(f"an input {refused[0]}", hint=refused[1])
    return tensor_of(value)


def leaf_of(name: str, value: Any) -> Leaf:
    """What a trace has to know of an argument."""
    import torch

    if isinstance(value, float):
        return Leaf(name, value=value)
    if isinstance(value, torch.Tensor):
        return Leaf(name, tuple(value.shape), value.dtype, value.device, order=order_of(value))
    refused = why_refused(value)
    if refused is not None:
        raise DTypeError(f"input {name!r} {refused[0]}", hint=refused[1])
    dtype = by_torch_name(value.dtype.name)
    assert dtype is not None
    dtype_of_torch, device = getattr(torch, dtype.torch), torch.device("cpu")
    return Leaf(name, tuple(value.shape), dtype_of_torch, device, order=order_of(value))


def kind_of(value: Any) -> Any:
    """What a trace is for: types, ranks, axes of length 1, the order of axes in memory, and
    numbers that are no floats or no common ones.
    """
    if type(value) is float:
        return float if is_common(value) else (float, repr(value))
    if hasattr(value, "shape"):
        device = getattr(value, "device", None)
        ones = tuple(n == 1 for n in value.shape)
        return str(value.dtype), str(device), ones, order_of(value)
    return type(value), value


def given(results: Any, out: Any) -> Any:
    """``results``, in the caller's tensors where it gave some.

    A result may be a view of an argument, and a tensor to write to may share memory with it.
    """
    import torch

    if out is None:
        return results
    outs = list(out) if isinstance(out, tuple | list) else [out]
    found = list(results) if isinstance(results, tuple | list) else [results]
    if len(outs) != len(found):
        raise ShapeError(f"out has {len(outs)} tensors, the function has {len(found)} results")
    for tensor, result in zip(outs, found, strict=True):
        _check(tensor, result)
    if share_memory(found, outs):
        found = [torch.clone(result) for result in found]
    for tensor, result in zip(outs, found, strict=True):
        tensor.copy_(result)
    return out


def _check(tensor: Any, result: Any) -> None:
    """Raises DTypeError or ShapeError unless ``tensor`` can take ``result``."""
    import torch

    for what, value in (("out", tensor), ("the result", result)):
        if not isinstance(value, torch.Tensor):
            raise DTypeError(f"{what} is a {type(value).__name__}, and out= is for tensors")
    if tensor.dtype != result.dtype:
        hint = f"make it with dtype={result.dtype}"
        raise DTypeError(f"out is {tensor.dtype}, the result is {result.dtype}", hint=hint)
    if tensor.shape != result.shape:
        raise ShapeError(f"out is {list(tensor.shape)}, the result is {list(result.shape)}")
