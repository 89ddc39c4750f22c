"""Compiling with Triton without its cache on disk. May import forks and errors.

Its usual place may be unwritable, and what it loads from there has no checksum; fusec's own store
keeps what comes out.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fusec import forks
from fusec.errors import UnsupportedError

_DISTRIBUTIONS = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")


@functools.cache
def triton_version() -> str:
    """The version of the installed Triton, read without importing it."""
    found = importlib.util.find_spec("triton")  # finds the package and does not import it
    if found is not None and found.origin is not None:
        with contextlib.suppress(OSError), open(found.origin, encoding="utf-8") as stream:
            stated = re.search(r"""^__version__ = ['"]([^'"]+)""", stream.read(4096), re.MULTILINE)
            if stated is not None:
                return stated[1]
    from importlib import metadata  # twenty milliseconds

    for name in _DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    raise UnsupportedError(
        "Triton is not installed", hint="GPU kernels need it: pip install 'triton>=3.4'"
    )


@contextlib.contextmanager
def private_cache(directory: Path) -> Iterator[None]:
    """Let Triton's own cache live in `directory` for compilations of this thread.

    Its usual place may be unwritable, and what it loads from there has no checksum. Other threads
    keep the cache they had.
    """
    from triton import knobs

    with _install_lock:
        if _chooser.users == 0:
            _chooser.install(knobs.cache)
            _skip_hashing()
        _chooser.users += 1
    _thread.directory = directory
    try:
        yield
    finally:
        _thread.directory = None
        with _install_lock:
            _chooser.users -= 1
            if _chooser.users == 0:
                _chooser.uninstall(knobs.cache)


@functools.cache
def _skip_hashing() -> None:
    """Spare compilations of this kind a hash of the whole of Triton, a third of a second, and a run
    of ``ptxas`` that only asks for its version.

    Both key Triton's own cache, which they do not use; other threads and callers have them as ever.
    """
    from triton.compiler import compiler
    from triton.runtime import cache

    module = cache if hasattr(cache, "triton_key") else compiler
    whole = module.triton_key

    @functools.wraps(whole)
    def triton_key() -> str:
        return triton_version() if _is_private() else whole()

    module.triton_key = triton_key
    if importlib.util.find_spec("triton.backends.nvidia") is None:
        return
    from triton.backends.nvidia.compiler import CUDABackend

    backend: Any = CUDABackend
    asking = backend.hash

    @functools.wraps(asking)
    def hash_of(self: Any) -> str:
        known: str = f"{triton_version()}-{self.target.arch}" if _is_private() else asking(self)
        return known

    backend.hash = hash_of


def _is_private() -> bool:
    """Whether this thread compiles without Triton's cache."""
    return getattr(_thread, "directory", None) is not None


class _Chooser:
    """Stands in for Triton's class of cache managers, and decides by thread."""

    def __init__(self) -> None:
        self.users = 0
        self._before: Callable[..., Any] | None = None
        self._was_set = False

    def install(self, cache_knobs: Any) -> None:
        self._was_set = "manager_class" in vars(cache_knobs)
        self._before = cache_knobs.manager_class
        cache_knobs.manager_class = self

    def uninstall(self, cache_knobs: Any) -> None:
        if self._was_set:
            cache_knobs.manager_class = self._before
        else:
            del cache_knobs.manager_class

    def __call__(self, key: str, **options: bool) -> Any:
        directory = getattr(_thread, "directory", None)
        if directory is not None:
            return _ScratchManager(directory)
        if self._before is not None:
            return self._before(key, **options)
        from triton.runtime.cache import FileCacheManager

        return FileCacheManager(key, **options)


class _ScratchManager:
    """The methods of Triton's cache managers over a directory that starts empty."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get_file(self, filename: str) -> str | None:
        path = self._directory / filename
        return str(path) if path.exists() else None

    def get_group(self, filename: str) -> None:
        return None

    def put(self, data: object, filename: str, binary: bool = True) -> str:
        path = self._directory / filename
        path.write_bytes(data if isinstance(data, bytes) else str(data).encode())
        return str(path)

    def put_group(self, filename: str, group: dict[str, str]) -> None:
        return None


_thread = threading.local()
_install_lock = forks.lock()
_chooser = _Chooser()
