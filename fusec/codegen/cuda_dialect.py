"""How CUDA C++ spells an expression.

May import ``fusec.ir``, ``codegen.kernel``, ``codegen.expr`` and ``codegen.cuda_helpers``.
"""

from __future__ import annotations

from fusec.codegen.cuda_helpers import CALLED
from fusec.codegen.expr import ATOM, PREFIX, Dialect, shortest_float
from fusec.codegen.kernel import Apply, Convert, Expr, Literal, Masked
from fusec.ir.dtypes import F32, I32, I64, DType
from fusec.ir.ops import Call, Lowering, Op


class Cuda(Dialect):
    name = "cuda"
    inside = False  # whether every lane is inside its row
    calls = False  # whether functions of long code stand once

    def lowering(self, op: Op) -> Lowering:
        return op.cuda

    def called(self, form: Call) -> str:
        """The name of the function that a form calls."""
        return f"{CALLED}{form.name}" if self.calls and form.long else form.name

    def literal(self, value: Literal, strict: bool) -> str:
        dtype, number = value.dtype, value.value
        if dtype.is_bool:
            return "true" if number else "false"
        if dtype.is_float:
            return _float(float(number), dtype)
        if dtype is I64:
            return "(-9223372036854775807LL - 1)" if number == dtype.minimum else f"{number:d}LL"
        if number == I32.minimum:
            return "(-2147483647 - 1)"
        return f"{number:d}" if dtype is I32 or not strict else cast(dtype, f"{number:d}")

    def convert(self, expression: Convert) -> tuple[str, int]:
        argument, through, target = expression.arg, expression.through, expression.dtype
        inner = self.text(argument)
        if through is not None:
            if argument.dtype is not F32:
                inner = cast(F32, inner)
            return widened(f"narrow_{through.cuda}({inner})", target), ATOM
        # A float beyond a narrow integer wraps, by way of int.
        if argument.dtype.is_float and target.is_integer and target.bits < 32:
            inner = cast(I32, inner)
        return cast(target, inner), ATOM

    def masked(self, expression: Masked) -> tuple[str, int]:
        if self.inside:
            return self.render(expression.arg)
        value, identity = self.text(expression.arg), self.text(expression.identity)
        return f"(inside ? {value} : {identity})", ATOM

    def finish(self, expression: Apply, text: str, precedence: int) -> tuple[str, int]:
        """C++ computes narrow integers as int, and bools with ``&`` as int: bring them back."""
        dtype = expression.dtype
        narrow = dtype.is_integer and dtype.bits < 32
        if narrow or (dtype.is_bool and expression.operand.is_bool and precedence != PREFIX):
            return cast(dtype, text), ATOM
        return text, precedence

    def stored(self, value: Expr, storage: DType) -> str:
        """``value`` as the element it is stored as."""
        text = self.text(value)
        if not is_narrow(storage):
            return text
        if value.dtype is not F32:
            text = cast(F32, text)
        return f"narrow_{storage.cuda}({text})"


def is_narrow(storage: DType) -> bool:
    """Whether elements are widened to be computed with."""
    return storage.compute is not storage


def widened(text: str, dtype: DType) -> str:
    """A narrow element as a number of type ``dtype``."""
    return f"widen({text})" if dtype is F32 else cast(dtype, f"widen({text})")


def cast(dtype: DType, text: str) -> str:
    """A C++ conversion."""
    return f"static_cast<{dtype.cuda}>({text})"


def _float(number: float, dtype: DType) -> str:
    if number != number:
        return "not_a_number()"
    if number in (float("inf"), float("-inf")):
        return "-infinity()" if number < 0 else "infinity()"
    return shortest_float(number, dtype) + ("f" if dtype.bits == 32 else "")
