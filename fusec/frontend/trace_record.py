"""Runs a PyTorch function over tensors without memory and writes down what it calls.

What no kernel can do is refused here, where the user's line is on the stack: values that the
function asks for, unknown operators, changed inputs, random numbers, matrix products. Operators
that fusec has no row for are taken apart by PyTorch's own decompositions. Torch is imported where
it is used. May import ``fusec.errors`` and, of the frontend, ``trace_place``, ``trace_rows``,
``trace_functions`` and ``trace_types``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from fusec.errors import UnsupportedError
from fusec.frontend import trace_rows as rows
from fusec.frontend.trace_functions import compare_lengths
from fusec.frontend.trace_place import Where, current, where_of
from fusec.frontend.trace_types import refuse_type

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator: ``name`` of the operator, ``overload`` with its overload.

    ``tracked``: PyTorch would have written it down for gradients, as under ``no_grad`` it does not.
    ``origin``: the operator of the function that was taken apart into this one, or None.
    """

    name: str
    overload: str
    arguments: dict[str, Any]
    result: Any
    where: Where
    tracked: bool = True
    origin: str | None = None


@dataclass(slots=True)
class Tape:
    """The calls of one run, and what the function's own variables are called."""

    calls: list[Call] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    last: Where | None = None


class Owner:
    """Which tensors share memory: by their storage."""

    def __init__(self) -> None:
        self.inputs: dict[int, str] = {}
        self.tensors: dict[int, list[Any]] = {}

    def add(self, tensor: Any, argument: str | None = None) -> None:
        storage = tensor.untyped_storage()._cdata
        known = self.tensors.setdefault(storage, [])
        if not any(t is tensor for t in known):
            known.append(tensor)
        if argument is not None:
            self.inputs[storage] = argument

    def forget(self, tensor: Any) -> None:
        """``tensor`` cannot be reached by the function."""
        storage = tensor.untyped_storage()._cdata
        self.tensors[storage] = [t for t in self.tensors[storage] if t is not tensor]

    def argument(self, tensor: Any) -> str | None:
        """The argument whose memory a tensor is, or None."""
        return self.inputs.get(tensor.untyped_storage()._cdata)

    def is_shared(self, tensor: Any) -> bool:
        return len(self.tensors.get(tensor.untyped_storage()._cdata, ())) > 1


@dataclass(slots=True)
class Recorder:
    """Fills a tape.

    ``knows`` tells whether an operator has a row, ``capture`` gives the stand-in for a tensor that
    is no argument, ``code`` is the traced function's own. ``gradients``: whether anyone will ask
    which calls they go through.
    """

    tape: Tape
    owner: Owner
    knows: Callable[[str, str], bool]
    capture: Callable[[Any, Where, str], Any]
    code: CodeType | None
    gradients: bool = True
    joins: Any = None  # a trace_joined.Joins, where concatenations may stay in parts
    outer: list[Any] = field(default_factory=list)  # the operators that are being taken apart

    def mode(self) -> Any:
        """The dispatch mode that shows every operator to this recorder."""
        from torch.utils._python_dispatch import TorchDispatchMode

        call = self.call

        # torch gives the base no types.
        class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                return call(self, func, args, kwargs or {})

        made: Any = Mode
        return made()

    def call(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operator over stand-ins, and write it down."""
        import torch
        from torch._subclasses.fake_tensor import FakeTensor
        from torch.utils._pytree import tree_map_only

        if func.namespace == "prim" or func._opname.startswith("sym_"):
            return func(*args, **kwargs)  # asks for a device or a length
        if func._opname == "_assert_async":
            return None  # of values, which a trace has not: a kernel raises nothing
        where = self._stand()
        if func._opname in ("size", "stride") and func._overloadname == "default":
            raise where.error(
                UnsupportedError,
                "PyTorch computes this from lengths as numbers, and those of a trace are symbols",
                "call it outside, between fused functions",
            )
        is_number = func._opname == "lift_fresh" and not isinstance(args[0], FakeTensor)
        if is_number and not args[0].dim():
            return self._literal(args[0], where)

        def standin(tensor: torch.Tensor) -> Any:
            if isinstance(tensor, FakeTensor):
                return tensor
            return self.capture(tensor, where, func._opname)

        args, kwargs = tree_map_only(torch.Tensor, standin, (args, kwargs))
        return self.dispatch(mode, func, where, args, kwargs)

    def _stand(self) -> Where:
        """Where the user's code is; takes down what its variables are called."""
        import torch

        frame = current()
        self.tape.last = where_of(frame)
        if frame.f_code is self.code:
            for name, value in frame.f_locals.items():
                if isinstance(value, torch.Tensor):
                    self.tape.names.setdefault(id(value), name)
        return self.tape.last

    def _literal(self, tensor: torch.Tensor, where: Where) -> torch.Tensor:
        """``torch.tensor(1.5)``: a number that stands in the function."""
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            value = tensor.item()
        result = torch.empty((), dtype=tensor.dtype, device=tensor.device)
        name = "scalar_tensor"
        self.tape.calls.append(Call(name, f"{name}.default", {"s": value}, result, where))
        return result

    def dispatch(self, mode: Any, func: Any, where: Where, args: Any, kwargs: Any) -> Any:
        """Run one operator over stand-ins that is called at ``where``, and write it down."""
        name, overload = func._opname, f"{func._opname}.{func._overloadname}"
        refuse(func, name, overload, where)
        refuse_type(name, args, where)
        if not self._tracked():
            _refuse_own_gradient(where)
        # Some functions may write by their schema alone: batch norm, in training.
        mutates = func._schema.is_mutable and not self.knows(name, overload)
        if mutates:
            _check_mutation(func, where, args, self)
            name = overload = name.removesuffix("_")
        if self.joins is not None and func.namespace == "aten":
            result = self.joins.call(self, mode, func, where, args, kwargs)
            if result is not NotImplemented:
                return result
        if func.namespace == "aten" and self.knows(name, overload):
            return self._row(func, name, overload, where, args, kwargs)
        if func in self.outer:  # made of itself
            raise _unknown(self.outer[0], where)
        self.outer.append(func)
        if func._schema.is_mutable and len(self.outer) > 1:
            raise _unknown(self.outer[0], where)
        with mode:
            result = _decomposed(func, where, args, kwargs)
        if result is NotImplemented:
            raise _unknown(self.outer[0], where)
        self.outer.pop()
        return result

    def _tracked(self) -> bool:
        import torch

        return torch.is_grad_enabled() or not self.gradients

    def _row(
        self, func: Any, name: str, overload: str, where: Where, args: Any, kwargs: Any
    ) -> Any:
        """Run an operator that has a row."""
        result = func(*args, **kwargs)
        if overload in ("div.Tensor", "div.Scalar"):
            result = _quotient(result)
        compare_lengths(name, args)
        origin = label(self.outer[0]) if self.outer else None
        given = named(func, args, kwargs)
        self._keep(Call(name, overload, given, result, where, self._tracked(), origin))
        return result

    def _keep(self, call: Call) -> None:
        import torch
        from torch.utils._pytree import tree_leaves

        if call.name == "detach" and self._is_handed_out(call):
            self.owner.forget(call.arguments["self"])
        for leaf in tree_leaves(call.result):
            if isinstance(leaf, torch.Tensor):
                self.owner.add(leaf)
        self.tape.calls.append(call)

    def _is_handed_out(self, call: Call) -> bool:
        """Whether a new tensor is detached by PyTorch itself: ``torch.zeros`` does so, since the
        tape holds on to what it made, and gives the function the detached one alone.
        """
        last = self.tape.calls[-1] if self.tape.calls else None
        made = last is not None and last.name in rows.MADE and last.where == call.where
        return made and last is not None and last.result is call.arguments["self"]


def _quotient(result: Any) -> Any:
    """A stand-in for a quotient: PyTorch 2.6 takes that of integers for an integer."""
    import torch

    if result.is_floating_point() or result.is_complex():
        return result
    return result.to(torch.get_default_dtype())


def named(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of the schema, defaults included."""
    found: dict[str, Any] = {}
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            found[argument.name] = args[position]
        elif argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
        else:
            found[argument.name] = argument.default_value
    return found


def refuse(func: Any, name: str, overload: str, where: Where) -> None:
    """UnsupportedError for an operator that no kernel of fusec can be part of."""
    import torch

    if name in rows.VALUES_NEEDED:
        raise where.error(
            UnsupportedError,
            "the value of a tensor is asked for, and a traced function has none",
            "'if', 'while', bool(), float() and .item() decide in Python what is computed;"
            " use torch.where(condition, a, b)",
            op=label(func),
        )
    if name in rows.VALUE_SHAPED or overload in rows.VALUE_SHAPED:
        raise where.error(
            UnsupportedError,
            f"the shape that {label(func)} gives depends on values",
            "use torch.where or masked_fill, which keep the shape",
            op=label(func),
        )
    if torch.Tag.nondeterministic_seeded in func.tags:
        raise where.error(
            UnsupportedError,
            f"{label(func)} draws random numbers, which fusec does not",
            "draw them outside and pass them as an argument",
            op=label(func),
        )
    if name.removesuffix("_") in rows.MATRIX_PRODUCTS:
        raise where.error(
            UnsupportedError,
            f"{label(func)} is a matrix product or a convolution, and those stay with PyTorch",
            "trace the functions between the products",
            op=label(func),
        )


def _refuse_own_gradient(where: Where) -> None:
    """UnsupportedError inside of a ``torch.autograd.Function``, which runs without grad mode."""
    import torch

    function: Any = torch.autograd.Function
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_record":  # what called the trace
        if frame.f_code is function.apply.__func__.__code__:
            raise where.error(
                UnsupportedError,
                "a torch.autograd.Function has a gradient of its own, which a trace does not see",
                "call it outside; value + (x - x.detach()) has the gradient of x",
            )
        frame = frame.f_back


def _check_mutation(func: Any, where: Where, args: Sequence[Any], recorder: Recorder) -> None:
    """Only a tensor of the function's own, that no other name shares, may be written to."""
    written = args[0] if args and func._opname.endswith("_") else None
    owner, name = recorder.owner, label(func)
    if recorder.outer and (written is None or owner.argument(written) is None):
        if written is None or owner.is_shared(written):
            raise _unknown(recorder.outer[0], where)
        return
    if written is None:
        raise where.error(
            UnsupportedError, f"{name} writes to a tensor it is given", "return the result instead"
        )
    argument = owner.argument(written)
    if argument is not None:
        raise where.error(
            UnsupportedError,
            f"{name} changes the argument '{argument}', and a fused function only reads",
            f"{_instead(func, where)}, and return the result",
            op=name,
        )
    if owner.is_shared(written):
        raise where.error(
            UnsupportedError,
            f"{name} changes a tensor that has views, which would change with it",
            _instead(func, where),
            op=name,
        )


def _instead(func: Any, where: Where) -> str:
    """What to write in the place of a write, which need not have an underscore."""
    written = where.source.excerpt(where.span)
    if f"{func._opname}(" in written:
        return "leave out the underscore"
    if "[" in written:
        return "make a new tensor, as torch.where(positions, a, b) does"
    return "make a new tensor: a = a + b in the place of a += b"


@cache
def _table() -> dict[Any, Callable[..., Any]]:
    import torch._decomp
    import torch._refs  # registers more of them

    return dict(torch._decomp.decomposition_table)


def _decomposed(func: Any, where: Where, args: Any, kwargs: Any) -> Any:
    """What an operator without a row is made of; NotImplemented if nobody knows."""
    if func._schema.is_mutable:
        raise where.error(
            UnsupportedError,
            f"{label(func)} changes a tensor in a way that fusec does not know",
            "make a new tensor, as torch.where(condition, a, b) does",
            op=label(func),
        )
    if func._opname in rows.NOT_FUSED:
        return NotImplemented
    if func.namespace == "prims":
        made = getattr(func, "impl_aten", None)
        return made(*args, **kwargs) if made is not None else NotImplemented
    decomposition = _table().get(func)
    result = decomposition(*args, **kwargs) if decomposition is not None else NotImplemented
    return func.decompose(*args, **kwargs) if result is NotImplemented else result


def _unknown(func: Any, where: Where) -> Exception:
    """The error for the operator that the user called."""
    if func.namespace == "fusec":
        return where.error(
            UnsupportedError,
            "a formula is called, and a traced function is made of operators of PyTorch alone",
            "write it out in PyTorch, or call it outside, between fused functions",
        )
    why = rows.STAY.get(func._opname)
    return where.error(
        UnsupportedError,
        f"{label(func)} is not an operator that fusec can fuse{f': {why}' if why else ''}",
        "call it outside, between fused functions",
        op=label(func),
    )


def label(func: Any) -> str:
    """``aten.add.Tensor``."""
    return f"{func.namespace}.{func._opname}.{func._overloadname}"
