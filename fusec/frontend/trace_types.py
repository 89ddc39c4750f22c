"""Operands in the types in which PyTorch computes.

Torch is imported where it is used. May import ``fusec.errors``, ``fusec.ir`` and, of the frontend,
``resolve_build``, ``resolve_values``, ``trace_place``, ``trace_rows`` and ``trace_values``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from fusec.errors import DTypeError
from fusec.frontend import trace_rows as rows
from fusec.frontend.resolve_build import Builder
from fusec.frontend.resolve_values import Literal, Tensor
from fusec.frontend.trace_place import Where
from fusec.frontend.trace_values import Traced
from fusec.ir.dtypes import I64
from fusec.ir.ops import OPS


def in_common(
    builder: Builder, operands: Mapping[str, Any], number: Callable[[Any], Literal | Tensor]
) -> dict[str, Any]:
    """``operands`` in the type that they have in common; factors are of that type.

    ``number`` is what a Python number, or one of the trace, is in the graph.
    """
    terms = {k: v for k, v in operands.items() if k not in rows.FACTORS}
    values = [v.operand() if isinstance(v, Traced) else number(v) for v in terms.values()]
    common = builder.common(OPS["add"], values)
    found = dict(operands)
    for name, value in operands.items():
        if isinstance(value, Traced):
            node = builder.convert(Tensor(value.node), common)
            found[name] = replace(value, node=node)
        elif name in rows.FACTORS and common.is_integer:  # addcmul takes floats, as integers
            own = number(value)
            found[name] = int(own.value) if isinstance(own, Literal) else builder.cast(own, I64)
    return found


def stored(builder: Builder, operand: Any) -> Any:
    """An operand as PyTorch has stored it: what is computed in 16 bits is rounded, and what is
    made wider of it is made of that.
    """
    if not isinstance(operand, Traced) or not operand.node.dtype.is_float:
        return operand
    node = operand.node
    value = node.args[0] if node.op.name == "cast" else node
    if not value.dtype.is_float:
        return operand
    rounded = builder.cast(Tensor(value), value.dtype)
    if rounded.node is value:
        return operand
    return replace(operand, node=builder.cast(rounded, node.dtype).node)


def refuse_type(name: str, args: Sequence[Any], where: Where) -> None:
    """DTypeError for what PyTorch refuses too, but over stand-ins does not."""
    import torch

    types = [a.dtype for a in args[:3] if isinstance(a, torch.Tensor)]
    if not types:
        return
    dtype = reduce(torch.promote_types, types) if name in rows.IN_COMMON else types[0]
    if dtype.is_floating_point or dtype.is_complex:
        return
    if name in rows.FLOATS_ONLY or (name in rows.NO_BOOLS and str(dtype) == "torch.bool"):
        message = f"PyTorch has no {name.removeprefix('_').removesuffix('_forward')} of {dtype}"
        raise where.error(DTypeError, message, "convert it first, as in x.float()")
