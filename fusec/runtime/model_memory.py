"""What the units of a model's graph take of memory, and what they give back.

May import everything below the API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusec.frontend.model_calls import VIEW
from fusec.frontend.model_order import Memory
from fusec.frontend.model_trace import Model, ModelRegion
from fusec.runtime.model_plan import size_of
from fusec.runtime.model_region import RegionFunction


def memory_of(
    model: Model,
    units: Sequence[Sequence[Any]],
    functions: Mapping[Any, RegionFunction],
    donated: set[Any],
    results: Sequence[Any],
) -> Memory:
    """The storages of a graph: ``donated`` inputs go when they have been read, other inputs and the
    ``results`` stay. Regions are in ``functions`` by their first operator.
    """
    regions = {region.nodes[0]: region for region in model.regions}
    sizes: list[int] = []
    home: dict[Any, int] = {}

    def new(node: Any) -> int:
        made = model.operations.values[node]
        sizes.append(sum(map(size_of, made if isinstance(made, tuple) else (made,))))
        home[node] = len(sizes) - 1
        return home[node]

    inputs = [n for n in model.operations.by_node if n.op == "placeholder"]
    stay = {new(node) for node in inputs} - {home[node] for node in donated if node in home}
    places = {node: k for k, node in enumerate(model.operations.by_node)}
    makes: list[list[int]] = [[] for _ in units]
    for k in sorted(range(len(units)), key=lambda k: places[units[k][0]]):
        node = units[k][0]
        if node in regions:
            makes[k] = _of_region(regions[node], functions[node], home, new)
        elif _is_part(model, node) and node.all_input_nodes[0] in home:
            home[node] = home[node.all_input_nodes[0]]
        else:
            makes[k] = [new(node)]
    reads = [_read(unit, regions, home) for unit in units]
    stay |= {home[n] for n in results if n in home}
    return Memory(sizes, makes, reads, frozenset(stay))


def _of_region(
    region: ModelRegion, function: RegionFunction, home: dict[Any, int], new: Any
) -> list[int]:
    """The storages that a region makes; a result that overwrites an input is in that one's."""
    made = []
    for k, node in enumerate(region.results):
        place = function.over.get(k)
        if place is not None and region.inputs[place] in home:
            home[node] = home[region.inputs[place]]
        else:
            made.append(new(node))
    return made


def _is_part(model: Model, node: Any) -> bool:
    """Whether what a node gives is in the memory of what it reads first."""
    operation = model.operations.by_node[node]
    return bool(node.all_input_nodes) and (operation.kind == VIEW or operation.name == "getitem")


def _read(
    unit: Sequence[Any], regions: Mapping[Any, ModelRegion], home: Mapping[Any, int]
) -> list[int]:
    region = regions.get(unit[0])
    read = unit[0].all_input_nodes if region is None else region.inputs
    return sorted({home[n] for n in read if n in home})
