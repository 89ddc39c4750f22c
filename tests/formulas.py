"""Runs a formula through parser, resolver and reference evaluator, as the tests need it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fusec.frontend.parser import parse
from fusec.frontend.resolve import Resolved, check, resolve
from fusec.ir.dtypes import BOOL, F64, I64, by_torch_name
from fusec.ir.evaluate import evaluate
from fusec.ir.graph import InputSpec
from fusec.ir.node import Dim
from fusec.ir.verify import verify
from fusec.source import Source


def spec_of(name: str, value: Any) -> tuple[InputSpec, dict[Dim, int]]:
    """The input for a tensor or a Python number, and the lengths of its axes."""
    if not isinstance(value, torch.Tensor):
        dtype = BOOL if isinstance(value, bool) else I64 if isinstance(value, int) else F64
        return InputSpec(name, dtype, (), scalar=True), {}
    shape = tuple(1 if n == 1 else Dim(f"{name}.{i}") for i, n in enumerate(value.shape))
    sizes = {d: n for d, n in zip(shape, value.shape, strict=True) if isinstance(d, Dim)}
    dtype = by_torch_name(str(value.dtype).removeprefix("torch."))
    assert dtype is not None
    return InputSpec(name, dtype, shape), sizes


def graph_of(text: str, values: Mapping[str, Any], *, keepdim: bool = False) -> Resolved:
    """The verified graph of a formula for these inputs."""
    source = Source(text)
    program = parse(source)
    names = check(program, source, None)
    specs, sizes = [], {}
    for name in names:
        spec, lengths = spec_of(name, values[name])
        specs.append(spec)
        sizes.update(lengths)
    resolved = resolve(source, program, tuple(specs), keepdim=keepdim, sizes=sizes)
    verify(resolved.graph)
    return resolved


def run_all(
    text: str, *, keepdim: bool = False, precision: str | None = None, **values: Any
) -> list[torch.Tensor]:
    """Every result of a formula."""
    graph = graph_of(text, values, keepdim=keepdim).graph
    return evaluate(graph, values, torch, precision)


def run(
    text: str, *, keepdim: bool = False, precision: str | None = None, **values: Any
) -> torch.Tensor:
    """The one result of a formula."""
    (result,) = run_all(text, keepdim=keepdim, precision=precision, **values)
    return result


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal type, shape and values; NaN equals NaN, and zeros have their signs."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    nans = torch.equal(a.isnan(), b.isnan())
    a, b = a.double().nan_to_num(0.0), b.double().nan_to_num(0.0)
    return nans and torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())
