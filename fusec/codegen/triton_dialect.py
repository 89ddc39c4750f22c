"""How Triton spells an expression.

May import ``fusec.ir``, ``codegen.kernel``, ``codegen.expr`` and ``codegen.triton_helpers``.
"""

from __future__ import annotations

from fusec.codegen.expr import ATOM, Dialect, shortest_float
from fusec.codegen.kernel import Convert, Expr, Literal, Masked
from fusec.codegen.triton_helpers import TYPED
from fusec.ir.dtypes import BOOL, F8E5M2, F32, I32
from fusec.ir.ops import Call, Lowering, Op


class Triton(Dialect):
    name = "triton"

    def __init__(self, mask: str) -> None:
        self._mask = mask

    def lowering(self, op: Op) -> Lowering:
        return op.triton

    def literal(self, value: Literal, strict: bool) -> str:
        """Python numbers are weak beside a block;

        Where nothing fixes the type a typed scalar is made.
        """
        natural = value.dtype in (F32, I32, BOOL)
        return number_text(value) if natural or not strict else _typed(value)

    def argument(self, form: Call, expression: Expr) -> str:
        if isinstance(expression, Literal) and form.name in TYPED:
            return _typed(expression)
        return self.text(expression)

    def convert(self, expression: Convert) -> tuple[str, int]:
        if isinstance(expression.arg, Literal):
            inner = _typed(expression.arg)
        else:
            inner = self.operand(expression.arg, ATOM)
        through = ""
        narrow = expression.through
        if narrow is not None and narrow.bits == 8 and expression.arg.dtype is not F32:
            inner = f"{inner}.to(tl.float32)"
        if narrow is F8E5M2:
            inner = f"_f8e5m2({inner})"
        elif narrow is not None:
            through = f".to(tl.{narrow.triton})"
        # LLVM leaves a float beyond a narrow integer undefined; PyTorch wraps it, by way of int32.
        target = expression.dtype
        if expression.arg.dtype.is_float and target.is_integer and target.bits < 32:
            through += ".to(tl.int32)"
        return f"{inner}{through}.to(tl.{expression.dtype.triton})", ATOM

    def masked(self, expression: Masked) -> tuple[str, int]:
        return (
            f"tl.where({self._mask}, {self.text(expression.arg)}, "
            f"{self.text(expression.identity)})",
            ATOM,
        )


def _typed(value: Literal) -> str:
    """A constant as a scalar of its own type."""
    return f"tl.full([], {number_text(value)}, tl.{value.dtype.triton})"


def number_text(value: Literal) -> str:
    """A constant as a Python number."""
    number = value.value
    if value.dtype.is_bool:
        return str(bool(number))
    if not value.dtype.is_float:
        return str(int(number))
    if number != number:
        return 'float("nan")'
    if number in (float("inf"), float("-inf")):
        return f'float("{"-" if number < 0 else ""}inf")'
    return shortest_float(float(number), value.dtype)
