"""``fusec show``: any stage of a formula's way to machine code. May import everything below cli."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fusec.cli import options
from fusec.cli.output import write_code
from fusec.errors import FusecError, UnsupportedError

if TYPE_CHECKING:
    from fusec.api import CompiledFunction

STAGES = (
    "formula", "grad", "explain", "graph", "plan", "kernel", "triton", "cuda", "cpp", "ttir",
    "ttgir", "llir", "ptx", "sass", "amdgcn",
)  # fmt: skip
_ALL = "all"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("show")(show)


def show(
    formula: Annotated[str, typer.Argument(help=options.FORMULA_HELP)],
    stage: Annotated[
        str | None,
        typer.Option("--stage", "-s", help=f"One of {', '.join(STAGES)}, or {_ALL}."),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=SHAPE[:DTYPE]", help=options.INPUT_HELP),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="sm_80, sm_90, sm_100, gfx942 ...")
    ] = None,
    numerics: Annotated[
        str, typer.Option("--numerics", help=f"One of {', '.join(options.NUMERICS)}.")
    ] = "torch",
    backend: Annotated[
        str, typer.Option("--backend", help=f"One of {', '.join(options.BACKENDS)}.")
    ] = "auto",
    keepdim: Annotated[
        bool, typer.Option("--keepdim", help="Keep an output axis that was reduced, length 1.")
    ] = False,
) -> None:
    """Show what a formula becomes: its graph, plan, kernel, source, PTX or machine code.

    The stage is triton where there is a GPU or a --target, and otherwise cpp.
    """
    options.choose(numerics, options.NUMERICS, "--numerics")
    options.choose(backend, options.BACKENDS, "--backend")
    wanted = options.choose(stage or _default_stage(target, backend), (*STAGES, _ALL), "--stage")
    given = options.parse_inputs(inputs or ())
    source = options.read_formula(formula)

    from fusec import api
    from fusec.runtime.build_triton import Target

    if target is not None:
        Target.parse(target)  # a stage that needs no target would not notice a wrong one
    with options.blamed_on(source):
        compiled = api.compile(source.text, backend=backend, numerics=numerics, keepdim=keepdim)
        chosen = options.complete(given, compiled.inputs) if given else []
        examples = options.example_values(chosen)
        if wanted == _ALL:
            _show_all(compiled, examples, target)
        else:
            write_code(compiled.show(wanted, *examples, target=target), wanted)


def _show_all(
    compiled: CompiledFunction, examples: list[options.Value], target: str | None
) -> None:
    """Every stage under a heading; one that this target or machine has not, with the reason."""
    failure: FusecError | None = None
    shown = 0
    for stage in STAGES:
        try:
            text = compiled.show(stage, *examples, target=target)
        except UnsupportedError as error:
            failure = failure or error
            text = f"(none: {error.message})"
        else:
            shown += 1
        sys.stdout.write(f"# ---- {stage} ----\n")
        write_code(text, stage)
        sys.stdout.write("\n")
    if not shown and failure is not None:
        raise failure


def _default_stage(target: str | None, backend: str) -> str:
    if backend == "triton" or (target is not None and backend == "auto"):
        return "triton"
    if backend in ("cpp", "cuda"):
        return backend
    import torch

    return "triton" if torch.cuda.is_available() else "cpp"
