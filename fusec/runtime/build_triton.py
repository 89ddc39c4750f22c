"""Compiles generated Triton ahead of time, for any target, with no GPU.

The binary is cached under everything that can change it, so a warm process never imports triton.
May import ``settings``, ``collector``, ``runtime.cache`` and ``runtime.build_beside``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from fusec import settings
from fusec.collector import without_collections
from fusec.errors import BuildError, InternalError, UnsupportedError
from fusec.runtime import build_beside
from fusec.runtime.cache import Store, default_store, digest
from fusec.runtime.triton_private import private_cache, triton_version
from fusec.version import __version__

_SOURCE = "kernel.py"
_METADATA = "kernel.json"
_TEXT_STAGES = ("ttir", "ttgir", "llir", "ptx", "amdgcn")
_BINARY_STAGES = ("cubin", "hsaco")
_DISASSEMBLE_TIMEOUT = 120.0  # seconds
_MISCOUNTED = "SystemError: AST constructor recursion depth mismatch"
_PARSINGS = 8  # one in thousands goes wrong, and only while other threads parse


@dataclass(frozen=True)
class Target:
    """A kind of GPU: `cuda` with its compute capability times ten, or `hip` with its gfx name."""

    backend: str
    arch: int | str
    warp_size: int

    @staticmethod
    def parse(text: str) -> Target:
        """`sm_90` or `gfx942` as a Target; UnsupportedError for any other form."""
        if match := re.fullmatch(r"sm_?(\d{2,3})[af]?", text):
            return Target("cuda", int(match[1]), 32)
        if re.fullmatch(r"gfx[0-9a-f]{3,5}", text):
            return Target("hip", text, 64 if text.startswith("gfx9") else 32)
        raise UnsupportedError(
            f"unknown target {text!r}", hint="targets look like sm_80, sm_90, sm_100 or gfx942"
        )

    def __str__(self) -> str:
        return f"sm_{self.arch}" if self.backend == "cuda" else str(self.arch)


@dataclass(frozen=True)
class TritonProgram:
    """A Triton file and how to specialise its kernel.

    `signature` gives each parameter of `entry` in order: a pointer (`*fp32`, `*bf16`, `*i1`, ...),
    a number (`i32`, `i64`, `fp32`, `fp64`) or `constexpr`, whose values are in `constants`.
    """

    source: str
    entry: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int], ...] = ()
    divisible_by_16: frozenset[str] = frozenset()
    divisible_by_8: frozenset[str] = frozenset()  # enough for wide loads of 16-bit elements
    divisible_by_4: frozenset[str] = frozenset()  # and of 32-bit ones, and for half of such loads
    num_warps: int = 4
    num_stages: int = 3
    registers: int = 0  # the most a thread may hold, 0 as the compiler likes
    fp_fusion: bool = False
    flushes: bool = False  # functions may take subnormal numbers for 0

    def __post_init__(self) -> None:
        # The interpreter takes any number, and would let tests pass whose kernels no GPU has.
        if self.num_warps not in (1, 2, 4, 8, 16, 32):
            raise InternalError(f"{self.entry} asks for {self.num_warps} warps, no power of two")

    def parameter_types(self) -> tuple[str, ...]:
        """The types of the arguments that a launch passes: the signature without constants."""
        return tuple(kind for _, kind in self.signature if kind != "constexpr")


@dataclass(frozen=True)
class TritonBinary:
    """A compiled kernel. `stages` has ttir, ttgir, llir, ptx and cubin, or amdgcn and hsaco."""

    entry: str
    stages: dict[str, str | bytes]
    shared: int  # bytes of dynamic shared memory
    num_warps: int
    num_threads: int
    target: Target
    key: str  # of the entry in the cache

    @property
    def binary(self) -> bytes:
        """What the driver loads: the cubin or the hsaco."""
        found = next(stage for name, stage in self.stages.items() if name in _BINARY_STAGES)
        assert isinstance(found, bytes)
        return found


_FLOAT8 = re.compile(r"float8e4nv|\bfp8e4nv\b")
_FLOAT8_SINCE = 89  # the compute capability that has e4m3 conversions


def _check_float8(program: TritonProgram, target: Target) -> None:
    """Triton's own complaint about e4m3 on older GPUs names neither the type nor the way out."""
    old = target.backend == "cuda" and int(target.arch) < _FLOAT8_SINCE
    if old and (_FLOAT8.search(program.source) or _FLOAT8.search(repr(program.signature))):
        raise UnsupportedError(
            f"float8 e4m3 needs a GPU of sm_{_FLOAT8_SINCE} or newer, the target is {target}",
            backend="triton",
            hint="store float8 e5m2 or bfloat16 there, or choose --target sm_90",
        )


def compile_triton(program: TritonProgram, target: Target) -> TritonBinary:
    """Compile `program` for `target`, or take it from the cache.

    Raises BuildError with the path of the source when Triton refuses it, and UnsupportedError when
    Triton is missing or runs as an interpreter in this process.
    """
    store = default_store()
    _check_float8(program, target)
    key = key_of(program, target)
    entry = store.get(key)
    if entry is None and _build_beside(store, key, program, target):
        entry = store.get(key)
    files = build_into(store, key, program, target) if entry is None else entry.files
    return _unpack(program, target, key, files)


def build_into(store: Store, key: str, program: TritonProgram, target: Target) -> dict[str, bytes]:
    """Compile in this process, and keep what comes out; raises as :func:`compile_triton` does."""
    with _source_path(store, program.source) as path:
        files = _compile(store, program, target, path)
    store.put(key, files)
    return files


def expect_kernels(target: Target) -> None:
    """Have a helper process ready for kernels that are to come, if that can be of use."""
    build_beside.start(default_store().root, str(target))


def _build_beside(store: Store, key: str, program: TritonProgram, target: Target) -> bool:
    """Whether the helper process has put the kernel into the cache."""
    if store.root is None:
        return False
    place = {"key": key, "root": str(store.root), "target": astuple(target)}
    return build_beside.build({**place, "program": as_data(program)})


def as_data(program: TritonProgram) -> dict[str, object]:
    """A program as a message has it."""
    return {k: sorted(v) if isinstance(v, frozenset) else v for k, v in vars(program).items()}


def sass(cubin: bytes) -> str:
    """The machine code of a cubin as text; UnsupportedError when there is no disassembler."""
    tool = _disassembler()
    if tool is None:
        raise UnsupportedError(
            "neither nvdisasm nor cuobjdump is installed", hint="the CUDA toolkit and Triton do"
        )
    with default_store().scratch() as directory:
        path = directory / "kernel.cubin"
        path.write_bytes(cubin)
        options = [] if Path(tool).name == "nvdisasm" else ["-sass"]
        try:
            finished = subprocess.run(
                [tool, *options, str(path)],
                check=False,
                capture_output=True,
                timeout=_DISASSEMBLE_TIMEOUT,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"{tool} failed", tool_output=str(error)) from error
    if finished.returncode != 0:
        raise BuildError(f"{tool} failed", tool_output=finished.stderr.decode(errors="replace"))
    return finished.stdout.decode(errors="replace")


def key_of(program: TritonProgram, target: Target) -> str:
    """Where the cache has the kernel: everything that can change it."""
    return digest(
        {
            "kind": "triton",
            "source": program.source,
            "entry": program.entry,
            "signature": repr(program.signature),
            "constants": repr(program.constants),
            "divisible": repr(sorted(program.divisible_by_16)),
            "divisible by 8": repr(sorted(program.divisible_by_8)),
            "divisible by 4": repr(sorted(program.divisible_by_4)),
            "recipe": "may flush",  # changes with the options that _run_triton passes
            "options": f"{program.num_warps} {program.num_stages} {program.registers}",
            "floats": f"fused {program.fp_fusion} flushed {program.flushes}",
            "target": repr(target),
            "environment": repr(settings.get().compiler_environment()),
            "triton": triton_version(),
            "fusec": __version__,
        }
    )


def _unpack(program: TritonProgram, target: Target, key: str, files: Any) -> TritonBinary:
    metadata = json.loads(files[_METADATA])
    stages: dict[str, str | bytes] = {
        name: files[name].decode() for name in _TEXT_STAGES if name in files
    }
    stages.update({name: files[name] for name in _BINARY_STAGES if name in files})
    return TritonBinary(
        entry=program.entry,
        stages=stages,
        shared=metadata["shared"],
        num_warps=metadata["num_warps"],
        num_threads=metadata["num_threads"],
        target=target,
        key=key,
    )


@contextlib.contextmanager
def _source_path(store: Store, source: str) -> Iterator[Path]:
    """A file with `source` that stays, so that errors and profilers can point at its lines."""
    entry = store.put(
        digest({"kind": "triton source", "source": source}), {_SOURCE: source.encode()}
    )
    path = entry.path(_SOURCE)
    if path is not None:
        yield path
        return
    with store.scratch() as directory:
        path = directory / _SOURCE
        path.write_text(source, encoding="utf-8")
        yield path


@without_collections()
def _compile(store: Store, program: TritonProgram, target: Target, path: Path) -> dict[str, bytes]:
    try:
        with store.scratch() as directory, private_cache(directory):
            kernel = _run_triton_again(program, target, path)
    except (UnsupportedError, InternalError):
        raise
    except Exception as error:  # whatever Triton, LLVM or ptxas raises: shown as our one error
        raise BuildError(
            f"Triton could not compile {program.entry} for {target}",
            tool_output=_chain(error),
            source_path=str(path),
        ) from error
    scratch = [
        getattr(kernel.metadata, f"{kind}_scratch_size", 0) for kind in ("global", "profile")
    ]
    if any(scratch):
        raise InternalError(f"{program.entry} wants scratch memory, which no launch provides")
    files: dict[str, bytes] = {}
    for name in (*_TEXT_STAGES, *_BINARY_STAGES):
        stage = kernel.asm.get(name)
        if stage is not None:
            files[name] = stage if isinstance(stage, bytes) else stage.encode()
    num_warps = int(kernel.metadata.num_warps)
    metadata = {
        "shared": int(kernel.metadata.shared),
        "num_warps": num_warps,
        "num_threads": num_warps * target.warp_size,
    }
    return {**files, _METADATA: json.dumps(metadata).encode(), _SOURCE: program.source.encode()}


def _chain(error: BaseException) -> str:
    """An error and what caused it: Triton may name the place in one and the reason in the other."""
    lines = []
    link: BaseException | None = error
    while link is not None:
        lines.append(f"{type(link).__name__}: {link}")
        link = link.__cause__
    return "\n".join(lines)


def _run_triton_again(program: TritonProgram, target: Target, path: Path) -> Any:
    """`_run_triton`, again where Python lost count of the depth of a syntax tree.

    Python counts it once for all threads, and Triton parses a kernel: where a collection runs in
    the middle and another thread parses as well, Python raises a SystemError that says nothing
    about the source (python/cpython issue 106905).
    """
    for _ in range(_PARSINGS - 1):
        try:
            return _run_triton(program, target, path)
        except Exception as error:  # Triton wraps the SystemError, or not, by where it parses
            # Whatever has not got it behind it is raised again at once; nothing else is tried twice
            if _MISCOUNTED not in _chain(error):
                raise
    return _run_triton(program, target, path)


def _run_triton(program: TritonProgram, target: Target, path: Path) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    namespace: dict[str, Any] = {"__name__": f"fusec_kernel_{path.parent.name[:16]}"}
    exec(compile(program.source, str(path), "exec"), namespace)
    function = namespace[program.entry]
    if not isinstance(function, JITFunction):
        raise UnsupportedError(
            "Triton interprets kernels in this process and cannot compile them",
            hint="start Python without TRITON_INTERPRET",
        )
    position = {name: index for index, (name, _) in enumerate(program.signature)}
    by_4, by_8, by_16 = program.divisible_by_4, program.divisible_by_8, program.divisible_by_16
    source = ASTSource(
        fn=function,
        signature=dict(program.signature),
        constexprs={(position[name],): value for name, value in program.constants},
        attrs={
            (position[name],): [["tt.divisibility", factor]]
            for factor, names in ((4, by_4), (8, by_8), (16, by_16))
            for name in sorted(names, key=position.__getitem__)
        },
    )
    options = {
        "num_warps": program.num_warps,
        "num_stages": program.num_stages,
        "enable_fp_fusion": program.fp_fusion,  # the default differs between versions of Triton
    }
    if target.backend == "cuda" and program.registers:
        options["maxnreg"] = program.registers
    if target.backend == "cuda" and _knows_flushing():
        options["enable_reflect_ftz"] = program.flushes
    if target.backend == "hip":
        _link_if_possible()
    gpu = GPUTarget(target.backend, target.arch, target.warp_size)
    return triton.compile(source, target=gpu, options=options)


@functools.cache
def _link_if_possible() -> None:
    """Leave out AMD's last stage where an older Triton finds no linker of ROCm: assembly and all
    before it need none, and nothing is launched there.
    """
    from triton.backends.amd.compiler import HIPBackend

    backend: Any = HIPBackend
    try:
        getattr(backend, "path_to_rocm_lld", int)()
    except Exception as error:
        # Triton raises a bare Exception for a missing linker, so no narrower type can be caught;
        # whatever does not speak of one goes on.
        if "linker" not in str(error):
            raise
        backend.make_hsaco = staticmethod(lambda *_, **__: b"")
        backend.hash = lambda self: f"unlinked-{self.target}"  # it would ask the linker's version


def _knows_flushing() -> bool:
    """Whether this Triton has the option; before 3.6 libdevice always flushes."""
    from triton.backends.nvidia.compiler import CUDAOptions

    return "enable_reflect_ftz" in CUDAOptions.__dataclass_fields__


@functools.cache
def _disassembler() -> str | None:
    found = importlib.util.find_spec("triton")  # finds the package and does not import it
    folders = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    for name in ("nvdisasm", "cuobjdump"):
        for folder in folders:
            tool = shutil.which(name, path=str(folder / "backends" / "nvidia" / "bin"))
            if tool is not None:
                return tool
        if (tool := shutil.which(name)) is not None:
            return tool
    return None
