"""From a formula and the shapes, strides and types of a call to kernels: what is specialised, and
by what.

A :class:`Specialization` is a Plan for input types, ranks and which axes have length 1. Under it a
:class:`Variant` is one built kernel for a class of layouts. Neither holds an exact shape. May
import everything below the API.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fusec import settings
from fusec.codegen import schedule, schedule_cpp, schedule_cuda
from fusec.codegen.kernel import Config, Form, Kernel
from fusec.codegen.layout import Arrangement, Operand, arrange, operands, pinned_axes
from fusec.codegen.lower import CPP, CUDA, TRITON, Job, lower, reductions_of, runs_along, sweeps_of
from fusec.codegen.prefer_cuda import prefer_cuda
from fusec.codegen.reread import read_again
from fusec.errors import InternalError
from fusec.ir.dtypes import DType
from fusec.ir.graph import Graph, InputSpec, Output
from fusec.ir.node import Dim, Shape
from fusec.passes.columns import CHUNKS, carry_columns
from fusec.passes.fuse import Plan, Region, plan
from fusec.passes.pipeline import dump_directory
from fusec.passes.pipeline import run as run_passes
from fusec.passes.save import found_again
from fusec.runtime.casts import as_pytorch
from fusec.runtime.cubin import Facts
from fusec.runtime.formula import Formula
from fusec.runtime.recipe import Built
from fusec.runtime.shapes import concrete, contiguous

TARGETS = {"cpp": CPP, "cuda": CUDA, "triton": TRITON}
INCLUDE = Path(__file__).parent.parent / "codegen" / "include"


@dataclass(frozen=True, slots=True)
class Argument:
    """What is seen of an argument: type, shape, strides (elements); of a number only the type."""

    dtype: DType
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    scalar: bool = False


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel that has been built:

    Its name, what it was built for, why that needed a kernel of its own, and of a GPU's kernel the
    registers and the local memory of a thread.
    """

    kernel: str
    backend: str
    key: str
    why: str
    facts: Facts | None = None

    def __str__(self) -> str:
        facts = "" if self.facts is None else f"; {self.facts}"
        return f"{self.kernel} [{self.backend}] {self.key}: {self.why}{facts}"


@dataclass(slots=True)
class Specialization:
    """The Plan for one combination of input types, ranks and length-1 axes."""

    formula: Formula
    specs: tuple[InputSpec, ...]
    plan: Plan
    equal: tuple[tuple[Dim, Dim], ...]
    regions: tuple[tuple[Region, tuple[Operand, ...]], ...]
    dump: Path | None = None  # where FUSEC_DUMP wants the sources of this program
    one_language: bool = False  # kernels have to come to the same digits, those of one another
    built: dict[tuple[object, ...], Any] = field(default_factory=dict)
    # The same with column reductions taken along by rows: as many as can be first.
    carried: tuple[Specialization, ...] = ()
    variants: list[Variant] = field(default_factory=list)
    binaries: dict[str, Variant] = field(default_factory=dict)  # those with an entry in the cache
    # Kernels that recipes brought before there was a plan: shared by all of the function.
    recalled: dict[str, Built] = field(default_factory=dict)

    @property
    def outputs(self) -> tuple[Output, ...]:
        return self.plan.graph.outputs

    def sizes(self, arguments: Sequence[Argument]) -> dict[Dim, int]:
        """The length of every named axis in this call;

        ShapeError where two that must agree do not.
        """
        sizes = axis_sizes(self.specs, arguments)
        if any(sizes[a] != sizes[b] for a, b in self.equal):
            specialize(self.formula, arguments)  # raises, and names the place
            raise InternalError("axes disagree, yet the formula resolves")
        return sizes


def key_of(arguments: Sequence[Argument]) -> tuple[object, ...]:
    """What decides the Specialization: types, ranks, and which axes have length 1."""
    return tuple((a.dtype, a.scalar, tuple(n == 1 for n in a.shape)) for a in arguments)


def kind_of(arguments: Sequence[Argument]) -> str:
    """The same as text, for a recipe."""
    return repr([(a.dtype.name, a.scalar, [n == 1 for n in a.shape]) for a in arguments])


def input_specs(formula: Formula, arguments: Sequence[Argument]) -> tuple[InputSpec, ...]:
    """Inputs with a fresh Dim for each axis that is not of length 1."""
    specs = []
    for name, argument in zip(formula.inputs, arguments, strict=True):
        shape: Shape = tuple(
            1 if n == 1 else Dim(f"{name}.{k}") for k, n in enumerate(argument.shape)
        )
        specs.append(InputSpec(name, argument.dtype, shape, argument.scalar))
    return tuple(specs)


def axis_sizes(specs: Sequence[InputSpec], arguments: Sequence[Argument]) -> dict[Dim, int]:
    """Dim to length, for fresh specs of these arguments."""
    sizes: dict[Dim, int] = {}
    for spec, argument in zip(specs, arguments, strict=True):
        for k, length in enumerate(argument.shape):
            sizes[Dim(f"{spec.name}.{k}")] = length
    return sizes


def specialize(formula: Formula, arguments: Sequence[Argument]) -> Specialization:
    """Resolve, simplify and cut the formula for these arguments. Raises ShapeError, DTypeError."""
    specs = input_specs(formula, arguments)
    sizes = axis_sizes(specs, arguments)
    resolved = formula.resolved(specs, sizes)
    return of_graph(formula, specs, resolved.graph, resolved.equal)


def of_graph(
    formula: Formula,
    specs: tuple[InputSpec, ...],
    resolved: Graph,
    equal: tuple[tuple[Dim, Dim], ...] = (),
) -> Specialization:
    """Simplify and cut a graph; ``formula`` names its inputs in order, the mode and the kernels."""
    graph = run_passes(as_pytorch(resolved), formula.numerics)
    made = plan(graph, formula.name, formula.fuse)
    if settings.get().debug >= 2:
        for region in made.regions:
            sys.stderr.write(f"{region.name}: {region.kind}, {region.reason}\n")
    special = _of_plan(formula, specs, made, equal, dump_directory(resolved))
    plain = formula.fuse and not formula.tune and not formula.batch_invariant
    carried = carry_columns(made) if plain else ()
    special.carried = tuple(_of_plan(formula, specs, p, equal, special.dump) for p in carried)
    for other in special.carried:
        other.variants, other.binaries = special.variants, special.binaries
    return special


def _of_plan(
    formula: Formula,
    specs: tuple[InputSpec, ...],
    made: Plan,
    equal: tuple[tuple[Dim, Dim], ...],
    dump: Path | None,
) -> Specialization:
    regions = tuple((region, operands(region)) for region in made.regions)
    alike = len(made.regions) > 1 and bool(found_again(made.graph))
    return Specialization(formula, specs, made, equal, regions, dump, alike)


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A region laid out for one call: the arrangement, the Config and the Kernel it leads to."""

    region: Region
    accesses: tuple[Operand, ...]
    arrangement: Arrangement
    config: Config
    backend: str
    reason: str | None = None  # why CUDA C++ was chosen, where the choice was free
    relaxed: str | None = None  # why the Config is not the one that the rules chose

    def number(self, source: tuple[str | int, ...], sizes: dict[Dim, int]) -> int:
        """The value of a size or stride parameter in this call."""
        laid, config = self.arrangement, self.config
        overhang = config.lanes - 1 if config.lead is not None else 0
        part = -(-(laid.cols // config.fold + overhang) // config.splits)
        whole = {
            "n": laid.cols,
            "rows": laid.rows,
            "cols": laid.cols,
            "chunk": -(-part // config.block_cols) * config.block_cols,
            "share": -(-laid.rows // config.chunks),
            "chunks": config.chunks,
        }
        match source:
            case (str(name),) if name in whole:
                return whole[name]
            case ("row", int(k)):
                return laid.row_sizes[k]
            case ("col", int(k)):
                return laid.col_sizes[k]
            case ("stride", int(operand), int(axis)):
                return laid.strides[operand][axis]
            case ("gather", int(operand)):
                return laid.gather_strides[operand]
            case ("length", int(operand)):
                return laid.gather_lengths[operand]
            case ("dim", str(name)):
                return sizes[Dim(name)]
        raise InternalError(f"no value for the kernel parameter {source}")


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a layout may depend on beside shapes and strides.

    ``aligned``: the buffers that begin at a multiple of 16 bytes (names as in ``Wiring``); None for
    all.
    """

    aligned: frozenset[str] | None = None
    capability: int = schedule_cuda.CLUSTERS_SINCE  # of the GPU, times ten
    automatic: bool = False  # CUDA C++ may take the place of Triton
    overlap: bool = True  # a kernel may be launched before another ends


USUAL = Circumstances()


def lay_out(
    special: Specialization,
    position: int,
    arguments: Sequence[Argument],
    sizes: dict[Dim, int],
    output_strides: dict[str, tuple[int, ...]],
    backend: str,
    where: Circumstances = USUAL,
) -> LaidOut:
    """Region ``position`` laid out for this call."""
    region, accesses = special.regions[position]
    by_name = dict(zip(special.formula.inputs, arguments, strict=True))
    strides: list[tuple[int, ...]] = []
    for operand in accesses:
        if operand.kind in ("input", "gather"):
            node = operand.node if operand.kind == "input" else operand.node.args[0]
            strides.append(by_name[operand.name].strides + (0,) * node.integer("unsqueezed"))
        else:
            shape = concrete(operand.node.shape, sizes)
            strides.append(output_strides.get(operand.name) or contiguous(shape))
    invariant = special.formula.batch_invariant
    arrangement = arrange(region, accesses, sizes, strides, invariant and backend != "cpp")
    form, reason = form_of(region, arrangement), None
    running, count = runs_along(region, CUDA.online), len(reductions_of(region))
    if where.automatic and backend == "triton" and not special.one_language:
        alone = not region.columns  # Triton can take sums over the rows along
        reason = prefer_cuda(form, accesses, arrangement, where.capability, running, alone, count)
        reason = reason if reason is not None and _compiles_cuda() else None
        backend = "triton" if reason is None else "cuda"
    apart = sweeps_of(region, ())
    if backend == "cpp":
        joined = sweeps_of(region, CPP.online)
        carries = bool(region.columns)
        config = schedule_cpp.choose_cpp(form, accesses, arrangement, apart, joined, carries)
    elif backend == "cuda":
        even = [_begins_even(special, operand, where.aligned) for operand in accesses]
        config = schedule_cuda.choose_cuda(
            form, accesses, arrangement, even, where.capability, invariant, running, count
        )
    else:
        if form is Form.TILE:
            arrangement = schedule.regrouped(accesses, arrangement, bool(pinned_axes(region)))
            form = form_of(region, arrangement)
        again = read_again(region) if form is Form.ROWS else ()
        placed = bool(pinned_axes(region))
        config = schedule.choose_triton(
            form, accesses, arrangement, invariant, apart == 1, again, placed
        )
        if where.overlap and where.capability >= schedule.OVERLAP_SINCE and config.parts > 1:
            config = replace(config, overlap=True)
    return LaidOut(region, accesses, arrangement, config, backend, reason)


def _compiles_cuda() -> bool:
    """Whether something here compiles CUDA C++."""
    from fusec.runtime.build_cuda import find_compiler

    return find_compiler() is not None


def _begins_even(special: Specialization, operand: Operand, aligned: frozenset[str] | None) -> bool:
    """Whether an operand begins at a multiple of 16 bytes; what fusec allocates does."""
    if aligned is None or operand.kind == "read":
        return True
    if operand.kind != "root":
        return operand.name in aligned
    given = any(output.name == operand.name for output in special.outputs)
    return f"out {operand.name}" in aligned or not given


def lay_out_all(
    special: Specialization,
    arguments: Sequence[Argument],
    sizes: dict[Dim, int],
    output_strides: dict[str, tuple[int, ...]],
    backend: str,
    where: Circumstances = USUAL,
) -> tuple[Specialization, list[LaidOut], dict[Dim, int]]:
    """Every region laid out, for the specialisation whose kernels run: where rows can take column
    reductions along, that is one of ``special.carried``, and the lengths say in how many blocks.
    """
    for carried in special.carried:
        carried.recalled = special.recalled
        place = next(k for k, (r, _) in enumerate(carried.regions) if r.columns)
        row = lay_out(carried, place, arguments, sizes, output_strides, backend, where)
        columns = len(row.region.columns)
        if schedule.takes_columns(row.config, row.arrangement, columns, row.backend):
            config = schedule.carrying(row.config, row.accesses, row.arrangement, row.backend)
            lengths = {**sizes, CHUNKS: config.chunks}
            found = [
                replace(row, config=config)
                if k == place
                else lay_out(carried, k, arguments, lengths, output_strides, backend, where)
                for k in range(len(carried.regions))
            ]
            return carried, found, lengths
    places = range(len(special.regions))
    laid = [lay_out(special, k, arguments, sizes, output_strides, backend, where) for k in places]
    return special, laid, sizes


def form_of(region: Region, arrangement: Arrangement) -> Form:
    """Flat when one axis is left, tile for more, rows when some are reduced."""
    if region.axes:
        return Form.ROWS
    return Form.TILE if arrangement.layout.rows else Form.FLAT


def parts_of(laid: LaidOut) -> range:
    """The kernels of a laid-out region: number 0 alone, or where programs share rows 1 and on."""
    if laid.config.parts == 1:
        return range(1)
    return range(1, sweeps_of(laid.region, TARGETS[laid.backend].online) + 2)


def kernel_of(special: Specialization, job: LaidOut, part: int = 0, plain: bool = False) -> Kernel:
    """Lower one laid-out region, or one part of it (see :func:`parts_of`).

    ``plain`` avoids the fast forms of functions, as the mode ``precise`` does.
    """
    whole = Job(
        special.plan.graph,
        job.region,
        job.accesses,
        job.arrangement.layout,
        job.config,
        TARGETS[job.backend],
        "precise" if plain else special.formula.numerics,
        part,
    )
    kernel = lower(whole)
    if not part or kernel.divided or job.config.combine is None:
        return kernel
    rows, warps = job.config.combine
    return lower(replace(whole, config=replace(job.config, block_rows=rows, warps=warps)))


def grid_of(kernel: Kernel, rows: int, cols: int, clusters: int = 0) -> tuple[int, int, int]:
    """How many programs a launch needs; ``clusters`` of them are on the device at once."""
    config = kernel.config
    if config.turns:
        return (schedule_cuda.blocks_that_stay(config, rows, clusters), 1, 1)
    if kernel.columns:
        return (config.chunks, 1, 1)
    if kernel.divided:
        row_blocks = -(-rows * config.fold // config.block_rows) * config.splits
    else:
        row_blocks = -(-rows // config.block_rows)
    row_blocks *= config.cluster
    if kernel.form is Form.FLAT:
        return (-(-cols // config.block_cols), 1, 1)
    if kernel.form is Form.TILE:
        cols += config.lanes - 1 if config.lead is not None else 0
        return (row_blocks * -(-cols // config.block_cols), 1, 1)
    return (row_blocks, 1, 1)
