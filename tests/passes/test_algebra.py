"""Graphs to sympy, sympy to formulas, graphs to LaTeX."""

import re
from typing import Any

import pytest
import sympy
import torch

from fusec.errors import UnsupportedError
from fusec.passes.algebra import formula_from_sympy, latex, to_sympy
from fusec.passes.latex import latex_name
from tests.formulas import graph_of, run

X = torch.linspace(-2, 2, 12).reshape(3, 4)
Y = torch.linspace(0.5, 3, 12).reshape(3, 4)
x, y = sympy.symbols("x y", real=True)


def expression(formula: str, **values: Any) -> Any:
    return to_sympy(graph_of(formula, values or {"x": X}).graph)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("x*x - 2*x + 1", x**2 - 2 * x + 1),
        ("0.5*x*(1+tanh(x))", x * (1 + sympy.tanh(x)) / 2),
        (
            "exp2(x) + expm1(x) + log1p(exp(x))",
            2**x + sympy.exp(x) - 1 + sympy.log(1 + sympy.exp(x)),
        ),
        ("maximum(x, 0)", sympy.Max(x, 0)),
        ("where(x > 1, x, -x)", sympy.Piecewise((x, x > 1), (-x, True))),
        ("abs(x) % 3", sympy.Mod(sympy.Abs(x), 3)),
        ("f32(f64(x)) + 0.1", x + sympy.Float("0.1", 17)),
        ("sum(x)", sympy.Function("sum", real=True)(x, -1)),
        ("x * inf", x * sympy.oo),
    ],
)
def test_graphs_are_expressions(formula: str, expected: Any) -> None:
    assert expression(formula) == expected


def test_logic() -> None:
    p, q = sympy.symbols("p q")
    got = expression("not (p and q)", p=X > 0, q=Y > 0)
    assert got == sympy.Not(sympy.And(p, q))


def test_assumptions() -> None:
    graph = graph_of("sqrt(x^2)", {"x": X}).graph
    assert to_sympy(graph) == sympy.Abs(x)
    assert to_sympy(graph, positive=True) == sympy.Symbol("x", positive=True)


@pytest.mark.parametrize(
    "value",
    [
        x**2 + sympy.Rational(1, 3) * y,
        sympy.exp(-x) / (1 + y**2),
        sympy.sqrt(y) + 1 / sympy.sqrt(y) + y ** sympy.Rational(1, 3),
        sympy.Piecewise((x, x > 0), (y, x > -1), (0, True)),
        sympy.Max(x, y, sympy.Rational(1, 2)) - sympy.Min(x, 1),
        sympy.Abs(x) + sympy.floor(x) + sympy.ceiling(y) + sympy.Mod(x, 3),
        sympy.erf(x) + sympy.atan2(x, y) + sympy.log(y) + sympy.pi * sympy.E,
        sympy.Piecewise(
            (x, sympy.And(x > 0, y < 2)), (y, sympy.Or(x < -1, sympy.Ne(y, 1))), (0, True)
        ),
        sympy.loggamma(y) + sympy.tanh(x) - sympy.Float("0.044715"),
        -x * y - (x - y) ** 3,
    ],
)
def test_expressions_become_formulas_of_the_same_value(value: Any) -> None:
    formula = formula_from_sympy(value)
    xs, ys = X.double(), Y.double()
    free = {str(s) for s in value.free_symbols}
    got = run(
        formula, precision="float64", **{k: v for k, v in {"x": xs, "y": ys}.items() if k in free}
    )
    points = zip(xs.flatten().tolist(), ys.flatten().tolist(), strict=True)
    expected = [
        float(value.subs({x: sympy.Rational(a), y: sympy.Rational(b)}).evalf()) for a, b in points
    ]
    assert torch.allclose(
        got.double().flatten(), torch.tensor(expected).double(), rtol=1e-5, atol=1e-6
    )


def test_there_and_back() -> None:
    formula = formula_from_sympy(expression("softmax(x)"))
    assert torch.allclose(run(formula, x=X), torch.softmax(X, -1))
    formula = formula_from_sympy(expression("sum(x, axis=-2) + max(x)"))
    assert torch.allclose(run(formula, x=X), X.sum(-2, keepdim=True) + X.amax(-1, keepdim=True))


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (sympy.I * x, "ImaginaryUnit"),
        (sympy.Derivative(sympy.Function("f")(x), x), "Derivative"),
        (sympy.Function("mystery")(x), "mystery"),
        (sympy.Symbol("not a name") + 1, "not a name"),
        (sympy.zoo, "ComplexInfinity"),
        (sympy.Integral(x**x, (x, 0, 1)), "Integral"),
    ],
)
def test_what_the_language_lacks_is_refused(value: Any, word: str) -> None:
    with pytest.raises(UnsupportedError, match=word):
        formula_from_sympy(value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x", "x"),
        ("mu", r"\mu"),
        ("eps", r"\epsilon"),
        ("w1", "w_{1}"),
        ("x_max", r"x_{\mathrm{max}}"),
        ("sigma_i", r"\sigma_{i}"),
        ("weight", r"\mathrm{weight}"),
        ("row_max", r"\mathrm{row\_max}"),
        ("_", r"\mathrm{\_}"),
    ],
)
def test_names_in_latex(name: str, expected: str) -> None:
    assert latex_name(name) == expected


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("x*(y + 1)/2", r"\frac{x \, \left( y + 1 \right)}{2}"),
        ("x - (y - x)", r"x - \left( y - x \right)"),
        ("-(x + y)", r"-\left( x + y \right)"),
        ("(x + y)^2", r"{\left( x + y \right)}^{2}"),
        ("exp(-x)", "e^{-x}"),
        ("sqrt(abs(x))", r"\sqrt{\left| x \right|}"),
        ("mean(x)", r"\operatorname{mean}\left( x \right)"),
        ("sum(x, axis=-2)", r"\operatorname{sum}_{-2}\left( x \right)"),
        ("max(x) * 1e-5", r"\max\left( x \right) \, 10^{-5}"),
        (
            "where(x > 0, x, y)",
            r"\begin{cases} x & \text{if } x > 0 \\ y & \text{otherwise} \end{cases}",
        ),
        ("bf16(x)", r"\operatorname{bf16}\left( x \right)"),
        ("x * inf", r"x \, \infty"),
    ],
)
def test_latex(formula: str, expected: str) -> None:
    words = set(re.findall(r"\w+", formula))
    values = {name: value for name, value in {"x": X, "y": Y}.items() if name in words}
    text = latex(graph_of(formula, values).graph)
    assert text.partition(" = ")[2] == expected


def test_latex_gives_named_values_a_line() -> None:
    text = latex(graph_of("mu = mean(x)\nd = x - mu\nd / sqrt(mean(d*d) + 1e-5)", {"x": X}).graph)
    assert text.splitlines()[0] == r"\begin{aligned}"
    assert r"\mu &= \operatorname{mean}\left( x \right) \\" in text
    assert r"d &= x - \mu \\" in text


def test_latex_of_a_deep_chain_is_not_quadratic() -> None:
    graph = graph_of("x" + " + x * 2" * 5000, {"x": X}).graph
    assert len(latex(graph)) < 500_000
