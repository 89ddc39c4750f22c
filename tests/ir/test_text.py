"""The text of a graph: written, read back to the same nodes, and refused with a place where it is
wrong.
"""

import struct

import pytest
from hypothesis import given

from fusec.errors import ParseError
from fusec.ir.dtypes import BF16, F16, F32, F64, I64
from fusec.ir.graph import Graph, Nonempty, Output, SideTable
from fusec.ir.node import Dim, TensorType, constant, make
from fusec.ir.text import number_text, parse_graph, print_graph
from fusec.source import Source
from tests.graph_strategies import graphs

SOFTMAX = """\
input x : f32[x.0, x.1]
scalar scale : f64[]
nonempty x.1 = max
%0 = input name='x', scalar=False, unsqueezed=0 : f32[x.0, x.1]
%1 = max %0, axes=(-1,) : f32[x.0, 1]
%2 = sub %0, %1 : f32[x.0, x.1]
%3 = exp %2 : f32[x.0, x.1]
%4 = sum %3, axes=(-1,) : f32[x.0, 1]
%5 = div %3, %4 : f32[x.0, x.1]
%6 = constant -0.0 : f32[]
%7 = add %5, %6 : f32[x.0, x.1]
return y = %7
return total = %4, squeeze=(-1,)
return turned = %5, order=(1, 0)
return square = %4, squeeze=(-1,), order=(0,)
"""


def test_text_is_a_fixed_point() -> None:
    assert print_graph(parse_graph(SOFTMAX)) == SOFTMAX


def test_reading_gives_the_whole_graph() -> None:
    graph = parse_graph(SOFTMAX)
    assert [(s.name, s.dtype, s.scalar) for s in graph.inputs] == [
        ("x", F32, False),
        ("scale", F64, True),
    ]
    assert [o.squeeze for o in graph.outputs] == [(), (-1,), (), (-1,)]
    assert [o.order for o in graph.outputs] == [None, None, (1, 0), (0,)]
    assert graph.nonempty == (Nonempty("max", Dim("x.1")),)
    place = graph.side.spans[graph.outputs[1].node][0]
    assert graph.source.excerpt(place) == "%4 = sum %3, axes=(-1,) : f32[x.0, 1]"


@given(graphs())
def test_reading_back_gives_the_same_nodes(graph: Graph) -> None:
    again = parse_graph(print_graph(graph))
    assert again.inputs == graph.inputs
    assert [(o.name, o.squeeze, o.order) for o in again.outputs] == [
        (o.name, o.squeeze, o.order) for o in graph.outputs
    ]
    assert all(a.node is b.node for a, b in zip(again.outputs, graph.outputs, strict=True))


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 5e-324, 1e-45, 0.1, 1 / 3, 3e38, 1e308],
)
@pytest.mark.parametrize("dtype", [F64, F32, BF16, F16])
def test_constants_keep_their_bits(value: float, dtype: object) -> None:
    node = constant(value, dtype)
    graph = Graph((), (Output("y", node),), SideTable(), Source(""))
    assert parse_graph(print_graph(graph)).outputs[0].node is node


def test_a_nan_with_a_payload_keeps_it() -> None:
    odd = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
    node = constant(odd, F64)
    graph = Graph((), (Output("y", node),), SideTable(), Source(""))
    assert "bits='fff8000000000123'" in print_graph(graph)
    assert parse_graph(print_graph(graph)).outputs[0].node is node


def test_numbers_are_short() -> None:
    assert number_text(constant(0.1, F32).value, F32) == "0.1"
    assert number_text(constant(0.1, F64).value, F64) == "0.1"
    assert number_text(7, I64) == "7"


def test_names_that_are_no_words_are_quoted() -> None:
    node = make("index", (), TensorType(I64, (Dim("a b"), 1)), axis=-2, dim="a b")
    graph = Graph((), (Output("#1", node),), SideTable(), Source(""))
    assert print_graph(graph) == "%0 = index axis=-2, dim='a b' : i64['a b', 1]\nreturn '#1' = %0\n"
    assert parse_graph(print_graph(graph)).outputs == graph.outputs


def test_user_names_are_comments() -> None:
    graph = parse_graph(SOFTMAX)
    graph.side.note(graph.outputs[1].node, name="total")
    assert "%4 = sum %3, axes=(-1,) : f32[x.0, 1]  # total\n" in print_graph(graph)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("%0 = nothing : f32[]", 1, 6, "no operator is called 'nothing'"),
        ("\n%0 = neg %1 : f32[]", 2, 10, "%1 is not defined above"),
        ("%0 = constant 1 : f33[]", 1, 19, "no element type is called 'f33'"),
        ("%0 = constant 1 : f32[2]", 1, 23, "the only literal length is 1"),
        ("%0 = constant 1 : f32[]\n%0 = constant 1 : f32[]", 2, 1, "%0 is defined twice"),
        ("%0 = neg : f32[]", 1, 6, "neg takes 1 arguments, not 0"),
        ("%0 = constant 1", 1, 16, "expected :, found the end of the line"),
        ("let x = 3", 1, 1, "a line begins with input, scalar, nonempty, return or %number"),
        ("%0 = constant 1 : f32[] ?", 1, 25, "expected end, found ?"),
        ("%0 = constant 'a' : f32[]", 1, 6, "a constant is a number"),
        ("%0 = input name=x : f32[]", 1, 17, "expected a value"),
        (
            "%0 = constant 1 : f32[]\nreturn y = %0, keep=(1)",
            2,
            16,
            "expected squeeze=(...) or order=(...)",
        ),
        ("%0 = constant 1 : f32[]\nreturn y = %0, squeeze=(1.5)", 2, 25, "expected an integer"),
    ],
)
def test_errors_say_where(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_graph(text, "g.ir")
    assert str(caught.value).splitlines()[0] == f"g.ir:{line}:{column}: error: {message}"


def test_deep_chains_are_no_trouble() -> None:
    node = constant(1.0, F32)
    for _ in range(10_000):
        node = make("neg", (node,), TensorType(F32, ()))
    graph = Graph((), (Output("y", node),), SideTable(), Source(""))
    assert parse_graph(print_graph(graph)).outputs[0].node is node
