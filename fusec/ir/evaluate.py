"""Reference evaluator over a torch module that is passed in: what a graph means, slowly.

Each node computes in its compute type (float32 for 16-bit floats) and rounds at casts and outputs,
as every backend does; with ``precision="float64"`` floats compute in float64 throughout and stay
so, which makes it the oracle.

May import ``fusec.errors`` and ``fusec.ir``; never torch itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from fusec.errors import FusecError, InternalError, ShapeError
from fusec.ir.dtypes import F64, DType
from fusec.ir.graph import Graph, InputSpec, Output
from fusec.ir.node import Dim, Node, Shape
from fusec.ir.ops import Kind

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = "Tensor | int | float | bool"


def evaluate(
    graph: Graph,
    arrays: Mapping[str, Array],
    torch: ModuleType,
    precision: str | None = None,
    *,
    track: bool = False,
    known: Mapping[str, int] | None = None,
) -> list[Tensor]:
    """The outputs of ``graph``, fresh and squeezed, for inputs by name; scalar inputs are numbers.

    With ``precision="float64"`` float outputs are float64, and casts round only where the formula
    asks for a type that is narrower than its operand. ``track`` lets PyTorch record the operations
    for its own gradients. ``known`` has lengths that no input shows. Raises ShapeError where shapes
    disagree with each other or with the graph, or where a maximum runs over an axis of length 0.
    """
    if precision not in (None, "float64"):
        raise FusecError(f"precision must be None or 'float64', not {precision!r}")
    sizes = {**(known or {}), **lengths(graph.inputs, arrays)}
    check_nonempty(graph, sizes)
    run = _Run(torch, arrays, sizes, precision == "float64", track)
    return run.outputs(graph)


def lengths(specs: tuple[InputSpec, ...], arrays: Mapping[str, Array]) -> dict[str, int]:
    """The length of each Dim by name; raises ShapeError where the inputs disagree."""
    sizes: dict[str, int] = {}
    for spec in specs:
        if spec.name not in arrays:
            raise ShapeError(f"no value for the input '{spec.name}'")
        value = arrays[spec.name]
        if spec.scalar:
            continue
        shape = tuple(getattr(value, "shape", ()))
        if len(shape) != len(spec.shape):
            raise ShapeError(
                f"{spec.name} has rank {len(shape)}, and the graph is for rank {len(spec.shape)}"
            )
        for extent, length in zip(spec.shape, shape, strict=True):
            expected = sizes.setdefault(extent.name, length) if isinstance(extent, Dim) else extent
            if expected != length:
                raise ShapeError(f"{spec.name} is {list(shape)}, and {extent} is {expected}")
    return sizes


def check_nonempty(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Raise ShapeError where a reduction that needs an element has none."""
    for rule in graph.nonempty:
        if sizes.get(rule.dim.name) == 0:
            raise ShapeError(
                f"{rule.function} over an axis of length 0 ({rule.dim})",
                source=graph.source,
                span=rule.span,
                hint="it has no value there; sum, prod, mean and logsumexp have",
            )


class _Run:
    """One evaluation."""

    def __init__(
        self,
        torch: ModuleType,
        arrays: Mapping[str, Array],
        sizes: Mapping[str, int],
        wide: bool,
        track: bool = False,
    ) -> None:
        self.track = track
        self.torch: Any = torch
        self.arrays = arrays
        self.sizes = sizes
        self.wide = wide
        tensors = (a for a in arrays.values() if isinstance(a, torch.Tensor))
        self.device = next((t.device for t in tensors), torch.device("cpu"))
        self._leaves: dict[str, Callable[[Node, list[Any]], Any]] = {
            "input": self._input,
            "constant": self._constant,
            "index": self._index,
            "size": self._size,
            "cast": self._cast,
            "gather": self._gather,
        }

    def outputs(self, graph: Graph) -> list[Tensor]:
        order = graph.nodes()
        uses = Counter(a for node in order for a in node.args)
        uses.update(o.node for o in graph.outputs)
        values: dict[Node, Any] = {}
        for node in order:
            values[node] = self.node(node, [values[a] for a in node.args])
            for argument in node.args:
                uses[argument] -= 1
                if not uses[argument]:
                    del values[argument]
        return [self._output(o, values[o.node]) for o in graph.outputs]

    def node(self, node: Node, args: list[Any]) -> Any:
        """The value of one node, in its compute type."""
        leaf = self._leaves.get(node.op.name)
        if leaf is not None:
            return leaf(node, args)
        if node.op.kind is Kind.REDUCTION:
            return self._reduce(node, args[0])
        target = self._compute(node.dtype)
        if not node.dtype.is_bool:  # an operand may come in the compute type of the operation
            args = [a if a.dtype is self.torch.bool else a.to(target) for a in args]
        if node.op.name in ("floor_divide", "remainder", "fmod") and node.dtype.is_integer:
            return self._divide_integers(node, *args)
        if node.op.name in ("remainder", "fmod"):
            return self._float_remainder(node, *args)
        reference = node.op.torch
        if isinstance(reference, str):
            return getattr(self.torch, reference)(*args).to(target)
        return reference(self.torch, *args).to(target)

    def _output(self, output: Output, value: Any) -> Any:
        dtype = output.node.dtype
        kept = self.wide and dtype.is_float
        value = value if kept else value.to(self._storage(dtype))
        shape = self._lengths(output.node.shape)
        visible = [n for i, n in enumerate(shape) if i - len(shape) not in output.squeeze]
        fresh = value.expand(shape).clone(memory_format=self.torch.contiguous_format)
        return fresh.reshape(visible)

    def _compute(self, dtype: DType) -> Any:
        if dtype.is_float:
            return self._storage(F64 if self.wide else dtype.compute)
        return self._storage(dtype)

    def _storage(self, dtype: DType) -> Any:
        return getattr(self.torch, dtype.torch)

    def _lengths(self, shape: Shape) -> tuple[int, ...]:
        return tuple(self.sizes[e.name] if isinstance(e, Dim) else e for e in shape)

    def _input(self, node: Node, args: list[Any]) -> Any:
        value = self.arrays[node.name]
        if not isinstance(value, self.torch.Tensor):
            value = self.torch.tensor(value, dtype=self._storage(node.dtype), device=self.device)
        value = (value if self.track else value.detach()).to(self._compute(node.dtype))
        unsqueezed = node.attribute("unsqueezed")
        assert isinstance(unsqueezed, int)
        return value.reshape(value.shape + (1,) * unsqueezed)

    def _constant(self, node: Node, args: list[Any]) -> Any:
        return self.torch.full((), node.value, dtype=self._compute(node.dtype), device=self.device)

    def _index(self, node: Node, args: list[Any]) -> Any:
        shape = self._lengths(node.shape)
        positions = self.torch.arange(shape[0], device=self.device)
        return positions.reshape(shape)

    def _size(self, node: Node, args: list[Any]) -> Any:
        length = self.sizes[str(node.attribute("dim"))]
        return self.torch.full((), length, dtype=self.torch.int64, device=self.device)

    def _cast(self, node: Node, args: list[Any]) -> Any:
        source, target = node.args[0].dtype, node.dtype
        value = args[0]
        if self.wide and source.is_float and target.is_float and target.bits > source.bits:
            return value
        if self.wide and not source.is_float and target.is_float and target.bits >= 32:
            return value.to(self.torch.float64)
        return value.to(self._storage(target)).to(self._compute(target))

    def _gather(self, node: Node, args: list[Any]) -> Any:
        x, t = args
        lead = self._lengths(node.shape[:-1])
        x = x.expand(*lead, x.shape[-1])
        t = t.to(self.torch.int64).expand(*lead, 1)
        last = x.shape[-1]
        missing = float("nan") if node.dtype.is_float else 0
        if last == 0:
            return self.torch.full_like(t, missing, dtype=x.dtype)
        found = self.torch.gather(x, -1, t.clamp(0, last - 1))
        return self.torch.where((t >= 0) & (t < last), found, missing).to(x.dtype)

    def _divide_integers(self, node: Node, a: Any, b: Any) -> Any:
        """Division by zero gives 0, as in every backend; PyTorch differs by device.

        The lowest number by -1 wraps, and by the processor's own division it would end the process.
        """
        torch = self.torch
        zero, minus = b == 0, b.to(torch.int64) == -1
        result = getattr(torch, str(node.op.torch))(a, torch.where(zero | minus, 1, b).to(b.dtype))
        if node.op.name == "floor_divide":  # the remainders by -1 and by 1 are both 0
            result = torch.where(minus, -result, result)
        return torch.where(zero, 0, result).to(result.dtype)

    def _float_remainder(self, node: Node, a: Any, b: Any) -> Any:
        """fmod, which is exact, and with the sign of ``b`` the remainder.

        PyTorch's own of either gives NaN on the CPU where a / b overflows.
        """
        torch = self.torch
        a, b = torch.broadcast_tensors(a, b)
        rest = torch.fmod(a, b)
        lost = rest.isnan() & a.isfinite() & (b != 0) & ~b.isnan()
        if lost.any():
            pairs = zip(a[lost].tolist(), b[lost].tolist(), strict=True)
            exact = [math.fmod(x, y) for x, y in pairs]
            rest[lost] = torch.tensor(exact, dtype=rest.dtype, device=rest.device)
        if node.op.name == "fmod":
            return rest
        moved = (rest != 0) & ((b < 0) != (rest < 0))
        return torch.where(moved, rest + b, rest)

    def _reduce(self, node: Node, value: Any) -> Any:
        axes = node.axes
        value = value.expand(self._lengths(node.args[0].shape)).to(self._compute(node.dtype))
        name = node.op.name
        if any(value.shape[a] == 0 for a in axes):
            shape = [1 if i - value.ndim in axes else n for i, n in enumerate(value.shape)]
            identity = node.op.identity
            if identity is None:
                raise InternalError(f"the reduction {name} has no identity")
            return self.torch.full(
                shape,
                identity(node.dtype) if node.op.empty is None else node.op.empty,
                dtype=value.dtype,
                device=value.device,
            )
        if name == "sum":
            return self.torch.sum(value, dim=axes, keepdim=True)
        if name == "prod":
            for axis in axes:
                value = self.torch.prod(value, dim=axis, keepdim=True)
            return value
        result = getattr(self.torch, str(node.op.torch))(value, dim=axes, keepdim=True)
        if name == "mean" and result.isinf().any():  # where the plain sum overflows
            scaled = self.torch.sum(value / (value.numel() // result.numel()), axes, keepdim=True)
            result = self.torch.where(result.isinf(), scaled, result)
        return result
