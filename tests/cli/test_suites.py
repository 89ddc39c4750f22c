"""`fusec bench --suite`: the declared cases, the filters, the result file, refusals."""

import json
from pathlib import Path

import pytest

from fusec.cli import main
from fusec.cli.suites.declared import SUITES
from fusec.cli.suites.selection import Selection, lengths

SMALL = ("--device", "cpu", "--seconds", "0", "--contenders", "fusec,copy")
TINY = ("bench", "--suite", "rows", "--only", "^softmax/bf16/[18]x64$", *SMALL)


def test_the_list_names_every_suite_and_its_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == list(SUITES)
    assert main(["bench", "--list", "--suite", "rows", "--dtype", "bf16", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 11 * 12 * 4
    assert printed[0].split() == ["rows", "softmax/bf16/32768x4096", "softmax(x)"]


def test_a_run_writes_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    assert main([*TINY, "--json", str(path)]) == 0
    assert "[2/2] softmax/bf16/1x64" in capsys.readouterr().out
    content = json.loads(path.read_text())
    assert content["suite"] == "rows"
    assert {"machine", "versions", "date", "command", "commit", "device_name"} <= set(content)
    first, second = content["cases"]
    assert (first["name"], second["name"]) == ("softmax/bf16/8x64", "softmax/bf16/1x64")
    assert first["bytes"] == 2 * 8 * 64 * 2
    assert (first["checked"], first["shape"]) == ("all", [8, 64])
    (row,) = first["rows"]
    assert row["system"] == "fusec"
    assert row["timing"]["samples"] >= 15
    assert row["largest_error"] <= 2**-9


def test_lengths_as_they_are_typed() -> None:
    assert lengths("64,1K-4K,2^27", "--columns") == (
        range(64, 65),
        range(1024, 4097),
        range(1 << 27, (1 << 27) + 1),
    )
    assert lengths("1M-", "--rows")[0].start == 1 << 20


def test_every_filter_must_pass() -> None:
    cases = SUITES["rows"].cases("cuda")
    chosen = Selection("norm", ("f32",), columns=(range(4096, 4097),), rows=(range(9),))
    names = {case.name for case in chosen.choose(cases)}
    assert names == {
        f"{op}/f32/{rows}x4096"
        for op in ("rms_norm", "layer_norm", "add_rms_norm")
        for rows in (1, 8)
    }
