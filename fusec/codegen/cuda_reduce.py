"""How the threads of a CUDA kernel reduce a row: each on its own, then among each other.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from fusec.codegen.cuda_place import group_of
from fusec.codegen.cuda_vectors import Vectors
from fusec.codegen.kernel import (
    Accumulate,
    Accumulator,
    Apply,
    Combine,
    Expr,
    Let,
    Level,
    Literal,
    Load,
    Masked,
    Reduce,
    Ref,
    Rescale,
    Stmt,
    Sweep,
)
from fusec.codegen.uses import reads
from fusec.ir.dtypes import F64, DType
from fusec.ir.ops import OPS, Call, Infix


@dataclass(slots=True)
class Reductions(Vectors):
    """Prints running values and what combines them."""

    _of_parts: list[Load] = field(default_factory=list)  # read in loops over the parts of a row
    # Of a pair: 1 while the maximum of a vector is found, 2 for the sum below that; 3 for the sum
    # of a tile whose maximum is known.
    _phase: int = 0
    _met: bool = False  # the blocks of a cluster have waited for each other to start

    def _scales(self, statements: Iterable[Stmt]) -> None:
        """The factor of the terms of a mean."""
        means: dict[DType, None] = {}
        for statement in statements:
            if isinstance(statement, Sweep):
                means.update({a.dtype: None for a in statement.accumulators if a.op.name == "mean"})
            elif isinstance(statement, Combine) and statement.op.name == "mean":
                means[statement.dtype] = None
        for dtype in means:
            one = "1.0" if dtype is F64 else "1.0f"
            whole = self._whole_length
            text = f"{one} / {whole}" if whole else f"mean_scale<{dtype.cuda}>(cols)"
            self.writer.line(f"const {dtype.cuda} {_scale(dtype)} = {text};")

    @property
    def _whole_length(self) -> int:
        """The length of rows of which a block has several, where it is a power of two that is
        known; else 0.

        The terms of a mean are divided by it then, which is exact, and their sum by nothing. Where
        a block or more has a row, a division less is nothing gained.
        """
        config = self.kernel.config
        several = config.block_rows > 1 and config.cluster == 1
        length = config.block_cols if config.even and several else 0
        return length if length & (length - 1) == 0 else 0

    def _accumulate(self, statement: Accumulate) -> None:
        accumulator = statement.accumulator
        kind, name = accumulator.accumulate, accumulator.lanes
        value = self._term(statement)
        if accumulator.op.name == "mean":
            fma = "fma" if kind is F64 else "fmaf"
            text = self.dialect.text(value)
            self.writer.assign(name, f"{fma}({text}, {_scale(kind)}, {name});")
            return
        assert accumulator.op.combine is not None
        joined = Apply(
            OPS[accumulator.op.combine],
            (Ref(name, kind, Level.TILE), value),
            kind,
            kind,
            Level.TILE,
        )
        form = joined.op.cuda.pick(kind)
        if isinstance(form, Infix) and kind.bits >= 32:
            self.writer.line(f"{name} {form.symbol}= {self.dialect.text(value)};")
        else:
            self.writer.assign(name, f"{self.dialect.text(joined)};")

    def _term(self, statement: Accumulate) -> Expr:
        """What is added; where it is masked, every lane computes it: a choice between two numbers
        is cheaper than one of what to do.
        """
        value = statement.value
        if not isinstance(value, Masked) or isinstance(value.arg, Ref):
            return value
        dtype, name = value.arg.dtype, f"{statement.accumulator.name}_term"
        self._define(name, dtype, self.dialect.text(value.arg))
        return replace(value, arg=Ref(name, dtype, Level.COL))

    def _declare(self, accumulator: Accumulator) -> None:
        kind = accumulator.accumulate
        identity = self.dialect.literal(Literal(accumulator.identity.value, kind), strict=True)
        self.writer.line(f"{kind.cuda} {accumulator.lanes} = {identity};")

    def _finish(self, name: str, op_name: str, part: str, dtype: DType) -> None:
        """What the threads of a row have, combined; a mean is divided by the number of elements."""
        config = self.kernel.config
        form = OPS[op_name].cuda.pick(dtype)
        assert isinstance(form, Call)
        join, slots = form.name, f"{name}_slots"
        size = None
        if config.lanes_along_rows:
            size, across = "[GROUP][ROWS]", f"across_group<{join}>({part}, {slots})"
        elif config.turns:
            meeting = f"{name}_meeting[threadIdx.x / GROUP]"
            across = f"across_cluster_in_turn<{join}>({part}, {meeting}, turn)"
        elif config.cluster > 1:
            self._wait_for_start()
            across = f"across_cluster<{join}>({part}, {slots}, {name}_barrier)"
        elif group_of(self.kernel) == 1:
            across = part
        elif group_of(self.kernel) <= 32:
            across = f"across_lanes<{join}, GROUP>({part})"
        else:
            size, across = "[WARPS]", f"across_block<{join}>({part}, {slots})"
        if size is not None:
            self.writer.line(f"__shared__ {dtype.cuda} {slots}{size};")
        if op_name == "mean" and not self._whole_length:
            across = f"{across} / (static_cast<{dtype.cuda}>(cols) * {_scale(dtype)})"
        self._define(name, dtype, across)

    def _combine(self, statement: Combine) -> None:
        """The parts of a row that other blocks left, each group of threads on its own."""
        kind, op = statement.dtype, statement.op
        assert op.identity is not None
        part = f"{statement.name}_part"
        accumulator = Accumulator(
            statement.name, part, op, kind, kind, Literal(op.identity(kind), kind), kind
        )
        self._declare(accumulator)
        end = "row < rows ? SPLITS : 0" if self._several_rows else "SPLITS"
        with self._block(f"for (int part = member; part < ({end}); part += GROUP) {{"):
            value = f"{statement.access.buffer}[{self._address(statement.access)}]"
            self._accumulate(Accumulate(accumulator, Ref(value, kind, Level.ROW)))
        self._finish(statement.name, op.name, part, kind)

    def _meet(self) -> None:
        """Shared memory for what the blocks of a cluster send each other, ready before any does."""
        sweeps = [s for s in self.kernel.body if isinstance(s, Sweep)]
        names = [a.name for sweep in sweeps for a in sweep.accumulators]
        if self.kernel.config.turns:
            self._meet_in_turns(names)
            return
        for name in names:
            self.writer.line(f"__shared__ unsigned long long {name}_slots[CLUSTER * WARPS];")
            self.writer.line(f"__shared__ unsigned long long {name}_barrier;")
        with self._block("if (threadIdx.x == 0) {"):
            for name in names:
                self.writer.line(f"open_barrier({name}_barrier);")
        self.writer.line("__cluster_barrier_arrive_relaxed();")

    def _meet_in_turns(self, names: Sequence[str]) -> None:
        """The same for each of the rows of a block."""
        for name in names:
            self.writer.line(f"__shared__ Meeting {name}_meeting[ROWS];")
        with self._block("if (threadIdx.x < ROWS) {"):
            for name in names:
                self.writer.line(f"open_meeting({name}_meeting[threadIdx.x]);")

    # -- a maximum and a sum of exponentials below it ---------------------------------------------

    def _exp(self, dtype: DType, fast: bool, text: str) -> str:
        form = OPS["exp"].cuda.pick(dtype, fast)
        assert isinstance(form, Call)
        return f"{form.name}({text})"

    def _rescale(self, statement: Rescale) -> None:
        """In the first phase the maximum of a vector, in the second the sum below it."""
        largest, total = statement.largest.lanes, statement.total.lanes
        value = self.dialect.text(statement.value)
        if self._phase == 1:
            self.writer.assign(largest, f"maximum({largest}, {value});")
            return
        below, kind = f"{value} - {statement.largest.name}_base", statement.total.dtype
        more = "_more" if self._phase == 3 else ""
        if statement.weighted is None:
            self.writer.line(f"{total}{more} += {self._exp(kind, statement.fast, below)};")
            return
        name = statement.total.name
        self._define(f"{name}_below", kind, below)
        self._define(f"{name}_power", kind, self._exp(kind, statement.fast, f"{name}_below"))
        self.writer.line(f"{total}{more} += {name}_power;")
        running, fma = f"{statement.weighted.lanes}{more}", "fma" if kind is F64 else "fmaf"
        joined = f"{fma}({name}_power, {name}_below, {running})"
        if isinstance(statement.value, Masked) and not self.dialect.inside:
            joined = f"inside ? {joined} : {running}"
        self.writer.assign(running, f"{joined};")

    def _before(self, pairs: Iterable[Rescale]) -> None:
        for pair in pairs:
            self._define(f"{pair.largest.name}_before", pair.largest.dtype, pair.largest.lanes)

    def _rebase(self, pairs: Iterable[Rescale]) -> None:
        """The sum so far, below the new maximum."""
        for pair in pairs:
            kind, name = pair.total.dtype, pair.largest.name
            self._define(f"{name}_base", kind, f"finite_base({pair.largest.lanes})")
            self._rebase_sums(pair, f"{name}_before", f"{name}_base")
            for total in _sums(pair) if pair.packed and not self._phase else ():
                zero = self.dialect.literal(Literal(0.0, kind), strict=True)
                self.writer.line(f"{kind.cuda} {total.lanes}_more = {zero};")

    def _rebase_sums(self, pair: Rescale, before: str, base: str) -> None:
        """The sums below the maximum ``before`` as they are below ``base``."""
        kind, total = pair.total.dtype, pair.total.lanes
        factor = self._exp(kind, pair.fast, f"{before} - {base}")
        if pair.weighted is None:
            self.writer.line(f"{total} *= {factor};")
            return
        name = f"{pair.total.name}_factor"
        self._define(name, kind, factor)
        self.writer.line(f"{total} *= {name};")
        moved = f"finite_gap({before}, {base}) * {total}"
        self.writer.assign(pair.weighted.lanes, f"{pair.weighted.lanes} * {name} + {moved};")

    def _packed_maxima(self, pairs: Sequence[Rescale]) -> None:
        """The maxima of a tile from its vectors as they are, and the sums so far below those."""
        if not pairs:
            return
        self._before(pairs)
        with self._loop():
            self._leave()
            if not self.dialect.inside:
                self._first()
            guard = "" if self._full else f"if (first < {self._end}) "
            for pair in pairs:
                name, vectors = pair.largest.lanes, pair.packed
                assert vectors is not None
                assert vectors.storage is not None
                most = f"largest_{vectors.storage.cuda}({vectors.buffer}[vector])"
                self.writer.line(f"{guard}{name} = maximum({name}, {most});")
        self._rebase(pairs)

    def _add_tile(self, pairs: Iterable[Rescale]) -> None:
        """What a tile had, into the sums of a thread."""
        for pair in pairs:
            for total in _sums(pair):
                self.writer.line(f"{total.lanes} += {total.lanes}_more;")

    def _finish_online(self, statement: Rescale) -> None:
        """Both results of a pair, after one meeting of the blocks."""
        kind = statement.total.dtype
        largest, total = statement.largest, statement.total
        self._wait_for_start()
        shared = [f"{a.name}_{what}" for a in (largest, total) for what in ("slots", "barrier")]
        exponential = self._exp(kind, statement.fast, "x")
        self.writer.line(f"online_across_cluster({largest.lanes}, {total.lanes},")
        self.writer.line(f"                      {', '.join(shared)},")
        self.writer.line(f"                      []({kind.cuda} x) {{ return {exponential}; }});")
        for accumulator in (largest, total):
            self._define(accumulator.name, kind, accumulator.lanes)

    def _wait_for_start(self) -> None:
        """A block that has not begun cannot be written to."""
        if self._met:
            return
        self._met = True
        self.writer.line("__cluster_barrier_wait();  // all blocks of the cluster run")

    def _rescale_part(self, statement: Rescale) -> None:
        """From the maximum of a thread to that of the row; that of an empty row counts as 0."""
        name = statement.largest.name
        self._define(f"{name}_base", statement.total.dtype, f"finite_base({name})")
        self._rebase_sums(statement, statement.largest.lanes, f"{name}_base")

    # -- the parts of a row that other blocks left ------------------------------------------------

    def _reduce_parts(self, statement: Reduce) -> None:
        """A reduction over the parts, each thread taking some."""
        kind, op = statement.dtype, statement.op
        assert op.identity is not None
        part = f"{statement.name}_part"
        identity = Literal(op.identity(kind), kind)
        accumulator = Accumulator(statement.name, part, op, kind, kind, identity, kind)
        self._declare(accumulator)
        end = "(row < rows ? SPLITS : 0)" if self._several_rows else "SPLITS"
        with self._block(f"for (int part = member; part < {end}; part += GROUP) {{"):
            wanted = reads([Let("", statement.value, Level.ROW)])
            for load in (part for part in self._of_parts if part.name in wanted):
                element = f"{load.access.buffer}[{self._address(load.access)}]"
                self._define(load.name, load.dtype, element)
            self._accumulate(Accumulate(accumulator, statement.value))
        self._finish(statement.name, op.name, part, kind)


def _sums(pair: Rescale) -> list[Accumulator]:
    """The running sums below the maximum of a pair."""
    return [pair.total] if pair.weighted is None else [pair.total, pair.weighted]


def _scale(dtype: DType) -> str:
    return "wide_scale" if dtype is F64 else "scale"
