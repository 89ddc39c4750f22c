"""The headers of generated C++, compiled once for all kernels. May import cache and errors.

Reading them is a tenth of a build. GCC takes a compiled form in the place of their text if the same
compiler made it with the same flags, and reads the text otherwise; the code of a kernel is the
same. It is made when a process builds its third kernel, kept in the cache, and done without
wherever there is trouble.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from fusec.errors import FusecError
from fusec.runtime.cache import Store

HEADER = "fusec.h"
COMPILED = f"{HEADER}.gch"
FIRST_KERNELS = 2  # of a process, that are built from the text of the headers
_ROOM = 64 << 20  # bytes: a disk with less is left to kernels


class CompiledHeaders:
    """Which compiled headers this process has found or made. For one thread at a time."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}
        self._folders: dict[str, Path | None] = {}

    def folder(self, store: Store, key: str, compile_to: Callable[[Path], bool]) -> Path | None:
        """A directory to search before that of the headers; None where there is none yet.

        ``compile_to`` writes the compiled form to a path and says whether it could.
        """
        if key in self._folders:
            return self._folders[key]
        asked = self._asked[key] = self._asked.get(key, 0) + 1
        entry = store.get(key)
        if entry is None and asked <= FIRST_KERNELS:
            return None
        self._folders[key] = entry.directory if entry else _made(store, key, compile_to)
        return self._folders[key]

    def forget(self, folder: Path) -> None:
        """Do without this one from now on."""
        for key, known in self._folders.items():
            if known == folder:
                self._folders[key] = None


def begins_with_it(source: str) -> bool:
    """Whether a source begins with the header: GCC takes the compiled form nowhere else."""
    lines = (line for line in source.splitlines() if line and not line.startswith("//"))
    return next(lines, "") == f'#include "{HEADER}"'


def _made(store: Store, key: str, compile_to: Callable[[Path], bool]) -> Path | None:
    root = store.root
    with contextlib.suppress(OSError, FusecError, subprocess.SubprocessError):
        # Whether kernels can be kept is for their own entries to complain of.
        if root is None or not os.access(root, os.W_OK) or shutil.disk_usage(root).free < _ROOM:
            return None
        with store.scratch() as scratch:
            if compile_to(scratch / COMPILED):
                return store.put(key, {COMPILED: (scratch / COMPILED).read_bytes()}).directory
    return None
