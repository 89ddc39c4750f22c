"""Casts that differ from one version of PyTorch to the next, as the one at hand makes them.

May import ``fusec.ir`` and ``fusec.passes``.
"""

from __future__ import annotations

import functools

from fusec.ir.dtypes import F8E4M3
from fusec.ir.graph import Graph
from fusec.passes.float8 import overflow_to_nan


def as_pytorch(graph: Graph) -> Graph:
    """``graph`` with the casts that the PyTorch at hand makes."""
    if not any(n.op.name == "cast" and n.dtype is F8E4M3 for n in graph.nodes()):
        return graph
    return overflow_to_nan(graph) if _float8_overflows() else graph


@functools.cache
def _float8_overflows() -> bool:
    """Whether PyTorch makes NaN of a number that float8_e4m3fn does not hold."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():  # a number is asked for, whatever stands around the call
        return bool(torch.tensor(1e4).to(torch.float8_e4m3fn).float().isnan())
