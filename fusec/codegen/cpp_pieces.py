"""Sweeps over the pieces of long rows as C++.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.codegen.cpp_rows import Rows
from fusec.codegen.kernel import Joint, Pieces, Store
from fusec.codegen.uses import reads


@dataclass(slots=True)
class RowPieces(Rows):
    """Loops over parts, pieces, and twice over the elements of a piece."""

    def pieces(self, pieces: Pieces) -> None:
        """What the parts of a row come to, each piece by piece."""
        joined = [joint.first for joint in pieces.joints]
        alone = [a for a in pieces.first.accumulators if a not in joined]
        for joint in pieces.joints:
            self.writer.line(f"{_kind(joint)} {joint.name}_parts[fusec::PARTS];")
        self.declare_parts(alone)
        blocks = any(isinstance(s, Store) and s.block for s in pieces.first.body)
        with self.team_region(blocks) as share, self.each_part(share):
            for name, dtype in pieces.kept:
                self.writer.line(f"const fusec::Row<{dtype.cpp}> {name}(fusec::PIECE);")
            for accumulator in alone:
                self.declare(accumulator)
            with self.stretches("piece", "col_end", "fusec::PIECE", "col_start"):
                self._piece(pieces)
            self.leave_parts(alone)
        for joint in pieces.joints:
            self._results(joint)
        self.join_parts(alone)

    def _piece(self, pieces: Pieces) -> None:
        line = self.writer.line
        line("const int64_t piece_end = fusec::minimum(piece + fusec::PIECE, col_end);")
        for joint in pieces.joints:
            self.declare(joint.first)
        self.stretch(pieces.first, self.sweep_call("piece", "piece_end"))
        for joint in pieces.joints:
            found = joint.first.lanes + (", piece_end - piece" if _is_spread(joint) else "")
            line(f"{_kind(joint)} {joint.name}_piece({found});")
            self.define(joint.base, joint.first.dtype, f"{joint.name}_piece.base()")
        for accumulator in pieces.second.accumulators:
            self.declare(accumulator)
        self.stretch(pieces.second, self.sweep_call("piece", "piece_end"), "start + fusec::PIECE")
        for joint in pieces.joints:
            lanes = ", ".join(self.emptied(a) for a in joint.around)
            line(f"{joint.name}_piece.add({lanes});")
            line(f"{joint.name}_parts[part].join({joint.name}_piece);")

    def _results(self, joint: Joint) -> None:
        """The reductions of the whole row."""
        whole = f"{joint.name}_whole"
        parts = f"{joint.name}_parts, parts.count"
        self.writer.line(f"const {_kind(joint)} {whole} = fusec::joined({parts});")
        used = reads(self.kernel.body)
        values = [f"{whole}.{member}" for member in _members(joint)]
        sums = zip(values[1:], joint.around, strict=True)
        texts = [values[0], *(self.narrow(value, sum_) for value, sum_ in sums)]
        for name, text in zip(joint.results, texts, strict=True):
            if name in used:
                self.define(name, joint.first.dtype, text)


def _is_spread(joint: Joint) -> bool:
    return joint.first.op.name == "mean"


def _kind(joint: Joint) -> str:
    """The type of what is known of a stretch of a row."""
    name = "Spread" if _is_spread(joint) else "Peak"
    return f"fusec::{name}<{joint.first.dtype.cpp}>"


def _members(joint: Joint) -> tuple[str, ...]:
    """Where that has its reductions."""
    if not _is_spread(joint):
        return ("largest", "sum", "weighted")[: len(joint.results)]
    return "middle", "variance()" if joint.second.op.name == "mean" else "variation()"
