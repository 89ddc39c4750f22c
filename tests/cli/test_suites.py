"""`fusec bench --suite`: the filters, the result file and what may be added to it, refusals."""

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fusec.cli import main
from fusec.cli.suites import command, results, share
from fusec.cli.suites.case import Plan, SuiteCase
from fusec.cli.suites.declared import SUITES
from fusec.cli.suites.selection import Selection, lengths
from fusec.errors import FusecError

SMALL = ("--device", "cpu", "--seconds", "0", "--contenders", "fusec,copy")
TINY = ("bench", "--suite", "rows", "--only", "^softmax/bf16/[18]x64$", *SMALL)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the cases that are measured, none of which is run."""
    names: list[str] = []

    def pretend(case: SuiteCase, plan: Plan) -> dict[str, Any]:
        names.append(case.name)
        return {"name": case.name, "suite": case.suite, "rows": [], "problem": "not run"}

    monkeypatch.setattr(command, "measure", pretend)
    return names


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def names_in(path: Path) -> list[str]:
    return [case["name"] for case in read(path)["cases"]]


def test_the_list_names_every_suite_and_its_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == list(SUITES)
    # Also of a device that is not here.
    assert main(["bench", "--list", "--suite", "rows", "--dtype", "bf16", "--device", "cuda"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 11 * 12 * 4
    assert printed[0].split() == ["rows", "softmax/bf16/32768x4096", "softmax(x)"]


def test_a_run_writes_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "rows.json"
    assert main([*TINY, "--json", str(path), "--commit", "abc"]) == 0
    printed = capsys.readouterr().out
    assert "[2/2] softmax/bf16/1x64" in printed
    assert f"2 cases in {path}" in printed
    content = read(path)
    assert (content["suite"], content["commit"]) == ("rows", "abc")
    assert {"machine", "versions", "date", "command", "device_name"} <= set(content)
    first, second = content["cases"]
    assert (first["name"], second["name"]) == ("softmax/bf16/8x64", "softmax/bf16/1x64")
    assert first["bytes"] == 2 * 8 * 64 * 2
    assert (first["checked"], first["shape"]) == ("all", [8, 64])
    (row,) = first["rows"]
    assert row["system"] == "fusec"
    assert row["timing"]["samples"] >= 15
    assert row["largest_error"] <= 2**-9
    assert [path.name for path in path.parent.iterdir()] == ["rows.json"]


def test_every_filter_must_pass() -> None:
    cases = SUITES["rows"].cases("cuda")
    chosen = Selection("norm", ("f32",), columns=(range(4096, 4097),), rows=(range(9),))
    names = {case.name for case in chosen.choose(cases)}
    assert names == {
        f"{op}/f32/{rows}x4096"
        for op in ("rms_norm", "layer_norm", "add_rms_norm")
        for rows in (1, 8)
    }
    large = Selection(elements=lengths("2^28", "--elements"))
    assert len(large.choose(SUITES["pointwise"].cases("cuda"))) == 14 * 2


def test_lengths_as_they_are_typed() -> None:
    assert lengths("64,1K-4K, 2^27", "--columns") == (
        range(64, 65),
        range(1024, 4097),
        range(1 << 27, (1 << 27) + 1),
    )
    assert 1 << 30 in lengths("1M-", "--rows")[0]
    assert 0 in lengths("-8", "--rows")[0]


def test_resume_measures_what_is_missing(
    tmp_path: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.json"
    run = ("bench", "--suite", "rows", *SMALL, "--json", str(path), "--only")
    assert main([*run, "^softmax/bf16/8x64$"]) == 0
    monkeypatch.setattr(sys, "argv", ["fusec", "bench", "--resume"])
    assert main([*run, "^softmax/bf16/[18]x64$", "--resume"]) == 0
    assert measured == ["softmax/bf16/8x64", "softmax/bf16/1x64"]
    assert names_in(path) == measured
    assert "--resume" not in read(path)["command"]
    assert read(path)["more_commands"] == ["fusec bench --resume"]


def test_merge_measures_again_and_keeps_the_rest(tmp_path: Path, measured: list[str]) -> None:
    path = tmp_path / "rows.json"
    run = ("bench", "--suite", "rows", *SMALL, "--json", str(path), "--only")
    assert main([*run, "^softmax/bf16/[18]x64$"]) == 0
    assert main([*run, "^softmax/bf16/8x64$", "--merge"]) == 0
    assert measured == ["softmax/bf16/8x64", "softmax/bf16/1x64", "softmax/bf16/8x64"]
    assert names_in(path) == ["softmax/bf16/8x64", "softmax/bf16/1x64"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("device_name", "Another CPU", "was measured with another machine: Another CPU there"),
        ("versions", {"fusec": "0.0.1"}, "another versions: fusec 0.0.1 there"),
        ("commit", "0123", "another commit: 0123 there, abc here"),
    ],
)
def test_numbers_that_do_not_compare_are_not_mixed(
    key: str,
    value: object,
    message: str,
    tmp_path: Path,
    measured: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "rows.json"
    run = [*TINY, "--json", str(path), "--commit", "abc"]
    assert main(run) == 0
    changed = {**read(path), key: value}
    path.write_text(json.dumps(changed))
    assert main([*run, "--resume"]) == 2
    assert message in capsys.readouterr().err
    assert read(path) == changed
    assert len(measured) == 2


def test_the_usual_file_is_not_lost_by_accident(
    tmp_path: Path,
    measured: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(results, "_CHECKOUT", tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)
    assert main([*TINY]) == 0
    (path,) = tmp_path.glob("*-rows.json")
    assert main([*TINY]) == 2
    assert "--resume adds the cases it lacks" in capsys.readouterr().err
    assert main([*TINY, "--overwrite"]) == 0
    assert len(names_in(path)) == 2


def test_a_budget_leaves_the_rest_out(
    tmp_path: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    assert main([*TINY, "--json", str(path), "--budget", "1e-9"]) == 0
    text = capsys.readouterr().err
    assert f"the budget of 1e-09 s is spent: 0 of 2 cases are in {path}" in text
    assert "the rest, from softmax/bf16/8x64 on, is left out; --resume goes on" in text
    assert measured == []


def test_an_interrupted_run_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def second_is_too_much(case: SuiteCase, plan: Plan) -> dict[str, Any]:
        if case.rows == 1:
            raise KeyboardInterrupt
        return {"name": case.name, "suite": case.suite, "rows": [], "problem": "not run"}

    monkeypatch.setattr(command, "measure", second_is_too_much)
    path = tmp_path / "rows.json"
    assert main([*TINY, "--json", str(path)]) == 130
    assert f"stopped: 1 of 2 cases are in {path}, the rest" in capsys.readouterr().err
    assert names_in(path) == ["softmax/bf16/8x64"]


def test_a_lost_gpu_ends_the_run_and_keeps_the_case(
    tmp_path: Path,
    measured: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(share, "lost_device", lambda device: "illegal memory access")
    path = tmp_path / "rows.json"
    assert main([*TINY, "--json", str(path)]) == 2
    text = capsys.readouterr().err
    assert "lost to this process after softmax/bf16/8x64: illegal memory access" in text
    assert names_in(path) == ["softmax/bf16/8x64"]


def which_gpu(case: SuiteCase, plan: Plan) -> dict[str, Any]:
    """What a process says of itself instead of measuring; it ends at a case of one row."""
    if case.rows == 1:
        os._exit(3)
    if case.rows == 8:
        raise FusecError("the GPU has melted", hint="cool it")
    return {"name": case.name, "gpu": os.environ["CUDA_VISIBLE_DEVICES"], "process": os.getpid()}


def shared(rows: str, deadline: float = math.inf) -> list[dict[str, Any]]:
    """What two processes make of the cases of softmax with so many rows."""
    chosen = Selection(only="^softmax/bf16", rows=lengths(rows, "--rows"))
    work = [(case, Plan("cpu", (), 0.0)) for case in chosen.choose(SUITES["rows"].cases("cuda"))]
    return list(share.measure_all(which_gpu, work, 2, deadline))


def test_processes_share_the_cases_out_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    results = shared("132")
    assert [result["name"] for result in results][:2] == [
        "softmax/bf16/132x4096", "softmax/bf16/132x1024",
    ]  # fmt: skip
    assert len(results) == 12
    gpus = {result["process"]: result["gpu"] for result in results}
    assert os.getpid() not in gpus
    assert set(gpus.values()) <= {"5", "7"}
    assert len(set(gpus.values())) == len(gpus)
    assert not shared("132", time.monotonic())


def test_a_process_that_fails_or_ends_is_said() -> None:
    with pytest.raises(FusecError, match="has melted\nhint: cool it"):
        shared("8")
    with pytest.raises(
        FusecError, match="a process that measured has ended, at softmax/bf16/1x4096"
    ):
        shared("1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--suite", "row"), "there is no suite 'row'"),
        (("--suite", "rows", "--contenders", "fusek"), "--contenders has no 'fusek'"),
        (("--suite", "rows", "--columns", "1k-x"), "--columns cannot be 'x'"),
        (("--suite", "rows", "--only", "("), "--only '(' is not a regular expression"),
        (("--suite", "rows", "--dtype", "f8"), "--dtype cannot be 'f8'"),
        (("--suite", "rows", "--only", "nothing"), "no case of 'rows' passes the filters"),
        (("--suite", "cpu", "--device", "cuda"), "the suite 'cpu' is for --device cpu"),
        (("x+1", "--suite", "rows"), "a formula and a suite exclude each other"),
        (
            ("--suite", "rows", "--device", "cpu", "--gpus", "2"),
            "--gpus shares cases out over GPUs",
        ),
        ((), "a formula is missing"),
        (("--suite", "rows", "--suite", "host", "--json", "a.json"), "2 suites cannot share"),
    ],
)
def test_refusals(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    streams = capsys.readouterr()
    assert f"error: {message}" in streams.err
    assert streams.out == ""


def test_a_file_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    path.write_text("[]")
    assert main([*TINY, "--json", str(path), "--resume"]) == 2
    assert "is not a result file" in capsys.readouterr().err
    assert path.read_text() == "[]"


@pytest.mark.parametrize("option", [("--contenders", "zzz"), ("--rows", "8"), ("--resume",)])
def test_options_of_suites_without_one(
    option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "x * 2", *option]) == 2
    assert f"error: {option[0]} without a suite" in capsys.readouterr().err
