"""The store: damage, concurrency, directories that cannot be used, pruning."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import fusec
from fusec import settings
from fusec.runtime import cache
from fusec.runtime.cache import MANIFEST, CacheWarning, Store, default_store, digest
from tests.work import calls

KEY = digest({"kind": "test"})
FILES = {"kernel.ptx": b"text", "kernel.cubin": bytes(range(256)) * 400}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "root")


def test_an_entry_comes_back(store: Store) -> None:
    assert store.get(KEY) is None
    put = store.put(KEY, FILES)
    got = Store(store.root).get(KEY)
    assert got is not None
    assert got.files == put.files == FILES
    path = got.path("kernel.ptx")
    assert path is not None
    assert path.read_bytes() == b"text"


def test_the_directory_is_private(store: Store) -> None:
    store.put(KEY, FILES)
    assert store.root is not None
    modes = {path.stat().st_mode & 0o777 for path in store.root.rglob("*") if path.is_dir()}
    assert modes == {0o700}
    assert store.root.stat().st_mode & 0o777 == 0o700


def test_digest_separates_parts_and_ignores_order() -> None:
    assert digest({"a": "1", "b": b"2"}) == digest({"b": "2", "a": "1"})
    assert digest({"a": "12", "b": ""}) != digest({"a": "1", "b": "2"})
    assert digest({"ab": ""}) != digest({"a": "b"})


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "ABCDEF0123456789", "ab"])
def test_keys_are_checked(store: Store, key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        store.get(key)


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", MANIFEST, ""])
def test_file_names_are_checked(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        store.put(KEY, {name: b""})


def test_a_valid_entry_stays(store: Store) -> None:
    store.put(KEY, {"a": b"first"})
    assert store.put(KEY, {"a": b"second"}).files == {"a": b"first"}


@pytest.mark.parametrize("name", [MANIFEST, *FILES])
@pytest.mark.parametrize("damage", ["truncate", "empty", "flip", "delete"])
def test_damage_counts_as_absent_and_is_repaired(store: Store, name: str, damage: str) -> None:
    path = store.put(KEY, FILES).path(name)
    assert path is not None
    content = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(content[:-1])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "flip":
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    else:
        path.unlink()
    assert store.get(KEY) is None
    store.put(KEY, FILES)
    entry = store.get(KEY)
    assert entry is not None
    assert entry.files == FILES


@pytest.mark.parametrize("manifest", ["[]", "null", '{"format": 1}', '{"format": 1, "key": 3}'])
def test_a_strange_manifest_counts_as_absent(store: Store, manifest: str) -> None:
    path = store.put(KEY, FILES).path(MANIFEST)
    assert path is not None
    path.write_text(manifest)
    assert store.get(KEY) is None


def test_an_entry_moved_to_another_key_is_not_loaded(store: Store) -> None:
    entry = store.put(KEY, FILES)
    other = digest({"kind": "other"})
    target = store._directory(other)
    assert entry.directory is not None
    assert target is not None
    target.parent.mkdir(exist_ok=True)
    entry.directory.rename(target)
    assert store.get(other) is None


def test_a_manifest_cannot_name_a_file_elsewhere(store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"text")
    path = store.put(KEY, FILES).path(MANIFEST)
    assert path is not None
    manifest = json.loads(path.read_text())
    manifest["files"] = {"../../../secret": manifest["files"]["kernel.ptx"]}
    path.write_text(json.dumps(manifest))
    assert store.get(KEY) is None


HAMMER = """
import sys, os, random
from pathlib import Path
from fusec.runtime.cache import Store, digest
store = Store(Path(sys.argv[1]))
random.seed(os.getpid())
files = {"a": b"x" * 5000, "b": b"y" * 70000}
for turn in range(150):
    key = digest({"turn": str(turn // 50)})
    entry = store.get(key) or store.put(key, files)
    assert entry.files == files
    chance = random.random()
    if chance < 0.2:
        try:
            entry.path("b").write_bytes(b"damage")
        except OSError:
            pass
    elif chance < 0.4:
        store.remove(key)
assert store.root == Path(sys.argv[1])
"""


def test_processes_that_hammer_one_key(tmp_path: Path) -> None:
    root = tmp_path / "root"
    command = [sys.executable, "-W", "error", "-c", HAMMER, str(root)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert errors == [b""] * 4
    assert list((root / "tmp").iterdir()) == []


def test_a_killed_writer_leaves_nothing_visible(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom fusec.runtime import cache\n"
        "os.rename = lambda *names: os.kill(os.getpid(), signal.SIGKILL)\n"
        "cache.Store(Path(sys.argv[1])).put('ab' * 32, {'a': b'1'})"
    )
    root = tmp_path / "root"
    finished = subprocess.run([sys.executable, "-c", code, str(root)], check=False)
    assert finished.returncode == -9
    store = Store(root)
    assert store.get("ab" * 32) is None
    left = list((root / "tmp").iterdir())
    assert len(left) == 1
    store.prune()
    assert left[0].exists(), "a fresh temporary may belong to a process that still runs"
    os.utime(left[0], (0, 0))
    store.prune()
    assert not left[0].exists()
    assert store.put("ab" * 32, {"a": b"2"}).files == {"a": b"2"}


def test_a_root_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    root.chmod(0o777)
    with pytest.warns(CacheWarning, match="other users can write"):
        store = Store(root)
    store.put(KEY, FILES)
    assert store.get(KEY) is not None
    assert store.root is not None
    assert store.root.stat().st_mode & 0o777 == 0o700
    assert list(root.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_root_of_another_user_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "foreign"
    root.mkdir(mode=0o700)
    os.chown(root, 12345, 12345)
    with pytest.warns(CacheWarning, match="another user"):
        assert Store(root).root != root


def test_a_root_that_is_a_file_is_not_fatal(tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.write_text("")
    with pytest.warns(CacheWarning):
        store = Store(root)
    assert store.put(KEY, FILES).files == FILES
    assert store.get(KEY) is not None


def test_a_root_that_cannot_be_made_is_not_fatal() -> None:
    with pytest.warns(CacheWarning):
        store = Store(Path("/proc/nowhere/fusec"))
    store.put(KEY, FILES)
    assert store.get(KEY) is not None


def test_a_full_disk_is_not_fatal(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    root = store.root

    def full(at: Path, *rest: object) -> cache.Entry:
        if at == root:
            raise OSError(28, "No space left on device")
        return publish(at, *rest)

    publish = cache._publish
    monkeypatch.setattr(cache, "_publish", full)
    with pytest.warns(CacheWarning, match="No space left"):
        entry = store.put(KEY, FILES)
    store.put(digest({"another": ""}), FILES)  # a second warning would be an error here
    assert entry.path("kernel.ptx") is not None
    assert store.get(KEY) is not None


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EDQUOT, errno.EOPNOTSUPP, errno.EINVAL])
def test_builds_go_where_there_is_room(
    store: Store, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    asked = []

    def allocate(descriptor: int, offset: int, size: int) -> None:
        asked.append(size)
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(os, "posix_fallocate", allocate, raising=False)
    root = store.root
    assert root is not None
    with store.scratch() as directory:
        (directory / "kernel.so").write_bytes(b"code")
        full = problem in (errno.ENOSPC, errno.EDQUOT)
        assert directory.is_relative_to(root) is not full
        assert [p.name for p in directory.iterdir()] == ["kernel.so"]
    assert asked == [cache.BUILD_ROOM]
    assert not directory.exists()
    assert list((root / "tmp").iterdir()) == []


def test_with_a_full_disk_kernels_are_built_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, publish = tmp_path / "cache", cache._publish

    def full(at: Path, *rest: Any) -> cache.Entry:
        if at == root:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return publish(at, *rest)

    def has_room(directory: Path) -> bool:
        return not directory.is_relative_to(root)

    monkeypatch.setattr(cache, "_publish", full)
    monkeypatch.setattr(cache, "_has_room", has_room)
    monkeypatch.setattr(cache, "_warned", set())
    x = torch.randn(3, 5)
    function = fusec.compile("x * 1.75 + sum(x)")
    with settings.override(cache_dir=root):
        with pytest.warns(CacheWarning, match="No space left"):
            result = function(x)
        assert ".target sm_90" in function.show("ptx", x, target="sm_90")
    torch.testing.assert_close(result, x * 1.75 + x.sum(-1, keepdim=True))
    assert not [p for p in root.rglob("*") if p.is_file()]


def test_without_any_directory_entries_live_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_private_directory", lambda: None)
    with pytest.warns(CacheWarning):
        store = Store(Path("/proc/nowhere/else"))
    entry = store.put(KEY, FILES)
    assert entry.path("kernel.ptx") is None
    assert store.get(KEY) is entry


def test_pruning_removes_what_was_used_longest_ago(tmp_path: Path) -> None:
    store = Store(tmp_path / "root", size_limit=25_000)
    keys = [digest({"number": str(number)}) for number in range(4)]
    for age, key in enumerate(keys):
        entry = store.put(key, {"a": b"x" * 10_000})
        assert entry.directory is not None
        for path in entry.directory.iterdir():
            os.utime(path, (time.time() - 10_000 * (10 - age),) * 2)
    assert store.get(keys[0]) is not None  # a use makes it young again
    store.prune()
    assert [store.get(key) is not None for key in keys] == [True, False, False, True]


def test_default_store_follows_the_settings(tmp_path: Path) -> None:
    with settings.override(cache_dir=tmp_path / "one"):
        assert default_store().root == tmp_path / "one"
        assert default_store() is default_store()
    with settings.override(cache_dir=tmp_path / "two"):
        assert default_store().root == tmp_path / "two"
    with settings.override(cache_dir=tmp_path / "one", no_cache=True):
        assert default_store().root != tmp_path / "one"


def test_a_hit_is_little_work(store: Store) -> None:
    store.put(KEY, FILES)
    assert calls(lambda: store.get(KEY)) < 500
