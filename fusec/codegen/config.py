"""Every choice about performance, as numbers. May import nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Config:
    """Every choice about performance. ``lower.choose`` makes it; the tuner may make others."""

    block_rows: int = 1
    block_cols: int = 1024
    warps: int = 4
    # Rows that a program with several has on their way at a time, or tiles of a looped row.
    stages: int = 1
    unroll: int = 1  # tiles of a looped row whose instructions stand one behind the other
    registers: int = 0  # the most a thread may hold, 0 as the compiler likes
    resident: bool = True  # the row fits the tile: no loop
    even: bool = False  # the row fills the tile: no mask
    reread: bool = False  # the last sweep reads a row again, from the cache where it was left
    # What the caches are told of a row that is read again, of one read for the last time, and of
    # what all rows share.
    caching: tuple[str, ...] = ()
    early: bool = False  # what all rows share is on its way before a row is reduced
    wide_index: bool = False  # int64 offsets
    splits: int = 1  # programs that share a row, each a part of its columns
    spread: bool = False  # such a program takes every so-manieth tile, not those side by side
    # Neighbours along a strided axis that is reduced, taken as one long stretch of memory, since by
    # themselves they are short or begin between vectors. Another kernel joins what a stretch has.
    fold: int = 1
    # Rows and warps of a program that joins parts, where they are others.
    combine: tuple[int, int] | None = None
    bare: bool = False  # lanes outside a row are left as their load left them where that is right
    overlap: bool = False  # of the kernels of shared rows one may begin while another still runs
    rows_near: bool = False  # neighbouring programs take the same part of neighbouring rows
    prefetch: bool = False  # fetch the next row while this one is worked on
    lanes_along_rows: bool = False  # the contiguous axis is the row axis (column reductions)
    shared: bool = False  # what is reduced goes in parts, which the threads of a CPU may share
    pieces: bool = False  # such a row goes piece by piece, each read again from a cache
    stream: int = 0  # results go to memory past the caches, so many at a time
    chunks: int = 1  # programs, each with a block of the rows, that also sum columns over them
    lanes: int = 1  # elements of a vector
    vectors: int = 1  # vectors that a thread works on at a time
    cluster: int = 1  # blocks that share a row, each with ``block_cols`` of its columns
    blocks: int = 1  # blocks that the registers of a multiprocessor have to hold
    turns: bool = False  # blocks stay, and take ``block_rows`` rows at a time, turn after turn
    staged: tuple[int, ...] = ()  # operands that all rows share, which such blocks keep
    ahead: int = 0  # vectors of a thread's next row that come while it works on one
    keep: bool = False  # costly values wait for a later sweep, in a buffer or in registers
    whole: bool = False  # rows begin and end where vectors do
    edges: bool = False  # threads take the elements outside whole vectors of a row one by one
    across: tuple[int, ...] = ()  # operands whose whole vectors lie across those of memory
    full: int = 0  # vectors of a thread that are inside its row whatever the row; the others may be
    # Whole tiles have code of their own, without masks: those of a looped row, of a flat index, or
    # of a row of which an elementwise program takes a piece.
    apart: bool = False
    two_rows: bool = False  # a block of a flat index has elements of two rows at most
    narrow: tuple[int, ...] = ()  # operands that cannot be moved as whole vectors
    lead: int | None = None  # the operand whose rows begin between vectors, as those of others do

    @property
    def parts(self) -> int:
        """What is left of each row for a kernel that joins it; 1 if there is none."""
        return self.splits * self.fold

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps
