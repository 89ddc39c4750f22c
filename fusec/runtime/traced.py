"""PyTorch functions as source: a function that is traced once per kind of arguments, then runs as
fused kernels.

A *program* is one trace: its guards say for which lengths it holds. A *bound call* is a program for
exact shapes, so that a repeated call takes its views and launches. May import everything below the
API, which passes in how a graph becomes callable.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fusec import forks
from fusec.errors import DTypeError, UnknownNameError, UnsupportedError
from fusec.frontend.trace import trace
from fusec.frontend.trace_asked import refuse_autocast
from fusec.frontend.trace_returned import taken_apart
from fusec.passes.simplify import Numerics
from fusec.runtime.arrays import is_array, number_of
from fusec.runtime.formula import Formula
from fusec.runtime.operator_calls import (
    leave_alone,
    operators_are_watched,
    refuse_transforms,
    replace_for_dynamo,
)
from fusec.runtime.specialize import Variant
from fusec.runtime.traced_arguments import (
    arguments,
    as_tensor,
    constants_of,
    given,
    is_argument,
    is_empty_or_traced,
    is_static,
    kind_of,
    leaf_of,
    names_of,
    nesting,
    refuse_layouts,
)
from fusec.runtime.traced_bound import Bound, Known, bind, by_position, holds, looks_at_floats
from fusec.runtime.traced_formula import TracedFormula
from fusec.runtime.traced_integers import Integers
from fusec.runtime.traced_surroundings import reader
from fusec.runtime.traced_variables import Variables

Make: TypeAlias = "Callable[[Formula, str], Any]"
_MEMO_LIMIT = 1024
_MANY = 64  # programs of one function
_DEFAULT_SHAPE = (4096, 4096)


@dataclass
class TracedFunction:
    """A PyTorch function, callable with tensors. Thread-safe; made by ``fusec.compile``.

    It takes what the function takes and returns what it returns: tensors or NumPy arrays, Python
    numbers, and lists, tuples and dicts of them. Floats are run-time numbers; other numbers,
    strings and None are part of the kind that a trace is for.
    """

    function: Callable[..., Any]
    numerics: Numerics
    backend: str
    make: Make
    kernel: str
    batch_invariant: bool = False
    tune: float = 0.0
    build: str = "auto"
    _programs: dict[Any, list[Known]] = field(default_factory=dict)
    _functions: dict[Any, Any] = field(default_factory=dict)  # equal graphs share their kernels
    _memo: dict[Any, Bound] = field(default_factory=dict)
    _lock: Any = field(default_factory=forks.reentrant_lock)
    _integers: Integers = field(default_factory=Integers)
    _floats: bool = False  # whether a guard looks at the value of a float

    def __post_init__(self) -> None:
        leave_alone()
        self.__wrapped__ = self.function
        self.__name__ = getattr(self.function, "__name__", type(self.function).__name__)
        self.__qualname__ = getattr(self.function, "__qualname__", self.__name__)
        self.__module__ = getattr(self.function, "__module__", __name__)
        self.__doc__ = getattr(self.function, "__doc__", None)
        try:
            self._signature = inspect.signature(self.function)
        except (TypeError, ValueError):
            raise UnsupportedError(
                f"{self.__name__} has no signature that Python knows",
                hint="wrap it in a function of your own: lambda x: ...",
            ) from None
        self._parameters = tuple(self._signature.parameters)
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._constants = constants_of(self._signature)
        own = self._signature.parameters.values()
        self._simple = not self._constants and all(p.kind in kinds for p in own)
        self._variables = Variables(self.function)
        self._surroundings = reader()

    # -- what it is -------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self._parameters

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Every kernel built so far, and why each one."""
        return tuple(v for function in self._functions.values() for v in function.variants)

    def _all(self) -> list[Known]:
        return [known for programs in self._programs.values() for known in programs]

    def __repr__(self) -> str:
        return f"<fusec.TracedFunction {self.__qualname__}{self._signature}>"

    def __reduce__(self) -> Any:
        """Pickled by reference, as functions are: as itself where a decorator made it."""
        target = _lookup(self.__module__, self.__qualname__)
        if target is self:
            return self.__qualname__
        if target is not self.function:
            raise UnsupportedError(
                f"{self.__qualname__} cannot be pickled: no module has it under that name",
                hint="define it with 'def' at the top of a module",
            )
        options = (self.kernel, self.batch_invariant, self.tune, self.build)
        return TracedFunction, (self.function, self.numerics, self.backend, self.make, *options)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A function in a class is no function of tensors alone."""
        if instance is None:
            return self
        raise UnsupportedError(
            f"{self.__qualname__} is a method, and fusec traces functions of tensors",
            hint="make it a function, and pass what it reads of 'self' as arguments",
        )

    # -- calling ----------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, out: Any = None, **named: Any) -> Any:
        """What the function returns for these arguments, from fused kernels.

        ``out`` takes the result, or a tuple the results, if the function has no parameter of that
        name. Raises UnsupportedError, ShapeError and DTypeError, with the line of the function.
        """
        if out is not None and "out" in self._parameters:
            named["out"], out = out, None
        return self._called(*self._flatten(args, named), out)

    def _called(self, leaves: list[Any], structure: Any, out: Any) -> Any:
        if operators_are_watched():
            return _given(self._eager(leaves, structure), False, out)
        key = self._key(leaves, structure)
        try:
            bound = self._memo.get(key)
        except TypeError:  # lengths are symbols: inside another trace
            return self._eager(leaves, structure)
        if bound is None or not self._variables.unchanged():
            bound = self._bound_for(key, leaves, structure)
        if bound is None:  # nothing to compute on
            results = self._eager([as_tensor(v) for v in leaves], structure)
            return _given(results, any(is_array(v) for v in leaves), out)
        return self._run(bound, leaves, out)

    def bind(self, /, *args: Any, **named: Any) -> Callable[..., Any]:
        """A prepared call for inputs of these shapes, strides and types: the least work per call.

        It takes tensors like the ones given, by position, or nothing: then those.
        """
        leaves, structure = self._flatten(args, named)
        bound = self._bound_for(self._key(leaves, structure), leaves, structure)
        if bound is None or not bound.plain or looks_at_floats(bound.known.program):
            return lambda *values: self(*values) if values else self(*args, **named)
        order = [number for number, _ in bound.views]
        everything = [*leaves, *bound.known.program.captured]
        prepared: Callable[..., Any] = bound.known.function.bind(*(everything[n] for n in order))
        if order == list(range(len(leaves))):
            return prepared
        captured = list(bound.known.program.captured)
        fixed = [(k, leaf) for k, leaf in enumerate(leaves) if is_static(leaf)]

        def call(*values: Any) -> Any:
            if values and len(values) != len(leaves):
                hint = "pass one for each input, or none for those that were bound"
                count = f"{len(values)} arguments for {len(leaves)} inputs"
                raise UnknownNameError(count, hint=hint)
            if values and any(kind_of(values[k]) != kind_of(leaf) for k, leaf in fixed):
                return self._called(list(values), structure, None)
            everything = [*(values or leaves), *captured]
            return prepared(*(everything[n] for n in order))

        return call

    def _flatten(self, args: Sequence[Any], named: dict[str, Any]) -> tuple[list[Any], Any]:
        """Tensors and numbers of a call, in order, and how they were nested."""
        if self._simple and not named and len(args) == len(self._parameters):
            for value in args:
                if isinstance(value, list | tuple | dict):
                    break
            else:
                return list(args), None
        from torch.utils._pytree import tree_flatten

        parts = self._signature, self._constants, args, named
        return tree_flatten(arguments(self.__name__, *parts))

    def _eager(self, leaves: Sequence[Any], structure: Any) -> Any:
        """The function itself over these leaves."""
        if structure is None:
            return self.function(*leaves)
        from torch.utils._pytree import tree_unflatten

        arguments = tree_unflatten(list(leaves), structure)
        bound = inspect.BoundArguments(self._signature, arguments)
        return self.function(*bound.args, **bound.kwargs)

    def _key(self, leaves: list[Any], structure: Any) -> tuple[Any, ...]:
        """All of a call that a bound call depends on. NumPy's scalars become Python's numbers."""
        found: list[Any] = [self._surroundings(), structure and nesting(structure)]
        for leaf in leaves:
            try:
                lies = leaf.is_contiguous() or leaf.stride()
                found.append((leaf.dtype, leaf.shape, leaf.is_cuda, lies))
            except (AttributeError, RuntimeError):  # no tensor, or a sparse one
                refuse_layouts(leaves, self._namer(len(leaves), structure))
                leaves[len(found) - 2] = number = number_of(leaf)
                found.append(self._key_of(number))
        return tuple(found)

    def _key_of(self, leaf: Any) -> Any:
        """The part of a key that is no tensor's."""
        if type(leaf) is float:
            kind = kind_of(leaf)
            return (kind, leaf) if self._floats and kind is float else kind
        if hasattr(leaf, "shape"):
            return leaf.dtype, leaf.shape, getattr(leaf, "strides", None)
        self._refuse([leaf])
        return kind_of(leaf)

    def _refuse(self, leaves: Sequence[Any]) -> None:
        for leaf in leaves:
            if not is_argument(leaf):
                raise DTypeError(
                    f"{self.__name__} is called with a {type(leaf).__name__}",
                    hint="pass tensors, NumPy arrays, numbers, and tuples or dicts of them",
                )

    def _bound_for(self, key: Any, leaves: list[Any], structure: Any) -> Bound | None:
        """The program for these shapes, traced if there is none, ready to run."""
        name_of = self._namer(len(leaves), structure)
        refuse_layouts(leaves, name_of)
        with self._lock:
            if not self._variables.unchanged():
                self._variables = Variables(self.function)
                self._programs.clear()
                self._functions.clear()
                self._memo.clear()
            if any(is_empty_or_traced(x) for x in leaves):
                return None
            kind = (self._surroundings(), nesting(structure), tuple(map(kind_of, leaves)))
            if kind not in self._programs:
                self._integers.met(self.__name__, kind, name_of)
            programs = self._programs.setdefault(kind, [])
            for known in programs:
                if holds(known.program, leaves):
                    break
            else:
                known = self._trace(leaves, structure)
                programs.append(known)
                self._warn_of_many()
                if looks_at_floats(known.program):
                    self._floats = True
                    self._memo.clear()
                    key = self._key(leaves, structure)
            if len(self._memo) >= _MEMO_LIMIT:
                self._memo.clear()
            return self._memo.setdefault(key, bind(known, leaves))

    def _namer(self, count: int, structure: Any) -> Callable[[int], str]:
        return lambda k: (names_of(count, structure) if structure else self._parameters)[k]

    def _warn_of_many(self) -> None:
        if len(self._all()) == _MANY:
            warnings.warn(
                f"{self.__name__} has been traced {_MANY} times: it asks for lengths or numbers,"
                " or is given ever new integers",
                stacklevel=5,
            )

    def _trace(self, leaves: list[Any], structure: Any) -> Known:
        self._refuse([x for x in leaves if not is_static(x)])
        refuse_transforms(self.__name__)
        for code in self._variables.code:
            refuse_autocast(code)
        names = names_of(len(leaves), structure) if structure else list(self._parameters)
        moving = [k for k, x in enumerate(leaves) if not is_static(x)]
        if not any(hasattr(leaves[k], "shape") for k in moving) and not self._variables.tensors:
            raise UnsupportedError(
                f"{self.__name__} is called without a tensor", hint="pass at least one"
            )

        def run(standins: list[Any]) -> Any:
            filled = list(leaves)
            for position, standin in zip(moving, standins, strict=True):
                filled[position] = standin
            return self._eager(filled, structure)

        described = [leaf_of(names[k], leaves[k]) for k in moving]
        program = trace(self.function, run, described, self._variables.tensors)
        program = by_position(program, moving, len(leaves))
        if program.resolved is None:
            return Known(program, None)
        formula = TracedFormula(
            program.source,
            program.resolved,
            self.numerics,
            self.kernel,
            self.batch_invariant,
            self.tune,
            self.build,
        )
        graph = (program.source.text, *formula.identity().values())
        if graph not in self._functions:
            self._functions[graph] = self.make(formula, self.backend)
        return Known(program, self._functions[graph])

    def _run(self, bound: Bound, leaves: list[Any], out: Any) -> Any:
        values: list[Any] = [*leaves, *bound.known.program.captured]
        if bound.plain:
            return bound.known.function(*(values[n] for n, _ in bound.views), out=out)
        numpy = any(is_array(v) for v in leaves)
        values = [as_tensor(v) for v in values] if numpy else values
        results = bound.run(values)
        return _given(bound.known.program.structure.filled(results), numpy, out)

    # -- looking ----------------------------------------------------------------------------------

    def show(self, stage: str = "triton", *example_inputs: Any, target: str | None = None) -> str:
        """The function at ``stage``: formula graph plan kernel triton cpp ttir ttgir llir ptx sass
        amdgcn.

        ``example_inputs`` are arguments to trace with (also tensors on the meta device); without
        them each parameter that has no default is a float32 matrix of 4096 x 4096.
        """
        known, views = self._example(example_inputs)
        if known.function is None:
            raise UnsupportedError(f"{self.__name__} computes nothing, so there is no kernel")
        return str(known.function.show(stage, *views, target=target))

    def _example(self, examples: Sequence[Any]) -> tuple[Known, list[Any]]:
        import torch

        if not examples:
            required = [
                p
                for p in self._signature.parameters.values()
                if p.default is inspect.Parameter.empty
            ]
            examples = [torch.empty(_DEFAULT_SHAPE, device="meta") for _ in required]
        leaves, structure = self._flatten(examples, {})
        bound = self._bound_for(self._key(leaves, structure), leaves, structure)
        if bound is None:
            raise UnsupportedError(
                "an example input has an axis of length 0",
                hint="nothing is compiled for empty tensors",
            )
        values = [*leaves, *bound.known.program.captured]
        return bound.known, bound.views_of([as_tensor(v) for v in values])


def _given(results: Any, numpy: bool, out: Any) -> Any:
    """The results as the caller wants them: in ``out``, or as arrays if arrays came."""
    if out is not None or not numpy:
        return given(results, out)
    import torch

    leaves, structure = taken_apart(results)
    return structure.filled([x.numpy() if isinstance(x, torch.Tensor) else x for x in leaves])


def _while_tracing(traced: Any, /, *args: Any, **named: Any) -> Any:
    """What Dynamo reads in place of a call: the function itself, for its graph."""
    return traced.function(*args, **named)


replace_for_dynamo(TracedFunction.__call__, _while_tracing)


def _lookup(module: str | None, name: str) -> Any:
    found: Any = sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
