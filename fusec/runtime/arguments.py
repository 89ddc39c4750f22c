"""What a caller passed, checked and turned into what a launch needs.

May import everything below the API.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fusec import settings
from fusec.errors import DTypeError, FusecError, ShapeError, UnsupportedError
from fusec.runtime.addresses import NUMBERS, in_memory, lacks_memory, refuse_overlaps, share_memory
from fusec.runtime.arrays import tensor_of, why_refused
from fusec.runtime.prepared import Prepared, made

if TYPE_CHECKING:
    import torch

    from fusec.runtime.formula import Formula
    from fusec.runtime.launch import Given
    from fusec.runtime.specialize import Argument, Specialization


class Call:
    """One call of a compiled function: its values as tensors and numbers, and where results go."""

    __slots__ = (
        "backend", "device", "direct", "formula", "fresh", "key", "numpy", "outs", "taken",
        "tracked", "values",
    )  # fmt: skip

    def __init__(
        self,
        formula: Formula,
        values: list[Any],
        out: Any,
        backend: str,
        taken: Sequence[int] = (),
        fresh: bool = False,
    ) -> None:
        self.formula = formula
        self.fresh = fresh  # ``out`` is new memory that meets nothing else
        self.taken = taken  # inputs over which ``out`` may be written, as the kernels can
        self.numpy = False
        self.values = values
        self.outs: list[torch.Tensor] | None = None
        self.direct = False  # kernels write straight to the caller's tensors
        key: list[object] = []
        device: torch.device | None = None
        decided = False
        points: list[int] = []  # 0-d tensors, which may come from the CPU to inputs on a GPU
        plain = plain_types()
        self.tracked = False  # some input requires grad, and grad mode is on
        recording = self._recording()
        for position, value in enumerate(values):
            if type(value) not in plain:
                if type(value) in NUMBERS:
                    self._check_number(position, value)
                    key.append(type(value))
                    continue
                value = values[position] = self._as_tensor(position, value)
            elif value.is_neg() or value._is_zerotensor():
                value = values[position] = in_memory(value)
            if recording and value.requires_grad:
                self.tracked = True
            key.append(self._key_of(position, value))
            if not value.dim():
                points.append(position)
            # The first tensor decides; one without dimensions only where there is no other.
            if device is None or (value.dim() and not decided):
                device, decided = value.device, bool(value.dim())
        self.device = device or self._no_tensor()
        if points and self.device.type != "cpu":
            self._move(points)
        if out is not None:
            key.extend(self._take_outputs(out))
        self.backend = backend if backend != "auto" else automatic_backend(self.device)
        self.key = tuple(key)

    def _key_of(self, position: int, value: torch.Tensor) -> object:
        """What of a tensor decides the kernels; refuses what fusec cannot read."""
        if value.layout is not _strided() or value.is_nested:
            self._refuse_layout(position, value)
        try:
            address = value.data_ptr()
        except RuntimeError:  # PyTorch's own explanation is of its internals
            raise self.error(
                UnsupportedError,
                position,
                "has no memory of its own: it is inside torch.func.vmap or its like",
                "call it outside, on plain tensors",
            ) from None
        if not address and lacks_memory(value):
            raise self.error(
                UnsupportedError,
                position,
                "has no memory: that of its storage was given back",
                "give the storage its size again, and fill it, before the call",
            )
        return value.dtype, value.shape, value.stride(), value.device, address & 15

    # -- inputs -----------------------------------------------------------------------------------

    def _as_tensor(self, position: int, value: Any) -> torch.Tensor:
        """A tensor for anything array-like that fusec takes;

        DTypeError or UnsupportedError for the rest.
        """
        import numpy
        import torch

        if isinstance(value, torch.Tensor):
            kind = type(value).__name__
            raise self.error(
                UnsupportedError,
                position,
                f"is a {kind}, not a plain tensor",
                "pass a torch.Tensor",
            )
        if isinstance(value, (numpy.ndarray, numpy.generic)):
            self.numpy = self.numpy or isinstance(value, numpy.ndarray)
            refused = why_refused(value)
            if refused is not None:
                raise self.error(DTypeError, position, *refused)
            return tensor_of(value)
        kind = type(value).__name__
        raise self.error(
            DTypeError, position, f"is a {kind}", "pass a tensor, a NumPy array or a number"
        )

    def _move(self, points: Sequence[int]) -> None:
        """Bring 0-d tensors from the CPU to where the others are, as PyTorch does."""
        for position in points:
            if self.values[position].device.type == "cpu":
                self.values[position] = self.values[position].to(self.device)

    def _refuse_layout(self, position: int, value: torch.Tensor) -> NoReturn:
        if value.is_nested:
            hint = "pass its parts, or torch.nested.to_padded_tensor(x, 0.0)"
            raise self.error(UnsupportedError, position, "is a nested tensor", hint)
        raise self.error(
            UnsupportedError, position, f"has the layout {value.layout}", "pass x.to_dense()"
        )

    def _check_number(self, position: int, value: float) -> None:
        """DTypeError for an integer that int64 does not hold."""
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise self.error(DTypeError, position, "does not fit 64 bits", "pass it as a float")

    def error(
        self, kind: type[FusecError], position: int, found: str, hint: str | None = None
    ) -> FusecError:
        """The error for an input: what was found, under the place where the formula has it."""
        from fusec.frontend.resolve_names import first_use

        name = self.formula.inputs[position]
        span = first_use(self.formula.program, name)
        return kind(f"input {name!r} {found}", source=self.formula.source, span=span, hint=hint)

    def _recording(self) -> bool:
        """Whether PyTorch records operations for gradients now."""
        import torch

        if torch.autograd.forward_ad._current_level >= 0:
            from fusec.runtime.autograd import refuse_tangents

            refuse_tangents(self)
        return torch.is_grad_enabled()

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What specialising needs to know of the values. Raises DTypeError, UnsupportedError."""
        import torch

        from fusec.ir.dtypes import BOOL, F64, I64, by_torch_name
        from fusec.runtime.specialize import Argument

        found = []
        for position, value in enumerate(self.values):
            if isinstance(value, NUMBERS):
                dtype = BOOL if isinstance(value, bool) else I64 if isinstance(value, int) else F64
                found.append(Argument(dtype, scalar=True))
                continue
            self._check_tensor(position, value, torch)
            dtype_found = by_torch_name(str(value.dtype).removeprefix("torch."))
            if dtype_found is None:
                known = "float8 to float64, int8 to int64, uint8 and bool"
                raise self.error(DTypeError, position, f"is {value.dtype}", f"fusec takes {known}")
            found.append(Argument(dtype_found, tuple(value.shape), tuple(value.stride())))
        return tuple(found)

    def _check_tensor(self, position: int, value: torch.Tensor, torch: Any) -> None:
        if value.device != self.device:
            other = next(
                n for n, v in zip(self.formula.inputs, self.values, strict=True)
                if isinstance(v, torch.Tensor) and v.device == self.device
            )  # fmt: skip
            name = self.formula.inputs[position]
            raise self.error(
                UnsupportedError, position, f"is on {value.device}, {other!r} is on {self.device}",
                f"move one of them: {name}.to({str(self.device)!r})",
            )  # fmt: skip
        if self.device.type not in ("cpu", "cuda") and self.backend != "torch":
            raise self.error(
                UnsupportedError,
                position,
                f"is on {self.device}",
                "fusec runs on cpu and cuda; backend='torch' anywhere",
            )
        needed = {"cpp": ("cpu",), "torch": (self.device.type,)}.get(self.backend, ("cpu", "cuda"))
        if self.device.type not in needed:
            raise self.error(
                UnsupportedError, position,
                f"is on {self.device}, where backend {self.backend!r} does not run",
                "use backend='auto', which follows the tensors",
            )  # fmt: skip

    @property
    def aligned(self) -> frozenset[str]:
        """Names of inputs (and given outputs) whose address is a multiple of 16 bytes."""
        import torch

        pairs = zip(self.formula.inputs, self.values, strict=True)
        return frozenset(
            n for n, v in pairs if isinstance(v, torch.Tensor) and v.data_ptr() % 16 == 0
        )

    def _no_tensor(self) -> NoReturn:
        raise UnsupportedError(
            f"every input of the formula is a number ({', '.join(self.formula.inputs)})",
            hint="pass at least one tensor",
        )

    # -- outputs ----------------------------------------------------------------------------------

    def _take_outputs(self, out: Any) -> list[object]:
        """Accept the caller's output tensors; what of them belongs to the key of a call."""
        self.outs = self._outputs(out)
        plain = not any(o.is_neg() for o in self.outs)
        read = [v for k, v in enumerate(self.values) if k not in self.taken]
        self.direct = plain and (self.fresh or not share_memory(read, self.outs))
        return [
            self.direct,
            *((o.dtype, o.shape, o.stride(), o.data_ptr() & 15) for o in self.outs),
        ]

    def _outputs(self, out: Any) -> list[torch.Tensor]:
        import torch

        outs = list(out) if isinstance(out, (tuple, list)) else [out]
        for position, tensor in enumerate(outs):
            which = f"out[{position}]" if isinstance(out, (tuple, list)) else "out"
            if not isinstance(tensor, torch.Tensor):
                kind = type(tensor).__name__
                raise DTypeError(f"{which} is a {kind}", hint="pass a tensor to write to")
            if tensor.requires_grad and torch.is_grad_enabled():
                raise UnsupportedError(
                    f"{which} requires grad",
                    hint="write to a tensor that does not, or use torch.no_grad()",
                )
            if tensor.device != self.device:
                raise UnsupportedError(
                    f"{which} is on {tensor.device}, the inputs are on {self.device}",
                    hint=f"make it on {self.device}",
                )
            if tensor.layout is not _strided():
                raise UnsupportedError(
                    f"{which} has the layout {tensor.layout}", hint="pass a dense tensor"
                )
            if lacks_memory(tensor):
                raise UnsupportedError(
                    f"{which} has no memory", hint="pass a tensor that can be written to"
                )
        refuse_overlaps(outs, self.fresh)
        return outs

    @property
    def given(self) -> list[Given] | None:
        """What the caller's output tensors are like."""
        if self.outs is None:
            return None
        from fusec.runtime.launch import Given

        labels = ["out"] if len(self.outs) == 1 else [f"out[{k}]" for k in range(len(self.outs))]
        return [
            Given(
                label,
                tuple(t.shape),
                tuple(t.stride()),
                str(t.dtype),
                t.data_ptr() % 16 == 0,
                self.direct,
            )
            for label, t in zip(labels, self.outs, strict=True)
        ]

    def check_count(self, special: Specialization) -> None:
        """ShapeError if ``out`` has not one tensor for each result."""
        if self.outs is not None and len(self.outs) != len(special.outputs):
            raise ShapeError(
                f"out has {len(self.outs)} tensors, the formula has {len(special.outputs)} results"
            )


def run(prepared: Prepared, call: Call) -> Any:
    """Do the work of ``call`` and give the result as the caller wants it."""
    results: Sequence[torch.Tensor]
    if prepared.reference:
        from fusec.runtime.launch import evaluate_reference

        assert prepared.special is not None
        results = evaluate_reference(prepared.special, call.values)
    elif call.direct:
        results = call.outs or ()
        prepared.run(call.values, results, made(prepared.make_temporaries))
    else:
        results = made(prepared.make_outputs)
        prepared.run(call.values, results, made(prepared.make_temporaries))
    if call.outs is not None and results is not call.outs:
        # A kernel may read its inputs again after it wrote, so memory that is an input's gets its
        # results last.
        for tensor, result in zip(call.outs, results, strict=True):
            tensor.copy_(result)
        results = call.outs
    if call.numpy:
        results = [_as_array(r, k) for k, r in enumerate(results)]
    return results[0] if len(results) == 1 else tuple(results)


def note_written(outs: Sequence[torch.Tensor]) -> None:
    """Tell autograd that tensors have other elements than it may have saved."""
    import torch

    for tensor in outs:
        torch.autograd.graph.increment_version(tensor)


def _as_array(result: torch.Tensor, position: int) -> Any:
    """A result as a NumPy array; DTypeError for a type that NumPy lacks."""
    if result.is_floating_point() and (result.element_size() == 1 or "bfloat" in str(result.dtype)):
        raise DTypeError(
            f"result {position} is {result.dtype}, which NumPy does not have",
            hint="pass tensors, or end the formula in a cast, as in f32(...)",
        )
    return result.cpu().numpy()


@functools.cache
def _strided() -> torch.layout:
    import torch

    return torch.strided


@functools.cache
def plain_types() -> frozenset[type]:
    """The classes that count as plain tensors."""
    import torch

    return frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})


@functools.cache
def _cpu_backend() -> str:
    """C++ where there is a compiler; the reference evaluator, said once, where there is none."""
    from fusec.runtime.build_cpp import find_compiler

    if find_compiler() is not None:
        return "cpp"
    tried = ", ".join(" ".join(command) for command in settings.get().cxx)
    warnings.warn(
        f"fusec found no C++ compiler (tried {tried}), so formulas run op by op in PyTorch; "
        "install g++ or set FUSEC_CXX to the path of one",
        UserWarning,
        stacklevel=6,
    )
    return "torch"


def automatic_backend(device: torch.device) -> str:
    """What ``backend="auto"`` means for tensors on ``device``."""
    return (
        "triton" if device.type == "cuda" else _cpu_backend() if device.type == "cpu" else "torch"
    )
