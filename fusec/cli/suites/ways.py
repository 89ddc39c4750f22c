"""The ways to write one formula, side by side: their sources, the bytes they move, their table.

Bytes are those of the operands of every kernel, each once for a kernel: an op of PyTorch is one.
May import everything below cli, and cli; torch inside functions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from fusec.cli.bench import significant
from fusec.cli.contenders import native_function
from fusec.cli.suites.declared import LECTURE, LECTURE_CASE
from fusec.cli.suites.systems import PRINTED, Setting
from fusec.runtime.bench import fewest_bytes, operand_bytes

# The systems of the suite in the order of a table, as a reader calls them.
TITLES = {
    "eager": "PyTorch, op by op",
    "torch": "PyTorch's own",
    "fusec-cuda": "fusec, CUDA C++",
    "fusec-triton": "fusec, Triton",
    "fusec-cpp": "fusec, C++",
    "compile": "torch.compile",
}
HEAD = ("", "ms", "times own", "% of copy", "kernels", "MB", "lines", "lecture, ms")
_WIDTHS = (18, 7, 9, 9, 7, 7, 5, 11)
NOTE = (
    "Times own: over PyTorch's own function. MB: operands of all kernels, each counted once for a"
    " kernel. Lines: of the source without blank lines and comments, with the host function in CUDA"
    " C++, and the kernels alone of torch.compile. Lecture: in float32 on an A100 or H100."
)


@dataclass(frozen=True)
class Way:
    """The source of a way, and the bytes that its kernels move where that can be told."""

    source: str
    operand_bytes: int | None

    def facts(self) -> dict[str, int]:
        """What a result file holds of it."""
        lines = {"source_lines": count_lines(self.source)}
        return lines if self.operand_bytes is None else {**lines, "bytes": self.operand_bytes}


def look(setting: Setting, system: str) -> Way:
    """What a person writes for a way, or what a compiler writes for them."""
    inputs = setting.inputs
    if system in PRINTED:
        printed = setting.printed(PRINTED[system])
        plan = printed.bind(*inputs).plan
        moved = None if plan is None else operand_bytes(plan, inputs)
        return Way(printed.show(PRINTED[system], *inputs), moved)
    if system == "compile":
        kernels, moved = _inductor(setting)
        return Way("\n".join(kernels), moved)
    if system == "eager":
        return Way(setting.eager.text, _operator_bytes(setting.eager.function, inputs))
    assert setting.native is not None, "PyTorch has a function for the formulas of this suite"
    text = setting.native[1]
    return Way(text, _operator_bytes(native_function(text), inputs))


def _operator_bytes(function: Callable[..., object], inputs: Sequence[object]) -> int:
    """Bytes that the ops of a PyTorch function read and write, told without memory."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    total = 0

    # torch gives the base no types.
    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Adds up the operands of every op that does not only make a view."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> object:
            nonlocal total
            results = func(*args, **(kwargs or {}))
            if not func.is_view:
                total += fewest_bytes(tree_leaves((args, results)))
            return results

    given = [v.to("meta") if isinstance(v, torch.Tensor) else v for v in inputs]
    mode: Any = Counting
    with mode():
        function(*given)
    return total


def _inductor(setting: Setting) -> tuple[list[str], int]:
    """The kernels that torch.compile writes, and the bytes that it counts for them."""
    import torch
    from torch._inductor import config, utils
    from torch._inductor.graph import GraphLowering

    moved = []
    generate = GraphLowering.codegen

    def counted(graph: Any) -> object:
        made = generate(graph)
        moved.append(int(graph.count_bytes()[0]))
        return made

    compiled = torch.compile(setting.eager.function, fullgraph=True, dynamic=False)
    # What it finds in its cache is not generated again.
    with config.patch(fx_graph_cache=False), patch.object(GraphLowering, "codegen", counted):
        _, kernels = utils.run_and_get_kernels(compiled, *setting.inputs)
    return [kernel.strip("'") for kernel in kernels], sum(moved)


def count_lines(text: str) -> int:
    """Lines of Python or C++ that are neither blank nor a comment, nor a module's docstring."""
    lines = [line.strip() for line in text.splitlines()]
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return sum(bool(line) and not line.startswith("//") for line in lines)
    if ast.get_docstring(tree, clean=False) is not None:
        end = tree.body[0].end_lineno
        assert end is not None
        lines = lines[end:]
    return sum(bool(line) and not line.startswith("#") for line in lines)


# -- the table ------------------------------------------------------------------------------------


def table_rows(case: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The ways of a case of a result file, as the cells of a table under ``HEAD``."""
    rows = {row["system"]: row for row in case["rows"]}
    own = _milliseconds(rows.get("torch"))
    measured = (case["dtype"], tuple(case["shape"])) == LECTURE_CASE
    lecture = LECTURE.get(case["op"], {}) if measured else {}
    return [
        (TITLES[system], *_cells(rows[system], own), significant(lecture.get(system)))
        for system in TITLES
        if system in rows
    ]


def table_text(case: Mapping[str, Any]) -> str:
    """The same for a terminal, at most 80 columns wide."""
    lines = [f"{case['name']}: a copy reaches {case['copy_gigabytes_per_second']:.0f} GB/s"]
    for cells in (HEAD, *table_rows(case)):
        first, *others = cells
        widths = _WIDTHS[1:]
        padded = [cell.rjust(width) for cell, width in zip(others, widths, strict=True)]
        lines.append(" ".join((first.ljust(_WIDTHS[0]), *padded)).rstrip())
    lines += [
        f"{TITLES[row['system']]}: {row['problem']}" for row in case["rows"] if "problem" in row
    ]
    return "\n".join(lines)


def _milliseconds(row: Mapping[str, Any] | None) -> float | None:
    if row is None or row.get("problem") or not row.get("timing"):
        return None
    milliseconds: float = row["timing"]["milliseconds"]
    return milliseconds


def _cells(row: Mapping[str, Any], own: float | None) -> tuple[str, ...]:
    milliseconds = _milliseconds(row)
    if milliseconds is None:
        failed = "wrong" if row.get("timing") else "fails"
        return (failed, "-", "-", *_counts(row))
    times = "-" if own is None else f"{milliseconds / own:.2f}"
    return (significant(milliseconds), times, f"{row['percent_of_copy']:.0f}", *_counts(row))


def _counts(row: Mapping[str, Any]) -> tuple[str, ...]:
    moved = row.get("bytes")
    return (
        str(row.get("kernels", "-")),
        "-" if moved is None else f"{moved / 1e6:.0f}",
        str(row.get("source_lines", "-")),
    )
