"""Small Triton programs that the tests of the runtime share."""

from fusec.runtime.build_triton import TritonProgram

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice


"""

ADD = (
    HEADER
    + """@triton.jit
def add(x, y, out, n, scale, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    a = tl.load(x + offsets, mask=mask)
    b = tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, a + b * scale, mask=mask)
"""
)

ROW_SUM = (
    HEADER
    + """@triton.jit
def largest(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def row_max(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + index, mask=index < columns, other=-float("inf"))
    value = libdevice.tanh(value.to(tl.float32))
    tl.store(out + row, tl.reduce(value, 0, largest))
"""
)


def add_program(block: int = 1024, **changes: object) -> TritonProgram:
    """out = x + y * scale over n float32 elements; parameters x, y, out, n (i64), scale (fp32)."""
    options: dict = {
        "source": ADD,
        "entry": "add",
        "signature": (
            ("x", "*fp32"),
            ("y", "*fp32"),
            ("out", "*fp32"),
            ("n", "i64"),
            ("scale", "fp32"),
            ("BLOCK", "constexpr"),
        ),
        "constants": (("BLOCK", block),),
        "divisible_by_16": frozenset({"x", "y", "out", "n"}),
    }
    return TritonProgram(**(options | changes))


def row_max_program() -> TritonProgram:
    """The largest tanh(x) of each row, bfloat16 in and float32 out, NaN propagated."""
    return TritonProgram(
        source=ROW_SUM,
        entry="row_max",
        signature=(("x", "*bf16"), ("out", "*fp32"), ("columns", "i32"), ("BLOCK", "constexpr")),
        constants=(("BLOCK", 128),),
    )
