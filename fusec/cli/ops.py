"""``fusec ops``: every operator of the language, as the op table has it."""

from __future__ import annotations

from typing import Annotated

import typer

from fusec.ir.ops import OPS, Kind, Op

_INTRODUCTION = """\
# Operators

Written by `make docs` from the op table in `fusec/ir/ops.py`. The result type is `promote` (the
operands' common type), `float` (that, and float32 for integers), `bool`, `accumulate` (int64 for
integers), `same`, `bitwise` (integers and bools) or `select`.
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ops")(ops)


def ops(
    markdown: Annotated[bool, typer.Option("--markdown", help="Write docs/ops.md.")] = False,
) -> None:
    """List every operator of the language."""
    if markdown:
        typer.echo(as_markdown(), nl=False)
        return
    for op in _listed():
        typer.echo(f"{_spelling(op):<22} {op.doc}")


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
    return "\n".join(lines).rstrip() + "\n"


def _listed() -> list[Op]:
    return [op for op in OPS.values() if op.kind is not Kind.LEAF]


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
