"""Formulas as operators of PyTorch, so that they stand in graphs that PyTorch makes.

Importing this module defines two: ``fusec::call``, a formula, and ``fusec::run``, one program of a
formula, which is what gradients are made of. :func:`define` gives a formula an operator of its own
name. Each has kernels, a function for tensors without memory, gradients, and a rule for vmap. May
import torch and everything below the API.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from fusec.errors import DTypeError, FusecError, UnsupportedError
from fusec.ir.dtypes import by_torch_name
from fusec.runtime.addresses import NUMBERS
from fusec.runtime.arguments import Call, automatic_backend, plain_types, run
from fusec.runtime.autograd import Step, run_tracked
from fusec.runtime.launch import output_plan, prepare
from fusec.runtime.operator_calls import seen_by_torch
from fusec.runtime.operator_steps import (
    NamedStep,
    device_of,
    joined,
    places_of,
    together,
)
from fusec.runtime.operator_vmap import fitting
from fusec.runtime.prepared import Prepared
from fusec.runtime.programs import (
    Name,
    argument_of,
    code_of,
    formula_of,
    kind_of,
    name_of,
    program_of,
    root_of,
    sizes_of,
)
from fusec.runtime.specialize import Argument, Specialization, specialize

_LIMIT = 1024  # exact shapes remembered
# Results may take the layout of an input, which therefore must not change on the way.
TAGS = (getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),)

_prepared: dict[object, Prepared] = {}
_steps: dict[object, Step] = {}
_recorded: dict[str, dict[tuple[object, ...], Step]] = {}
_PLAIN = plain_types() | set(NUMBERS)

_make: Any = torch.library.Library  # torch gives its constructor no types
LIBRARY = _make("fusec", "DEF")
LIBRARY.define(
    "call(str formula, str places, Tensor[] tensors, Scalar[] numbers) -> Tensor[]", tags=TAGS
)
LIBRARY.define(
    "run(str program, Tensor[] tensors, Scalar[] numbers, SymInt[] lengths) -> Tensor[]",
    tags=TAGS,
)


# -- kernels --------------------------------------------------------------------------------------


def call_formula(identity: str, values: Sequence[Any]) -> list[torch.Tensor]:
    """The results of a formula, on tensors with memory. Each has memory of its own."""
    formula, backend = formula_of(identity)
    with torch.no_grad():
        call = Call(formula, list(values), None, backend)
        key = (identity, call.key)
        prepared = _prepared.get(key)
        if prepared is None:
            prepared = _made_ready(identity, call, automatic=backend == "auto")
            _remember(_prepared, key, prepared)
        results = run(prepared, call)
    found = list(results) if isinstance(results, tuple) else [results]
    if not prepared.reference:
        return found
    assert prepared.special is not None
    name = Name(identity, tuple(kind_of(v) for v in call.values))
    return _own(prepared.special, name, call.values, _lengths(call.values), found)


def _made_ready(identity: str, call: Call, automatic: bool) -> Prepared:
    arguments = call.arguments
    special = root_of(Name(identity, tuple(kind_of(v) for v in call.values))).special
    return prepare(special, arguments, call.backend, call.device, call.aligned, automatic=automatic)


def _call_kernel(
    formula: str, places: str, tensors: list[torch.Tensor], numbers: list[Any]
) -> list[torch.Tensor]:
    return call_formula(formula, joined(places, tensors, numbers))


def _run_kernel(
    program: str, tensors: list[torch.Tensor], numbers: list[Any], lengths: list[int]
) -> list[torch.Tensor]:
    name, places, special = _loaded(program)
    values = joined(places, tensors, numbers)
    device = device_of(values)
    key = (program, tuple(lengths), device)
    step = _steps.get(key)
    if step is None:
        backend = _backend(name, device)
        step = Step(code_of(name), sizes_of(name, lengths), backend, device)
        _remember(_steps, key, step)
    with torch.no_grad():
        results = step.run(special, values)
    reference = step.backend == "torch" or 0 in lengths
    return _own(special, name, values, lengths, results) if reference else list(results)


@functools.lru_cache(maxsize=4096)
def _loaded(program: str) -> tuple[Name, str, Specialization]:
    """A program by its name, and where tensors and numbers stand among its inputs."""
    name = name_of(program)
    return name, places_of(name), program_of(name)


def _backend(name: Name, device: torch.device) -> str:
    backend = formula_of(name.formula)[1]
    return automatic_backend(device) if backend == "auto" else backend


def _remember(table: dict[object, Any], key: object, value: object) -> None:
    if len(table) >= _LIMIT:
        table.clear()
    table[key] = value


def _own(
    special: Specialization,
    name: Name,
    values: Sequence[Any],
    lengths: Sequence[int],
    results: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Results of the reference evaluator, which may be views, in the layout that kernels give."""
    made = empty_results(special, name, values, lengths)
    for own, result in zip(made, results, strict=True):
        own.copy_(result)
    return made


# -- tensors without memory -----------------------------------------------------------------------


def empty_results(
    special: Specialization, name: Name, values: Sequence[Any], lengths: Sequence[Any]
) -> list[torch.Tensor]:
    """Tensors like the results: shapes, strides, types and device. Lengths may be symbols."""
    sizes = sizes_of(name, lengths)
    arguments = [argument_of(v) for v in values]
    device = device_of(values)
    plans = [output_plan(special, k, arguments, sizes) for k in range(len(special.outputs))]
    return [
        torch.empty_strided(p.shape, p.strides, dtype=getattr(torch, p.dtype), device=device)
        for p in plans
    ]


def fake_call(identity: str, values: Sequence[Any]) -> list[torch.Tensor]:
    """What :func:`call_formula` returns, without memory. Raises what a call raises."""
    name, special = checked(identity, values)
    return empty_results(special, name, values, _lengths(values))


def checked(identity: str, values: Sequence[Any]) -> tuple[Name, Specialization]:
    """The program of a call. Raises DTypeError, ShapeError and UnsupportedError, as a call does."""
    formula, _ = formula_of(identity)
    for value, name in zip(values, formula.inputs, strict=True):
        if isinstance(value, torch.Tensor) and not by_torch_name(str(value.dtype)[6:]):
            raise DTypeError(f"input {name!r} is {value.dtype}", hint="fusec has no such type")
    found = Name(identity, tuple(kind_of(v) for v in values))
    arguments = [argument_of(v) for v in values]
    try:
        special = root_of(found).special
    except FusecError:
        specialize(formula, arguments)  # the same error, with the lengths of this call
        raise
    special.sizes(arguments)
    return found, special


def _lengths(values: Sequence[Any]) -> list[Any]:
    return [n for v in values if isinstance(v, torch.Tensor) for n in v.shape]


def _call_fake(
    formula: str, places: str, tensors: list[torch.Tensor], numbers: list[Any]
) -> list[torch.Tensor]:
    return fake_call(formula, joined(places, tensors, numbers))


def _run_fake(
    program: str, tensors: list[torch.Tensor], numbers: list[Any], lengths: list[Any]
) -> list[torch.Tensor]:
    name, places, special = _loaded(program)
    return empty_results(special, name, joined(places, tensors, numbers), lengths)


# -- gradients ------------------------------------------------------------------------------------


def tracked(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether gradients are wanted. UnsupportedError for a tensor that has a tangent."""
    forward_ad: Any = torch.autograd.forward_ad
    if forward_ad._current_level >= 0:
        for tensor in tensors:
            if forward_ad.unpack_dual(tensor).tangent is not None:
                raise UnsupportedError(
                    "an input has a tangent, and fusec has no forward-mode derivatives",
                    hint="use reverse mode: jacrev for jacfwd, jacrev(jacrev(f)) for hessian(f)",
                )
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def below_autograd(operator: Any, *arguments: Any) -> Any:
    """The operator's own kernel, or what PyTorch has between it and autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


def _call_autograd(
    formula: str, places: str, tensors: list[torch.Tensor], numbers: list[Any]
) -> list[torch.Tensor]:
    if not tracked(tensors):
        found: list[torch.Tensor] = below_autograd(
            torch.ops.fusec.call.default, formula, places, tensors, numbers
        )
        return found
    return call_tracked(formula, joined(places, tensors, numbers))


def call_tracked(identity: str, values: Sequence[Any]) -> list[torch.Tensor]:
    """The results of a formula as part of PyTorch's graph of gradients."""
    if all(type(v) in _PLAIN for v in values) and not seen_by_torch(values):
        return _call_recorded(identity, values)
    ready = together(values)
    name, _ = checked(identity, ready)
    return list(NamedStep(name, _lengths(ready), device_of(ready)).recorded(ready))


def _call_recorded(identity: str, values: Sequence[Any]) -> list[torch.Tensor]:
    """The same where nobody looks on: by kernels, as a call of the compiled function."""
    formula, backend = formula_of(identity)
    call = Call(formula, list(values), None, backend)

    def special(arguments: Sequence[Argument]) -> Specialization:
        return root_of(Name(identity, tuple(kind_of(v) for v in call.values))).special

    results = run_tracked(call, _recorded.setdefault(identity, {}), special)
    return list(results) if isinstance(results, tuple) else [results]


def _run_autograd(
    program: str, tensors: list[torch.Tensor], numbers: list[Any], lengths: list[Any]
) -> list[torch.Tensor]:
    if not tracked(tensors):
        found: list[torch.Tensor] = below_autograd(
            torch.ops.fusec.run.default, program, tensors, numbers, lengths
        )
        return found
    name, places, _ = _loaded(program)
    values = joined(places, tensors, numbers)
    step = NamedStep(replace(name, tracked=()), lengths, device_of(values))
    if not name.tracked:
        return list(step.recorded(values))
    return list(step.tape(frozenset(name.tracked)).everything(values))


# -- vmap -----------------------------------------------------------------------------------------


def _call_vmap(
    info: Any,
    in_dims: tuple[Any, ...],
    formula: str,
    places: str,
    tensors: list[torch.Tensor],
    numbers: list[Any],
) -> tuple[list[torch.Tensor], list[int]]:
    results = batched(info.batch_size, in_dims[2], formula, places, tensors, numbers)
    return results, [0] * len(results)


def batched(
    length: int,
    dims: Sequence[int | None],
    formula: str,
    places: str,
    tensors: Sequence[torch.Tensor],
    numbers: Sequence[Any],
) -> list[torch.Tensor]:
    """The results of a formula for each position of the axes ``dims`` of its tensors, stacked."""
    if not length:
        raise UnsupportedError("vmap over an axis of length 0", hint="leave the call out then")
    found = _in_one_call(length, dims, formula, places, tensors, numbers)
    if found is not None:
        return found

    def one(part: list[torch.Tensor]) -> Any:
        return torch.ops.fusec.call(formula, places, part, list(numbers))

    return _one_by_one(length, dims, tensors, one)


def _in_one_call(
    length: int,
    dims: Sequence[int | None],
    formula: str,
    places: str,
    tensors: Sequence[torch.Tensor],
    numbers: Sequence[Any],
) -> list[torch.Tensor] | None:
    """All calls as one, where that means the same."""
    first = [t if d is None else t.movedim(d, 0) for t, d in zip(tensors, dims, strict=True)]
    alone = [t if d is None else t[0] for t, d in zip(first, dims, strict=True)]
    kinds = tuple(kind_of(v) for v in joined(places, alone, numbers))
    remaining = iter(dims)
    moved = [place == "t" and next(remaining) is not None for place in places]
    padding = fitting(Name(formula, kinds), moved, length)
    if padding is None:
        return None
    pads = [pad for pad, place in zip(padding, places, strict=True) if place == "t"]
    lined = [
        t if not pad else t.reshape([length, *(1,) * pad, *t.shape[1:]])
        for t, pad in zip(first, pads, strict=True)
    ]
    found: list[torch.Tensor] = torch.ops.fusec.call(formula, places, lined, list(numbers))
    return found


def _one_by_one(
    length: int,
    dims: Sequence[int | None],
    tensors: Sequence[torch.Tensor],
    one: Callable[[list[torch.Tensor]], Any],
) -> list[torch.Tensor]:
    """A call for each position of the axis that vmap adds, and their results stacked."""
    pairs = list(zip(tensors, dims, strict=True))
    calls = [one([t if d is None else t.select(d, k) for t, d in pairs]) for k in range(length)]
    return [torch.stack(results) for results in zip(*calls, strict=True)]


def _run_vmap(
    info: Any,
    in_dims: tuple[Any, ...],
    program: str,
    tensors: list[torch.Tensor],
    numbers: list[Any],
    lengths: list[int],
) -> tuple[list[torch.Tensor], list[int]]:
    if not info.batch_size:
        raise UnsupportedError("vmap over an axis of length 0", hint="leave the call out then")

    def one(part: list[torch.Tensor]) -> Any:
        return torch.ops.fusec.run(program, part, numbers, lengths)

    results = _one_by_one(info.batch_size, in_dims[1], tensors, one)
    return results, [0] * len(results)


def register(
    library: Any,
    name: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    autograd: Callable[..., Any],
    vmap: Callable[..., Any],
) -> None:
    """Everything that PyTorch asks of an operator."""
    library.impl(name, kernel, "CompositeExplicitAutograd")
    library.impl(name, autograd, "Autograd")
    qualified = f"{library.ns}::{name}"
    torch.library.register_fake(qualified, fake, lib=library)
    torch.library.register_vmap(qualified, vmap, lib=library)


register(LIBRARY, "call", _call_kernel, _call_fake, _call_autograd, _call_vmap)
register(LIBRARY, "run", _run_kernel, _run_fake, _run_autograd, _run_vmap)
