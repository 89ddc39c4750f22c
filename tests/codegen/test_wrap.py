"""Generated Triton is laid out as `ruff format` lays it out, long names and long lines included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fusec
from fusec.codegen.wrap import WIDTH, wrap

ROOT = Path(__file__).parents[2]
LONG, OTHER = "a_rather_long_name_for_an_input", "another_long_name_for_an_input"


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


PROGRAMS = [
    ("softmax(x)", [empty(8, 131072, dtype=torch.bfloat16)]),
    ("sum(x, axis=0), max(x, axis=0)", [empty(64, 4096)]),
    ("layer_norm(x, w, b)", [empty(8, 300_000), empty(300_000), empty(300_000)]),
    (
        f"{LONG} * {OTHER} + sin({LONG}) * cos({OTHER}) - tanh({LONG} * {OTHER})",
        [empty(64, 64), empty(64, 1)],
    ),
    (f"where({LONG} > {OTHER} and {LONG} < 1, {LONG}, {OTHER})", [empty(64), empty(64)]),
    ("x + y", [empty(64, 128), empty(128, 64).t()]),
    ("std(x), norm(x, p=inf), any(x > 0), logsumexp(x), argmax(x)", [empty(64, 1000)]),
    ("i // j + i % j, i & j", [empty(64, dtype=torch.int64)] * 2),
    ("cross_entropy(x, t)", [empty(64, 50257), empty(64, dtype=torch.int64)]),
    ("x * size(-1) + size(-2) / size(-1)", [empty(2, 3, 4)]),
    ("normalize(x) + softplus(x) + f8e4m3(x)", [empty(3, 64, 64)]),
    ("all(u8(fmod(x, x) < maximum(x, y)))", [empty(64)] * 2),
]


def test_formatting_changes_nothing(tmp_path: Path) -> None:
    for serial, (formula, inputs) in enumerate(PROGRAMS):
        text = fusec.compile(formula).show("triton", *inputs)
        (tmp_path / f"kernel_{serial}.py").write_text(text, encoding="utf-8")
    configuration = str(ROOT / "pyproject.toml")
    command = [sys.executable, "-m", "ruff", "format", "--config", configuration, "--diff"]
    ran = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (ran.returncode, ran.stdout) == (0, "")


@pytest.mark.parametrize(
    ("statement", "lines"),
    [
        ("x = y", ["x = y"]),
        (f"x = {'a' * 60} + {'b' * 60}", ["x = (", f"    {'a' * 60}", f"    + {'b' * 60}", ")"]),
        (f"long({'a' * 95})", ["long(", f"    {'a' * 95}", ")"]),
        (
            f"f({'a' * 60}, key={'b' * 60})",
            ["f(", f"    {'a' * 60},", f"    key={'b' * 60},", ")"],
        ),
        ("x" * (WIDTH + 1), ["x" * (WIDTH + 1)]),
    ],
)
def test_wrap(statement: str, lines: list[str]) -> None:
    assert wrap(statement, 0) == lines


def test_a_broken_group_is_no_tuple() -> None:
    long = f"{'a' * 40} < {'b' * 70}"
    lines = wrap(f"x = ({long} != 0).to(tl.uint8)", 0)
    assert lines == ["x = (", f"    {'a' * 40}", f"    < {'b' * 70}", "    != 0", ").to(tl.uint8)"]
    assert wrap(f"x = (f({'a' * 90})).to(tl.uint8)", 0)[-1] == ").to(tl.uint8)"
