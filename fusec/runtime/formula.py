"""A formula and the options it was compiled with.

Parsed when something needs the tree: what a known formula's names are is in the cache. May import
``fusec.source``, ``fusec.frontend`` and ``runtime.cache``, the first two only then.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fusec.runtime.cache import checkout, default_store, digest

if TYPE_CHECKING:
    from fusec.frontend.resolve import Resolved
    from fusec.frontend.syntax import Program
    from fusec.ir.graph import InputSpec
    from fusec.ir.node import Dim
    from fusec.passes.simplify import Numerics
    from fusec.source import Source

_LONGEST_KEPT = 1000  # characters; a longer formula is worth a moment
_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which no file can hold
_FACTS = "names.json"
_OPTIONS = ("numerics", "keepdim", "name", "batch_invariant", "tune", "build")


class Formula:
    """A formula that has been checked, and its options. Never changed once it is made."""

    __slots__ = (
        "_program", "_source", "batch_invariant", "build", "fuse", "inputs", "keepdim", "name",
        "numerics", "outputs", "text", "tune",
    )  # fmt: skip

    def __init__(
        self,
        text: str,
        inputs: Sequence[str] | None,
        numerics: Numerics,
        keepdim: bool,
        name: str,
        fuse: bool = True,
        batch_invariant: bool = False,
        tune: float = 0.0,
        build: str = "auto",
    ) -> None:
        """Raises ParseError and UnknownNameError; see ``frontend.resolve_names.check``."""
        self.text = text
        self.numerics = numerics
        self.keepdim = keepdim
        self.name = name
        self.fuse = fuse
        self.batch_invariant = batch_invariant  # one schedule for any number of rows
        self.tune = tune  # seconds to search for a better schedule than the rules'
        self.build = build  # what compiles CUDA C++: nvrtc, nvcc or load_inline
        self._source: Source | None = None
        self._program: Program | None = None
        self.inputs, self.outputs = self._names(inputs)

    def derived(self, name: str, inputs: Sequence[str]) -> Formula:
        """The same options and text for a graph that was derived from the formula: its gradient."""
        made = copy.copy(self)
        made.name, made.inputs = name, tuple(inputs)
        return made

    @property
    def source(self) -> Source:
        """The text as errors show it."""
        if self._source is None:
            from fusec.source import Source

            self._source = Source(self.text)
        return self._source

    @property
    def program(self) -> Program:
        """The syntax tree."""
        if self._program is None:
            from fusec.frontend import parser

            parser.keep_tables(_TABLES)
            self._program = parser.parse(self.source)
        return self._program

    def resolved(self, specs: tuple[InputSpec, ...], sizes: Mapping[Dim, int]) -> Resolved:
        """The graph for inputs of these types and shapes; see ``frontend.resolve``."""
        from fusec.frontend.resolve import resolve

        return resolve(self.source, self.program, specs, keepdim=self.keepdim, sizes=sizes)

    def identity(self) -> dict[str, str]:
        """Everything about the formula that decides its kernels, as parts of a key."""
        public = (name for name in self.__slots__ if not name.startswith("_"))
        parts = {f"formula {name}": repr(getattr(self, name)) for name in public}
        # How long a search took does not matter to what it found.
        return parts | {"formula tune": repr(self.tune > 0)}

    def written(self, backend: str) -> str:
        """The formula, its options and a backend as text, from which they can be made again."""
        options = {option: getattr(self, option) for option in _OPTIONS}
        return json.dumps([self.text, self.inputs, backend, options])

    def keepable(self) -> bool:
        """Whether what is learnt about the formula may go to the cache."""
        return len(self.text) <= _LONGEST_KEPT and not _SURROGATE.search(self.text)

    def _names(self, inputs: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of inputs and outputs, from the cache where this text was checked before."""
        listed = None if inputs is None else list(inputs)
        plain = listed is None or all(isinstance(name, str) for name in listed)
        if not plain or not self.keepable():
            return self._checked(inputs)
        key = digest(
            {"kind": "names", "text": self.text, "inputs": json.dumps(listed), **checkout()}
        )
        entry = default_store().get(key)
        known = None if entry is None else _names_in(entry.files)
        if known is None:
            default_store().remove(key)
            known = self._checked(listed)
            default_store().put(key, {_FACTS: json.dumps(known).encode()})
        return known

    def _checked(self, inputs: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        from fusec.frontend.resolve_names import check, output_names

        names = check(self.program, self.source, inputs)
        return names, output_names(self.program, names)


def _names_in(files: Mapping[str, bytes]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    try:
        inputs, outputs = (tuple(names) for names in json.loads(files[_FACTS]))
    except (KeyError, ValueError, TypeError):
        return None
    good = all(isinstance(name, str) for name in (*inputs, *outputs)) and inputs and outputs
    return (inputs, outputs) if good else None


class _ParserTables:
    """The parser's tables, in the cache on disk."""

    def load(self, parts: Mapping[str, str]) -> bytes | None:
        entry = default_store().get(digest(parts))
        return entry.files["tables"] if entry is not None else None

    def save(self, parts: Mapping[str, str], tables: bytes) -> None:
        default_store().put(digest(parts), {"tables": tables})


_TABLES = _ParserTables()
