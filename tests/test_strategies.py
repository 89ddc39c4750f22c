"""The strategies themselves: programs compile, and float32 arithmetic stays within the error they
promise.
"""

import torch
from hypothesis import given, settings

from fusec.ir.evaluate import evaluate
from fusec.ir.graph import Graph
from fusec.ir.text import print_graph
from tests.formulas import graph_of
from tests.graph_strategies import graphs
from tests.strategies import Program, make_inputs, programs, tolerance


@given(programs())
@settings(max_examples=100)
def test_the_reference_stays_within_the_tolerance(program: Program) -> None:
    inputs = make_inputs(program)
    graph = graph_of(program.formula, inputs).graph
    truth = evaluate(graph, inputs, torch, "float64")
    for number, result in enumerate(evaluate(graph, inputs, torch)):
        exact = truth[number].double()
        assert exact.isfinite().all()
        assert exact.abs().max().item() <= program.size[number] * 1.01 or program.exact[number]
        bound = tolerance(program, number, graph.outputs[number].node.dtype.name)
        assert (result.double() - exact).abs().max().item() <= bound, print_graph(graph)


@given(programs())
@settings(max_examples=20)
def test_inputs_are_the_same_each_time(program: Program) -> None:
    first, second = make_inputs(program), make_inputs(program)
    assert list(first) == list(program.inputs)
    for name, (_, shape) in program.inputs.items():
        assert (shape is None) == (not isinstance(first[name], torch.Tensor))
        assert torch.equal(torch.as_tensor(first[name]), torch.as_tensor(second[name]))


@given(graphs())
@settings(max_examples=20)
def test_graphs_have_outputs(graph: Graph) -> None:
    assert graph.outputs
    assert graph.nodes()
