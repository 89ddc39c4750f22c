"""Formulas inside graphs that PyTorch makes: ``torch.compile``, ``torch.export``, checkpointing,
``torch.func``, and operators with a name of their own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import fusec
from fusec import ShapeError, UnsupportedError

NORM = fusec.compile("rms_norm(x, w) * s", name="norm")


def norm(x: torch.Tensor, w: torch.Tensor, s: float) -> torch.Tensor:
    """What NORM is to compute."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w * s


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)


def same_with_gradients(
    ours: Callable[..., torch.Tensor], theirs: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> None:
    mine, reference = ours(*inputs), theirs(*inputs)
    assert_close(mine, reference)
    given = torch.randn_like(reference)
    pairs = zip(
        torch.autograd.grad(mine, inputs, given),
        torch.autograd.grad(reference, inputs, given),
        strict=True,
    )
    for found, expected in pairs:
        assert_close(found, expected)


@pytest.fixture(autouse=True)
def fresh_graphs() -> None:
    torch._dynamo.reset()


# -- torch.compile --------------------------------------------------------------------------------


def test_a_call_in_a_whole_graph_with_any_lengths() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    inside = torch.compile(
        lambda x, w: NORM(x * 2, w=w, s=0.5) + 1, fullgraph=True, dynamic=True, backend=counter
    )
    for rows, cols in ((3, 5), (7, 4), (64, 33)):
        x, w = leaf(rows, cols), leaf(cols, seed=1)
        same_with_gradients(inside, lambda x, w: norm(x * 2, w, 0.5) + 1, x, w)
        with torch.no_grad():
            assert_close(inside(x, w), norm(x * 2, w, 0.5) + 1)
    assert counter.frame_count == 2  # with gradients, and without


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # of inductor itself
def test_inductor_takes_calls_and_keeps_their_layout() -> None:
    def ours(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return NORM(x.t() * 2, w, 0.5).exp()

    inside = torch.compile(ours, fullgraph=True)
    theirs = torch.compile(lambda x, w: norm(x.t() * 2, w, 0.5).exp(), backend="eager")
    same_with_gradients(inside, theirs, leaf(6, 9), leaf(6, seed=1))


def test_a_traced_function_in_a_whole_graph() -> None:
    function = fusec.fuse(lambda x, scale=2.0: x.softmax(-1) * scale)
    inside = torch.compile(lambda x: function(x, scale=3.0), fullgraph=True, backend="aot_eager")
    same_with_gradients(inside, lambda x: x.softmax(-1) * 3, leaf(3, 4))


def test_several_results_and_numbers_of_each_kind() -> None:
    function = fusec.compile("h = x * a + b\nh, sum(h), h > 0")
    for a, b in ((2, 0.5), (True, 3), (1.5, False)):
        x = torch.randn(2, 3)
        inside = torch.compile(
            lambda x, a=a, b=b: function(x, a, b), fullgraph=True, backend="aot_eager"
        )
        for found, expected in zip(inside(x), function(x, a, b), strict=True):
            assert_close(found, expected)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 4), ()])
def test_shapes_at_the_edge(shape: tuple[int, ...], backend: str) -> None:
    """Results have the same strides too, and never the memory of an input."""
    function = fusec.compile("x, x + 0, exp(x)", backend=backend)
    x = torch.randn(shape)
    found = torch.compile(function, fullgraph=True, backend="aot_eager")(x)
    for result, expected in zip(found, (x, x, x.exp()), strict=True):
        assert_close(result, expected)
        assert not x.numel() or result.data_ptr() != x.data_ptr()


def test_errors_in_a_graph_are_those_of_a_call() -> None:
    inside = torch.compile(lambda x, w: NORM(x, w, 1.0), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"shapes do not fit, 4 against 3"):
        inside(torch.ones(2, 4), torch.ones(3))
    with pytest.raises(Exception, match=r"the inputs of the formula are x, w, s"):
        torch.compile(lambda x: NORM(x, s=1.0), fullgraph=True, backend="aot_eager")(torch.ones(2))
    operator = NORM.as_operator("fusec_test::errors", numbers=["s"])
    for w in (torch.ones(3), torch.ones(3, requires_grad=True)):
        with pytest.raises(ShapeError, match=r"shapes do not fit, 4 against 3"):
            operator(torch.ones(2, 4), w, 1.0)
    complex_numbers = torch.ones(2, 3, dtype=torch.complex64)
    for x in (complex_numbers, complex_numbers.requires_grad_()):
        with pytest.raises(fusec.DTypeError, match="complex64"):
            operator(x, torch.ones(3), 1.0)


def test_what_no_graph_takes_ends_it_before_the_call() -> None:
    def ours(x: Any, out: Any = None) -> Any:
        return NORM(x, x, 1.0, out=out)

    x, out = torch.randn(4), torch.empty(4)
    inside = torch.compile(ours, backend="aot_eager")
    assert_close(inside(x, out), NORM(x, x, 1.0))
    assert_close(out, NORM(x, x, 1.0))
    assert_close(torch.from_numpy(inside(x.numpy())), NORM(x, x, 1.0))


# -- operators with a name ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "shapes"),
    [
        ("rms_norm(x, w)", [(3, 4), (4,)]),
        ("h = x + y\nh, sum(h)", [(2, 3), (2, 1)]),
    ],
)
def test_opcheck(formula: str, shapes: list[tuple[int, ...]]) -> None:
    operator = fusec.compile(formula).as_operator(f"fusec_test::checked_{len(formula)}")
    plain = [torch.randn(shape) for shape in shapes]
    turned = [t.movedim(0, -1).contiguous().movedim(-1, 0) if t.dim() else t for t in plain]
    for inputs in (plain, [t.clone().requires_grad_() for t in turned]):
        found = torch.library.opcheck(operator, tuple(inputs))
        assert set(found.values()) == {"SUCCESS"}
    torch.library.opcheck(torch.ops.fusec.call.default, generic(formula, plain))


def generic(formula: str, tensors: list[torch.Tensor]) -> tuple[Any, ...]:
    """The arguments of ``fusec::call`` for a formula of tensors alone."""
    return fusec.compile(formula)._written, "t" * len(tensors), tensors, []


def test_second_gradients_of_an_operator() -> None:
    operator = NORM.as_operator("fusec_test::norm", numbers=["s"])
    x, w = leaf(2, 5), leaf(5, seed=1)
    assert torch.autograd.gradcheck(lambda x, w: operator(x, w, 0.5), (x, w))
    assert torch.autograd.gradgradcheck(lambda x, w: operator(x, w, 0.5), (x, w))


def test_names_of_operators() -> None:
    operator = NORM.as_operator("fusec_test::named", numbers=["s"])
    assert str(operator._schema) == "fusec_test::named(Tensor x, Tensor w, Scalar s) -> Tensor"
    assert (
        fusec.compile("rms_norm(x, w) * s", name="norm").as_operator("fusec_test::named", ["s"])
        is operator
    )
    with pytest.raises(UnsupportedError, match="there already"):
        fusec.compile("x + 1").as_operator("fusec_test::named")
    for name in ("gelu", "aten::gelu", "fusec::gelu", "a::b::c", "a b::c"):
        with pytest.raises(UnsupportedError, match="cannot name an operator"):
            NORM.as_operator(name)
    with pytest.raises(fusec.UnknownNameError, match="no input 't'"):
        NORM.as_operator("fusec_test::other", numbers=["t"])
    odd = fusec.compile("self + lambda_ * σ + Tensor").as_operator("fusec_test::odd")
    assert odd(*(torch.full((2,), float(k)) for k in range(1, 5))).tolist() == [11.0, 11.0]


# -- torch.export ---------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """A linear layer and a formula with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 2, 4))
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return NORM(self.linear(x), self.weight, 0.5)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch.export itself
@pytest.mark.parametrize("strict", [True, False])
def test_export(strict: bool, tmp_path: Path) -> None:
    block, x = Block(), torch.randn(5, 4)
    rows = {"x": {0: torch.export.Dim("rows")}}
    program = torch.export.export(block, (x[:3],), dynamic_shapes=rows, strict=strict)
    for batch in (x, x[:1]):
        assert_close(program.module()(batch), block(batch))
    if strict:
        return
    assert_close(program.run_decompositions().module()(x), block(x))
    torch.export.save(program, tmp_path / "block.pt2")
    torch.save((x, block(x).detach()), tmp_path / "case.pt")
    script = (
        "import torch, fusec.nn; from pathlib import Path; "
        f"x, y = torch.load({str(tmp_path / 'case.pt')!r}); "
        f"found = torch.export.load({str(tmp_path / 'block.pt2')!r}).module()(x); "
        "torch.testing.assert_close(found.detach(), y); print('same')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "same\n", done.stderr


# -- checkpointing --------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool, compiled: bool) -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        def part(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return NORM(x * 2, w, 0.5)

        return checkpoint(part, x, w, use_reentrant=reentrant)

    ours = torch.compile(run, fullgraph=True, backend="aot_eager") if compiled else run
    x, w = leaf(3, 4), leaf(4, seed=1)
    ours(x, w).sum().backward()
    expected = torch.autograd.grad(norm(x * 2, w, 0.5).sum(), (x, w))
    assert_close((x.grad, w.grad), expected)


def test_selective_checkpoint_sees_the_operator() -> None:
    seen = []

    def policy(context: Any, operator: Any, *args: Any, **named: Any) -> CheckpointPolicy:
        seen.append(str(operator))
        kept = "fusec" in str(operator)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    def ours(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(
            lambda x, w: NORM(x * 2, w, 0.5),
            x,
            w,
            use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts(policy),
        )

    same_with_gradients(ours, lambda x, w: norm(x * 2, w, 0.5), leaf(3, 4), leaf(4, seed=1))
    assert any("fusec" in name for name in seen)


# -- torch.func -----------------------------------------------------------------------------------

FORMULAS = {
    # Formula, PyTorch's twin, shapes, and axes that vmap goes over.
    "elementwise": ("x * y + 1", lambda x, y: x * y + 1, [(2, 3, 4), (4, 3)], (1, 1)),
    "lower rank": ("x * y", lambda x, y: x * y, [(5, 3, 4), (5, 4)], (0, 0)),
    "square": ("x * y", lambda x, y: x * y, [(3, 3, 4), (3, 4)], (0, 0)),
    "one": ("x * y + y", lambda x, y: x * y + y, [(1, 3, 4), (1, 4)], (0, 0)),
    "no axis": ("x * y", lambda x, y: x * y, [(3, 4), (3,)], (0, 0)),
    "shared": ("softmax(x) * y", lambda x, y: x.softmax(-1) * y, [(3, 4, 5), (5,)], (0, None)),
    "small one alone": (
        "sum(y) * x", lambda x, y: y.sum(-1, keepdim=True) * x, [(4, 5), (3, 4, 5)], (None, 0),
    ),
    "first axis": ("x / sum(x, axis=0) + y", lambda x, y: x / x.sum(0) + y,
                   [(3, 4, 5), (3, 4, 5)], (0, 0)),
    "all axes": ("x / sum(x, axis=all) + y", lambda x, y: x / x.sum() + y,
                 [(3, 4, 5), (3, 4, 5)], (0, 0)),
    "position": ("x + index(0) * y", lambda x, y: x + torch.arange(4.0)[:, None] * y,
                 [(3, 4, 5), (3, 4, 5)], (0, 0)),
    "results apart": ("x * 2, y + 1", lambda x, y: (x * 2, y + 1), [(3, 4, 5), (3, 5)], (0, 0)),
    "gather": ("x[i64(y)]", lambda x, y: x.gather(-1, y.long()[..., None])[..., 0],
               [(3, 2, 4), (3, 2)], (0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("case", FORMULAS)
def test_vmap(case: str) -> None:
    formula, twin, shapes, dims = FORMULAS[case]
    x, y = (torch.randn(shape, generator=torch.Generator().manual_seed(7)) for shape in shapes)
    if case == "gather":
        y = y.abs().floor().clamp(0, 3)
    function = fusec.compile(formula, inputs=("x", "y"))
    found = torch.vmap(function, in_dims=dims)(x, y)
    assert_close(found, torch.vmap(twin, in_dims=dims)(x, y))
    operator = function.as_operator(f"fusec_test::vmap_{case.replace(' ', '_')}")
    assert_close(torch.vmap(operator, in_dims=dims)(x, y), found)


@pytest.mark.parametrize(
    ("formula", "one_call"), [("softmax(x) * y", True), ("sum(x, axis=0) * y", False)]
)
def test_vmap_in_one_call_or_in_many(formula: str, one_call: bool) -> None:
    function = fusec.compile(formula)
    seen = []

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Seen():
        torch.vmap(function, in_dims=(0, None))(torch.randn(3, 4, 5), torch.randn(5))
    assert sum("fusec" in name for name in seen) == (1 if one_call else 3)


def test_vmap_over_nothing_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="length 0"):
        torch.vmap(fusec.compile("x + 1"))(torch.ones(0, 3))


DERIVATIVES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "grad": lambda f, x, w: torch.func.grad(lambda x: f(x, w, 0.5).pow(2).sum())(x),
    "per sample": lambda f, x, w: torch.vmap(
        torch.func.grad(lambda x, w: f(x, w, 0.5).pow(2).sum(), (0, 1)), (0, None)
    )(x, w),
    "vjp": lambda f, x, w: torch.func.vjp(lambda x, w: f(x, w, 0.5), x, w)[1](x),
    "jacrev": lambda f, x, w: torch.func.jacrev(lambda x: f(x, w, 0.5))(x[0]),
    "twice": lambda f, x, w: torch.func.jacrev(
        torch.func.jacrev(lambda x: f(x, w, 0.5).pow(2).sum())
    )(x[0]),
    "in a graph": lambda f, x, w: torch.compile(
        torch.func.grad(lambda x: f(x, w, 0.5).pow(2).sum()), fullgraph=True, backend="aot_eager"
    )(x),
}


@pytest.mark.parametrize("case", DERIVATIVES)
def test_transforms_of_functions(case: str) -> None:
    x, w = leaf(3, 4).detach(), leaf(4, seed=1).detach()
    assert_close(DERIVATIVES[case](NORM, x, w), DERIVATIVES[case](norm, x, w))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of forward_ad itself
def test_forward_mode_is_refused() -> None:
    x, w = leaf(3, 4).detach(), leaf(4, seed=1).detach()
    with pytest.raises(UnsupportedError, match="tangent"):
        torch.func.jvp(lambda x: NORM(x, w, 0.5), (x,), (x,))
    with pytest.raises(UnsupportedError, match="tangent"):
        torch.func.hessian(lambda x: NORM(x, w, 0.5).sum())(x[0])


def test_a_graph_made_of_real_tensors() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x, y = torch.randn(2, 3), torch.randn(2, 3)
    function = fusec.compile("exp(x)")
    function(x)
    graph = make_fx(lambda x: function(x) + 1)(x)
    assert_close(graph(y), y.exp() + 1)


def turned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.t() * 2, x[0].exp()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit itself
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("way", ["make_fx", "jit", "export"])
def test_another_trace_sees_the_operators_of_a_function(way: str, known: bool) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    function = fusec.compile(turned)
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    if known:
        function(x)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            first, second = function(x)
            return first + 1, second

    made = {
        "make_fx": lambda: make_fx(Model())(x),
        "jit": lambda: torch.jit.trace(Model(), x),
        "export": lambda: torch.export.export(Model(), (x,), strict=False).module(),
    }[way]()
    assert_close(made(y), (turned(y)[0] + 1, turned(y)[1]))


def test_a_first_call_of_a_function_under_a_transform_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"inside torch\.func\.vmap or its like"):
        torch.func.grad(fusec.compile(lambda x: (x * x).sum()))(torch.randn(3))


def test_the_name_of_a_program_says_all() -> None:
    """What a graph keeps of a program makes the same one in another process."""
    from fusec.runtime.programs import Link, Name, name_of

    name = Name(NORM._written, ("float32:n1", "float"), (Link(("x",), ("x",), (0,)),), ("x", "w"))
    assert name_of(name.text()) == name


# -- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # PyTorch begins with such a one
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("cols", [1000, 65536])
def test_inductor_and_cuda_graphs_on_a_gpu(cols: int, mode: str) -> None:
    inside = torch.compile(lambda x, w: NORM(x * 2, w, 0.5) + 1, fullgraph=True, mode=mode)
    for seed in range(4):
        x, w = leaf(8, cols, seed=seed), leaf(cols, seed=seed + 9)
        on_gpu = [t.detach().cuda().requires_grad_() for t in (x, w)]
        same_with_gradients(inside, lambda x, w: norm(x * 2, w, 0.5) + 1, *on_gpu)


@pytest.mark.gpu
def test_opcheck_on_a_gpu() -> None:
    operator = NORM.as_operator("fusec_test::on_gpu", numbers=["s"])
    inputs = [torch.randn(3, 40, device="cuda"), torch.randn(40, device="cuda")]
    for tensors in (inputs, [t.clone().requires_grad_() for t in inputs]):
        found = torch.library.opcheck(operator, (*tensors, 0.5))
        assert set(found.values()) == {"SUCCESS"}
    mixed = fusec.compile("x * c").as_operator("fusec_test::mixed")
    for c in (torch.tensor(2.0), torch.tensor(2.0, requires_grad=True)):
        assert_close(mixed(inputs[0], c), inputs[0] * 2)
    inside = torch.compile(mixed, fullgraph=True, backend="aot_eager")
    assert_close(inside(inputs[0], torch.tensor(2.0)), inputs[0] * 2)
