"""Programs as nodes of somebody else's graph: what runs is not a kernel but an operator.

The steps and tapes here are those of ``runtime.autograd``, over tensors that may have no memory and
lengths that may be symbols. May import everything below the API but ``runtime.operators``, whose
operators it finds in ``torch.ops``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fusec.runtime.addresses import in_memory
from fusec.runtime.autograd import Step, Tape, autograd_function
from fusec.runtime.autograd_values import direct_way_to
from fusec.runtime.differentiate import Differentiable
from fusec.runtime.programs import Link, Name, code_of, sizes_of, training_of

if TYPE_CHECKING:
    import torch


def split(values: Sequence[Any]) -> tuple[list[torch.Tensor], list[Any], str]:
    """Tensors, numbers, and where which of them stood: ``t``, or ``b``, ``i``, ``f`` for a number
    that is a bool, an int or a float.
    """
    import torch

    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    numbers = [v for v in values if not isinstance(v, torch.Tensor)]
    return tensors, numbers, "".join(_place(v) for v in values)


def joined(places: str, tensors: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
    """The values that :func:`split` took apart; a number has the type again that it had."""
    left, right = iter(tensors), iter(numbers)
    return [next(left) if place == "t" else _as(place, next(right)) for place in places]


def places_of(name: Name) -> str:
    """Where tensors and numbers stand among the inputs of the program ``name``."""
    kinds = {"bool": "b", "int": "i", "float": "f"}
    named = zip(code_of(replace(name, links=())).formula.inputs, name.kinds, strict=True)
    numbers = {n: kinds[kind] for n, kind in named if kind in kinds}
    return "".join(numbers.get(n, "t") for n in code_of(name).formula.inputs)


def together(values: Sequence[Any]) -> list[Any]:
    """The values on one device, and as kernels read them."""
    import torch

    device = device_of(values)
    found: list[Any] = []
    for value in values:
        if not isinstance(value, torch.Tensor):
            found.append(value)
            continue
        moved = value if value.dim() or value.device == device else value.to(device)
        found.append(in_memory(moved) if moved.is_neg() or moved._is_zerotensor() else moved)
    return found


def device_of(values: Sequence[Any]) -> torch.device:
    """The device of the first tensor; of one without dimensions only where there is no other."""
    import torch

    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    found: torch.device = next((v for v in tensors if v.dim()), tensors[0]).device
    return found


class NamedStep(Step):
    """A program by its name, for lengths that may be symbols. It runs as an operator."""

    def __init__(self, name: Name, lengths: Sequence[Any], device: torch.device) -> None:
        super().__init__(code_of(name), sizes_of(name, lengths), "", device)
        self.name = name
        self.lengths = list(lengths)

    def __call__(self, values: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Every result. The operator sees to gradients, at each level of ``torch.func``."""
        return self.launch(self.name, values)

    def recorded(self, values: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Every result, as a part of PyTorch's graph of gradients."""
        return super().__call__(values)

    def launch(self, name: Name, values: Sequence[Any]) -> list[torch.Tensor]:
        """The results of this program, or of it with what gradients start from."""
        import torch

        tensors, numbers, _ = split(values)
        found: list[torch.Tensor] = torch.ops.fusec.run(name.text(), tensors, numbers, self.lengths)
        return found

    def tape(self, tracked: frozenset[str]) -> NamedTape:
        """The program with gradients of the inputs ``tracked``."""
        names = tuple(n for n in self.code.formula.inputs if n in tracked)
        return NamedTape(self, names)


class NamedTape(Tape):
    """A named program whose results have gradients of the inputs ``tracked``."""

    def __init__(self, step: NamedStep, tracked: tuple[str, ...]) -> None:
        super().__init__(step, training_of(step.code, tracked))
        self.named_step = step
        self.tracked = tracked

    def everything(self, values: Sequence[Any]) -> Sequence[torch.Tensor]:
        import torch

        if not torch._C._are_functorch_transforms_active():
            return super().everything(values)
        from torch._functorch import autograd_function as levels

        # The kernel of an operator is called at one level of torch.func, where Function.apply
        # would begin with the levels once more.
        one_level: Any = levels
        with one_level.enable_single_level_autograd_function():
            results: Sequence[torch.Tensor] = direct_way_to(autograd_function())(self, *values)
        return results

    def forward(self, values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        import torch

        name = replace(self.named_step.name, tracked=self.tracked)
        if not torch._C._are_functorch_transforms_active():
            return tuple(self.named_step.launch(name, values))
        # Only this level is done: those below record for themselves.
        with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
            return tuple(self.named_step.launch(name, values))

    def following(
        self, code: Differentiable, wanted: Sequence[str], results: tuple[int, ...]
    ) -> NamedStep:
        step = self.named_step
        link = Link(self.tracked, tuple(wanted), results)
        name = replace(step.name, links=(*step.name.links, link))
        return NamedStep(name, step.lengths, step.device)


def _place(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return "t"
    if isinstance(value, (bool, torch.SymBool)):
        return "b"
    return "i" if isinstance(value, (int, torch.SymInt)) else "f"


def _as(place: str, number: Any) -> Any:
    """A number as the type it was given with: on its way a bool may become an int."""
    kinds = {"b": bool, "i": int, "f": float}
    return kinds[place](number) if isinstance(number, (bool, int, float)) else number
