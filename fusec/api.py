"""The public API: :func:`compile` a formula into a :class:`CompiledFunction` and call it with
tensors.

May import everything but the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

from fusec.collector import without_collections
from fusec.runtime import operator_calls, recipe
from fusec.runtime.arguments import Call, note_written, run
from fusec.runtime.bound import BoundCall, by_name
from fusec.runtime.choices import choose, function_only, kernel_name, own_name, seconds
from fusec.runtime.counters import COUNTERS, OncePerKey
from fusec.runtime.formula import Formula
from fusec.runtime.handover import hand_over
from fusec.runtime.prepared import CallPlan, Prepared, ready

if TYPE_CHECKING:
    from fusec.passes.simplify import Numerics
    from fusec.runtime.autograd import Step
    from fusec.runtime.recipe import Built
    from fusec.runtime.specialize import Argument, Specialization, Variant

BACKENDS = ("auto", "triton", "cpp", "cuda", "torch")
BUILDS = ("auto", "nvrtc", "nvcc", "load_inline")
NUMERICS = ("torch", "precise", "fast")
MEMO_LIMIT = 1024  # exact shapes remembered by one function


@overload
def compile(
    source: str,
    *,
    inputs: Sequence[str] | None = ...,
    backend: str = ...,
    numerics: str = ...,
    keepdim: bool = ...,
    name: str | None = ...,
    batch_invariant: bool = ...,
    tune: float = ...,
    build: str = ...,
) -> CompiledFunction: ...
@overload
def compile(
    source: Any,
    *,
    inputs: Sequence[str] | None = ...,
    backend: str = ...,
    numerics: str = ...,
    keepdim: bool = ...,
    name: str | None = ...,
    batch_invariant: bool = ...,
    tune: float = ...,
    build: str = ...,
) -> Any: ...
def compile(
    source: Any,
    *,
    inputs: Sequence[str] | None = None,
    backend: str = "auto",
    numerics: str = "torch",
    keepdim: bool = False,
    name: str | None = None,
    batch_invariant: bool = False,
    tune: float = 0.0,
    build: str = "auto",
) -> Any:
    """Compile a formula, a sympy expression (or several) or a PyTorch function; kernels are built
    when the result is first called with tensors of a new kind.

    A formula or an expression gives a :class:`CompiledFunction`, a function a TracedFunction,
    which takes and returns what the function does; ``inputs`` and ``keepdim`` are for the former.
    ``inputs`` fixes the order of the arguments (default: first appearance). ``backend`` is ``auto``
    (Triton for CUDA tensors, C++ for CPU tensors), ``triton``, ``cuda`` (CUDA C++), ``cpp`` or
    ``torch`` (the reference, which needs no compiler); on CPU tensors ``triton`` and ``cuda`` are
    interpreted, slowly. ``numerics`` is ``torch`` (as accurate as eager PyTorch or better),
    ``precise`` or ``fast``. ``keepdim=True`` keeps reduced axes of outputs with length 1. ``name``
    names the kernel. ``batch_invariant=True`` takes one schedule whatever the number of rows, so
    that the bits of a row do not depend on it, at the price of speed for few or short rows.
    ``tune`` is how many seconds a call with a new kind of tensors may search for a better schedule
    than the rules choose; what is found is remembered on this machine. ``build`` says what compiles
    CUDA C++: ``nvrtc``, ``nvcc``, ``load_inline`` (torch.utils.cpp_extension), or the quickest that
    is there.

    Raises ParseError and UnknownNameError; shapes and types are checked at a call.
    """
    choose("backend", backend, BACKENDS)
    choose("numerics", numerics, NUMERICS)
    choose("build", build, BUILDS)
    mode = cast("Numerics", numerics)
    if not isinstance(source, str):
        from fusec.passes.algebra import formula_of, is_sympy

        if not is_sympy(source):
            from fusec.runtime.traced import TracedFunction

            function_only(source, inputs, keepdim)
            options = kernel_name(name, own_name(source)), batch_invariant, seconds(tune), build
            return TracedFunction(source, mode, backend, CompiledFunction, *options)
        source = formula_of(source)
    with without_collections():
        formula = Formula(
            source,
            inputs,
            mode,
            keepdim,
            kernel_name(name, source),
            batch_invariant=batch_invariant,
            tune=seconds(tune),
            build=build,
        )
    return CompiledFunction(formula, backend)


def fuse(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorator: the PyTorch function below runs fused; ``options`` are those of ``compile``."""
    if function is None:
        return lambda below: compile(below, **options)
    return compile(function, **options)


class CompiledFunction:
    """A formula, callable with tensors. Thread-safe; made by :func:`compile`."""

    def __init__(self, formula: Formula, backend: str) -> None:
        self._formula = formula
        self._backend = backend
        self._specials: dict[tuple[object, ...], Specialization] = {}
        self._memo: dict[tuple[object, ...], Prepared] = {}
        self._steps: dict[tuple[object, ...], Step] = {}
        self._once = OncePerKey()
        self._kinds: set[str] = set()  # classes of arguments that have been counted
        self._recalled: dict[str, Built] = {}  # kernels of recipes, until there is a plan
        self._recipes_left = recipe.LIMIT
        self._fast: Any = None  # the launcher's table of calls, once there is one
        self._levels: Any = None  # torch.autograd.forward_ad, from then on
        self.__name__ = formula.name
        self._written = formula.written(backend)
        operator_calls.leave_alone()

    # -- what it is -------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in the order of positional arguments."""
        return self._formula.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the results."""
        return self._formula.outputs

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Every kernel built so far, and why each one."""
        from fusec.runtime.specialize import Variant

        recalled = (Variant(*built[1:]) for built in self._recalled.values())
        planned = (v for special in self._specials.values() for v in special.variants)
        return (*recalled, *planned)

    @property
    def table(self) -> Any:
        """The compiled launcher's table of the calls that it makes by itself; None before the first
        repeated call, and where there is no launcher.
        """
        return self._fast

    def __repr__(self) -> str:
        shown = " ".join(self._formula.text.split())
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return f"<fusec.CompiledFunction {shown!r} of {', '.join(self.inputs)}>"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled and copied as the formula and its options: kernels come from the cache again."""
        formula = self._formula
        name = None if formula.name == "kernel" else formula.name.removesuffix("_kernel")
        options = {"inputs": formula.inputs, "backend": self._backend, "name": name}
        kept = ("numerics", "keepdim", "batch_invariant", "tune", "build")
        options |= {option: getattr(formula, option) for option in kept}
        return (_compile_again, (formula.text, options))

    # -- calling ----------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, out: Any = None, **named: Any) -> Any:
        """The result, a tensor or a tuple of tensors, on the device of the inputs.

        Inputs are tensors, NumPy arrays (then the results are arrays) or Python numbers. ``out``
        takes the result: a tensor, or a tuple of them, of the right shape, type and device; it may
        share memory with an input. Tensors that require grad get gradients, of any order, in
        their own type; ``out`` is refused then.
        """
        fast = self._fast
        if fast is not None and not named and self._levels._current_level < 0:
            result = fast(args) if out is None else fast(args, out)
            if result is not NotImplemented:
                if out is not None:
                    note_written(out if isinstance(out, tuple) else (out,))
                return result
        values = (
            list(args)
            if not named and len(args) == len(self._formula.inputs)
            else by_name(self._formula, args, named)
        )
        if out is None and self._written and operator_calls.seen_by_torch(values):
            return operator_calls.through_operator(self._written, values)
        operator_calls.refuse_trace()
        call = Call(self._formula, values, out, self._backend)
        if call.tracked:
            from fusec.runtime.autograd import run_tracked

            return run_tracked(call, self._steps, self.specialization)
        result = self._run(call, None if named else args, out)
        if call.outs is not None:
            note_written(call.outs)
        return result

    def overwrite(self, args: tuple[Any, ...], out: Any, taken: Sequence[int]) -> None:
        """Write the results to ``out``, some of which may lie where the inputs at ``taken`` lie.

        For a compiler that knows that nothing else needs those, and that the kernels can
        (``codegen.in_place``). No gradients.
        """
        self._run(Call(self._formula, list(args), out, self._backend, taken), args, out)

    def fill(self, args: tuple[Any, ...], out: tuple[Any, ...]) -> None:
        """Write the results to ``out``: new tensors, of which none meets another or an input,
        though some may lie between the elements of others. No gradients.
        """
        fast = self._fast
        known = fast is not None and self._levels._current_level < 0
        if not known or fast(args, out) is NotImplemented:
            self._run(Call(self._formula, list(args), out, self._backend, fresh=True), args, out)

    def step(self, values: list[Any]) -> Step:
        """What runs for ``values``, which come to be what it takes, as a part of PyTorch's graph of
        gradients. Raises UnsupportedError.
        """
        from fusec.runtime.autograd import step_for

        call = Call(self._formula, values, None, self._backend)
        return step_for(call, self._steps, self.specialization)

    def _run(self, call: Call, args: tuple[Any, ...] | None, out: Any) -> Any:
        """Do a call; ``args`` are what it was given by position, if it was."""
        prepared = self._memo.get(call.key)
        if prepared is None:
            prepared = self._prepared(call)
        elif args is not None:
            self._hand_over(prepared, call, args, out)
        return run(prepared, call)

    def _hand_over(self, prepared: Prepared, call: Call, args: tuple[Any, ...], out: Any) -> None:
        """Let the compiled launcher take calls like this repeated one, if it can."""
        table = hand_over(self._fast, prepared, call, args, out)
        if table is not self._fast:
            import torch

            self._levels = torch.autograd.forward_ad  # the launcher does not see tangents
            self._fast = table

    def bind(self, /, *args: Any, out: Any = None, **named: Any) -> BoundCall:
        """A prepared call for inputs of these shapes, strides and types: the least work per call.

        The bound call takes tensors like the ones given (or nothing: then those) in the order of
        the inputs, does not look at them again, and returns fresh outputs, or writes to ``out``
        each time; without gradients: UnsupportedError where an input requires grad.
        """
        values = by_name(self._formula, args, named)
        call = Call(self._formula, list(values), out, self._backend)
        if call.tracked:
            from fusec.runtime.autograd import refuse_bound

            refuse_bound()
        return BoundCall(self._prepared(call), call, values, self)

    def as_operator(self, name: str, numbers: Sequence[str] = ()) -> Any:
        """The formula as a ``torch.library`` operator, for as long as the process lives:
        ``mylib::gelu`` is at ``torch.ops.mylib.gelu`` too. It takes the inputs by position, tensors
        but for those in ``numbers``. UnsupportedError where the name is another operator's.
        """
        from fusec.runtime.operator_names import define

        return define(name, self._formula, self._written, numbers)

    def _prepared(self, call: Call) -> Prepared:
        found = self._memo.get(call.key)
        if found is None:
            if len(self._memo) >= MEMO_LIMIT:
                self._memo.clear()
            found = self._memo[call.key] = self._prepare(call)
        return found

    def _prepare(self, call: Call) -> Prepared:
        """The call made ready: by a recipe of an earlier process, or by planning it."""
        # Once there is a plan the next shape costs little, and a recipe would save nothing.
        place = None
        if self._recipes_left > 0:
            asked = self._backend
            place = recipe.key(self._formula, asked, call.backend, call.device, call.key)
        if place is not None and not self._specials:
            found = self._recall(place, call.device)
            if found is not None:
                return found
        special = self.specialization(call.arguments)
        call.check_count(special)
        from fusec.runtime.launch import prepare

        made = prepare(
            special,
            call.arguments,
            call.backend,
            call.device,
            call.aligned,
            call.given,
            automatic=self._backend == "auto",
        )
        if place is not None and made.plan is not None:
            self._recipes_left -= 1
            self._keep(place, made.plan, special, call.arguments)
        return made

    def _recall(self, place: str, device: Any) -> Prepared | None:
        kept = recipe.load(place)
        if kept is None:
            return None
        prepared = ready(kept.plan, device)
        if prepared is None:
            recipe.forget(place)
            return None
        if kept.kind not in self._kinds:
            self._kinds.add(kept.kind)
            COUNTERS.specializations += 1
        for built in kept.built:
            if self._recalled.setdefault(built.binary, built) is built:
                COUNTERS.compiles += 1
        return prepared

    def _keep(
        self,
        place: str,
        plan: CallPlan,
        special: Specialization,
        arguments: Sequence[Argument],
    ) -> None:
        from fusec.runtime.specialize import kind_of

        found = [(step.binary, special.binaries[step.binary]) for step in plan.steps]
        built = (recipe.Built(n, v.kernel, v.backend, v.key, v.why, v.facts) for n, v in found)
        recipe.save(place, recipe.Recipe(plan, kind_of(arguments), tuple(built)))

    @without_collections()
    def specialization(self, arguments: Sequence[Argument]) -> Specialization:
        """The plan for arguments of these types and ranks, made once."""
        from fusec.runtime.specialize import key_of, kind_of, specialize

        def make() -> Specialization:
            special = specialize(self._formula, arguments)
            special.recalled = self._recalled
            kind = kind_of(arguments)
            if kind not in self._kinds:
                self._kinds.add(kind)
                COUNTERS.specializations += 1
            return special

        special: Specialization = self._once.get(self._specials, key_of(arguments), make)
        return special

    # -- looking ----------------------------------------------------------------------------------

    def show(
        self, stage: str | None = None, *example_inputs: Any, target: str | None = None
    ) -> str:
        """The formula at ``stage``: formula grad explain graph plan kernel triton cuda cpp ttir
        ttgir llir ptx sass amdgcn; the source of the backend, Triton's for ``auto``, if none is
        named. ``grad`` is the gradient as a formula, ``explain`` says what it starts from and why.

        ``example_inputs`` (tensors, also on the meta device) fix types and layouts; without them
        every input is a float32 matrix of 4096 x 4096. ``target`` (``sm_90``, ``gfx942``) needs no
        such GPU. Raises UnsupportedError.
        """
        from fusec.runtime.show import example_arguments, show

        arguments = example_arguments(self._formula, example_inputs)
        own = self._backend if self._backend in ("cuda", "cpp") else "triton"
        special = self.specialization(arguments)
        return show(self._formula, special, arguments, stage or own, target, self._backend)


operator_calls.replace_for_dynamo(CompiledFunction.__call__, operator_calls.while_tracing)


def _compile_again(text: str, options: dict[str, Any]) -> CompiledFunction:
    """What a pickle of a compiled function calls."""
    made: CompiledFunction = compile(text, **options)
    return made
