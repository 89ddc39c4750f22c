"""Loads cubins and launches their kernels through the CUDA driver. May import libcuda and errors.

A launch is one foreign call: the launch configuration, the array of parameter addresses and the
bytes they point at are made once, and a call packs its values into them. Neither torch nor triton
is imported. Kernels of any origin: block and cluster dimensions are given at `prepare`.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_void_p

from fusec.errors import InternalError, UnsupportedError
from fusec.runtime.libcuda import (
    SUCCESS,
    ClusterDimensions,
    CudaDriver,
    LaunchAttribute,
    LaunchConfig,
    cuda_driver,
)

Dimensions = tuple[int, int, int]
Launch = Callable[[Dimensions, int, Sequence[int | float]], None]

GRID_LIMITS: Dimensions = (2**31 - 1, 65535, 65535)

_NOT_INITIALIZED = 3
_INVALID_CONTEXT = 201
_INVALID_HANDLE = 400
# What a launch answers in a thread where no context, or that of another device, is current.
_CONTEXT_ERRORS = frozenset({_NOT_INITIALIZED, _INVALID_CONTEXT, _INVALID_HANDLE})
_FUNCTION_STATIC_SHARED = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
_FUNCTION_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_FUNCTION_NON_PORTABLE_CLUSTER = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_DEVICE_MAX_SHARED = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_ATTRIBUTE_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_ATTRIBUTE_OVERLAP = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_SHARED_WITHOUT_ASKING = 48 * 1024  # bytes
_PORTABLE_CLUSTER = 8  # blocks

# Parameter type -> code of the struct module, whose native sizes and alignment are those of C.
_CODES = {
    "i1": "?",
    "i8": "b",
    "u8": "B",
    "i16": "h",
    "u16": "H",
    "i32": "i",
    "u32": "I",
    "i64": "q",
    "u64": "Q",
    "fp32": "f",
    "fp64": "d",
}
# Triton adds pointers to scratch memory behind the arguments: one or two, depending on its version.
# The driver reads as many addresses as the kernel has parameters, so spare ones do no harm.
_SPARE_PARAMETERS = 4


class CudaFunction:
    """A kernel on one device. Its module stays loaded: a recorded graph may still refer to it."""

    def __init__(
        self, driver: CudaDriver, handle: c_void_p, context: c_void_p, entry: str, shared: int
    ) -> None:
        self.entry = entry
        self.shared = shared
        self._driver = driver
        self._handle = handle
        self._context = context

    @property
    def address(self) -> int:
        """The driver's handle of the kernel."""
        return self._handle.value or 0

    @property
    def context_address(self) -> int:
        """The handle of the context it is loaded in."""
        return self._context.value or 0

    def prepare(
        self,
        param_types: Sequence[str],
        block: int | Dimensions,
        cluster: Dimensions = (1, 1, 1),
        waits: bool = False,
    ) -> Launch:
        """A callable `launch(grid, stream, values)` with as little work per call as there can be.

        `param_types` are pointers (`*fp32`: the value is an address) or numbers (`i64`, `fp32`);
        `block` and `cluster` are in threads and blocks. A grid with a zero launches nothing. A
        kernel that `waits` itself for the one before it in its stream may begin while that ends.
        The callable may be used from several threads at once and within the capture of a graph.
        """
        codes = [_code(kind) for kind in param_types]
        self._check_sizes([struct.calcsize(code) for code in codes])
        threads = (block, 1, 1) if isinstance(block, int) else block
        self._allow_cluster(cluster)
        make = functools.partial(_Buffers, codes, threads, cluster, self.shared, waits=waits)
        return self._launcher(struct.Struct("@" + "".join(codes)), codes, make)

    def clusters_at_once(self, threads: int, cluster: int) -> int:
        """How many clusters of ``cluster`` blocks of this kernel the device holds at a time."""
        buffers = _Buffers([], (threads, 1, 1), (cluster, 1, 1), self.shared, asked=True)
        buffers.set_grid((cluster, 1, 1))
        found = c_int()
        with self._driver.context(self._context):
            self._driver.call(
                "cuOccupancyMaxActiveClusters", byref(found), self._handle, buffers.reference
            )
        return found.value

    def _launcher(
        self, layout: struct.Struct, codes: Sequence[str], make: Callable[[], _Buffers]
    ) -> Launch:
        # Locals of a closure: the quickest names there are. The pool gives each call buffers of its
        # own; taking from a list and adding to it are atomic.
        pool = [make()]
        pack_into, call, handle = layout.pack_into, self._driver.launch, self._handle
        several_devices = self._driver.device_count > 1
        success = SUCCESS

        def launch(grid: Dimensions, stream: int, values: Sequence[int | float]) -> None:
            try:
                buffers = pool.pop()
            except IndexError:
                buffers = make()
            try:
                if grid != buffers.grid and not buffers.set_grid(grid):
                    return
                buffers.config.stream = stream
                try:
                    pack_into(buffers.values, 0, *values)
                except (struct.error, OverflowError) as error:
                    pack_into(buffers.values, 0, *self._representable(codes, values, error))
                if several_devices:
                    self._launch_on_own_device(buffers)
                    return
                code = call(buffers.reference, handle, buffers.parameters, None)
                if code != success:
                    self._recover(code, buffers)
            finally:
                pool.append(buffers)

        return launch

    def _launch_on_own_device(self, buffers: _Buffers) -> None:
        """Launch where the current context may be that of another device."""
        driver = self._driver
        if driver.current_context() == self._context.value:
            code = driver.launch(buffers.reference, self._handle, buffers.parameters, None)
        else:
            with driver.context(self._context):
                code = driver.launch(buffers.reference, self._handle, buffers.parameters, None)
        if code != SUCCESS:
            raise driver.error(code, f"the launch of {self.entry}")

    def _recover(self, code: int, buffers: _Buffers) -> None:
        """Launch again when the thread had no context, else raise."""
        driver = self._driver
        if code in _CONTEXT_ERRORS:
            current = driver.current_context()
            if current is None:  # a new thread: the CUDA runtime would make this one current too
                driver.call("cuCtxSetCurrent", self._context)
            if current != self._context.value:
                return self._launch_on_own_device(buffers)
        raise driver.error(code, f"the launch of {self.entry}")

    def _representable(
        self, codes: Sequence[str], values: Sequence[int | float], error: Exception
    ) -> list[int | float]:
        """`values` with float32 overflow turned into infinity, as a C conversion does it."""
        if not isinstance(error, OverflowError) or len(codes) != len(values):
            raise InternalError(f"wrong arguments for {self.entry}: {error}") from error
        return [
            ctypes.c_float(value).value if code == "f" else value
            for code, value in zip(codes, values, strict=True)
        ]

    def _check_sizes(self, sizes: list[int]) -> None:
        expected = self._driver.parameter_sizes(self._handle)
        if expected is None:
            return
        scratch = list(expected[len(sizes) :])
        fits = list(expected[: len(sizes)]) == sizes and len(scratch) <= _SPARE_PARAMETERS
        if not fits or any(size != 8 for size in scratch):
            raise InternalError(
                f"{self.entry} has parameters of {list(expected)} bytes, the launch passes {sizes}"
            )

    def _allow_cluster(self, cluster: Dimensions) -> None:
        blocks = cluster[0] * cluster[1] * cluster[2]
        if blocks > _PORTABLE_CLUSTER:
            self._driver.call("cuFuncSetAttribute", self._handle, _FUNCTION_NON_PORTABLE_CLUSTER, 1)


class _Buffers:
    """What one launch passes to the driver; used by one call at a time."""

    __slots__ = ("attributes", "config", "grid", "parameters", "reference", "values")

    def __init__(
        self,
        codes: Sequence[str],
        block: Dimensions,
        cluster: Dimensions,
        shared: int,
        *,
        asked: bool = False,
        waits: bool = False,
    ) -> None:
        self.config = LaunchConfig(shared=shared)
        self.config.block_x, self.config.block_y, self.config.block_z = block
        found: list[LaunchAttribute] = []
        if asked or cluster != (1, 1, 1):
            found.append(LaunchAttribute(id=_ATTRIBUTE_CLUSTER))
            found[-1].value.cluster = ClusterDimensions(*cluster)
        if waits:
            found.append(LaunchAttribute(id=_ATTRIBUTE_OVERLAP))
            found[-1].value.flag = 1
        self.attributes = (LaunchAttribute * len(found))(*found)
        self.config.attributes = self.attributes if found else None
        self.config.attribute_count = len(found)
        self.reference = byref(self.config)
        self.grid: Dimensions | None = None
        size = struct.calcsize("@" + "".join(codes))
        zero = (size + 7) // 8 * 8  # eight zero bytes: the null pointer of every spare parameter
        self.values = ctypes.create_string_buffer(zero + 8)
        start = ctypes.addressof(self.values)
        addresses = [start + offset for offset in offsets(codes)]
        addresses += [start + zero] * _SPARE_PARAMETERS
        self.parameters = (c_void_p * len(addresses))(*addresses)

    def set_grid(self, grid: Dimensions) -> bool:
        """Write `grid` into the configuration; False when there is nothing to launch."""
        if 0 in grid:
            return False
        if any(not 0 < size <= limit for size, limit in zip(grid, GRID_LIMITS, strict=True)):
            raise UnsupportedError(f"a grid of {grid} blocks is beyond what CUDA launches")
        self.config.grid_x, self.config.grid_y, self.config.grid_z = grid
        self.grid = grid
        return True


def load_function(cubin: bytes, entry: str, shared: int, device_index: int) -> CudaFunction:
    """Load kernel `entry` of `cubin` on a device, with room for `shared` bytes of dynamic memory.

    Raises UnsupportedError without a CUDA driver or when the device has too little shared memory,
    and DriverError when the driver refuses the code.
    """
    driver = cuda_driver()
    context = driver.primary_context(device_index)
    module, handle = c_void_p(), c_void_p()
    with driver.context(context), driver.outside_capture():
        driver.call("cuModuleLoadData", byref(module), cubin)
        driver.call("cuModuleGetFunction", byref(handle), module, entry.encode())
        _reserve_shared(driver, handle, entry, shared, device_index)
    return CudaFunction(driver, handle, context, entry, shared)


def ptx_parameter_sizes(ptx: str, entry: str) -> tuple[int, ...]:
    """Bytes of each parameter of kernel `entry` in PTX text, scratch pointers included."""
    found = re.search(rf"\.entry\s+{re.escape(entry)}\b\s*(?:\(([^)]*)\))?", ptx)
    if found is None:
        raise InternalError(f"the PTX has no kernel {entry}")
    sizes = []
    for declared in (found[1] or "").split(","):
        if match := re.search(r"\.param\b.*?\.[busf](\d+)\b.*?(?:\[(\d+)\])?\s*$", declared, re.S):
            sizes.append(int(match[1]) // 8 * int(match[2] or 1))
    return tuple(sizes)


def offsets(codes: Sequence[str]) -> list[int]:
    """Where struct places each code, with the alignment of C."""
    return [
        struct.calcsize("@" + "".join(codes[: index + 1])) - struct.calcsize(code)
        for index, code in enumerate(codes)
    ]


def codes(param_types: Sequence[str]) -> str:
    """The struct module's codes of parameter types."""
    return "".join(map(_code, param_types))


def _code(kind: str) -> str:
    code = "Q" if kind.startswith("*") else _CODES.get(kind)
    if code is None:
        raise InternalError(f"a kernel cannot take a parameter of type {kind}")
    return code


def _reserve_shared(
    driver: CudaDriver, handle: c_void_p, entry: str, shared: int, device_index: int
) -> None:
    # Asking for an attribute also makes the driver load the code now, and not at the first launch.
    static, limit, device = c_int(), c_int(), c_int()
    driver.call("cuFuncGetAttribute", byref(static), _FUNCTION_STATIC_SHARED, handle)
    if shared + static.value <= _SHARED_WITHOUT_ASKING:
        return
    driver.call("cuDeviceGet", byref(device), device_index)
    driver.call("cuDeviceGetAttribute", byref(limit), _DEVICE_MAX_SHARED, device)
    if shared + static.value > limit.value:
        raise UnsupportedError(
            f"{entry} needs {shared + static.value} bytes of shared memory per block, "
            f"the device has {limit.value}"
        )
    driver.call("cuFuncSetAttribute", handle, _FUNCTION_MAX_DYNAMIC_SHARED, shared)
