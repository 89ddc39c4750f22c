"""Texts to trees: precedence, spans, depth, round trips, and the wording of every syntax error."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fusec.errors import ParseError
from fusec.frontend import automaton, parser, syntax
from fusec.frontend.parser import parse
from fusec.frontend.syntax import same, unparse, walk
from fusec.source import Source, Span
from tests.work import grows_linearly

ERRORS = Path(__file__).parents[1] / "fixtures" / "errors"
CASES = Path(__file__).parents[3] / "shared" / "cases" / "cases.jsonl"


def program(text: str) -> syntax.Program:
    return parse(Source(text))


def expression(text: str) -> syntax.Expression:
    (result,) = program(text).result
    return result


def refusal(text: str) -> ParseError:
    with pytest.raises(ParseError) as caught:
        program(text)
    return caught.value


# Each row: a formula, the same with its grouping spelled out, and a grouping that it must not have.
PRECEDENCE = [
    ("-x^2", "-(x^2)", "(-x)^2"),
    ("2^-x", "2^(-x)", None),
    ("2^-x^2", "2^(-(x^2))", "(2^(-x))^2"),
    ("2^-x*y", "(2^(-x))*y", "2^(-(x*y))"),
    ("x^y^z", "x^(y^z)", "(x^y)^z"),
    ("x**y^z", "x^(y**z)", "(x^y)^z"),
    ("-x*y", "(-x)*y", "-(x*y)"),
    ("--x", "-(-x)", None),
    ("+-~x", "+(-(~x))", None),
    ("a - b - c", "(a - b) - c", "a - (b - c)"),
    ("a / b * c", "(a / b) * c", "a / (b * c)"),
    ("a // b % c", "(a // b) % c", "a // (b % c)"),
    ("a + b * c", "a + (b * c)", "(a + b) * c"),
    ("a - -b", "a - (-b)", None),
    ("a | b & c", "a | (b & c)", "(a | b) & c"),
    ("a & b + c", "a & (b + c)", "(a & b) + c"),
    ("a == 1 | b", "a == (1 | b)", "(a == 1) | b"),
    ("a < b == c", "a < b == c", "(a < b) == c"),
    ("not a == b", "not (a == b)", "(not a) == b"),
    ("not a and b", "(not a) and b", "not (a and b)"),
    ("not not a", "not (not a)", None),
    ("a or b and c", "a or (b and c)", "(a or b) and c"),
    ("a and b and c", "(a and b) and c", "a and (b and c)"),
    ("a and not b", "a and (not b)", None),
    ("a or b if c else d", "(a or b) if c else d", "a or (b if c else d)"),
    ("a if b else c if d else e", "a if b else (c if d else e)", "(a if b else c) if d else e"),
    ("-x[t]", "-(x[t])", "(-x)[t]"),
    ("x[t]^2", "(x[t])^2", None),
    ("f(x)[t]", "(f(x))[t]", None),
    ("x^y[t]", "x^(y[t])", "(x^y)[t]"),
]


@pytest.mark.parametrize(("formula", "grouped", "wrong"), PRECEDENCE)
def test_precedence(formula: str, grouped: str, wrong: str | None) -> None:
    assert same(program(formula), program(grouped))
    assert wrong is None or not same(program(formula), program(wrong))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("007", 7),
        ("1.0", 1.0),
        (".5", 0.5),
        ("3.", 3.0),
        ("2.e1", 20.0),
        ("1.5E+2", 150.0),
        ("1e-5", 1e-5),
        ("1e0", 1.0),
        ("1e-400", 0.0),
        ("9" * 300, int("9" * 300)),
    ],
)
def test_numbers(text: str, value: int | float) -> None:
    number = expression(text)
    assert isinstance(number, syntax.Number)
    assert number.value == value
    assert type(number.value) is type(value)
    assert number.text == text


def test_an_int_is_not_the_float_of_the_same_value() -> None:
    assert not same(program("x + 1"), program("x + 1.0"))
    assert same(program("x + 1.0"), program("x + 1.00"))


def test_a_chain_of_comparisons_shares_its_middle() -> None:
    chain = expression("1 < x <= 5 != y")
    assert isinstance(chain, syntax.Compare)
    assert chain.operators == ("<", "<=", "!=")
    assert len(chain.operands) == 4


def test_a_call_keeps_arguments_and_keywords_apart() -> None:
    call = expression("sum(x, y, axis=(0, 1), keep=[2,], )")
    assert isinstance(call, syntax.Call)
    assert call.function == "sum"
    assert [unparse(argument) for argument in call.arguments] == ["x", "y"]
    assert [keyword.name for keyword in call.keywords] == ["axis", "keep"]
    assert [unparse(keyword.value) for keyword in call.keywords] == ["(0, 1)", "(2,)"]
    assert isinstance(expression("f()"), syntax.Call)


def test_statements() -> None:
    tree = program(
        "def swish(v) = v * sigmoid(v)\nmu = mean(x); y = swish(x)\n\ny - mu, mu  # both\n"
    )
    assert [type(statement).__name__ for statement in tree.statements] == [
        "FunctionDef",
        "Assign",
        "Assign",
    ]
    assert [unparse(value) for value in tree.result] == ["y - mu", "mu"]
    assert unparse(tree) == "def swish(v) = v * sigmoid(v)\nmu = mean(x)\ny = swish(x)\ny - mu, mu"


def test_a_pair_in_parentheses_is_two_results() -> None:
    assert same(program("(a, b)"), program("a, b"))
    assert len(program("(a,)").result) == 1
    assert isinstance(program("(a,)").result[0], syntax.TupleExpression)


@pytest.mark.parametrize(
    "text",
    [
        "f(x,\n  y)",
        "x + # why\n\n y",
        "y =\n x\r\ny",
        "x[\nt\n]",
        "(x\n+ y)",
        "a,\nb",
        "\n;x;;\n;",
        "not\nx",
    ],
)
def test_newlines_that_end_nothing(text: str) -> None:
    program(text)


@pytest.mark.parametrize(
    "name", ["lambda", "class", "int", "float", "for", "import", "λ", "é1", "_", "θ̂"]
)
def test_any_identifier_is_a_name(name: str) -> None:
    assert same(program(f"{name} = x; {name}*2"), program(f"{name}=x\n{name} * 2"))
    (result,) = program(name).result
    assert isinstance(result, syntax.Name)


def test_names_take_the_form_python_gives_its_own() -> None:
    for written, plain in [("e\u0301", "é"), ("\u03f5", "ε"), ("\uff58", "x"), ("ﬁ", "fi")]:
        assert same(program(written), program(plain))
    # Normalisation must not smuggle in a reserved word.
    assert same(program("a \uff49\uff46 c else b"), program("a if c else b"))


def test_spans() -> None:
    source = Source("(a + b) * f(x, k=[1])[t]; y = -1\ny")
    with pytest.raises(ParseError) as caught:
        parse(source)
    assert caught.value.diagnostic.span == Span(0, 24)
    tree = program("z = (a + b) * f(x, k=[1])[t]\nz if c else -z^2")
    found = {type(node).__name__: node.span for node in walk(tree)}
    text = "z = (a + b) * f(x, k=[1])[t]\nz if c else -z^2"
    assert {kind: text[span.start : span.end] for kind, span in found.items()} == {
        "Assign": "z = (a + b) * f(x, k=[1])[t]",
        "Binary": "z^2",
        "Call": "f(x, k=[1])",
        "Conditional": "z if c else -z^2",
        "Index": "f(x, k=[1])[t]",
        "Keyword": "k=[1]",
        "Name": "z",
        "Number": "2",
        "Program": text,
        "TupleExpression": "[1]",
        "Unary": "-z^2",
    }
    product = expression("(a + b) * c")
    assert isinstance(product, syntax.Binary)
    assert product.span == Span(0, 11)
    assert product.left.span == Span(0, 7)


# ---- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(ERRORS.glob("syntax_*.fuse")), ids=lambda path: path.stem)
def test_wording_of_errors(path: Path) -> None:
    text = path.read_text(encoding="utf-8").removesuffix("\n")
    with pytest.raises(ParseError) as caught:
        parse(Source(text, path.name))
    expected = path.with_suffix(".txt").read_text(encoding="utf-8")
    assert f"{caught.value}\n" == expected


def test_every_expected_error_has_its_formula() -> None:
    formulas = {path.stem for path in ERRORS.glob("syntax_*.fuse")}
    assert formulas == {path.stem for path in ERRORS.glob("syntax_*.txt")}
    assert len(formulas) > 100


@pytest.mark.parametrize(
    ("text", "place", "message", "hint"),
    [
        ("", (1, 1), "the formula is empty", "write an expression, such as 'x + 1'"),
        (" \n ; # no\n", (1, 1), "the formula is empty", "write an expression, such as 'x + 1'"),
        ("x\u200b + 1", (1, 2), "unexpected character (zero width space, U+200B)", "delete it"),
        ("\ufeffx", (1, 1), "unexpected character (zero width no-break space, U+FEFF)",
         "delete it"),
        ("x\u00a0+ 1", (1, 2), "unexpected character (no-break space, U+00A0)",
         "write a plain space or newline"),
        ("x\u2028y", (1, 2), "unexpected character (line separator, U+2028)",
         "write a plain space or newline"),
        ("x # \u202e!", (1, 5), "unexpected character (right-to-left override, U+202E)",
         "delete it"),
        ("x # \x00", (1, 5), "unexpected control character (U+0000)", "delete it"),
        ("\u3164 + x", (1, 1), "unexpected character (hangul filler, U+3164)", "delete it"),
        ("x\ufe0f", (1, 2), "unexpected character (variation selector-16, U+FE0F)", "delete it"),
        ("x\x00", (1, 2), "unexpected control character (U+0000)", "delete it"),
        ("\u0301x", (1, 1), "unexpected character (combining acute accent, U+0301)", None),
        ("x + \ud800", (1, 5), "unexpected character (U+D800)", None),
        ("9" * 4001, (1, 1), "a number of 4001 characters is too long", None),
        ("1e999", (1, 1), "number '1e999' is beyond the range of float64",
         "write 'inf' for infinity"),
        ("a = x\r\nb = a +* 2\r\nb", (2, 8), "expected an expression after '+', found '*'", None),
        ("a = x\rb = )", (2, 5), "expected an expression after '=', found ')'", None),
        ("e\u0301 + * y", (1, 6), "expected an expression after '+', found '*'", None),
    ],
)  # fmt: skip
def test_errors_about_what_the_eye_cannot_see(
    text: str, place: tuple[int, int], message: str, hint: str | None
) -> None:
    error = refusal(text)
    span = error.diagnostic.span
    assert span is not None
    assert Source(text).location(span.start) == place
    assert (error.message, error.diagnostic.hint) == (message, hint)


def test_no_message_ends_with_a_period_or_begins_with_a_capital() -> None:
    for path in ERRORS.glob("syntax_*.txt"):
        message = path.read_text(encoding="utf-8").splitlines()[0].split(": error: ")[1]
        assert message[0].islower() or message[0] == "'"
        assert not message.endswith(".")


def test_no_injection_parses() -> None:
    if not CASES.exists():
        pytest.skip(f"no {CASES}")
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    formulas = [case["dsl"] for case in cases if case["kind"] == "security/injection"]
    assert formulas
    for formula in formulas:
        error = refusal(formula)
        assert error.diagnostic.span is not None


# ---- depth -------------------------------------------------------------------------------------

DEEP = {
    "terms": "+".join(["x"] * 10_000),
    "parentheses": "(" * 5000 + "x" + ")" * 5000,
    "signs": "-" * 5000 + "x",
    "nots": "not " * 5000 + "x",
    "calls": "f(" * 5000 + "x" + ")" * 5000,
    "powers": "^".join(["x"] * 5000),
    "conditionals": " if c else ".join(["x"] * 5000),
    "comparisons": " < ".join(["x"] * 5000),
    "indices": "x" + "[t]" * 5000,
    "lists": "f(" + "[" * 5000 + "x" + "]" * 5000 + ")",
    "arguments": "f(" + "x," * 10_000 + ")",
    "results": ", ".join(["x"] * 10_000),
    "statements": "y = x\n" * 5000 + "y",
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP.keys())
def test_deep_formulas(text: str) -> None:
    limit = sys.getrecursionlimit()
    tree = program(text)
    again = program(unparse(tree))
    assert same(tree, again)
    assert sum(1 for _ in walk(tree)) == sum(1 for _ in walk(again))
    assert len(repr(tree)) < 100
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize(
    "text", ["(" * 5000 + "x", "(" * 5000 + "x +* y", "x+" * 10_000, "f(" * 5000, "-" * 5000]
)
def test_deep_formulas_that_are_wrong(text: str) -> None:
    assert len(str(refusal(text))) < 1000


@pytest.mark.parametrize(
    "make",
    [
        lambda n: "+".join(["x"] * n),
        lambda n: "(" * n + "x" + ")" * n,
        lambda n: "-" * n + "x",
        lambda n: "f(" * n + "x" + ")" * n,
        lambda n: "y = x\n" * n + "y",
    ],
    ids=["terms", "parentheses", "signs", "calls", "statements"],
)
def test_parsing_takes_linear_work(make: Callable[[int], str]) -> None:
    program("x")  # the tables are made once
    assert grows_linearly(lambda n: lambda: program(make(n)), 300)


# ---- the parser as a part ----------------------------------------------------------------------


def test_threads_share_one_parser() -> None:
    texts = [f"x{i} * (y + {i})^2, f(x{i}, k={i})" for i in range(40)]
    with ThreadPoolExecutor(4) as pool:
        trees = list(pool.map(program, texts))
    assert [unparse(tree) for tree in trees] == texts


def test_tree_and_errors_need_no_lark() -> None:
    code = (
        "import sys; import fusec.frontend.syntax, fusec.errors, fusec.source;"
        "sys.exit('lark' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_trees_are_kept_where_there_is_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, bytes] = {}

    class Store:
        def load(self, parts: Mapping[str, str]) -> bytes | None:
            return kept.get(repr(parts))

        def save(self, parts: Mapping[str, str], tables: bytes) -> None:
            kept[repr(parts)] = tables

    monkeypatch.setattr(parser, "_tables", Store())
    text = "softmax(x) * 3 + y[t]"
    first = parser.parse(Source(text))
    monkeypatch.setattr(parser, "_parse", None)  # a second parse would fail
    assert same(parser.parse(Source(text)), first)
    monkeypatch.undo()
    monkeypatch.setattr(parser, "_tables", Store())
    kept.update({key: b"damaged" for key in kept})
    assert same(parser.parse(Source(text)), first)
    for text in ("(" * 400 + "x" + ")" * 400, "-" * 900 + "x", "f(" * 300 + "x" + ")" * 300):
        parser.parse(Source(text))  # too deep to keep, and no error
    with pytest.raises(ParseError):
        parser.parse(Source("x\ud800"))


# -- the tables in the package ----------------------------------------------------------------

TABLES = Path(automaton.__file__).with_name("grammar.tables")


def test_shipped_tables_are_those_of_the_grammar(request: pytest.FixtureRequest) -> None:
    expected = automaton.shipped_tables(TABLES.with_suffix(".lark").read_text(encoding="utf-8"))
    if request.config.getoption("--update-golden"):
        TABLES.write_bytes(expected)
    found = TABLES.read_bytes()
    how = "grammar.tables is stale: pytest tests/frontend/test_parser.py --update-golden"
    assert found.partition(b"\n")[0] == expected.partition(b"\n")[0], how
    # Lark numbers states and rules in the order of its sets, another in every process.
    shipped, made = (pickle.loads(t.partition(b"\n")[2]) for t in (found, expected))
    assert {d["name"]: d["pattern"] for d in shipped["memo"].values() if "pattern" in d} == {
        d["name"]: d["pattern"] for d in made["memo"].values() if "pattern" in d
    }
    counts = [
        (len(p["states"]), sum(map(len, p["states"].values())), len(t["memo"]))
        for t in (shipped, made)
        for p in [t["data"]["parser"]["parser"]]
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("content", [None, b"", b"other lark 0.1\n", "header"])
def test_without_fitting_tables_the_grammar_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | str | None
) -> None:
    for name in ("grammar.lark", "grammar.tables"):
        (tmp_path / name).write_bytes(TABLES.with_name(name).read_bytes())
    if content is None:
        (tmp_path / "grammar.tables").unlink()
    else:
        header = TABLES.read_bytes().partition(b"\n")[0] + b"\nno tables"
        (tmp_path / "grammar.tables").write_bytes(content if isinstance(content, bytes) else header)
    monkeypatch.setattr(automaton, "files", lambda package: tmp_path)
    automaton._machinery.cache_clear()
    try:
        assert unparse(automaton.parse(Source("x * 2 + f(y)"), None)) == "x * 2 + f(y)"
    finally:
        automaton._machinery.cache_clear()
