"""A model's graph as a function, with PyTorch's own operators by the shortest way to call them.

An operator of ``torch.ops`` is found, checked and boxed in Python at each call, which takes as long
as the operator itself where tensors are small. Where PyTorch has a function or a method that does
nothing but call it, that is taken. May import ``frontend.model_calls`` and
``runtime.model_copies``; torch inside functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusec.frontend.model_calls import STAYS
from fusec.runtime.model_copies import Copy, copy_by_torch, laid_out, with_margin

# Functions of torch and methods of tensors, by the operator that each of them calls with the same
# arguments in the same places. None makes a tensor of numbers: modes would change where.
_FUNCTIONS = {
    "mm.default": "mm",
    "bmm.default": "bmm",
    "addmm.default": "addmm",
    "baddbmm.default": "baddbmm",
    "add.Tensor": "add",
    "mul.Tensor": "mul",
}
_METHODS = {
    "t.default": "t",
    "view.default": "view",
    "permute.default": "permute",
    "transpose.int": "transpose",
    "unsqueeze.default": "unsqueeze",
    "squeeze.dim": "squeeze",
    "expand.default": "expand",
    "select.int": "select",
    "detach.default": "detach",
    "clone.default": "clone",
}


def shorten(graph: Any, copy: Copy = copy_by_torch) -> None:
    """Let the nodes of a ``torch.fx`` graph over aten call operators the short way, and lay
    matrices out anew with ``copy``.
    """
    import torch

    for node in graph.nodes:
        target = node.target
        if node.op != "call_function" or getattr(target, "namespace", None) != "aten":
            continue
        name = f"{target._opname}.{target._overloadname}"
        if name == "constant_pad_nd.default" and _is_margin(node):
            node.target = with_margin(copy)
        elif name == "clone.default" and STAYS in node.meta:
            node.target = laid_out(copy)
        elif name == "slice.Tensor" and _is_narrow(node):
            value, begin = node.meta["val"], node.args[2] or 0
            length = value.shape[node.args[1]]
            node.op, node.target = "call_method", "narrow"
            node.args = node.args[0], node.args[1], begin, length
        elif name == "_unsafe_view.default" and not any(u.op == "output" for u in node.users):
            node.op, node.target = "call_method", "view"
        elif name in _FUNCTIONS:
            node.target = getattr(torch, _FUNCTIONS[name])
        elif name in _METHODS and node.args and "implicit" not in node.kwargs:
            node.op, node.target = "call_method", _METHODS[name]


def boxed(module: Any, graph: Any, copy: Copy) -> Callable[[list[Any]], Any]:
    """A graph as a function of one list, which it empties so that memory is given back early."""
    import torch.fx

    class Boxed(torch.fx.graph.CodeGen):
        """Takes the arguments out of a list."""

        def gen_fn_def(
            self, free_vars: list[str], maybe_return_annotation: str, **options: Any
        ) -> str:
            names = [v.split(":")[0].split("=")[0].strip() for v in free_vars if v != "self"]
            taken = "".join(f"{n}, " for n in names)
            lines = [f"def {self._func_name}(self, given):"]
            lines += [f"    {taken}= given"] if names else []
            return "\n".join([*lines, "    given.clear()"])

    shorten(graph, copy)
    graph.set_codegen(Boxed())
    made = torch.fx.GraphModule(module, graph)
    forward: Any = made.forward

    def run(given: list[Any]) -> Any:
        return forward(given)

    marked: Any = run
    marked._boxed_call = True
    return run


def _is_narrow(node: Any) -> bool:
    """Whether a slice is of elements side by side whose places are known."""
    value, numbers = node.meta.get("val"), node.args[1:]
    whole = getattr(node.args[0], "meta", {}).get("val")
    if (
        value is None
        or whole is None
        or node.kwargs
        or len(numbers) < 3
        or numbers[3:] not in ((), (1,))
    ):
        return False
    axis, begin = numbers[0], numbers[1] or 0
    known = all(isinstance(n, int) for n in (begin, value.shape[axis], whole.shape[axis]))
    return known and 0 <= begin <= whole.shape[axis]


def _is_margin(node: Any) -> bool:
    """Whether a node puts zeros behind the rows and columns of a matrix, and does nothing else."""
    value, (matrix, pads, *filled) = node.meta.get("val"), node.args
    known = "val" in matrix.meta and not node.kwargs and filled in ([], [0], [0.0])
    behind = len(pads) == 4 and pads[0] == pads[2] == 0 and all(n >= 0 for n in pads)
    return known and behind and value.dim() == 2 and value.is_contiguous()
