"""Programs by name: a text that says which kernels are meant, in any process.

A graph of PyTorch keeps its constants, writes them to disk and reads them in another process. So an
operator names the program it runs by what the program is made of: the formula and its options, the
kinds of its inputs, and which gradients of which were taken. May import everything below the API,
but ``runtime.operators``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusec.ir.dtypes import BOOL, F64, I64, by_torch_name
from fusec.ir.node import Dim
from fusec.runtime.counters import OncePerKey
from fusec.runtime.differentiate import Differentiable, Training
from fusec.runtime.formula import Formula
from fusec.runtime.specialize import (
    Argument,
    Specialization,
    axis_sizes,
    input_specs,
    of_graph,
)

_NUMBER_KINDS = {"bool": BOOL, "int": I64, "float": F64}

_once = OncePerKey()
_roots: dict[object, Root] = {}


@dataclass(frozen=True)
class Link:
    """One step from a program to a gradient program of it: the inputs that were tracked, those
    whose gradients it computes, and the results, by position, whose gradients it is given.
    """

    tracked: tuple[str, ...]
    wanted: tuple[str, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Name:
    """What names a program. ``kinds`` says of each input of the formula its type, and of a tensor
    which axes have length 1; ``tracked`` are the inputs whose gradients the program prepares.
    """

    formula: str
    kinds: tuple[str, ...]
    links: tuple[Link, ...] = ()
    tracked: tuple[str, ...] = ()

    def text(self) -> str:
        """The name as an operator takes it."""
        links = [[link.tracked, link.wanted, link.results] for link in self.links]
        return json.dumps([self.formula, self.kinds, links, self.tracked])


@functools.lru_cache(maxsize=4096)
def name_of(text: str) -> Name:
    """The name that :meth:`Name.text` wrote."""
    formula, kinds, links, tracked = json.loads(text)
    found = tuple(Link(tuple(a), tuple(b), tuple(c)) for a, b, c in links)
    return Name(formula, tuple(kinds), found, tuple(tracked))


@functools.lru_cache(maxsize=4096)
def formula_of(identity: str) -> tuple[Formula, str]:
    """The formula and the backend that :meth:`Formula.written` wrote."""
    text, inputs, backend, options = json.loads(identity)
    return Formula(text, inputs, **options), backend


@dataclass
class Root:
    """A formula for inputs of certain kinds."""

    special: Specialization
    code: Differentiable


def root_of(name: Name) -> Root:
    """The formula that ``name`` begins with. Raises ShapeError, DTypeError, UnsupportedError."""

    def make() -> Root:
        formula = formula_of(name.formula)[0]
        arguments = [_standin(kind) for kind in name.kinds]
        specs = input_specs(formula, arguments)
        resolved = formula.resolved(specs, axis_sizes(specs, arguments))
        special = of_graph(formula, specs, resolved.graph, resolved.equal)
        return Root(special, Differentiable(formula, resolved.graph))

    found: Root = _once.get(_roots, (name.formula, name.kinds), make)
    return found


def code_of(name: Name) -> Differentiable:
    """The graph that ``name`` leads to."""
    code = root_of(name).code
    for link in name.links:
        following = training_of(code, link.tracked).gradient(link.wanted, link.results).code
        assert following is not None, "a gradient that is named is computed"
        code = following
    return code


def training_of(code: Differentiable, tracked: Sequence[str]) -> Training:
    """The programs of ``code`` for gradients of the inputs ``tracked``."""
    return code.training(frozenset(tracked))


def program_of(name: Name) -> Specialization:
    """The program itself."""
    if not name.links and not name.tracked:
        return root_of(name).special
    code = code_of(name)
    return training_of(code, name.tracked).forward if name.tracked else code.alone()


def sizes_of(name: Name, lengths: Sequence[Any]) -> dict[Dim, Any]:
    """Every named axis with its length; ``lengths`` has those of all tensors of the formula."""
    remaining = iter(lengths)
    arguments = [
        replace(a, shape=tuple(next(remaining) for _ in a.shape)) for a in map(_standin, name.kinds)
    ]
    return axis_sizes(root_of(name).special.specs, arguments)


def kind_of(value: Any) -> str:
    """One input as a part of a name: ``float16:n1n``, ``float``. An axis whose length is a symbol
    is not of length 1, unless the symbol has to be.
    """
    import torch

    if isinstance(value, torch.Tensor):
        axes = "".join("1" if is_one(n) else "n" for n in value.shape)
        return f"{str(value.dtype).removeprefix('torch.')}:{axes}"
    return number_kind(value)


def number_kind(value: Any) -> str:
    """``bool``, ``int`` or ``float``, of a number that may be a symbol."""
    import torch

    if isinstance(value, (bool, torch.SymBool)):
        return "bool"
    return "int" if isinstance(value, (int, torch.SymInt)) else "float"


def is_one(length: Any) -> bool:
    """Whether a length is 1; of a symbol without a value, whether it has to be."""
    if isinstance(length, int):
        return length == 1
    from torch.fx.experimental import symbolic_shapes

    # torch 2.6 has the older of the two only.
    older: Any = symbolic_shapes.guard_size_oblivious
    holds: Any = getattr(symbolic_shapes, "guard_or_false", older)
    return bool(holds(length == 1))


def argument_of(value: Any) -> Argument:
    """What specialising sees of a tensor or a number; lengths and strides may be symbols."""
    import torch

    if not isinstance(value, torch.Tensor):
        return Argument(_NUMBER_KINDS[number_kind(value)], scalar=True)
    dtype = by_torch_name(str(value.dtype).removeprefix("torch."))
    assert dtype is not None
    return Argument(dtype, tuple(value.shape), tuple(value.stride()))


def _standin(kind: str) -> Argument:
    """An argument of this kind. Lengths that are not 1 are 2: a program holds no exact shape."""
    name, tensor, axes = kind.partition(":")
    if not tensor:
        return Argument(_NUMBER_KINDS[name], scalar=True)
    dtype = by_torch_name(name)
    assert dtype is not None
    return Argument(dtype, tuple(1 if axis == "1" else 2 for axis in axes))
