"""Operators of a model without a row in the trace tables, as PyTorch's decompositions take them
apart: once for all nodes of a graph that are given alike, as equal layers are.

May import ``fusec.errors``, ``fusec.source`` and, of the frontend, ``model_alike`` and the
``trace_*`` modules but ``trace`` itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fusec.errors import UnsupportedError
from fusec.frontend.model_alike import form, has_hash, is_tensor, tensor_form
from fusec.frontend.trace_place import Where
from fusec.frontend.trace_record import Call, Owner, Recorder, Tape
from fusec.frontend.trace_special import knows
from fusec.source import Source, Span

NOWHERE = Where(Source("", "<model>"), Span(0, 0))


class _Apart(NamedTuple):
    """An operator taken apart: the tensors it was given, its calls, and its result."""

    given: list[Any]
    calls: list[Call]
    result: Any


@dataclass(slots=True)
class Parts:
    """What the operators of one graph are made of."""

    _known: dict[Any, _Apart] = field(default_factory=dict)

    def of(self, target: Any, args: Sequence[Any], kwargs: Any) -> tuple[list[Call], Any]:
        """The calls that an operator is made of, over the tensors it is given, and its result: new
        tensors, or given ones. UnsupportedError if PyTorch does not take it apart.
        """
        given = [v for v in leaves((args, kwargs)) if is_tensor(v)]
        key = _key(target, args, kwargs, given)
        known = None if key is None else self._known.get(key)
        if known is not None:
            return _again(known, given)
        calls, result = _taken_apart(target, args, kwargs, given)
        if key is not None:
            self._known[key] = _Apart(given, calls, result)
        return calls, result


def _again(known: _Apart, given: Sequence[Any]) -> tuple[list[Call], Any]:
    """The same calls over other tensors. What is neither given nor a result is the same in both: a
    call that makes it comes before those that read it.
    """
    import torch

    standins = {id(old): new for old, new in zip(known.given, given, strict=True)}
    with given[0].fake_mode, torch.no_grad():
        for old in leaves(known.result):
            if is_tensor(old) and id(old) not in standins:
                standins[id(old)] = old.detach()
    calls = [
        replace(
            call,
            arguments=_replaced(call.arguments, standins),
            result=_replaced(call.result, standins),
        )
        for call in known.calls
    ]
    return calls, _replaced(known.result, standins)


def _replaced(value: Any, standins: Mapping[int, Any]) -> Any:
    if isinstance(value, dict):
        return {k: _replaced(v, standins) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)([_replaced(v, standins) for v in value])
    return standins.get(id(value), value) if is_tensor(value) else value


def _key(target: Any, args: Any, kwargs: Any, given: Sequence[Any]) -> Any:
    """All that decides how an operator is taken apart; None where that cannot be compared."""
    places: dict[int, int] = {}
    for tensor in given:
        places.setdefault(id(tensor), len(places))

    def known(value: Any) -> Any:
        return (places[id(value)], tensor_form(value)) if is_tensor(value) else None

    key = target, form(args, known), form(kwargs, known)
    return key if has_hash(key) else None


def _taken_apart(
    target: Any, args: Sequence[Any], kwargs: Any, tensors: Sequence[Any]
) -> tuple[list[Call], Any]:
    import torch
    from torch._dispatch.python import enable_python_dispatcher

    if not tensors:
        raise UnsupportedError("it makes a tensor of numbers in a way that fusec does not know")
    owner, tape = Owner(), Tape()
    for tensor in tensors:
        owner.add(tensor, "argument")

    def capture(tensor: Any, where: Where, reader: str) -> Any:
        raise where.error(UnsupportedError, "it reads a constant tensor")

    recorder = Recorder(tape, owner, knows, capture, None, gradients=False)
    with torch.no_grad(), tensors[0].fake_mode, enable_python_dispatcher(), recorder.mode():
        try:
            result = target(*args, **kwargs)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UnsupportedError(f"PyTorch does not take it apart: {lines[0]}") from None
    return tape.calls, tuple(result) if isinstance(result, list) else result


def leaves(value: Any) -> Iterator[Any]:
    """What containers hold, in order."""
    from torch.utils._pytree import tree_leaves

    return iter(tree_leaves(value))
