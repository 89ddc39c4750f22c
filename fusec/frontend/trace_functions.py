"""What a trace sees of functions of PyTorch: some ask for lengths as numbers, where a trace has
symbols, and run in parts; some take tensors that require grad; some compare no lengths.

The former never reach the dispatcher as operators of their own. Torch is imported where it is used.
May import the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

_MATRIX_ORDERS = ("fro", 1, -1, float("inf"), -float("inf"))


def in_parts() -> Any:
    """The mode that runs these functions in parts."""
    from torch.overrides import TorchFunctionMode

    known = _table()

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            parts = known.get(func)
            kwargs = kwargs or {}
            result = NotImplemented
            if parts is not None and kwargs.get("out") is None:
                result = parts(*args, **{k: v for k, v in kwargs.items() if k != "out"})
            return func(*args, **kwargs) if result is NotImplemented else result

    made: Any = Mode
    return made()


@cache
def _table() -> dict[Any, Callable[..., Any]]:
    import torch

    tensor: Any = torch.Tensor
    return {
        torch.take_along_dim: _take_along_dim,
        tensor.take_along_dim: _take_along_dim,
        torch.kron: _kron,
        tensor.kron: _kron,
        torch.linalg.matrix_norm: _matrix_norm,
        torch.linalg.norm: _norm,
    }


def compare_lengths(name: str, args: Sequence[Any]) -> None:
    """Guards on which lengths are equal. PyTorch makes none where positions may be for some of the
    rows only, and none for a loss of images.
    """
    own: Sequence[Any] = ()
    if name == "gather" and args[0].dim() and args[2].dim():
        own, others = args[0].shape, args[2].shape
    elif name == "index" and len(args[1]) == args[0].dim() and None not in args[1]:
        own, others = args[0].shape[:-1], [i.shape[-1] if i.dim() else 1 for i in args[1][:-1]]
    elif name == "nll_loss2d_forward":
        own, others = (args[0].shape[0], *args[0].shape[2:]), args[1].shape
    for length, other in zip(own, others if own else (), strict=True):
        bool(length == other)


def in_the_place_of(standins: dict[int, Any]) -> Any:
    """The mode that puts stand-ins in the place of tensors that require grad, by their ids.

    So PyTorch writes nothing down for gradients while a function is traced: it would make copies of
    what it saves, and let the function add hooks that no kernel knows of.
    """
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_map_only

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            def standin(tensor: Any) -> Any:
                return standins.get(id(tensor), tensor)

            args, kwargs = tree_map_only(torch.Tensor, standin, (args, kwargs or {}))
            return func(*args, **kwargs)

    made: Any = Mode
    return made()


def _take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Any:
    import torch

    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    if input.dim() != indices.dim() or not input.dim():
        raise ValueError(
            f"take_along_dim takes indices of as many axes as the input has: {input.dim()}, not"
            f" {indices.dim()}"
        )
    axis = dim % input.dim()
    shapes = [list(v.shape) for v in (input, indices)]
    own = [shape[axis] for shape in shapes]
    for shape in shapes:
        shape[axis] = 1
    broadcast: Any = torch.broadcast_shapes
    common = list(broadcast(*shapes))
    input, indices = (
        v.expand([*common[:axis], n, *common[axis + 1 :]])
        for v, n in zip((input, indices), own, strict=True)
    )
    return input.gather(axis, indices)


def _kron(input: Any, other: Any) -> Any:
    rank = max(input.dim(), other.dim())
    ours, theirs = ([1] * (rank - v.dim()) + list(v.shape) for v in (input, other))
    left = input.reshape([n for own in ours for n in (own, 1)])
    right = other.reshape([n for own in theirs for n in (1, own)])
    return (left * right).reshape([a * b for a, b in zip(ours, theirs, strict=True)])


def _matrix_norm(
    A: Any,  # these are PyTorch's own names
    ord: Any = "fro",
    dim: Any = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    import torch

    if ord not in _MATRIX_ORDERS or A.dim() < 2:
        return NotImplemented
    if ord == "fro":
        return torch.linalg.vector_norm(A, 2, dim, keepdim, dtype=dtype)
    rows, columns = (d % A.dim() for d in dim)
    summed, other = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = torch.linalg.vector_norm(A, 1, summed, True, dtype=dtype)
    found = sums.amax(other, True) if ord > 0 else sums.amin(other, True)
    return found if keepdim else found.squeeze((rows, columns))


def _norm(
    A: Any,  # these are PyTorch's own names
    ord: Any = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    """A norm of matrices; NotImplemented for one of vectors."""
    if ord is None or isinstance(dim, int) or (dim is None and A.dim() != 2):
        return NotImplemented
    axes = (-2, -1) if dim is None else tuple(dim)
    if len(axes) != 2:
        return NotImplemented
    return _matrix_norm(A, ord, axes, keepdim, dtype=dtype)
