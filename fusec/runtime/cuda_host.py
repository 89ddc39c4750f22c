"""Generated CUDA as a complete source: its kernels and the functions that launch them.

``name_out(inputs, outputs)`` checks devices, types, shapes and contiguity and launches on the
current stream; ``name(inputs)`` makes the outputs first. For ``torch.utils.cpp_extension``. May
import everything below the API but ``runtime.steps`` and what stands above that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.codegen.cuda import print_cuda
from fusec.codegen.cuda_place import constants, index_type
from fusec.codegen.cuda_turns import shared_bytes
from fusec.codegen.kernel import Form, Kernel
from fusec.codegen.lower import reductions_of
from fusec.codegen.parameters import accumulated, part_buffer
from fusec.codegen.writer import Writer
from fusec.errors import InternalError
from fusec.ir.dtypes import DType
from fusec.ir.graph import InputSpec
from fusec.ir.node import Dim, Shape
from fusec.runtime.specialize import LaidOut, Specialization

_INCLUDES = (
    "#include <ATen/cuda/CUDAContext.h>",
    "#include <c10/cuda/CUDAException.h>",
    "#include <c10/cuda/CUDAGuard.h>",
    "#include <torch/extension.h>",
)
_CHECK = """
// What the kernels take for granted of a tensor.
static void check(const char* name, const torch::Tensor& tensor, torch::ScalarType type,
                  std::initializer_list<int64_t> sizes) {
  TORCH_CHECK(tensor.is_cuda(), name, " has to be on a GPU");
  TORCH_CHECK(tensor.scalar_type() == type, name, " has to be of type ", type);
  TORCH_CHECK(tensor.sizes() == torch::IntArrayRef(sizes), name, " has another shape");
  TORCH_CHECK(tensor.is_contiguous(), name, " has to be contiguous");
  TORCH_CHECK(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0,
              name, " has to begin at a multiple of 16 bytes");
}

"""
_AT_ONCE = """
// How many clusters of `cluster` blocks the GPU holds at a time.
template <class Kernel>
static int64_t clusters_at_once(Kernel kernel, unsigned threads, unsigned cluster, size_t shared) {
  C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cluster);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  C10_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  return clusters;
}

"""
_TYPES = {
    "f64": "Double", "f32": "Float", "f16": "Half", "bf16": "BFloat16",
    "f8e4m3": "Float8_e4m3fn", "f8e5m2": "Float8_e5m2",
    "i64": "Long", "i32": "Int", "i16": "Short", "i8": "Char", "u8": "Byte", "bool": "Bool",
}  # fmt: skip


def sources_of(kernels: Sequence[tuple[LaidOut, Kernel]]) -> str:
    """The source of every kernel, in a namespace of its own: their constants differ."""
    texts = []
    for _, kernel in kernels:
        texts.append(f"namespace {kernel.name}_code {{\n\n{print_cuda(kernel)}\n}}\n")
    return "\n".join(texts)


def host_name(special: Specialization) -> str:
    """What the function is called in C++ and in Python."""
    name = special.formula.name.removesuffix("_kernel")
    return "run" if name == "kernel" else name


def program_source(special: Specialization, kernels: Sequence[tuple[LaidOut, Kernel]]) -> str:
    """Kernels and host functions, ready for ``load_inline``."""
    writer = Writer("  ")
    _Host(special, kernels, writer).functions()
    turns = any(kernel.config.turns for _, kernel in kernels)
    includes = "".join(f"{line}\n" for line in _INCLUDES)
    at_once = _AT_ONCE if turns else ""
    return f"{includes}\n{sources_of(kernels)}{_CHECK}{at_once}{writer.text()}"


def declarations(special: Specialization) -> str:
    """The functions, declared for the C++ part of a load_inline module."""
    host = _Host(special, (), Writer("  "))
    return "#include <torch/extension.h>\n" + "".join(f"{s};\n" for s in host.signatures())


@dataclass(slots=True)
class _Host:
    special: Specialization
    kernels: Sequence[tuple[LaidOut, Kernel]]
    writer: Writer

    def signatures(self) -> tuple[str, str]:
        """Of the function that writes to given outputs, and of the one that makes them."""
        name = host_name(self.special)
        inputs = [self._parameter(spec) for spec in self.special.specs]
        outs = [f"torch::Tensor {self._out(o.name)}" for o in self.special.outputs]
        kind = "torch::Tensor" if len(outs) == 1 else "std::vector<torch::Tensor>"
        return (
            f"void {name}_out({', '.join([*inputs, *outs])})",
            f"{kind} {name}({', '.join(inputs)})",
        )

    def functions(self) -> None:
        into, made = self.signatures()
        with self.writer.block(f"{into} {{", "}"):
            self._checks()
            self._launches()
        self.writer.line()
        with self.writer.block(f"{made} {{", "}"):
            self._make()

    def _parameter(self, spec: InputSpec) -> str:
        if not spec.scalar:
            return f"torch::Tensor {spec.name}"
        kind = "double" if spec.dtype.is_float else "bool" if spec.dtype.is_bool else "int64_t"
        return f"{kind} {spec.name}"

    @property
    def _first(self) -> str:
        return next(spec.name for spec in self.special.specs if not spec.scalar)

    def _out(self, name: str) -> str:
        taken = {spec.name for spec in self.special.specs}
        return f"{name}_out" if name in taken else name

    # -- checks -----------------------------------------------------------------------------------

    def _checks(self) -> None:
        line = self.writer.line
        for spec in self.special.specs:
            if not spec.scalar:
                self._check(spec.name, spec.dtype, spec.shape)
        for a, b in self.special.equal:
            line(f'TORCH_CHECK({_extent(a)} == {_extent(b)}, "{a} and {b} differ in length");')
        for output in self.special.outputs:
            self._check(self._out(output.name), output.node.dtype, self._shape(output.name))
        line(f"if ({' && '.join(self._empty())}) return;")
        line(f"const c10::cuda::CUDAGuard guard({self._first}.device());")
        line("const cudaStream_t stream = at::cuda::getCurrentCUDAStream();")

    def _empty(self) -> list[str]:
        return [f"{self._out(o.name)}.numel() == 0" for o in self.special.outputs]

    def _check(self, name: str, dtype: DType, shape: Shape) -> None:
        sizes = ", ".join(_extent(extent) for extent in shape)
        kind = f"torch::k{_TYPES[dtype.name]}"
        self.writer.line(f'check("{name}", {name}, {kind}, {{{sizes}}});')

    def _shape(self, name: str) -> Shape:
        output = next(o for o in self.special.outputs if o.name == name)
        rank = len(output.node.shape)
        return tuple(e for k, e in enumerate(output.node.shape) if k - rank not in output.squeeze)

    def _make(self) -> None:
        names = [self._out(o.name) for o in self.special.outputs]
        for output, name in zip(self.special.outputs, names, strict=True):
            self._empty_tensor(name, self._shape(output.name), output.node.dtype)
        arguments = [spec.name for spec in self.special.specs] + names
        self.writer.line(f"{host_name(self.special)}_out({', '.join(arguments)});")
        result = names[0] if len(names) == 1 else f"{{{', '.join(names)}}}"
        self.writer.line(f"return {result};")

    def _empty_tensor(self, name: str, shape: Sequence[Dim | int | str], dtype: DType) -> None:
        extents = ", ".join(e if isinstance(e, str) else _extent(e) for e in shape)
        options = f"{self._first}.options().dtype(torch::k{_TYPES[dtype.name]})"
        self.writer.line(f"torch::Tensor {name} = torch::empty({{{extents}}}, {options});")

    # -- launches ---------------------------------------------------------------------------------

    def _launches(self) -> None:
        made: set[str] = set()
        for laid, kernel in self.kernels:
            self._temporaries(laid, made)
            with self.writer.block("{", "}"):
                self._launch(laid, kernel)

    def _temporaries(self, laid: LaidOut, made: set[str]) -> None:
        """Buffers between kernels: results that later ones read, and parts of rows."""
        wanted: list[tuple[str, Sequence[Dim | int | str], DType]] = [
            (root.name, root.node.shape, root.node.dtype.compute)
            for root in laid.region.roots
            if root.output is None
        ]
        if laid.config.splits > 1:
            shape = [f"{laid.config.splits} * {_product(laid, 'rows')}"]
            wanted += [
                (part_buffer(laid.region, k), shape, accumulated(node))
                for k, node in enumerate(reductions_of(laid.region))
            ]
        for name, extents, dtype in wanted:
            if name not in made:
                made.add(name)
                self._empty_tensor(_identifier(name), extents, dtype)

    def _launch(self, laid: LaidOut, kernel: Kernel) -> None:
        line = self.writer.line
        where = f"{kernel.name}_code::"
        line(f"const int64_t rows = {_product(laid, 'rows')}, cols = {_product(laid, 'cols')};")
        for condition, words in self._class(kernel):
            line(f'TORCH_CHECK({condition}, "{words}");')
        arguments = []
        for pointer in kernel.pointers:
            narrow = pointer.storage.compute is not pointer.storage  # a type of the source's own
            kind = (where if narrow else "") + pointer.storage.cuda
            const = "" if pointer.written else "const "
            name = self._buffer(pointer.buffer, pointer.written)
            arguments.append(f"static_cast<{const}{kind}*>({name}.data_ptr())")
        arguments += [f"static_cast<{n.dtype.cuda}>({n.input})" for n in kernel.numbers]
        index = index_type(kernel).cuda
        arguments += [f"static_cast<{index}>({_size(laid, s.source)})" for s in kernel.sizes]
        threads, shared = constants(kernel)["THREADS"], shared_bytes(kernel)
        if kernel.config.turns:
            asked = f"{where}{kernel.name}, {threads}, {kernel.config.cluster}, {shared}"
            line(f"const int64_t clusters = std::min(rows, clusters_at_once({asked}));")
        line(f"const int64_t blocks = {_blocks(kernel)};")
        line(f"{where}{kernel.name}<<<blocks, {threads}, {shared}, stream>>>(")
        for argument in arguments[:-1]:
            line(f"    {argument},")
        line(f"    {arguments[-1]});")
        line("C10_CUDA_KERNEL_LAUNCH_CHECK();")

    def _buffer(self, name: str, written: bool) -> str:
        specs = {spec.name for spec in self.special.specs}
        if not written and name in specs:
            return name
        outputs = {o.name for o in self.special.outputs}
        return self._out(name) if name in outputs else _identifier(name)

    def _class(self, kernel: Kernel) -> list[tuple[str, str]]:
        """What the sizes have to be for this kernel, whose size classes are compiled in."""
        config, found = kernel.config, []
        if not config.wide_index:
            found.append(("rows * cols < int64_t{1} << 31", "offsets do not fit an int"))
        if kernel.form is not Form.ROWS:
            return found
        if config.resident:
            most = config.block_cols * config.cluster + (config.lanes - 1 if config.edges else 0)
            found.append((f"cols <= {most}", f"a row has {most} elements at most"))
        if config.even:
            found.append((f"cols == {config.block_cols * config.cluster}", "another row length"))
        elif config.whole:
            found.append((f"cols % {config.lanes} == 0", f"rows are multiples of {config.lanes}"))
        return found


def _identifier(name: str) -> str:
    return name.replace(" ", "_")


def _extent(extent: Dim | int) -> str:
    if not isinstance(extent, Dim):
        return str(extent)
    name, _, axis = str(extent).rpartition(".")
    return f"{name}.size({axis})"


def _extents(laid: LaidOut, axes: Sequence[int]) -> list[str]:
    return [_extent(laid.region.space[axis]) for axis in axes]


def _product(laid: LaidOut, side: str) -> str:
    layout = laid.arrangement.layout
    groups = layout.rows if side == "rows" else layout.cols
    return " * ".join(_extents(laid, [a for group in groups for a in group])) or "1"


def _size(laid: LaidOut, source: tuple[str | int, ...]) -> str:
    """The value of a size parameter, from the shapes of contiguous tensors."""
    layout, config = laid.arrangement.layout, laid.config
    match source:
        case ("n" | "cols",):
            return "cols"
        case ("rows",):
            return "rows"
        case ("chunk",):
            overhang = config.lanes - 1 if config.lead is not None else 0
            part = _ratio("cols", config.splits, overhang)
            return f"{_ratio(part, config.block_cols)} * {config.block_cols}"
        case ("row", int(k)):
            return " * ".join(_extents(laid, layout.rows[k]))
        case ("col", int(k)):
            return " * ".join(_extents(laid, layout.cols[k]))
        case ("stride", int(operand), int(axis)):
            group = (*layout.rows, *layout.cols)[axis][-1]
            shape = laid.accesses[operand].shape
            own = group - (len(laid.region.space) - len(shape))
            return " * ".join(_extent(e) for e in shape[own + 1 :]) or "1"
        case ("length", int(operand)):
            return _extent(laid.accesses[operand].node.args[0].shape[-1])
        case ("dim", str(name)):
            return _extent(Dim(name))
    raise InternalError(f"no expression for the kernel parameter {source}")


def _blocks(kernel: Kernel) -> str:
    """How many blocks a launch needs."""
    config = kernel.config
    if config.turns:
        return f"clusters * {config.cluster}"
    if kernel.form is Form.FLAT:
        return _ratio("cols", config.block_cols)
    blocks = _ratio("rows", config.block_rows)
    shares = config.cluster * (config.splits if kernel.divided else 1)
    if shares > 1:
        blocks = f"{blocks} * {shares}"
    if kernel.form is Form.ROWS:
        return blocks
    overhang = config.lanes - 1 if config.lead is not None else 0
    return f"{blocks} * ({_ratio('cols', config.block_cols, overhang)})"


def _ratio(count: str, size: int, overhang: int = 0) -> str:
    """The number of pieces of ``size``, rounded up."""
    more = size - 1 + overhang
    return count if size == 1 and not more else f"({count} + {more}) / {size}"
