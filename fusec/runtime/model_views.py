"""Views around the regions of a model's graph, which no call has to make.

What a region reads through views it finds by itself, from the tensor behind them; what is only read
in another shape it gives in that shape. May import ``frontend.model_calls`` and
``runtime.model_call``; torch inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from fusec.frontend.model_nodes import name_of
from fusec.frontend.trace_rows import words
from fusec.runtime.model_call import Calling, Wire
from fusec.runtime.model_plan import is_known

# Views whose place depends on that of the tensor alone, and that never are a copy.
_PLAIN = words(
    "alias detach view _unsafe_view unsqueeze squeeze permute transpose t expand slice select"
)
_SHAPES = words("view _unsafe_view")


def behind(node: Any) -> tuple[Any, tuple[Callable[[Any], Any], ...]]:
    """The tensor of which a node is a view, and the views that lead from there, one by one. Where
    lengths are not known that is the node itself.
    """
    steps: list[Callable[[Any], Any]] = []
    while _is_view(node, _PLAIN):
        steps.insert(0, _step(node))
        node = node.args[0]
    return node, tuple(steps)


def settle_views(graph: Any, callings: Mapping[Any, Calling]) -> None:
    """Take views out of a graph: those between two others, and those in whose shape alone regions'
    results are read.

    ``callings`` has how regions are called, by the nodes that call them. Each view has its value.
    """
    for node in graph.nodes:
        if _is_view(node, _SHAPES) and _is_view(node.args[0], _SHAPES):
            base = node.args[0].args[0]
            if base.meta["val"].is_contiguous():
                node.replace_input_with(node.args[0], base)
    for call, calling in callings.items():
        for place in range(len(calling.shapes)):
            result = _result(call, place, len(calling.shapes))
            if result is not None:
                _reshape(graph, result, calling, place, callings)


def _result(call: Any, place: int, count: int) -> Any:
    """The node of a region's result."""
    if count == 1:
        return call
    found = [user for user in call.users if user.args[1] == place]
    return found[0] if len(found) == 1 else None


def _reshape(
    graph: Any, result: Any, calling: Calling, place: int, callings: Mapping[Any, Calling]
) -> None:
    """Let a region give a result in the shape in which it is read, if there is one."""
    value = result.meta.get("val")
    views = [u for u in result.users if _is_view(u, _SHAPES)]
    regions = [u for u in result.users if u in callings]
    if len(views) + len(regions) < len(result.users) or not views:
        return
    shapes = {tuple(v.meta["val"].shape) for v in views}
    if len(shapes) > 1 or not is_known(value) or not value.is_contiguous():
        return
    for user in regions:
        callings[user].turn(user.args.index(result), _viewed(tuple(value.shape)))
    (calling.shapes[place],) = shapes
    for view in views:
        view.replace_all_uses_with(result)
        graph.erase_node(view)
    result.meta["val"] = value.view(calling.shapes[place])


def _is_view(node: Any, names: Collection[str]) -> bool:
    """Whether a node is one of these views of a tensor, both of known lengths."""
    if name_of(node) not in names:
        return False
    values = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
    return len(values) == 2 and all(v is not None and is_known(v) for v in values)


def _step(node: Any) -> Callable[[Any], Any]:
    target, arguments, named = node.target, node.args[1:], node.kwargs
    return lambda value: target(value, *arguments, **named)


def _viewed(shape: tuple[int, ...]) -> Callable[[Any], Any]:
    return lambda value: value.view(shape)


def wired(inputs: Sequence[Any], sinks: bool) -> tuple[list[Any], list[Wire]]:
    """The tensors that a region is called with, each once, and where among them its inputs are;
    the inputs themselves unless it ``sinks`` views.
    """
    roots: dict[Any, int] = {}
    wires = []
    for node in inputs:
        root, steps = behind(node) if sinks else (node, ())
        wires.append(Wire(roots.setdefault(root, len(roots)), steps))
    return list(roots), wires
