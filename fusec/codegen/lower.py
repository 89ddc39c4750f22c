"""Region and Config to Kernel: where each value is computed. Printers decide nothing;
``schedule.py`` made the Config.

A row kernel runs in sweeps. Each reduction belongs to the first sweep in which everything it needs
is known: softmax takes its maximum in sweep 1, its sum in sweep 2 and writes in sweep 3. A resident
kernel holds the row, so its sweeps are stretches of straight code; a looped one reads the row again
in every sweep, and where the backend can it keeps the costly values of an earlier sweep in a
buffer.

May import ``fusec.ir``, ``fusec.passes.fuse``, ``codegen.kernel``, ``codegen.layout`` and
``codegen.values``.
"""

from __future__ import annotations

from textwrap import dedent

from fusec.codegen.body import Body, fetch, is_along, may_fetch, recall
from fusec.codegen.job import CPP, CUDA, TRITON, Job, Target
from fusec.codegen.kernel import (
    Access,
    Config,
    Form,
    Kernel,
    Let,
    Level,
    Load,
    Size,
    Stmt,
    Store,
    Sweep,
    Term,
)
from fusec.codegen.pairs import reductions_of, runs_along, sweeps_of
from fusec.codegen.sweeps import Sweeps
from fusec.codegen.values import Values
from fusec.ir.ops import Call, Kind

__all__ = [
    "CPP",
    "CUDA",
    "TRITON",
    "Job",
    "Target",
    "lower",
    "reductions_of",
    "runs_along",
    "sweeps_of",
]


# Long functions (sines, powers) that a thread of CUDA C++ has in its code at most, if an element
# has more than one. On the machine of an H200 NVRTC takes 0.25 s for 16 sines and 0.6 for 48 of
# them, cosines and powers; where they are called from one copy, 0.14, and the kernels are as quick.
# A sine alone would take 1.17 times as long.
WRITTEN_OUT = 12


def lower(job: Job) -> Kernel:
    """The Kernel of ``job.region`` for operands laid out as ``job.layout``, with the choices of
    ``job.config``.
    """
    rows = job.form is Form.ROWS
    if rows and job.target is TRITON and not job.layout.rows:
        assert job.config.block_rows == 1, "a tile of rows has no mask where there are none"
    values = Values(job)
    sweeps = Sweeps(values)
    flat = _vector_body if job.target is CUDA else _flat_body
    swept = sweeps.part if job.part else sweeps.statements
    body = swept() if rows else flat(values)
    lead = job.config.lead
    start = None if lead is None else values.row_start(lead)
    return Kernel(
        name=values.names.user(f"{job.region.name}_{job.part}" if job.part else job.region.name),
        form=job.form,
        config=job.config,
        pointers=tuple(p for key, p in values.pointers.items() if key in values.touched),
        numbers=tuple(values.numbers.values()),
        sizes=_sizes(values),
        variables=tuple(values.variables.values()),
        body=tuple(body),
        kept=tuple((name, node.dtype.compute) for node, name in sweeps.kept.items()),
        blocks=tuple(values.blocks),
        ahead=_ahead(values, body) if job.config.prefetch and not rows else (),
        start=start,
        staged=tuple(values.staged.values()),
        divided=sweeps.divided,
        waits=job.config.overlap and job.part > 1,
        followed=job.config.overlap and 0 < job.part <= sweeps_of(job.region, job.online),
        columns=tuple(sweeps.columns),
        flushes=_may_flush(values),
        calls=_calls_functions(values),
        header=_header(values),
        origin={"region": job.region.name, "kind": job.region.kind, "reason": job.region.reason},
    )


def _may_flush(values: Values) -> bool:
    """Whether every float operation takes its quick form.

    Then functions and divisions need not keep subnormal numbers, which costs a GPU more
    instructions than the functions themselves.
    """
    computed = (n for n in values.nodes if n.op.kind is Kind.ELEMENTWISE and n.dtype.is_float)
    return values.job.numerics != "precise" and all(values.fast(node) for node in computed)


def _calls_functions(values: Values) -> bool:
    """Whether a thread of CUDA C++ has so many elements of so many long functions that a compiler
    would take most of its time to write them out.
    """
    if values.job.target is not CUDA:
        return False
    computed = (n for n in values.nodes if n.op.kind is Kind.ELEMENTWISE and n not in values.reads)
    forms = (n.op.cuda.pick(n.args[-1].dtype.compute, values.fast(n)) for n in computed)
    long = sum(form.long for form in forms if isinstance(form, Call))
    return long > 1 and long * values.job.config.lanes * values.job.config.vectors > WRITTEN_OUT


def _ahead(values: Values, body: list[Stmt]) -> tuple[Access, ...]:
    """What is read once and in the order of memory, so that its next block can be asked for."""
    flat = values.job.form is Form.FLAT
    along = Term("i" if flat else "col", 1)
    full = Level.COL if flat else Level.TILE
    loads = (s for s in body if isinstance(s, Load) and s.level is full and not s.guards)
    return tuple(s.access for s in loads if along in s.access.terms)


def _sizes(values: Values) -> tuple[Size, ...]:
    """The size parameters, the main ones first;

    A program that works on one row need not know how many there are.
    """
    job = values.job
    main: tuple[str, ...] = ("n",) if job.form is Form.FLAT else ("rows", "cols")
    if job.part:
        main = ("rows", "cols", "chunk")
    elif job.region.columns:
        main = ("rows", "cols") if job.target.masks else ("rows", "cols", "share", "chunks")
    elif job.one_row or (job.form is Form.ROWS and job.target.masks and _of_one_row(job.config)):
        main = ("cols",)
    for name in main:
        values.size(name, name)
    first = [values.sizes[(name,)] for name in main]
    return (*first, *(s for s in values.sizes.values() if s not in first))


def _of_one_row(config: Config) -> bool:
    return config.block_rows == 1 and not config.turns


def _header(values: Values) -> tuple[str, ...]:
    """The formula, and what the kernel reads and writes."""
    text = dedent(values.job.graph.source.text).strip()
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    reads, writes = [
        ", ".join(
            f"{pointer.name.removesuffix('_ptr')} {pointer.storage.name}"
            for key, pointer in values.pointers.items()
            if (pointer.written and pointer.buffer not in values.again) is written
            and key in values.touched
        )
        for written in (False, True)
    ]
    facts = [f"reads {reads}"] if reads else []
    facts.append(f"writes {writes}")
    layout = values.job.layout
    full = Level.COL if values.job.form is Form.FLAT else Level.TILE
    moved = {
        buffer: values.pointers[buffer].storage.itemsize
        for position, operand in enumerate(values.job.accesses)
        if (buffer := (operand.name, operand.kind == "root")) in values.touched
        and operand.kind != "gather"
        and values.levels[operand.node] == full
        and (not layout.flattened or layout.is_whole(position))
    }
    if moved:
        total = sum(moved.values())
        facts.append(f"{total} byte{'s' if total > 1 else ''} per element")
    return (*lines, "", "; ".join(facts))


def _flat_body(values: Values) -> list[Stmt]:
    loads: list[Stmt] = []
    values.emit([n for n in values.nodes if n in values.reads or n.op.name == "input"], loads)
    computes: list[Stmt] = []
    values.emit(values.nodes, computes)
    stores: list[Stmt] = []
    values.store(values.job.region.roots, computes, stores)
    sections = {"load": loads, "compute": computes, "store": stores}
    body = Body()
    if values.job.one_row:
        own = [s for statements in sections.values() for s in statements if not is_along(s)]
        body.add("the row's own values", own)
        sections = {title: list(filter(is_along, found)) for title, found in sections.items()}
    for title, statements in sections.items():
        body.add(title, statements)
    return body.statements


def _vector_body(values: Values) -> list[Stmt]:
    """Elementwise work of threads that fetch several vectors before they compute."""
    full = Level.COL if values.job.form is Form.FLAT else Level.TILE
    statements: list[Stmt] = []
    values.emit([n for n in values.nodes if n in values.reads or n.op.name == "input"], statements)
    values.emit(values.nodes, statements)
    values.store(values.job.region.roots, statements, statements)
    body = Body()
    fetches: list[Stmt] = []
    work: list[Stmt] = []
    outside: list[Stmt] = []
    for statement in statements:
        assert isinstance(statement, (Let, Load, Store))
        if isinstance(statement, Load) and may_fetch(statement, full, resident=True):
            held = values.names.user(f"{statement.name}_vectors")
            fetches.append(fetch(statement, held))
            work.append(recall(statement, held))
        elif statement.level or isinstance(statement, Store):
            work.append(statement)
        else:
            outside.append(statement)
    body.add("load", fetches)
    body.add("compute and store", [*outside, Sweep(tuple(work), ())])
    return body.statements
