"""A call made ready: output shapes, buffers, kernels and their parameters for exact shapes, so that
a repeated call only passes addresses. May import everything below the API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusec.codegen.lower import reductions_of
from fusec.codegen.parameters import accumulated, part_buffer
from fusec.errors import DTypeError, ShapeError
from fusec.ir.dtypes import DType
from fusec.ir.node import Dim
from fusec.runtime.prepared import BufferPlan, CallPlan, Prepared, allocators
from fusec.runtime.shapes import concrete, contiguous
from fusec.runtime.specialize import (
    Argument,
    Circumstances,
    LaidOut,
    Specialization,
    lay_out_all,
)
from fusec.runtime.steps import Wiring, build_all, capability_of, may_overlap, steps_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Given:
    """What a launch has to know of an output tensor the caller brought.

    ``direct``: kernels may write to it.
    """

    label: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    aligned: bool
    direct: bool


def _checked(plan: BufferPlan, own: Given | None) -> BufferPlan:
    """The plan of an output that the caller brought, if it did;

    ShapeError or DTypeError, and nothing is written.
    """
    if own is None:
        return plan
    if own.shape != plan.shape:
        raise ShapeError(
            f"{own.label} is {list(own.shape)}, the result is {list(plan.shape)}",
            hint=f"make it with torch.empty({list(plan.shape)}, ...)",
        )
    if own.dtype != f"torch.{plan.dtype}":
        raise DTypeError(
            f"{own.label} is {own.dtype}, the result is torch.{plan.dtype}",
            hint=f"make it with dtype=torch.{plan.dtype}",
        )
    return plan._replace(strides=own.strides) if own.direct else plan


def prepare(
    special: Specialization,
    arguments: Sequence[Argument],
    backend: str,
    device: torch.device,
    aligned: frozenset[str],
    given: Sequence[Given | None] | None = None,
    sizes: dict[Dim, int] | None = None,
    automatic: bool = False,
) -> Prepared:
    """Make everything ready for a call. ``aligned``: inputs whose addresses are multiples of 16
    bytes. ``given``: the output tensors of the caller, None for one to be made. ``sizes``: the
    lengths of all named axes, where not every one shows in an input. ``automatic``: nobody asked
    for ``backend``.

    Raises ShapeError where axes disagree, BuildError and UnsupportedError from the compilers.
    """
    sizes = special.sizes(arguments) if sizes is None else sizes
    outputs = tuple(output_plan(special, k, arguments, sizes) for k in range(len(special.outputs)))
    if given is not None:
        outputs = tuple(_checked(plan, own) for plan, own in zip(outputs, given, strict=True))
    named = zip(special.outputs, given or [None] * len(outputs), strict=True)
    aligned |= frozenset(f"out {o.name}" for o, own in named if own is None or own.aligned)
    if backend == "torch" or any(n == 0 for n in sizes.values()):
        return Prepared(special, device, None, (), (), (), reference=True)
    kept = {
        o.name: _kept_strides(o.node.shape, o.squeeze, p)
        for o, p in zip(special.outputs, outputs, strict=True)
    }
    automatic = automatic and device.type == "cuda"
    circumstances = Circumstances(aligned, capability_of(device), automatic, may_overlap(device))
    special, laid, sizes = lay_out_all(special, arguments, sizes, kept, backend, circumstances)
    lengths = sizes
    if backend == "cuda" and special.formula.build == "load_inline" and device.type == "cuda":
        from fusec.runtime.build_inline import inline_step

        shapes = [(p.shape, p.strides) for p in outputs]
        step = inline_step(special, laid, arguments, shapes, aligned)
        made = allocators(outputs, device)
        return Prepared(special, device, None, made, (), (step,), tensors=True)

    def wire(regions: Sequence[LaidOut]) -> tuple[Wiring, tuple[BufferPlan, ...]]:
        temporaries = _temporaries(special, regions, lengths)
        wired = Wiring(special, lengths, device, aligned, tuple(temporaries))
        return wired, tuple(temporaries.values())

    interpreted = backend == "triton" and device.type == "cpu"
    if special.formula.tune and not interpreted and all(r.backend != "cuda" for r in laid):
        from fusec.runtime.tune import tuned

        laid = tuned(special, laid, wire, arguments, outputs, device)
    wiring, spare = wire(laid)
    build_all(wiring, laid)
    steps = [step for k, region in enumerate(laid) for step in steps_of(wiring, k, region)]
    plans = tuple(step.plan for step in steps if step.plan is not None)
    return Prepared(
        special,
        device,
        CallPlan(outputs, spare, plans) if len(plans) == len(steps) else None,
        allocators(outputs, device),
        allocators(spare, device),
        tuple(steps),
        tensors=interpreted,
    )


def _buffer(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> BufferPlan:
    return BufferPlan(shape, strides, dtype.torch)


def _temporaries(
    special: Specialization, laid: Sequence[LaidOut], sizes: dict[Dim, int]
) -> dict[str, BufferPlan]:
    """The buffers between kernels: reductions that later regions read, and parts of rows."""
    found: dict[str, BufferPlan] = {}
    for (region, _), arranged in zip(special.regions, laid, strict=True):
        for root in region.roots:
            if root.output is None:
                shape = concrete(root.node.shape, sizes)
                found[root.name] = _buffer(shape, contiguous(shape), root.node.dtype.compute)
        for name, node in region.columns:
            shape = (arranged.config.chunks * arranged.arrangement.cols,)
            found[name] = _buffer(shape, (1,), accumulated(node))
        if arranged.config.parts > 1:
            shape = (arranged.config.parts * arranged.arrangement.rows,)
            for k, node in enumerate(reductions_of(region)):
                found[part_buffer(region, k)] = _buffer(shape, (1,), accumulated(node))
    return found


def output_plan(
    special: Specialization,
    position: int,
    arguments: Sequence[Argument],
    sizes: Mapping[Dim, int],
) -> BufferPlan:
    """Shape and strides of an output; lengths and strides may be symbols of PyTorch.

    Without an order of its own, an elementwise one keeps a dense permuted layout of its first
    full-size input.
    """
    output = special.outputs[position]
    full = concrete(output.node.shape, sizes)
    rank = len(full)
    shape = tuple(n for k, n in enumerate(full) if k - rank not in output.squeeze)
    strides = contiguous(shape)
    if output.order is not None:
        return _buffer(shape, _ordered(shape, output.order), output.node.dtype)
    region = next(r for r, _ in special.regions if any(x.output is output for x in r.roots))
    if not region.axes and not output.squeeze:
        like = next((a for a in arguments if not a.scalar and a.shape == full and rank), None)
        if like is not None and _is_dense(like):
            strides = like.strides
    return _buffer(shape, strides, output.node.dtype)


def _ordered(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor whose axes lie in this order, outermost first."""
    strides = dict(zip(order, contiguous(tuple(shape[k] for k in order)), strict=True))
    return tuple(strides[k] for k in range(len(shape)))


def _is_dense(argument: Argument) -> bool:
    """Whether the strides are those of a contiguous tensor with its axes permuted."""
    if argument.strides == contiguous(
        argument.shape
    ):  # symbols are not sorted, if they can be left
        return True
    step = 1
    for stride, length in sorted(zip(argument.strides, argument.shape, strict=True)):
        if length == 1:
            continue
        if stride != step:
            return False
        step *= length
    return True


def _kept_strides(
    shape: Sequence[object], squeeze: tuple[int, ...], out: BufferPlan
) -> tuple[int, ...]:
    """Strides for the shape a kernel sees, in which squeezed axes are still there with length 1."""
    rank = len(shape)
    visible = iter(out.strides)
    return tuple(0 if k - rank in squeeze else next(visible) for k in range(rank))


def evaluate_reference(special: Specialization, values: Sequence[Any]) -> list[torch.Tensor]:
    """The outputs from the reference evaluator: PyTorch, op by op."""
    import torch

    from fusec.ir.evaluate import evaluate

    arrays = dict(zip(special.formula.inputs, values, strict=True))
    results: list[torch.Tensor] = evaluate(special.plan.graph, arrays, torch)
    return [_lying(r, o.order) for r, o in zip(results, special.outputs, strict=True)]


def _lying(result: torch.Tensor, order: Sequence[int] | None) -> torch.Tensor:
    """The same numbers with the axes in this order in memory."""
    import torch

    strides = result.stride() if order is None else _ordered(result.shape, order)
    if result.stride() == strides:
        return result
    return torch.empty_strided(
        result.shape, strides, dtype=result.dtype, device=result.device
    ).copy_(result)
