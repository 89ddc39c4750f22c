"""The gradient of a formula as a formula, and what it starts from with bytes and reasons.

May import everything below the API.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fusec.errors import UnsupportedError
from fusec.ir.graph import Graph, images, value_alone, without_twins
from fusec.ir.node import Dim, Node
from fusec.ir.ops import Kind
from fusec.passes.formula import formula_text
from fusec.passes.grad import gradient
from fusec.passes.pipeline import run as run_passes
from fusec.passes.save import Crossing, elements, keep, starting_from
from fusec.runtime.specialize import Specialization

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class GradientView:
    """A formula and the gradient of all its float inputs, for one specialisation."""

    special: Specialization
    sizes: dict[Dim, int]
    resolved: Graph
    whole: Graph
    crossing: tuple[Crossing, ...]

    @classmethod
    def of(cls, special: Specialization, sizes: dict[Dim, int]) -> GradientView:
        """Raises UnsupportedError where nothing has a gradient."""
        formula = special.formula
        resolved = formula.resolved(special.specs, sizes).graph
        names = [s.name for s in resolved.inputs if s.dtype.is_float and not s.scalar]
        whole = gradient(resolved, names).graph
        if not whole.outputs:
            raise UnsupportedError(
                "the formula has no gradient: no float result depends smoothly on a float tensor"
            )
        return cls(special, sizes, resolved, whole, keep(resolved, whole).crossing)

    def start(self) -> Graph:
        """The gradient from what the forward program leaves, simplified."""
        bare = starting_from(without_twins(self.whole), self.crossing)
        return run_passes(bare, self.special.formula.numerics)

    def formula(self) -> str:
        """The gradient as text of the language, with comments on where its inputs come from."""
        lines = [f"# the gradient of {' '.join(self.special.formula.source.text.split())}"]
        start = self.start()
        found = {c.name: c.how for c in self.crossing}
        inputs = [n for n in start.nodes() if n.op.name == "input"]
        plain = {n.name for n in inputs if not _is_unsqueezed(n)}
        unsqueezed = {n.name for n in inputs} - plain
        for spec in start.inputs:
            shape = f"[{', '.join(map(str, spec.shape))}]"
            if found.get(spec.name) == "kept":
                lines.append(f"# {spec.name} {shape} is kept by the forward program")
            elif found.get(spec.name) == "result":
                lines.append(f"# {spec.name} {shape} is the result")
            elif spec.name in unsqueezed:
                lines.append(f"# {spec.name} {shape} has a last axis of length 1 here")
            elif spec.name not in self.special.formula.inputs and 1 in spec.shape:
                lines.append(f"# {spec.name} {shape} has its reduced axes")
        return "\n".join(lines) + "\n" + formula_text(start, self.resolved.inputs)

    def table(self) -> str:
        """What crosses from forward to backward: bytes and the reason, then the totals."""
        start = self.start()
        read = {s.name for s in start.inputs}
        rows = [("value", "how", "bytes", "why")]
        for c in self.crossing:
            rows.append((c.name, c.how, _bytes(self.size(c)), self.reason(c)))
        for spec in self.resolved.inputs:
            if spec.name in read and all(c.name != spec.name for c in self.crossing):
                rows.append((spec.name, "input", "-", "single elements or a number"))
        widths = [max(len(row[k]) for row in rows) for k in range(3)]
        lines = [
            f"{n:<{widths[0]}}  {h:<{widths[1]}}  {b:>{widths[2]}}  {w}".rstrip()
            for n, h, b, w in rows
        ]
        lines += ["", "computed again: " + (", ".join(self.again()) or "nothing")]
        extra = sum(self.size(c) for c in self.crossing if c.how == "kept")
        lines.append(f"written for the gradient alone: {_bytes(extra)}")
        moved = sum(elements(s.shape, self.sizes) * s.dtype.itemsize for s in start.inputs)
        moved += sum(
            elements(o.node.shape, self.sizes) * o.node.dtype.itemsize for o in start.outputs
        )
        lines.append(f"the gradient reads and writes at least: {_bytes(moved)}")
        return "\n".join(lines) + "\n"

    def size(self, crossing: Crossing) -> int:
        """The bytes of one such value."""
        dtype = crossing.node.dtype
        kept = dtype.compute if crossing.how == "kept" else dtype
        return elements(crossing.node.shape, self.sizes) * kept.itemsize

    def reason(self, crossing: Crossing) -> str:
        """Why this value crosses."""
        if crossing.how == "input":
            return "read again; what depends on it is computed again"
        if crossing.how == "result":
            return "the forward program writes it anyway"
        swept = max((_swept(n, self.sizes) for n in _below([crossing.node])), default=0)
        if swept:
            return f"written and read once; to compute it again takes a sweep of {_bytes(swept)}"
        return "written and read once, which is less than what it is computed from"

    def again(self) -> list[str]:
        """The operations of the forward program that the gradient repeats, each once."""
        both = replace(self.resolved, outputs=(*self.resolved.outputs, *self.whole.outputs))
        image = images(both, value_alone)
        own = {image[n] for n in self.resolved.nodes()}
        stop = frozenset(c.node for c in self.crossing)
        below = _below([image[o.node] for o in self.whole.outputs], stop)
        found = (n.op.name for n in below if n in own - stop and n.op.kind is not Kind.LEAF)
        return list(dict.fromkeys(found))


def _is_unsqueezed(node: Node) -> bool:
    return node.op.name == "input" and node.attribute("unsqueezed") != 0


def _below(roots: Iterable[Node], stop: frozenset[Node] = frozenset()) -> list[Node]:
    """The nodes that ``roots`` need, not going past ``stop``."""
    found: dict[Node, None] = {}
    stack = list(roots)
    while stack:
        current = stack.pop()
        if current in found:
            continue
        found[current] = None
        if current not in stop:
            stack.extend(current.args)
    return list(found)


def _swept(node: Node, sizes: dict[Dim, int]) -> int:
    if node.op.kind is not Kind.REDUCTION:
        return 0
    return elements(node.args[0].shape, sizes) * node.args[0].dtype.itemsize


def _bytes(count: int) -> str:
    """A number of bytes in the largest unit that keeps it at 1 or more."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.4g} {_UNITS[unit]}"
