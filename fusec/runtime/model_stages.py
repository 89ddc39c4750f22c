"""The graph that Dynamo gives, as a forward and a backward graph of AOTAutograd, each compiled.

PyTorch's own way there imports much of Inductor, half a second of a first step, for a debugging
switch and to merge equal operators: :mod:`fusec.runtime.model_equal` does that. May import it, and
``fusec.collector``; torch inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusec.collector import without_collections
from fusec.runtime.model_decompositions import decompositions
from fusec.runtime.model_equal import merge_equal

Compiler = Callable[[Any, Any], Callable[..., Any]]


def compile_stages(
    graph: Any,
    example_inputs: Sequence[Any],
    compiler: Callable[[str], Compiler],
    expect: Callable[[Any], None],
) -> Callable[..., Any]:
    """A ``torch.fx.GraphModule`` as a function of its inputs; ``compiler`` gives what compiles the
    ``forward``, the ``backward`` and the ``inference`` graph. ``expect`` is told of a backward
    graph, whose kernels take longest, before the forward one is compiled.
    """
    from torch._functorch.aot_autograd import aot_module_simplified

    expected: list[Any] = []

    def partition(joint: Any, inputs: Any, **options: Any) -> Any:
        made = _partition(joint, inputs, **options)
        expected.append(made[1])
        return made

    def forward(module: Any, inputs: Any) -> Callable[..., Any]:
        while expected:
            expect(expected.pop())
        return compiler("forward")(module, inputs)

    def backward(module: Any, inputs: Any) -> Callable[..., Any]:
        with without_collections(counted=False):
            return _left_alone(_left_alone(compiler("backward"))(module, inputs))

    options: dict[str, Any] = {
        "fw_compiler": forward,
        "bw_compiler": compiler("backward"),
        "inference_compiler": compiler("inference"),
        "decompositions": decompositions(),
        "partition_fn": partition,
        "keep_inference_input_mutations": True,
    }
    if _logs() or any(isinstance(value, list | tuple | dict) for value in example_inputs):
        from torch._dynamo.backends.common import aot_autograd

        made: Callable[..., Any] = aot_autograd(**options)(graph, example_inputs)
        return made
    counts = _counters()["aot_autograd"]
    counts["total"] += 1
    with without_collections(counted=False):
        made = aot_module_simplified(graph, example_inputs, **{**options, "bw_compiler": backward})
    counts["ok"] += 1
    return _left_alone(made)


def _partition(joint: Any, inputs: Any, **options: Any) -> Any:
    """Cut the graph of both ways in two, where the fewest bytes have to be kept."""
    import torch._functorch.config as config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    if not config.cse or not merge_equal(joint.graph):
        return min_cut_rematerialization_partition(joint, inputs, **options)
    with config.patch(cse=False):
        return min_cut_rematerialization_partition(joint, inputs, **options)


def _logs() -> bool:
    """Whether PyTorch is to write every graph to a file (``TORCH_COMPILE_DEBUG``)."""
    import torch._inductor.config as inductor

    return bool(inductor.trace.enabled)


def _counters() -> Any:
    from torch._dynamo.utils import counters

    return counters


def _left_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, into which Dynamo does not look."""
    import torch._dynamo

    disable: Any = torch._dynamo.disable  # torch gives it no types
    found: Callable[..., Any] = disable(function)
    return found
