"""Every environment variable that fusec reads, typed, in one place. May import the stdlib only.

Read once, at first use; `override` changes settings for a block, `reload` reads them again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_DEFAULT_COMPILERS = (("c++",), ("g++",), ("clang++",))
_FALSE_WORDS = frozenset({"", "0", "false", "no", "off"})
# Variables of Triton's compiler that change the binary it makes: part of the cache key.
_TOOL_PREFIXES = ("TRITON_", "LLVM_", "MLIR_", "NVPTX_", "PTXAS_", "AMDGCN_", "DISABLE_")
# Those that say where Triton puts things, and not what it makes.
_PLACES = re.compile(r"TRITON_(HOME|INTERPRET|.*(_DIR|_CACHE_MANAGER|_BACKEND|_PATH))")


class Settings(NamedTuple):
    """What the environment says; each field names its variable."""

    cache_dir: Path | None = None  # FUSEC_CACHE_DIR: where built kernels are kept
    debug: int = 0  # FUSEC_DEBUG: 0 (silent) to 5 (assembly)
    cxx: tuple[tuple[str, ...], ...] = _DEFAULT_COMPILERS  # FUSEC_CXX, else CXX and usual names
    cxxflags: tuple[str, ...] = ()  # FUSEC_CXXFLAGS: appended to the compiler's command line
    num_threads: int | None = None  # FUSEC_NUM_THREADS: threads of a CPU kernel
    no_cache: bool = False  # FUSEC_NO_CACHE: build everything again in this process
    no_helper: bool = False  # FUSEC_NO_HELPER: Triton kernels of models are built in this process
    no_launcher: bool = False  # FUSEC_NO_LAUNCHER: every call goes through Python
    no_pool: bool = False  # FUSEC_NO_POOL: give the memory of CPU results back at once
    nvrtc: Path | None = None  # FUSEC_NVRTC: the library libnvrtc.so
    cuda_home: Path | None = None  # CUDA_HOME, CUDA_PATH: the CUDA toolkit
    dump: Path | None = None  # FUSEC_DUMP: directory that receives the stages of each compilation
    tool_environment: tuple[tuple[str, str], ...] = ()  # foreign variables, for cache keys only

    def compiler_environment(self) -> list[tuple[str, str]]:
        """The foreign variables that change what Triton makes, or what it prints."""
        return [item for item in self.tool_environment if not _PLACES.match(item[0])]


def from_environment(environment: Mapping[str, str]) -> Settings:
    """The settings that `environment` asks for; ValueError names a variable with a bad value."""
    return Settings(
        cache_dir=_path(environment, "FUSEC_CACHE_DIR"),
        debug=_integer(environment, "FUSEC_DEBUG", 0, 5) or 0,
        cxx=_compilers(environment),
        cxxflags=_words(environment, "FUSEC_CXXFLAGS"),
        num_threads=_integer(environment, "FUSEC_NUM_THREADS", 1, 65536),
        no_cache=_flag(environment, "FUSEC_NO_CACHE"),
        no_helper=_flag(environment, "FUSEC_NO_HELPER"),
        no_launcher=_flag(environment, "FUSEC_NO_LAUNCHER"),
        no_pool=_flag(environment, "FUSEC_NO_POOL"),
        nvrtc=_path(environment, "FUSEC_NVRTC"),
        cuda_home=_path(environment, "CUDA_HOME") or _path(environment, "CUDA_PATH"),
        dump=_path(environment, "FUSEC_DUMP"),
        tool_environment=tuple(
            sorted(pair for pair in environment.items() if pair[0].startswith(_TOOL_PREFIXES))
        ),
    )


def get() -> Settings:
    """The settings in force."""
    return _current or reload()


def reload() -> Settings:
    """Read the environment again and return what it says."""
    global _current
    _current = from_environment(os.environ)
    return _current


@contextmanager
def override(**changes: object) -> Iterator[Settings]:
    """Put other values in force for a block, in every thread: `override(debug=3)`."""
    global _current
    before = get()
    _current = Settings(**{**before._asdict(), **changes})
    try:
        yield _current
    finally:
        _current = before


def child_environment(**changes: str) -> dict[str, str]:
    """A copy of this process's environment with `changes`, to start a helper process with."""
    return {**os.environ, **changes}


def show_one_gpu(number: int) -> None:
    """Let this process and its children see one of its GPUs, before CUDA is started in it."""
    shown = _words(os.environ, "CUDA_VISIBLE_DEVICES")
    numbers = shown[0].split(",") if shown else []
    os.environ["CUDA_VISIBLE_DEVICES"] = numbers[number] if number < len(numbers) else str(number)


def _flag(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").strip().lower() not in _FALSE_WORDS


def _words(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    if not (text := environment.get(name, "")):
        return ()
    import shlex

    return tuple(shlex.split(text))


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    return Path(text).expanduser() if (text := environment.get(name, "")) else None


def _integer(environment: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    if not (text := environment.get(name, "").strip()):
        return None
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ValueError(f"{name} must be an integer from {low} to {high}, got {text!r}")
    return int(text)


def _compilers(environment: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    chosen = _words(environment, "FUSEC_CXX")
    if chosen:
        return (chosen,)
    usual = _words(environment, "CXX")
    return (usual, *_DEFAULT_COMPILERS) if usual else _DEFAULT_COMPILERS


_current: Settings | None = None
