"""Two reductions in one sweep, where the second needs the first: a running maximum with the sum of
exponentials below it, a running mean with the variance around it.

The sum is rescaled whenever the maximum grows (Milakov and Gimelshein, *Online normalizer
calculation for softmax*, 2018), and with it a sum of those exponentials times their exponents, as
an entropy has it. The variance of two stretches is their variances and the distance of their means,
each by its weight (Chan, Golub and LeVeque, *Updating formulae and a pairwise algorithm for
computing sample variances*, 1979).

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fusec.codegen.kernel import (
    Accumulator,
    Apply,
    Convert,
    Expr,
    Let,
    Level,
    Literal,
    Load,
    Masked,
    Reduce,
    Ref,
    Rescale,
    Start,
    Stmt,
)
from fusec.codegen.pairs import Pair
from fusec.codegen.parameters import accumulated
from fusec.codegen.values import Values
from fusec.ir.dtypes import BOOL, I32, I64, DType
from fusec.ir.node import Node
from fusec.ir.ops import OPS

_LOWEST = -3.4028234663852886e38  # of the finite float32


@dataclass(slots=True)
class Online:
    """Writes the statements of one pair in a kernel."""

    values: Values
    pair: Pair
    _seen: Ref = field(init=False)  # how many elements earlier tiles held

    def __post_init__(self) -> None:
        if self.pair.variance:
            self._seen = self._fresh("seen", Level.UNIFORM)

    @property
    def _kind(self) -> DType:
        return accumulated(self.pair.second)

    @property
    def _level(self) -> Level:
        return self.values.levels[self.pair.first]

    @property
    def _first(self) -> Ref:
        return Ref(self.values.name(self.pair.first), self._kind, self._level)

    @property
    def _second(self) -> Ref:
        return Ref(self.values.name(self.pair.second), self._kind, self._level)

    @property
    def _third(self) -> Ref:
        assert self.pair.weighted is not None
        return Ref(self.values.name(self.pair.weighted), self._kind, self._level)

    @property
    def _result(self) -> Ref:
        """The second reduction, when its running value has become that."""
        return Ref(self.values.name(self.pair.second), self._kind, self._level)

    def starts(self) -> list[Stmt]:
        """What the running values are before the first tile."""
        running = [(self._first, 0.0 if self.pair.variance else -math.inf), (self._second, 0.0)]
        if self.pair.variance:
            running.append((self._seen, 0.0))
        return [Start(ref.name, Literal(value, self._kind), ref.level) for ref, value in running]

    def update(self, out: list[Stmt]) -> None:
        """Take in the tile at hand."""
        value = self.values.at_hand[self.pair.value]
        if self.pair.variance:
            self._update_variance(value, out)
        else:
            self._update_sum(value, out)

    def finish(self, out: list[Stmt]) -> None:
        """From the running values to the results of both reductions."""
        first, second = self._first, self._second
        if self.pair.variance:
            if self.pair.second.op.name == "sum":
                count = Convert(self._size("cols"), self._kind, Level.UNIFORM)
                out.append(Let(self._result.name, self._apply("mul", second, count), self._level))
        elif self.pair.guarded:
            above = self._test("eq", first, self._number(math.inf))
            capped = self._apply("where", above, self._number(math.inf), second)
            out.append(Let(self._result.name, capped, self._level))
        else:  # an infinite maximum makes every exponential NaN
            undefined = self._apply("sub", first, first)
            total = self._apply("add", second, undefined)
            out.append(Let(self._result.name, total, self._level))
        self._provide()

    def _provide(self) -> None:
        """The results are at hand from here on."""
        self.values.at_hand[self.pair.first] = self._first
        self.values.at_hand[self.pair.second] = self._result
        if self.pair.weighted is not None:
            self.values.at_hand[self.pair.weighted] = self._third

    def combine(self, out: list[Stmt]) -> None:
        """The running values of the whole row from those of its parts."""
        first, second = self._parts(self.pair.first, out), self._parts(self.pair.second, out)
        if self.pair.variance:
            weight = self._bound("weight", self._apply("div", *self._part_counts()), out)
            out.append(self._reduce(self._first, "sum", self._apply("mul", first, weight)))
            distance = self._apply("sub", first, self._first)
            within = self._apply("mul", second, weight)
            between = self._apply("mul", self._apply("mul", distance, weight), distance)
            both = self._apply("add", within, between)
            out.append(self._reduce(self._second, "sum", both))
        else:
            out.append(self._reduce(self._first, "max", first))
            base = self._base(self._first, out)
            scaled = self._apply("mul", second, self._exp(first, base))
            out.append(self._reduce(self._second, "sum", scaled))
            if self.pair.weighted is not None:
                third = self._parts(self.pair.weighted, out)
                # Finite also where a part has no maximum: its sum is 0, and stays that.
                apart = self._apply("sub", first, base)
                gap = self._apply("maximum", apart, self._number(_LOWEST))
                moved = self._apply("mul", gap, scaled)
                kept = self._apply("mul", third, self._exp(first, base))
                both = self._apply("add", kept, moved)
                out.append(self._reduce(self._third, "sum", both))
        self.finish(out)

    # -- one tile ---------------------------------------------------------------------------------

    def _update_sum(self, value: Expr, out: list[Stmt]) -> None:
        first, second = self._first, self._second
        tile = self._fresh("tile_max", self._level)
        out.append(self._reduce(tile, "max", self._masked(value, -math.inf)))
        peak = self._bound("peak", self._apply("maximum", first, tile), out)
        base = self._base(peak, out)
        part = self._fresh("tile_sum", self._level)
        out.append(self._reduce(part, "sum", self._masked(self._exp(value, base), 0.0)))
        scaled = self._apply("mul", second, self._exp(first, base))
        out.append(Let(second.name, self._apply("add", scaled, part), self._level))
        out.append(Let(first.name, peak, self._level))

    def _update_variance(self, value: Expr, out: list[Stmt]) -> None:
        first, second = self._first, self._second
        block = self.values.job.config.block_cols
        count = self._bound("held", self._tile_count(), out)
        spread = self._bound("spread", self._apply("div", self._number(float(block)), count), out)
        total = self._bound("total", self._apply("add", self._seen, count), out)
        weight = self._bound("weight", self._apply("div", count, total), out)
        rest = self._bound("rest", self._apply("div", self._seen, total), out)
        mean = self._tile_mean("tile_mean", value, spread, out)
        distance = self._apply("sub", value, mean)
        around = self._apply("mul", distance, distance)
        variance = self._tile_mean("tile_var", around, spread, out)
        gap = self._bound("gap", self._apply("sub", mean, first), out)
        step = self._bound("step", self._apply("mul", gap, weight), out)
        apart = self._apply("mul", self._apply("mul", gap, rest), step)
        kept = self._apply("mul", second, rest)
        both = self._apply("add", kept, self._apply("mul", variance, weight))
        out.append(Let(second.name, self._apply("add", both, apart), self._level))
        # From an infinite mean there is no step.
        infinite = self._test("eq", self._apply("abs", first), self._number(math.inf))
        joined = self._apply("where", infinite, mean, step)
        out.append(Let(first.name, self._apply("add", first, joined), self._level))
        out.append(Let(self._seen.name, total, Level.UNIFORM))

    def _tile_mean(self, stem: str, value: Expr, spread: Expr, out: list[Stmt]) -> Ref:
        """The mean over a tile. A power of two comes first, which keeps the sum in range."""
        share = self._number(1.0 / self.values.job.config.block_cols)
        total = self._fresh(f"{stem}_share", self._level)
        out.append(self._reduce(total, "sum", self._masked(self._apply("mul", value, share), 0.0)))
        return self._bound(stem, self._apply("mul", total, spread), out)

    def _tile_count(self) -> Expr:
        """How many elements of the row are in the tile."""
        job = self.values.job
        end = Ref("last", self._index, Level.UNIFORM) if job.part else self._size("cols")
        left = self._integer("sub", end, Ref("start", self._index, Level.UNIFORM))
        most = self._integer("minimum", left, Literal(job.config.block_cols, self._index))
        return Convert(most, self._kind, Level.UNIFORM)

    # -- the parts of a row -----------------------------------------------------------------------

    def _parts(self, node: Node, out: list[Stmt]) -> Ref:
        values = self.values
        ref = Ref(values.names.user(f"{values.name(node)}_parts"), self._kind, Level.TILE)
        access, mask = values.part(node, written=False), values.mask(self._level)
        out.append(Load(ref.name, access, self._kind, self._kind, Level.TILE, mask))
        return ref

    def _part_counts(self) -> tuple[Expr, Expr]:
        """How many elements each part holds, and the row."""
        assert not self.values.job.config.spread, "parts are weighed as stretches"
        chunk, part = self._size("chunk"), Ref("part", self._index, Level.COL)
        cols = self._size("cols")
        left = self._integer("sub", cols, self._integer("mul", part, chunk))
        some = self._integer("maximum", Literal(0, self._index), left)
        held = self._integer("minimum", some, chunk)
        return Convert(held, self._kind, Level.COL), Convert(cols, self._kind, Level.UNIFORM)

    # -- expressions ------------------------------------------------------------------------------

    @property
    def _index(self) -> DType:
        return I64 if self.values.job.config.wide_index else I32

    def _size(self, name: str) -> Ref:
        return Ref(self.values.size(name, name), self._index, Level.UNIFORM)

    def _number(self, value: float) -> Literal:
        return Literal(value, self._kind)

    def _integer(self, name: str, *args: Expr) -> Expr:
        level = args[0].level | args[1].level
        return Apply(OPS[name], args, self._index, self._index, level)

    def _test(self, name: str, left: Expr, right: Expr) -> Expr:
        return Apply(OPS[name], (left, right), BOOL, self._kind, left.level | right.level)

    def _apply(self, name: str, *args: Expr) -> Expr:
        level = args[0].level
        for argument in args[1:]:
            level |= argument.level
        return Apply(OPS[name], args, self._kind, self._kind, level)

    def _exp(self, value: Expr, base: Expr) -> Expr:
        node = self.pair.second.args[0]
        args = (self._apply("sub", value, base),)
        level = args[0].level
        return Apply(OPS["exp"], args, self._kind, self._kind, level, self.values.fast(node))

    def _base(self, peak: Ref, out: list[Stmt]) -> Ref:
        """What exponents are taken against: not -inf, since -inf less itself is no number."""
        empty = self._test("eq", peak, self._number(-math.inf))
        return self._bound("base", self._apply("where", empty, self._number(0.0), peak), out)

    def _masked(self, value: Expr, identity: float) -> Expr:
        return Masked(value, self._number(identity), self._kind, value.level)

    def _reduce(self, ref: Ref, name: str, value: Expr) -> Reduce:
        return Reduce(ref.name, OPS[name], value, self._kind)

    def _fresh(self, stem: str, level: Level) -> Ref:
        return Ref(self.values.names.user(stem), self._kind, level)

    def _bound(self, stem: str, value: Expr, out: list[Stmt]) -> Ref:
        ref = Ref(self.values.names.user(stem), self._kind, value.level)
        out.append(Let(ref.name, value, value.level))
        return ref


@dataclass(slots=True)
class LaneOnline(Online):
    """The pair of a maximum and a sum, where each thread runs both on its own and threads join
    theirs after the sweep. ``total``: the name of the sum before what :meth:`finish` does.
    """

    total: str = ""

    @property
    def _second(self) -> Ref:
        return Ref(self.total, self._kind, self._level)

    def starts(self) -> list[Stmt]:
        return []

    def update(self, out: list[Stmt]) -> None:
        largest, total, *weighted = self.accumulators()
        value = self._masked(self.values.at_hand[self.pair.value], -math.inf)
        fast = self.values.fast(self.pair.second.args[0])
        out.append(Rescale(largest, total, value, fast, weighted[0] if weighted else None))

    def accumulators(self) -> tuple[Accumulator, ...]:
        """The running maximum and the running sum of a thread, or its running sums."""
        sums = [self.total] if self.pair.weighted is None else [self.total, self._third.name]
        largest = self._running(self._first.name, "max", -math.inf)
        return (largest, *(self._running(name, "sum", 0.0) for name in sums))

    def _running(self, name: str, op: str, start: float) -> Accumulator:
        kind = self._kind
        return Accumulator(name, f"{name}_part", OPS[op], kind, kind, self._number(start), kind)
