"""Builds generated C++ into a shared library and loads it.

The library is cached under everything that can change it: source, headers, compiler, flags,
processor, fusec version. A warm process starts no subprocess. May import forks, headers, cache and
errors.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusec import forks, settings
from fusec.errors import BuildError, UnsupportedError
from fusec.runtime.cache import Entry, Store, default_store, digest
from fusec.runtime.commands import run
from fusec.runtime.headers import HEADER, CompiledHeaders, begins_with_it
from fusec.version import __version__

COMPILE_TIMEOUT = 300.0  # seconds until a compiler counts as hung
_VERSION_TIMEOUT = 30.0  # seconds
_LIBRARY = "kernel.so"
_SOURCE = "kernel.cpp"
_NATIVE = "-march=native"
_OPENMP = "-fopenmp"
_FLAGS = (
    "-O3",
    "-fwrapv",
    _NATIVE,
    _OPENMP,
    # One rounding per operation, as PyTorch does it; the printers write fused operations out.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    # Threading jumps through selects splits one vector division or exponential into two.
    "-fno-thread-jumps",
    # A call or inline copy of memset for the lanes of a sweep would be stored in other widths than
    # they are loaded in, and wait for the cache.
    "-fno-tree-loop-distribute-patterns",
    "-std=c++17",
    "-shared",
    "-fPIC",
)
# What a kernel is linked with under GCC for Linux: no C++ library, of which it uses nothing, and
# which the linker would have to read. "defs" has it refuse a library that lacks something, where
# otherwise the first call would.
_FEW_LIBRARIES = "-nodefaultlibs"
_LIBRARIES = (_FEW_LIBRARIES, "-Wl,-z,defs", "-lgomp", "-lm", "-lc", "-lgcc")
_BEHIND = ("-l", "-Wl,")  # flags that go behind the source
_LINKER = re.compile(r"\bld(\.\w+)?:|\bcollect2\b|undefined reference|-nodefaultlibs")
_CTYPES: dict[str, Any] = {
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
    "int64_t": ctypes.c_int64,
    "int32_t": ctypes.c_int32,
    "int16_t": ctypes.c_int16,
    "int8_t": ctypes.c_int8,
    "uint8_t": ctypes.c_uint8,
}
# Flags that a compiler may lack, and how its complaint about each can be told.
_OPTIONAL_FLAGS = {
    _OPENMP: re.compile(r"-fopenmp|-lomp|-lgomp|libomp|libgomp|omp\.h"),
    _NATIVE: re.compile(r"-march=|-mcpu=|target CPU|target-cpu"),
}


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its command, where it is, and what `--version` says."""

    command: tuple[str, ...]
    path: str
    version: str


def find_compiler() -> Compiler | None:
    """The first compiler of the settings that runs, or None."""
    for command in settings.get().cxx:
        compiler = _identify(command)
        if compiler is not None:
            return compiler
    return None


def default_flags() -> tuple[str, ...]:
    """The flags of every build on this machine, before those of the caller and FUSEC_CXXFLAGS."""
    if "avx512f" in processor_features():
        return (*_FLAGS, "-mprefer-vector-width=512")
    return _FLAGS


def build_cpp(source: str, include: Path, *, flags: Sequence[str] = ()) -> ctypes.CDLL:
    """Compile `source` with headers from `include`, or take it from the cache, and load it.

    `flags` are added to the command line; `-l` and `-Wl,` flags go behind the source. Raises
    UnsupportedError when there is no compiler and BuildError when the compiler refuses the source.
    """
    return build_library(source, include, flags=flags)[1]


def build_library(
    source: str, include: Path, *, flags: Sequence[str] = ()
) -> tuple[str, ctypes.CDLL]:
    """What :func:`build_cpp` does, with the key that :func:`load_function` takes."""
    compiler = find_compiler()
    if compiler is None:
        tried = ", ".join(" ".join(command) for command in settings.get().cxx)
        raise UnsupportedError(
            f"no C++ compiler runs here (tried {tried})",
            hint="install g++ or clang++, or set FUSEC_CXX to the compiler's path",
        )
    store = default_store()
    arguments = _arguments(compiler, flags)
    key = _key(source, include, compiler, arguments)
    with _lock:
        library = _loaded.get(key)
        if library is None:
            library = _load_or_build(store, key, source, include, compiler, arguments)
            _loaded[key] = library
    return key, library


def load_function(key: str, entry: str, types: Sequence[str]) -> Callable[..., None] | None:
    """A function of a library that was built before, by its key; None where it is gone.

    ``types`` are the C types of the parameters.
    """
    with _lock:
        library = _loaded.get(key)
        if library is None:
            found = default_store().get(key, only=(_LIBRARY,))
            try:
                library = None if found is None else _load(found)
            except OSError:
                library = None
            if library is None:
                return None
            _loaded[key] = library
    function = library[entry]
    function.restype = None
    function.argtypes = [ctypes.c_void_p if kind.endswith("*") else _CTYPES[kind] for kind in types]
    return function


def packed_address(key: str, entry: str) -> int:
    """Where the packed form of a loaded kernel begins (see ``codegen.cpp.packed_entry``)."""
    function = _loaded[key][f"{entry}_packed"]
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def builder_identity() -> dict[str, str] | None:
    """What decides a library beside its source and headers, as parts of a key; None without a
    compiler.
    """
    compiler = find_compiler()
    return None if compiler is None else _builder(compiler, _arguments(compiler, ()))


def _arguments(compiler: Compiler, flags: Sequence[str]) -> tuple[str, ...]:
    own = settings.get().cxxflags
    few = not own and is_gcc_for_linux(compiler)
    return (*default_flags(), *flags, *own, *(_LIBRARIES if few else ()))


def is_gcc_for_linux(compiler: Compiler | None) -> bool:
    """Whether it is the compiler that is told its libraries, and given compiled headers."""
    made = compiler is not None and "Free Software Foundation" in compiler.version
    return made and sys.platform == "linux"


def _builder(compiler: Compiler, arguments: Sequence[str]) -> dict[str, str]:
    return {
        "compiler": "\0".join((*compiler.command, compiler.path, compiler.version)),
        "arguments": "\0".join(arguments),
        "processor": processor_identity(),
    }


def may_use_threads() -> bool:
    """False in a forked child: GNU OpenMP waits there for threads that only the parent has.

    A parallel region of one thread is safe.
    """
    return not _forked


@functools.cache
def processor_identity() -> str:
    """What `-march=native` depends on: the processor's model and its instruction sets."""
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as stream:
        first = stream.read(16384).partition("\n\n")[0]  # the first of the processors
        lines = [line for line in first.splitlines() if line.startswith(wanted)]
        return "\n".join((platform.machine(), *lines))
    return f"{platform.machine()} {platform.processor()} {platform.platform()}"


@functools.cache
def processor_features() -> frozenset[str]:
    """The instruction sets that the operating system lists, empty where it lists none."""
    for line in processor_identity().splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _identify(command: tuple[str, ...]) -> Compiler | None:
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        facts = os.stat(path)
    except OSError:
        return None
    stamp = f"{os.path.realpath(path)} {facts.st_mtime_ns} {facts.st_size}"
    return _identified(command, path, stamp)


@functools.cache
def _identified(command: tuple[str, ...], path: str, stamp: str) -> Compiler | None:
    store = default_store()
    key = digest({"kind": "compiler", "command": "\0".join(command), "path": path, "stamp": stamp})
    entry = store.get(key)
    if entry is not None:
        return Compiler(command, path, entry.files["version"].decode())
    try:
        code, output = run([path, *command[1:], "--version"], _VERSION_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if code != 0:
        return None
    store.put(key, {"version": output.encode()})
    return Compiler(command, path, output)


def _key(source: str, include: Path, compiler: Compiler, arguments: Sequence[str]) -> str:
    parts: dict[str, str | bytes] = {
        "kind": "cpp",
        "source": source,
        **_builder(compiler, arguments),
        "fusec": __version__,
    }
    for path in sorted(include.rglob("*")):
        if path.is_file():
            parts[f"header {path.relative_to(include).as_posix()}"] = path.read_bytes()
    return digest(parts)


def _load_or_build(
    store: Store,
    key: str,
    source: str,
    include: Path,
    compiler: Compiler,
    arguments: Sequence[str],
) -> ctypes.CDLL:
    entry = store.get(key)
    if entry is not None:
        with contextlib.suppress(OSError):  # pruned by another process meanwhile: build it again
            return _load(entry)
        store.remove(key)
    entry = _compile(store, key, source, include, compiler, arguments)
    try:
        return _load(entry)
    except OSError as error:
        raise BuildError(
            "the compiled kernel cannot be loaded",
            tool_output=str(error),
            source_path=_text(entry.path(_SOURCE)),
            hint="a cache directory on a volume mounted noexec does this; FUSEC_CACHE_DIR moves it",
        ) from error


def _load(entry: Entry) -> ctypes.CDLL:
    path = entry.path(_LIBRARY)
    if path is None:
        raise OSError("there is no directory that the library could be written to")
    return ctypes.CDLL(str(path))


def _compile(
    store: Store,
    key: str,
    source: str,
    include: Path,
    compiler: Compiler,
    arguments: Sequence[str],
) -> Entry:
    refused = _refused_flags.get(compiler, frozenset())
    own: frozenset[str] = frozenset()  # what this source alone does without
    while True:
        usable = [flag for flag in arguments if flag not in refused]
        compiled = _compiled_headers(store, source, include, compiler, usable)
        folders = [include] if compiled is None else [compiled, include]
        with store.scratch() as directory:
            (directory / _SOURCE).write_text(source, encoding="utf-8")
            files = (directory / _SOURCE, directory / _LIBRARY)
            code, output = _invoke(compiler, *files, folders, usable)
            if code == 0:
                _refused_flags[compiler] = refused - own
                library = (directory / _LIBRARY).read_bytes()
                return store.put(key, {_LIBRARY: library, _SOURCE: source.encode()})
        lacking = _lacking(usable, output)
        if lacking:
            refused |= lacking  # without OpenMP its pragmas are ignored: the same numbers
            own |= lacking if "undefined reference" in output else frozenset()
        elif compiled is not None:
            _headers.forget(compiled)  # and see whether that was it
        else:
            break
    kept = store.put(digest({"failed": key}), {_SOURCE: source.encode()})
    raise BuildError(
        f"{compiler.command[0]} could not compile the generated C++",
        tool_output=output,
        source_path=_text(kept.path(_SOURCE)),
    )


def _lacking(flags: Sequence[str], output: str) -> frozenset[str]:
    """The flags to do without, by what the compiler says; none where they are not the reason."""
    if _FEW_LIBRARIES in flags and _LINKER.search(output):
        return frozenset(_LIBRARIES)
    return frozenset(
        flag
        for flag, complaint in _OPTIONAL_FLAGS.items()
        if flag in flags and complaint.search(output)
    )


def _compiled_headers(
    store: Store, source: str, include: Path, compiler: Compiler, flags: Sequence[str]
) -> Path | None:
    """Where headers compiled for these flags are, if they are of use to this source."""
    if _FEW_LIBRARIES not in flags or not begins_with_it(source):  # not GCC, or not as it comes
        return None

    def compile_to(path: Path) -> bool:
        own = [flag for flag in flags if not flag.startswith(_BEHIND)]
        return _invoke(compiler, include / HEADER, path, [include], [*own, "-xc++-header"])[0] == 0

    key = _key("compiled headers", include, compiler, flags)
    return _headers.folder(store, key, compile_to)


def _invoke(
    compiler: Compiler, source: Path, result: Path, folders: Sequence[Path], flags: Sequence[str]
) -> tuple[int, str]:
    command = [
        compiler.path,
        *compiler.command[1:],
        *(flag for flag in flags if not flag.startswith(_BEHIND)),
        *(f"-I{folder}" for folder in folders),
        str(source),
        "-o",
        str(result),
        *(flag for flag in flags if flag.startswith(_BEHIND)),
    ]
    try:
        return run(command, COMPILE_TIMEOUT)
    except OSError as error:
        raise BuildError(f"{compiler.command[0]} does not start: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        return 1, f"the compiler was stopped after {COMPILE_TIMEOUT:g} seconds"


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _after_fork() -> None:
    global _headers, _forked
    _headers = CompiledHeaders()
    _forked = True


_lock = forks.lock()
_headers = CompiledHeaders()
_forked = False
_loaded: dict[str, ctypes.CDLL] = {}
_refused_flags: dict[Compiler, frozenset[str]] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
