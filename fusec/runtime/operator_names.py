"""Operators of PyTorch with a name of their own, each for one formula.

May import torch and everything below the API.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from fusec import forks
from fusec.errors import UnknownNameError, UnsupportedError, did_you_mean
from fusec.runtime import operators
from fusec.runtime.formula import Formula
from fusec.runtime.operator_steps import split

_QUALIFIED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)::([A-Za-z_][A-Za-z0-9_]*)")
_TAKEN = ("aten", "fusec", "prim", "prims")  # namespaces of others

_lock = forks.lock()
_defined: dict[str, tuple[object, Any]] = {}


def define(qualified: str, formula: Formula, written: str, numbers: Sequence[str]) -> Any:
    """The operator ``qualified`` for a formula, ``written`` as ``Formula.written`` does; inputs
    called in ``numbers`` are Python numbers, the others tensors.

    Raises UnsupportedError for a name that cannot be had, UnknownNameError for an input that the
    formula has not.
    """
    found = _QUALIFIED.fullmatch(qualified)
    if found is None or found.group(1) in _TAKEN:
        raise UnsupportedError(
            f"{qualified!r} cannot name an operator",
            hint="give a namespace of your own and a name, as in 'mylib::gelu'",
        )
    for name in numbers:
        if name not in formula.inputs:
            hint = did_you_mean(name, formula.inputs)
            raise UnknownNameError(f"the formula has no input {name!r}", hint=hint)
    with _lock:
        _defined[qualified] = _once(qualified, formula, written, frozenset(numbers))
    return getattr(getattr(torch.ops, found.group(1)), found.group(2)).default


def _once(
    qualified: str, formula: Formula, written: str, numbers: frozenset[str]
) -> tuple[object, Any]:
    wanted = (written, numbers)
    known = _defined.get(qualified)
    if known is not None and known[0] == wanted:
        return known
    namespace, name = qualified.split("::")
    if known is not None or torch._C._dispatch_has_kernel(qualified):
        raise UnsupportedError(
            f"the operator {qualified} is there already, and is not this formula",
            hint="an operator cannot be changed: give this one another name",
        )
    make: Any = torch.library.Library  # torch gives its constructor no types
    library = make(namespace, "FRAGMENT")
    # Whoever holds the library keeps the operator alive.
    library.define(f"{name}{_schema(formula, numbers)}", tags=operators.TAGS)
    _implement(library, name, written, len(formula.outputs) == 1)
    return wanted, library


def _schema(formula: Formula, numbers: frozenset[str]) -> str:
    """Arguments and results, as PyTorch writes them."""
    kinds = ("Scalar" if name in numbers else "Tensor" for name in formula.inputs)
    arguments = [f"{kind} {_argument(k, formula)}" for k, kind in enumerate(kinds)]
    results = ", ".join(["Tensor"] * len(formula.outputs))
    return f"({', '.join(arguments)}) -> {results if len(formula.outputs) == 1 else f'({results})'}"


def _argument(position: int, formula: Formula) -> str:
    """The name of an input, where a schema can have it."""
    name = formula.inputs[position]
    plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) and name not in ("self", "out")
    return name if plain and name not in _WORDS else f"input_{position}"


# What a schema would read as a type or a word of its own.
_WORDS = frozenset(
    ("Tensor", "Scalar", "None", "True", "False", "inf", "nan", "int", "float", "bool", "str",
     "from", "in", "is", "lambda", "not", "and", "or", "if", "else", "for", "while", "return")
)  # fmt: skip


def _implement(library: Any, name: str, written: str, single: bool) -> None:
    packet = getattr(getattr(torch.ops, library.ns), name)

    def given(results: Sequence[Any]) -> Any:
        return results[0] if single else tuple(results)

    def kernel(*values: Any) -> Any:
        return given(operators.call_formula(written, values))

    def fake(*values: Any) -> Any:
        return given(operators.fake_call(written, values))

    def autograd(*values: Any) -> Any:
        if not operators.tracked(split(values)[0]):
            return operators.below_autograd(packet.default, *values)
        return given(operators.call_tracked(written, values))

    def vmap(info: Any, in_dims: Sequence[int | None], *values: Any) -> tuple[Any, Any]:
        tensors, numbers, places = split(values)
        dims = [d for d, place in zip(in_dims, places, strict=True) if place == "t"]
        results = operators.batched(info.batch_size, dims, written, places, tensors, numbers)
        return given(results), given([0] * len(results))

    operators.register(library, name, kernel, fake, autograd, vmap)
