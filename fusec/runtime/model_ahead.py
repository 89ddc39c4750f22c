"""The plan of a backward graph, made before PyTorch asks for it.

AOTAutograd has the backward graph along with the forward one, and compiles it when a gradient is
first asked for. Its kernels are known earlier, and are built beside those of the forward graph. May
import everything below the API.
"""

from __future__ import annotations

from typing import Any

from fusec.frontend.model_alike import form
from fusec.runtime.model_graph import GraphPlan, plan_graph
from fusec.runtime.model_plan import Choice


class Ahead:
    """Plans of the graphs of one model, those that are expected among them."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._made: list[tuple[Any, GraphPlan]] = []

    def expect(self, module: Any) -> None:
        """Plan the graph of a ``torch.fx.GraphModule`` that will be compiled, or one like it."""
        graph = _copied(module.graph)
        likeness = _likeness(graph)
        try:
            made = plan_graph(graph, self._choice)
        except Exception:  # of any kind: whoever asks for this graph meets it again, and tells
            return  # who asks for the forward graph alone has no trouble of it
        self._made.append((likeness, made))

    def plan(self, module: Any) -> GraphPlan:
        """The plan for the graph of ``module``: the one that was made before, if it is for this."""
        likeness = _likeness(module.graph) if self._made else None
        for place, (other, made) in enumerate(self._made):
            if other == likeness:
                del self._made[place]
                return made
        return plan_graph(module.graph, self._choice)


def _copied(graph: Any) -> Any:
    """A graph of the same nodes, with the same stand-ins for values."""
    import torch.fx

    made: Any = torch.fx.Graph()
    known: dict[Any, Any] = {}
    for node in graph.nodes:
        known[node] = made.node_copy(node, known.__getitem__)
    return made


def _likeness(graph: Any) -> Any:
    """What two graphs have in common if one is a copy of the other: the same calls, in order, of
    the same values.
    """
    places = {node: k for k, node in enumerate(graph.nodes)}

    def known(value: Any) -> Any:
        return (places[value],) if hasattr(value, "all_input_nodes") else None

    return [
        (node.op, node.target, form((node.args, node.kwargs), known), id(node.meta.get("val")))
        for node in graph.nodes
    ]
