"""Compiles generated CUDA C++: through NVRTC where its library is found, else with nvcc. May import
cache, settings, errors and ``runtime.build_triton`` for the Target.

Neither torch nor a CUDA header is needed. The binary is cached under everything that can change it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path

from fusec import settings
from fusec.errors import BuildError, UnsupportedError
from fusec.runtime.build_triton import Target
from fusec.runtime.cache import default_store, digest
from fusec.version import __version__

OLDEST = 70  # compute capability, times ten
_SOURCE = "kernel.cu"
_TIMEOUT = 300.0  # seconds
_UNKNOWN = re.compile(
    r"invalid value for --gpu-architecture|[Uu]nsupported gpu architecture|"
    r"is not defined for option 'gpu-architecture'"
)
_FOLDERS = ("cu13/lib", "cuda_nvrtc/lib")  # of the wheels that torch installs, below nvidia/
_LIBRARY_NAMES = ("libnvrtc.so", "libnvrtc.so.*")


@dataclass(frozen=True)
class CudaCompiler:
    """What compiles: ``kind`` is ``nvrtc`` or ``nvcc``; ``stamp`` tells versions apart."""

    kind: str
    path: str
    stamp: str


def compile_cuda(
    source: str,
    entry: str,
    target: Target,
    fast: bool = False,
    form: str = "cubin",
    build: str = "auto",
) -> bytes:
    """What :func:`build_cuda` builds, without its key."""
    return build_cuda(source, entry, target, fast, form, build)[1]


def build_cuda(
    source: str,
    entry: str,
    target: Target,
    fast: bool = False,
    form: str = "cubin",
    build: str = "auto",
) -> tuple[str, bytes]:
    """The key in the cache, and ``source`` as the machine code of ``target``, or with
    ``form="ptx"`` as PTX. ``fast`` allows fused multiply-adds; ``build`` is nvrtc, nvcc or what is
    there.

    Raises UnsupportedError without a compiler and for a GPU that it does not know, BuildError with
    the path of the source when it refuses the source.
    """
    check_target(target)
    compiler = require_compiler(build)
    store = default_store()
    options = ("--std=c++17", f"--fmad={'true' if fast else 'false'}")
    key = digest(
        {
            "kind": f"cuda {form}",
            "source": source,
            "options": repr(options),
            "target": str(target),
            "compiler": repr(compiler),
            "fusec": __version__,
        }
    )
    entry_found = store.get(key)
    if entry_found is not None:
        return key, entry_found.files[form]
    run = _nvrtc if compiler.kind == "nvrtc" else _nvcc
    result, log = run(compiler, source, target, options, form)
    if result is None:
        if _UNKNOWN.search(log):
            raise UnsupportedError(
                f"{compiler.kind} at {compiler.path} does not know {target}",
                backend="cuda",
                reason=log.strip().splitlines()[0],
                hint="use backend='triton', or a CUDA toolkit that knows this GPU",
            )
        kept = store.put(digest({"failed": key}), {_SOURCE: source.encode()})
        path = kept.path(_SOURCE)
        raise BuildError(
            f"{compiler.kind} could not compile {entry} for {target}",
            tool_output=log,
            source_path=None if path is None else str(path),
        )
    store.put(key, {form: result, _SOURCE: source.encode()})
    return key, result


def check_target(target: Target) -> None:
    """UnsupportedError for what is no NVIDIA GPU or too old a one."""
    if target.backend == "cuda" and int(target.arch) >= OLDEST:
        return
    raise UnsupportedError(
        f"CUDA C++ needs an NVIDIA GPU of sm_{OLDEST} or newer, the target is {target}",
        backend="cuda",
        hint="use backend='triton' there",
    )


def require_compiler(build: str = "auto") -> CudaCompiler:
    """The compiler, or UnsupportedError that says what was looked for."""
    compiler = find_compiler(build)
    if compiler is None:
        looked = {"nvrtc": "no NVRTC", "nvcc": "no nvcc"}.get(build, "neither NVRTC nor nvcc")
        raise UnsupportedError(
            f"there is {looked} on this machine",
            backend="cuda",
            hint="pip install nvidia-cuda-nvrtc, or set FUSEC_NVRTC to libnvrtc.so, "
            "or use backend='triton'",
        )
    return compiler


def find_compiler(build: str = "auto") -> CudaCompiler | None:
    """NVRTC (some tenths of a second for a kernel), else nvcc (more than one), else None."""
    library = find_nvrtc() if build != "nvcc" else None
    if library is not None:
        return CudaCompiler("nvrtc", str(library), _stamp(library))
    nvcc = find_nvcc() if build != "nvrtc" else None
    return None if nvcc is None else CudaCompiler("nvcc", nvcc, _stamp(Path(nvcc)))


def find_nvrtc() -> Path | None:
    """The NVRTC library: FUSEC_NVRTC, beside torch, in the CUDA toolkit, or of the system."""
    chosen = settings.get().nvrtc
    if chosen is not None:
        return chosen if chosen.is_file() else None
    return _installed_nvrtc()


def find_nvcc() -> str | None:
    """The path of nvcc: of CUDA_HOME, or on the PATH."""
    home = settings.get().cuda_home
    if home is not None and (found := shutil.which("nvcc", path=str(home / "bin"))):
        return found
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


@functools.cache
def _installed_nvrtc() -> Path | None:
    for folder in _library_folders():
        for pattern in _LIBRARY_NAMES:
            found = sorted(p for p in folder.glob(pattern) if ".alt." not in p.name)
            if found:
                return found[0].resolve()
    return None


def _library_folders() -> Iterator[Path]:
    wheels = importlib.util.find_spec("nvidia")
    for place in (wheels.submodule_search_locations or ()) if wheels else ():
        yield from (Path(place) / folder for folder in _FOLDERS)
    home = settings.get().cuda_home
    for root in ([home] if home is not None else []) + [Path("/usr/local/cuda")]:
        yield from (root / "lib64", root / "targets" / "x86_64-linux" / "lib")
    yield Path("/usr/lib/x86_64-linux-gnu")


def _stamp(path: Path) -> str:
    facts = path.stat()
    return f"{os.path.realpath(path)} {facts.st_size} {facts.st_mtime_ns}"


# -- NVRTC ----------------------------------------------------------------------------------------


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    """NVRTC, with the library of builtins that it opens by name loaded first."""
    for builtins in Path(path).parent.glob("libnvrtc-builtins.so*"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(path)


def _nvrtc(
    compiler: CudaCompiler, source: str, target: Target, options: tuple[str, ...], form: str
) -> tuple[bytes | None, str]:
    """Machine code (or PTX) and the log."""
    try:
        library = _library(compiler.path)
    except OSError as error:
        return None, f"{compiler.path} cannot be loaded: {error}"
    program = c_void_p()
    library.nvrtcCreateProgram(
        byref(program), source.encode(), _SOURCE.encode(), c_int(0), None, None
    )
    try:
        given = [f"--gpu-architecture={target}", *options]
        texts = (c_char_p * len(given))(*(option.encode() for option in given))
        code = library.nvrtcCompileProgram(program, c_int(len(given)), texts)
        log = _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        if code != 0:
            return None, log.decode(errors="replace").rstrip("\0") or f"NVRTC error {code}"
        name = {"cubin": "CUBIN", "ptx": "PTX"}[form]
        size = getattr(library, f"nvrtcGet{name}Size")
        content = _text(size, getattr(library, f"nvrtcGet{name}"), program)
        return (content.rstrip(b"\0") if form == "ptx" else content), ""
    finally:
        library.nvrtcDestroyProgram(byref(program))


def _text(size_of: Callable[..., object], get: Callable[..., object], program: c_void_p) -> bytes:
    size = c_size_t()
    size_of(program, byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    get(program, buffer)
    return buffer.raw


# -- nvcc -----------------------------------------------------------------------------------------


def _nvcc(
    compiler: CudaCompiler, source: str, target: Target, options: tuple[str, ...], form: str
) -> tuple[bytes | None, str]:
    """Machine code (or PTX) and the log."""
    with default_store().scratch() as directory:
        path, result = directory / _SOURCE, directory / f"kernel.{form}"
        path.write_text(source, encoding="utf-8")
        command = [
            compiler.path, *options, f"--gpu-architecture={target}", f"-{form}", str(path),
            "-o", str(result),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, timeout=_TIMEOUT, cwd=directory
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, f"{compiler.path} failed: {error}"
        log = (done.stderr + done.stdout).decode(errors="replace")
        return (result.read_bytes() if done.returncode == 0 else None), log
