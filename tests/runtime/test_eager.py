"""The PyTorch program that stands for a Graph in measurements: its text and its numbers."""

import pytest
import torch

from fusec.ir.text import parse_graph
from fusec.runtime.eager import torch_program, torch_source

SOFTMAX = """\
input x : f32[x.0, x.1]
%0 = input name='x', scalar=False, unsqueezed=0 : f32[x.0, x.1]
%1 = max %0, axes=(-1,) : f32[x.0, 1]
%2 = sub %0, %1 : f32[x.0, x.1]
%3 = exp %2 : f32[x.0, x.1]
%4 = sum %3, axes=(-1,) : f32[x.0, 1]
%5 = div %3, %4 : f32[x.0, x.1]
return y = %5
"""

CUBE = """\
input x : f32[x.0]
scalar a : f64[]
%0 = input name='x', scalar=False, unsqueezed=0 : f32[x.0]
%1 = constant 3.0 : f32[]
%2 = pow %0, %1 : f32[x.0]
%3 = input name='a', scalar=True, unsqueezed=0 : f64[]
%4 = cast %3 : f32[]
%5 = mul %2, %4 : f32[x.0]
%6 = constant -0.79788456 : f32[]
%7 = add %5, %6 : f32[x.0]
return y = %7
"""

GATHER = """\
input x : f32[x.0, x.1]
input t : i32[x.0]
%0 = input name='x', scalar=False, unsqueezed=0 : f32[x.0, x.1]
%1 = input name='t', scalar=False, unsqueezed=1 : i32[x.0, 1]
%2 = gather %0, %1 : f32[x.0, 1]
return y = %2, squeeze=(-1,)
"""

CAUSAL = """\
input lambda : bf16[lambda.0, lambda.1]
%0 = input name='lambda', scalar=False, unsqueezed=0 : bf16[lambda.0, lambda.1]
%1 = index axis=-1, dim='lambda.1' : i64[lambda.1]
%2 = index axis=-2, dim='lambda.0' : i64[lambda.0, 1]
%3 = le %1, %2 : bool[lambda.0, lambda.1]
%4 = constant -inf : bf16[]
%5 = where %3, %0, %4 : bf16[lambda.0, lambda.1]
return y = %5
"""

MIXED = """\
input x : bf16[x.0]
input y : f32[x.0]
%0 = input name='x', scalar=False, unsqueezed=0 : bf16[x.0]
%1 = cast %0 : f32[x.0]
%2 = input name='y', scalar=False, unsqueezed=0 : f32[x.0]
%3 = add %1, %2 : f32[x.0]
return z = %3
"""

ROUNDED = """\
input x : f32[x.0]
%0 = input name='x', scalar=False, unsqueezed=0 : f32[x.0]
%1 = cast %0 : bf16[x.0]
%2 = cast %1 : f32[x.0]
%3 = mul %2, %2 : f32[x.0]
return z = %3
"""


def text_of(graph: str) -> str:
    return torch_source(parse_graph(graph))[0]


def test_softmax_is_written_as_a_person_would() -> None:
    assert text_of(SOFTMAX) == (
        "def formula(x):\n"
        "    t0 = torch.exp(x - torch.amax(x, -1, keepdim=True))\n"
        "    return t0 / torch.sum(t0, -1, keepdim=True)\n"
    )


def test_softmax_numbers() -> None:
    x = torch.randn(5, 7, dtype=torch.float64)
    program = torch_program(parse_graph(SOFTMAX))
    torch.testing.assert_close(program.function(x), torch.softmax(x, -1))


def test_constants_are_as_short_as_they_can_be() -> None:
    assert text_of(CUBE) == "def formula(x, a):\n    return ((x ** 3.0) * a) + (-0.7978846)\n"


def test_gather_and_dropped_axis() -> None:
    x, t = torch.randn(4, 6), torch.tensor([0, 5, 2, 2], dtype=torch.int32)
    y = torch_program(parse_graph(GATHER)).function(x, t)
    assert torch.equal(y, x[torch.arange(4), t.long()])


def test_a_keyword_of_python_is_a_fine_name() -> None:
    program = torch_program(parse_graph(CAUSAL))
    assert program.parameters == ("lambda_",)
    x = torch.randn(5, 5, dtype=torch.bfloat16)
    expected = x.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    assert torch.equal(program.function(x), expected)


def test_promotion_is_left_to_torch() -> None:
    assert text_of(MIXED) == "def formula(x, y):\n    return x + y\n"


def test_a_cast_that_rounds_is_kept() -> None:
    text = text_of(ROUNDED)
    assert ".to(torch.bfloat16)" in text
    x = torch.randn(100)
    expected = x.bfloat16().float() ** 2
    assert torch.equal(torch_program(parse_graph(ROUNDED)).function(x), expected)


def test_long_formulas_become_statements() -> None:
    lines = ["input x : f32[x.0]", "%0 = input name='x', scalar=False, unsqueezed=0 : f32[x.0]"]
    lines += [f"%{n} = sin %{n - 1} : f32[x.0]" for n in range(1, 2001)]
    program = torch_program(parse_graph("\n".join([*lines, "return y = %2000"])))
    assert max(map(len, program.text.splitlines())) < 130
    assert program.function(torch.ones(3)).shape == (3,)


@pytest.mark.parametrize("graph", [SOFTMAX, CUBE, GATHER, CAUSAL, MIXED, ROUNDED])
def test_the_text_stands_alone(graph: str) -> None:
    namespace: dict[str, object] = {"torch": torch}
    exec(text_of(graph), namespace)
    assert callable(namespace["formula"])
