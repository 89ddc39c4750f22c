"""The commands from end to end, with the real compiler, on small inputs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fusec
from fusec.cli import main

ROOT = Path(__file__).parents[2]
SMALL = ("--no-compile", "--no-first-call", "--seconds", "0", "--device", "cpu")


@pytest.mark.parametrize("stage", ["formula", "graph", "plan", "kernel", "triton", "cpp"])
def test_show_is_what_the_function_shows(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "softmax(x)", "--stage", stage]) == 0
    expected = fusec.compile("softmax(x)").show(stage)
    assert capsys.readouterr().out == expected + ("" if expected.endswith("\n") else "\n")


def test_show_for_a_target_and_types(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-s", "ptx", "-i", "x=8192x4096:bf16", "--target", "sm_90"]
    assert main(["show", "softmax(x)", *arguments]) == 0
    text = capsys.readouterr().out
    assert ".target sm_90" in text
    assert "softmax_kernel" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "softmx(x)"), "<formula>:1:1: error: unknown function 'softmx'"),
        (("show", ""), "<formula>:1:1: error:"),
        (("show", "x + y", "-i", "x=4x5", "-i", "y=4x6"), "<formula>:1:"),
        (("show", "x", "-s", "ptx", "--target", "sm_9"), "error: unknown target 'sm_9'"),
        (("show", "x", "-s", "graph", "--target", "sm_9"), "error: unknown target 'sm_9'"),
        (("bench", "x + y", "-i", "x=4x5", "-i", "y=4x6", *SMALL), "<formula>:1:"),
        (("bench", "softmax(x", *SMALL), "<formula>:1:"),
    ],
)
def test_mistakes_exit_with_2(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    streams = capsys.readouterr()
    assert streams.err.startswith(message)
    assert "Traceback" not in streams.err
    assert streams.out == ""


def test_bench_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results" / "gelu.json"
    code = main(["bench", "gelu(x)", "-i", "x=64x96", *SMALL, "--json", str(path)])
    text = capsys.readouterr().out
    assert code == 0
    assert max(map(len, text.splitlines())) <= 80
    assert all(name in text for name in ("eager", "torch gelu", "fusec", "% copy", "host µs"))
    content = json.loads(path.read_text())
    assert set(content) == {"machine", "versions", "date", "command", "commit", "cases"}
    (case,) = content["cases"]
    assert case["bytes"] == 2 * 64 * 96 * 4
    assert (case["formula"], case["native"], case["device"]) == ("gelu(x)", "gelu", "cpu")
    rows = {row["name"]: row for row in case["rows"]}
    assert set(rows) == {"eager", "torch gelu", "fusec", "fusec out="}
    assert all(row["problem"] is None for row in rows.values())
    assert all(row["largest_error"] < 2e-6 for row in rows.values())


def test_bench_says_where_it_cannot_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "x+1", "-i", "x=8", *SMALL, "--json", str(tmp_path)]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""  # nothing is measured for a file that cannot be written
    assert "cannot write" in streams.err


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    installed = {check["name"]: check for check in content["installed"]}
    backends = {check["name"]: check for check in content["backends"]}
    assert installed["fusec"]["found"] == fusec.__version__
    assert {"python", "torch", "triton", "C++ compiler", "nvcc", "CPU", "cache"} <= set(installed)
    assert "CUDA C++" in installed
    emulated = {"triton (interpreter)", "cuda (emulated)"}
    assert {"cpp", "triton", "cuda", "torch"} | emulated == set(backends)
    assert backends["torch"]["ok"] is True
    assert main(["doctor"]) == 0
    assert "works" in capsys.readouterr().out


def test_doctor_without_a_compiler_says_so(tmp_path: Path) -> None:
    script = "import sys; from fusec.cli import main; sys.exit(main(['doctor', '--json']))"
    environment = {"FUSEC_CXX": "/nonexistent/c++", "FUSEC_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    content = json.loads(done.stdout)
    (compiler,) = [c for c in content["installed"] if c["name"] == "C++ compiler"]
    (cpp,) = [c for c in content["backends"] if c["name"] == "cpp"]
    assert (compiler["ok"], cpp["ok"]) == (False, False)
    assert "no C++ compiler" in cpp["found"]
    assert done.returncode == 0  # generated Triton still runs, interpreted
