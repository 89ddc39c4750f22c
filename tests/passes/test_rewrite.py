"""The pattern language and the driver: what matches, that it ends, that it is linear and carries
names.
"""

from collections.abc import Callable

import pytest

from fusec.errors import InternalError
from fusec.ir.dtypes import BOOL, F32, F64, I32, DType
from fusec.ir.graph import Graph, InputSpec, Output, SideTable
from fusec.ir.node import Dim, Node, Shape, TensorType, broadcast, constant, make
from fusec.ir.text import parse_graph, print_graph
from fusec.passes.rewrite import Match, Rule, RuleSet, apply, literal, rewrite, variable
from fusec.passes.simplify import simplify
from fusec.source import Source, Span
from tests.work import grows_linearly

N: Shape = (Dim("x.0"),)
x, y, c = variable("x"), variable("y"), literal("c")


def tensor(name: str = "x", dtype: DType = F32, shape: Shape = N) -> Node:
    return make("input", (), TensorType(dtype, shape), name=name, unsqueezed=0, scalar=False)


def op(name: str, *args: Node) -> Node:
    return make(name, args, TensorType(args[-1].dtype, broadcast(a.shape for a in args)))


def program(*nodes: Node) -> Graph:
    outputs = tuple(Output(f"y{i}", node) for i, node in enumerate(nodes))
    inputs = {n.name: n for o in nodes for n in _inputs(o)}
    specs = tuple(InputSpec(n.name, n.dtype, n.shape) for n in inputs.values())
    return Graph(specs, outputs, SideTable(), Source(""))


def _inputs(node: Node) -> list[Node]:
    graph = Graph((), (Output("y", node),), SideTable(), Source(""))
    return [n for n in graph.nodes() if n.op.name == "input"]


def result(rules: list[Rule], node: Node) -> Node:
    return rewrite(program(node), rules).outputs[0].node


def test_commutative_ops_match_both_ways() -> None:
    rule = Rule("one", x * 1, x, "exact")
    one = constant(1.0, F32)
    assert result([rule], op("mul", tensor(), one)) is tensor()
    assert result([rule], op("mul", one, tensor())) is tensor()


def test_an_ordered_rule_matches_as_written() -> None:
    rule = Rule("again", apply("maximum", apply("maximum", x, y), y), x, "exact", ordered=True)
    a, b = tensor("a"), tensor("b")
    inner = op("maximum", a, b)
    assert result([rule], op("maximum", inner, b)) is a
    other = op("maximum", b, inner)
    assert result([rule], other) is other


def test_zeros_differ_by_sign_and_nan_matches_nothing() -> None:
    rule = Rule("zero", x + 0, x, "exact")
    for value in (-0.0, float("nan")):
        node = op("add", tensor(), constant(value, F32))
        assert result([rule], node) is node
    assert result([rule], op("add", tensor(), constant(0.0, F32))) is tensor()


def test_a_variable_is_the_same_node_everywhere() -> None:
    rule = Rule("self", x - x, y, "exact", lambda m: False)
    assert list(RuleSet([rule]).candidates(op("sub", tensor("a"), tensor("b"))))
    assert result([rule], op("sub", tensor("a"), tensor("b"))).op.name == "sub"


def test_results_may_be_computed() -> None:
    def halve(match: Match) -> Node:
        return constant(float(match.value("c")) / 2, match.root.dtype)

    rule = Rule("half", apply("neg", c), halve, "exact")
    assert result([rule], op("neg", constant(3.0, F64))) is constant(1.5, F64)


def test_rules_apply_to_what_rules_make() -> None:
    rules = [Rule("neg", x - y, x + -y, "exact"), Rule("drop", apply("neg", x), x, "exact")]
    a, b = tensor("a"), tensor("b")
    assert result(rules, op("sub", a, b)) is op("add", a, b)


def test_rules_that_undo_each_other_are_found_out() -> None:
    rules = [Rule("there", x + y, x - y, "exact"), Rule("back", x - y, x + y, "exact")]
    with pytest.raises(InternalError, match="do not come to an end"):
        result(rules, op("add", tensor("a"), tensor("b")))


def test_a_rule_that_changes_the_type_is_a_bug() -> None:
    def truth(match: Match) -> Node:
        return constant(True, BOOL)

    with pytest.raises(InternalError, match="wrong made"):
        result([Rule("wrong", apply("neg", x), truth, "exact")], op("neg", tensor()))


def test_an_output_keeps_its_shape() -> None:
    node = op("pow", tensor(), constant(0.0, F32))
    assert simplify(program(node)).outputs[0].node is node


def test_a_narrower_form_serves_where_another_argument_has_the_shape() -> None:
    a, zero = tensor("a"), constant(0.0, F32)
    ones = op("pow", tensor(), zero)
    assert simplify(program(op("mul", a, ones))).outputs[0].node is a
    # Both arguments could be narrowed, but one must keep the shape.
    both = simplify(program(op("mul", ones, op("pow", a, zero)))).outputs[0].node
    assert both.shape == N
    # Through a chain: (x^0 * 2) + a is a + 2.
    deep = op("add", op("mul", ones, constant(2.0, F32)), a)
    assert simplify(program(deep)).outputs[0].node is op("add", constant(2.0, F32), a)


def test_names_and_spans_go_along() -> None:
    one = op("mul", tensor(), constant(1.0, F32))
    graph = program(op("neg", one))
    graph.side.note(one, Span(3, 5), "scaled")
    after = simplify(graph)
    assert after.side.names[tensor()] == "scaled"
    assert after.side.spans[tensor()] == [Span(3, 5)]


CHAINS = {
    "kept": lambda v: op("tanh", op("add", v, constant(2.5, F32))),
    "dropped": lambda v: op("mul", v, constant(1.0, F32)),
    "signs": lambda v: op("neg", v),
    "powers": lambda v: op("pow", v, constant(2.0, F32)),
    "constants": lambda v: op("add", v, constant(1.5, F32)),
    "narrow": lambda v: op("add", v, op("mul", op("pow", v, constant(0.0, F32)), v)),
}


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("mode", ["torch", "fast"])
def test_deep_chains_take_linear_work(kind: str, mode: str) -> None:
    def work(depth: int) -> Callable[[], Graph]:
        node = tensor()
        for _ in range(depth):
            node = CHAINS[kind](node)
        graph = program(node)
        return lambda: simplify(graph, mode)

    assert grows_linearly(work, 500)


def test_integers_wrap_in_folding() -> None:
    big = constant(2**31 - 1, I32)
    assert simplify(program(op("add", big, constant(1, I32)))).outputs[0].node.value == -(2**31)


def test_what_comes_out_reads_back() -> None:
    graph = simplify(program(op("mul", tensor("a"), op("pow", tensor("b"), constant(2.0, F32)))))
    assert parse_graph(print_graph(graph)).outputs == graph.outputs
