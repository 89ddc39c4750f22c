"""Order, dumps, debug output and hooks of the pass pipeline."""

from pathlib import Path

import pytest

from fusec import settings
from fusec.errors import InternalError
from fusec.ir.graph import Graph
from fusec.ir.text import parse_graph, print_graph
from fusec.passes.pipeline import PASSES, dump_directory, run
from fusec.passes.simplify import simplify

TEXT = """\
input x : f32[x.0]
%0 = input name='x', scalar=False, unsqueezed=0 : f32[x.0]
%1 = constant 1.0 : f32[]
%2 = mul %0, %1 : f32[x.0]
return y = %2
"""


def test_passes_run_and_are_observed() -> None:
    graph, seen = parse_graph(TEXT), []

    def observe(name: str, after: Graph, seconds: float) -> None:
        assert seconds >= 0
        seen.append((name, len(after.nodes())))

    result = run(graph, "torch", verify=True, observe=observe)
    assert result.outputs == simplify(graph).outputs
    assert seen == [("simplify", 1), ("idioms", 1)]
    assert [step.name for step in PASSES] == ["simplify", "idioms"]


def test_verify_refuses_an_illegal_graph() -> None:
    broken = parse_graph(TEXT.replace("%2 = mul %0, %1 : f32", "%2 = mul %0, %1 : i32"))
    with pytest.raises(InternalError):
        run(broken, verify=True)


def test_debug_prints_what_changed(capsys: pytest.CaptureFixture[str]) -> None:
    graph = parse_graph(TEXT)
    with settings.override(debug=2):
        run(graph)
    assert capsys.readouterr().err == ""
    with settings.override(debug=3):
        result = run(graph)
    printed = capsys.readouterr().err
    assert printed.startswith("after simplify (")
    assert print_graph(result) in printed
    with settings.override(debug=3):
        run(result)
    assert capsys.readouterr().err == ""


def test_stages_are_dumped(tmp_path: Path) -> None:
    graph = parse_graph(TEXT)
    assert dump_directory(graph) is None
    with settings.override(dump=tmp_path):
        result = run(graph)
        directory = dump_directory(graph)
    assert directory is not None
    assert sorted(p.name for p in directory.iterdir()) == [
        "00-resolved.ir",
        "01-simplify.ir",
        "02-idioms.ir",
    ]
    assert (directory / "00-resolved.ir").read_text() == TEXT
    assert (directory / "01-simplify.ir").read_text() == print_graph(result)
