"""Traced functions: what they compute as kernels, when they are traced again, what they refuse and
where they say it is.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import sympy
import torch
import torch.nn.functional as F

import fusec
from fusec.errors import DTypeError, FusecError, ShapeError, UnknownNameError, UnsupportedError

HERE = Path(__file__)
X = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
Y = torch.randn(6, 16, generator=torch.Generator().manual_seed(1))
EPS = 1e-3
WEIGHT = torch.rand(16, generator=torch.Generator().manual_seed(2))


def same(actual: Any, expected: Any, tolerance: float = 2e-6) -> None:
    pairs = zip(*(torch.utils._pytree.tree_leaves(v) for v in (actual, expected)), strict=True)
    for got, want in pairs:
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def gated(x: torch.Tensor) -> torch.Tensor:
    a, b = (x + 1).chunk(2, -1)
    return F.gelu(a, approximate="tanh") * b


def norm(x: torch.Tensor, w: torch.Tensor, *, eps: float = 1e-5) -> tuple[torch.Tensor, ...]:
    mu = x.mean(-1, keepdim=True)
    var = (x - mu).pow(2).mean(-1, keepdim=True)
    return (x - mu) * torch.rsqrt(var + eps) * w, mu.squeeze(-1)


def causal(x: torch.Tensor) -> torch.Tensor:
    row, col = torch.arange(x.shape[-2])[:, None], torch.arange(x.shape[-1])
    return x.masked_fill(col > row, -float("inf")).softmax(-1)


def in_steps(x: torch.Tensor) -> torch.Tensor:
    total = x * 2
    total += 1
    total.clamp_(min=0)
    return total


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "gated": (gated, (X,)),
    "norm": (norm, (X, WEIGHT)),
    "causal": (causal, (X,)),
    "in_steps": (in_steps, (X,)),
    "columns": (lambda x: x - x.sum(0), (X,)),
    "rows_and_a_vector": (lambda x, v: x.sum(-1) + v, (X, X[:, 0])),
    "a_vector_over_rows": (lambda x, v: x * v[:, None], (X, X[:, 0])),
    "distances": (lambda x: (x[:, None] - x[None]).pow(2).sum(-1), (X,)),
    "transposed": (lambda x, y: (x + y).t().softmax(-1), (X, Y)),
    "views": (lambda x: (x.view(2, 3, 16) * 2).sum(1), (X,)),
    "views of copies": (lambda x: x[:, 1:].contiguous().view(-1) * 2, (X,)),
    "flattened": (lambda x, y: (x.softmax(-1) + y).view(2, 3, 16).amax(-1), (X, Y)),
    "twice": (lambda x: x.mean(-1).softmax(-1), (X,)),
    "group_norm": (lambda x: F.group_norm(x.view(2, 3, 16), 3), (X,)),
    "lengths": (lambda x: x.sum(-1) / x.shape[-1] ** 0.5, (X,)),
    "tril": (lambda x: x.tril(), (X,)),
    "outer": (lambda x: torch.outer(x[0], x[:, 0]) + x.sum(-1), (X,)),
    "outer_of_reduced": (lambda x, y: x.sum(0)[:, None] * y.mean(-1), (X, Y)),
    "losses": (lambda x, y: (F.mse_loss(x, y), F.huber_loss(x, y), F.l1_loss(x, y)), (X, Y)),
    "logits": (lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), (X, Y)),
    "divergence": (lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1)), (X, Y)),
    "similarity": (lambda x, y: F.cosine_similarity(x, y), (X, Y)),
    "dropout": (lambda x: F.dropout(x, 0.0) + F.dropout(x, 0.5, training=False), (X,)),
    "half_and_float": (lambda x: x.half().float() * 2, (X,)),
    "a_number": (lambda x, s: x * s + s, (X, 0.3)),
    "an_integer": (lambda x, n: x.sum(n), (X, 0)),
    "empty": (lambda x: x.sum(-1), (X[:, :0],)),
    "one_row": (lambda x, y: x * y.mean(0), (X[:1], Y)),
}


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("backend", ["cpp", "triton"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, backend: str) -> None:
    function, args = PROGRAMS[name]
    same(fusec.compile(function, backend=backend)(*args), function(*args))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"causal"}))  # has positions on the CPU
def test_program_on_the_gpu(name: str) -> None:
    function, args = PROGRAMS[name]
    moved = [a.cuda() if isinstance(a, torch.Tensor) else a for a in args]
    same(fusec.compile(function)(*moved), function(*moved), 1e-5)


def test_sixteen_bits_round_once() -> None:
    x = X.bfloat16()
    same(fusec.compile(gated)(x), gated(x.float()).bfloat16(), 2**-7)


# -- when it is traced ----------------------------------------------------------------------------


def test_a_new_shape_builds_nothing() -> None:
    function = fusec.compile(gated)
    same(function(X), gated(X))
    before = fusec.stats()
    for rows, cols in ((3, 8), (5, 32), (64, 10)):
        x = torch.randn(rows, cols)
        same(function(x), gated(x))
    assert fusec.stats().specializations == before.specializations
    assert len(function._all()) == 1


def test_a_new_type_or_rank_is_traced_again() -> None:
    function = fusec.compile(lambda x: x.exp() / 2, backend="torch")
    for x in (X, X[0], X.double(), X.bfloat16(), X[:1]):
        function(x)
    assert len(function._all()) == 5


def test_a_number_is_no_constant() -> None:
    function = fusec.compile(lambda x, s: x * s, backend="torch")
    for s in (0.5, 2.0, -1.0):
        same(function(X, s), X * s)
    assert len(function._all()) == 1


def test_a_branch_on_a_number_makes_two_programs() -> None:
    function = fusec.compile(lambda x, s: x * s if s > 0 else x - s, backend="torch")
    for s in (0.5, -2.0, 3.0, -0.5):
        same(function(X, s), X * s if s > 0 else X - s)
    assert len(function._all()) == 2


def test_a_branch_on_a_length_makes_two_programs() -> None:
    function = fusec.compile(lambda x: x * 2 if x.shape[0] > 4 else x * 3, backend="torch")
    for rows in (3, 7, 4, 5):
        x = torch.ones(rows, 2)
        same(function(x), x * 2 if rows > 4 else x * 3)
    assert len(function._all()) == 2


def test_a_variable_that_changes_is_seen() -> None:
    scale = 2.0

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * scale + offset

    offset = torch.ones(16)
    compiled = fusec.compile(function, backend="torch")
    same(compiled(X), X * 2 + 1)
    scale = 3.0
    same(compiled(X), X * 3 + 1)
    offset += 1  # in place: the same tensor
    same(compiled(X), X * 3 + 2)
    offset = torch.zeros(16)
    same(compiled(X), X * 3)


def test_globals_and_helpers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def helper(x: torch.Tensor) -> torch.Tensor:
        return x * WEIGHT + EPS

    compiled = fusec.compile(lambda x: helper(x) * 2, backend="torch")
    same(compiled(X), (X * WEIGHT + EPS) * 2)
    monkeypatch.setitem(globals(), "EPS", 5.0)
    same(compiled(X), (X * WEIGHT + 5) * 2)


# -- how it is called -----------------------------------------------------------------------------


def test_keywords_defaults_and_structures() -> None:
    function = fusec.compile(norm, backend="torch")
    assert function.inputs == ("x", "w", "eps")
    same(function(X, w=WEIGHT), norm(X, WEIGHT))
    same(function(w=WEIGHT, x=X, eps=0.1), norm(X, WEIGHT, eps=0.1))
    nested = fusec.compile(lambda d, *rest: {"a": d["x"] * 2, "b": [rest[0], None]})
    result = nested({"x": X}, Y)
    same(result["a"], X * 2)
    assert result["b"][0] is Y
    assert result["b"][1] is None
    with pytest.raises(UnknownNameError, match="did you mean 'eps'"):
        function(X, WEIGHT, epss=1.0)


def test_what_is_not_computed_is_passed_on() -> None:
    identity = fusec.compile(lambda x: (x, x.t(), x[:, ::2], x.clone(), x.shape[0]))
    same_one, transposed, cut, copy, rows = identity(X)
    assert same_one is X
    assert transposed.data_ptr() == cut.data_ptr() == X.data_ptr() != copy.data_ptr()
    assert torch.equal(transposed, X.t())
    assert torch.equal(cut, X[:, ::2])
    assert torch.equal(copy, X)
    assert rows == 6


def test_arrays_out_and_bind() -> None:
    function = fusec.compile(gated)
    result = function(X.numpy())
    assert isinstance(result, numpy.ndarray)
    out = torch.empty(6, 8)
    assert function(X, out=out) is out
    same(out, gated(X))
    same(torch.from_numpy(result), gated(X))
    bound = fusec.compile(lambda x, y: x * y + WEIGHT).bind(X, Y)
    same((bound(), bound(Y, Y)), (X * Y + WEIGHT, Y * Y + WEIGHT))


def test_strides_and_strange_layouts() -> None:
    function = fusec.compile(lambda x, y: (x * y).softmax(-1))
    wide = torch.randn(16, 12)
    same(function(wide.t()[::2], Y), (wide.t()[::2] * Y).softmax(-1))
    same(function(X[:1].expand(6, 16), Y), (X[:1] * Y).softmax(-1))


@fusec.fuse(numerics="precise")
def decorated(x: torch.Tensor) -> torch.Tensor:
    """Doubles."""
    return x * 2


def test_decorator_names_and_pickles() -> None:
    same(decorated(X), X * 2)
    assert decorated.__doc__ == "Doubles."
    assert decorated.__name__ == "decorated"
    assert "decorated(x" in repr(decorated)
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    again = pickle.loads(pickle.dumps(fusec.compile(gated)))
    same(again(X), gated(X))
    with pytest.raises(UnsupportedError, match="cannot be pickled"):
        pickle.dumps(fusec.compile(lambda x: x * 2))


def test_stages_can_be_shown() -> None:
    function = fusec.compile(norm)
    formula = function.show("formula", X, WEIGHT)
    assert "mu = x.mean(-1, keepdim=True)" in formula
    assert r"\operatorname{mean}" in formula
    assert "# mu" in function.show("graph", X, WEIGHT)
    assert "row reduction" in function.show("plan", X, WEIGHT)
    assert "def norm_kernel(" in function.show("triton", X, WEIGHT)
    assert "tl.load" in fusec.compile(gated).show("triton")


# -- sympy ----------------------------------------------------------------------------------------


def test_sympy_expressions() -> None:
    x, y = sympy.symbols("x y")
    one = fusec.compile(sympy.exp(-(x**2)) + y, inputs=("x", "y"))
    same(one(X, Y), torch.exp(-(X**2)) + Y)
    two = fusec.compile((x * y, sympy.Max(x, y)), inputs=("x", "y"))
    same(two(X, Y), (X * Y, torch.maximum(X, Y)))
    derivative = fusec.compile(sympy.diff(sympy.tanh(x) * x, x))
    slope = X * (1 - torch.tanh(X) ** 2) + torch.tanh(X)
    same(derivative(X), slope, 1e-5)
    with pytest.raises(UnsupportedError, match="Integral"):
        fusec.compile(sympy.Integral(x, x))


# -- what is refused ------------------------------------------------------------------------------


KNOWS_COLUMNS = hasattr(test_program.__code__, "co_positions")


def branches(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:  # line of the branch
        return x
    return -x


def writes(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)  # line of the write
    return x


def writes_through_a_view(x: torch.Tensor) -> torch.Tensor:
    total = x * 2
    total[0].add_(1)  # line of the view
    return total


REFUSED: dict[str, tuple[Callable[..., Any], type[FusecError], str]] = {
    "branch": (branches, UnsupportedError, "the value of a tensor is asked for"),
    "item": (lambda x: x.sum().item(), UnsupportedError, "the value of a tensor is asked for"),
    "float": (lambda x: float(x[0, 0]) * x, UnsupportedError, "the value of a tensor is asked"),
    "write": (writes, UnsupportedError, "aten.mul_.Tensor changes the argument 'x'"),
    "view": (writes_through_a_view, UnsupportedError, "aten.add_.Tensor changes a tensor that has"),
    "random": (lambda x: x + torch.rand_like(x), UnsupportedError, "draws random numbers"),
    "dropout": (lambda x: F.dropout(x, 0.5), UnsupportedError, "draws random numbers"),
    "product": (lambda x: x @ x.t(), UnsupportedError, "aten.mm.default is a matrix product"),
    "linear": (lambda x: F.linear(x, x), UnsupportedError, "stay with PyTorch"),
    "sort": (lambda x: x.sort().values, UnsupportedError, "aten.sort.default is not an operator"),
    "cumsum": (lambda x: x.cumsum(-1), UnsupportedError, "it scans or sorts"),
    "parts": (lambda x: x.roll(1), UnsupportedError, "aten.roll.default is made of what fusec"),
    "pad": (lambda x: F.pad(x, (1, 0)), UnsupportedError, "aten.constant_pad_nd.default is not"),
    "numbers": (lambda x: torch.cov(x), UnsupportedError, "from lengths as numbers"),
    "bits": (lambda x: x.view(torch.int32), UnsupportedError, "aten.view.dtype is not an operator"),
    "cat": (
        lambda x: torch.cat([x, x]).cumsum(0), UnsupportedError, "aten.cumsum.default is not an"
    ),
    "nonzero": (lambda x: x[x > 0], UnsupportedError, "depends on values"),
    "complex": (lambda x: x.to(torch.complex64) * 2, DTypeError, "no type torch.complex64"),
    "shape": (lambda x: x + x[:, :5], ShapeError, "The size of tensor a (16) must match"),
    "axis": (lambda x: x.sum(5), ShapeError, "Dimension out of range"),
    "reshape": (
        lambda x: x.softmax(-1).view(-1).softmax(-1),
        UnsupportedError,
        "a computed value is reshaped",
    ),
    "foreign": (
        lambda x: x * HOLDER["w"], UnsupportedError, "neither an argument nor a variable"
    ),
    "batch_norm": (
        lambda x: F.batch_norm(x, WEIGHT, WEIGHT, training=True), UnsupportedError, "in training"
    ),
}  # fmt: skip
HOLDER = {"w": torch.ones(16)}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_shows_the_line(name: str) -> None:
    function, kind, words = REFUSED[name]
    with pytest.raises(kind) as caught:
        fusec.compile(function, backend="torch")(X)
    text = str(caught.value)
    assert words in text
    first, last = (
        function.__code__.co_firstlineno,
        max(line for _, _, line in function.__code__.co_lines() if line),
    )
    assert any(text.startswith(f"{HERE}:{line}:") for line in range(first, last + 1)), text
    assert "^" in text.splitlines()[2]


def test_the_whole_message() -> None:
    line = branches.__code__.co_firstlineno + 1
    with pytest.raises(UnsupportedError) as caught:
        fusec.compile(branches)(X)
    shown = str(caught.value).splitlines()
    # Python 3.10 knows the line only: all of it is underlined.
    column, marked = (
        (8, "x.sum() > 0") if KNOWS_COLUMNS else (5, "if x.sum() > 0:  # line of the branch")
    )
    assert shown[0].startswith(f"{HERE}:{line}:{column}: error: the value of a tensor is asked for")
    assert shown[1] == f"{line} |     if x.sum() > 0:  # line of the branch"
    assert shown[2].strip(" |") == "^" * len(marked)
    assert shown[3].startswith("hint: 'if', 'while', bool()")


def test_traced_functions_nest() -> None:
    inner = fusec.compile(gated)
    outer = fusec.compile(lambda x: inner(x).softmax(-1))
    same(outer(X), gated(X).softmax(-1))
    assert len(outer.variants) == 1
    assert inner.variants == ()


def test_many_traces_are_said() -> None:
    function = fusec.compile(lambda x, n: x * n, backend="torch")
    for n in range(15):
        function(X[0, :2], n)
    with pytest.warns(UserWarning, match="16 values of the integer n"):
        function(X[0, :2], 15)
    for n in range(16, 63):
        function(X[0, :2], n)
    with pytest.warns(UserWarning, match="has been traced 64 times"):
        function(X[0, :2], 63)


def test_infinities_as_numbers() -> None:
    function = fusec.compile(lambda x, s: torch.where(x > 0, x, s), backend="torch")
    for s in (-float("inf"), 1.0, float("nan")):
        torch.testing.assert_close(function(X, s), torch.where(X > 0, X, s), equal_nan=True)


def test_errors_of_the_function_itself_pass() -> None:
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fusec.compile(raises)(X)


def test_what_is_no_function_of_tensors() -> None:
    with pytest.raises(DTypeError, match="called with a object"):
        fusec.compile(lambda x, o: x)(X, object())
    with pytest.raises(UnsupportedError, match="called without a tensor"):
        fusec.compile(lambda s: s * 2)(3.0)
    with pytest.raises(UnsupportedError, match="keepdim= is for formulas"):
        # The checker refuses it as well: what is tested is the message.
        fusec.compile(gated, keepdim=True)  # type: ignore[call-overload]

    class Layer:
        @fusec.fuse
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(UnsupportedError, match="is a method"):
        Layer().forward(X)


@pytest.mark.parametrize("name", ["gated", "norm", "transposed", "flattened", "distances"])
def test_gradients(name: str) -> None:
    function, args = PROGRAMS[name]
    found = []
    for run in (fusec.compile(function), function):
        tracked = [a.double().requires_grad_() for a in args]
        results = torch.utils._pytree.tree_leaves(run(*tracked))
        total = sum((r * torch.linspace(0, 1, r.numel()).view(r.shape)).sum() for r in results)
        found.append(torch.autograd.grad(total, tracked))
    same(*found, 1e-10)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(2, 19, 16, 17), (2, 19, 16, 16), (3, 19, 5, 4)])
def test_a_cross_entropy_of_images(shape: tuple[int, ...], reduction: str) -> None:
    classes = torch.randint(0, 19, (shape[0], *shape[2:]))
    mine, theirs = (torch.randn(shape, generator=seeded()).requires_grad_() for _ in range(2))
    function = fusec.compile(lambda x, t: F.cross_entropy(x * 2, t, reduction=reduction))
    found, expected = (
        function(mine, classes),
        F.cross_entropy(theirs * 2, classes, reduction=reduction),
    )
    same(found, expected, 1e-5)
    found.sum().backward()
    expected.sum().backward()
    same(mine.grad, theirs.grad, 1e-5)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_overflows_in_16_bits_is_found(dtype: torch.dtype) -> None:
    """As PyTorch finds it in what it has stored."""

    def overflow(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * torch.finfo(dtype).max * 2
        finite = torch.nan_to_num(y)
        return (
            y,
            y.isinf(),
            y.isfinite(),
            y == torch.inf,
            finite,
            y.isinf().any(),
            finite.abs().amax(),
        )

    x = torch.tensor([1.0, -3.0, 0.25, 0.0, torch.inf, -torch.inf]).to(dtype)
    for found, expected in zip(fusec.compile(overflow)(x), overflow(x), strict=True):
        assert torch.equal(found, expected)
