"""Memory layouts in every backend: broadcasting, strides, views, empty tensors, gathers; and no
input is ever copied.
"""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch

import fusec
from fusec.errors import FusecError, ShapeError, UnsupportedError
from fusec.runtime import launcher
from tests.oracle import CPP, INTERPRETER, Backend, dtype_of, on_every_backend, same


def numbered(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small distinct numbers that every type here holds exactly."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7) % 101 - 50).reshape(shape).to(dtype)


# -- broadcasting -----------------------------------------------------------------------------

_SHAPES = [
    (),
    (1,),
    (6,),
    (1, 6),
    (4, 1),
    (4, 6),
    (1, 1),
    (3, 4, 6),
    (3, 1, 6),
    (3, 4, 1),
    (3, 1, 1),
    (1, 4, 6),
]


@on_every_backend
def test_every_pair_of_broadcast_shapes(backend: Backend) -> None:
    function = backend.compile("a * 2 + b, a < b")
    for left, right in itertools.product(_SHAPES, _SHAPES):
        a, b = numbered(*left), numbered(*right) + 3
        total, below = function(backend.place(a), backend.place(b))
        same(total.cpu(), a * 2 + b, f"{left} {right}")
        same(below.cpu(), a < b, f"{left} {right}")


@on_every_backend
def test_broadcasts_of_three(backend: Backend) -> None:
    a, b, c = numbered(5, 1, 7), numbered(6, 1), numbered(2, 1, 1, 1)
    same(backend.one("a + b * c", a, b, c), a + b * c)
    same(backend.one("where(a < b, c, a)", a=a, b=b, c=c), torch.where(a < b, c, a))


@pytest.mark.parametrize("shapes", [((3, 4), (4, 3)), ((2,), (3,)), ((2, 3), (2,)), ((0,), (2,))])
def test_shapes_that_do_not_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    function = fusec.compile("a + b")
    with pytest.raises(ShapeError):
        function(*(torch.ones(s) for s in shapes))
    function(torch.ones(3, 4), torch.ones(3, 4))
    with pytest.raises(ShapeError):
        function(torch.ones(3, 4), torch.ones(3, 5))


# -- strides ----------------------------------------------------------------------------------


def layouts() -> dict[str, torch.Tensor]:
    """Tensors of rank 0 to 5 in every kind of layout."""
    x, cube = numbered(12, 20), numbered(6, 4, 10)
    image = numbered(2, 3, 5, 4)
    five = numbered(2, 3, 4, 5, 6)
    return {
        "contiguous": x,
        "transposed": x.t(),
        "stepped": x[:, ::3],
        "stepped rows": x[::2],
        "stepped both": x[1::2, 2::5],
        "offset": x[3:, 5:],
        "one element in": numbered(241)[1:].reshape(12, 20),
        "expanded rows": x[:1].expand(9, 20),
        "expanded columns": x[:, :1].expand(12, 7),
        "expanded whole": numbered(1, 1).expand(5, 6),
        "row of a matrix": x[4],
        "column of a matrix": x[:, 4],
        "diagonal": x[:12, :12].diagonal(),
        "windows": numbered(30).unfold(0, 5, 2),
        "0-d": x[2, 3],
        "1 x 1": x[2:3, 3:4],
        "cube": cube.permute(2, 0, 1),
        "cube stepped": cube[::2, :, ::3],
        "cube expanded in the middle": cube[:, :1].expand(6, 5, 10),
        "channels last": image.contiguous(memory_format=torch.channels_last),
        "channels last slice": image.contiguous(memory_format=torch.channels_last)[:, 1:],
        "five reversed": five.permute(4, 3, 2, 1, 0),
        "five mixed": five.permute(3, 0, 4, 1, 2),
        "five sliced": five[:, 1:, ::2, 1:4, ::3].permute(1, 0, 2, 4, 3),
    }


@on_every_backend
@pytest.mark.parametrize("name", layouts())
def test_layouts_alone_and_beside_others(backend: Backend, name: str) -> None:
    x = layouts()[name]
    other = numbered(*x.shape) - 1
    turned = numbered(*reversed(x.shape)).permute(tuple(range(x.ndim - 1, -1, -1)))
    row = numbered(*x.shape[-1:])
    values = [x, other, turned, row]
    before = [v.clone() for v in values]
    results = backend.run(
        "x * 3 + 1, x + other * turned, x - row, where(x > 0, turned, x)", *values
    )
    expected = [x * 3 + 1, x + other * turned, x - row, torch.where(x > 0, turned, x)]
    for actual, right in zip(results, expected, strict=True):
        same(actual, right, name)
    for value, kept in zip(values, before, strict=True):
        assert torch.equal(value, kept), "an input was written to"


@on_every_backend
@pytest.mark.parametrize("name", ["int8", "bool", "float16", "float64", "int64"])
def test_element_sizes_in_strided_layouts(backend: Backend, name: str) -> None:
    x = numbered(9, 14).to(dtype_of(name))
    for view in (x, x.t(), x[:, 1::2], x[1:, 3:], x[:1].expand(5, 14)):
        same(backend.one("x == y", view, view.clone()), view == view, name)
        same(backend.one("where(c, x, y)", c=view != 0, x=view, y=view.t().t()), view, name)


@on_every_backend
def test_one_tensor_given_twice_in_two_layouts(backend: Backend) -> None:
    x = backend.place(numbered(8, 8))
    function = backend.compile("a - b * 2, sum(a * b)")
    difference, total = function(x, x.t())
    same(difference.cpu(), (x - x.t() * 2).cpu())
    same(total.cpu(), (x * x.t()).sum(-1).cpu())


@on_every_backend
def test_dense_outputs_keep_the_layout_of_their_input(backend: Backend) -> None:
    if backend.name == "torch":
        pytest.skip("the reference returns contiguous tensors")
    function = backend.compile("x * 2, x + y")
    image = numbered(2, 3, 5, 4)
    dense = [
        image,
        image.contiguous(memory_format=torch.channels_last),
        numbered(4, 6).t(),
        numbered(2, 3, 4).permute(1, 2, 0),
        numbered(2, 3, 4, 5, 6).permute(4, 0, 3, 1, 2),
    ]
    for x in dense:
        for result in function(backend.place(x), backend.place(numbered(*x.shape))):
            assert result.stride() == x.stride()
    for x in (numbered(6, 8)[:, ::2], numbered(6, 1).expand(6, 4)):
        for result in function(backend.place(x), backend.place(x)):
            assert result.is_contiguous()


@pytest.mark.parametrize("backend", [CPP, INTERPRETER], ids=str)
def test_no_input_is_copied(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """No layout makes a call copy an input, neither the first nor a later one."""
    function = backend.compile("x + y, sum(x)")
    views = [v for v in layouts().values() if v.ndim]
    forbidden = ("contiguous", "clone", "copy_", "to", "reshape", "float", "flatten")
    launcher.wait(60)  # else some call loads it, which makes tensors of its own

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an input was copied")

    with monkeypatch.context() as patch:
        for name in forbidden:
            patch.setattr(torch.Tensor, name, refuse)
        results = [function(v, v)[0] for v in views for _ in range(2)]
    for position, view in enumerate(views):
        same(results[2 * position], view + view)
        assert results[2 * position].data_ptr() != results[2 * position + 1].data_ptr()


# -- zero-size --------------------------------------------------------------------------------


@on_every_backend
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 4), (0, 0)])
def test_empty_tensors_give_empty_results(backend: Backend, shape: tuple[int, ...]) -> None:
    x = torch.empty(shape)
    doubled, below, joined = backend.run("x * 2, x < 1, x + row", x, torch.ones(1))
    assert doubled.shape == below.shape == joined.shape == x.shape
    assert below.dtype is torch.bool
    assert doubled.dtype is torch.float32


# -- positions and lengths --------------------------------------------------------------------


@on_every_backend
@pytest.mark.parametrize("turned", [False, True])
def test_index_and_size(backend: Backend, turned: bool) -> None:
    x = numbered(3, 4, 5)
    if turned:
        x = x.permute(2, 0, 1)
    n = x.shape
    text = (
        "x * 0 + index(-1), x * 0 + index(0) * 10 + index(1), "
        "where(index(-1) <= index(-2), x, -inf), "
        "x * 0 + size(-1) * size(0), index(x, 1) - size(x, 1), i32(index(-1)) + x * 0"
    )
    last, lead, causal, sizes, alone, narrow = backend.run(text, x)
    i, j, k = (torch.arange(m) for m in n)
    same(last, (x * 0 + k))
    same(lead, x * 0 + (i * 10)[:, None, None] + j[:, None])
    same(causal, torch.where(k <= j[:, None], x, -torch.inf))
    same(sizes, x * 0 + n[2] * n[0])
    same(alone, (j - n[1])[:, None] if alone.ndim == 2 else (j - n[1]))
    same(narrow, x * 0 + k)


@on_every_backend
@pytest.mark.parametrize("index", ["int64", "int32", "int16", "uint8"])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32"])
def test_gather(backend: Backend, name: str, index: str) -> None:
    """x[t] in many layouts; beyond a row NaN (0 for integers), and a negative position is beyond
    it.
    """
    dtype = dtype_of(name)
    x = numbered(6, 10).to(dtype)
    t = torch.tensor([0, 9, 3, 10, 100, 5]).to(dtype_of(index))
    if index != "uint8":
        t[2] = -1
    missing = float("nan") if dtype.is_floating_point else 0
    wide = t.long()
    inside = (wide >= 0) & (wide < 10)
    views = [x, x.t().contiguous().t(), numbered(6, 20).to(dtype)[:, ::2], x[:1].expand(6, 10)]
    for view in views:
        picked = view.gather(1, wide.clamp(0, 9)[:, None])[:, 0]
        expected = torch.where(inside, picked, torch.tensor(missing, dtype=dtype))
        for positions in (t, t.repeat_interleave(2)[::2]):
            same(backend.one("x[t]", view, positions), expected, str(view.stride()))


@on_every_backend
def test_gather_among_other_work(backend: Backend) -> None:
    x, t = numbered(3, 4, 70), (torch.arange(12).reshape(3, 4) * 5)
    w = numbered(70)
    picked = x.gather(-1, t[..., None])[..., 0]
    whole, scaled, shifted = backend.run("x[t] + max(x), (x * w)[t], x - x[t]", x=x, t=t, w=w)
    same(whole, picked + x.amax(-1))
    same(scaled, picked * w[t])
    same(shifted, x - picked[..., None])
    same(backend.one("w[t] * 2", w, torch.tensor(5)), w[5] * 2)


@on_every_backend
def test_gather_from_an_empty_row(backend: Backend) -> None:
    result = backend.one("x[t]", torch.empty(3, 0), torch.zeros(3, dtype=torch.int64))
    assert result.isnan().all()
    assert result.shape == (3,)


def test_gather_needs_integers_of_the_right_rank() -> None:
    function = fusec.compile("x[t]")
    with pytest.raises(FusecError):
        function(torch.ones(3, 4), torch.ones(3))
    with pytest.raises(FusecError):
        function(torch.ones(3, 4), torch.ones(4, dtype=torch.int64))


# -- offsets beyond 32 bits -------------------------------------------------------------------


@on_every_backend
def test_strides_that_reach_beyond_32_bits(backend: Backend) -> None:
    """Offsets of more than 2^31 elements need int64: two rows far apart in a mapping that is never
    filled.
    """
    if backend.is_cuda:
        far = torch.empty(2**31 + 4096, dtype=torch.uint8, device="cuda")
    else:
        far = torch.empty(2**31 + 4096, dtype=torch.uint8)
    if backend == INTERPRETER:
        pytest.skip("the interpreter copies the memory between the rows")
    x = far.as_strided((2, 64), (2**31, 1))
    x[0], x[1] = 1, 2
    function = fusec.compile("x + 1, sum(x)", backend=backend.name)
    more, total = function(x)
    same(more.cpu(), torch.tensor([[2] * 64, [3] * 64], dtype=torch.uint8))
    same(total.cpu(), torch.tensor([64, 128]))


@on_every_backend
def test_a_view_that_pytorch_negates_when_it_reads_it(backend: Backend) -> None:
    x = torch.tensor([1 + 2j, 3 - 4j], device=backend.device).conj().imag
    assert x.is_neg()
    function = fusec.compile("x + 1", backend=backend.name)
    same(function(x).cpu(), torch.tensor([-1.0, 5.0]))
    function(torch.ones(2, device=backend.device), out=x)
    same(x.cpu().resolve_neg(), torch.tensor([2.0, 2.0]))
    same(function.bind(x)().cpu(), torch.tensor([3.0, 3.0]))


def test_tensors_without_memory_of_their_own_are_refused() -> None:
    function = fusec.compile("x + 1")
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(UnsupportedError, match="not a plain tensor"):
        function(nested)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors")
        strided = [torch.nested.nested_tensor([torch.ones(2), torch.ones(n)]) for n in (2, 3)]
    for like in strided:
        with pytest.raises(UnsupportedError, match="is a nested tensor"):
            function(like)
    with pytest.raises(UnsupportedError, match="vmap"):
        torch.func.vmap(fusec.compile(lambda x: x + 1))(torch.ones(2, 3))


@on_every_backend
def test_positions_along_an_axis_of_length_one(backend: Backend) -> None:
    for shape in ((1, 1), (1, 3), (2, 1), (2, 3)):
        x = torch.zeros(shape)
        whole, last, first = backend.run("x + 0, index(-1), index(-2) + x", x)
        assert whole.shape == shape
        assert last.tolist() == list(range(shape[1]))
        assert torch.equal(first.cpu(), torch.arange(shape[0]).float()[:, None].expand(shape))
        (at,) = backend.run("argmin(index(-2) + i64(x), axis=-2)", x)
        assert at.tolist() == [0] * shape[1]


@pytest.mark.parametrize(
    ("formula", "tile"),
    [("exp(x - m) * g", "1 x 4096"), ("x + m", "1 x 2048"), ("x * 2 + m - m^2", "1 x 2048")],
)
def test_tiles_are_wider_where_several_values_of_a_row_come_first(formula: str, tile: str) -> None:
    x, row = (torch.empty(64, n, dtype=torch.bfloat16, device="meta") for n in (32768, 1))
    function = fusec.compile(formula, backend="triton")
    examples = [x if name == "x" else row for name in function.inputs]
    assert f"tile {tile}, 4 warps" in function.show("kernel", *examples)
