"""The CUDA driver library through ctypes: its functions, structures and errors. May import errors.

Neither torch nor triton is imported; driver.py builds launches on top of this.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p

from fusec.errors import FusecError, UnsupportedError

SUCCESS = 0
_CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


_PROTOTYPES: dict[str, tuple[object, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuThreadExchangeStreamCaptureMode": (POINTER(c_int),),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
}


class DriverError(FusecError):
    """A call of the CUDA driver failed: its number is in `code`."""

    def __init__(self, message: str, *, code: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class ClusterDimensions(ctypes.Structure):
    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint))


class _AttributeValue(ctypes.Union):
    # The union of cuda.h has members of eight-byte alignment, and so must ours.
    _fields_ = (
        ("pad", ctypes.c_char * 64),
        ("cluster", ClusterDimensions),
        ("flag", c_int),
        ("align", ctypes.c_uint64),
    )


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", c_uint), ("pad", ctypes.c_char * 4), ("value", _AttributeValue))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid_x", c_uint),
        ("grid_y", c_uint),
        ("grid_z", c_uint),
        ("block_x", c_uint),
        ("block_y", c_uint),
        ("block_z", c_uint),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(LaunchAttribute)),
        ("attribute_count", c_uint),
    )


class CudaDriver:
    """The functions of libcuda that fusec uses, with checked results."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name, types in _PROTOTYPES.items():
            function = getattr(library, name)
            function.argtypes = types
            function.restype = c_int
        if not hasattr(library, "cuLaunchKernelEx"):
            raise UnsupportedError(
                "the CUDA driver is too old", hint="fusec needs CUDA 11.8 or newer"
            )
        # No argtypes: every argument is passed as a ctypes object, which spares a conversion each.
        self.launch = library.cuLaunchKernelEx
        self.launch.restype = c_int
        self._contexts: dict[int, c_void_p] = {}
        self.call("cuInit", 0)
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        self.device_count = count.value

    def call(self, name: str, *arguments: object) -> None:
        """Call `name` and raise DriverError unless it succeeds."""
        code = getattr(self._library, name)(*arguments)
        if code != SUCCESS:
            raise self.error(code, name)

    def error(self, code: int, what: str) -> DriverError:
        """The error to raise when `what` answered `code`."""
        name, text = c_char_p(), c_char_p()
        self._library.cuGetErrorName(code, byref(name))
        self._library.cuGetErrorString(code, byref(text))
        known = (name.value or b"unknown error").decode()
        said = (text.value or b"no description").decode()
        return DriverError(f"{what} failed with {known} ({code}): {said}", code=code)

    def addresses(self) -> tuple[int, ...]:
        """Where the functions of a launch begin, for callers outside Python."""
        names = (
            "cuLaunchKernelEx", "cuLaunchKernel", "cuCtxGetCurrent", "cuCtxSetCurrent",
            "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
        )  # fmt: skip
        functions = (getattr(self._library, name) for name in names)
        return tuple(ctypes.cast(function, c_void_p).value or 0 for function in functions)

    def primary_context(self, device: int) -> c_void_p:
        """The context that the CUDA runtime, and so torch, uses on device number `device`."""
        context = self._contexts.get(device)
        if context is None:
            handle, context = c_int(), c_void_p()
            self.call("cuDeviceGet", byref(handle), device)
            self.call("cuDevicePrimaryCtxRetain", byref(context), handle)
            context = self._contexts.setdefault(device, context)
        return context

    def current_context(self) -> int | None:
        """The address of this thread's current context."""
        context = c_void_p()
        self.call("cuCtxGetCurrent", byref(context))
        return context.value

    @contextlib.contextmanager
    def context(self, context: c_void_p) -> Iterator[None]:
        """Make `context` current for a block of code."""
        self.call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", byref(c_void_p()))

    @contextlib.contextmanager
    def outside_capture(self) -> Iterator[None]:
        """Allow this thread to load code although a stream may be recording a graph."""
        mode = c_int(_CAPTURE_RELAXED)
        self.call("cuThreadExchangeStreamCaptureMode", byref(mode))
        try:
            yield
        finally:
            self.call("cuThreadExchangeStreamCaptureMode", byref(mode))

    def parameter_sizes(self, function: c_void_p) -> tuple[int, ...] | None:
        """Bytes of each parameter of a kernel; None from drivers before CUDA 12.4."""
        if not hasattr(self._library, "cuFuncGetParamInfo"):
            return None
        sizes: list[int] = []
        offset, size = c_size_t(), c_size_t()
        query = self._library.cuFuncGetParamInfo
        query.argtypes = (c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_size_t))
        while query(function, len(sizes), byref(offset), byref(size)) == SUCCESS:
            sizes.append(size.value)
        return tuple(sizes)


@functools.cache
def cuda_driver() -> CudaDriver:
    """The driver of this machine; UnsupportedError when there is none."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise UnsupportedError("there is no CUDA driver on this machine") from error
    return CudaDriver(library)
