"""``torch.compile(model, backend="fusec")``: Dynamo gives a graph, AOTAutograd makes a forward and
a backward one of it, and each runs with kernels of fusec in it.

PyTorch finds the backend through the entry point ``torch_dynamo_backends``; importing this module
registers it too. May import the API and everything below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from fusec import forks
from fusec.api import BACKENDS, NUMERICS, CompiledFunction, compile
from fusec.errors import FusecError, UnknownNameError, did_you_mean
from fusec.frontend.model_masks import lay_out_masks
from fusec.runtime.build_triton import Target, expect_kernels
from fusec.runtime.choices import choose
from fusec.runtime.model_ahead import Ahead
from fusec.runtime.model_graph import compile_graph
from fusec.runtime.model_plan import Choice
from fusec.runtime.model_report import begin, last_report
from fusec.runtime.model_stages import compile_stages
from fusec.runtime.steps import capability_of

if TYPE_CHECKING:
    from fusec.passes.simplify import Numerics
    from fusec.runtime.traced_formula import TracedFormula

__all__ = ["fusec", "last_report"]

_MANY = 1024  # programs of regions that are remembered, so that equal layers share theirs
_SHARED: dict[Any, CompiledFunction] = {}
_LOCK = forks.lock()


def fusec(
    graph: Any, example_inputs: Sequence[Any], *, options: dict[str, str] | None = None
) -> Callable[..., Any]:
    """The backend that Dynamo calls with a ``torch.fx.GraphModule``.

    ``options`` may name the ``backend`` of kernels and the ``numerics``, as ``fusec.compile`` does:
    ``torch.compile(model, backend="fusec", options={"numerics": "precise"})``. Raises
    UnknownNameError and FusecError for others.
    """
    backend, numerics = _chosen(options or {})
    _expect_kernels()
    report = begin()
    lay_out_masks(graph)
    choice = Choice(lambda formula: _shared(formula, backend), backend, numerics, _copy)
    ahead = Ahead(choice)

    def compiler(stage: str) -> Callable[..., Any]:
        return lambda module, inputs: compile_graph(module, stage, ahead.plan(module), report)

    return compile_stages(graph, example_inputs, compiler, ahead.expect)


def _chosen(options: dict[str, str]) -> tuple[str, Numerics]:
    """The backend of kernels and the numerics."""
    known = ("backend", "numerics")
    for name in options:
        if name not in known:
            raise UnknownNameError(
                f"the backend has no option {name!r}",
                hint=did_you_mean(name, known) or f"there are {' and '.join(known)}",
            )
    backend, numerics = options.get("backend", "auto"), options.get("numerics", "torch")
    choose("backend", backend, BACKENDS)
    choose("numerics", numerics, NUMERICS)
    return backend, cast("Numerics", numerics)


def _shared(formula: TracedFormula, backend: str) -> CompiledFunction:
    """The function for a formula; one for all regions that compute the same."""
    key = (backend, *sorted(formula.identity().items()))
    with _LOCK:
        if len(_SHARED) >= _MANY:
            _SHARED.clear()
        return _SHARED.setdefault(key, CompiledFunction(formula, backend))


def _copy(source: Any, target: Any) -> None:
    """Copy a matrix into another, by a kernel of fusec's on a GPU."""
    if source.is_cuda:
        try:
            _copier()(source, out=target)
        except FusecError:  # what has no kernel, PyTorch can
            target.copy_(source)
    else:
        target.copy_(source)


@cache
def _copier() -> CompiledFunction:
    return compile("x", name="copy")


def _expect_kernels(*_: object) -> None:
    """Have Triton ready in a helper process, beside the tracing, if kernels may be built for a GPU.

    Dynamo calls this when it begins to trace a function, and the backend once more, since
    ``torch._dynamo.reset()`` forgets such calls.
    """
    import torch

    started: Any = torch.cuda.is_initialized  # torch gives it no types
    if started():
        expect_kernels(Target.parse(f"sm_{capability_of(torch.device('cuda'))}"))


def _register() -> None:
    from torch._dynamo.backends.registry import list_backends, register_backend
    from torch._dynamo.callback import callback_handler

    callback_handler.register_start_callback(_expect_kernels)
    if "fusec" not in list_backends(exclude_tags=None):
        register_backend(fusec, name="fusec")


_register()
