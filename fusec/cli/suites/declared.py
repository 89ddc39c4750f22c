"""The suites, declared: ``pointwise``, ``rows``, ``narrow``, ``gradients``, ``host``, ``cold``,
``cpu``, ``pipeline``, ``five-ways`` and ``models``.

May import ``case.py`` of this package only.
"""

from __future__ import annotations

import functools
import math

from fusec.cli.suites.case import Measure, Operation, Suite, SuiteCase, make_case

DTYPES = ("bf16", "f32")

# Twenty operations, ten products and ten sums: the series of sin(x) + cos(x) by Horner's rule, as a
# formula that is Python as well.
POLYNOMIAL = functools.reduce(
    lambda inner, k: f"({inner} * x {'+' if k % 4 < 2 else '-'} {1 / math.factorial(k):.9f})",
    range(9, -1, -1),
    f"-{1 / math.factorial(10):.9f}",
)

POINTWISE = (
    Operation("gelu_tanh", "gelu_tanh(x)", "x=N"),
    Operation("gelu", "gelu(x)", "x=N"),
    Operation("silu", "silu(x)", "x=N"),
    Operation("swiglu", "swiglu(x, y)", "x=N y=N"),
    Operation("geglu", "gelu_tanh(x) * y", "x=N y=N"),
    Operation("axpy", "a*x + y", "x=N a=2.5 y=N"),
    Operation("relu2", "relu2(x)", "x=N"),
    Operation("softplus", "softplus(x)", "x=N"),
    Operation("mish", "mish(x)", "x=N"),
    Operation("polynomial", POLYNOMIAL, "x=N"),
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

# What models are trained with. A softmax's gradient starts from its result, others from inputs.
TRAINED = (
    Operation("softmax", "softmax(x)", "x=RxC", reads="result"),
    Operation("layer_norm", "layer_norm(x, w, b)", "x=RxC w=C b=C", reads="x w"),
    Operation("rms_norm", "rms_norm(x, w)", "x=RxC w=C", reads="x w"),
    Operation("gelu", "gelu(x)", "x=RxC", reads="x"),
    Operation("swiglu", "swiglu(x, y)", "x=RxC y=RxC", reads="x y"),
    Operation("cross_entropy", "logsumexp(x) - x[t]", "x=RxC t=R:i64", reads="x t"),
)

# What lies in a few columns, which tiles made for many would mostly leave empty.
NARROW = (
    *(o for o in ROWS if o.name in ("softmax", "layer_norm", "row_sum", "column_sum")),
    Operation("scale_columns", "x * w", "x=RxC w=C"),
    Operation("scale_rows", "x * w", "x=RxC w=Rx1"),
    Operation("column_variance", "var(x, axis=0)", "x=RxC", part=-1),
    Operation("column_softmax", "softmax(x, axis=0)", "x=RxC", part=-1),
)

# Powers of two: the sizes that show the memory's speed first, then the way down to one launch.
SIZES = (28, 26, 27, 24, 20, 16, 10, 22, 18, 14, 12)
COLUMNS = (
    4096, 1024, 16384, 32768, 50257, 131072, 64, 256, 4097, 1000, 262144, 4194304
)  # fmt: skip
FULL = 1 << 27  # elements of a tensor that fills the machine
FEW_ROWS = (132, 8, 1)
NARROW_COLUMNS = (3, 8, 33, 100, 513, 2, 17, 5)

TIMED = ("eager", "torch", "compile", "max-autotune", "triton", "liger", "quack", "fusec")
ON_CPU = ("eager", "torch", "compile", "numexpr", "jax", "fusec", "fusec-out")
TRAINING = ("eager", "torch", "compile", "max-autotune", "liger", "fusec")
MODELS = ("eager", "compile", "fusec")
HOST = ("torch", "triton", "compile", "graph", "fusec", "bind", "bind-out")
COLD = ("eager", "compile", "fusec")
# A formula op by op, as one call, as the two GPU languages that fusec prints, and compiled by
# PyTorch; on a CPU the C++ of fusec stands for both languages.
WAYS = ("eager", "torch", "fusec-cuda", "fusec-triton", "fusec-cpp", "compile")

# One call on 1024 elements.
SMALL = (
    Operation("gelu_tanh", "gelu_tanh(x)", "x=N"),
    Operation("silu", "silu(x)", "x=N"),
    Operation("axpy", "a*x + y", "x=N a=2.5 y=N"),
    Operation("softmax", "softmax(x)", "x=1xN"),
)

_GELU = "0.5*x*(1+tanh(0.79788456*(x+0.044715*x^3)))"
FIRST_CALLS = (
    Operation("first_gelu", _GELU, "x=RxC"),
    Operation("next_silu", "x*sigmoid(x)", "x=RxC", after=_GELU),
    Operation("first_softmax", "softmax(x)", "x=RxC"),
    Operation("next_layer_norm", "layer_norm(x, w, b)", "x=RxC w=C b=C", after="softmax(x)"),
)

# The figures of the README: what each costs, kernels and first calls included.
PIPELINE = (
    Operation("gelu", _GELU, "x=RxC"),
    Operation("softmax", "softmax(x)", "x=RxC"),
    Operation("layer_norm", "layer_norm(x, w, b)", "x=RxC w=C b=C"),
)
SCALE = Operation("scale", "x*2 + 1", "x=N")

FIVE_WAYS = (
    Operation("gelu", "0.5*x*(1 + tanh(0.79788456*(x + 0.044715*x*x*x)))", "x=RxC"),
    Operation("softmax", "softmax(x)", "x=RxC"),
)
# Milliseconds that the lecture behind this suite gives for the same ways, on an A100 or H100, with
# kernels written by hand. It has no softmax in CUDA.
LECTURE = {
    "gelu": {
        "eager": 8.1, "torch": 1.1, "fusec-cuda": 1.8, "fusec-triton": 1.8, "compile": 1.47,
    },
    "softmax": {"eager": 3.7, "torch": 1.5, "fusec-triton": 1.9, "compile": 1.3},
}  # fmt: skip
LECTURE_CASE = ("f32", (16384, 16384))
# Rows and columns for two cores: square, many rows and few, and rows of a few elements.
_CPU_SHAPES = ((4096, 4096), (65536, 256), (64, 262144), (8, 2097152), (1048576, 16))


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


def narrow(device: str = "cuda") -> list[SuiteCase]:
    """Few columns, odd and even, and many rows: 2^26 elements, on a CPU 2^23."""
    elements = 1 << (23 if device == "cpu" else 26)
    return [
        make_case("narrow", operation, dtype, {"R": elements // columns, "C": columns})
        for dtype in DTYPES
        for columns in NARROW_COLUMNS
        for operation in NARROW
    ]


def gradients(device: str = "cuda") -> list[SuiteCase]:
    """Operations of models in training, at the sizes of one."""
    if device == "cpu":
        square = {"R": 2048, "C": 2048}
        return [make_case("gradients", operation, "f32", square) for operation in TRAINED]
    *others, cross_entropy = TRAINED
    return [
        *(make_case("gradients", o, "bf16", {"R": 32768, "C": 4096}) for o in others),
        make_case("gradients", cross_entropy, "bf16", {"R": 8192, "C": 32768}),
    ]


def host(device: str = "cuda") -> list[SuiteCase]:
    """One call on 1024 elements."""
    return [
        make_case("host", operation, dtype, {"N": 1024}) for dtype in DTYPES for operation in SMALL
    ]


def cold(device: str = "cuda") -> list[SuiteCase]:
    """First calls: of a process, and of the next formula in it."""
    return [
        make_case("cold", operation, "f32", {"R": 1024, "C": 1024}) for operation in FIRST_CALLS
    ]


def cpu(device: str = "cpu") -> list[SuiteCase]:
    """Elementwise and row operations at sizes for two cores."""
    square = [
        make_case("cpu", operation, dtype, {**_lengths(24), "N": "4096x4096"})
        for dtype in reversed(DTYPES)
        for operation in (SCALE, *POINTWISE)
    ]
    by_row = [
        make_case("cpu", operation, dtype, {"R": rows, "C": columns})
        for rows, columns in _CPU_SHAPES
        for dtype in reversed(DTYPES)
        for operation in ROWS
    ]
    small = [
        make_case("cpu", operation, dtype, _lengths(18))
        for dtype in reversed(DTYPES)
        for operation in (SCALE, *POINTWISE)
    ]
    return [*square, *by_row, *small]


def pipeline(device: str = "cuda") -> list[SuiteCase]:
    """The cases of the README's tables."""
    gelu, softmax, layer_norm = PIPELINE
    if device == "cpu":
        square: dict[str, int | str] = {"R": 4096, "C": 4096, "N": "4096x4096"}
        return [make_case("pipeline", op, "f32", square) for op in (*PIPELINE, SCALE)]
    large: dict[str, int | str] = {"R": 16384, "C": 16384}
    wide: dict[str, int | str] = {"R": 32768, "C": 4096}
    return [
        make_case("pipeline", gelu, "f32", large),
        make_case("pipeline", gelu, "bf16", large),
        make_case("pipeline", softmax, "bf16", wide),
        make_case("pipeline", layer_norm, "bf16", wide),
    ]


def five_ways(device: str = "cuda") -> list[SuiteCase]:
    """GELU and softmax in float32, then in bfloat16."""
    side = 4096 if device == "cpu" else 16384
    return [
        make_case("five-ways", operation, dtype, {"R": side, "C": side})
        for dtype in reversed(DTYPES)
        for operation in FIVE_WAYS
    ]


def models(device: str = "cuda") -> list[SuiteCase]:
    """Networks that are deep, shallow, and so small that the caller is the bound; and language
    models as the package ``transformers`` has them, with four layers.
    """
    dtype = "f32" if device == "cpu" else "bf16"
    sizes = {
        "cpu": ((3, 1024, 1024), (8, 1024, 1024), (3, 64, 32)),
        "cuda": ((3, 1024, 4096), (8, 1024, 4096), (3, 256, 128)),
    }
    networks = [
        make_case(
            "models",
            Operation(f"mlp_{depth}", f"gelu(linear(x)), {depth} layers", "x=RxC", depth=depth),
            dtype,
            {"R": rows, "C": width},
        )
        for depth, width, rows in sizes[device]
    ]
    batch, tokens = (2, 64) if device == "cpu" else (4, 1024)
    return networks + [
        make_case(
            "models",
            Operation(kind, f"{kind}, 4 layers", "t=BxT:i64", depth=4),
            dtype,
            {"B": batch, "T": tokens},
        )
        for kind in ("llama", "gpt2", "bert")
    ]


SUITES = {
    suite.name: suite
    for suite in (
        Suite("pointwise", "elementwise formulas, 2^10 to 2^28 elements", pointwise, TIMED),
        Suite("rows", "row reductions, 64 to 4M columns", rows, TIMED),
        Suite(
            "narrow",
            "rows and columns of matrices with few columns",
            narrow,
            TIMED[:4] + TIMED[-1:],
            fresh=("cpu",),
        ),
        Suite(
            "gradients",
            "backward, forward and backward together, and peak memory",
            gradients,
            TRAINING,
            Measure.GRADIENTS,
            fresh=("cpu",),
        ),
        Suite(
            "models",
            "a step of training of a network, and its first step",
            models,
            MODELS,
            Measure.MODELS,
            fresh=("cpu", "cuda"),
        ),
        Suite("host", "what one call costs the caller, 1024 elements", host, HOST, Measure.HOST),
        Suite("cold", "first calls, in fresh processes", cold, COLD, Measure.COLD),
        Suite("cpu", "formulas and rows for two cores", cpu, ON_CPU, fresh=("cpu",), device="cpu"),
        Suite(
            "pipeline",
            "the figures of the README, kernels and first calls included",
            pipeline,
            (*COLD[:1], "torch", *COLD[1:], "fusec-out"),
            Measure.THOROUGH,
            fresh=("cpu", "cuda"),
        ),
        Suite(
            "five-ways",
            "GELU and softmax in five ways, with their kernels, bytes and lines of source",
            five_ways,
            WAYS,
            Measure.WAYS,
            on_cpu="CUDA C++ and Triton need a GPU: fusec's C++ stands for both here",
        ),
    )
}


def _lengths(power: int) -> dict[str, int | str]:
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
