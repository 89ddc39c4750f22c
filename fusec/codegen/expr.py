"""Expressions to text with the fewest parentheses: what every dialect shares, driven by the op
table.

Precedences: 20 an atom, a call or an attribute; 13 a prefix; 12 and 11 the arithmetic infixes; 5
comparisons and bit operations, which Python and C order differently and which therefore never stand
beside each other without parentheses.

May import ``fusec.errors``, ``fusec.ir`` and ``codegen.kernel``.
"""

from __future__ import annotations

import re
import struct
from abc import ABC, abstractmethod

from fusec.codegen.kernel import Apply, Convert, Expr, Literal, Masked, Ref, Variable
from fusec.errors import UnsupportedError
from fusec.ir.dtypes import DType
from fusec.ir.ops import Call, Form, Infix, Lowering, Op, Prefix, Suffix, Template, Unsupported

ATOM = 20
PREFIX = 13
_LARGEST_F32 = float.fromhex("0x1.fffffep127")


class Dialect(ABC):
    """How one language spells an expression.

    Depth is bounded by the lowering, so recursion is safe here.
    """

    name: str

    @abstractmethod
    def lowering(self, op: Op) -> Lowering:
        """The column of the op table that belongs to this language."""

    @abstractmethod
    def literal(self, value: Literal, strict: bool) -> str:
        """A constant; ``strict`` where the surrounding text does not fix its type."""

    @abstractmethod
    def convert(self, expression: Convert) -> tuple[str, int]:
        """A conversion, and the precedence of its text."""

    @abstractmethod
    def masked(self, expression: Masked) -> tuple[str, int]:
        """A value guarded by the column mask."""

    def finish(self, expression: Apply, text: str, precedence: int) -> tuple[str, int]:
        """A hook for languages that have to narrow a result; the usual one leaves it."""
        return text, precedence

    def called(self, form: Call) -> str:
        """The name of the function that a form calls."""
        return form.name

    def argument(self, form: Call, expression: Expr) -> str:
        """``expression`` between the brackets of a call."""
        return self.text(expression)

    def text(self, expression: Expr, strict: bool = True) -> str:
        """``expression`` as it stands alone: on the right of an assignment or between commas."""
        return self.render(expression, strict)[0]

    def render(self, expression: Expr, strict: bool = False) -> tuple[str, int]:
        """The text of ``expression`` and its precedence."""
        if isinstance(expression, Ref):
            return expression.name, ATOM
        if isinstance(expression, Literal):
            text = self.literal(expression, strict)
            return text, PREFIX if text.startswith("-") else ATOM
        if isinstance(expression, Convert):
            return self.convert(expression)
        if isinstance(expression, Masked):
            return self.masked(expression)
        form = self.lowering(expression.op).pick(expression.operand, expression.fast)
        text, precedence = self._apply(form, expression)
        return self.finish(expression, text, precedence)

    def _apply(self, form: Form, expression: Apply) -> tuple[str, int]:
        args = expression.args
        if isinstance(form, Infix):
            loose = all(isinstance(a, Literal) for a in args)
            left = self.operand(args[0], form.precedence, strict=loose)
            right = self.operand(args[1], form.precedence + 1, strict=loose)
            return f"{left} {form.symbol} {right}", form.precedence
        if isinstance(form, Prefix):
            return f"{form.symbol}{self.operand(args[0], form.precedence + 1)}", form.precedence
        if isinstance(form, Suffix):
            return (
                f"{self.operand(args[0], form.precedence, strict=True)} {form.text}",
                form.precedence,
            )
        if isinstance(form, Call):
            return f"{self.called(form)}({', '.join(self.argument(form, a) for a in args)})", ATOM
        if isinstance(form, Template):
            return form.text.format(*(self.text(a) for a in args)), ATOM
        assert isinstance(form, Unsupported)
        message = f"{expression.op.name} has no {self.name} form: {form.reason}"
        raise UnsupportedError(
            message, op=expression.op.name, backend=self.name, reason=form.reason
        )

    def operand(self, expression: Expr, least: int, strict: bool = False) -> str:
        """``expression`` with parentheses if it binds less tightly than ``least``, or beside its
        like at the lowest.
        """
        text, precedence = self.render(expression, strict)
        return f"({text})" if precedence < least or precedence == 5 else text


def position_text(variable: Variable, division: str) -> str:
    """An index variable of one axis from the flattened index; ``division`` is that of integers."""
    text = variable.base
    if len(variable.divisors) == 1:
        text = f"{text} {division} {variable.divisors[0]}"
    elif variable.divisors:
        text = f"{text} {division} ({' * '.join(variable.divisors)})"
    return f"{text} % {variable.modulus}" if variable.modulus else text


def shortest_float(value: float, dtype: DType) -> str:
    """The fewest digits that read back as the same number of ``dtype``;

    Always with a point or an exponent.
    """
    text = repr(float(value))
    if dtype.bits == 32:
        wanted = struct.pack("<f", value)
        for digits in range(1, 10):
            candidate = f"{value:.{digits}g}"
            near = abs(float(candidate)) <= _LARGEST_F32  # fewer digits may round past the end
            if near and struct.pack("<f", float(candidate)) == wanted:
                plain = repr(float(candidate))
                text = plain if len(plain) <= 8 else candidate
                break
    text = re.sub(r"(e-?)\+?0+(?=\d)", r"\1", text)
    return text if any(c in text for c in ".en") else f"{text}.0"
