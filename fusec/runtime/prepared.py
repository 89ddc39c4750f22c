"""A call made ready, as data and as functions: what a launch needs, and nothing of how it was
decided.

A :class:`CallPlan` is plain numbers and names of cache entries, so it can be kept for the next
process (``runtime.recipe``); :func:`ready` turns it into something that runs. May import
``settings``, ``errors``, ``runtime.memory`` and ``runtime.counters``, and the builders inside
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fusec import settings
from fusec.errors import UnsupportedError
from fusec.runtime.counters import OncePerKey
from fusec.runtime.memory import allocator

if TYPE_CHECKING:
    import torch

    from fusec.runtime.driver import CudaFunction, Launch
    from fusec.runtime.specialize import Specialization

# How a number becomes a parameter: "float", "bool", or an integer that wraps at so many bits.
Scalar = tuple[int, int, str, int, int]  # place, input, kind, least value, bits

_once = OncePerKey()
_functions: dict[tuple[object, ...], Any] = {}


class BufferPlan(NamedTuple):
    """A tensor to allocate: shape, strides in elements, and the name of its type in torch."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


class StepPlan(NamedTuple):
    """One launch as data. Kernels are named by their entry in the cache.

    ``values`` are the arguments, with zeros where addresses (``pointers``: place, buffer) and
    numbers (``scalars``) go. A C++ kernel takes a number of threads behind them; a GPU kernel has
    a grid, threads in a block and dynamic shared memory.
    """

    backend: str  # cpp, triton or cuda
    binary: str
    entry: str
    types: tuple[str, ...]
    values: tuple[int, ...]
    pointers: tuple[tuple[int, int], ...]
    scalars: tuple[Scalar, ...]
    serial: bool = False  # too little work for a second thread
    grid: tuple[int, int, int] = (1, 1, 1)
    block: int = 1
    shared: int = 0
    cluster: int = 1  # blocks that share memory, side by side
    waits: bool = False  # for the kernel before it, whose end its launch does not wait for

    def conversions(self) -> tuple[tuple[int, int, Callable[[Any], Any]], ...]:
        """Place, input and conversion of every number."""
        return tuple(
            (place, at, conversion(kind, low, bits)) for place, at, kind, low, bits in self.scalars
        )


class CallPlan(NamedTuple):
    """All launches of a call, and the tensors they write to."""

    outputs: tuple[BufferPlan, ...]
    temporaries: tuple[BufferPlan, ...]
    steps: tuple[StepPlan, ...]


class Step:
    """One kernel launch: a function of the argument list, a template of it, and what has to be
    filled in.
    """

    __slots__ = ("function", "numbers", "plan", "pointers", "template")

    def __init__(
        self,
        function: Callable[[list[Any]], None],
        template: list[Any],
        pointers: tuple[tuple[int, int], ...],
        numbers: tuple[tuple[int, int, Callable[[Any], Any]], ...],
        plan: StepPlan | None = None,
    ) -> None:
        self.function = function
        self.template = template
        self.pointers = pointers  # position in the template, position among the buffers
        self.numbers = numbers  # position, input, conversion
        self.plan = plan  # None for a kernel that only this process has


class Prepared:
    """A call with these exact shapes and strides. ``run`` does the work and nothing else."""

    __slots__ = (
        "device", "fast", "make_outputs", "make_temporaries", "plan", "reference", "special",
        "steps", "tensors",
    )  # fmt: skip

    def __init__(
        self,
        special: Specialization | None,
        device: torch.device,
        plan: CallPlan | None,
        make_outputs: tuple[Callable[[], torch.Tensor], ...],
        make_temporaries: tuple[Callable[[], torch.Tensor], ...],
        steps: tuple[Step, ...],
        *,
        reference: bool = False,
        tensors: bool = False,
    ) -> None:
        self.fast: Any = None  # what runtime.launcher made of it: a plan in C, or False
        self.special = special
        self.device = device
        self.plan = plan
        self.make_outputs = make_outputs
        self.make_temporaries = make_temporaries
        self.steps = steps
        self.reference = reference  # the reference evaluator: asked for, or an axis has length 0
        self.tensors = tensors  # kernels take tensors (interpreter) instead of addresses

    def run(
        self, values: Sequence[Any], outs: Sequence[torch.Tensor], spare: Sequence[torch.Tensor]
    ) -> None:
        """Launch every kernel. ``values`` are the inputs; ``spare`` the temporaries."""
        buffers = [*values, *outs, *spare]
        for step in self.steps:
            arguments = step.template.copy()
            for position, buffer in step.pointers:
                held = buffers[buffer]
                arguments[position] = held if self.tensors else held.data_ptr()
            for position, index, convert in step.numbers:
                arguments[position] = convert(values[index])
            step.function(arguments)


def ready(plan: CallPlan, device: torch.device) -> Prepared | None:
    """The plan as a call on ``device``; None when a kernel is no longer in the cache."""
    steps = []
    for step in plan.steps:
        function = _function(step, device, None)
        if function is None:
            return None
        steps.append(_step(step, function))
    return Prepared(
        None, device, plan, allocators(plan.outputs, device), allocators(plan.temporaries, device),
        tuple(steps),
    )  # fmt: skip


def step_of(plan: StepPlan, device: torch.device, code: bytes | None = None) -> Step:
    """The launch of a kernel that was just built; ``code`` is the binary of a GPU kernel."""
    function = _function(plan, device, code)
    assert function is not None, "a kernel that was just built is there"
    return _step(plan, function)


def allocators(
    plans: Sequence[BufferPlan], device: torch.device
) -> tuple[Callable[[], torch.Tensor], ...]:
    """A function for each plan that makes the tensor."""
    import torch

    return tuple(allocator(p.shape, p.strides, getattr(torch, p.dtype), device) for p in plans)


def made(makers: Sequence[Callable[[], torch.Tensor]]) -> list[torch.Tensor]:
    """New tensors; UnsupportedError where a mode of PyTorch makes them without memory."""
    import torch

    tensors = [make() for make in makers]
    for tensor in tensors:
        if type(tensor) is not torch.Tensor:
            raise UnsupportedError(
                f"a mode of PyTorch makes results that are {type(tensor).__name__}",
                hint="kernels need memory to write to: call outside of the mode",
            )
    return tensors


def conversion(kind: str, low: int, bits: int) -> Callable[[Any], Any]:
    """How a Python number becomes a parameter; integers wrap as PyTorch's do."""
    if kind != "int":
        return float if kind == "float" else bool
    span = 1 << bits
    return lambda value: (int(value) - low) % span + low


def threads() -> int:
    """How many threads a CPU kernel may use: FUSEC_NUM_THREADS, else as many as PyTorch uses."""
    import torch

    from fusec.runtime.build_cpp import may_use_threads

    return (settings.get().num_threads or torch.get_num_threads()) if may_use_threads() else 1


def _step(plan: StepPlan, function: Callable[[list[Any]], None]) -> Step:
    template: list[Any] = list(plan.values)
    if plan.backend == "cpp":
        template.append(1 if plan.serial else threads())
    return Step(function, template, plan.pointers, plan.conversions(), plan)


def _function(
    plan: StepPlan, device: torch.device, code: bytes | None
) -> Callable[[list[Any]], None] | None:
    if plan.backend == "cpp":
        return _cpp_call(plan)
    return _cuda_call(plan, device.index or 0, code)


def _cpp_call(plan: StepPlan) -> Callable[[list[Any]], None] | None:
    """A call with the arguments of a list;

    In a forked child on one thread, whatever was decided before the fork.
    """
    from fusec.runtime.build_cpp import load_function, may_use_threads

    def make() -> Any:
        return load_function(plan.binary, plan.entry, plan.types)

    function = _once.get(_functions, (plan.binary, plan.entry), make)
    if function is None:
        return None

    def call(arguments: list[Any]) -> None:
        if not may_use_threads():
            arguments[-1] = 1
        function(*arguments)

    return call


def _cuda_call(
    plan: StepPlan, index: int, code: bytes | None
) -> Callable[[list[Any]], None] | None:
    import torch

    found = _once.get(
        _functions, (plan.binary, plan.entry, index), lambda: _loaded_cuda(plan, index, code)
    )
    if found is None:
        return None
    launch = found[1]
    current_stream, grid = torch._C._cuda_getCurrentRawStream, plan.grid
    return lambda arguments: launch(grid, current_stream(index), arguments)


def cuda_function(plan: StepPlan, index: int) -> CudaFunction:
    """The kernel of a plan that was made ready on device ``index``."""
    function: CudaFunction = _functions[plan.binary, plan.entry, index][0]
    return function


def _loaded_cuda(
    plan: StepPlan, index: int, code: bytes | None
) -> tuple[CudaFunction, Launch] | None:
    """A kernel of the cache on device ``index`` and its launch, or None when it is gone."""
    from fusec.runtime.cache import default_store
    from fusec.runtime.driver import load_function

    if code is None:
        entry = default_store().get(plan.binary, only=("cubin",))
        if entry is None:
            return None
        code = entry.files["cubin"]
    function = load_function(code, plan.entry, plan.shared, index)
    return function, function.prepare(plan.types, plan.block, (plan.cluster, 1, 1), plan.waits)
