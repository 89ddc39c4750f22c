"""``fusec.nn`` against ``torch.nn``: arguments, numbers, gradients, state, text and errors."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import fusec
from fusec import nn
from fusec.nn import support

# PyTorch's own, once in a process: of its speed where parameters have another type.
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype:UserWarning")

# A module by name, its arguments, and the shape of an input.
CASES: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("RMSNorm", {"normalized_shape": 6}, (4, 6)),
    ("RMSNorm", {"normalized_shape": (3, 4), "eps": 0.1}, (2, 5, 3, 4)),
    ("RMSNorm", {"normalized_shape": [6], "elementwise_affine": False}, (6,)),
    ("LayerNorm", {"normalized_shape": 6}, (2, 4, 6)),
    ("LayerNorm", {"normalized_shape": (3, 4), "eps": 0.1}, (5, 3, 4)),
    ("LayerNorm", {"normalized_shape": 6, "bias": False}, (4, 6)),
    ("LayerNorm", {"normalized_shape": 6, "elementwise_affine": False}, (4, 6)),
    ("LayerNorm", {"normalized_shape": 6}, (0, 6)),
    ("Softmax", {"dim": -1}, (2, 3, 4)),
    ("Softmax", {"dim": 0}, (5, 3)),
    ("Softmax", {"dim": 1}, (2, 3, 4)),
    ("Softmax", {"dim": 1}, (2, 0)),
    ("Softmax", {"dim": -1}, ()),
    ("GELU", {}, (3, 4)),
    ("GELU", {"approximate": "tanh"}, ()),
    ("GELU", {"approximate": "tanh"}, (0, 3)),
]
IDS = [f"{name}{i}" for i, (name, _, _) in enumerate(CASES)]


def pair(name: str, arguments: dict[str, Any], dtype: torch.dtype) -> tuple[Any, Any]:
    """fusec's module and PyTorch's, with the same random parameters."""
    factory = {"dtype": dtype} if "Norm" in name else {}
    ours = getattr(nn, name)(**arguments, **factory)
    theirs = getattr(torch.nn, name)(**arguments, **factory)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def compare(ours: Any, theirs: Any, *inputs: torch.Tensor, **tolerance: float) -> None:
    """Results and gradients of both, on inputs that may require grad."""
    found, expected = ours(*inputs), theirs(*inputs)
    assert_close(found, expected, equal_nan=True, **tolerance)
    leaves = [x for x in inputs if x.requires_grad]
    given = torch.randn_like(expected)
    gradients = [
        torch.autograd.grad(result, [*leaves, *module.parameters()], given)
        for module, result in ((ours, found), (theirs, expected))
    ]
    for mine, reference in zip(*gradients, strict=True):
        assert_close(mine, reference, equal_nan=True, **tolerance)


@pytest.fixture
def formulas(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The formulas that modules run, in order, by the reference backend, which builds nothing."""
    seen: list[str] = []

    def noted(text: str, name: str, inputs: tuple[str, ...]) -> Any:
        seen.append(text)
        return fusec.compile(text, name=name, inputs=inputs, backend="torch")

    monkeypatch.setattr(support, "function", noted)
    return seen


@pytest.mark.parametrize(("name", "arguments", "shape"), CASES, ids=IDS)
def test_like_pytorch(
    name: str, arguments: dict[str, Any], shape: tuple[int, ...], formulas: list[str]
) -> None:
    torch.manual_seed(0)
    ours, theirs = pair(name, arguments, torch.float64)
    x = torch.randn(shape, dtype=torch.float64)
    turned = x.movedim(0, -1).contiguous().movedim(-1, 0) if x.dim() > 1 else x
    for given in (x, turned):
        compare(ours, theirs, given.clone().requires_grad_())
    assert formulas or not x.dim()
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(0, torch.float16), *((k, t) for k in (0, 3, 8, 13) for t in (torch.bfloat16, torch.float32))],
)
def test_types(case: int, dtype: torch.dtype) -> None:
    """Each type rounds once, to itself; before, float32 rounds a few times. ``eps=None`` is what it
    is in PyTorch.
    """
    name, arguments, shape = CASES[case]
    ours, theirs = pair(name, arguments, dtype)
    exact = copy.deepcopy(theirs).double()
    for scale in (1.0, 1e-3):
        x = (torch.randn(shape) * scale).to(dtype).requires_grad_()
        if name == "RMSNorm":
            exact.eps = support.default_eps("cpu", dtype)
            assert_close(ours(x), theirs(x))
        given = torch.randn(shape).to(dtype)
        inputs = [x, *ours.parameters()]
        wide = [x.detach().double().requires_grad_(), *exact.parameters()]
        found, expected = ours(x), exact(wide[0])
        mine = found, *torch.autograd.grad(found, inputs, given)
        reference = expected, *torch.autograd.grad(expected, wide, given.double())
        for result, right in zip(mine, reference, strict=True):
            assert result.dtype == dtype
            steps = 32 * min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
            room = steps * right.abs().max().item()
            if name == "Softmax":  # its gradient starts from its rounded result, as in PyTorch
                largest = expected.max() * given.double().abs().max()
                room += 2 * torch.finfo(dtype).eps * largest.item()
            assert_close(result.double(), right, rtol=torch.finfo(dtype).eps, atol=room)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm"])
def test_half_inputs_and_whole_parameters(
    name: str, dtype: torch.dtype, formulas: list[str]
) -> None:
    ours, theirs = pair(name, {"normalized_shape": 6}, torch.float32)
    x = torch.randn(4, 6).to(dtype)
    assert ours(x).dtype == theirs(x).dtype
    assert_close(ours(x), theirs(x))
    assert formulas


@pytest.mark.parametrize("promotes", [True, False])
def test_a_norm_has_the_type_that_this_pytorch_gives(
    promotes: bool, monkeypatch: pytest.MonkeyPatch, formulas: list[str]
) -> None:
    """PyTorch 2.6 gives float32 for a weight in float32, newer versions the type of x."""

    def rms_norm(
        x: torch.Tensor, shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
    ) -> torch.Tensor:
        wide = x.double()
        size = wide.square().mean(-1, keepdim=True) + (eps or torch.finfo(torch.float32).eps)
        found = wide * size.rsqrt() * (1 if weight is None else weight)
        return found.to(torch.float32 if promotes and weight is not None else x.dtype)

    ours, theirs = pair("RMSNorm", {"normalized_shape": 6}, torch.float32)
    monkeypatch.setattr(F, "rms_norm", rms_norm)
    for probe in (support._probed_rms_norm_type, support._probed_eps):
        monkeypatch.setattr(support, probe.__name__, functools.cache(probe.__wrapped__))
    x = torch.randn(4, 6).bfloat16().requires_grad_()
    found = ours(x)
    assert found.dtype == theirs(x).dtype == (torch.float32 if promotes else torch.bfloat16)
    assert_close(found, theirs(x))
    (gradient,) = torch.autograd.grad(found.sum(), [x])
    (expected,) = torch.autograd.grad(theirs(x).sum(), [x])
    assert_close(gradient, expected, rtol=1e-2, atol=1e-2)
    assert formulas


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", [0, 3, 8, 13])
def test_autocast(case: int, dtype: torch.dtype, formulas: list[str]) -> None:
    name, arguments, shape = CASES[case]
    ours, theirs = pair(name, arguments, torch.float32)
    loss = torch.nn.CrossEntropyLoss(), nn.CrossEntropyLoss()
    for kind in (torch.float32, dtype):
        x = torch.randn(shape).to(kind)
        target = torch.arange(4)
        with torch.autocast("cpu", dtype=dtype):
            assert_close(ours(x), theirs(x))
            if x.shape == (4, 6):
                assert_close(loss[1](x, target), loss[0](x, target))
    assert formulas


LOSSES: list[dict[str, Any]] = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"ignore_index": 1},
    {"ignore_index": 1, "reduction": "none"},
    {"label_smoothing": 0.1},
    {"label_smoothing": 0.1, "ignore_index": 2, "reduction": "sum"},
    {"weight": True},
    {"weight": True, "ignore_index": 2, "label_smoothing": 0.3},
    {"weight": True, "label_smoothing": 1.0, "reduction": "none"},
    {"size_average": False},
]


@pytest.mark.parametrize("arguments", LOSSES, ids=lambda a: "-".join(a) or "plain")
def test_cross_entropy(arguments: dict[str, Any], formulas: list[str]) -> None:
    torch.manual_seed(0)
    options = dict(arguments)
    if options.pop("weight", False):
        options["weight"] = torch.rand(5, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # size_average is an old name
        ours, theirs = nn.CrossEntropyLoss(**options), torch.nn.CrossEntropyLoss(**options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert (repr(ours), ours.reduction) == (repr(theirs), theirs.reduction)
    for shape in ((5,), (4, 5), (2, 5, 3)):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        target = torch.randint(5, shape[:0] if len(shape) == 1 else (shape[0], *shape[2:]))
        compare(ours, theirs, x, target)
        axis = 0 if len(shape) == 1 else 1
        probabilities = torch.randn(shape, dtype=torch.float64).softmax(axis).requires_grad_()
        if options.get("ignore_index", -100) < 0 and options.get("label_smoothing") != 1:
            compare(ours, theirs, x, probabilities)
    assert formulas


def test_cross_entropy_of_halves() -> None:
    ours, theirs = nn.CrossEntropyLoss(), torch.nn.CrossEntropyLoss()
    target = torch.randint(50, (8,))
    x = torch.randn(8, 50).bfloat16().requires_grad_()
    compare(ours, theirs, x, target, atol=2e-2, rtol=2e-2)  # eager rounds its logarithms
    assert_close(ours(x, target).double(), theirs(x.double(), target), atol=0, rtol=2**-8)


def test_cross_entropy_at_the_edge() -> None:
    ours, theirs = nn.CrossEntropyLoss(), torch.nn.CrossEntropyLoss()
    nothing = torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64)
    ignored = torch.zeros(2, 5), torch.full((2,), -100)
    for x, target in (nothing, ignored):
        assert_close(ours(x, target), theirs(x, target), equal_nan=True)
    x = torch.randn(2, 5)
    cases: list[tuple[torch.Tensor, torch.Tensor]] = [
        (x, torch.tensor([1, 5])),
        (x, torch.tensor([-1, 0])),
        (x, torch.zeros(3, dtype=torch.int64)),
        (x, torch.zeros(2, dtype=torch.int32)),
        (x, torch.zeros(2, 4)),
        (x.long(), torch.zeros(2, dtype=torch.int64)),
    ]
    for given in cases:
        with pytest.raises((IndexError, RuntimeError, ValueError)) as expected:
            theirs(*given)
        with pytest.raises(expected.type) as found:
            ours(*given)
        assert str(found.value) == str(expected.value)
    assert_close(
        ours(x, torch.tensor([1, 3], dtype=torch.uint8)), F.cross_entropy(x, torch.tensor([1, 3]))
    )


def test_errors_are_those_of_pytorch() -> None:
    cases: list[tuple[Any, Any, torch.Tensor]] = [
        (nn.LayerNorm(4), torch.nn.LayerNorm(4), torch.ones(2, 3)),
        (nn.RMSNorm((2, 4)), torch.nn.RMSNorm((2, 4)), torch.ones(4)),
        (nn.LayerNorm(4), torch.nn.LayerNorm(4), torch.ones(2, 4, dtype=torch.float64)),
        (nn.Softmax(2), torch.nn.Softmax(2), torch.ones(2, 3)),
        (nn.Softmax(0), torch.nn.Softmax(0), torch.ones(2, dtype=torch.int64)),
        (nn.GELU("tan"), torch.nn.GELU("tan"), torch.ones(2)),
    ]
    for ours, theirs, x in cases:
        with pytest.raises((IndexError, RuntimeError, ValueError)) as expected:
            theirs(x)
        with pytest.raises(expected.type) as found:
            ours(x)
        assert str(found.value) == str(expected.value)
    with pytest.warns(UserWarning, match="Implicit dimension"):
        assert_close(nn.Softmax()(torch.ones(2, 3)), torch.full((2, 3), 1 / 3))


def test_what_kernels_cannot_read_is_computed_by_pytorch(formulas: list[str]) -> None:
    ours, theirs = nn.LayerNorm(3), torch.nn.LayerNorm(3)
    meta = ours.to("meta")(torch.ones(2, 3, device="meta"))
    assert (meta.shape, meta.device.type) == ((2, 3), "meta")
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    assert_close(nn.LayerNorm(3)(nested).values(), theirs(nested).values())
    assert formulas == []


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of forward_ad itself
def test_forward_mode_is_computed_by_pytorch() -> None:
    ours, theirs = pair("LayerNorm", {"normalized_shape": 4}, torch.float64)
    x = torch.randn(4, dtype=torch.float64)
    assert_close(*(torch.func.hessian(lambda x, m=m: m(x).exp().sum())(x) for m in (ours, theirs)))
    assert_close(*(torch.func.jacrev(lambda x, m=m: m(x).exp())(x) for m in (ours, theirs)))


def test_swiglu(formulas: list[str]) -> None:
    x = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)
    for dim in (-1, 1):
        gate, up = x.chunk(2, dim)
        expected = F.silu(gate) * up
        for found in (nn.SwiGLU(dim)(x), nn.SwiGLU(dim)(gate, up)):
            assert_close(found, expected)
            pairs = [torch.autograd.grad(y.sum(), x, retain_graph=True) for y in (found, expected)]
            assert_close(*pairs)
    assert repr(nn.SwiGLU(1)) == "SwiGLU(dim=1)"
    assert formulas
    with pytest.raises(fusec.ShapeError, match="two halves"):
        nn.SwiGLU(0)(x)
    mixed = nn.SwiGLU()(torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(2, 3))
    assert mixed.dtype == torch.float32


def test_state_and_copies() -> None:
    ours, theirs = pair("LayerNorm", {"normalized_shape": 4}, torch.float32)
    x = torch.randn(2, 4)
    expected = ours(x)
    theirs.load_state_dict(ours.state_dict())
    buffer = io.BytesIO()
    torch.save(ours, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), loaded, theirs):
        assert_close(other(x), expected)
    assert ours.double()(x.double()).dtype == torch.float64
    ours.eps = 10.0
    assert_close(ours(x.double()), F.layer_norm(x.double(), (4,), ours.weight, ours.bias, 10.0))


def test_formula() -> None:
    swish = nn.Formula("x * sigmoid(beta * x) + shift", {"beta": 1, "shift": torch.zeros(3)})
    assert swish.inputs == ("x",)
    assert repr(swish) == (
        "Formula('x * sigmoid(beta * x) + shift', parameters={'beta': [], 'shift': [3]})"
    )
    x = torch.randn(2, 3)
    assert_close(swish(x), F.silu(x))
    assert_close(swish(x=x), F.silu(x))
    swish(x).sum().backward()
    assert_close(swish.shift.grad, torch.full((3,), 2.0))
    assert sorted(swish.state_dict()) == ["beta", "shift"]
    for other in (copy.deepcopy(swish), pickle.loads(pickle.dumps(swish))):
        other.load_state_dict({"beta": torch.tensor(2.0), "shift": torch.ones(3)})
        assert_close(other(x), x * torch.sigmoid(2 * x) + 1)
    half = nn.Formula("x * a", {"a": 2.0}, dtype=torch.bfloat16, numerics="precise")
    assert half(x.bfloat16()).dtype == torch.bfloat16
    gate = nn.Formula("a * x + y", {"a": 2.0})
    assert gate(torch.ones(2), y=torch.ones(2)).tolist() == [3.0, 3.0]
    for bad in ((torch.ones(2),) * 3, (torch.ones(2),)):
        with pytest.raises(fusec.UnknownNameError):
            gate(*bad)
    with pytest.raises(fusec.UnknownNameError, match="given twice"):
        gate(torch.ones(2), torch.ones(2), x=torch.ones(2))
    with pytest.raises(fusec.UnknownNameError, match="no input 'b'"):
        nn.Formula("x * a", {"b": 1.0})


class Model(torch.nn.Module):
    """Every module once; ``made`` is ``fusec.nn`` or ``torch.nn``."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 8),
            made.LayerNorm(8),
            made.GELU("tanh"),
            torch.nn.Linear(8, 6),
            made.RMSNorm(6),
            made.Softmax(-1),
        )
        self.loss = made.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.loss(self.layers(x), target)
        return loss


@pytest.mark.parametrize("autocast", [False, True])
def test_a_whole_model_in_a_whole_graph(autocast: bool) -> None:
    torch._dynamo.reset()
    ours, theirs = Model(nn), Model(torch.nn)
    ours.load_state_dict(theirs.state_dict())
    inside = torch.compile(ours, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3,) if autocast else (3, 5):
        x, target = torch.randn(rows, 6), torch.randint(6, (rows,))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            found, expected = inside(x, target), theirs(x, target)
        assert_close(found, expected, atol=1e-2 if autocast else 1e-6, rtol=1e-5)
        pairs = zip(
            torch.autograd.grad(found, tuple(ours.parameters())),
            torch.autograd.grad(expected, tuple(theirs.parameters())),
            strict=True,
        )
        for mine, reference in pairs:
            assert_close(mine, reference, atol=2e-2 if autocast else 1e-6, rtol=1e-5)
    if not autocast:
        program = torch.export.export(ours, (x, target), strict=False)
        assert program.graph_module.code.count("fusec.call") == 5


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", [0, 1, 3, 4, 8, 9, 13, 14])
def test_on_a_gpu(case: int, autocast: torch.dtype | None) -> None:
    """The types of PyTorch, under autocast too, and its numbers."""
    name, arguments, shape = CASES[case]
    ours, theirs = (module.cuda() for module in pair(name, arguments, torch.float32))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        if autocast is None:  # PyTorch's norms want weights of the type of x on a GPU
            ours, theirs = ours.to(dtype), theirs.to(dtype)
        x = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
        with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
            found, expected = ours(x), theirs(x)
        room = 4 * torch.finfo(expected.dtype).eps
        assert_close(found, expected, atol=room, rtol=room)
        pairs = [torch.autograd.grad(y.float().pow(2).sum(), x) for y in (found, expected)]
        assert_close(*pairs, atol=0.05 if dtype != torch.float32 or autocast else 1e-4, rtol=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("arguments", LOSSES[1:-1], ids=lambda a: "-".join(a))
def test_cross_entropy_on_a_gpu(arguments: dict[str, Any]) -> None:
    options = dict(arguments)
    if options.pop("weight", False):
        options["weight"] = torch.rand(1000, dtype=torch.float64)
    ours = nn.CrossEntropyLoss(**options).cuda()
    theirs = torch.nn.CrossEntropyLoss(**options).cuda()
    x = torch.randn(64, 1000, dtype=torch.float64, device="cuda", requires_grad=True)
    compare(ours, theirs, x, torch.randint(1000, (64,), device="cuda"))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        half, target = x.detach().bfloat16(), torch.randint(1000, (64,), device="cuda")
        if "weight" not in options:
            found = ours(half, target)  # PyTorch's own rounds the logarithms to 16 bits
            assert found.dtype == theirs(half, target).dtype
            assert_close(found.double(), theirs(half.double(), target), atol=1e-4, rtol=1e-4)
    outside = torch.full((64,), 1000, device="cuda")
    assert ours(x, outside).isnan().all()
