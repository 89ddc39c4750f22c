"""Programs in PyTorch's graph of gradients whose results are parts of wholes, or whose inputs are
pieces of arguments: the graph has the wholes and the arguments, so that nothing is copied together.

May import everything below the API.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusec.runtime.addresses import in_memory
from fusec.runtime.autograd import Step, Tape
from fusec.runtime.autograd_values import plain, unsqueezed, way_to
from fusec.runtime.differentiate import Gradient
from fusec.runtime.shapes import concrete
from fusec.runtime.traced_joined import Layout, Place
from fusec.runtime.traced_steps import along

if TYPE_CHECKING:
    import torch


def run_joined(
    step: Step, layout: Layout, views: Sequence[Any], everything: Sequence[Any]
) -> list[torch.Tensor]:
    """The tensors of ``layout`` as results of ``step``, with gradients. ``views`` are the inputs of
    the program, ``everything`` the arguments that they may be pieces of.
    """
    taken, sources = _sources(layout, views, everything)
    tracked = frozenset(
        name
        for name, place in zip(step.code.formula.inputs, sources, strict=True)
        if getattr(taken[place.at], "requires_grad", False)
    )
    tape = layout.tapes.get((step, tracked))
    if tape is None:
        tape = layout.tapes[step, tracked] = JoinedTape(step, tracked, layout, sources)
    found: tuple[torch.Tensor, ...] = way_to(_function())(tape, *taken)
    return list(found[: len(layout.plans)])


def _sources(
    layout: Layout, views: Sequence[Any], everything: Sequence[Any]
) -> tuple[list[Any], list[Place]]:
    """What the graph of gradients takes, and where in it each input of the program lies."""
    taken = [in_memory(everything[own.argument]) for own in layout.pieces]
    places = {
        k: Place(at, way) for at, own in enumerate(layout.pieces) for k, way in own.ways.items()
    }
    for k, value in enumerate(views):
        if k not in places:
            places[k] = Place(len(taken), [])
            taken.append(value)
    return taken, [places[k] for k in range(len(views))]


class JoinedTape(Tape):
    """A step whose results lie in wholes, with gradients of some of its inputs. ``sources`` says
    where in what it takes each of its inputs lies.
    """

    def __init__(
        self, step: Step, tracked: frozenset[str], layout: Layout, sources: Sequence[Place]
    ) -> None:
        super().__init__(step, step.code.training(tracked))
        self.layout = layout
        self.sources = sources
        self.likes: tuple[torch.Tensor, ...] = ()  # arguments that are read in pieces, on "meta"
        self.names = step.code.formula.inputs
        self.place_of = dict(zip(self.names, sources, strict=True))
        seen = len(layout.plans)
        extra = len(self.training.outputs) - len(layout.places)
        self.places = [*layout.places, *(Place(seen + k, []) for k in range(extra))]
        moving = {p.at for p, r in zip(self.places, self.training.requiring, strict=True) if r}
        requiring = self.training.requiring
        moving |= {late.place.at for late in layout.late if requiring[late.output]}
        self.still = [k for k in range(seen + extra) if k not in moving]
        self.saved_inputs = _distinct(sources[k].at for k in self.kept_inputs)
        self.saved_results = _distinct(self.places[k].at for k in self.kept_outputs)

    def forward(self, taken: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The wholes, the other results, then what is kept for the gradient."""
        values = [along(place.way, taken[place.at]) for place in self.sources]
        tensors = self.layout.tensors(self.step.device)
        outs = self.layout.parts(tensors)
        found = self.step.run(self.training.forward, values, outs)
        self.layout.finish(tensors)
        return (*tensors, *found[len(outs) :])

    def saved(self, taken: Sequence[Any], results: Sequence[torch.Tensor]) -> list[Any]:
        """What :meth:`values` starts from."""
        return [taken[k] for k in self.saved_inputs] + [results[k] for k in self.saved_results]

    def values(self, saved: Sequence[Any], numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Saved tensors, and pieces of them, by the names that the gradient knows them by."""
        found: dict[str, Any] = dict(numbers)
        inputs = dict(zip(self.saved_inputs, saved, strict=False))
        results = dict(zip(self.saved_results, saved[len(inputs) :], strict=True))
        for k in self.kept_inputs:
            place = self.sources[k]
            found[self.names[k]] = along(place.way, inputs[place.at])
        for k in self.kept_outputs:
            place, output = self.places[k], self.training.outputs[k]
            found[output.name] = unsqueezed(along(place.way, results[place.at]), output.squeeze)
        return found

    def gradients(
        self,
        named: dict[str, Any],
        grads: Sequence[torch.Tensor | None],
        needed: Sequence[int],
    ) -> dict[int, torch.Tensor]:
        """The gradients of what was taken at the places ``needed``."""
        import torch

        parts = self._parts([None if g is None else plain(g) for g in grads])
        smooth = self.training.smooth
        results = tuple(k for k, g in enumerate(parts) if g is not None and smooth[k])
        wanted = [name for name, place in self.place_of.items() if place.at in needed]
        made = self.training.gradient(tuple(wanted), results)
        for name, k in made.given:
            named[name] = unsqueezed(parts[k], self.training.outputs[k].squeeze)
        wholes = {k: self._like(k) for k in needed if k < len(self.layout.pieces)}
        targets = {} if torch.is_grad_enabled() else self._targets(made, wanted, wholes)
        computed = self._computed(made, named, targets)
        found: dict[int, torch.Tensor] = {}
        for name, summands in zip(wanted, made.parts, strict=True):
            place = self.place_of[name]
            if not summands and name not in self.training.reached:
                if place.at in wholes:
                    along(place.way, wholes[place.at]).zero_()
                continue
            if name not in targets:
                gradient = self.whole(name, summands, named, computed)
                if place.at not in wholes:
                    found[place.at] = gradient
                    continue
                along(place.way, wholes[place.at]).copy_(gradient)
            found[place.at] = wholes[place.at]
        return found

    def _parts(self, grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradients of the program's results, for those of the tensors that they lie in."""
        found: list[torch.Tensor | None] = []
        for place in self.places:
            grad = grads[place.at]
            found.append(None if grad is None else along(place.way, grad))
        for late in self.layout.late:
            grad = grads[late.place.at]
            if grad is None or not self.training.smooth[late.output]:
                continue
            form = self.layout.plans[self.places[late.output].at]
            part, other = late.pulled_back(along(late.place.way, grad), form), found[late.output]
            found[late.output] = part if other is None else other + part
        return found

    def _like(self, k: int) -> torch.Tensor:
        """A new tensor for the gradient of an argument, 0 where no piece of it is read."""
        import torch

        made = torch.empty_like(self.likes[k], device=self.step.device)
        return made if self.layout.pieces[k].all else made.zero_()

    def _targets(
        self, made: Gradient, wanted: Sequence[str], wholes: Mapping[int, torch.Tensor]
    ) -> dict[str, tuple[int, torch.Tensor]]:
        """By the names of inputs: which result of the gradient program lies where in a whole."""
        found: dict[str, tuple[int, torch.Tensor]] = {}
        for name, summands in zip(wanted, made.parts, strict=True):
            place = self.place_of[name]
            if place.at not in wholes or len(summands) != 1 or summands[0].squeezed:
                continue
            at = summands[0].place
            if not isinstance(at, int):
                continue
            assert made.code is not None
            output = made.code.graph.outputs[at]
            rank = len(output.node.shape)
            full = concrete(output.node.shape, self.step.sizes)
            shape = tuple(n for k, n in enumerate(full) if k - rank not in output.squeeze)
            target = along(place.way, wholes[place.at])
            if shape == tuple(target.shape):
                found[name] = at, target
        return found

    def _computed(
        self,
        made: Gradient,
        named: Mapping[str, Any],
        targets: Mapping[str, tuple[int, torch.Tensor]],
    ) -> Sequence[torch.Tensor]:
        """The results of the gradient program, some of them in their places."""
        if made.code is None:
            return ()
        step = self.step.following(made.code)
        values = [named[n] for n in made.code.formula.inputs]
        if not targets:
            return step(values)
        outs = dict(targets.values())
        return step.run(
            made.code.alone(), values, [outs.get(k) for k in range(len(made.code.graph.outputs))]
        )


def _distinct(numbers: Any) -> tuple[int, ...]:
    return tuple(sorted(set(numbers)))


@functools.cache
def _function() -> Any:
    """The autograd function of all such programs; made at the first use, when torch is there."""
    import torch

    class FusedParts(torch.autograd.Function):
        """One program of fusec in PyTorch's graph of gradients."""

        @staticmethod
        def forward(tape: JoinedTape, *taken: Any) -> tuple[torch.Tensor, ...]:
            return tape.forward(taken)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            tape, *taken = inputs
            ctx.tape = tape
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*(output[k] for k in tape.still))
            pairs = zip(tape.names, tape.sources, strict=True)
            ctx.numbers = {n: taken[p.at] for n, p in pairs if n in tape.numbers}
            if not tape.likes:
                tape.likes = tuple(map(_like, taken[: len(tape.layout.pieces)]))
            ctx.save_for_backward(*tape.saved(taken, output))

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
            tape: JoinedTape = ctx.tape
            needs = ctx.needs_input_grad[1:]
            found: dict[int, torch.Tensor] = {}
            if any(g is not None for g in grads):
                named = tape.values(ctx.saved_tensors, ctx.numbers)
                found = tape.gradients(named, grads, [k for k, need in enumerate(needs) if need])
            return (None, *(found.get(k) for k in range(len(needs))))

    return FusedParts


def _like(value: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty_like(value, device="meta", requires_grad=False)
