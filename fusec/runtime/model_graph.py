"""A model's graph with kernels in it: regions become functions, the rest stays as it is.

May import everything below the API, which passes in how a graph becomes callable.
"""

from __future__ import annotations

import operator
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fusec.errors import FusecError
from fusec.frontend.model_bias import split_biases
from fusec.frontend.model_calls import COMPUTE, JOIN, LEFT, VIEW
from fusec.frontend.model_joined import split_joined
from fusec.frontend.model_order import leanest
from fusec.frontend.model_padded import pad_products
from fusec.frontend.model_regions import order
from fusec.frontend.model_sums import sum_unshaped
from fusec.frontend.model_trace import Model, ModelRegion
from fusec.runtime.model_call import Calling, called
from fusec.runtime.model_copies import Copy
from fusec.runtime.model_memory import memory_of
from fusec.runtime.model_operators import boxed
from fusec.runtime.model_plan import Choice, Planned, build_soon, plan_region
from fusec.runtime.model_products import is_all_pooled, pool_products
from fusec.runtime.model_region import Joint, RegionFunction, Targets
from fusec.runtime.model_report import GraphReport, Report, finish
from fusec.runtime.model_views import settle_views, wired
from fusec.runtime.traced_bound import Known


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """A ``torch.fx.Graph`` over aten, cut into regions whose kernels are being built."""

    graph: Any
    model: Model
    plans: dict[Any, Planned]  # by regions, and by forms that regions have
    copy: Copy  # of what is laid out anew

    @property
    def output(self) -> Any:
        """The node that has the graph's results."""
        return next(n for n in self.graph.nodes if n.op == "output")


def plan_graph(graph: Any, choice: Choice) -> GraphPlan:
    """Cut ``graph`` into regions, and begin to build their kernels.

    Nothing that fusec cannot do is an error: PyTorch does it.
    """
    split_biases(graph)
    sum_unshaped(graph)
    pad_products(graph)
    split_joined(graph)
    model = Model()
    plans: dict[Any, Planned] = {}
    plan = GraphPlan(graph, model, plans, choice.copy)
    nodes, output = [n for n in graph.nodes if n.op != "output"], plan.output
    settled = False
    while not settled:
        model.cut(nodes, output.all_input_nodes)
        settled = all([_settle(model, r, plans, choice) for r in model.regions])
    for planned in {r.alike: plans[_key(r)] for r in model.regions}.values():
        build_soon(planned)
    return plan


def compile_graph(
    module: Any, stage: str, plan: GraphPlan, report: Report
) -> Callable[[list[Any]], Any]:
    """The graph of ``module``, of which ``plan`` is, as a function of one list, which it empties.

    What is left to PyTorch is said in ``report``.
    """
    model, plans = plan.model, plan.plans
    donated = _donated(plan.graph) if stage == "backward" else set()
    given = {n for n in donated if _is_product(n.meta.get("original_aten"))}
    lean = is_all_pooled(model)
    functions = {
        r.nodes[0]: _function(module, model, r, plans[_key(r)], given, lean) for r in model.regions
    }
    reports = [f.report for f in functions.values()]
    counted = sum(o.counts for o in model.operations.by_node.values())
    finish(report, GraphReport(stage, counted, reports, _left(model)))
    # What a forward graph returns has to be the tensor that PyTorch expects, not an equal one.
    kept = set() if stage == "backward" else set(plan.output.all_input_nodes)
    graph = _rewritten(plan, functions, kept, donated)
    if lean:
        pool_products(graph)
    return boxed(module, graph, plan.copy)


def _key(region: ModelRegion) -> tuple[Any, ...]:
    return tuple(region.nodes), tuple(region.results), tuple(region.inputs)


def _settle(
    model: Model,
    region: ModelRegion,
    plans: dict[Any, Planned],
    choice: Choice,
) -> bool:
    """Plan a region; False if it turns out to be no gain, and the model is to be cut again.

    ``plans`` has those of regions, and of forms that regions have.
    """
    if _key(region) in plans:
        return True
    try:
        planned = plans.get(region.alike) or plan_region(model, region, choice)
    except FusecError as error:
        model.leave(region, error.message)
        return False
    plans[region.alike] = planned
    if planned.again and _leave_sums(model, region):
        return False
    gained = planned.report.saved >= (1 if region.operators > 1 else 0)
    if gained:
        plans[_key(region)] = replace(planned, report=replace(planned.report))
        return True
    if not model.part(region):
        model.leave(region, "as kernels it would move no fewer bytes")
    return False


def _leave_sums(model: Model, region: ModelRegion) -> bool:
    """Let PyTorch add up what a region gives, if there is anything else in it."""
    known = [model.operations.by_node[n] for n in region.nodes]
    ends = [o for o in known if o.name == "sum" and _ends(model, region, o.node)]
    if not ends or region.operators <= len(ends):
        return False
    for operation in ends:
        operation.leave("what it adds up is quicker to compute without")
    return True


def _ends(model: Model, region: ModelRegion, node: Any) -> bool:
    """Whether a region computes nothing of what a node gives."""
    inside = [user for user in node.users if user in region.nodes]
    views = all(model.operations.by_node[user].kind == VIEW for user in inside)
    return views and all(_ends(model, region, user) for user in inside)


def _function(
    module: Any,
    model: Model,
    region: ModelRegion,
    planned: Planned,
    given: set[Any],
    lean: bool,
) -> RegionFunction:
    known, eager = Known(region.program, planned.function), _eager(module, region)
    over: dict[int, int] = {}
    for result, place in planned.over:
        alone = result not in over and place not in over.values()
        if alone and _is_last(model, region, region.inputs[place], given):
            over[result] = place
    free = tuple(sorted({place for _, place in planned.over}))
    joints = tuple(joint for _, joint in _joints(region)) if planned.given else ()
    targets = Targets(planned.given, over, free, lean, joints)
    return RegionFunction(region, known, eager, planned.report, targets)


def _joints(region: ModelRegion) -> Iterator[tuple[Any, Joint]]:
    """What is put together of results of a region that nobody else reads, with where they go."""
    own = {node: k for k, node in enumerate(region.results)}
    for whole in dict.fromkeys(u for n in own for u in n.users if JOIN in u.meta):
        pieces, axis, strides = whole.args
        if len(set(pieces)) < len(pieces):
            continue
        if all(n in own and list(n.users) == [whole] for n in pieces):
            begins, value = whole.meta[JOIN], whole.meta["val"]
            ends = *begins[1:], value.shape[axis]
            parts = tuple(zip([own[n] for n in pieces], begins, ends, strict=True))
            layout = tuple(value.shape), strides, value.dtype
            yield whole, Joint(layout, axis, parts)


def _is_last(model: Model, region: ModelRegion, node: Any, given: set[Any]) -> bool:
    """Whether nothing but a region needs what an operator has made, in memory of its own. ``given``
    are inputs of the graph that are its own too.
    """
    inside = set(region.nodes)
    return (node in given or _is_product(node.target)) and all(
        user in inside and model.operations.by_node[user].kind == COMPUTE for user in node.users
    )


def _donated(graph: Any) -> set[Any]:
    """What a forward graph keeps for the backward ``graph`` alone.

    AOTAutograd says which of what is kept is no view, input or result, and refuses to go backward
    twice then. What shares memory with another input is not among them.
    """
    import torch

    context: Any = torch._guards.TracingContext.try_get()
    places = getattr(getattr(context, "fw_metadata", None), "bw_donated_idxs", None) or ()
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    counts = Counter(map(_storage, inputs))
    return {inputs[k] for k in places if k < len(inputs) and counts[_storage(inputs[k])] == 1}


def _storage(node: Any) -> Any:
    """What stands for the memory behind an example value."""
    import torch

    value = node.meta.get("val")
    dense = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return value.untyped_storage()._cdata if dense else node


def _is_product(operator: Any) -> bool:
    return getattr(operator, "overloadpacket", None) in _products()


@cache
def _products() -> frozenset[Any]:
    """Operators whose result is in memory that is nobody else's."""
    import torch

    aten = torch.ops.aten
    return frozenset((aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution))


def _eager(module: Any, region: ModelRegion) -> Callable[..., Any]:
    """The region's own operators, put together when they are first needed."""

    @cache
    def program() -> Any:
        import torch.fx

        graph: Any = torch.fx.Graph()
        outside = [*region.inputs, *region.numbers]
        known = {n: graph.placeholder(n.name) for n in outside}
        for node in (*region.absorbed, *region.nodes):
            known[node] = graph.node_copy(node, known.__getitem__)
        results = tuple(known[n] for n in region.results)
        graph.output(results[0] if len(results) == 1 else results)
        return torch.fx.GraphModule(module, graph)

    return lambda *values: program()(*values)


def _left(model: Model) -> Counter[tuple[str, str]]:
    left = (o for o in model.operations.by_node.values() if o.kind == LEFT and o.counts)
    return Counter((o.name, o.reason or "") for o in left)


# -- the graph around -----------------------------------------------------------------------------


def _rewritten(
    plan: GraphPlan,
    functions: Mapping[Any, RegionFunction],
    kept: set[Any],
    donated: set[Any],
) -> Any:
    """A graph in which each region is one call, and no view undoes another.

    The nodes ``kept`` stay as they are. Inputs that are ``donated`` go once they have been read,
    and the units run in the order that needs less memory.
    """
    import torch.fx

    graph: Any = torch.fx.Graph()
    model, output = plan.model, plan.output
    known: dict[Any, Any] = {}
    callings: dict[Any, Calling] = {}
    nodes = [n for n in model.operations.by_node if n.op != "placeholder"]
    place = {node: k for k, node in enumerate(nodes)}
    regions = {r.nodes[0]: r for r in model.regions}
    inside = {n for r in model.regions for n in r.nodes}
    units = [[n] for n in nodes if n not in inside] + [r.nodes for r in model.regions]
    needs = [_needs(model, node, regions, place) for node in nodes]
    for node in plan.graph.nodes:
        if node.op == "placeholder":
            known[node] = graph.node_copy(node)
    numbers = [[place[n] for n in unit] for unit in units]
    if donated and not any(map(_matters, nodes)):
        memory = memory_of(model, units, functions, donated, output.all_input_nodes)
        positions = leanest(numbers, needs, memory)
    else:
        positions = order(numbers, needs)
    for position in positions:
        first = units[position][0]
        if first in known:  # what a region has put together
            continue
        if first not in regions:
            source = model.same(first)
            made = source is first or first in kept or source not in known
            known[first] = graph.node_copy(first, known.__getitem__) if made else known[source]
            continue
        found, call, calling = _called(graph, model, regions[first], functions[first], known)
        known.update(found)
        callings[call] = calling
    graph.node_copy(output, known.__getitem__)
    _prune(graph)
    settle_views(graph, callings)
    _prune(graph)
    return graph


def _prune(graph: Any) -> None:
    """Take out what nobody reads."""
    for node in reversed(list(graph.nodes)):
        unused = not node.users and node.op not in ("placeholder", "output")
        if unused and not _matters(node):
            graph.erase_node(node)


def _needs(
    model: Model, node: Any, regions: Mapping[Any, ModelRegion], place: Mapping[Any, int]
) -> list[int]:
    """The operators that have to be there before one is; a region's inputs for its first."""
    found = [*node.all_input_nodes, *model.operations.by_node[node].after]
    if node in regions:
        found += [*regions[node].inputs, *regions[node].numbers]
    return [place[n] for n in found if n in place]


def _matters(node: Any) -> bool:
    """Whether a node that nobody reads has to run: it writes, or draws random numbers."""
    import torch

    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return bool(node.is_impure())
    tags = getattr(node.target, "tags", ())
    drawn = torch.Tag.nondeterministic_seeded in tags
    return bool(drawn or schema.is_mutable or not schema.returns)


def _called(
    graph: Any, model: Model, region: ModelRegion, function: RegionFunction, known: dict[Any, Any]
) -> tuple[dict[Any, Any], Any, Calling]:
    """The call of a region: all that is there then, its results and views of those; the node that
    calls it, and how.
    """
    inputs = [known[n] for n in (*region.inputs, *region.numbers)]
    tensors, wires = wired(inputs, function.fixed)
    calling = Calling(function, wires, [None] * len(region.results))
    call = graph.call_function(called(calling), tuple(tensors))
    found = _results(graph, region, call)
    if function.joined:
        _join(region, found)
    there = ChainMap(found, known)
    for node in region.nodes:
        is_view = model.operations.by_node[node].kind == VIEW
        if is_view and node not in there and all(i in there for i in node.all_input_nodes):
            found[node] = graph.node_copy(node, there.__getitem__)
    return found, call, calling


def _results(graph: Any, region: ModelRegion, call: Any) -> dict[Any, Any]:
    found = {node: call for node in region.results}
    if len(region.results) > 1:
        for k, node in enumerate(region.results):
            found[node] = graph.call_function(operator.getitem, (call, k))
    for node, own in found.items():
        own.meta["val"] = node.meta.get("val")
    return found


def _join(region: ModelRegion, known: dict[Any, Any]) -> None:
    """Know what a region's results are parts of, which it gives in the place of the first."""
    for whole, joint in _joints(region):
        known[whole] = known[region.results[joint.first]]
        known[whole].meta["val"] = whole.meta["val"]
