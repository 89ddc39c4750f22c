"""The derivatives that are too long for a row of the op table.

As in the table, each gets ``o`` (through which it reaches every op: ``o.exp(x)``), the gradient
``g`` of the result, the result ``y`` and the operands, all of them expressions with overloaded
operators, and returns the gradient of each operand (None where there is none). May import the
standard library only.
"""

from __future__ import annotations

import math
from typing import Any

# The asymptotic series of digamma from 10 on: B(2k) / 2k over x^2k; what follows is below 1e-17.
_DIGAMMA = (
    1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12,
)  # fmt: skip
_FAR = 10


def power(o: Any, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """``a^b``: nothing flows to ``a`` where ``b`` is 0, nor to ``b`` where 0 is raised to it."""
    base = o.where(b == 0, 0, g * (b * a ** (b - 1)))
    exponent = o.where((a == 0) & (b >= 0), 0, g * (y * o.log(a)))
    return base, exponent


def extreme(o: Any, g: Any, a: Any, b: Any, a_loses: Any, b_loses: Any) -> tuple[Any, Any]:
    """``maximum`` or ``minimum``: to the one that wins, half to each where both are equal."""
    tie = a == b
    half = g * 0.5
    return o.where(tie, half, o.where(a_loses, 0, g)), o.where(tie, half, o.where(b_loses, 0, g))


def angle(o: Any, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """``atan2``, whose gradient at the origin is 0."""
    square = a * a + b * b
    scale = o.where(square == 0, 0, g / square)
    return scale * b, -scale * a


def product(o: Any, g: Any, y: Any, x: Any) -> tuple[Any]:
    """The product along axes: of all others, which for a row with zeros is not ``y / x``.

    ``rest`` is the product without zeros and ``zero`` the sum of the zeros. A product of zeros is
    written out, so that it has a derivative again.
    """
    is_zero = x == 0
    count = o.sum(o.like(is_zero, g))
    rest = o.prod(o.where(is_zero, 1, x))
    zero = o.sum(o.where(is_zero, x, 0))
    at_zero = o.where(count == 1, rest, o.where(count == 2, rest * (zero - x), 0))
    others = o.where(is_zero, at_zero, o.where(count == 1, rest / x * zero, 0))
    return (g * o.where(count == 0, y / x, others),)


def digamma(o: Any, x: Any) -> Any:
    """The derivative of ``lgamma``: reflected below 0, carried up to where its series is exact.

    The poles at 0, -1, -2 ... give NaN, as in PyTorch; 0 itself gives an infinity.
    """
    mirrored = x < 0
    at = o.where(mirrored, 1 - x, x)
    low = at < _FAR
    steps = o.where(low, 1 / at, 0)
    for k in range(1, _FAR):
        steps = steps + o.where(low, 1 / (at + k), 0)
    far = o.where(low, at + _FAR, at)
    inverse = 1 / (far * far)
    series = inverse * _DIGAMMA[-1]
    for term in reversed(_DIGAMMA[:-1]):
        series = (series + term) * inverse
    value = o.log(far) - 0.5 / far - series - steps
    part = x - o.round(x)  # the tangent keeps its digits where x is large
    pole = o.where(part == 0, math.nan, math.pi / o.tan(math.pi * part))
    return o.where(mirrored, value - pole, value)
