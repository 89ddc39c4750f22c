"""Printed expressions mean what the tree says.

Triton text is read by Python's own parser and compared node by node with the tree. C++ text is
compiled and computes, bit for bit, what PyTorch computes from the tree one operation at a time.
"""

from __future__ import annotations

import ast
import ctypes
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fusec.codegen.cpp_dialect import Cpp
from fusec.codegen.kernel import Apply, Convert, Expr, Level, Literal, Masked, Ref
from fusec.codegen.triton_dialect import Triton
from fusec.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, DType
from fusec.ir.ops import OPS, Call, Infix, Prefix, Suffix, Template
from fusec.runtime.build_cpp import build_cpp
from fusec.runtime.specialize import INCLUDE
from tests.formulas import same_bits

TILE = Level.TILE
# Two values by name of every type; the name says which.
TYPES = {"x": F32, "d": F64, "i": I32, "k": I64, "s": I8, "u": U8, "p": BOOL}
LEAVES = {f"{stem}{n}": dtype for stem, dtype in TYPES.items() for n in (1, 2)}
# No maximum of floats: which of two zeros it gives is nobody's promise.
FLOAT_OPS = ("add", "sub", "mul", "div", "neg", "abs", "floor", "trunc")
INTEGER_OPS = ("add", "sub", "mul", "neg", "abs", "maximum", "minimum")
BIT_OPS = ("bit_and", "bit_or", "bit_xor", "bit_not")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
NUMBERS: dict[str, list[float | int | bool]] = {
    "float": [0.0, -0.0, 1.0, -1.0, 0.1, -2.5, 1e-7, 3e20, float("inf")],
    "int": [0, 1, -1, 2, -7, 100],
    "bool": [True, False],
}
Pick = Callable[[Sequence[Any]], Any]  # one of several


def _kind(dtype: DType) -> str:
    return "float" if dtype.is_float else "bool" if dtype.is_bool else "int"


def _literal(pick: Pick, dtype: DType) -> Literal:
    value = pick(NUMBERS[_kind(dtype)])
    return Literal(abs(value) if dtype is U8 else value, dtype)


def _tree(pick: Any, dtype: DType, depth: int) -> Expr:
    """A random expression of type ``dtype``."""
    if depth <= 0 or pick(range(6)) == 0:
        if pick(range(4)) == 0:
            return _literal(pick, dtype)
        return Ref(pick([n for n, t in LEAVES.items() if t is dtype]), dtype, TILE)
    form = pick(["op", "op", "op", "where", "convert"])
    if form == "where":
        args = [_tree(pick, t, depth - 1) for t in (BOOL, dtype, dtype)]
        return Apply(OPS["where"], tuple(args), dtype, dtype, TILE)
    if form == "convert" and not dtype.is_bool:
        return _conversion(pick, dtype, depth)
    names = FLOAT_OPS if dtype.is_float else (*BIT_OPS, *INTEGER_OPS)
    operand = dtype
    if dtype.is_bool:
        names = (*COMPARISONS, *BIT_OPS, "add", "mul", "maximum", "minimum")
    op = OPS[pick(names)]
    if op.name in COMPARISONS:
        operand = pick(list(TYPES.values()))
    args = [_tree(pick, operand, depth - 1) for _ in range(op.arity)]
    return Apply(op, tuple(args), dtype, operand, TILE)


def _conversion(pick: Any, dtype: DType, depth: int) -> Expr:
    """From an integer, or rounded to a narrow float on the way."""
    if dtype is F32 and pick((True, False)):
        through = pick([BF16, F16])
        return Convert(_tree(pick, F32, depth - 1), F32, TILE, through=through)
    sources = [t for t in TYPES.values() if t is not dtype and not t.is_float]
    return Convert(_tree(pick, pick(sources), depth - 1), dtype, TILE)


@st.composite
def trees(draw: Any) -> Expr:
    """Typed expressions over LEAVES, some of them masked."""

    def pick(items: Sequence[Any]) -> Any:
        return draw(st.sampled_from(items))

    tree = _tree(pick, pick(list(TYPES.values())), 5)
    if pick(range(5)) == 0:
        return Masked(tree, _literal(pick, tree.dtype), tree.dtype, TILE)
    return tree


# -- Triton: the text against the tree ------------------------------------------------------------

TRITON = Triton("mask")
_OPERATORS: dict[str, type[ast.AST]] = {
    "+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div,
    "&": ast.BitAnd, "|": ast.BitOr, "^": ast.BitXor,
    "<": ast.Lt, "<=": ast.LtE, ">": ast.Gt, ">=": ast.GtE, "==": ast.Eq, "!=": ast.NotEq,
}  # fmt: skip


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


class _Untyped(ast.NodeTransformer):
    """``tl.full([], 3, tl.int64)`` is the number 3; the printer chooses where it needs a type."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[1] if ast.unparse(node.func) == "tl.full" else node


def _method(value: ast.expr, dtype: DType) -> ast.expr:
    kind = _parsed(f"tl.{dtype.triton}")
    return ast.Call(ast.Attribute(value, "to", ast.Load()), [kind], [])


def _expected(expression: Expr) -> ast.expr:
    """The Python tree of an expression, built without any text of operators or parentheses."""
    if isinstance(expression, Ref):
        return _parsed(expression.name)
    if isinstance(expression, Literal):
        return _parsed(TRITON.literal(expression, strict=False))
    if isinstance(expression, Masked):
        args = [_parsed("mask"), _expected(expression.arg), _expected(expression.identity)]
        return ast.Call(_parsed("tl.where"), args, [])
    if isinstance(expression, Convert):
        inner = _expected(expression.arg)
        through = expression.through
        return _method(_method(inner, through) if through else inner, expression.dtype)
    return _applied(expression)


def _applied(expression: Apply) -> ast.expr:
    form = expression.op.triton.pick(expression.operand, expression.fast)
    args = [_expected(a) for a in expression.args]
    if isinstance(form, Infix):
        sign: Any = _OPERATORS[form.symbol]()
        if isinstance(sign, ast.cmpop):
            return ast.Compare(args[0], [sign], [args[1]])
        return ast.BinOp(args[0], sign, args[1])
    if isinstance(form, Prefix):
        return ast.UnaryOp({"-": ast.USub(), "~": ast.Invert()}[form.symbol], args[0])
    if isinstance(form, Suffix):
        assert form.text == "* -1.0"
        return ast.BinOp(args[0], ast.Mult(), _parsed("-1.0"))
    if isinstance(form, Call):
        return ast.Call(_parsed(form.name), args, [])
    assert isinstance(form, Template)
    holes = {f"hole{k}": a for k, a in enumerate(args)}

    class Filled(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return holes.get(node.id, node)

    filled = Filled().visit(_parsed(form.text.format(*holes)))
    assert isinstance(filled, ast.expr)
    return filled


@given(trees())
@settings(max_examples=150)
def test_triton_text_is_the_tree(tree: Expr) -> None:
    text = TRITON.text(tree)
    wanted = ast.dump(_Untyped().visit(_expected(tree)))
    assert ast.dump(_Untyped().visit(_parsed(text))) == wanted, text


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@settings(max_examples=300)
def test_a_float_reads_back(value: float) -> None:
    text = TRITON.literal(Literal(value, F32), strict=False)
    read = torch.tensor(ast.literal_eval(text), dtype=torch.float32)
    assert same_bits(read, torch.tensor(value, dtype=torch.float32)), text


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=300)
def test_a_double_reads_back(value: float) -> None:
    text = Cpp().literal(Literal(value, F64), strict=False)
    read = torch.tensor(float(text), dtype=torch.float64)
    assert same_bits(read, torch.tensor(value, dtype=torch.float64)), text


# -- C++: the value of the text against the value of the tree ------------------------------------

VALUES: dict[str, list[float | int | bool]] = {
    "float": [1.5, -0.0, float("nan"), -3.25e7, 0.1, float("-inf"), 1e-40, 7.0],
    "int": [3, -1, 127, 0, -128, 55, 9, -4],
    "bool": [True, False, False, True, True, False, True, False],
}


def _leaf_values(name: str) -> torch.Tensor:
    dtype = LEAVES[name]
    values = VALUES[_kind(dtype)]
    values = values[::-1] if name.endswith("2") else values
    return torch.tensor(values, dtype=torch.int64 if dtype is U8 else None).to(_torch(dtype))


def _torch(dtype: DType) -> torch.dtype:
    found = getattr(torch, dtype.torch)
    assert isinstance(found, torch.dtype)
    return found


def _value(expression: Expr) -> torch.Tensor:
    """What PyTorch makes of the tree, an operation at a time."""
    if isinstance(expression, Ref):
        return _leaf_values(expression.name)
    if isinstance(expression, Literal):
        return torch.full((8,), expression.value, dtype=_torch(expression.dtype))
    assert not isinstance(expression, Masked)
    if isinstance(expression, Convert):
        inner = _value(expression.arg)
        inner = inner.to(_torch(expression.through)) if expression.through else inner
        return inner.to(_torch(expression.dtype))
    args = [_value(a) for a in expression.args]
    reference = expression.op.torch
    found = getattr(torch, reference) if isinstance(reference, str) else reference
    result = found(*args) if isinstance(reference, str) else found(torch, *args)
    assert isinstance(result, torch.Tensor)
    return result


def _compiled(expressions: list[Expr]) -> list[torch.Tensor]:
    """The values the C++ text of each expression has for the 8 rows of VALUES."""
    dialect = Cpp()
    lines = ['#include "fusec.h"', 'extern "C" void run(void* const* in, void* const* out) {']
    lines.append("for (int row = 0; row < 8; ++row) {")
    for k, (name, dtype) in enumerate(LEAVES.items()):
        lines.append(f"const {dtype.cpp} {name} = static_cast<const {dtype.cpp}*>(in[{k}])[row];")
    for k, tree in enumerate(expressions):
        kind = tree.dtype.cpp
        lines.append(f"static_cast<{kind}*>(out[{k}])[row] = {dialect.text(tree)};")
    library = build_cpp("\n".join([*lines, "}", "}", ""]), INCLUDE)
    given_values = [_leaf_values(name) for name in LEAVES]
    results = [torch.zeros(8, dtype=_torch(tree.dtype)) for tree in expressions]
    pointers = [
        (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        for tensors in (given_values, results)
    ]
    library["run"](*pointers)
    return results


@pytest.mark.parametrize("seed", range(10))
def test_cpp_text_computes_the_tree(seed: int) -> None:
    pick = random.Random(seed).choice
    batch = [_tree(pick, pick(list(TYPES.values())), 5) for _ in range(60)]
    for tree, result in zip(batch, _compiled(batch), strict=True):
        wanted = _value(tree)
        assert same_bits(result, wanted), f"{Cpp().text(tree)}\n{result}\n{wanted}"
