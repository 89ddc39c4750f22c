"""The error tree and its one renderer: places, carets, windows, odd characters, pickling."""

import pickle
import unicodedata

import pytest

from fusec.errors import (
    BuildError,
    Diagnostic,
    DTypeError,
    FusecError,
    InternalError,
    Note,
    ParseError,
    ShapeError,
    UnknownNameError,
    UnsupportedError,
    did_you_mean,
)
from fusec.source import Source, Span

KINDS = [
    ParseError,
    UnknownNameError,
    ShapeError,
    DTypeError,
    UnsupportedError,
    BuildError,
    InternalError,
]


def rendered(text: str, start: int, end: int, name: str = "f") -> list[str]:
    return Diagnostic("wrong", Source(text, name), Span(start, end)).render().splitlines()


# ---- source ------------------------------------------------------------------------------------


def test_locations_count_from_one_and_every_line_break_once() -> None:
    source = Source("ab\ncd\r\ne\rf")
    assert source.line_count == 4
    assert [source.line(number) for number in (1, 2, 3, 4)] == ["ab", "cd", "e", "f"]
    offsets = [0, 2, 3, 5, 7, 8, 9, 10]
    assert [source.location(offset) for offset in offsets] == [
        (1, 1), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2), (4, 1), (4, 2),
    ]  # fmt: skip
    assert source.location(99) == (4, 2)
    assert Source("").location(0) == (1, 1)
    with pytest.raises(IndexError):
        source.line(5)


def test_spans() -> None:
    assert Span(3, 5).join(Span(7, 9)) == Span(3, 9)
    assert Span(7, 9).join(Span(3, 5)) == Span(3, 9)
    assert len(Span(3, 5)) == 2
    assert Span(3, 3)
    assert Source("x + y").excerpt(Span(4, 5)) == "y"


# ---- rendering ---------------------------------------------------------------------------------


def test_place_line_carets_notes_and_hint() -> None:
    error = ShapeError(
        "shapes [n] and [m] do not fit",
        source=Source("a = f(x)\na + y", "model.fuse"),
        span=Span(9, 14),
        notes=[Note("declared here", Span(0, 1)), Note("rows are not broadcast")],
        hint="transpose y",
    )
    assert str(error).splitlines() == [
        "model.fuse:2:1: error: shapes [n] and [m] do not fit",
        "2 | a + y",
        "  | ^^^^^",
        "model.fuse:1:1: note: declared here",
        "1 | a = f(x)",
        "  | ^",
        "model.fuse: note: rows are not broadcast",
        "hint: transpose y",
    ]
    assert error.message == "shapes [n] and [m] do not fit"


def test_without_a_source_the_message_stands_alone() -> None:
    assert str(DTypeError("no such type")) == "error: no such type"
    assert str(DTypeError("odd", source=Source("x", "f"))) == "f: error: odd"


def test_an_empty_span_gets_one_caret() -> None:
    assert rendered("x +", 3, 3) == ["f:1:4: error: wrong", "1 | x +", "  |    ^"]
    assert rendered("", 0, 0) == ["f:1:1: error: wrong", "1 |", "  | ^"]
    assert rendered("x\n", 2, 2) == ["f:2:1: error: wrong", "2 |", "  | ^"]


def test_a_tab_is_four_columns_in_line_and_carets() -> None:
    assert rendered("\tx\t+ y", 3, 4)[1:] == ["1 |     x    + y", "  |          ^"]
    assert rendered("a\tb", 1, 2)[1:] == ["1 | a    b", "  |  ^^^^"]


def test_wide_and_combining_characters() -> None:
    assert rendered("変数 + y", 5, 6)[1:] == ["1 | 変数 + y", "  |        ^"]
    assert rendered("変数 + y", 0, 2)[2] == "  | ^^^^"
    assert rendered("e\u0301 + y", 5, 6)[2] == "  |     ^"


@pytest.mark.parametrize("character", ["\x1b", "\u200b", "\u202e", "\x00", "\ud800", "\u2028"])
def test_invisible_characters_are_spelled_out(character: str) -> None:
    line, carets = rendered(f"x{character}y", 1, 2)[1:]
    code = f"<U+{ord(character):04X}>"
    assert line == f"1 | x{code}y"
    assert carets == "  |  " + "^" * len(code)
    assert all(unicodedata.category(shown) not in ("Cc", "Cf", "Cs") for shown in line)


def test_a_span_over_lines_marks_each_without_its_indentation() -> None:
    assert rendered("f(x,\n  y)\nz", 0, 9)[1:] == ["1 | f(x,", "  | ^^^^", "2 |   y)", "  |   ^^"]
    assert rendered("x = 1\r\ny", 0, 7)[1:] == ["1 | x = 1", "  | ^^^^^"]


def test_a_long_span_leaves_out_its_middle() -> None:
    text = "\n".join(f"line{number}" for number in range(1, 13))
    assert rendered(text, 0, len(text)) == [
        "f:1:1: error: wrong",
        " 1 | line1",
        "   | ^^^^^",
        " 2 | line2",
        "   | ^^^^^",
        "   ...",
        "12 | line12",
        "   | ^^^^^^",
    ]


@pytest.mark.parametrize("start", [0, 1, 39, 40, 41, 60, 99, 100, 101, 250, 459, 498, 499])
@pytest.mark.parametrize("length", [0, 1, 5, 60, 400])
def test_a_wide_line_is_cut_around_the_caret(start: int, length: int) -> None:
    text = "".join(chr(ord("a") + position % 26) for position in range(500))
    end = min(500, start + length)
    _, line, carets = rendered(text, start, end)
    assert len(line) <= 4 + 106
    column = carets.index("^")
    assert column <= 4 + 100
    width = carets.count("^")
    assert line[column : column + width] == text[start : start + width] or start == end
    assert width == min(max(1, end - start), width)
    if end - start <= 50:
        assert width == max(1, end - start)
    assert line[4:7] == "..." if start > 100 else line[4] == "a" or line[4:7] == "..."


def test_a_line_of_a_hundred_columns_is_whole() -> None:
    text = "x" * 99 + "y"
    assert rendered(text, 99, 100)[1:] == [f"1 | {text}", "  | " + " " * 99 + "^"]


def test_a_very_long_line_is_quick() -> None:
    text = "x + " * 500_000
    _, line, _ = rendered(text, 1_000_000, 1_000_001)
    assert len(line) < 120


# ---- the tree ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_a_fusec_error_and_pickles(kind: type[FusecError]) -> None:
    error = kind(
        "odd", source=Source("x + y", "f"), span=Span(4, 5), notes=[Note("n", Span(0, 1))], hint="h"
    )
    assert isinstance(error, FusecError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert again.diagnostic == error.diagnostic
    assert again.args == ("odd",)


def test_extra_facts_survive_pickling() -> None:
    unsupported = UnsupportedError("no", op="erf", backend="cuda", reason="not yet written")
    again = pickle.loads(pickle.dumps(unsupported))
    assert (again.op, again.backend, again.reason) == ("erf", "cuda", "not yet written")
    build = pickle.loads(pickle.dumps(BuildError("no", tool_output="a\nb", source_path="/t/k.cpp")))
    assert (build.tool_output, build.source_path) == ("a\nb", "/t/k.cpp")


def test_a_build_error_shows_what_the_compiler_said() -> None:
    output = "\n".join(f"line {number}" for number in range(50))
    lines = str(BuildError("g++ failed", tool_output=output, source_path="/t/k.cpp")).splitlines()
    assert lines[:3] == ["error: g++ failed", "generated source: /t/k.cpp", "line 0"]
    assert lines[-1] == "... 10 more lines in tool_output"


def test_an_internal_error_says_that_it_is_ours() -> None:
    assert "a bug in fusec" in str(InternalError("lost a node"))


def test_did_you_mean() -> None:
    known = ["tanh", "tan", "sigmoid", "ReLU"]
    assert did_you_mean("tanhh", known) == "did you mean 'tanh'?"
    assert did_you_mean("SIGMOID", known) == "did you mean 'sigmoid'?"
    assert did_you_mean("relu", known) == "did you mean 'ReLU'?"
    assert did_you_mean("zzz", known) is None
    assert did_you_mean("tanh" * 100_000, known) is None
    assert did_you_mean("x", []) is None
