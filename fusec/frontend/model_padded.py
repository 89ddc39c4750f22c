"""Matrix products over odd lengths, with rows and columns of zeros, as those of even lengths.

A GPU multiplies matrices of 16 bits through wide loads. Where rows begin between those, as over the
50257 words of GPT-2, a product takes up to seven times as long, on an H200. May import
``model_alike``, ``model_calls`` and ``model_nodes`` of the frontend; torch inside functions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fusec.frontend.model_alike import is_tensor
from fusec.frontend.model_calls import STAYS, VIEWS
from fusec.frontend.model_nodes import hint, is_pointwise, name_of, new_node, value_of

EVEN = 8  # elements of 16 bits in a wide load
DEVICE = "cuda"
# Operations in a second on an H200: where rows begin anywhere, at even elements, and as loads do
# (4096 x 1024 by 1024 x 50257, 50258, 50260 and 50264: 4.49, 1.70, 1.70 and 0.66 ms).
# Bytes in a second of a copy that lays rows out anew, and seconds of one more launch.
_ODD_RATE, _HALF_RATE, _EVEN_RATE = 1.0e14, 2.5e14, 6.0e14
_COPY_RATE, _LAUNCH = 1.5e12, 1e-5
# Beside what is pointwise: others may ask where elements lie, or lay their results out as these do.
_OF_ELEMENTS = (
    "sum", "mean", "amax", "amin", "argmax", "argmin", "var", "logsumexp", "_softmax",
    "_log_softmax", "_to_copy", "mm", "addmm", "gather",
)  # fmt: skip
_TRANSPOSES = ("t", "transpose", "permute", "numpy_T")


def pad_products(graph: Any) -> None:
    """Let the products of a graph over aten, each node of which has a value, be of even lengths
    where that pays. What leaves the graph is laid out as before.
    """
    pads = _Pads(graph)
    for node in list(graph.nodes):
        product = _product(node)
        if product is not None and product.pays:
            pads.replace(node, product)


@dataclass(frozen=True, slots=True)
class _Product:
    """``left @ right + bias``: its lengths, and how many elements each lacks to be even."""

    left: Any
    right: Any
    bias: Any
    lengths: tuple[int, int, int]  # rows, what is added up, columns
    short: tuple[int, int, int]

    @property
    def pays(self) -> bool:
        """Whether the copies take less time than the even lengths save."""
        if not any(self.short):
            return False
        (m, k, n), (rows, inner, columns) = self.lengths, self.short
        odd = any(s % 2 for s in self.short)
        operations = 2 * m * k * n
        gain = operations / (_ODD_RATE if odd else _HALF_RATE) - operations / _EVEN_RATE
        moved = [(m * k, rows or inner), (k * n, inner or columns), (m * n, columns)]
        copied = [size for size, is_copied in moved if is_copied]
        return gain > 2 * _LAUNCH * len(copied) + 4 * sum(copied) / _COPY_RATE


def _product(node: Any) -> _Product | None:
    import torch

    aten = torch.ops.aten
    if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return None
    *first, left, right = node.args
    values = [value_of(n) for n in (left, right, *first)]
    if not all(map(_is_half, values)) or (first and values[-1].dim() != 1):
        return None
    m, (k, n) = values[0].shape[0], values[1].shape
    # The rows of a matrix that lies transposed are as long as it has rows.
    along = (m if _base(left) is not None else EVEN, k, n)
    rows, inner, columns = (-s % EVEN if isinstance(s, int) else 0 for s in along)
    lengths = (hint(m), hint(k), hint(n))
    return _Product(left, right, first[0] if first else None, lengths, (rows, inner, columns))


def _is_half(value: Any) -> bool:
    """Whether a value is a matrix, or a bias, of 16 bits on a GPU."""
    import torch

    kind = getattr(value, "dtype", None)
    return kind in (torch.float16, torch.bfloat16) and value.device.type == DEVICE


def _reads_elements(node: Any) -> bool:
    """Whether an operator gives the same, laid out alike, wherever the elements of a tensor lie."""
    return is_pointwise(node.target) or name_of(node) in _OF_ELEMENTS


def _leaves(node: Any) -> bool:
    """Whether a tensor, or a view of it, is a result of the graph."""
    return any(
        user.op == "output" or (name_of(user) in VIEWS and _leaves(user)) for user in node.users
    )


def _base(node: Any) -> Any:
    """The matrix that ``node`` is the transpose of, if it is one."""
    if name_of(node) not in _TRANSPOSES or value_of(node).dim() != 2:
        return None
    if list(node.args[1:]) not in ([], [[1, 0]], [0, 1], [1, 0]):
        return None
    base = node.args[0]
    return base if value_of(base).stride()[-1] == 1 else None


@dataclass(slots=True)
class _Pads:
    """Rewrites one graph. A matrix with its zeros is made once for all who read it."""

    graph: Any
    _made: dict[tuple[Any, int, int], Any] = field(default_factory=dict)

    def replace(self, node: Any, product: _Product) -> None:
        """The product of even lengths, and of it what was asked for."""
        import torch

        aten = torch.ops.aten
        rows, inner, columns = product.short
        with self.graph.inserting_before(node):
            left = self._padded(product.left, rows, inner)
            right = self._padded(product.right, inner, columns)
            bias = [] if product.bias is None else [product.bias]
            if bias and columns and value_of(bias[0]).shape[0] == product.lengths[2]:
                bias = [self._call(aten.constant_pad_nd.default, *bias, [0, columns])]
            part = self._call(node.target, *bias, left, right)
            if rows:
                part = self._call(aten.slice.Tensor, part, 0, 0, product.lengths[0])
            whole = part
            if columns:
                part = self._call(aten.slice.Tensor, part, 1, 0, product.lengths[2])
                whole = self._call(aten.clone.default, part)
                whole.meta[STAYS] = "it lays out a product anew"
        whole.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(whole)
        self.graph.erase_node(node)
        if whole is not part and not _leaves(whole):
            self._read_in_place(whole, part)

    def _padded(self, node: Any, rows: int, columns: int) -> Any:
        """A matrix with as many rows and columns of zeros behind its own."""
        import torch

        aten = torch.ops.aten
        if not rows and not columns:
            return node
        if (node, rows, columns) not in self._made:
            base = _base(node)
            if base is not None:
                made = self._call(aten.t.default, self._padded(base, columns, rows))
            else:
                made = self._call(aten.constant_pad_nd.default, node, [0, columns, 0, rows])
            self._made[node, rows, columns] = made
        return self._made[node, rows, columns]

    def _read_in_place(self, whole: Any, part: Any) -> None:
        """Let operators, behind views or not, read ``part`` instead of its copy ``whole``, which
        then goes. Where the copy has to be made it is read: its rows begin where those of results
        do.
        """
        for user in list(whole.users):
            if name_of(user) not in VIEWS:
                if _reads_elements(user):
                    user.replace_input_with(whole, part)
                continue
            view = self._view(user, part)
            if view is not None:
                self._read_in_place(user, view)
                self._erase_unused(view)
        self._erase_unused(whole)

    def _view(self, node: Any, part: Any) -> Any:
        """The same view of ``part``, which lies otherwise; None if there is none."""
        if not is_tensor(value_of(node)):  # of several
            return None
        with self.graph.inserting_before(node):
            try:
                return self._call(node.target, part, *node.args[1:], **node.kwargs)
            except (RuntimeError, ValueError):  # of axes that are no longer one
                return None

    def _erase_unused(self, node: Any) -> None:
        if not node.users:
            self.graph.erase_node(node)

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        return new_node(self.graph, target, args, kwargs)
