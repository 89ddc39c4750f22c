"""What can be said of a formula before any shape is known: its inputs, its functions and their
arguments.

May import ``fusec.source``, ``fusec.errors``, ``fusec.ir`` and, of the frontend, ``syntax``,
``resolve_values`` and ``resolve_functions``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from fusec.errors import FusecError, UnknownNameError, UnsupportedError, did_you_mean
from fusec.frontend import resolve_functions as functions
from fusec.frontend import syntax
from fusec.frontend.resolve_values import CONSTANTS
from fusec.frontend.syntax import Assign, FunctionDef, Name, Program
from fusec.ir.derived import DERIVED, Derived
from fusec.source import Source, Span

_RESERVED = frozenset(("def", "and", "or", "not", "if", "else"))


def free_names(program: Program) -> tuple[str, ...]:
    """The inputs of a formula: names that nothing assigns before, in order of first appearance."""
    return tuple(dict.fromkeys(name.name for name in _free(program)))


def check(program: Program, source: Source, inputs: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the inputs, after all checks that need no shapes.

    Raises UnknownNameError for a function, keyword or (with ``inputs``) name that does not exist or
    a call that does not fit, UnsupportedError for recursion and for a formula without inputs,
    FusecError for a bad ``inputs``.
    """
    _check_calls(program, source)
    if inputs is None:
        names = free_names(program)
    else:
        names = tuple(inputs)
        _check_inputs(program, source, names)
    if not names:
        raise UnsupportedError(
            "the formula uses no input",
            source=source,
            span=program.result[0].span,
            hint="a kernel needs a tensor to work on: name one, as in 'x + 1'",
        )
    return names


def is_all(node: syntax.Node) -> bool:
    """Whether this is the bare name ``all``, which means every axis after ``axis=``."""
    return isinstance(node, Name) and node.name == "all"


def index_names(program: Program) -> frozenset[str]:
    """Every name that stands in the brackets of ``x[...]``, here or in a function it goes to."""
    known = {row.name: _positions(row) for rows in DERIVED.values() for row in rows}
    for statement in program.statements:
        if isinstance(statement, FunctionDef):
            inside = _index_names(statement.body, known)
            known[statement.name] = [p.name in inside for p in statement.parameters]
    return frozenset(_index_names(program, known))


def _positions(row: Derived) -> list[bool]:
    """Which parameters of a composite are positions along an axis."""
    return [f"[{parameter.name}]" in row.body for parameter in row.parameters]


def _index_names(tree: syntax.Node, known: Mapping[str, Sequence[bool]]) -> set[str]:
    found: set[str] = set()
    for node in syntax.walk(tree):
        if isinstance(node, syntax.Index):
            found.update(n.name for n in syntax.walk(node.index) if isinstance(n, Name))
        elif isinstance(node, syntax.Call):
            pairs = zip(node.arguments, known.get(node.function, ()), strict=False)
            names = (a.name for a, position in pairs if position and isinstance(a, Name))
            found.update(names)
    return found


def _free(program: Program) -> Iterator[Name]:
    assigned: set[str] = set(CONSTANTS)
    for statement in program.statements:
        if isinstance(statement, Assign):
            yield from _names(statement.value, assigned)
            assigned.add(statement.name)
        else:
            yield from _names(statement.body, assigned | {p.name for p in statement.parameters})
    for expression in program.result:
        yield from _names(expression, assigned)


def _names(expression: syntax.Expression, known: set[str]) -> Iterator[Name]:
    axes: set[int] = set()
    for node in syntax.walk(expression):
        if isinstance(node, syntax.Keyword) and node.name == "axis" and is_all(node.value):
            axes.add(id(node.value))
    for node in syntax.walk(expression):
        if isinstance(node, Name) and node.name not in known and id(node) not in axes:
            yield node


def _check_calls(program: Program, source: Source) -> None:
    places = {s.name: s.name_span for s in program.statements if isinstance(s, FunctionDef)}
    known: dict[str, functions.UserFunction] = {}
    for part in (*program.statements, *program.result):
        own = part.name if isinstance(part, FunctionDef) else None
        visible = {name: f for name, f in known.items() if name != own}
        for node in syntax.walk(part):
            if isinstance(node, syntax.Call):
                check_call(node, own, visible, places, source)
        if isinstance(part, FunctionDef):
            known[part.name] = functions.UserFunction(part, {}, {})


def check_call(
    call: syntax.Call,
    own: str | None,
    visible: dict[str, functions.UserFunction],
    places: dict[str, Span],
    source: Source,
) -> None:
    """Raise if ``call`` names no function, fits none of its forms, or calls where it stands."""
    if call.function == own:
        raise UnsupportedError(
            f"'{own}' calls itself",
            source=source,
            span=call.function_span,
            hint="functions are expanded in place, so they cannot be recursive",
        )
    functions.find(call, visible, source, places.get(call.function))


def _check_inputs(program: Program, source: Source, names: tuple[str, ...]) -> None:
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or name in _RESERVED:
            raise FusecError(f"inputs= holds {name!r}, which is no name of the language")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FusecError(f"inputs= names '{twice}' twice")
    for free in _free(program):
        if free.name not in names:
            raise UnknownNameError(
                f"unknown name '{free.name}'; the inputs are {', '.join(names) or 'none'}",
                source=source,
                span=free.span,
                hint=did_you_mean(free.name, names) or "add it to inputs=, or assign it first",
            )


def first_use(program: Program, name: str) -> Span | None:
    """Where ``name`` stands first, or None if the formula does not use it."""
    for node in syntax.walk(program):
        if isinstance(node, Name) and node.name == name:
            return node.span
    return None


def output_names(program: Program, inputs: Collection[str]) -> tuple[str, ...]:
    """A name for each result: its own if it is one, unique, and no input's, else ``out``, ``out_1``
    and so on.
    """
    taken: set[str] = set()
    names: list[str] = []
    for expression in program.result:
        own = expression.name if isinstance(expression, Name) else "out"
        own = "out" if own in inputs else own
        candidate, serial = own, 1
        while candidate in taken or candidate in inputs:
            candidate, serial = f"{own}_{serial}", serial + 1
        taken.add(candidate)
        names.append(candidate)
    return tuple(names)
