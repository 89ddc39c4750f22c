"""The suites, declared: ``pointwise``, ``rows``, ``host``, ``cold``, ``cpu``, ``pipeline``.

May import ``case.py`` of this package only.
"""

from __future__ import annotations

from fusec.cli.suites.case import Operation, Suite, SuiteCase, make_case

DTYPES = ("bf16", "f32")

# Twenty operations: ten products and ten sums, by Horner's rule.
_POLYNOMIAL = "c0 = 0.31; " + "; ".join(
    f"c{n} = c{n - 1} * x {'+' if n % 2 else '-'} {0.05 * n + 0.02:.2f}" for n in range(1, 11)
)

POINTWISE = (
    Operation("gelu_tanh", "gelu_tanh(x)", "x=N"),
    Operation("gelu", "gelu(x)", "x=N"),
    Operation("silu", "silu(x)", "x=N"),
    Operation("swiglu", "swiglu(x, y)", "x=N y=N"),
    Operation("geglu", "geglu(x, y)", "x=N y=N"),
    Operation("axpy", "a*x + y", "x=N a=2.5 y=N"),
    Operation("relu2", "relu2(x)", "x=N"),
    Operation("softplus", "softplus(x)", "x=N"),
    Operation("mish", "mish(x)", "x=N"),
    Operation("polynomial", f"{_POLYNOMIAL}; c10", "x=N"),
    Operation("bias_row", "x + b", "x=RxC b=C"),
    Operation("bias_column", "x + b", "x=RxC b=Rx1"),
    Operation("transposed", "silu(x) + y", "x=RxC:same:transposed y=RxC"),
    Operation("channels_last", "silu(x * w + b)", "x=BxKxHxH:same:channels_last w=Kx1x1 b=Kx1x1"),
)

ROWS = (
    Operation("softmax", "softmax(x)", "x=RxC"),
    Operation("rms_norm", "rms_norm(x, w)", "x=RxC w=C"),
    Operation("layer_norm", "layer_norm(x, w, b)", "x=RxC w=C b=C"),
    Operation("add_rms_norm", "h = x + r; rms_norm(h, w), h", "x=RxC r=RxC w=C"),
    Operation("cross_entropy", "logsumexp(x) - x[t]", "x=RxC t=R:i64"),
    Operation("log_softmax", "log_softmax(x)", "x=RxC"),
    Operation("logsumexp", "logsumexp(x)", "x=RxC"),
    Operation("row_sum", "sum(x)", "x=RxC"),
    Operation("row_variance", "var(x)", "x=RxC"),
    Operation("entropy", "-sum(softmax(x) * log_softmax(x))", "x=RxC"),
    Operation("column_sum", "sum(x, axis=0)", "x=RxC", part=-1),
)

# Powers of two: the sizes that show the memory's speed first, then the way down to one launch.
SIZES = (28, 26, 27, 24, 20, 16, 10, 22, 18, 14, 12)
COLUMNS = (
    4096, 1024, 16384, 32768, 50257, 131072, 64, 256, 4097, 1000, 262144, 4194304
)  # fmt: skip
FULL = 1 << 27  # elements of a tensor that fills the machine
FEW_ROWS = (132, 8, 1)

TIMED = ("eager", "torch", "compile", "max-autotune", "triton", "liger", "quack", "fusec")
ON_CPU = ("eager", "torch", "compile", "numexpr", "jax", "fusec", "fusec-out")


def pointwise(device: str = "cuda") -> list[SuiteCase]:
    """Every elementwise operation at 2^10 to 2^28 elements."""
    return [
        make_case("pointwise", operation, dtype, _lengths(power))
        for power in SIZES
        for dtype in DTYPES
        for operation in POINTWISE
    ]


def rows(device: str = "cuda") -> list[SuiteCase]:
    """Every row operation and length: as many rows as make 2^27 elements, then few rows."""
    return [
        make_case("rows", operation, dtype, {"R": few or FULL // columns, "C": columns})
        for few in (None, *FEW_ROWS)
        for dtype in DTYPES
        for columns in COLUMNS
        for operation in ROWS
    ]


SUITES = {
    suite.name: suite
    for suite in (
        Suite("pointwise", "elementwise formulas, 2^10 to 2^28 elements", pointwise, TIMED),
        Suite("rows", "row reductions, 64 to 4M columns", rows, TIMED),
    )
}


def _lengths(power: int) -> dict[str, int]:
    """The lengths of 2^power elements as one axis, as a matrix, and as images of 64 channels."""
    side = min(8, (power - 6) // 2)  # of an image, as a power of two
    return {
        "N": 1 << power,
        "R": 1 << power // 2,
        "C": 1 << power - power // 2,
        "B": 1 << power - 6 - 2 * side,
        "K": 64,
        "H": 1 << side,
    }
