"""A content-addressed store of built kernels. May import the standard library, settings and errors.

An entry is a directory of files beside a manifest with a checksum for each. It appears by one
rename of a complete directory, so a reader sees all of it or nothing, whatever other processes do
and whenever they are killed. A damaged entry counts as absent. Trouble with the disk is never
fatal: the store warns once and goes on in a private temporary directory, or in memory.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusec import settings
from fusec.version import __version__

MANIFEST = "manifest.json"
DEFAULT_SIZE_LIMIT = 2 << 30  # bytes
BUILD_ROOM = 4 << 20  # bytes that a build may need on its way
_FORMAT = 1
_HOUR = 3600.0  # seconds
_KEY = re.compile(r"[0-9a-f]{16,64}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


class CacheWarning(UserWarning):
    """The cache cannot use its directory; kernels are kept elsewhere and not for the next run."""


@dataclass(frozen=True)
class Entry:
    """A verified entry: its files' contents, and their directory (None when held in memory)."""

    key: str
    files: Mapping[str, bytes]
    directory: Path | None

    def path(self, name: str) -> Path | None:
        """Where file `name` lies on disk, or None."""
        return None if self.directory is None else self.directory / name


def digest(parts: Mapping[str, str | bytes]) -> str:
    """The key (64 hexadecimal digits) of named parts, whatever their order."""
    state = hashlib.sha256()
    for name in sorted(parts):
        value = parts[name]
        for piece in (name.encode(), value if isinstance(value, bytes) else value.encode()):
            # The length goes first, so that no two lists of parts run together to the same bytes.
            state.update(len(piece).to_bytes(8, "little"))
            state.update(piece)
    return state.hexdigest()


@functools.cache
def checkout() -> Mapping[str, str]:
    """Parts of a key that change with fusec: its version, and the state of each of its files.

    A developer's edits count, which the version does not know of.
    """
    state = hashlib.sha256()
    folders = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    while folders:
        with os.scandir(folders.pop()) as listed:
            found = sorted(listed, key=lambda item: item.name)
        for item in found:
            if item.is_dir() and item.name != "__pycache__":
                folders.append(item.path)
            elif item.is_file():
                facts = item.stat()
                state.update(f"{item.path} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return {"fusec": __version__, "sources": state.hexdigest()}


def default_root() -> Path:
    """FUSEC_CACHE_DIR, or the user's cache directory."""
    chosen = settings.get().cache_dir
    if chosen is not None:
        return chosen
    import platformdirs

    return Path(platformdirs.user_cache_dir("fusec", appauthor=False))


def default_store() -> Store:
    """The store of the settings in force; with FUSEC_NO_CACHE, a private one for this process."""
    root = None if settings.get().no_cache else default_root()
    store = _stores.get(root)
    if store is None:
        store = _stores.setdefault(root, Store(root))
    return store


class Store:
    """A directory of entries. `root=None` keeps them in a temporary directory of this process."""

    def __init__(self, root: Path | None, *, size_limit: int = DEFAULT_SIZE_LIMIT) -> None:
        self._wanted = root
        self._size_limit = size_limit
        self._memory: dict[str, Entry] = {}
        self._private: Store | None = None
        self._root = _private_directory() if root is None else self._open(Path(root))

    @property
    def root(self) -> Path | None:
        """The directory in use; None when neither the wanted nor a temporary one can be used."""
        return self._root

    def get(self, key: str, only: Sequence[str] | None = None) -> Entry | None:
        """The entry of `key`, every checksum verified; None when absent or damaged.

        With ``only``, the files of these names are read and verified, and no others.
        """
        directory = self._directory(key)
        entry = None if directory is None else _read_entry(directory, key, only)
        if entry is not None:
            return entry
        if self._private is not None and (entry := self._private.get(key)) is not None:
            return entry
        return self._memory.get(key)

    def put(self, key: str, files: Mapping[str, bytes]) -> Entry:
        """Store `files` under `key` and return the entry; a valid entry already there stays."""
        for name in files:
            if name == MANIFEST or not _FILE_NAME.fullmatch(name):
                raise ValueError(f"not a name for a file in the cache: {name!r}")
        directory = self._directory(key)
        if directory is not None and self._root is not None:
            try:
                entry = _publish(self._root, directory, key, files)
                self._maintain(self._root)
                return entry
            except OSError as error:
                self._warn(f"cannot write to the cache directory {self._root}: {error.strerror}")
        return self._put_elsewhere(key, files)

    def scratch(self) -> contextlib.AbstractContextManager[Path]:
        """A scratch directory for a build, removed at the end of the block."""
        return _scratch(self._root)

    def remove(self, key: str) -> None:
        """Forget the entry of `key`, if there is one."""
        directory = self._directory(key)
        if directory is not None and self._root is not None:
            _discard(self._root, directory)
        if self._private is not None:
            self._private.remove(key)
        self._memory.pop(key, None)

    def prune(self) -> None:
        """Remove stale temporaries, then the entries used longest ago until the size fits."""
        if self._root is None:
            return
        _remove_stale(self._root / "tmp")
        entries = sorted(_sizes(self._root))
        total = sum(size for _, size, _ in entries)
        for _, size, directory in entries:
            if total <= self._size_limit:
                return
            _discard(self._root, directory)
            total -= size

    def _open(self, root: Path) -> Path | None:
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            problem = _unsafe(root)
        except OSError as error:
            problem = error.strerror or str(error)
        if problem is None:
            return root
        self._warn(f"not using the cache directory {root}: {problem}")
        return _private_directory()

    def _directory(self, key: str) -> Path | None:
        if not _KEY.fullmatch(key):
            raise ValueError(f"not a cache key: {key!r}")
        return None if self._root is None else self._root / key[:2] / key[2:]

    def _put_elsewhere(self, key: str, files: Mapping[str, bytes]) -> Entry:
        if self._private is None and self._wanted is not None:
            self._private = Store(None)
        private = self._private
        if private is not None and private.root is not None and private.root != self._root:
            return private.put(key, files)
        entry = Entry(key, dict(files), None)
        self._memory[key] = entry
        return entry

    def _maintain(self, root: Path) -> None:
        stamp = root / "pruned"
        with contextlib.suppress(OSError):
            if stamp.exists() and time.time() - stamp.stat().st_mtime < _HOUR:
                return
            stamp.touch(mode=0o600)
            self.prune()

    def _warn(self, problem: str) -> None:
        if problem in _warned:
            return
        _warned.add(problem)
        warnings.warn(
            f"{problem}; kernels built now are not kept for the next run (FUSEC_CACHE_DIR "
            "names another directory)",
            CacheWarning,
            stacklevel=4,
        )


def _unsafe(root: Path) -> str | None:
    """Why code must not be loaded from `root`, or None.

    Whoever can write there can run code as this user. The superuser could write anywhere anyway, so
    a directory that root owns is fine for everyone; for root itself, one of another user is not.
    """
    if not hasattr(os, "getuid"):
        return None
    facts = root.stat()
    if not stat.S_ISDIR(facts.st_mode):
        return "it is not a directory"
    if facts.st_uid not in (os.getuid(), 0):
        return f"it belongs to another user (uid {facts.st_uid})"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users can write to it (chmod go-w would change that)"
    return None


def _read_entry(directory: Path, key: str, only: Sequence[str] | None = None) -> Entry | None:
    """The entry in `directory`; None unless every file has the checksum it was stored with."""
    base = str(directory)
    try:
        with open(os.path.join(base, MANIFEST), "rb") as stream:
            age = time.time() - os.fstat(stream.fileno()).st_mtime
            manifest = json.loads(stream.read())
        if manifest["format"] != _FORMAT or manifest["key"] != key:
            return None
        if not set(only or ()) <= manifest["files"].keys():
            return None
        files: dict[str, bytes] = {}
        for name, checksum in manifest["files"].items():
            if only is not None and name not in only:
                continue
            if not _FILE_NAME.fullmatch(name):
                return None
            with open(os.path.join(base, name), "rb") as stream:
                content = stream.read()
            if hashlib.sha256(content).hexdigest() != checksum:
                return None
            files[name] = content
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # absent, or a manifest that was not written whole
    if age > _HOUR:
        with contextlib.suppress(OSError):  # marks the use, for pruning
            os.utime(os.path.join(base, MANIFEST))
    return Entry(key, files, directory)


def _publish(root: Path, directory: Path, key: str, files: Mapping[str, bytes]) -> Entry:
    manifest = {
        "format": _FORMAT,
        "key": key,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    with _scratch(root, strict=True) as scratch:
        for name, content in files.items():
            (scratch / name).write_bytes(content)
        (scratch / MANIFEST).write_text(json.dumps(manifest))
        directory.parent.mkdir(mode=0o700, exist_ok=True)
        for _ in range(16):  # each round loses only to another process that publishes or discards
            try:
                os.rename(scratch, directory)
                return Entry(key, dict(files), directory)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            present = _read_entry(directory, key)
            if present is not None:
                return present
            _discard(root, directory)
    raise OSError(errno.EBUSY, "another process keeps replacing the entry")


def _discard(root: Path, directory: Path) -> None:
    """Take an entry away in one step, so that no reader sees half of it, then delete it."""
    with contextlib.suppress(OSError), _scratch(root, strict=True) as trash:
        os.rename(directory, trash / "entry")


@contextlib.contextmanager
def _scratch(root: Path | None, *, strict: bool = False) -> Iterator[Path]:
    """A directory below `root`; the system's temporary directory when that fails, or has no room
    for a build, unless strict.
    """
    try:
        if root is None:
            raise OSError(errno.EBUSY, "no cache directory")
        (root / "tmp").mkdir(mode=0o700, exist_ok=True)
        path = Path(tempfile.mkdtemp(dir=root / "tmp"))
    except OSError:
        if strict:
            raise
        path = Path(tempfile.mkdtemp(prefix="fusec-"))
    else:
        if not strict and not _has_room(path):
            shutil.rmtree(path, ignore_errors=True)
            path = Path(tempfile.mkdtemp(prefix="fusec-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _has_room(directory: Path) -> bool:
    """Whether a build fits there: a compiler that finds out itself says so in words of its own."""
    file = directory / "room"
    try:
        with open(file, "wb") as stream:
            if hasattr(os, "posix_fallocate"):  # which asks quotas as well
                os.posix_fallocate(stream.fileno(), 0, BUILD_ROOM)
            elif shutil.disk_usage(directory).free < BUILD_ROOM:
                return False
    except OSError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    finally:
        file.unlink(missing_ok=True)
    return True


def _remove_stale(directory: Path) -> None:
    with contextlib.suppress(OSError):
        for path in list(directory.iterdir()):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _HOUR:
                    shutil.rmtree(path, ignore_errors=True)


def _sizes(root: Path) -> Iterator[tuple[float, int, Path]]:
    """(time of last use, bytes, directory) of each entry."""
    for directory in root.glob("[0-9a-f][0-9a-f]/*"):
        with contextlib.suppress(OSError):
            facts = [path.stat() for path in directory.iterdir()]
            used = max((fact.st_mtime for fact in facts), default=0.0)
            yield used, sum(fact.st_size for fact in facts), directory


def _private_directory() -> Path | None:
    """A temporary directory of this process, removed when it ends; None when there is no room."""
    try:
        path = Path(tempfile.mkdtemp(prefix="fusec-"))
    except OSError:
        return None
    atexit.register(_remove_if_owner, path, os.getpid())
    return path


def _remove_if_owner(path: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child leaves its parent's directory alone
        shutil.rmtree(path, ignore_errors=True)


_stores: dict[Path | None, Store] = {}
_warned: set[str] = set()
