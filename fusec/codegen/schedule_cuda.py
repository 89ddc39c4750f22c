"""The default choices about the performance of a CUDA kernel.

Sizes enter as classes: a power of two that covers the row, and whether rows begin and end where
vectors do. May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.codegen.kernel import Config, Form
from fusec.codegen.layout import Arrangement, Operand
from fusec.codegen.operand_facts import (
    FULL_GRID,
    VECTOR_BYTES,
    WIDE_OFFSETS,
    is_tile,
    rows_contiguous,
    splits_of,
)

FLAT_THREADS, FLAT_VECTORS = 128, 2
TILE_THREADS, TILE_VECTORS = 256, 4
HELD_WORDS = 32  # registers in which a thread holds what it has loaded of a row
WARP_VECTORS = 8  # of a row that one warp takes alone
KEPT_ELEMENTS = 16  # values of 16 bits that are better kept as floats than computed again
ROW_THREADS = 256  # of a block with several rows
BLOCK_THREADS = 512  # the most for a row that one block holds
CLUSTER_THREADS = 256  # the least of a block that shares its row with others
RESIDENT_THREADS = 1024  # of a multiprocessor: 64 registers each
LARGEST_BLOCK, LARGEST_CLUSTER = 1024, 8
CLUSTERS_SINCE = 90  # the compute capability, times ten
MULTIPROCESSORS = 132  # where the device is not known
TURNS = 2  # rows for each group of threads that make blocks stay
# Shared memory of a block: of data centre GPUs, of others, and what the system takes of it.
LARGE_SHARED, SMALL_SHARED, SYSTEM_SHARED = 227 * 1024, 99 * 1024, 1024
LOOP_THREADS, LOOP_VECTORS = 512, 4
# Of a loop over rows that nothing needs again, beyond so many columns, where few rows are so many.
READ_COLUMNS, READ_THREADS, READ_WORDS, READ_BLOCKS, READ_ROWS = 16384, 256, 16, 4, 512
# The threads of a short row that nothing needs again, at least; and the vectors of each, at most.
READ_GROUP, READ_GROUP_VECTORS = 4, 4
SHARE_TILES = 4  # the least of a row that a block takes where blocks share rows
COLUMN_THREADS, COLUMN_VECTORS = 256, 8


def choose_cuda(
    form: Form,
    accesses: Sequence[Operand],
    arrangement: Arrangement,
    aligned: Sequence[bool],
    capability: int = CLUSTERS_SINCE,
    batch_invariant: bool = False,
    running: bool = False,
    reductions: int = 1,
) -> Config:
    """The Config of a CUDA kernel for these operands.

    ``aligned``: which begin at a multiple of 16 bytes; ``capability``: that of the GPU, times ten;
    ``batch_invariant``: the number of rows decides nothing that a result depends on; ``running``:
    a loop reduces in one sweep what takes several where the row is held; ``reductions``: how many a
    kernel that reduces rows has.
    """
    vectors = _vectors(accesses, arrangement, aligned)
    if batch_invariant and vectors.lead is not None:
        # Where a row begins between vectors would decide which thread adds what.
        vectors = Config(lanes=1)
    once = running and is_read_only(accesses, arrangement)
    config = _choose(form, accesses, arrangement, aligned, capability, vectors, once)
    config = in_turns(config, accesses, arrangement, capability, reductions)
    return replace(config, splits=1) if batch_invariant else config


def _choose(
    form: Form,
    accesses: Sequence[Operand],
    arrangement: Arrangement,
    aligned: Sequence[bool],
    capability: int,
    vectors: Config,
    once: bool,
) -> Config:
    wide = arrangement.span >= WIDE_OFFSETS or arrangement.rows * arrangement.cols >= WIDE_OFFSETS
    if form is Form.ROWS and rows_contiguous(arrangement):
        return _columns(arrangement, wide)
    config = replace(vectors, wide_index=wide)
    if form is Form.FLAT:
        return _block(replace(config, whole=False), FLAT_THREADS, FLAT_VECTORS)
    if form is Form.TILE:
        return _tile(config, arrangement)
    return _rows(config, accesses, arrangement, aligned, capability, once)


def is_read_only(accesses: Sequence[Operand], arrangement: Arrangement) -> bool:
    """Whether no result varies along the columns."""
    return not any(o.kind == "root" and is_tile(k, arrangement) for k, o in enumerate(accesses))


def _vectors(
    accesses: Sequence[Operand], arrangement: Arrangement, aligned: Sequence[bool]
) -> Config:
    """How wide a vector is, who moves as vectors, and whether rows begin between them."""
    scalar = Config(lanes=1)
    along = [k for k in range(len(accesses)) if _is_contiguous(k, arrangement)]
    sizes = [accesses[k].node.dtype.itemsize for k in along]
    if not along:
        return scalar
    lanes = min(2 * VECTOR_BYTES // max(sizes), VECTOR_BYTES // min(sizes))
    if cover(arrangement.cols) < lanes:
        return scalar
    even = [k for k in along if aligned[k]]
    lead = next((k for k in even if is_tile(k, arrangement)), even[0] if even else None)
    if lead is None:
        return scalar
    begins = _row_starts(lead, arrangement, lanes)
    narrow = tuple(
        k for k in along if not aligned[k] or _row_starts(k, arrangement, lanes) != begins
    )
    if len(narrow) > len(along) - len(narrow):
        return scalar
    shifted = any(begins)
    whole = not shifted and arrangement.cols % lanes == 0
    return Config(lanes=lanes, narrow=narrow, lead=lead if shifted else None, whole=whole)


def _is_contiguous(operand: int, arrangement: Arrangement) -> bool:
    """Whether neighbouring columns are neighbours in memory."""
    return len(arrangement.layout.cols) == 1 and arrangement.layout.strides[operand][-1] == 1


def _row_starts(operand: int, arrangement: Arrangement, lanes: int) -> tuple[int, ...]:
    """By how many elements each step along a row axis moves the start of a row between vectors."""
    rows = len(arrangement.layout.rows)
    return tuple(stride % lanes for stride in arrangement.strides[operand][:rows])


def _block(config: Config, threads: int, vectors: int) -> Config:
    """A block that works on one row."""
    cols = threads * vectors * config.lanes
    return replace(config, warps=threads // 32, vectors=vectors, block_rows=1, block_cols=cols)


def _tile(config: Config, arrangement: Arrangement) -> Config:
    """Threads along the columns; the vectors of a thread lie below each other."""
    transposed = any(s and s[-1] not in (0, 1) for s in arrangement.layout.strides)
    if transposed:
        config = replace(config, lanes=1, narrow=(), lead=None, whole=False)
    group = 32 if transposed else min(TILE_THREADS, _vectors_of_row(config, arrangement))
    passes = TILE_THREADS // group
    vectors = max(1, min(TILE_VECTORS, cover(arrangement.rows) // passes))
    return replace(
        config, warps=TILE_THREADS // 32, vectors=vectors,
        block_rows=passes * vectors, block_cols=group * config.lanes,
    )  # fmt: skip


def _vectors_of_row(config: Config, arrangement: Arrangement) -> int:
    """A power of two of vectors that cover a row, wherever it begins."""
    if config.edges:
        return cover(arrangement.cols // config.lanes)
    overhang = config.lanes - 1 if config.lead is not None else 0
    return cover(-(-(arrangement.cols + overhang) // config.lanes))


def _rows(
    config: Config,
    accesses: Sequence[Operand],
    arrangement: Arrangement,
    aligned: Sequence[bool],
    capability: int,
    once: bool,
) -> Config:
    """A row in the registers of some lanes, a block or a cluster while it fits, else a loop."""
    held = [
        o.node.dtype.itemsize
        for k, o in enumerate(accesses)
        if o.kind not in ("root", "gather") and is_tile(k, arrangement)
    ] or [4]
    words = max(1, config.lanes * sum(held) // 4)
    most = max(1, 1 << (HELD_WORDS // words).bit_length() - 1) if words <= HELD_WORDS else 1
    config = _edged(config, arrangement, aligned)
    count = _vectors_of_row(config, arrangement)
    if once and arrangement.cols > READ_COLUMNS:
        config = _block(config, READ_THREADS, min(most, max(1, READ_WORDS // words)))
        config = replace(config, resident=False, blocks=READ_BLOCKS, apart=True)
    else:
        read = is_read_only(accesses, arrangement)
        config = _resident(config, count, most, arrangement, capability, read)
        if config.cluster > 1 and not _shared(config, accesses, arrangement):
            config = _tight(config, most, arrangement)
    if not config.resident:
        programs = arrangement.rows * (FULL_GRID // READ_ROWS if once else 1)
        splits = splits_of(programs, arrangement.cols, SHARE_TILES * config.block_cols)
        return replace(config, splits=splits)
    filled = config.block_cols * config.cluster == arrangement.cols
    config = _sure(config, count)
    if config.block_rows == 1:
        config = replace(config, blocks=-(-RESIDENT_THREADS // config.threads))
    few = config.vectors * config.lanes <= KEPT_ELEMENTS
    return replace(config, keep=few or min(held) >= 4, even=filled and config.whole)


def _sure(config: Config, count: int) -> Config:
    """How many vectors of each thread are inside every row of the class of ``count`` vectors: more
    than half of those are whole, and one fewer where a row begins between them. A cluster has no
    more vectors than it needs.
    """
    if config.block_rows > 1 or not (config.whole or config.edges):
        return config
    half = count // 2 // config.threads
    return replace(config, full=half if config.cluster == 1 else config.vectors - 1)


def _edged(config: Config, arrangement: Arrangement, aligned: Sequence[bool]) -> Config:
    """Rows that do not begin and end where vectors do: their whole vectors, and the few elements
    around those a thread each.
    """
    count = cover(arrangement.cols // config.lanes)
    if config.whole or config.lanes == 1 or count < 2 * config.lanes:
        return config
    rows = len(arrangement.layout.rows)
    across = tuple(
        k for k in config.narrow if aligned[k] and not any(arrangement.strides[k][:rows])
    )
    return replace(config, edges=True, across=across)


def _resident(
    config: Config, count: int, most: int, arrangement: Arrangement, capability: int, read: bool
) -> Config:
    """Threads for a row of ``count`` vectors of which a thread holds ``most`` at most."""
    if count <= 32 * min(most, WARP_VECTORS):
        group = min(32, count)
        if read:
            least = 2 * config.lanes if config.edges else READ_GROUP
            few = count // min(most, READ_GROUP_VECTORS)
            group = max(min(group, least), min(group, few))
        vectors = max(1, count // group)
        threads = ROW_THREADS if arrangement.layout.rows else 32
        # As many threads take a row that is alone, so that it has the bits it has among others.
        rows = threads // group if arrangement.layout.rows or read else 1
        cols = (group if rows > 1 else threads) * vectors * config.lanes
        return replace(
            config, warps=threads // 32, vectors=vectors, block_rows=rows, block_cols=cols
        )
    threads = count // most
    if threads <= BLOCK_THREADS:
        return _block(config, max(64, threads), count // max(64, threads))
    if capability >= CLUSTERS_SINCE and threads <= LARGEST_BLOCK * LARGEST_CLUSTER:
        cluster = min(LARGEST_CLUSTER, threads // CLUSTER_THREADS)
        threads //= cluster
        whole = -(-(arrangement.cols // config.lanes) // (threads * cluster))
        vectors = min(most, max(whole, most // 2 + 1))
        return replace(_block(config, threads, vectors), cluster=cluster)
    if threads <= LARGEST_BLOCK:
        return _block(config, threads, most)
    return replace(_block(config, LOOP_THREADS, min(most, LOOP_VECTORS)), resident=False)


def _tight(config: Config, most: int, arrangement: Arrangement) -> Config:
    """As many blocks of a cluster, and vectors of a thread, as leave the fewest places empty: a
    cluster need be no power of two, and where a thread holds less, less spills. Where rows share
    operands, as norms do, powers of two are as good or better.
    """
    needed = -(-(arrangement.cols // config.lanes) // config.threads)
    clusters, counts = range(config.cluster, LARGEST_CLUSTER + 1), range(most // 2 + 1, most + 1)
    fits = [(k * v, k, v) for k in clusters for v in counts if k * v >= needed]
    _, cluster, vectors = min(fits)
    return replace(_block(config, config.threads, vectors), cluster=cluster)


def in_turns(
    config: Config,
    accesses: Sequence[Operand],
    arrangement: Arrangement,
    capability: int,
    reductions: int,
) -> Config:
    """The same with blocks that stay, where clusters share rows, and rows share operands of as many
    bytes as they have.

    Else every row has those fetched from the second-level cache, and where rows are of odd length
    by vectors across those of memory. Who adds what stays as it was: both forms give the same bits,
    so the number of rows may choose.
    """
    groups = RESIDENT_THREADS // config.threads
    if config.cluster == 1 or config.lanes == 1 or groups < 2 or len(arrangement.layout.rows) != 1:
        return config
    if arrangement.rows < TURNS * groups * (MULTIPROCESSORS // config.cluster):
        return config
    sizes = [_stored_bytes(operand) for operand in accesses]
    tiles = [k for k in range(len(accesses)) if is_tile(k, arrangement)]
    shared = _shared(config, accesses, arrangement)
    if sum(sizes[k] for k in shared) < sum(sizes[k] for k in tiles):
        return config
    slots = config.cluster * config.warps  # of a row, for each reduction and each of two turns
    room = shared_limit(capability) - SYSTEM_SHARED - reductions * groups * 2 * 8 * (slots + 1)
    edges = config.threads if config.edges else 0
    room -= sum((config.block_cols + edges) * sizes[k] for k in shared)
    if room < 0:
        return config
    read = [k for k in tiles if accesses[k].kind != "root" and k not in config.narrow]
    vector = groups * config.threads * config.lanes * sum(sizes[k] for k in read)
    return replace(
        config, turns=True, staged=tuple(shared), block_rows=groups, warps=groups * config.warps,
        blocks=1, ahead=min(config.vectors, room // vector) if read else 0,
    )  # fmt: skip


def _shared(config: Config, accesses: Sequence[Operand], arrangement: Arrangement) -> list[int]:
    """The operands that all rows share."""
    return [k for k in range(len(accesses)) if _is_shared(k, config, accesses, arrangement)]


def blocks_that_stay(config: Config, rows: int, clusters: int) -> int:
    """How many blocks a launch has; ``clusters`` are on the device at once, 0 where not known."""
    at_once = clusters or MULTIPROCESSORS // config.cluster
    return min(rows, at_once) * config.cluster


def _is_shared(
    operand: int, config: Config, accesses: Sequence[Operand], arrangement: Arrangement
) -> bool:
    """Whether an operand is the same for all rows, and moved as vectors."""
    wide = operand in config.across or operand not in config.narrow
    read = accesses[operand].kind not in ("root", "gather")
    along = _is_contiguous(operand, arrangement)
    return wide and read and along and not any(arrangement.layout.strides[operand][:-1])


def _stored_bytes(operand: Operand) -> int:
    """The bytes of an element; what earlier kernels leave is as wide as it is computed."""
    dtype = operand.node.dtype
    return dtype.compute.itemsize if operand.kind == "read" else dtype.itemsize


def shared_limit(capability: int) -> int:
    """The most bytes of shared memory that a block may have on GPUs with clusters."""
    return LARGE_SHARED if capability < 110 else SMALL_SHARED


def _columns(arrangement: Arrangement, wide: bool) -> Config:
    """Neighbouring threads take neighbouring rows, and share each with threads further on."""
    config = Config(
        block_rows=32, block_cols=COLUMN_THREADS // 32 * COLUMN_VECTORS,
        warps=COLUMN_THREADS // 32, vectors=COLUMN_VECTORS, resident=False, wide_index=wide,
        lanes_along_rows=True, apart=True,
    )  # fmt: skip
    programs, share = -(-arrangement.rows // config.block_rows), SHARE_TILES * config.block_cols
    return replace(config, splits=splits_of(programs, arrangement.cols, share))


def cover(count: int) -> int:
    """The smallest power of two that is not below ``count``."""
    return 1 << max(0, count - 1).bit_length()
