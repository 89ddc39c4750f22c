"""The one table from PyTorch's operators to the language: what a traced call means.

A row is an expression of the language over the argument names of the operator's schema. Operators
whose name and arguments agree with an op or a composite of fusec need no row: they are found by the
names of their PyTorch references in ``ir/ops.py`` and ``ir/derived.py``. A key is the name of an
operator (``add``), or of one overload (``div.Tensor_mode``). Views, creation and operators with
several results are functions in ``trace_special.py``.

May import ``fusec.ir``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from fusec.ir.derived import rows
from fusec.ir.ops import elementwise


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# Elementwise operators whose arguments are not those of an op of fusec.
_EXCEPTIONS = {
    "add": "self + alpha * other",
    "sub": "self - alpha * other",
    "rsub": "other - alpha * self",
    "mul": "self * other",
    "div": "self / other",
    "neg": "-self",
    "pow": "self ^ exponent",
    "logical_and": "self and other",
    "logical_or": "self or other",
    "logical_xor": "(self != 0) != (other != 0)",
    "logical_not": "not self",
    "where": "where(condition, self, other)",
    "threshold": "where(self <= threshold, value, self)",
    "hardtanh": "hardtanh(self, min_val, max_val)",
    "elu": """gradient_as(
        where(self <= 0, alpha * scale * expm1(input_scale * self), scale * self),
        where(self < 0, alpha * scale * expm1(input_scale * self),
              where(self == 0, alpha * scale * input_scale * self, scale * self)))""",
    "frac": "self - trunc(self)",
    "positive": "self",
    "deg2rad": "self * (pi / 180)",
    "rad2deg": "self * (180 / pi)",
    "addcmul": "self + value * tensor1 * tensor2",
    "addcdiv": "self + value * (tensor1 / tensor2)",
    "special_entr": "where(self > 0, -self * log(self), where(self == 0, 0, self - self - inf))",
    "special_xlog1py": "where(other != other, nan, where(self == 0, 0, self * log1p(other)))",
}

# Of these a digit decides: operands are rounded as PyTorch stores them.
EXACT = words("eq ne isinf isfinite nan_to_num")

# Here something is computed of some operands alone, and PyTorch does it in the type of all of them.
IN_COMMON = words("add sub rsub addcmul addcdiv hypot special_xlog1py")
FACTORS = words("alpha value")

# What PyTorch computes of floats alone, and of anything but bools.
FLOATS_ONLY = words(
    "silu gelu hardswish hardsigmoid softplus mish elu celu log_sigmoid_forward softshrink"
    " _softmax _log_softmax lerp hypot frac"
)
NO_BOOLS = words("relu argmax argmin addcmul")

# Operators that reduce: the function of the language, which gets ``axis=``.
REDUCTIONS: Mapping[str, str] = MappingProxyType(
    {
        **{name: name for name in ("sum", "mean", "prod", "any", "all", "logsumexp")},
        **{name: name for name in ("argmax", "argmin", "var", "std")},
        "amax": "max",
        "amin": "min",
        "count_nonzero": "sum",
    }
)

# Some operators of PyTorch that only rearrange or multiply matrices, for a better message.
MATRIX_PRODUCTS = words(
    "mm bmm addmm baddbmm addmv mv dot vdot matmul linear convolution _convolution einsum addbmm"
    " scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu"
    " _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention"
)
# PyTorch takes these apart, but into quadratic work.
NOT_FUSED = words("cumsum cumprod")
# In a whole model these stay with PyTorch, although they could be taken apart: what they are made
# of is no elementwise operator and no reduction of rows.
STAY: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            words("embedding embedding_dense_backward index_select index gather take_along_dim"),
            "it picks elements by an index",
        ),
        **dict.fromkeys(
            words("cat stack constant_pad_nd slice_backward select_backward slice_scatter"
                   " select_scatter repeat"),
            "it puts tensors together",
        ),
        **dict.fromkeys(words("roll flip"), "it moves elements"),
        **dict.fromkeys(
            MATRIX_PRODUCTS | words("convolution_backward"), "it multiplies matrices"
        ),
        **dict.fromkeys(
            words("max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d"
                   " _adaptive_avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d_backward"
                   " grid_sampler_2d upsample_nearest2d"),
            "it combines neighbours",
        ),
        **dict.fromkeys(words("cumsum cumprod sort topk"), "it scans or sorts"),
    }
)  # fmt: skip
# New tensors that PyTorch detaches before the function sees them.
MADE = words("empty empty_like zeros zeros_like ones ones_like full full_like arange scalar_tensor")
ATTENTION = ("scaled_dot_product", "flash_attention", "efficient_attention")  # parts of names
VALUES_NEEDED = words("_local_scalar_dense item is_nonzero equal allclose")
VALUE_SHAPED = words(
    "nonzero masked_select unique _unique2 unique_dim unique_consecutive bincount"
    " repeat_interleave.Tensor nonzero_static"
)


def _derived() -> Iterator[tuple[str, str]]:
    """Rows that ops and composites make themselves, by the names of their references."""
    for op in elementwise():
        if isinstance(op.torch, str) and op.name != "where":
            yield ("div" if op.name == "div" else op.torch), op.name
    for row in rows():
        if row.torch is not None and all(p.name != "axis" for p in row.parameters):
            yield row.torch.removeprefix("F."), row.name


# What an operator of this name computes from its tensors and numbers, in order: an op, or the name
# of a composite. Softmaxes and norms have axes, so they are no rows.
SAME_NAMES: Mapping[str, str] = MappingProxyType(dict(_derived()))
EXPRESSIONS: Mapping[str, str] = MappingProxyType(_EXCEPTIONS)
