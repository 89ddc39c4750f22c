"""Formulas inside PyTorch's autograd: gradients of every order, and everything around a call."""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import fusec
from fusec.errors import UnsupportedError
from fusec.ir.derived import rows
from fusec.ir.ops import Op, elementwise, reductions
from tests.example_programs import FORMULAS, load_run
from tests.passes.test_grad import inside
from tests.test_ops import spelled

BACKENDS = ("cpp", "torch")
on_both = pytest.mark.parametrize("backend", BACKENDS)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return randn(*shape, seed=seed, dtype=dtype).requires_grad_()


def tracked(values: Sequence[Any]) -> list[Any]:
    """Fresh leaves for the floats among ``values``."""
    return [
        v.detach().clone().requires_grad_() if torch.is_tensor(v) and v.is_floating_point() else v
        for v in values
    ]


def both_checks(function: Any, values: Sequence[Any], seconds: bool = True) -> None:
    """First derivatives, and second ones, against differences."""

    def floats(*args: Any) -> tuple[torch.Tensor, ...]:
        results = function(*args)
        results = results if isinstance(results, tuple) else (results,)
        return tuple(r for r in results if r.is_floating_point())

    inputs = tuple(tracked(values))
    assert gradcheck(floats, inputs, fast_mode=True)
    if seconds:
        assert gradgradcheck(floats, inputs, fast_mode=True, atol=2e-5, rtol=1e-3)


def chunks(items: Sequence[Op], size: int) -> list[list[Op]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


_UNARY = [op for op in elementwise() if op.arity == 1 and op.rule.value != "bitwise"]
_BINARY = [
    op
    for op in elementwise()
    if op.arity == 2 and op.derivative is not None and op.name != "gradient_as"
]


@on_both
@pytest.mark.parametrize("ops", chunks(_UNARY, 11), ids=lambda ops: ops[0].name)
def test_unary_ops(ops: list[Op], backend: str) -> None:
    """Each on values inside its domain, eleven to a formula, so that few kernels are built."""
    names = [f"x{k}" for k in range(len(ops))]
    text = " + ".join(spelled(op, n) for op, n in zip(ops, names, strict=True))
    values = [inside(op, 3)[:1] + (0.0 if op.domain[0] >= -1 else 0.11) for op in ops]
    both_checks(fusec.compile(text, backend=backend), values)


@on_both
def test_binary_ops(backend: str) -> None:
    names = [(f"a{k}", f"b{k}") for k in range(len(_BINARY))]
    text = " + ".join(spelled(op, *n) for op, n in zip(_BINARY, names, strict=True))
    values = [inside(op, 3, seed=s)[:1].abs() + 0.3 + s for op in _BINARY for s in (0, 1)]
    both_checks(fusec.compile(text, backend=backend), values)


@on_both
@pytest.mark.parametrize("axis", ["-1", "0", "all"])
def test_reductions(axis: str, backend: str) -> None:
    calls = [f"{op.name}(x, axis={axis})" for op in reductions()]
    calls += [f"{n}(x, axis={axis})" for n in ("std", "var", "logsumexp", "norm")]
    text = " + ".join(f"{k + 1} * {c}" for k, c in enumerate(calls))
    function = fusec.compile(f"x = x * y; {text}", backend=backend)
    both_checks(function, [randn(3, 4), randn(4, seed=1)])


def _composites() -> list[str]:
    left_out = ("is", "any", "all", "arg", "heaviside", "sign", "mean", "std", "var", "logsumexp")
    smooth = [r for r in rows() if not r.name.startswith(left_out)]
    return [
        f"{r.name}({', '.join(p.name for p in r.parameters if p.default is None)})" for r in smooth
    ]


_SHAPES = {"w": (4,), "b": (4,), "beta": ()}


@on_both
@pytest.mark.parametrize("start", range(0, len(_composites()), 9))
def test_composites(start: int, backend: str) -> None:
    calls = _composites()[start : start + 9]
    text = "; ".join(["x = 0.4 * x", "a = 0.3 * a", "b = 0.3 * b"]) + "\n"
    text += " + ".join(f"{k + 1} * {c}" for k, c in enumerate(calls))
    text = text.replace("logit(x)", "logit(0.5 + 0.2 * x)").replace(
        "xlogy(a, b)", "xlogy(a, 2 + b)"
    )
    function = fusec.compile(text, backend=backend)
    values = [
        torch.tensor([1, 3, 0]) if n == "t" else randn(*_SHAPES.get(n, (3, 4)), seed=k)
        for k, n in enumerate(function.inputs)
    ]
    both_checks(function, values)


@on_both
@pytest.mark.parametrize("path", FORMULAS, ids=lambda p: p.stem)
def test_examples(path: Any, backend: str) -> None:
    function = fusec.compile(path.read_text(encoding="utf-8"), backend=backend)
    given = load_run(path.parent).inputs("meta")
    values = []
    for k, name in enumerate(function.inputs):
        value = given[name]
        if not torch.is_tensor(value):
            values.append(value)
        elif value.is_floating_point():
            values.append(randn(*[min(n, 3 + d) for d, n in enumerate(value.shape)], seed=k))
        else:
            values.append(torch.tensor([1, 0, 2]))
    widest = max(v.dim() for v in values if torch.is_tensor(v))
    values = [
        v[..., :4] if torch.is_tensor(v) and v.is_floating_point() and v.dim() == widest
        else randn(4, seed=9) if torch.is_tensor(v) and v.is_floating_point() else v
        for v in values
    ]  # fmt: skip
    both_checks(function, values)


# -- shapes, layouts, types -------------------------------------------------------------------


def against_eager(text: str, eager: Any, values: Sequence[torch.Tensor], backend: str) -> None:
    """The gradients of a formula and of PyTorch's function, for a random gradient of the result."""
    mine, theirs = tracked(values), tracked(values)
    got, want = fusec.compile(text, backend=backend)(*mine), eager(*theirs)
    given = randn(*want.shape, seed=7, dtype=want.dtype)
    got.backward(given)
    want.backward(given)
    for a, b in zip(mine, theirs, strict=True):
        if torch.is_tensor(a) and a.requires_grad:
            assert a.grad.dtype is a.dtype
            assert a.grad.shape == a.shape
            torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("backend", ["cpp", "triton", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_float32_and_16_bit(dtype: torch.dtype, backend: str) -> None:
    x, w, b = (randn(*s, seed=k).to(dtype) for k, s in enumerate([(5, 33), (33,), (33,)]))
    function = fusec.compile("layer_norm(gelu(x), w, b)", backend=backend)
    mine = tracked([x, w, b])
    function(*mine).backward(torch.ones_like(x) * x)
    exact = tracked([v.double() for v in (x, w, b)])
    F.layer_norm(F.gelu(exact[0]), (33,), exact[1], exact[2]).backward(x.double() * 1)
    step = torch.finfo(dtype).eps
    for a, e in zip(mine, exact, strict=True):
        assert a.grad.dtype is dtype
        # the 16-bit results are rounded once; sums over rows have five terms of size up to 10
        bound = 2 * step * e.grad.abs().max().item() + (1e-5 if dtype is torch.float32 else 0)
        assert (a.grad.double() - e.grad).abs().max().item() <= bound


LARGEST = {
    "max(x * w)": lambda x, w: (x * w).amax(-1),
    "min(x * w)": lambda x, w: (x * w).amin(-1),
    "max(x * w + 1, axis=0)": lambda x, w: (x * w + 1).amax(0),
    "norm(x * w, p=inf)": lambda x, w: (x * w).abs().amax(-1),
    "max(x) + sum(w)": lambda x, w: x.amax(-1) + w.sum(),
    "x * w - max(x * w)": lambda x, w: x * w - (x * w).amax(-1, keepdim=True),
}


@pytest.mark.parametrize("how", ["cpp", "triton", "torch", "traced", "model"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("text", LARGEST)
def test_a_maximum_is_found_again(text: str, dtype: torch.dtype, how: str) -> None:
    """What is computed is not rounded, and the maximum of it that is kept may not be either."""
    x, w = (randn(*s, seed=k + 11).to(dtype) for k, s in enumerate([(8, 64), (64,)]))  # no ties
    if how == "model":
        torch._dynamo.reset()
        function: Any = torch.compile(LARGEST[text], backend="fusec")
    elif how == "traced":
        function = fusec.compile(LARGEST[text])
    else:
        function = fusec.compile(text, backend=how)
    mine, exact = tracked([x, w]), tracked([x.double(), w.double()])
    result, want = function(*mine), LARGEST[text](*exact)
    given = randn(*want.shape, seed=5)
    result.backward(given.to(dtype).reshape(result.shape))
    want.backward(given.to(dtype).double())
    bound = 4 * torch.finfo(dtype).eps * exact[0].grad.abs().max().item()
    assert (mine[0].grad.double() - exact[0].grad).abs().max().item() <= bound


@on_both
def test_layouts(backend: str) -> None:
    base = randn(6, 8)
    for x in (base.t(), base[::2], base[:, ::2], base[:1].expand(6, 8), base[1:, 3:]):
        for given in (torch.ones(()).double().expand(x.shape), randn(*x.shape[::-1], seed=3).t()):
            leaf_ = x.detach().requires_grad_()
            y = fusec.compile("softmax(x) * x", backend=backend)(leaf_)
            (got,) = torch.autograd.grad(y, leaf_, given)
            other = x.detach().requires_grad_()
            (want,) = torch.autograd.grad(torch.softmax(other, -1) * other, other, given)
            torch.testing.assert_close(got, want)


@on_both
def test_broadcasting_and_types(backend: str) -> None:
    against_eager(
        "x * y + z", lambda x, y, z: x * y + z, [randn(3, 4), randn(4), randn(3, 1)], backend
    )
    against_eager("x * s", lambda x, s: x * s, [randn(3, 4), randn()], backend)
    half, single = randn(3, 4).half(), randn(4, seed=1).float()
    against_eager("x * y", lambda x, y: x * y, [half.float() * 0 + single, single], backend)
    x, y = half.clone().requires_grad_(), single.clone().requires_grad_()
    fusec.compile("x * y", backend=backend)(x, y).sum().backward()
    assert (x.grad.dtype, y.grad.dtype) == (torch.float16, torch.float32)
    torch.testing.assert_close(y.grad, half.float().sum(0))


@on_both
def test_empty_tensors(backend: str) -> None:
    x, w = leaf(0, 4), leaf(4, seed=1)
    fusec.compile("softmax(x) * w", backend=backend)(x, w).sum().backward()
    assert x.grad.shape == (0, 4)
    assert torch.equal(w.grad, torch.zeros(4, dtype=torch.float64))


# -- what a call may look like ----------------------------------------------------------------


@on_both
def test_several_results_some_without_gradients(backend: str) -> None:
    function = fusec.compile("x * y, sum(x), x > 0, argmax(x), y + 1", backend=backend)
    x, y = leaf(2, 3), leaf(3, seed=1)
    product, total, positive, place, shifted = function(x, y)
    assert product.requires_grad
    assert not positive.requires_grad
    assert not place.requires_grad
    assert total.shape == (2,)
    (total * 2).sum().backward(retain_graph=True)
    assert torch.equal(x.grad, torch.full_like(x, 2.0))
    assert torch.equal(y.grad, torch.zeros_like(y))
    gx, gy = torch.autograd.grad(product.sum() + shifted.sum(), [x, y])
    torch.testing.assert_close(gx, y.detach().expand(2, 3))
    torch.testing.assert_close(gy, x.detach().sum(0) + 1)


def test_each_set_of_wanted_inputs_has_its_own_program() -> None:
    """The programs for one and for the other keep as many values, but not the same ones."""
    function = fusec.compile("sum(x * x) * sum(exp(y))")
    x, y = randn(3, 5), randn(3, 5, seed=1)
    for wanted in ((True, False), (False, True), (True, True)):
        mine = [v.clone().requires_grad_(w) for v, w in zip((x, y), wanted, strict=True)]
        other = [v.clone().requires_grad_(w) for v, w in zip((x, y), wanted, strict=True)]
        function(*mine).sum().backward()
        ((other[0] ** 2).sum(-1) * other[1].exp().sum(-1)).sum().backward()
        for a, b in zip(mine, other, strict=True):
            if a.requires_grad:
                torch.testing.assert_close(a.grad, b.grad)


def test_gradients_that_are_no_plain_tensors() -> None:
    x = leaf(3)
    out = fusec.compile("x * x")(x)
    negated = torch.complex(randn(3), randn(3, seed=1)).conj().imag  # a view with a sign to apply
    assert negated.is_neg()
    (got,) = torch.autograd.grad(out, x, negated)
    torch.testing.assert_close(got, -2 * x.detach() * randn(3, seed=1))


@on_both
def test_only_what_is_asked_for(backend: str) -> None:
    x, w, fixed = leaf(3, 4), leaf(4, seed=1), randn(4, seed=2)
    out = fusec.compile("x * w + b", backend=backend)(x, w, fixed)
    (gw,) = torch.autograd.grad(out.sum(), [w], retain_graph=True)
    torch.testing.assert_close(gw, x.detach().sum(0))
    out.sum().backward()
    assert fixed.grad is None
    torch.testing.assert_close(x.grad, w.detach().expand(3, 4))


def test_numbers_and_integers_have_no_gradient() -> None:
    x, n = leaf(3), torch.tensor([1, 2, 3])
    out = fusec.compile("x * s + n * t")(x, 2, n, 0.5)
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [2.0, 2.0, 2.0]
    again = fusec.compile("exp(x * s)")
    for s in (0.5, 1.5):
        (got,) = torch.autograd.grad(again(x, s).sum(), x)
        torch.testing.assert_close(got, s * torch.exp(s * x.detach()))


def test_steps_have_zero_gradients() -> None:
    x = leaf(3)
    (got,) = torch.autograd.grad(fusec.compile("floor(x)")(x).sum(), x)
    assert got.tolist() == [0.0, 0.0, 0.0]


@on_both
def test_third_derivatives(backend: str) -> None:
    x = leaf(4)
    y = fusec.compile("tanh(x) * exp(x)", backend=backend)(x)
    z = x.detach().requires_grad_()
    want = torch.tanh(z) * torch.exp(z)
    for _ in range(3):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (want,) = torch.autograd.grad(want.sum(), z, create_graph=True)
        torch.testing.assert_close(y, want)


def test_second_derivatives_of_a_softmax_of_what_it_saved() -> None:
    x, v = leaf(3, 5), randn(3, 5, seed=1)

    def penalty(function: Any) -> torch.Tensor:
        (g,) = torch.autograd.grad((function(x) * v).sum(), x, create_graph=True)
        return torch.autograd.grad((g * g).sum(), x)[0]

    torch.testing.assert_close(
        penalty(fusec.compile("softmax(x)")), penalty(lambda t: t.softmax(-1))
    )


def test_hooks_chains_and_accumulation() -> None:
    x = leaf(3, 4)
    seen: list[torch.Tensor] = []
    x.register_hook(seen.append)
    square, half = fusec.compile("x * x"), fusec.compile("0.5 * x")
    for _ in range(2):
        half(square(x * 2)).sum().backward()
    torch.testing.assert_close(x.grad, 8 * x.detach())
    assert len(seen) == 2


def test_a_saved_tensor_that_was_changed_is_an_error() -> None:
    x = leaf(3)
    y = x * 1
    out = fusec.compile("x * x")(y)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        out.sum().backward()
    saved = fusec.compile("exp(x)")(x)  # keeps its result
    with torch.no_grad():
        saved.mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        saved.sum().backward()


@pytest.mark.parametrize(
    "change",
    [
        torch.Tensor.float,
        lambda t: t[:1],
        lambda t: torch.cat([t, t]),
        lambda t: t.to("meta"),
    ],
)
def test_a_hook_that_changes_what_was_saved_is_refused(change: Any) -> None:
    """Kernels would read memory that is not there, or other numbers than were kept."""
    x = leaf(8)
    with torch.autograd.graph.saved_tensors_hooks(change, lambda t: t):
        out = fusec.compile("x * sigmoid(x)")(x)
    with pytest.raises(UnsupportedError, match="hook for saved tensors"):
        out.sum().backward()


def test_a_hook_may_move_what_was_saved() -> None:
    x = leaf(8, 4)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.t().contiguous(), torch.Tensor.t):
        out = fusec.compile("x * sigmoid(x)")(x)
    (found,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(F.silu(x).sum(), x)[0])


def test_batched_gradients_are_refused_in_words() -> None:
    x = leaf(3)
    out = fusec.compile("x * x")(x)
    with pytest.raises(UnsupportedError, match="is_grads_batched"):
        torch.autograd.grad(out, x, torch.ones(2, 3), is_grads_batched=True)


@pytest.mark.parametrize("text", ["x * x", "softmax(x)"])
def test_a_gradient_of_zeros_without_memory(text: str) -> None:
    x = leaf(3, 4)
    zeros = torch._efficientzerotensor((3, 4), dtype=x.dtype)
    (found,) = torch.autograd.grad(fusec.compile(text)(x), x, zeros)
    assert found.shape == x.shape
    assert not found.any()


def test_a_mode_without_memory_gets_results_and_gradients_without() -> None:
    x = leaf(3)
    function = fusec.compile("x * x")
    function(x)
    with FakeTensorMode(allow_non_fake_inputs=True):
        y = function(x)
        (found,) = torch.autograd.grad(y.sum(), x)
    for tensor in (y, found):
        assert isinstance(tensor, FakeTensor)
        assert (tensor.shape, tensor.dtype, tensor.device) == (x.shape, x.dtype, x.device)


def test_checkpoint_and_training() -> None:
    torch.manual_seed(0)
    swish = fusec.compile("x * sigmoid(beta * x)")
    beta = torch.nn.Parameter(torch.tensor(1.0))
    layer, data, wanted = torch.nn.Linear(4, 8), torch.randn(16, 4), torch.randn(16, 8)
    twin, other = copy.deepcopy(layer), torch.nn.Parameter(torch.tensor(1.0))
    mine = torch.optim.SGD([*layer.parameters(), beta], 0.1)
    theirs = torch.optim.SGD([*twin.parameters(), other], 0.1)
    for _ in range(5):
        for optimizer in (mine, theirs):
            optimizer.zero_grad()
        loss = F.mse_loss(checkpoint(swish, layer(data), beta, use_reentrant=False), wanted)
        hidden = twin(data)
        reference = F.mse_loss(hidden * torch.sigmoid(other * hidden), wanted)
        torch.testing.assert_close(loss, reference)
        for value, optimizer in ((loss, mine), (reference, theirs)):
            value.backward()
            optimizer.step()
    assert beta.item() == pytest.approx(other.item(), abs=1e-6)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of forward_ad itself
def test_what_is_refused() -> None:
    x = leaf(3)
    function = fusec.compile("x * y")
    with pytest.raises(UnsupportedError, match="out="):
        function(x, 2.0, out=torch.empty(3, dtype=torch.float64))
    function(x, randn(3))
    with pytest.raises(UnsupportedError, match="NumPy"):
        function(x, randn(3).numpy())
    with pytest.raises(UnsupportedError, match="bound call"):
        function.bind(x, 2.0)
    with torch.no_grad():
        assert not function.bind(x, 2.0)(x, 2.0).requires_grad
        function(x, 2.0, out=torch.empty(3, dtype=torch.float64))
    with (
        forward_ad.dual_level(),
        pytest.raises(UnsupportedError, match="tangent"),
    ):
        function(forward_ad.make_dual(randn(3), randn(3)), 2.0)


def test_no_kernel_runs_for_what_is_there_already() -> None:
    """The gradient of a sum is the given one, seen in the shape of the input."""
    function = fusec.compile("sum(x) + y")
    x, y = leaf(3, 4), leaf(3, 1, seed=1)
    out = function(x, y)
    before = fusec.stats()
    given = randn(3, 1, seed=2)
    gx, gy = torch.autograd.grad(out, [x, y], given)
    assert gy.data_ptr() == gx.data_ptr() == given.data_ptr()
    assert gx.stride() == (1, 0)
    assert fusec.stats() == before


def test_shapes_of_a_class_build_nothing_new() -> None:
    function = fusec.compile("layer_norm(x, w, b)")

    def step(rows: int, cols: int) -> None:
        x, w, b = leaf(rows, cols), leaf(cols, seed=1), leaf(cols, seed=2)
        function(x, w, b).sum().backward()

    step(8, 96)
    before = fusec.stats()
    step(9, 100)
    assert fusec.stats() == before


def test_memory_is_given_back() -> None:
    """Nothing but the results and what the gradient reads stays alive, and that only until then."""
    function = fusec.compile("softmax(x)")
    x = leaf(64, 64)
    out = function(x * 1)
    saved = [t for t in out.grad_fn.saved_tensors if t is not None]
    assert [t.data_ptr() for t in saved] == [out.data_ptr()]
    out.sum().backward()
    gc.collect()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


def test_infinite_and_masked_rows() -> None:
    x = torch.tensor([[0.0, -math.inf, 1.0], [2.0, 1.0, -math.inf]], dtype=torch.float64)
    against_eager("softmax(x)", lambda x: x.softmax(-1), [x], "cpp")
    against_eager("logsumexp(x)", lambda x: x.logsumexp(-1), [x], "cpp")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "text",
    [
        "softmax(x)",
        "layer_norm(x, w, b)",
        "rms_norm(x, w)",
        "gelu_tanh(x) * w",
        "cross_entropy(x, t)",
    ],
)
def test_checks_on_the_gpu(text: str) -> None:
    function = fusec.compile(text)
    shapes = {"x": (5, 12), "w": (12,), "b": (12,)}
    values = [
        torch.tensor([1, 3, 0, 11, 7]).cuda() if n == "t" else randn(*shapes[n], seed=k).cuda()
        for k, n in enumerate(function.inputs)
    ]
    both_checks(function, values)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", [1024, 1500, 4096, 30000])
def test_16_bit_backward_on_the_gpu(cols: int) -> None:
    x, w, b = (
        randn(*s, seed=k).bfloat16().cuda() for k, s in enumerate([(64, cols), (cols,), (cols,)])
    )
    mine, exact = tracked([x, w, b]), tracked([v.double() for v in (x, w, b)])
    given = randn(64, cols, seed=5).bfloat16().cuda()
    fusec.compile("layer_norm(x, w, b)")(*mine).backward(given)
    F.layer_norm(exact[0], (cols,), exact[1], exact[2]).backward(given.double())
    for a, e in zip(mine, exact, strict=True):
        bound = 2 * torch.finfo(torch.bfloat16).eps * e.grad.abs().max().item()
        assert (a.grad.double() - e.grad).abs().max().item() <= bound
