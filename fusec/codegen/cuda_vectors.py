"""How a thread of a CUDA kernel moves and holds vectors of a row.

May import ``fusec.ir`` and the modules of ``codegen`` above it in the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusec.codegen.cuda_dialect import is_narrow, widened
from fusec.codegen.cuda_place import Place
from fusec.codegen.kernel import Access, Fetch, Store
from fusec.ir.dtypes import DType


@dataclass(slots=True)
class Vectors(Place):
    """Prints loads and stores of vectors, and their elements."""

    _in_lanes: bool = False
    _at_edge: bool = False
    _refilled: list[Fetch] = field(default_factory=list)  # with the next tile, vector by vector
    _limit: str = ""  # where a row ends, while what its whole tiles leave is worked on

    def _pointer(self, access: Access) -> str:
        return f"{access.buffer} + {self._address(access, 'first')}"

    def _widen(self, text: str, storage: DType) -> str:
        return widened(text, storage.compute) if is_narrow(storage) else text

    def _element(self, vector: str, storage: DType) -> str:
        return f"element({vector}, lane)"

    def _held_place(self, buffer: str) -> str:
        if self._at_edge:
            return f"{buffer}_edge"
        return f"{buffer}[vector][lane]" if self._lanes else f"{buffer}[vector]"

    def _stored_lanes(self, store: Store) -> str:
        return f"{store.access.buffer.removesuffix('_ptr')}_lanes"

    def _vector(self, access: Access, early: bool = False) -> str:
        """A vector of an operand, as far as it is inside the row."""
        if self._full:
            return f"{'load_early' if early else 'load_vector'}({self._pointer(access)})"
        how = "load_inside"
        if self._by_vector:
            how = "early_whole" if early else "load_whole"
        text = f"{how}({self._pointer(access)}, first, {self._end})"
        if self.kernel.config.full:
            sure = f"{'load_early' if early else 'load_vector'}({self._pointer(access)})"
            return f"vector < FULL ? {sure} : {text}"
        return text

    def _store_vector(self, store: Store) -> None:
        kind = f"_{store.storage.cuda}" if is_narrow(store.storage) else ""
        packed = f"pack{kind}({self._stored_lanes(store)})"
        pointer = self._pointer(store.access)
        if self._full:
            guard = f"if ({self._has_row}) " if self._has_row else ""
            self.writer.line(f"{guard}store_vector({pointer}, {packed});")
        else:
            how = "store_whole" if self._by_vector else "store_inside"
            self.writer.line(f"{how}({pointer}, {packed}, first, {self._end});")

    def _leave(self) -> None:
        """Of what is left of a row no thread may have a vector any more."""
        if self._limit:
            step = "GROUP * LANES" if self._lanes else "GROUP"
            self.writer.line(f"if (tile + vector * {step} >= {self._limit}) break;")

    def _refill(self) -> None:
        """The vector of the next tile, now that this one is done with."""
        if not self._refilled:
            return
        self.writer.line(f"const {self._index} next = first + TILE;")
        end = self._end
        if self.kernel.divided:
            end = "head + last_col" if self.kernel.start is not None else "last_col"
        for fetch in self._refilled:
            pointer = f"{fetch.access.buffer} + {self._address(fetch.access, 'next')}"
            load = f"{fetch.buffer}[vector] = load_vector({pointer});"
            self.writer.line(f"if (next < {end}) {load}")
