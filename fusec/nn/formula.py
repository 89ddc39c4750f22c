"""A formula as a module, with parameters that are learnt. May import torch and everything below the
public names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fusec import api
from fusec.errors import UnknownNameError, did_you_mean


class Formula(torch.nn.Module):
    """A formula, some of whose inputs are parameters.

    ``Formula("x * sigmoid(beta * x)", parameters={"beta": 1.0})`` is called with x, and learns
    beta. A parameter is given as its first value: a number, or a float tensor of any shape, which
    ``device`` and ``dtype`` convert. ``options`` are those of ``fusec.compile``. Raises ParseError,
    and UnknownNameError for a parameter that the formula does not name.
    """

    def __init__(
        self,
        formula: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.function: api.CompiledFunction = api.compile(formula, **options)
        self.formula = formula
        for name, value in (parameters or {}).items():
            if name not in self.function.inputs:
                known = self.function.inputs
                hint = did_you_mean(name, known) or f"its inputs are {', '.join(known)}"
                raise UnknownNameError(f"the formula has no input {name!r}", hint=hint)
            self.register_parameter(name, _parameter(value, device, dtype))

    @property
    def inputs(self) -> tuple[str, ...]:
        """What a call gives: the inputs of the formula that are no parameters, in order."""
        return tuple(n for n in self.function.inputs if n not in self._parameters)

    def forward(self, *args: Any, **named: Any) -> Any:
        """The result, a tensor or a tuple of them, for values of the other inputs."""
        if named or len(args) != len(self.inputs):
            given = dict(zip(self.inputs, args, strict=False))
            if len(args) > len(self.inputs) or given.keys() & named.keys():
                raise UnknownNameError(
                    "inputs are given twice, or are too many",
                    hint=f"call it as f({', '.join(self.inputs)})",
                )
            return self.function(**given, **named, **self._parameters)
        values = iter(args)
        learnt = self._parameters
        return self.function(
            *(learnt[n] if n in learnt else next(values) for n in self.function.inputs)
        )

    def extra_repr(self) -> str:
        """The formula and what it learns."""
        text = f"{' '.join(self.formula.split())!r}"
        shapes = {n: list(p.shape) for n, p in self._parameters.items() if p is not None}
        return f"{text}, parameters={shapes}" if shapes else text


def _parameter(value: Any, device: Any, dtype: torch.dtype | None) -> torch.nn.Parameter:
    """A parameter with this first value. One that is a parameter already is shared."""
    if isinstance(value, torch.nn.Parameter) and device is None and dtype is None:
        return value
    number = isinstance(value, (bool, int, float))
    kind = dtype or (torch.get_default_dtype() if number else None)
    if isinstance(value, torch.Tensor):
        value = value.detach().clone()
    return torch.nn.Parameter(torch.as_tensor(value, dtype=kind, device=device))
