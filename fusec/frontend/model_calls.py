"""What the nodes of a model's graph call, in the operators that fusec knows, or why not.

A node of a ``torch.fx`` graph over aten is one operator of PyTorch. Most are rows of the trace
tables; others are taken apart by PyTorch's decompositions, over tensors without memory. May import
``fusec.errors``, ``fusec.ir`` and, of the frontend, ``model_parts`` and the ``trace_*`` modules but
``trace`` itself.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusec.errors import FusecError, UnsupportedError
from fusec.frontend.model_alike import is_tensor
from fusec.frontend.model_parts import NOWHERE, Parts, leaves
from fusec.frontend.trace_record import Call, named, refuse
from fusec.frontend.trace_rows import ATTENTION, STAY, words
from fusec.frontend.trace_special import knows
from fusec.ir.dtypes import by_torch_name

COMPUTE, VIEW, SOURCE, LEFT = "compute", "view", "source", "left"
# In a node's meta, where a pass over the graph says so: why PyTorch runs it, and of a tensor that
# is put together of parts, where each of them begins.
STAYS, JOIN = "stays", "join"
# Views that only repeat: a kernel reads what they are of, so each region has its own.
SPREADS = words("expand unsqueeze")
RESHAPES = words("view _unsafe_view reshape _reshape_alias")
VIEWS = words(
    "alias detach lift_fresh view _unsafe_view reshape _reshape_alias unsqueeze squeeze permute"
    " transpose t expand slice select split split_with_sizes unbind"
)
_SOURCES = words("scalar_tensor full zeros ones empty arange")
_NORMS = ("native_layer_norm", "native_group_norm", "native_batch_norm")  # and their backwards


@dataclass(slots=True)
class Operation:
    """A node of the graph: ``compute``, a ``view``, a ``source`` (made of numbers), or ``left`` to
    PyTorch for a ``reason`` (None: it computes no tensor, and nobody asks).

    ``after`` are nodes that have to run before although it does not read them.
    """

    node: Any
    kind: str = LEFT
    calls: list[Call] = field(default_factory=list)
    reason: str | None = None
    after: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """The operator without its overload: ``add``."""
        return getattr(self.node.target, "_opname", getattr(self.node.target, "__name__", "?"))

    @property
    def counts(self) -> bool:
        """Whether it is work: it computes a tensor, and is neither a view nor an element."""
        if self.node.op != "call_function" or self.name == "getitem" or self.name in VIEWS:
            return False
        return self.kind == COMPUTE or (self.kind == LEFT and self.reason is not None)

    def leave(self, reason: str) -> None:
        """Let PyTorch run it."""
        self.kind, self.calls, self.reason = LEFT, [], reason


@dataclass(slots=True)
class Operations:
    """Every node of one graph, in order, with its stand-in: a tensor without memory."""

    by_node: dict[Any, Operation] = field(default_factory=dict)
    values: dict[Any, Any] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _parts: Parts = field(default_factory=Parts)
    _last_random: Any = None
    _barrier: Any = None

    def add(self, node: Any) -> None:
        """The next node of the graph."""
        operation = self.by_node[node] = Operation(node)
        value = node.meta.get("val")
        if node.op != "call_function":
            self.values[node] = self._own(value)
            return
        self._order(operation)
        if node.target is operator.getitem:
            self._element(operation)
            return
        self.values[node] = self._own(value)
        if JOIN in node.meta or not any(map(is_tensor, leaves(value))):
            return
        try:
            self._convert(operation, value)
        except FusecError as error:
            operation.leave(error.message)

    def _element(self, operation: Operation) -> None:
        """One result of several: it goes where they go."""
        source, place = operation.node.args
        several = self.values[source]
        known = self._own(operation.node.meta.get("val")) if several is None else several[place]
        self.values[operation.node] = known
        origin = self.by_node[source]
        operation.kind = COMPUTE if origin.kind == COMPUTE else origin.kind

    def _own(self, value: Any) -> Any:
        """``value`` with tensors that stand for no other node."""
        if isinstance(value, tuple | list):
            return tuple(map(self._own, value))
        if is_tensor(value) and id(value) in self._seen:
            import torch

            with value.fake_mode, torch.no_grad():
                value = value.detach()
        self._seen.add(id(value))
        return value

    def _order(self, operation: Operation) -> None:
        """Random numbers are drawn in their order; what writes waits for all before it."""
        node = operation.node
        before = [self._barrier] if self._barrier is not None else []
        if writes(node):
            before = [n for n in self.by_node if n is not node]
            self._barrier = node
        elif draws(node):
            before += [self._last_random] if self._last_random is not None else []
            self._last_random = node
        operation.after = tuple(before)

    def _convert(self, operation: Operation, value: Any) -> None:
        node = operation.node
        target = node.target
        if getattr(target, "namespace", None) not in ("aten", "prims"):
            raise UnsupportedError("it is no operator of aten")
        name, overload = target._opname, f"{target._opname}.{target._overloadname}"
        if STAYS in node.meta:
            raise UnsupportedError(node.meta[STAYS])
        if any(part in name for part in ATTENTION):
            raise UnsupportedError("it is an attention")
        if name in STAY:
            raise UnsupportedError(STAY[name])
        if writes(node):
            raise UnsupportedError("it writes to a tensor that it is given")
        if draws(node):
            raise UnsupportedError("it draws random numbers")
        if any(self.values[n] is None for n in node.all_input_nodes):
            raise UnsupportedError("the graph does not say what it is given")
        refuse(target, name, overload, NOWHERE)
        arguments = self._arguments(node)
        _check(leaves(arguments), leaves(value))
        if name.lstrip("_").startswith(_NORMS) and _mixes(leaves(arguments)):
            raise UnsupportedError("its weights are of another type than what it norms")
        if target.namespace == "aten" and knows(name, overload):
            positional, by_name = arguments
            call = Call(
                name, overload, named(target, positional, by_name), self.values[node], NOWHERE
            )
            operation.calls = [call]
        else:
            operation.calls, self.values[node] = self._parts.of(target, *arguments)
        operation.kind = VIEW if name in VIEWS else SOURCE if name in _SOURCES else COMPUTE

    def _arguments(self, node: Any) -> tuple[Any, Any]:
        from torch.fx.node import map_arg

        found: tuple[Any, Any] = map_arg((node.args, node.kwargs), self.values.__getitem__)
        return found


def drops_axes(view: Any, values: Mapping[Any, Any]) -> bool:
    """Whether a reshape leaves out axes of length 1 of a result that nobody else reads: a kernel
    gives such a result without them, as a gradient of a bias.
    """
    if getattr(view.target, "_opname", "") not in RESHAPES:
        return False
    base = view.args[0]
    if len(base.users) > 1 or getattr(base.target, "_opname", "") in VIEWS:
        return False
    whole, part = values[base].shape, values[view].shape
    if not all(isinstance(length, int) for length in (*whole, *part)):
        return False
    return len(part) < len(whole) and list(part) == [n for n in whole if n != 1]


def _check(given: Iterator[Any], made: Iterator[Any]) -> None:
    """UnsupportedError for tensors that no kernel of fusec reads or writes."""
    import torch
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    devices = set()
    for value in (*given, *made):
        if not is_tensor(value):
            continue
        if by_torch_name(str(value.dtype).removeprefix("torch.")) is None:
            raise UnsupportedError(f"fusec has no type {value.dtype}")
        if value.layout is not torch.strided or value.device.type not in ("cpu", "cuda"):
            raise UnsupportedError(f"a tensor is {value.layout} on {value.device}")
        if any(not isinstance(n, int) for n in value.shape) and free_unbacked_symbols(value):
            raise UnsupportedError("a length depends on values")
        devices.add(value.device)
    if len(devices) > 1:
        raise UnsupportedError("its tensors are on several devices")


def _mixes(given: Iterator[Any]) -> bool:
    """Whether tensors on a CPU are of several types: then norms keep their statistics in another
    type than PyTorch says while it traces, and their backward insists on it.
    """
    tensors = [v for v in given if is_tensor(v)]
    own = {v.dtype for v in tensors if v.dtype.is_floating_point}
    return len(own) > 1 and any(v.device.type == "cpu" for v in tensors)


def writes(node: Any) -> bool:
    """Whether a node does more than give a result."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        module = getattr(node.target, "__module__", None) or ""
        return not module.startswith(("_operator", "math", "builtins", "torch", "fusec"))
    return bool(schema.is_mutable or not schema.returns)


def draws(node: Any) -> bool:
    """Whether a node draws random numbers."""
    import torch

    # Operators that keep or set the state of the generator get what draws as an argument.
    drawing = [node.target, *(a for a in node.args if isinstance(a, torch._ops.OpOverload))]
    return any(torch.Tag.nondeterministic_seeded in getattr(d, "tags", ()) for d in drawing)
