"""CUDA blocks that stay: they take row after row, keep what all rows share in shared memory, and
have part of the next row on its way while they work on one.

All rows of a block begin alike, so what it keeps lies as its rows do. May import ``fusec.ir`` and
the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fusec.codegen.cuda_place import group_of
from fusec.codegen.cuda_reduce import Reductions
from fusec.codegen.kernel import Fetch, Kernel, Load, Sweep

_PLACE = "vector * GROUP + threadIdx.x % GROUP"  # of what a block keeps for all its rows
_AHEAD = "vector * THREADS + threadIdx.x"  # of what is of a row


@dataclass(frozen=True, slots=True)
class Kept:
    """An array in the shared memory that a launch gives: its name, type, and first byte."""

    name: str
    kind: str
    begin: int


def kept_arrays(kernel: Kernel) -> tuple[list[Kept], int]:
    """What a block keeps, and the bytes that a launch has to give for it."""
    config, begin = kernel.config, 0
    found: list[Kept] = []
    for stage in kernel.staged:
        kind, width = stage.storage.cuda, stage.storage.itemsize
        found.append(Kept(stage.staged, f"Vector<{kind}>", begin))
        begin += config.block_cols * width
        if config.edges:
            found.append(Kept(f"{stage.staged}_edge", kind, begin))
            begin += _whole_vectors(group_of(kernel) * width)
    for fetch in next_rows(kernel):
        found.append(Kept(f"{fetch.buffer}_next", f"Vector<{fetch.storage.cuda}>", begin))
        begin += fetch.ahead * config.threads * config.lanes * fetch.storage.itemsize
    return found, begin


def shared_bytes(kernel: Kernel) -> int:
    """The shared memory that a launch has to give a block."""
    return kept_arrays(kernel)[1]


def next_rows(kernel: Kernel) -> list[Fetch]:
    """What of the next row begins to come while one is worked on."""
    return [f for s in kernel.body if isinstance(s, Sweep) for f in s.next_row]


def _whole_vectors(size: int) -> int:
    return -(-size // 16) * 16


@dataclass(slots=True)
class Turns(Reductions):
    """Prints the loop over rows of a block that stays."""

    def _wide(self, load: Load) -> str:
        """The vector of a load, which may lie across those of memory, or is kept by the block."""
        if load.staged:
            return f"{load.staged}[{_PLACE}]"
        return self._across(load) if load.across else self._vector(load.access)

    def _across(self, load: Load) -> str:
        return f"load_across({self._pointer(load.access)}, head, first, {self._end})"

    @contextmanager
    def _rows_in_turn(self) -> Iterator[None]:
        """What all rows share is kept, then row follows row."""
        self._declare_kept()
        line, index = self.writer.line, self._index
        line("int turn = 0;")
        if self.kernel.start is None:
            line(f"{index} row = cluster;")
            line(f"const {index} last = rows;")
            with self._turns():
                yield
            return
        line(f"{index} following = each * apart * cluster / clusters;")
        with self._block(
            "while (following < stop) {  // one after the other rows that begin alike"
        ):
            line(f"const {index} kind = following / each, behind = (kind + 1) * each;")
            line(f"{index} row = (following - kind * each) * apart + kind;")
            line("following = behind < stop ? behind : stop;")
            line(f"const {index} beyond = (following - kind * each) * apart;")
            line(f"const {index} last = beyond < rows ? beyond : rows;")
            line("if (row >= last) continue;")
            with self._turns():
                yield

    @contextmanager
    def _turns(self) -> Iterator[None]:
        """The rows from ``row`` to ``last`` that begin alike. The first is on its way before what
        is kept: that takes longer.
        """
        line, fetches = self.writer.line, next_rows(self.kernel)
        self._shift()
        for fetch in fetches if self.kernel.config.edges else ():
            line(f"{fetch.storage.cuda} {fetch.buffer}_edge_next{{}};")
        line("row += threadIdx.x / GROUP * apart;")
        if fetches:
            with self._block("if (row < last) {"):
                self._begin_row(fetches, "row")
        self._keep_staged()
        line("__cluster_barrier_arrive();")
        line("__cluster_barrier_wait();  // all is kept, all blocks run")
        with self._block("for (; row < last; row += ROWS * apart, ++turn) {"):
            line("renew(start);")
            yield

    def _declare_kept(self) -> None:
        arrays, _ = kept_arrays(self.kernel)
        if not arrays:
            return
        self.writer.line()
        self.writer.line("// what all rows share, and the next row")
        self.writer.line("extern __shared__ __align__(16) unsigned char memory[];")
        for kept in arrays:
            start = f"memory + {kept.begin}" if kept.begin else "memory"
            self.writer.line(f"auto* const {kept.name} = reinterpret_cast<{kept.kind}*>({start});")

    def _keep_staged(self) -> None:
        """The rows of a block share the work."""
        staged = self.kernel.staged
        if not staged:
            return
        if self.kernel.start is not None:
            self.writer.line("__syncthreads();  // what was kept before is no longer read")
        loop = "for (int vector = threadIdx.x / GROUP; vector < VECTORS; vector += ROWS) {"
        with self._block(loop):
            self._first()
            for stage in staged:
                self._keep_vector(stage)
        if not all(stage.across for stage in staged):
            self.writer.line("copied();")
        if not self.kernel.config.edges:
            return
        with self._block(f"if (threadIdx.x < GROUP && edge < {self._length}) {{"):
            for stage in staged:
                element = f"{stage.access.buffer}[{self._address(stage.access, 'edge')}]"
                self.writer.line(f"{stage.staged}_edge[threadIdx.x] = {element};")

    def _keep_vector(self, stage: Load) -> None:
        if stage.across:
            self.writer.line(f"{stage.staged}[{_PLACE}] = {self._across(stage)};")
            return
        self.writer.line(
            f"copy_ahead({stage.staged}[{_PLACE}], {self._pointer(stage.access)}, {self._reached});"
        )

    @property
    def _reached(self) -> str:
        """Whether there is anything of a vector to copy."""
        return "true" if self._full else f"first < {self._end}"

    def _kept_element(self, load: Load) -> str:
        return f"{load.staged}_edge[threadIdx.x % GROUP]"

    def _begin_row(self, fetches: Sequence[Fetch], row: str) -> None:
        """The vectors of a row that come ahead, and the elements around its whole vectors."""
        self.writer.line("#pragma unroll")
        with self._block(f"for (int vector = 0; vector < {fetches[0].ahead}; ++vector) {{"):
            self._first()
            for fetch in fetches:
                where = f"{fetch.access.buffer} + {self._address(fetch.access, 'first', row)}"
                self.writer.line(
                    f"copy_ahead({fetch.buffer}_next[{_AHEAD}], {where}, {self._reached});"
                )
        for fetch in fetches if self.kernel.config.edges else ():
            element = f"{fetch.access.buffer}[{self._address(fetch.access, 'edge', row)}]"
            self.writer.line(f"if (edge < {self._length}) {fetch.buffer}_edge_next = {element};")

    def _begin_next(self, fetches: Sequence[Fetch]) -> None:
        """The row of the next turn: what came of this one is in registers by now."""
        if not fetches:
            return
        with self._block("if (row + ROWS * apart < last) {  // the next row begins to come"):
            self.writer.line(f"const {self._index} next = row + ROWS * apart;")
            self._begin_row(fetches, "next")

    def _take_row(self, fetches: Sequence[Fetch]) -> None:
        """The vectors that came ahead, after the others are asked for."""
        vectors, ahead = self.kernel.config.vectors, fetches[0].ahead
        for fetch in fetches:
            kind = fetch.storage.cuda
            self.writer.line(f"Vector<{kind}> {fetch.buffer}[VECTORS];")
            if self.kernel.config.edges:
                self.writer.line(f"const {kind} {fetch.buffer}_edge = {fetch.buffer}_edge_next;")
        if ahead < vectors:
            self.writer.line("#pragma unroll")
            with self._block(f"for (int vector = {ahead}; vector < VECTORS; ++vector) {{"):
                self._first()
                for fetch in fetches:
                    text = self._vector(fetch.access, early=True)
                    self.writer.assign(f"{fetch.buffer}[vector]", f"{text};")
        self.writer.line("copied();")
        self.writer.line("#pragma unroll")
        with self._block(f"for (int vector = 0; vector < {ahead}; ++vector) {{"):
            for fetch in fetches:
                self.writer.line(f"{fetch.buffer}[vector] = {fetch.buffer}_next[{_AHEAD}];")
