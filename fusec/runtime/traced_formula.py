"""A traced function in the place of a formula: its text is Python, its graph is there already.

May import ``fusec.source``, ``fusec.frontend``, ``fusec.ir`` and ``runtime.formula``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fusec.errors import InternalError
from fusec.frontend.syntax import Name, Program
from fusec.ir.text import print_graph
from fusec.runtime.formula import Formula

if TYPE_CHECKING:
    from fusec.frontend.resolve import Resolved
    from fusec.ir.graph import InputSpec
    from fusec.ir.node import Dim
    from fusec.passes.simplify import Numerics
    from fusec.source import Source


class TracedFormula(Formula):
    """The graph of one trace, and the options of its function."""

    __slots__ = ("graph",)

    def __init__(
        self,
        source: Source,
        graph: Resolved,
        numerics: Numerics,
        name: str,
        batch_invariant: bool = False,
        tune: float = 0.0,
        build: str = "auto",
    ) -> None:
        self.graph = graph
        self._source = source
        super().__init__(
            source.text, None, numerics, False, name, True, batch_invariant, tune, build
        )
        self._source = source
        self._program = Program((), tuple(map(Name, self.outputs)))

    def resolved(self, specs: tuple[InputSpec, ...], sizes: Mapping[Dim, int]) -> Resolved:
        """The graph of the trace, which is for these types and shapes."""
        kinds = [(s.name, s.dtype, len(s.shape)) for s in specs]
        if kinds != [(s.name, s.dtype, len(s.shape)) for s in self.graph.graph.inputs]:
            raise InternalError(f"a trace of {self.name} is called with inputs of other kinds")
        return self.graph

    def written(self, backend: str) -> str:
        """Nothing: no text tells the graph of a function."""
        return ""

    def identity(self) -> dict[str, str]:
        """The text of a function does not tell its graph: that depends on its variables."""
        chosen = (self.batch_invariant, self.build, self.tune > 0)
        options = (self.numerics, self.name, self.fuse, *chosen)
        return {
            "formula graph": print_graph(self.graph.graph),
            "formula equal": repr(self.graph.equal),
            "formula options": repr(options),
        }

    def _names(self, inputs: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        made = self.graph.graph
        return tuple(s.name for s in made.inputs), tuple(o.name for o in made.outputs)
