"""The parsing of arguments: formulas, files, inputs, choices, and the carets of what is wrong."""

import io
from pathlib import Path

import pytest
import torch

from fusec.cli import options
from fusec.cli.options import InputOption
from fusec.errors import DTypeError, FusecError, ParseError, ShapeError, UnknownNameError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x=8192x4096:bf16", InputOption("x", (8192, 4096), "bfloat16")),
        ("b=4096", InputOption("b", (4096,), "float32")),
        ("x=2x3x4x5:int64", InputOption("x", (2, 3, 4, 5), "int64")),
        ("x=0x7", InputOption("x", (0, 7), "float32")),
        ("s=", InputOption("s", (), "float32")),
        ("s=:f64", InputOption("s", (), "float64")),
        ("s=():bool", InputOption("s", (), "bool")),
        ("n=3:int", InputOption("n", (3,), "int32")),
        ("lambda=4:f8e4m3", InputOption("lambda", (4,), "float8_e4m3fn")),
        (
            "x=64x48:f32:transposed",
            InputOption("x", (64, 48), "float32", layout="transposed"),
        ),
        (
            "x=2x3x4x5:bf16:channels_last",
            InputOption("x", (2, 3, 4, 5), "bfloat16", layout="channels_last"),
        ),
        ("s=0.5", InputOption("s", (), number=0.5)),
        ("s=1e-5", InputOption("s", (), number=1e-5)),
        ("s=-2:number", InputOption("s", (), number=-2)),
        ("s=3:number", InputOption("s", (), number=3)),
        ("s=-inf", InputOption("s", (), number=float("-inf"))),
        ("s=true", InputOption("s", (), number=True)),
    ],
)
def test_an_input(text: str, expected: InputOption) -> None:
    parsed = options.parse_input(text)
    assert parsed == expected
    assert type(parsed.number) is type(expected.number)
    assert options.parse_input(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("x", ParseError, "-i:1:1: error: an input is written NAME=SHAPE[:DTYPE]"),
        ("2x=4", ParseError, "-i:1:1: error: an input is written NAME=SHAPE[:DTYPE]"),
        ("x=4x", ShapeError, "-i:1:5: error: a length is missing"),
        ("x=4x-1", ShapeError, "-i:1:5: error: '-1' is not a length"),
        ("x=8k", ShapeError, "-i:1:3: error: '8k' is not a length"),
        ("x=9999999999999999", ShapeError, "-i:1:3: error: '9999999999999999' is not a length"),
        ("x=4:f33", DTypeError, "-i:1:5: error: there is no type 'f33'"),
        ("x=4:", DTypeError, "-i:1:5: error: a type is missing"),
        ("x=4x4:f32:transpose", ShapeError, "-i:1:11: error: there is no layout 'transpose'"),
        (
            "x=4:f32:transposed",
            ShapeError,
            "-i:1:9: error: transposed needs 2 to 4 dimensions, the shape has 1",
        ),
        ("x=a:number", ParseError, "-i:1:3: error: 'a' is not a number"),
    ],
)
def test_a_wrong_input_is_marked(text: str, kind: type[FusecError], expected: str) -> None:
    with pytest.raises(kind) as caught:
        options.parse_input(text)
    assert str(caught.value).splitlines()[0] == expected


def test_a_misspelt_type_has_a_suggestion() -> None:
    with pytest.raises(DTypeError) as caught:
        options.parse_input("x=8192x4096:bf61")
    assert str(caught.value) == (
        "-i:1:13: error: there is no type 'bf61'\n"
        "1 | x=8192x4096:bf61\n"
        "  |             ^^^^\n"
        "hint: did you mean 'bf16'?"
    )


def test_an_input_is_given_once() -> None:
    with pytest.raises(ParseError, match="the input 'x' is given twice"):
        options.parse_inputs(["x=4", "x=5"])


def test_missing_inputs_are_like_the_first_tensor() -> None:
    given = options.parse_inputs(["a=0.5", "x=8x4:bf16"])
    a, x, y = options.complete(given, ("a", "x", "y"))
    assert a.number == 0.5
    assert (y.shape, y.dtype) == (x.shape, x.dtype)


def test_without_inputs_there_are_matrices() -> None:
    assert options.complete({}, ("x",)) == [InputOption("x", (4096, 4096), "float32")]
    assert options.complete({}, ("x",), 8) == [InputOption("x", (8, 8), "float32")]


def test_an_input_that_the_formula_lacks() -> None:
    with pytest.raises(UnknownNameError) as caught:
        options.complete(options.parse_inputs(["gama=4"]), ("x", "gamma"))
    assert "no input 'gama' (its inputs: x, gamma)" in str(caught.value)
    assert caught.value.diagnostic.hint == "did you mean 'gamma'?"


def test_values_have_the_types_asked_for() -> None:
    chosen = options.parse_inputs(["x=2x3:bf16", "s=0.5"]).values()
    x, s = options.example_values(list(chosen))
    assert isinstance(x, torch.Tensor)
    assert (tuple(x.shape), x.dtype, s) == ((2, 3), torch.bfloat16, 0.5)


def test_a_formula_is_text_a_file_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert options.read_formula("x + 1").text == "x + 1"
    path = tmp_path / "gelu.txt"
    path.write_text("gelu(x)")
    assert options.read_formula(str(path)) == options.Source("gelu(x)", str(path))
    monkeypatch.setattr("sys.stdin", io.StringIO("silu(x)"))
    assert options.read_formula("-") == options.Source("silu(x)", "<stdin>")
    path.write_bytes(b"\xef\xbb\xbfgelu(x)")  # as editors of Windows write it
    assert options.read_formula(str(path)).text == "gelu(x)"
    assert options.read_formula("x" * 100_000).text == "x" * 100_000
    assert options.read_formula("x\0").text == "x\0"


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"cannot read .*nothing\.fuse: no such file"):
        options.read_formula(str(tmp_path / "nothing.fuse"))
    path = tmp_path / "binary.fuse"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ParseError, match="is not UTF-8 text"):
        options.read_formula(str(path))


def test_choices() -> None:
    assert options.choose("cpp", options.BACKENDS, "--backend") == "cpp"
    with pytest.raises(UnknownNameError) as caught:
        options.choose("tritn", options.BACKENDS, "--backend")
    assert caught.value.diagnostic.hint == "did you mean 'triton'?"
