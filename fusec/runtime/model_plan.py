"""What a region of a model costs as kernels, and what it costs PyTorch: bytes, counted from shapes.

Kernels are built in the background, while PyTorch still works on the rest of the model. May import
everything below the API, which passes in how a graph becomes callable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from fusec.codegen.in_place import may_overwrite
from fusec.codegen.operand_facts import VECTOR_BYTES
from fusec.frontend.model_calls import COMPUTE
from fusec.frontend.model_nodes import hint
from fusec.frontend.model_trace import Model, ModelRegion
from fusec.ir.dtypes import by_torch_name
from fusec.ir.node import Dim, Node
from fusec.passes.columns import CHUNKS
from fusec.runtime.arguments import automatic_backend
from fusec.runtime.launch import Given, output_plan, prepare
from fusec.runtime.model_copies import Copy, copy_by_torch
from fusec.runtime.model_region import agree
from fusec.runtime.model_report import RegionReport
from fusec.runtime.shapes import concrete
from fusec.runtime.specialize import (
    TARGETS,
    Argument,
    Circumstances,
    LaidOut,
    Specialization,
    kernel_of,
    lay_out_all,
    parts_of,
)
from fusec.runtime.steps import capability_of, may_overlap
from fusec.runtime.traced_bound import Known, bind
from fusec.runtime.traced_formula import TracedFormula

if TYPE_CHECKING:
    import torch

    from fusec.passes.simplify import Numerics

_NAMED = 3  # operators in the name of a kernel
_LARGE = 1 << 24  # bytes, for which one more kernel pays
# How often PyTorch reads the inputs of an operator, where it is more than once: gradients of
# weights are a sweep of their own, and so are statistics.
_SWEEPS = {
    "native_layer_norm_backward": 2,
    "native_group_norm_backward": 2,
    "native_batch_norm_backward": 2,
    "_native_batch_norm_legit_functional": 2,
    "_native_batch_norm_legit": 2,
}


@dataclass(frozen=True, slots=True)
class Choice:
    """What kernels a model gets. ``make`` gives the callable for a formula; ``backend`` may be
    ``auto``; ``copy`` lays matrices out anew.
    """

    make: Callable[[TracedFormula], Any]
    backend: str
    numerics: Numerics
    copy: Copy = copy_by_torch


@dataclass(frozen=True, slots=True)
class Planned:
    """A region's kernels, not yet built: the function for its graph, what it costs, whether its
    results have to be laid out beforehand, and whether a kernel computes again what another one
    has, only to add it up. ``over``: results, and inputs over which the kernels may write them.
    """

    function: Any
    report: RegionReport
    given: bool
    again: bool
    build: Callable[[], object]
    over: tuple[tuple[int, int], ...] = ()


def plan_region(model: Model, region: ModelRegion, choice: Choice) -> Planned:
    """Plan the kernels of a region for the shapes of the example. Raises what planning raises."""
    program = region.program
    assert program.resolved is not None
    name = _name(model, region)
    formula = TracedFormula(program.source, program.resolved, choice.numerics, f"{name}_kernel")
    function = choice.make(formula)
    values = model.operations.values
    arguments = _arguments(Known(program, function), [_example(values[n]) for n in region.inputs])
    results = [_example(values[n]) for n in region.results]
    special: Specialization = function.specialization(arguments)
    sizes = special.sizes(arguments)
    own = [output_plan(special, k, arguments, sizes) for k in range(len(results))]
    pairs = zip(own, results, strict=True)
    given = any(p.shape != tuple(r.shape) or not agree(r, p.strides) for p, r in pairs)
    given = given and not any(r.steps for r in program.results)
    outs = [_given(k, r) for k, r in enumerate(results)] if given else None
    device = max((values[n].device for n in region.inputs), key=lambda d: d.type != "cpu")
    automatic = choice.backend == "auto"
    backend = automatic_backend(device) if automatic else choice.backend
    eager = _eager_bytes(model, region)
    if backend == "torch":
        whole = special.carried[0].regions if special.carried else special.regions
        fused = _bytes((a.node for _, accesses in whole for a in accesses), {**sizes, CHUNKS: 1})
        report = RegionReport(name, region.operators, len(whole), eager, fused)
        return Planned(function, report, given, False, _nothing)
    where = Circumstances(
        None, capability_of(device), automatic and device.type == "cuda", may_overlap(device)
    )
    chosen, laid, sizes = lay_out_all(special, arguments, sizes, {}, backend, where)
    fused = _bytes((a.node for one in laid for a in one.accesses), sizes)
    kernels = sum(len(parts_of(one)) for one in laid)
    even = frozenset(formula.inputs)

    def build() -> None:
        if device.type == "cuda":
            _enter(device)
        prepare(special, arguments, backend, device, even, outs, automatic=automatic)

    report = RegionReport(name, region.operators, kernels, eager, fused)
    again = any(_had_better_wait(one) for one in laid)
    over: tuple[tuple[int, int], ...] = ()
    known = all(is_known(values[n]) for n in (*region.inputs, *region.results))
    if known and not given and len({one.backend for one in laid}) == 1:
        inputs = [_example(values[n]) for n in region.inputs]
        over = _overwritten(chosen, laid, inputs, results) if _is_plain(program, inputs) else ()
    return Planned(function, report, given, again, build, over)


def _is_plain(program: Any, inputs: Sequence[Any]) -> bool:
    """Whether kernels read a region's inputs as they are, and give its results as they are."""
    views = bind(Known(program, None), inputs).views
    places = [n for n, _ in views], [r.output or 0 for r in program.results]
    steps = (*(s for _, s in views), *(r.steps for r in program.results))
    return places == (list(range(len(inputs))), list(range(len(program.results)))) and not any(
        steps
    )


def _overwritten(
    special: Specialization, laid: Sequence[LaidOut], inputs: Sequence[Any], results: Sequence[Any]
) -> tuple[tuple[int, int], ...]:
    """Results, and inputs of the same layout over which the kernels may write them."""
    pairs = [
        (k, place)
        for k, result in enumerate(results)
        for place, operand in enumerate(inputs)
        if _alike(operand, result)
    ]
    if not pairs:
        return ()
    kernels = [kernel_of(special, one, p) for one in laid for p in parts_of(one)]
    outputs, names = special.outputs, special.formula.inputs
    target = TARGETS[laid[0].backend]
    return tuple(
        (k, n) for k, n in pairs if may_overwrite(kernels, outputs[k].name, names[n], target)
    )


def is_known(tensor: Any) -> bool:
    """Whether a tensor has this layout in every call: with other lengths other kernels may run, and
    more of them may read an operand.
    """
    return all(isinstance(n, int) for n in (*tensor.shape, *tensor.stride()))


def _alike(operand: Any, result: Any) -> bool:
    """Whether two tensors have one layout and type."""
    alike = operand.shape == result.shape and operand.stride() == result.stride()
    return bool(alike and operand.dtype is result.dtype)


def _had_better_wait(one: LaidOut) -> bool:
    """Whether a kernel of sums over rows had better be left out, and the sums be taken of what
    another writes: where it computes that again, or writes it, on a GPU, in rows that begin between
    wide loads. 4096 x 30522 gradients of bfloat16 with their sum take 384 µs on an H200; 199
    without, and 85 for the sum by itself.
    """
    region, accesses = one.region, one.accesses
    if region.kind != "column reduction" or CHUNKS in region.space:
        return False
    whole = [a for a in accesses if a.node.shape == region.space]
    read = [a for a in whole if a.kind != "root"]
    if len(read) < 2:
        return False
    if len(read) == len(whole):
        return True
    row = one.arrangement.rows * min(a.node.dtype.itemsize for a in whole)
    large = row * one.arrangement.cols >= _LARGE
    return one.backend != "cpp" and large and row % VECTOR_BYTES != 0


def build_soon(planned: Planned) -> None:
    """Build a region's kernels in another thread; a call that comes first waits for them.

    What fails there fails again where the kernels are first used, and is seen to there.
    """
    _builders().submit(planned.build)


@cache
def _builders() -> ThreadPoolExecutor:
    workers = max(2, min(8, os.cpu_count() or 2))
    return ThreadPoolExecutor(workers, thread_name_prefix="fusec-build")


def _enter(device: torch.device) -> None:
    """Make the GPU's context that of this thread."""
    import torch

    torch.cuda.set_device(device)


def _nothing() -> None:
    """There is nothing to build."""


def _name(model: Model, region: ModelRegion) -> str:
    known = (model.operations.by_node[n] for n in region.nodes)
    names = dict.fromkeys(o.name.strip("_") for o in known if o.kind == COMPUTE)
    return "_".join(["fused", *[n for n in names if n != "getitem"][:_NAMED]])


def _example(tensor: Any) -> Any:
    """A tensor without memory, of the lengths that the graph was made with."""
    import torch

    shape, strides = map(hint, tensor.shape), map(hint, tensor.stride())
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=tensor.dtype, device="meta")


def _arguments(known: Known, leaves: Sequence[Any]) -> list[Argument]:
    """What the kernels get: the region's inputs under its views."""
    found = []
    for number, steps in bind(known, leaves).views:
        value = leaves[number]
        for step in steps:
            value = step(value)
        dtype = by_torch_name(str(value.dtype).removeprefix("torch."))
        assert dtype is not None
        found.append(Argument(dtype, tuple(value.shape), tuple(value.stride())))
    return found


def _given(position: int, result: Any) -> Given:
    shape, strides = tuple(result.shape), tuple(result.stride())
    return Given(f"out[{position}]", shape, strides, str(result.dtype), True, True)


def _eager_bytes(model: Model, region: ModelRegion) -> int:
    """What PyTorch's operators read and write one by one."""
    total = 0
    for node in region.nodes:
        operation = model.operations.by_node[node]
        if operation.kind != COMPUTE or operation.name == "getitem":
            continue
        read = [model.operations.values[i] for i in node.all_input_nodes]
        made = model.operations.values[node]
        total += _SWEEPS.get(operation.name, 1) * sum(map(size_of, read))
        total += sum(map(size_of, made if isinstance(made, tuple) else (made,)))
    return total


def size_of(value: Any) -> int:
    """Bytes of the memory behind a tensor, repeated elements counted once; 0 for a number."""
    if not hasattr(value, "untyped_storage"):
        return 0
    pairs = zip(value.shape, value.stride(), strict=True)
    return prod(hint(n) for n, s in pairs if hint(s)) * int(value.element_size())


def _bytes(nodes: Iterable[Node], sizes: Mapping[Dim, int]) -> int:
    """What kernels read and write that access these nodes."""
    return sum(prod(concrete(n.shape, dict(sizes))) * n.dtype.itemsize for n in nodes)
