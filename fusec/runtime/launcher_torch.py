"""Short ways into torch for the compiled launcher, each proven before it is used.

Reading a tensor through its Python attributes and making one through ``torch.empty_strided`` cost
more than a launch. torch keeps C functions for the code its own compiler makes
(``aoti_torch_*``), which take a handle of a tensor, and two functions that allocate. This module
finds them in the libraries that are loaded, finds where a Python tensor keeps its handle and torch
the dispatch keys of a tensor, and compares what they say with what Python says for tensors of many
kinds. Whatever is missing or differs is not used. May import ``runtime.arguments``.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fusec.runtime.arguments import plain_types

if TYPE_CHECKING:
    import torch

_READERS = (
    "aoti_torch_get_data_ptr", "aoti_torch_get_dim", "aoti_torch_get_sizes",
    "aoti_torch_get_strides", "aoti_torch_get_dtype", "aoti_torch_get_device_index",
)  # fmt: skip
_GRAD_ENABLED = "aoti_torch_grad_mode_is_enabled"
_FUNCTION_MODE = "_ZN2at4impl27torch_function_mode_enabledEv"  # bool ()
_DISPATCH_MODE = "_ZN3c104impl21dispatch_mode_enabledEv"  # bool ()
_TRACING = "_ZN5torch3jit6tracer15getTracingStateEv"  # shared_ptr& (), of this thread
_STREAM = "aoti_torch_get_current_cuda_stream"
_WORD = 8  # bytes
_MOST_OBJECT = 208  # bytes of torch's object that are searched for the dispatch keys

Allocate = Callable[..., "torch.Tensor"]


class Ways(NamedTuple):
    """What was proven: two offsets, the dispatch keys of plain tensors, functions by address."""

    handle: int
    keys: int
    kinds: tuple[int, ...]
    functions: tuple[int, ...]


def ways() -> Ways | None:
    """The short ways for CPU tensors; None where one of them is missing or says something else."""
    import torch

    if _is_watched():
        return None
    try:
        with torch.inference_mode(False), torch.no_grad():
            return _proven("cpu")
    except (AttributeError, OSError, RuntimeError, TypeError, ValueError):
        return None


def with_cuda(known: Ways, index: int) -> Ways:
    """The same ways for tensors of CUDA device ``index`` too, where that is proven."""
    import torch

    if _is_watched():
        return known
    try:
        with torch.inference_mode(False), torch.no_grad():
            found = _proven(f"cuda:{index}")
            if found is None or (found.handle, found.keys) != (known.handle, known.keys):
                return known
            functions = (*found.functions[:-1], _stream(index))
    except (AttributeError, OSError, RuntimeError, TypeError, ValueError):
        return known
    kinds = tuple(sorted({*known.kinds, *found.kinds}))
    return Ways(known.handle, known.keys, kinds, functions)


def allocation(device: torch.device) -> Allocate | None:
    """A function of shape, strides and type that makes a tensor on the current device of this
    kind, without torch's dispatcher; None where it is missing or makes something else.

    Raises nothing. Memory is never filled, whatever deterministic algorithms ask for: kernels
    write every element.
    """
    import torch

    try:
        allocate: Allocate = getattr(torch._C._dynamo.guards, f"_empty_strided_{device.type}")
        with torch.inference_mode(False), ExitStack() as stack:
            if device.type == "cuda":
                stack.enter_context(torch.cuda.device(device))
            good = all(_allocates(allocate, device, *kind) for kind in _allocations())
    except (AttributeError, RuntimeError, TypeError):
        return None
    return allocate if good else None


def _is_watched() -> bool:
    """Whether a mode or a trace of somebody else would meet the trial."""
    import torch

    modes = torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()
    return bool(modes) or torch._C._get_tracing_state() is not None


# -- finding ---------------------------------------------------------------------------------------


def _library(name: str) -> ctypes.CDLL:
    """One of torch's libraries, which is loaded already; OSError when it is not."""
    import torch

    ending = "dylib" if sys.platform == "darwin" else "so"
    path = Path(torch.__file__).parent / "lib" / f"lib{name}.{ending}"
    return ctypes.CDLL(str(path), mode=os.RTLD_LAZY | os.RTLD_NOLOAD)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _proven(device: str) -> Ways | None:
    cpu, core = _library("torch_cpu"), _library("c10")
    readers = [getattr(cpu, name) for name in _READERS]
    flags = [
        getattr(cpu, _GRAD_ENABLED),
        getattr(cpu, _FUNCTION_MODE),
        getattr(core, _DISPATCH_MODE),
    ]
    for flag in flags:
        flag.restype, flag.argtypes = ctypes.c_bool, ()
    tracing = getattr(cpu, _TRACING)
    tracing.restype, tracing.argtypes = ctypes.c_void_p, ()
    plain, other = _plain_tensors(device), _other_tensors(device)
    handle = _handle_offset([*plain, *other])
    keys = handle and _keys_offset([*plain, *other])
    if not handle or not keys or not _flags_agree(*flags):
        return None
    if not _tells_of_tracing(lambda: bool(_read_word(tracing()))):
        return None
    kinds = {_dispatch_keys(tensor) for tensor in plain}
    if len(kinds) != 2 or kinds & {_dispatch_keys(tensor) for tensor in other}:
        return None
    codes: dict[torch.dtype, int] = {}
    for tensor in plain:
        code, facts = _look(readers, id(tensor) + handle)
        if facts != _facts(tensor) or codes.setdefault(tensor.dtype, code) != code:
            return None
    if len(set(codes.values())) != len(codes):
        return None
    functions = (*map(_address, readers), *map(_address, flags), _address(tracing), 0)
    return Ways(handle, keys, tuple(sorted(kinds)), functions)


def _plain_tensors(device: str) -> list[torch.Tensor]:
    """Dense tensors of every layout and many types, inside and outside of inference mode."""
    import torch

    base = torch.empty(5, 7, 3, device=device)
    with torch.inference_mode():
        inference = torch.empty(3, 2, device=device)
    types = ("float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
             "float8_e4m3fn", "float8_e5m2")  # fmt: skip
    of_types = [torch.empty(2, dtype=getattr(torch, name), device=device) for name in types]
    return [
        base, base.permute(2, 0, 1), base[1:, ::2], base[2, 3, 1], base[:0], base.detach(),
        torch.nn.Parameter(base), torch.nn.Parameter(base, requires_grad=False),
        torch.empty(3, 1, device=device).expand(3, 4), inference, inference.t(), *of_types,
    ]  # fmt: skip


def _other_tensors(device: str) -> list[torch.Tensor]:
    """Tensors that are not what their memory holds, or have none."""
    import torch

    base = torch.empty(2, 3, device=device)
    pairs = torch.empty(2, 3, dtype=torch.complex64, device=device)
    places = torch.zeros(1, 1, dtype=torch.int64, device=device)
    with warnings.catch_warnings():
        # torch 2.11 warns of unchecked sparse tensors whatever is asked for.
        warnings.filterwarnings("ignore", message="Sparse invariant checks")
        sparse = torch.sparse_coo_tensor(places, base[0, :1], (3,), check_invariants=True)
    return [base._neg_view(), pairs.conj(), pairs.conj().imag, base.to("meta"), sparse]


def _read_word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _handle_offset(tensors: Sequence[torch.Tensor]) -> int | None:
    """Where a Python tensor keeps the address of torch's own, which Python knows as ``_cdata``."""
    size = min(kind.__basicsize__ for kind in {*map(type, tensors), *plain_types()})
    for offset in range(2 * _WORD, size - _WORD + 1, _WORD):
        if all(_read_word(id(tensor) + offset) == tensor._cdata for tensor in tensors):
            return offset
    return None


def _keys_offset(tensors: Sequence[torch.Tensor]) -> int | None:
    """Where torch's object keeps the word of dispatch keys."""
    for offset in range(_WORD, _MOST_OBJECT, _WORD):
        if all(_read_word(t._cdata + offset) == _dispatch_keys(t) for t in tensors):
            return offset
    return None


def _dispatch_keys(tensor: torch.Tensor) -> int:
    import torch

    return int(torch._C._dispatch_keys(tensor).raw_repr())


# -- comparing -------------------------------------------------------------------------------------


def _look(readers: Sequence[Any], handle: int) -> tuple[int, list[object]]:
    """What the functions say of a tensor: the code of its type, and device, shape, strides,
    address.
    """
    words = [ctypes.c_int64(0) for _ in readers]
    for read, word in zip(readers, words, strict=True):
        if read(ctypes.c_void_p(handle), ctypes.byref(word)):
            raise RuntimeError("torch refuses to say")
    place, dim, sizes, strides, dtype, index = (word.value for word in words)
    shape = tuple(_read_word(sizes + _WORD * k) for k in range(dim))
    steps = tuple(_read_word(strides + _WORD * k) for k in range(dim))
    # The last two are 32 bits wide and were written over zeros.
    return dtype, [ctypes.c_int32(index).value, shape, steps, place]


def _facts(tensor: torch.Tensor) -> list[object]:
    return [tensor.get_device(), tuple(tensor.shape), tensor.stride(), tensor.data_ptr()]


def _flags_agree(
    grad_enabled: Callable[[], bool], function_mode: Callable[[], bool],
    dispatch_mode: Callable[[], bool],
) -> bool:  # fmt: skip
    """Whether three functions follow the state they are said to tell."""
    import torch
    from torch.overrides import BaseTorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    mode: Any = TorchDispatchMode

    def states() -> Iterator[tuple[bool, bool, bool]]:
        for record in (False, True):
            for function, dispatch in ((False, False), (True, False), (False, True)):
                with ExitStack() as stack:
                    stack.enter_context(torch.set_grad_enabled(record))
                    if function:
                        stack.enter_context(BaseTorchFunctionMode())
                    if dispatch:
                        stack.enter_context(mode())
                    yield record, function, dispatch

    return all(state == (grad_enabled(), function_mode(), dispatch_mode()) for state in states())


def _tells_of_tracing(is_traced: Callable[[], bool]) -> bool:
    """Whether a function tells when ``torch.jit.trace`` is at work."""
    import torch

    said: list[bool] = []

    def traced(x: torch.Tensor) -> torch.Tensor:
        said.append(is_traced())
        return x

    before = is_traced()
    torch._C._create_graph_by_tracing(traced, (torch.empty(1),), lambda value: "", True, False)
    return [before, *said, is_traced()] == [False, True, False]


def _stream(index: int) -> int:
    """The function that tells a device's current stream; 0 where it does not say what Python
    says.
    """
    import torch

    ask = getattr(_library("torch_cuda"), _STREAM, None)
    if ask is None:
        return 0

    def agrees() -> bool:
        found = ctypes.c_void_p()
        code = ask(ctypes.c_int32(index), ctypes.byref(found))
        expected = torch._C._cuda_getCurrentRawStream(index)
        return code == 0 and (found.value or 0) == expected

    good = agrees()
    if good and not torch.cuda.is_current_stream_capturing():
        stream: Any = torch.cuda.Stream
        with torch.cuda.stream(stream(index)):
            good = agrees()
    return _address(ask) if good else 0


def _allocations() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
    import torch

    for shape, strides in (
        ((), ()), ((5,), (1,)), ((3, 4), (4, 1)), ((3, 4), (1, 3)), ((2, 3, 4), (1, 8, 2)),
        ((4, 1, 3), (3, 3, 1)), ((300, 7), (7, 1)),
    ):  # fmt: skip
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
            yield shape, strides, dtype


def _allocates(
    allocate: Allocate, device: torch.device, shape: tuple[int, ...], strides: tuple[int, ...],
    dtype: torch.dtype,
) -> bool:  # fmt: skip
    """Whether a tensor made the short way is the one that torch makes, and goes when it is let go
    of.
    """
    import torch

    expected = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    before = _allocated(device)
    made = allocate(shape, strides, dtype)
    alike = _all_of(made) == _all_of(expected)
    gone = weakref.ref(made)
    del made
    return alike and gone() is None and _allocated(device) == before


def _allocated(device: torch.device) -> int:
    import torch

    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _all_of(tensor: torch.Tensor) -> tuple[object, ...]:
    return (
        type(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.layout,
        tensor.requires_grad, tensor.is_inference(), tensor.storage_offset(),
        _dispatch_keys(tensor), tensor.untyped_storage().nbytes(), sys.getrefcount(tensor),
    )  # fmt: skip
