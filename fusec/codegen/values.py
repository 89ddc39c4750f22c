"""Nodes to expressions and statements: names, parameters, loads and bindings of one kernel.

A value gets a name when it is used twice, when the user gave it one, when it is constant along the
columns, or when the expression that holds it would grow past ``INLINE_LIMIT`` operations; else it
is written where it is used.

May import ``fusec.ir``, ``fusec.passes.fuse``, ``codegen.kernel``, ``codegen.layout`` and
``codegen.names``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fusec.codegen.cuda_helpers import words
from fusec.codegen.job import CUDA
from fusec.codegen.kernel import (
    Access,
    Apply,
    Convert,
    Expr,
    Form,
    Let,
    Level,
    Literal,
    Load,
    Number,
    Pointer,
    Ref,
    Stmt,
    Store,
    Term,
)
from fusec.codegen.layout import Operand, region_nodes
from fusec.codegen.parameters import Parameters
from fusec.codegen.precision import widened
from fusec.ir.dtypes import BOOL, I32, I64, DType
from fusec.ir.node import Dim, Node
from fusec.ir.ops import OPS, Kind
from fusec.passes.fuse import Root, reduction_name

INLINE_LIMIT = 5  # operations one printed expression may hold
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(slots=True)
class Values(Parameters):
    """The state of one lowering: what has a name, what is at hand, which parameters exist."""

    at_hand: dict[Node, Expr] = field(default_factory=dict)
    blocks: list[tuple[str, DType]] = field(default_factory=list)
    staged: dict[int, Load] = field(default_factory=dict)  # by operand
    again: set[str] = field(default_factory=set)  # results of earlier kernels that are read
    _uses: dict[Node, int] = field(default_factory=dict)
    _weight: dict[Node, int] = field(default_factory=dict)
    _names: dict[Node, str] = field(default_factory=dict)
    _operand: dict[Node, int] = field(default_factory=dict)
    _lifted: set[Node] = field(default_factory=set)  # constant along the columns, used in them
    _bare: set[Node] = field(default_factory=set)  # numbers that something other than a cast uses
    _widened: frozenset[Node] = frozenset()  # of 16 bits, and seen at full precision

    def __post_init__(self) -> None:
        region = self.job.region
        if self.job.target is CUDA:
            self.names.reserve(words())
        self.reads = {node: name for name, node in region.reads}
        self.nodes = region_nodes(region)
        self._widened = widened(self.job.graph, region)
        self._uses = dict.fromkeys(self.nodes, 0)
        for root in region.roots:
            self._uses[root.node] += 1
            self._bare.add(root.node)
        for _, node in region.columns:
            self._uses[node] += 1
            self._bare.add(node)
        for node in self.nodes:
            self.levels[node] = self._level(node)
            for argument in () if node in self.reads else node.args:
                self._uses[argument] += 1
                if self.varies(node) or node.op.kind is Kind.REDUCTION:
                    self._lifted.add(argument)
                if node.op.name != "cast":
                    self._bare.add(argument)
        self._point()

    def _point(self) -> None:
        """A pointer for each buffer that is read or written."""
        for position, operand in enumerate(self.job.accesses):
            written = operand.kind == "root"
            if not written:
                self._operand[operand.node] = position
            if (operand.name, written) not in self.pointers:
                label = self.names.user(f"{operand.name}_ptr")
                pointer = Pointer(label, self._storage(operand), written, operand.name)
                self.pointers[operand.name, written] = pointer

    def _storage(self, operand: Operand) -> DType:
        """Results kept between kernels hold the compute type, so that cutting a program changes no
        value.
        """
        node = operand.node.args[0] if operand.kind == "gather" else operand.node
        if operand.kind == "read":
            return node.dtype.compute
        if operand.kind == "root":
            root = next(r for r in self.job.region.roots if r.name == operand.name)
            return node.dtype if root.output else node.dtype.compute
        return node.dtype

    def _level(self, node: Node) -> Level:
        space, rows = self.job.region.space, self.job.layout.rows
        # A row alone may be laid out as one of several, with the masks that those need.
        lone = {a for group in rows for a in group if space[a] == 1}
        axes = enumerate(node.shape, len(space) - len(node.shape))
        wide = {axis for axis, extent in axes if extent != 1 or axis in lone}
        level = Level.ROW if any(a in wide for group in rows for a in group) else Level.UNIFORM
        if any(a in wide for group in self.job.layout.cols for a in group):
            level |= Level.COL
        return level

    def varies(self, node: Node) -> bool:
        """Whether the value differs along the columns."""
        return Level.COL in self.levels[node]

    def fast(self, node: Node) -> bool:
        """Whether the quick form of a function is accurate enough:

        16-bit results, or the user asked.
        """
        operand = node.args[-1].dtype if node.args else node.dtype
        if self.job.numerics == "fast" and not self.job.target.narrow_fast:
            return True
        narrow = operand.is_float and operand.bits <= 16 and node not in self._widened
        return self.job.numerics != "precise" and narrow

    # -- names and parameters ---------------------------------------------------------------------

    def name(self, node: Node) -> str:
        """The name of a value in the kernel, the same wherever it is computed again."""
        if node not in self._names:
            wanted = self._wanted(node)
            self._names[node] = self.names.user(wanted) if wanted else self.names.temporary()
        return self._names[node]

    def _wanted(self, node: Node) -> str | None:
        if node in self.reads:
            return self.reads[node]
        if node.op.name == "input":
            return node.name
        if node.op.name == "gather":
            return f"{node.args[0].name}_at"
        if node.op.kind is Kind.REDUCTION:
            return self.job.graph.side.names.get(node) or reduction_name(node)
        roots = (root.name for root in self.job.region.roots if root.node is node)
        return self.job.graph.side.names.get(node) or next(roots, None)

    # -- values -----------------------------------------------------------------------------------

    def emit(self, nodes: Iterable[Node], out: list[Stmt]) -> None:
        """Make every one of ``nodes`` (arguments first) available, writing what that takes to
        ``out``.
        """
        for node in nodes:
            if node in self.at_hand:
                continue
            value = self._value(node, out)
            if value is None:
                continue
            if isinstance(value, (Apply, Convert)):
                value = self._bind(node, value, out)
            self.at_hand[node] = value

    def _value(self, node: Node, out: list[Stmt]) -> Expr | None:
        """The expression of one node, or None if something else provides it."""
        if node in self.reads or (node.op.name == "input" and node in self._operand):
            return self._load(node, out)
        match node.op.name:
            case "constant":
                return Literal(node.value, node.dtype.compute)
            case "index":
                return self._index(node)
            case "size":
                dim = str(node.attribute("dim"))
                name = self.size(f"size_{dim.replace('.', '_')}", "dim", dim)
                return self._position(name, Level.UNIFORM)
            case "gather":
                return self._gather(node, out)
            case "cast":  # beside a tensor a cast gives a number the tensor's type
                return self._cast(node)
            case "input":  # a tensor that is only gathered from, or a number
                alone = node.attribute("scalar") and node in self._bare
                return self._number(node, node.dtype) if alone else None
        if node.op.kind is Kind.REDUCTION:
            return None
        args = tuple(self.at_hand[a] for a in node.args)
        operand = node.args[-1].dtype.compute
        if node.op.name in _COMPARISONS and all(_is_position(a) for a in args):
            args, operand = tuple(a.arg for a in args if isinstance(a, Convert)), I32
        return Apply(node.op, args, node.dtype.compute, operand, self.levels[node], self.fast(node))

    def _load(self, node: Node, out: list[Stmt]) -> Expr:
        position = self._operand[node]
        operand = self.job.accesses[position]
        level, stored = self.levels[node], operand.kind == "root"
        access = self.access(position, operand.name, written=stored)
        storage = self.pointers[operand.name, stored].storage
        compute = storage.compute
        tile = self.names.user(f"{operand.name}_tile") if self._is_turned(access) else ""
        load = Load(
            self.name(node),
            access,
            storage,
            compute,
            level,
            self.mask(level),
            tile=tile,
            wide=self.wide(position),
            across=self.across(position),
            staged=self._stage(position),
        )
        if load.staged:
            self.staged.setdefault(position, load)
        out.append(load)
        return Ref(self.name(node), compute, level)

    def read_back(self, root: Root) -> None:
        """Load the value of a root that an earlier kernel has stored, instead of computing it."""
        self.reads[root.node] = root.name
        self._operand[root.node] = self._root_position(root)
        self.again.add(root.name)

    def _stage(self, position: int) -> str:
        """Where blocks that stay keep an operand, if they do."""
        if position not in self.job.config.staged:
            return ""
        if position in self.staged:
            return self.staged[position].staged
        return self.names.user(f"{self.job.accesses[position].name}_kept")

    def _is_turned(self, access: Access) -> bool:
        """Whether a C++ loop over tiles has to read an operand along its rows to read whole lines.

        Rows of several axes are read as they come: their positions cost a division each.
        """
        if self.job.target.masks or self.job.form is not Form.TILE:
            return False
        along = Term("row", 1) in access.terms and len(access.terms) > 1
        return along and self.job.config.block_rows > 1

    def _gather(self, node: Node, out: list[Stmt]) -> Expr:
        """A load at a computed position;

        Outside its row it gives NaN (0 for integers) and touches no memory.
        """
        position = self._operand[node]
        base, level = node.args[0], self.levels[node]
        where = self.at_hand[node.args[1]]
        if not isinstance(where, Ref):
            name = self.names.temporary()
            out.append(Let(name, where, level))
            where = Ref(name, where.dtype, level)
        length = Ref(self._length(base, position), I64, Level.UNIFORM)
        low = Apply(OPS["ge"], (where, Literal(0, where.dtype)), BOOL, where.dtype, level)
        high = Apply(OPS["lt"], (where, length), BOOL, where.dtype, level)
        stride: int | str = 1
        if self.job.layout.gather[position] == "free":
            stride = self.size(f"{base.name}_gather_stride", "gather", position)
        address = self.access(position, base.name, written=False)
        address = Access(address.buffer, (*address.terms, Term(where.name, stride)))
        compute = base.dtype.compute
        other: float | int = float("nan") if compute.is_float else 0
        out.append(
            Load(
                self.name(node),
                address,
                base.dtype,
                compute,
                level,
                self.mask(level),
                (low, high),
                other,
            )
        )
        return Ref(self.name(node), compute, level)

    def _length(self, base: Node, position: int) -> str:
        """The parameter that holds the length of a gathered axis:

        ``cols`` where that is the same axis.
        """
        cols, space = self.job.layout.cols, self.job.region.space
        if self.job.form is Form.ROWS and len(cols) == 1 and len(cols[0]) == 1:
            extent = space[cols[0][0]]
            if isinstance(extent, Dim) and extent == base.shape[-1]:
                return self.size("cols", "cols")
        return self.size(f"{base.name}_length", "length", position)

    def _index(self, node: Node) -> Expr:
        if node.shape[0] == 1:
            return Literal(0, I64)
        axis = len(self.job.region.space) + int(str(node.attribute("axis")))
        layout = self.job.layout
        side = "row" if any(axis in group for group in layout.rows) else "col"
        groups = layout.rows if side == "row" else layout.cols
        variable = self.variable(side, next(k for k, group in enumerate(groups) if axis in group))
        return self._position(variable, self.levels[node])

    def _position(self, name: str, level: Level) -> Expr:
        """An index variable or a size as the int64 it is in the language."""
        if self.job.target.wide_index:
            return Ref(name, I64, level)
        kind = I64 if self.job.config.wide_index else I32
        return Convert(Ref(name, kind, level), I64, level)

    def _cast(self, node: Node) -> Expr:
        """A conversion; to a narrow float it rounds, between equal compute types it is nothing at
        all.
        """
        argument, target = node.args[0], node.dtype
        if argument.op.name == "input" and argument.attribute("scalar"):
            # A launch converts numbers to wider types; from float to integer the kernel does.
            cut = argument.dtype.is_float and not target.is_float
            value = self._number(argument, argument.dtype if cut else target)
        else:
            value = self.at_hand[argument]
        if isinstance(value, Convert) and _is_position(value) and target is not I64:
            value = value.arg
        narrow = target.is_float and target.bits < 32
        if narrow and not self._exact_in(argument, target):
            return Convert(value, target.compute, self.levels[node], through=target)
        if value.dtype is target.compute:
            return value
        return Convert(value, target.compute, self.levels[node])

    def _exact_in(self, argument: Node, target: DType) -> bool:
        """Whether the value already is one of ``target``: loaded from it or rounded to it."""
        return argument.dtype is target and argument.op.name in ("input", "gather", "cast")

    def _number(self, scalar: Node, target: DType) -> Expr:
        key = (scalar.name, target.compute)
        if key not in self.numbers:
            self.numbers[key] = Number(self.names.user(scalar.name), target.compute, scalar.name)
        return Ref(self.numbers[key].name, target.compute, Level.UNIFORM)

    def _bind(self, node: Node, value: Expr, out: list[Stmt]) -> Expr:
        """Name ``value`` if it deserves one."""
        level = self.levels[node]
        weight = 1 + sum(self._weight.get(a, 0) for a in node.args)
        named = node in self.job.graph.side.names
        if _is_position(value) and not named:
            return value
        lifted = self.job.form is Form.ROWS and Level.COL not in level and node in self._lifted
        if not (named or lifted or self._uses[node] > 1 or weight > INLINE_LIMIT):
            self._weight[node] = weight
            return value
        self._weight[node] = 0
        out.append(Let(self.name(node), value, level))
        return Ref(self.name(node), value.dtype, level)

    def store(self, roots: Iterable[Root], work: list[Stmt], out: list[Stmt]) -> None:
        """Write each root to its buffer;

        An expression gets the name of the result first, in ``work``.
        """
        for root in roots:
            level = self.levels[root.node]
            position = self._root_position(root)
            access = self.access(position, root.name, written=True)
            storage = self.pointers[root.name, True].storage
            value = self.at_hand[root.node]
            if not isinstance(value, (Ref, Literal)):
                work.append(Let(self.name(root.node), value, level))
                value = self.at_hand[root.node] = Ref(self.name(root.node), value.dtype, level)
            block = self._block(root, access, storage)
            mask, wide = self.mask(level), self.wide(position)
            out.append(Store(access, value, storage, level, mask, block, wide))

    def _block(self, root: Root, access: Access, storage: DType) -> str:
        """The buffer that collects a result which is to go past the caches, if it is to."""
        along = Term("i" if self.job.form is Form.FLAT else "col", 1)
        if not self.job.config.stream or along not in access.terms:
            return ""
        name = self.names.user(f"{root.name}_block")
        self.blocks.append((name, storage))
        return name

    def root_access(self, root: Root) -> Access:
        """The address at which a root is stored."""
        return self.access(self._root_position(root), root.name, written=True)

    def _root_position(self, root: Root) -> int:
        accesses = enumerate(self.job.accesses)
        return next(k for k, o in accesses if o.kind == "root" and o.name == root.name)


def _is_position(expression: Expr) -> bool:
    """Whether it is an int32 index or size as the int64 that the language promises."""
    if not isinstance(expression, Convert) or not isinstance(expression.arg, Ref):
        return False
    return expression.arg.dtype is I32 and expression.dtype is I64 and expression.through is None
