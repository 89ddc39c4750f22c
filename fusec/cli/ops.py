"""``fusec ops``: every operator and function, as the tables have them."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from fusec.frontend.resolve_functions import Cast, Composite, Special, builtins, describe
from fusec.ir.ops import OPS, Kind, Op

_INTRODUCTION = """\
# Operators

Written by `make docs` from the op table in `fusec/ir/ops.py` and the functions that are written in
the language itself, `fusec/ir/derived.py`. The result type is `promote` (the operands' common
type), `float` (that, and float32 for integers), `bool`, `accumulate` (int64 for integers), `same`,
`bitwise` (integers and bools) or `select`; that of a function follows from its body. A `-` stands
where PyTorch has no one function that agrees.
"""

_WIDTH = 80  # columns of a terminal
_INDENT = 23


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ops")(ops)


def ops(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print what docs/ops.md holds.")
    ] = False,
) -> None:
    """List every operator and function of the language."""
    if markdown:
        typer.echo(as_markdown(), nl=False)
        return
    for op in _listed():
        typer.echo(_line(_spelling(op), op.doc))
    for call, doc, _ in _functions():
        typer.echo(_line(call, doc))


def as_markdown() -> str:
    """The text of docs/ops.md."""
    lines = [_INTRODUCTION]
    for kind, title in ((Kind.ELEMENTWISE, "Elementwise"), (Kind.REDUCTION, "Reductions")):
        lines += [
            f"## {title}",
            "",
            "| operator | what | result type | PyTorch |",
            "|---|---|---|---|",
        ]
        lines += [_row(op) for op in _listed() if op.kind is kind]
        lines.append("")
    lines += ["## Functions", "", "| function | what | PyTorch |", "|---|---|---|"]
    lines += [f"| `{call}` | {doc} | {torch or '-'} |" for call, doc, torch in _functions()]
    return "\n".join(lines).rstrip() + "\n"


def _line(spelling: str, doc: str) -> str:
    """Both side by side; below each other where the spelling needs more room."""
    indent = " " * _INDENT
    head = f"{spelling:<{_INDENT - 1}} " if len(spelling) < _INDENT else f"{spelling}\n{indent}"
    return head + f"\n{indent}".join(textwrap.wrap(doc, _WIDTH - _INDENT))


def _listed() -> list[Op]:
    return [op for op in OPS.values() if op.kind is not Kind.LEAF]


def _functions() -> list[tuple[str, str, str]]:
    """How a formula writes each function that is no op, what it gives, and PyTorch's name."""
    found: list[tuple[str, str, str]] = []
    operators = {op.name for op in _listed()}
    for name, forms in builtins().items():
        for form in forms if name not in operators else ():  # mean is both
            if isinstance(form, Composite):
                torch = (form.row.torch or "").replace("F.", "nn.functional.")
                call = f"{name}({form.row.signature})"
                found.append((call, form.row.doc, torch and f"`torch.{torch}`"))
            elif isinstance(form, Special):
                found.append((describe(name, form.parameters), form.doc, ""))
            elif isinstance(form, Cast) and name == form.dtype.name:  # and not another name of it
                found.append((f"{name}(x)", f"x in the type {form.dtype}", ""))
    return found


def _row(op: Op) -> str:
    reference = f"`torch.{op.torch}`" if isinstance(op.torch, str) else "a formula"
    spelling = _spelling(op).replace("|", "\\|")
    return f"| `{spelling}` | {op.doc} | {op.rule.value} | {reference} |"


def _spelling(op: Op) -> str:
    """How a formula writes the operator."""
    names = "abc"[: op.arity]
    if op.symbol is None:
        return f"{op.name}({', '.join(names)})"
    return f"{op.symbol}a" if op.arity == 1 else f"a {op.symbol} b"
