"""The small functions that generated Triton may need, by name. Printed above the kernel that calls
them.

Each is written for a whole block and works for every type the op table sends to it. May import
nothing.
"""

from __future__ import annotations

import re

_MAXIMUM = """
@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
"""

_MINIMUM = """
@triton.jit
def _minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
"""

_MULTIPLY = """
@triton.jit
def _multiply(a, b):
    return a * b
"""

_ADD_BOTH = """
@triton.jit
def _add_both(a, b, c, d):
    return a + c, b + d
"""

_EXP = """
@triton.jit
def _exp(x):
    # A product and one instruction, where tl.exp would also look after subnormal results.
    return tl.exp2(x * 1.442695)
"""

_TANH = """
@triton.jit
def _tanh(x):
    # The quotient cancels near 0, where three terms of the series are good to 2e-7.
    square = x * x
    near = x * (1.0 - square * (0.33333334 - square * 0.13333334))
    far = 1.0 - 2.0 / (1.0 + tl.exp2(x * 2.88539))
    return tl.where(tl.abs(x) < 0.125, near, far)
"""

_LOG = """
@triton.jit
def _log(x):
    # The instruction takes subnormal numbers for 0, so they are scaled by 2^24 first.
    small = x < 1.1754944e-38
    scaled = libdevice.fast_logf(tl.where(small, x * 16777216.0, x))
    return tl.where(small, scaled - 16.635532, scaled)
"""

_LOG1P = """
@triton.jit
def _log1p(x):
    # The logarithm cancels near 1, where four terms of the series are good to 2e-8.
    near = x * (1.0 - x * (0.5 - x * (0.33333334 - x * 0.25)))
    return tl.where(tl.abs(x) < 0.015625, near, libdevice.fast_logf(1.0 + x))
"""

_LOG1PEXP = """
@triton.jit
def _log1pexp(x):
    # Above 40 the logarithm is x itself, to the last digit of float64.
    return tl.where(x > 40.0, x, libdevice.log1p(libdevice.exp(x)))
"""

_QUICK_LOG1PEXP = """
@triton.jit
def _quick_log1pexp(x):
    return tl.where(x > 20.0, x, _log1p(_exp(x)))
"""

_NDTR = """
@triton.jit
def _ndtr(x):
    # A logistic curve with a polynomial for its slope: good to 7e-5 of the value where |x| < 4, and
    # beyond to 5e-10. Fitted to log(p / (1 - p)) / x of the normal distribution by minimax.
    square = tl.minimum(x * x, 36.0)
    power = square * -2.9907785e-09 + 2.5614622e-07
    power = tl.fma(power, square, -8.652716132928617e-06)
    power = tl.fma(power, square, 0.0001309070794377476)
    power = tl.fma(power, square, 0.0002336054021725431)
    power = tl.fma(power, square, -0.10512077063322067)
    power = tl.fma(power, square, -2.3020436763763428)
    return libdevice.fast_dividef(1.0, 1.0 + tl.exp2(x * power))
"""

_DIVIDE = """
@triton.jit
def _divide(a, b):
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b
"""

_MEAN = """
@triton.jit
def _mean(x, count, axis: tl.constexpr, keep_dims: tl.constexpr = False):
    # A power of two changes no digit, and keeps the sum in range wherever the mean is.
    scale: tl.constexpr = 1.0 / x.shape[axis]
    total = tl.sum(x * scale, axis=axis, keep_dims=keep_dims)
    return _divide(total, count.to(x.dtype) * scale)
"""

_MEAN_OF_TILE = """
@triton.jit
def _mean_of_tile(x, axis: tl.constexpr, keep_dims: tl.constexpr = False):
    # A power of two changes no digit, and keeps the sum in range wherever the mean is.
    scale: tl.constexpr = 1.0 / x.shape[axis]
    return tl.sum(x * scale, axis=axis, keep_dims=keep_dims)
"""

_MEAN_SCALE = """
@triton.jit
def _mean_scale(count):
    # A power of two, which changes no digit, that keeps sums of so many values in range.
    bits = count.to(tl.float32).to(tl.int32, bitcast=True)
    return (0x7E800000 - (bits & 0x7F800000)).to(tl.float32, bitcast=True)
"""

_FLOOR_DIVIDE = """
@triton.jit
def _floor_divide(a, b):
    # The quotient of what the remainder leaves is nearly whole, so rounding it cannot land on the
    # wrong side.
    a, b = tl.broadcast(a, b)
    rest = libdevice.fmod(a, b)
    quotient = _divide(a - rest, b)
    quotient = tl.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    whole = tl.floor(quotient)
    whole = tl.where(quotient - whole > 0.5, whole + 1, whole)
    plain = _divide(a, b)
    whole = tl.where(quotient == 0, libdevice.copysign(quotient, plain), whole)
    return tl.where(b == 0, plain, whole)
"""

_REMAINDER = """
@triton.jit
def _remainder(a, b):
    a, b = tl.broadcast(a, b)
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)
"""

_FLOOR_DIVIDE_INT = """
@triton.jit
def _floor_divide_int(a, b):
    # Division by zero gives 0.
    safe = tl.where(b == 0, b + 1, b)
    quotient = (a // safe).to(safe.dtype)
    rest = (a - quotient * safe).to(safe.dtype)
    lower = (rest != 0) & ((rest < 0) != (safe < 0))
    return tl.where(b == 0, b, quotient - lower.to(safe.dtype))
"""

_REMAINDER_INT = """
@triton.jit
def _remainder_int(a, b):
    # A remainder by zero is 0.
    safe = tl.where(b == 0, b + 1, b)
    rest = (a % safe).to(safe.dtype)
    wrong = (rest != 0) & ((rest < 0) != (safe < 0))
    return tl.where(b == 0, b, tl.where(wrong, rest + safe, rest))
"""

_FMOD_INT = """
@triton.jit
def _fmod_int(a, b):
    safe = tl.where(b == 0, b + 1, b)
    return tl.where(b == 0, b, (a % safe).to(safe.dtype))
"""

_POW_INT = """
@triton.jit
def _pow_int(a, b):
    # Square and multiply; a negative exponent leaves only 1 and -1 (and 0 for the rest).
    a, b = tl.broadcast(a, b)
    one = a * 0 + 1
    odd = (b & 1) != 0
    below = tl.where(a == 1, one, tl.where(a + 1 == 0, tl.where(odd, a, one), a * 0))
    result, square, left = one, a, tl.where(b < 0, b * 0, b)
    for _ in range(64):
        result = tl.where((left & 1) != 0, result * square, result)
        square = square * square
        left = left >> 1
    return tl.where(b < 0, below, result)
"""

_F8E5M2 = """
@triton.jit
def _f8e5m2(x):
    # Bit by bit: a GPU's own conversion stops at the largest number, PyTorch's at infinity.
    x = x.to(tl.float32)
    size = tl.abs(x)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0xFFFFF + ((bits >> 21) & 1)) >> 21) - 448
    subnormal = (size + 128.0).to(tl.int32, bitcast=True) - 0x43000000
    code = tl.where(size < 6.103515625e-05, subnormal, tl.minimum(normal, 124))
    code = tl.where(x != x, 127, code) | ((x.to(tl.int32, bitcast=True) >> 24) & 128)
    return code.to(tl.uint8).to(tl.float8e5, bitcast=True)
"""

_AWAIT = """
@triton.jit
def _await_earlier_kernel():
    # Its last programs may still run, since this kernel is launched before they end.
    tl.inline_asm_elementwise(
        "griddepcontrol.wait; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )
"""

_RELEASE = """
@triton.jit
def _let_later_kernel_begin():
    # As soon as all programs of this one have come so far.
    tl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; mov.u32 $0, 0;",
        "=r",
        [],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
"""

HELPERS: dict[str, str] = {
    "_await_earlier_kernel": _AWAIT,
    "_let_later_kernel_begin": _RELEASE,
    "_maximum": _MAXIMUM,
    "_minimum": _MINIMUM,
    "_multiply": _MULTIPLY,
    "_add_both": _ADD_BOTH,
    "_exp": _EXP,
    "_tanh": _TANH,
    "_log": _LOG,
    "_log1p": _LOG1P,
    "_log1pexp": _LOG1PEXP,
    "_quick_log1pexp": _QUICK_LOG1PEXP,
    "_ndtr": _NDTR,
    "_divide": _DIVIDE,
    "_mean": _MEAN,
    "_mean_of_tile": _MEAN_OF_TILE,
    "_mean_scale": _MEAN_SCALE,
    "_floor_divide": _FLOOR_DIVIDE,
    "_remainder": _REMAINDER,
    "_floor_divide_int": _FLOOR_DIVIDE_INT,
    "_remainder_int": _REMAINDER_INT,
    "_fmod_int": _FMOD_INT,
    "_pow_int": _POW_INT,
    "_f8e5m2": _F8E5M2,
}
# These ask their operands for a type or a shape, which a Python number has not.
TYPED = frozenset(name for name, text in HELPERS.items() if "tl.broadcast(" in text)
_CALL = re.compile(r"\b_[a-z0-9_]+\b")


def needed(text: str) -> list[str]:
    """The helpers that ``text`` calls, directly or through others, in the order of the table."""
    found: set[str] = set()
    pending = [text]
    while pending:
        for name in _CALL.findall(pending.pop()):
            if name in HELPERS and name not in found:
                found.add(name)
                pending.append(HELPERS[name])
    return [name for name in HELPERS if name in found]
