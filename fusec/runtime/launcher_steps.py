"""One launch as the compiled launcher takes it: codes of the types, values, what fills them in, and
the kernel. May import ``runtime.prepared``, ``runtime.build_cpp``, ``runtime.driver`` and
``runtime.libcuda``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusec.runtime.prepared import StepPlan

# The types of C++ parameters, as codes of the struct module.
_CODES = {
    "float": "f", "double": "d", "bool": "?", "int64_t": "q", "int32_t": "i", "int16_t": "h",
    "int8_t": "b", "uint8_t": "B",
}  # fmt: skip


def cpp_step(step: StepPlan, threads: int) -> tuple[object, ...]:
    """The launch of a C++ kernel on so many threads."""
    from fusec.runtime.build_cpp import packed_address

    codes = "".join("Q" if kind.endswith("*") else _CODES[kind] for kind in step.types)
    address = packed_address(step.binary, step.entry)
    one = (1, 1, 1)
    return (
        codes.encode(), (*step.values, threads), step.pointers,
        tuple((place, at) for place, at, *_ in step.scalars), address, 0, one, one, one, 0, 0,
        None, None,
    )  # fmt: skip


def cuda_step(step: StepPlan, index: int) -> tuple[object, ...]:
    """The launch of a GPU kernel on device ``index``."""
    from fusec.runtime.driver import codes
    from fusec.runtime.libcuda import cuda_driver
    from fusec.runtime.prepared import cuda_function

    driver, function = cuda_driver(), cuda_function(step, index)

    def fail(code: int) -> None:
        raise driver.error(code, f"the launch of {step.entry}")

    return (
        codes(step.types).encode(), step.values, step.pointers,
        tuple((place, at) for place, at, *_ in step.scalars), function.address,
        function.context_address, step.grid, (step.block, 1, 1), (step.cluster, 1, 1),
        step.shared, int(step.waits), index, fail,
    )  # fmt: skip
