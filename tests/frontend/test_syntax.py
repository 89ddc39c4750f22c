"""Trees: walking, printing and reading back; and no text escapes as another error."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fusec.errors import ParseError
from fusec.frontend import syntax
from fusec.frontend.parser import parse
from fusec.frontend.syntax import same, unparse, walk
from fusec.source import Source


def program(text: str) -> syntax.Program:
    return parse(Source(text))


def test_walk_gives_children_before_parents() -> None:
    tree = program("y = a + b * c\nf(y, k=d)")
    order = [unparse(node) for node in walk(tree)]
    assert order == [
        "a", "b", "c", "b * c", "a + b * c", "y = a + b * c", "y", "d", "k=d", "f(y, k=d)",
        "y = a + b * c\nf(y, k=d)",
    ]  # fmt: skip


names = st.sampled_from(["x", "y", "gamma", "λ", "lambda", "x1", "_", "e5", "iff", "android"])
numbers = st.one_of(
    st.integers(0, 10**20).map(lambda value: syntax.Number(value, str(value))),
    st.floats(0, allow_infinity=False, allow_nan=False).map(
        lambda value: syntax.Number(value, repr(value))
    ),
    st.sampled_from(["3.", ".5", "2.e1", "1E+2"]).map(
        lambda text: syntax.Number(float(text), text)
    ),
)


def larger(inner: st.SearchStrategy[syntax.Expression]) -> st.SearchStrategy[syntax.Expression]:
    some = st.lists(inner, min_size=1, max_size=3).map(tuple)
    binary = st.sampled_from(["+", "-", "*", "/", "//", "%", "^", "&", "|"])
    compare = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    keywords = st.lists(names, max_size=2, unique=True).flatmap(
        lambda chosen: st.tuples(
            *(st.builds(syntax.Keyword, st.just(name), inner) for name in chosen)
        )
    )
    return st.one_of(
        st.builds(syntax.Unary, st.sampled_from(["-", "+", "~", "not"]), inner),
        st.builds(syntax.Binary, binary, inner, inner),
        st.builds(syntax.Logical, st.sampled_from(["and", "or"]), inner, inner),
        st.builds(
            lambda first, rest: syntax.Compare(
                tuple(operator for operator, _ in rest),
                (first, *(operand for _, operand in rest)),
            ),
            inner,
            st.lists(st.tuples(compare, inner), min_size=1, max_size=3),
        ),
        st.builds(syntax.Conditional, inner, inner, inner),
        st.builds(syntax.Call, names, st.one_of(st.just(()), some), keywords),
        st.builds(syntax.Index, inner, inner),
        st.builds(syntax.TupleExpression, some),
    )


expressions = st.recursive(st.one_of(numbers, names.map(syntax.Name)), larger, max_leaves=25)
definitions = st.builds(
    syntax.FunctionDef,
    names,
    st.lists(names, max_size=3, unique=True).map(lambda chosen: tuple(map(syntax.Name, chosen))),
    expressions,
)
programs = st.builds(
    syntax.Program,
    st.lists(st.one_of(st.builds(syntax.Assign, names, expressions), definitions), max_size=3).map(
        tuple
    ),
    # A single tuple of several items reads back as several results.
    st.one_of(
        st.lists(expressions, min_size=2, max_size=3),
        expressions.filter(
            lambda value: not isinstance(value, syntax.TupleExpression) or len(value.items) == 1
        ).map(lambda value: [value]),
    ).map(tuple),
)


@given(programs)
@settings(max_examples=150)
def test_unparse_then_parse_is_the_same_tree(tree: syntax.Program) -> None:
    text = unparse(tree)
    again = program(text)
    assert same(tree, again)
    assert unparse(again) == text


@given(expressions, expressions)
@settings(max_examples=50)
def test_different_trees_print_differently(one: syntax.Expression, two: syntax.Expression) -> None:
    assert same(one, two) or unparse(one) != unparse(two)


WORDS = [
    *"xf1+-*/%^<=()[],;&|~:.'\"!@#\\λײ",
    *("2.5", "1e5", ".5", "//", "**", "<=", "==", "!=", "&&", ":=", "lambda", "return"),
    *("and", "or", "not", "if", "else", "def"),
]


@given(
    st.one_of(
        st.text(max_size=20),
        st.lists(st.sampled_from([*WORDS, " ", "\n", "\r", "\t", "\u200b"]), max_size=20).map(
            "".join
        ),
        st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join),
    )
)
@settings(max_examples=300)
def test_any_text_parses_or_is_a_parse_error(text: str) -> None:
    source = Source(text)
    try:
        tree = parse(source)
    except ParseError as caught:
        error = caught
    else:
        assert same(tree, program(unparse(tree)))
        return
    span = error.diagnostic.span
    assert span is not None
    assert 0 <= span.start <= span.end <= len(text)
    assert str(error).startswith("<formula>:")
