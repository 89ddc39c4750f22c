"""Graphs with gradients: which programs run forward and backward, and what passes between them.

A :class:`Differentiable` is a graph with everything that can be derived from it: kernels that run
it alone, and for each set of inputs that want a gradient a :class:`Training`: the forward program
with the values it keeps, and a Differentiable for the gradient. So a gradient has gradients, made
when they are asked for. None of this holds an exact shape. May import everything below the API.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusec.errors import InternalError
from fusec.ir.graph import Graph, InputSpec, Output, without_twins
from fusec.passes.grad import differentiable, gradient, requiring_grad
from fusec.passes.save import Crossing, keep, starting_from
from fusec.runtime.counters import OncePerKey
from fusec.runtime.formula import Formula
from fusec.runtime.specialize import Specialization, of_graph

_once = OncePerKey()


@dataclass(frozen=True, slots=True)
class Part:
    """What a gradient is, or a summand of it: a result of the program (its position), or an input
    (its name), of which the axes ``squeezed`` are to be dropped.
    """

    place: int | str
    squeezed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Gradient:
    """One gradient program: ``code`` computes, ``parts`` has for each wanted input what has to be
    added up to its gradient: nothing, where that is 0.
    """

    code: Differentiable | None
    given: tuple[tuple[str, int], ...]  # the inputs for gradients of results, by position
    parts: tuple[tuple[Part, ...], ...]


class Differentiable:
    """A resolved graph and the programs that are made of it. Thread-safe.

    ``steps``: what depends on an input by conditions alone has a gradient, of 0: PyTorch's own
    gradients are like that, of ``relu`` say, where the function itself has none.
    """

    def __init__(
        self, formula: Formula, graph: Graph, name: str | None = None, steps: bool = False
    ) -> None:
        self.formula = formula.derived(name or formula.name, [spec.name for spec in graph.inputs])
        self.graph = graph
        self.steps = steps
        self._made: dict[object, Specialization | Training] = {}

    @property
    def specs(self) -> tuple[InputSpec, ...]:
        """The inputs, in the order of the values of a call."""
        return self.graph.inputs

    def alone(self) -> Specialization:
        """The program for a call that wants no gradient."""
        made = _once.get(
            self._made, "alone", lambda: of_graph(self.formula, self.specs, self.graph)
        )
        assert isinstance(made, Specialization)
        return made

    def training(self, wanted: frozenset[str]) -> Training:
        """The programs for a call that wants gradients of the inputs ``wanted``."""
        made = _once.get(self._made, wanted, lambda: Training(self, wanted))
        assert isinstance(made, Training)
        return made


def _is_reached(graph: Graph, name: str, steps: bool) -> bool:
    requiring = requiring_grad(graph, [name], steps)
    return any(o.node in requiring for o in graph.outputs)


class Training:
    """A forward program that keeps what its gradients start from, and these gradients."""

    def __init__(self, origin: Differentiable, wanted: frozenset[str]) -> None:
        graph, formula = origin.graph, origin.formula
        names = [n for n in formula.inputs if n in wanted]
        whole = gradient(graph, names).graph
        self.formula = formula
        self.whole = whole
        self._kept = keep(graph, whole)
        self.crossing: tuple[Crossing, ...] = self._kept.crossing
        self.forward = of_graph(formula, origin.specs, self._kept.forward)
        moved = differentiable(self._kept.traced, names)
        self.smooth = tuple(o.node in moved for o in self._kept.traced.outputs)
        requiring = requiring_grad(self._kept.traced, names, origin.steps)
        self.requiring = tuple(o.node in requiring for o in self._kept.traced.outputs)
        # An input that no result depends on has no gradient; behind a step it has a 0.
        self.reached = frozenset(n for n in names if _is_reached(graph, n, origin.steps))
        start = starting_from(without_twins(whole), self.crossing)
        self.read = frozenset(spec.name for spec in start.inputs)
        self._gradients: dict[object, Gradient] = {}

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The results of the forward program: those of the formula, then what is kept."""
        return self._kept.forward.outputs

    def gradient(self, wanted: tuple[str, ...], results: tuple[int, ...]) -> Gradient:
        """The gradient of the inputs ``wanted``, for gradients of the outputs ``results``."""
        made = _once.get(
            self._gradients, (wanted, results), lambda: self._gradient(wanted, results)
        )
        assert isinstance(made, Gradient)
        return made

    def _gradient(self, wanted: tuple[str, ...], results: tuple[int, ...]) -> Gradient:
        backward = gradient(self._kept.traced, wanted, results)
        parts: list[list[Part]] = [[] for _ in wanted]
        computed: list[Output] = []
        for name, output in zip(backward.of, backward.graph.outputs, strict=True):
            own = parts[wanted.index(name)]
            if output.node.op.name == "input":
                own.append(Part(output.node.name, output.squeeze))
                continue
            own.append(Part(len(computed)))
            computed.append(output)
        code = None
        if computed:
            graph = self._start(replace(backward.graph, outputs=tuple(computed)), backward.given)
            name = f"{self.formula.name.removesuffix('kernel')}grad_kernel"
            code = Differentiable(self.formula, graph, name, steps=True)
        return Gradient(code, backward.given, tuple(map(tuple, parts)))

    def _start(self, backward: Graph, given: tuple[tuple[str, int], ...]) -> Graph:
        """``backward`` from what the forward program kept. What only second gradients ask for is
        left out where it would need more than that.
        """
        numbers = {spec.name for spec in backward.inputs if spec.scalar}
        at_hand = self.read | numbers | {name for name, _ in given}
        whole = starting_from(backward, self._kept.origins)
        if all(spec.name in at_hand for spec in whole.inputs):
            return whole
        bare = starting_from(without_twins(backward), self.crossing)
        missing = [spec.name for spec in bare.inputs if spec.name not in at_hand]
        if missing:
            raise InternalError(f"the gradient reads {', '.join(missing)}, which was not kept")
        return bare
