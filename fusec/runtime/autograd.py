"""Calls with inputs that require grad: the forward program as one node of PyTorch's autograd.

A backward pass runs the gradient program on what the forward one kept. With ``create_graph=True``
that is such a call again, so second derivatives need nothing of their own. May import everything
below the API.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fusec.errors import UnsupportedError
from fusec.ir.evaluate import evaluate
from fusec.ir.graph import InputSpec
from fusec.ir.node import Dim
from fusec.runtime.arguments import Call
from fusec.runtime.autograd_values import (
    argument_of,
    given_of,
    key_of,
    plain,
    unsqueezed,
    way_to,
)
from fusec.runtime.differentiate import Differentiable, Part, Training
from fusec.runtime.launch import prepare
from fusec.runtime.prepared import Prepared, made
from fusec.runtime.specialize import Argument, Specialization

if TYPE_CHECKING:
    import torch

_STEPS = 1024  # exact shapes remembered by one function
_REMEMBERED = 64  # exact layouts of one step's inputs


class Step:
    """One program for exact sizes: as part of a graph of gradients, or alone.

    ``sizes`` has every named axis. Values come in the order of the program's inputs.
    """

    def __init__(
        self, code: Differentiable, sizes: Mapping[Dim, int], backend: str, device: torch.device
    ) -> None:
        self.code = code
        self.sizes = dict(sizes)
        self.backend = backend
        self.device = device
        self._memo: dict[object, Prepared] = {}
        self._tapes: dict[tuple[bool, ...], Tape] = {}
        self._next: dict[Differentiable, Step] = {}

    def __call__(self, values: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Every result. Where grad mode is on and a value requires grad, so do the results."""
        import torch

        if not torch.is_grad_enabled():
            return self.run(self.code.alone(), values)
        tracked = tuple(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
        if not any(tracked):
            return self.run(self.code.alone(), values)
        tape = self._tapes.get(tracked)
        if tape is None:
            pairs = zip(self.code.formula.inputs, tracked, strict=True)
            tape = self.tape(frozenset(n for n, moves in pairs if moves))
            self._tapes[tracked] = tape
        return tape(values)

    def tape(self, tracked: frozenset[str]) -> Tape:
        """The program with gradients of the inputs ``tracked``."""
        return Tape(self, self.code.training(tracked))

    def run(
        self,
        special: Specialization,
        values: Sequence[Any],
        outs: Sequence[torch.Tensor | None] = (),
    ) -> list[torch.Tensor]:
        """The results of one program, without a thought of gradients. ``outs`` are new tensors for
        the first of them, None where one is to be made.
        """
        import torch

        given = [*outs, *[None] * (len(special.outputs) - len(outs))] if outs else None
        try:
            key = (  # the code of this step keeps the program alive
                id(special), *map(key_of, values), *(o if o is None else key_of(o) for o in outs)
            )  # fmt: skip
        except RuntimeError:  # PyTorch's own explanation is of its internals
            raise UnsupportedError(
                "a gradient has no memory of its own: several are batched into one",
                hint="take one at a time, without is_grads_batched=True or vectorize=True",
            ) from None
        prepared = self._memo.get(key)
        if prepared is None:
            if len(self._memo) >= _REMEMBERED:
                self._memo.clear()
            prepared = self._memo[key] = self._prepared(special, values, given)
        if prepared.reference:
            arrays = dict(zip(special.formula.inputs, values, strict=True))
            known = {dim.name: n for dim, n in self.sizes.items()}
            found: list[torch.Tensor] = evaluate(special.plan.graph, arrays, torch, known=known)
            own = given or [None] * len(found)
            return [f if o is None else o.copy_(f) for f, o in zip(found, own, strict=True)]
        if given is None:
            results = made(prepared.make_outputs)
        else:
            pairs = zip(prepared.make_outputs, given, strict=True)
            results = [made((make,))[0] if own is None else own for make, own in pairs]
        prepared.run(values, results, made(prepared.make_temporaries))
        return results

    def _prepared(
        self,
        special: Specialization,
        values: Sequence[Any],
        outs: Sequence[torch.Tensor | None] | None,
    ) -> Prepared:
        import torch

        arguments = [argument_of(v) for v in values]
        aligned = []
        for spec, found, value in zip(special.specs, arguments, values, strict=True):
            if not isinstance(value, torch.Tensor):
                continue
            self._check(spec, found, value.device)
            if value.data_ptr() % 16 == 0:
                aligned.append(spec.name)
        given = None if outs is None else [None if o is None else given_of(o) for o in outs]
        even = frozenset(aligned)
        return prepare(special, arguments, self.backend, self.device, even, given, sizes=self.sizes)

    def _check(self, spec: InputSpec, found: Argument, device: torch.device) -> None:
        """UnsupportedError for a tensor that a hook changed after the forward program kept it:
        kernels read what was kept, by its type and its sizes.
        """
        shape = tuple(self.sizes[e] if isinstance(e, Dim) else e for e in spec.shape)
        if (found.dtype, found.shape, device) == (spec.dtype, shape, self.device):
            return
        raise UnsupportedError(
            f"the gradient reads a {spec.dtype} of {list(shape)} on {self.device}, and a hook for "
            f"saved tensors gave a {found.dtype} of {list(found.shape)} on {device}",
            hint="the second hook has to give back a tensor like the one that the first one got",
        )

    def following(self, code: Differentiable) -> Step:
        """The step of a gradient program, for the same sizes."""
        step = self._next.get(code)
        if step is None:
            step = self._next[code] = Step(code, self.sizes, self.backend, self.device)
        return step


class Tape:
    """A step whose results have gradients of some of its inputs."""

    def __init__(self, step: Step, training: Training) -> None:
        self.step = step
        self.training = training
        names = step.code.formula.inputs
        self.numbers = frozenset(s.name for s in step.code.specs if s.scalar)
        outputs = [o.name for o in training.outputs]
        self.kept_inputs = tuple(
            k for k, n in enumerate(names) if n in training.read and n not in self.numbers
        )
        self.kept_outputs = tuple(k for k, n in enumerate(outputs) if n in training.read)

    def __call__(self, values: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Every result, as a part of PyTorch's graph of gradients."""
        return self.everything(values)[: len(self.step.code.graph.outputs)]

    def everything(self, values: Sequence[Any]) -> Sequence[torch.Tensor]:
        """The results, and behind them what is kept for the gradient."""
        results: Sequence[torch.Tensor] = way_to(autograd_function())(self, *values)
        return results

    def forward(self, values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The results, then what is kept for the gradient."""
        return tuple(self.step.run(self.training.forward, values))

    def named(self, saved: Sequence[torch.Tensor], numbers: Mapping[str, Any]) -> dict[str, Any]:
        """The saved tensors by the name that the gradient knows them by."""
        found: dict[str, Any] = dict(numbers)
        inputs = self.step.code.formula.inputs
        split = len(self.kept_inputs)
        for k, tensor in zip(self.kept_inputs, saved[:split], strict=True):
            found[inputs[k]] = tensor
        for k, tensor in zip(self.kept_outputs, saved[split:], strict=True):
            output = self.training.outputs[k]
            found[output.name] = unsqueezed(tensor, output.squeeze)
        return found

    def backward(
        self,
        named: dict[str, Any],
        grads: Sequence[torch.Tensor | None],
        wanted: Sequence[str],
    ) -> dict[str, torch.Tensor]:
        """The gradients of the inputs ``wanted``."""
        results = tuple(k for k, g in enumerate(grads) if g is not None and self.training.smooth[k])
        made = self.training.gradient(tuple(wanted), results)
        for name, k in made.given:
            named[name] = unsqueezed(plain(grads[k]), self.training.outputs[k].squeeze)
        computed: Sequence[torch.Tensor] = ()
        if made.code is not None:
            step = self.following(made.code, wanted, results)
            computed = step([named[n] for n in made.code.formula.inputs])
        return {
            name: self.whole(name, parts, named, computed)
            for name, parts in zip(wanted, made.parts, strict=True)
            if parts or name in self.training.reached
        }

    def following(
        self, code: Differentiable, wanted: Sequence[str], results: tuple[int, ...]
    ) -> Callable[[Sequence[Any]], Sequence[torch.Tensor]]:
        """What runs ``code``, the gradient of ``wanted`` given that of ``results``."""
        return self.step.following(code)

    def whole(
        self,
        name: str,
        parts: Sequence[Part],
        named: Mapping[str, Any],
        computed: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """One gradient in the shape of its input: a program gives what differs along axes."""
        import torch

        spec = next(s for s in self.step.code.specs if s.name == name)
        shape = [self.step.sizes[e] if isinstance(e, Dim) else e for e in spec.shape]
        if not parts:
            kind = getattr(torch, spec.dtype.torch)
            return torch.zeros((), dtype=kind, device=self.step.device).expand(shape)
        whole: torch.Tensor | None = None
        for part in parts:
            place = part.place
            found = computed[place] if isinstance(place, int) else named[place]
            found = found.squeeze(part.squeezed) if part.squeezed else found
            whole = found if whole is None else whole + found
        assert whole is not None
        return whole if list(whole.shape) == shape else whole.expand(shape)


def refuse_tangents(call: Call) -> None:
    """UnsupportedError for a dual tensor: kernels would drop its tangent without a word."""
    import torch

    forward_ad: Any = torch.autograd.forward_ad
    for position, value in enumerate(call.values):
        if isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None:
            raise call.error(
                UnsupportedError,
                position,
                "has a tangent, and fusec has no forward-mode derivatives",
                "use reverse mode: requires_grad and backward()",
            )


def run_tracked(
    call: Call,
    steps: dict[tuple[object, ...], Step],
    specialization: Callable[[Sequence[Argument]], Specialization],
) -> Any:
    """The result of a call as part of PyTorch's graph of gradients. ``steps`` remembers them."""
    results = step_for(call, steps, specialization)(call.values)
    return results[0] if len(results) == 1 else tuple(results)


def step_for(
    call: Call,
    steps: dict[tuple[object, ...], Step],
    specialization: Callable[[Sequence[Argument]], Specialization],
) -> Step:
    """The step of a call with gradients; ``steps`` remembers them. Raises UnsupportedError."""
    check(call)
    step = steps.get(call.key)
    if step is None:
        if len(steps) >= _STEPS:
            steps.clear()
        step = steps[call.key] = step_of(specialization(call.arguments), call)
    return step


def refuse_bound() -> NoReturn:
    """UnsupportedError for a bound call with an input that requires grad."""
    raise UnsupportedError(
        "a bound call has no gradient, and an input requires grad",
        hint="call the function itself, or bind under torch.no_grad()",
    )


def check(call: Call) -> None:
    """Raise UnsupportedError for what a call cannot have beside an input that requires grad."""
    if call.outs is not None:
        raise UnsupportedError(
            "out= cannot take a result that has a gradient",
            hint="leave out= away, or call it under torch.no_grad()",
        )
    if call.numpy:
        raise UnsupportedError(
            "a NumPy array stands beside a tensor that requires grad",
            hint="pass torch.from_numpy(array)",
        )


def step_of(special: Specialization, call: Call) -> Step:
    """The step of a call of a formula, which has ``special``'s types and this call's sizes."""
    sizes = special.sizes(call.arguments)
    code = special.built.get(("differentiable",))
    if code is None:
        formula = special.formula
        resolved = formula.resolved(special.specs, sizes)
        code = special.built.setdefault(
            ("differentiable",), Differentiable(formula, resolved.graph)
        )
    return Step(code, sizes, call.backend, call.device)


@functools.cache
def autograd_function() -> Any:
    """The autograd function of all formulas; made at the first use, when torch is there."""
    import torch

    class Fused(torch.autograd.Function):
        """One program of fusec in PyTorch's graph of gradients."""

        @staticmethod
        def forward(tape: Tape, *values: Any) -> tuple[torch.Tensor, ...]:
            return tape.forward(values)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            tape, *values = inputs
            ctx.tape = tape
            ctx.set_materialize_grads(False)
            pairs = zip(output, tape.training.requiring, strict=True)
            ctx.mark_non_differentiable(*(o for o, requiring in pairs if not requiring))
            names = tape.step.code.formula.inputs
            ctx.numbers = {n: v for n, v in zip(names, values, strict=True) if n in tape.numbers}
            kept = [values[k] for k in tape.kept_inputs] + [output[k] for k in tape.kept_outputs]
            ctx.save_for_backward(*kept)

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
            tape: Tape = ctx.tape
            names = tape.step.code.formula.inputs
            needs = ctx.needs_input_grad[1:]
            wanted = [n for n, need in zip(names, needs, strict=True) if need]
            found: dict[str, torch.Tensor] = {}
            if any(g is not None for g in grads):
                named = tape.named(ctx.saved_tensors, ctx.numbers)
                found = tape.backward(named, grads, wanted)
            return (None, *(found.get(n) for n in names))

    return Fused
