"""Generated source reads as if a person had written it, and names or comments cannot break it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fusec
from fusec.runtime.build_cpp import find_compiler
from fusec.runtime.specialize import INCLUDE
from tests.formulas import same_bits

FORMULAS = (
    "0.5*x*(1+tanh(0.79788456*(x+0.044715*x^3)))",
    "softmax(x)",
    "softmax(where(index(-1) <= index(-2), x, -inf))",
    "layer_norm(x, w, b)",
    "rms_norm(x + r, w), x + r",
    "logsumexp(x) - x[t]",
    "sum(x, axis=-2)",
    "mean(x), var(x)",
    "argmax(x), argmin(x), prod(x)",
    "any(x > 0), all(x > 0), not (x > 0)",
    "x // y, x % y, fmod(x, y), x^y",
    "u8(x), bf16(x*y), i32(x) // i32(y)",
    "-(x + y) - (x - (y - x))",
    "where(x > 0 and y > 0 or x < y, x, y)",
    "entropy(x), log_softmax(x)",
    "gelu(x)*w + b, silu(x)",
    "round(x), floor(x), ceil(x), trunc(x)",
    "hypot(x, y), lerp(x, y, w), erf(x)*lgamma(y)",
    "x + inf, x * nan",
    '# a note: \\ */ // "quoted" λ\nx + 1',
)
NAMES = [
    "lambda",
    "class",
    "int",
    "tl",
    "BLOCK",
    "row",
    "mask",
    "float",
    "n",
    "cols",
    "x_ptr",
    "fusec",
    "λ",
    "row_max",
    "t0",
    "col",
    "lane",
    "threads",
    "double",
    "out",
    "True_",
    "std",
    "libdevice",
    "BLOCK_ROWS",
    "row_mask",
    "start",
    "cpp",
    "__init__",
    "auto",
    "self",
]
FLAGS = (
    "-fopenmp",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-std=c++17",
    "-fsyntax-only",
)
BREAKOUTS = (
    '# """\nx + 1',
    "# '''\nx + 1",
    "# */ int main() { return 1; }\nx + 1",
    "# ends in a backslash \\\nx + 1",
    "# ??/\nx + 1",
    '# \\"""\nx + 1',
    "# \\N{BULLET} \\x \\u12\nx + 1  # λ 名 end\n",
)


def _ruff(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ruff", *arguments, "--isolated", "--no-cache"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_formatter_and_a_linter_leave_triton_alone(tmp_path: Path) -> None:
    for number, formula in enumerate(FORMULAS):
        compiled = fusec.compile(formula)
        kernels = compiled.show("triton").rstrip("\n").split('\n\n"""')
        for part, kernel in enumerate(kernels):
            text = kernel if part == 0 else f'"""{kernel}'
            path = tmp_path / f"kernel_{number}_{part}.py"
            path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    formatted = _ruff("format", "--diff", "--line-length", "100", str(tmp_path))
    assert formatted.returncode == 0, formatted.stdout
    checked = _ruff("check", "--select", "F", str(tmp_path))
    assert checked.returncode == 0, checked.stdout


def test_a_compiler_has_nothing_to_say_about_cpp(tmp_path: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    for number, formula in enumerate(FORMULAS):
        path = tmp_path / f"kernel_{number}.cpp"
        path.write_text(fusec.compile(formula).show("cpp"), encoding="utf-8")
    command = [*compiler.command, *FLAGS, f"-I{INCLUDE}"]
    done = subprocess.run(
        [*command, *map(str, sorted(tmp_path.glob("*.cpp")))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:4000]


@pytest.mark.parametrize("backend", ["cpp", "triton", "torch"])
def test_any_name_is_a_name(backend: str) -> None:
    x = torch.tensor([[1.5, -2.0, 3.0]])
    for name in NAMES:
        compiled = fusec.compile(f"softmax({name}) * 2 + max({name})", backend=backend)
        assert compiled.inputs == (name,)
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1) * 2 + 3.0)
    together = fusec.compile(" + ".join(NAMES), backend=backend)
    # By position: in a call, `out=` says where the result goes.
    values = [torch.full((3,), float(k)) for k in range(len(NAMES))]
    assert together(*values).tolist() == [float(sum(range(len(NAMES))))] * 3


@pytest.mark.parametrize("backend", ["cpp", "triton"])
@pytest.mark.parametrize("formula", BREAKOUTS)
def test_a_comment_stays_a_comment(backend: str, formula: str) -> None:
    x = torch.arange(3.0)
    assert same_bits(fusec.compile(formula, backend=backend)(x), x + 1)


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x00"])
def test_other_ends_of_a_line_are_refused_or_harmless(end: str) -> None:
    x = torch.arange(3.0)
    for backend in ("cpp", "triton"):
        try:
            compiled = fusec.compile(f"x + 1  # note{end}import os", backend=backend)
        except fusec.ParseError:
            continue
        assert same_bits(compiled(x), x + 1)


def test_the_source_holds_the_formula() -> None:
    compiled = fusec.compile("# half of it\ny = x * 0.5\ny + 1")
    for stage, sign in (("triton", ""), ("cpp", "// ")):
        text = compiled.show(stage)
        for line in ("# half of it", "y = x * 0.5", "y + 1"):
            assert f"{sign}{line}" in text


_SHOW = """
import fusec, sys
for formula in sys.argv[1:]:
    for stage in ("graph", "kernel", "triton", "cpp"):
        print(fusec.compile(formula).show(stage))
"""


def test_another_process_prints_the_same_bytes() -> None:
    texts = [
        subprocess.run(
            [sys.executable, "-c", _SHOW, *FORMULAS],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "77")
    ]
    assert texts[0] == texts[1]
    assert len(texts[0]) > 10_000


@pytest.mark.parametrize("stage", ["triton", "cpp"])
def test_a_value_is_loaded_and_stored_once(stage: str) -> None:
    """Elementwise, whatever the formula does with an input."""
    text = fusec.compile("t = x*y; t + x/y, t - x").show(stage)
    loads = [line for line in text.splitlines() if "x_ptr" in line and "=" in line]
    loads = [line for line in loads if "def " not in line and "extern" not in line]
    assert len(loads) == 1, text
    stores = "tl.store(" if stage == "triton" else "] = "
    assert text.count(stores) == 2, text


@pytest.mark.parametrize("formula", ["softmax(x)", "layer_norm(x, w, b)", "logsumexp(x), mean(x)"])
def test_a_resident_row_is_read_once(formula: str) -> None:
    compiled = fusec.compile(formula)
    examples = [torch.empty(64, 1024)] + [torch.empty(1024) for _ in compiled.inputs[1:]]
    text = compiled.show("triton", *examples)
    assert text.count("tl.load(") == len(compiled.inputs), text
    assert "for " not in text.partition("@triton.jit\ndef")[2].split('"""')[0], text
    assert text.count("tl.store(") == len(compiled.outputs), text
