"""Colours on a terminal, bytes in a pipe, and tables that fit 80 columns."""

import contextlib
import io

import pytest

from fusec.cli import bench, output
from fusec.runtime.bench import Measurement
from fusec.runtime.timing import Timing

CODE = "@triton.jit\ndef kernel(x_ptr, n):\n    " + "a" * 200 + "\n"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return stream


def shown(terminal: Terminal, stage: str = "triton") -> str:
    with contextlib.redirect_stdout(terminal):
        output.write_code(CODE, stage)
    return terminal.getvalue()


def without_colours(text: str) -> str:
    from rich.text import Text

    return Text.from_ansi(text).plain


@pytest.mark.parametrize("stage", ["triton", "cpp", "ttir", "ptx", "sass", "graph", "amdgcn"])
def test_a_terminal_gets_colours_and_every_character(terminal: Terminal, stage: str) -> None:
    text = shown(terminal, stage)
    assert without_colours(text).rstrip("\n") == CODE.rstrip("\n")
    if stage == "triton":
        assert "\x1b[" in text


def test_no_color_gets_bytes(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(terminal) == CODE


def test_a_dumb_terminal_gets_bytes(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert shown(terminal) == CODE


def test_a_pipe_gets_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    output.write_code(CODE, "triton")
    output.write_code("no newline", "triton")
    assert capsys.readouterr().out == CODE + "no newline\n"


def test_the_table_fits_80_columns(terminal: Terminal) -> None:
    rows = [
        Measurement(
            "eager", Timing(1234.6, 1.0, 2.0, 5), 4321.0, 100.0, 12345.6, 123, 0.5, 0.1, 1e-7
        ),
        Measurement("torch cross_entropy", Timing(12.345, 1.0, 2.0, 5), 12.0, 4.0, 7.4, 1, 12.3),
        Measurement("torch.compile", problem="no compiler"),
        Measurement("fusec", Timing(0.0123, 1.0, 2.0, 5), 4000.0, 98.5, 4.2, 1, 0.432, 0.1, 0.0),
    ]
    with contextlib.redirect_stdout(terminal):
        output.console().print(bench.table(rows))
    lines = without_colours(terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "…" not in text
    assert all(part in text for part in ("1235", "12345.6", "cross_entropy", "0.0123", "1.0e-07"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (1234.56, "1235"),
        (12.345, "12.3"),
        (1.234, "1.23"),
        (0.123, "0.123"),
        (0.01234, "0.0123"),
    ],
)
def test_three_digits(value: float | None, expected: str) -> None:
    assert bench.significant(value) == expected
