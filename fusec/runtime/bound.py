"""A bound call: everything decided, for tensors like those it was bound to; and arguments by name.

May import ``fusec.errors`` and ``runtime.arguments`` and below.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusec.errors import UnknownNameError, UnsupportedError, did_you_mean
from fusec.runtime import launcher, operator_calls
from fusec.runtime.addresses import lacks_memory
from fusec.runtime.arguments import Call, note_written, run
from fusec.runtime.prepared import made

if TYPE_CHECKING:
    from fusec.runtime.formula import Formula
    from fusec.runtime.prepared import CallPlan, Prepared


class BoundCall:
    """A call with everything decided; see ``CompiledFunction.bind``."""

    __slots__ = (
        "_call",
        "_converted",
        "_fast",
        "_outputs",
        "_prepared",
        "_temporaries",
        "_values",
        "_whole",
    )

    def __init__(
        self, prepared: Prepared, call: Call, values: Sequence[Any], whole: Callable[..., Any]
    ) -> None:
        self._prepared = prepared
        self._call = call
        self._values = tuple(values)
        self._whole = whole  # the function whose call it is
        # What was copied to be read, or made of an array, is made again in every call.
        self._converted = any(map(operator.is_not, call.values, values))
        self._outputs = prepared.make_outputs
        self._temporaries = prepared.make_temporaries
        self._fast: Any = None
        if not prepared.reference and not self._converted:
            launcher.request()

    @property
    def plan(self) -> CallPlan | None:
        """The launches as data; None where the reference or an interpreter runs the call."""
        return self._prepared.plan

    def __call__(self, *values: Any) -> Any:
        """The result for ``values``, which must be like the ones bound.

        UnknownNameError for another number of them.
        """
        if self._converted or self._call.outs is not None:
            return self._write(values)
        given = values or self._values
        if self._fast is not None:
            result = self._fast(*given)
            if result is not NotImplemented:
                return result
        operator_calls.refuse_trace()
        formula = self._call.formula
        if len(given) != len(formula.inputs):
            raise UnknownNameError(
                f"{len(given)} arguments for {counted(formula.inputs)}",
                hint="pass one for each input, or none for those that were bound",
            )
        if self._prepared.reference:
            return run(self._prepared, Call(formula, list(given), None, self._call.backend))
        if any(map(_is_gone, given)):
            return self._whole(*given)  # says so
        launcher.note_repeated()
        self._fast = launcher.plan_of(self._prepared, len(given))
        results = made(self._outputs)
        self._prepared.run(given, results, made(self._temporaries))
        return results[0] if len(results) == 1 else tuple(results)

    def __copy__(self) -> Any:
        return self._bound_to(self._values, self._outs())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """The same bound anew, to copies of its tensors."""
        return self._bound_to(*copy.deepcopy((self._values, self._outs()), memo))

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            "a bound call cannot be pickled: it is for memory of this process",
            hint="pickle the function, and bind it there",
        )

    def _bound_to(self, values: tuple[Any, ...], out: Any) -> Any:
        whole: Any = self._whole
        return whole.bind(*values, out=out)

    def _outs(self) -> Any:
        """What was given to write to: a tensor, several, or None."""
        outs = self._call.outs or []
        return None if self._call.outs is None else outs[0] if len(outs) == 1 else tuple(outs)

    def _write(self, values: tuple[Any, ...]) -> Any:
        """Into given memory, if any, where other ``values`` may lie too; those are looked at."""
        call, prepared = self._call, self._prepared
        outs, out = call.outs or [], self._outs()
        if values or self._converted:
            return self._whole(*(values or self._values), out=out)
        if self._fast is not None:
            result = self._fast(*self._values, *outs)
            if result is not NotImplemented:
                note_written(outs)
                return result
        if any(map(_is_gone, (*self._values, *outs))):
            return self._whole(*self._values, out=out)
        operator_calls.refuse_trace()
        if call.direct and not prepared.reference:
            launcher.note_repeated()
            self._fast = launcher.plan_of(prepared, len(self._values), given=True)
        result = run(prepared, call)
        note_written(outs)
        return result


def _is_gone(value: Any) -> bool:
    """Whether it is a tensor whose memory was given back."""
    return hasattr(value, "data_ptr") and lacks_memory(value)


def by_name(formula: Formula, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """Arguments in the order of the inputs;

    UnknownNameError for a missing, extra or repeated one.
    """
    names = formula.inputs
    if len(args) > len(names):
        raise UnknownNameError(
            f"{len(args)} positional arguments for {counted(names)}",
            hint=f"call it as f({', '.join(names)})",
        )
    values: dict[str, Any] = dict(zip(names, args, strict=False))
    for name, value in named.items():
        if name not in names:
            hint = did_you_mean(name, names) or f"the inputs are {', '.join(names)}"
            raise UnknownNameError(f"the formula has no input {name!r}", hint=hint)
        if name in values:
            raise UnknownNameError(f"input {name!r} is given twice, by position and by name")
        values[name] = value
    missing = [n for n in names if n not in values]
    if missing:
        from fusec.frontend.resolve_names import first_use

        raise UnknownNameError(
            f"missing input {', '.join(map(repr, missing))}",
            source=formula.source,
            span=first_use(formula.program, missing[0]),
            hint=f"the inputs are {', '.join(names)}",
        )
    return [values[n] for n in names]


def counted(names: Sequence[str]) -> str:
    """How many inputs there are, and which."""
    return f"{len(names)} input{'s' if len(names) != 1 else ''} ({', '.join(names)})"
