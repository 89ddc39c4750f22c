"""Building C++: flags, the cache, errors of the compiler, compilers that hang or lack a flag."""

import ctypes
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from fusec import settings
from fusec.errors import BuildError, UnsupportedError
from fusec.runtime import build_cpp as module
from fusec.runtime.build_cpp import build_cpp, default_flags, find_compiler, is_gcc_for_linux

SOURCE = """
#include "scale.h"
extern "C" void run(const float *x, float *y, long n) {
#pragma omp parallel for simd
  for (long i = 0; i < n; ++i) y[i] = SCALE * x[i];
}
extern "C" int threads_known() {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}
"""


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_loaded", {})  # what other tests have loaded stays loaded
    monkeypatch.setattr(module, "_refused_flags", {})
    module._identified.cache_clear()
    with settings.override(cache_dir=tmp_path / "cache"):
        yield
    module._identified.cache_clear()


@pytest.fixture
def include(tmp_path: Path) -> Path:
    folder = tmp_path / "include"
    folder.mkdir()
    (folder / "scale.h").write_text("#define SCALE 3.0f\n")
    return folder


def run(library: ctypes.CDLL, numbers: list[float]) -> list[float]:
    array = ctypes.c_float * len(numbers)
    x, y = array(*numbers), array()
    library.run(x, y, ctypes.c_long(len(numbers)))
    return list(y)


def no_subprocess(*arguments: object, **options: object) -> None:
    raise AssertionError("a warm process starts no subprocess")


def test_a_kernel_is_built_and_runs(include: Path) -> None:
    library = build_cpp(SOURCE, include)
    assert run(library, [1.0, 2.5]) == [3.0, 7.5]
    assert build_cpp(SOURCE, include) is library


def test_a_warm_process_starts_no_subprocess(
    include: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_cpp(SOURCE, include)
    module._loaded.clear()
    module._identified.cache_clear()
    monkeypatch.setattr(subprocess, "Popen", no_subprocess)
    assert run(build_cpp(SOURCE, include), [2.0]) == [6.0]


def test_a_header_is_part_of_the_key(include: Path) -> None:
    build_cpp(SOURCE, include)
    (include / "scale.h").write_text("#define SCALE 5.0f\n")
    assert run(build_cpp(SOURCE, include), [2.0]) == [10.0]


def test_flags_are_part_of_the_key(include: Path) -> None:
    source = 'extern "C" int value() { return VALUE; }'
    assert build_cpp(source, include, flags=["-DVALUE=1"]).value() == 1
    assert build_cpp(source, include, flags=["-DVALUE=2"]).value() == 2
    with settings.override(cxxflags=("-DVALUE=3",)):
        assert build_cpp(source, include).value() == 3


def test_the_vector_width_follows_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = "-mprefer-vector-width=512"
    monkeypatch.setattr(module, "processor_features", lambda: frozenset({"avx2"}))
    assert wide not in default_flags()
    monkeypatch.setattr(module, "processor_features", lambda: frozenset({"avx512f"}))
    assert wide in default_flags()


def test_a_damaged_library_is_rebuilt(include: Path, tmp_path: Path) -> None:
    build_cpp(SOURCE, include)
    module._loaded.clear()
    for path in (tmp_path / "cache").rglob("kernel.so"):
        # A new file: the old one is mapped into this process, and must keep its content.
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[: len(content) // 2])
    assert run(build_cpp(SOURCE, include), [2.0]) == [6.0]


def test_an_error_of_the_compiler_is_shown_and_the_source_kept(include: Path) -> None:
    with pytest.raises(BuildError, match="could not compile") as caught:
        build_cpp("int broken( {", include)
    assert "error" in caught.value.tool_output
    assert caught.value.source_path is not None
    assert Path(caught.value.source_path).read_text() == "int broken( {"


def test_no_compiler_is_an_error_of_its_own(include: Path) -> None:
    with (
        settings.override(cxx=(("no-such-compiler",),)),
        pytest.raises(UnsupportedError, match="no C\\+\\+ compiler"),
    ):
        build_cpp(SOURCE, include)


def wrapper(tmp_path: Path, body: str) -> tuple[str, ...]:
    compiler = find_compiler()
    assert compiler is not None
    script = tmp_path / "compiler"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && {{ echo wrapper 1; exit 0; }}\n{body}\n'
        f'exec {compiler.path} "$@"\n'
    )
    script.chmod(0o755)
    return (str(script),)


@pytest.mark.parametrize(
    ("flag", "complaint", "openmp"),
    [
        ("-fopenmp", "error: unsupported option '-fopenmp'", 0),
        ("-march=native", "error: the clang compiler does not support '-march=native'", 1),
    ],
)
def test_a_flag_that_the_compiler_lacks_is_left_out(
    tmp_path: Path, include: Path, flag: str, complaint: str, openmp: int
) -> None:
    body = f'for a in "$@"; do [ "$a" = {flag} ] && {{ echo "{complaint}" >&2; exit 1; }}; done'
    with settings.override(cxx=(wrapper(tmp_path, body),)):
        library = build_cpp(SOURCE, include)
    assert run(library, [2.0]) == [6.0]
    assert library.threads_known() == openmp


def needed(tmp_path: Path) -> list[str]:
    """The libraries that the one built library names."""
    (path,) = (tmp_path / "cache").rglob("kernel.so")
    content = path.read_bytes()
    return re.findall(r"lib\w+(?:\+\+)?\.so", content.decode("latin-1"))


# Others are linked as they come, which all tests of builds do. .ci/run installs GCC.
gcc_only = pytest.mark.skipif(
    not is_gcc_for_linux(find_compiler()), reason="only GCC for Linux is told its libraries"
)


@gcc_only
def test_the_c_and_openmp_libraries_are_named_and_no_other(include: Path, tmp_path: Path) -> None:
    library = build_cpp(SOURCE, include)
    assert run(library, [2.0]) == [6.0]
    assert library.threads_known() == 1
    assert "libgomp.so" in needed(tmp_path)
    assert "libstdc++.so" not in needed(tmp_path)


@gcc_only
def test_a_library_that_is_not_named_is_found_all_the_same(include: Path) -> None:
    source = '#include <new>\nextern "C" int* one() { return new int(1); }'
    library = build_cpp(source, include)
    library.one.restype = ctypes.POINTER(ctypes.c_int)
    assert library.one()[0] == 1
    assert not any(module._refused_flags.values())  # the next kernel is linked as ever
    assert run(build_cpp(SOURCE, include), [2.0]) == [6.0]


@gcc_only
def test_a_linker_that_refuses_the_list_of_libraries_gets_none(
    tmp_path: Path, include: Path
) -> None:
    body = (
        'for a in "$@"; do [ "$a" = -lgcc ] && { echo "ld: cannot find -lgcc" >&2; exit 1; }; done'
    )
    command = wrapper(tmp_path, body)
    script = Path(command[0])
    script.write_text(script.read_text().replace("wrapper 1", "Free Software Foundation"))
    with settings.override(cxx=(command,)):
        library = build_cpp(SOURCE, include)
    assert run(library, [2.0]) == [6.0]
    assert library.threads_known() == 1  # nothing else was given up


@gcc_only
def test_flags_of_the_user_keep_the_libraries_of_the_compiler() -> None:
    compiler = find_compiler()
    assert compiler is not None
    assert "-nodefaultlibs" in module._arguments(compiler, ())
    with settings.override(cxxflags=("-DUNUSED",)):
        assert "-nodefaultlibs" not in module._arguments(compiler, ())


def test_a_compiler_that_hangs_is_killed(
    tmp_path: Path, include: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPILE_TIMEOUT", 0.3)
    with (
        settings.override(cxx=(wrapper(tmp_path, "sleep 60"),)),
        pytest.raises(BuildError) as caught,
    ):
        build_cpp(SOURCE, include)
    assert "stopped after" in caught.value.tool_output


def test_a_compiler_that_is_killed_is_reported(tmp_path: Path, include: Path) -> None:
    with (
        settings.override(cxx=(wrapper(tmp_path, "kill -9 $$"),)),
        pytest.raises(BuildError) as caught,
    ):
        build_cpp(SOURCE, include)
    assert "killed by signal 9" in caught.value.tool_output


def test_an_interrupt_leaves_no_temporary_and_no_compiler(tmp_path: Path) -> None:
    (tmp_path / "slow").write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo slow 1; exit 0; }\n'
        f"echo $$ > {tmp_path}/pid\nexec sleep 60\n"
    )
    (tmp_path / "slow").chmod(0o755)
    code = f"""
        import os, pathlib, signal, threading, time
        from fusec import settings
        from fusec.runtime.build_cpp import build_cpp
        # A shell starts what runs in the background with interrupts ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pid = pathlib.Path({str(tmp_path)!r}) / "pid"
        def interrupt():
            while not (pid.exists() and pid.read_text()):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        root = pathlib.Path({str(tmp_path)!r}) / "root"
        with settings.override(cxx=(({str(tmp_path / "slow")!r},),), cache_dir=root):
            try:
                build_cpp("", pathlib.Path({str(tmp_path)!r}) / "none")
            except KeyboardInterrupt:
                assert list((root / "tmp").iterdir()) == []
                try:
                    os.kill(int(pid.read_text()), 0)
                except ProcessLookupError:
                    print("clean")
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    assert (finished.stdout, finished.stderr) == ("clean\n", "")


def test_threads_share_one_build(include: Path) -> None:
    libraries: list[ctypes.CDLL] = []
    threads = [
        threading.Thread(target=lambda: libraries.append(build_cpp(SOURCE, include)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, libraries))) == 1


def test_a_forked_child_runs_one_thread(include: Path, tmp_path: Path) -> None:
    source = SOURCE.replace("long n) {", "long n, int threads) {", 1)
    source = source.replace("for simd", "for simd num_threads(threads)")
    code = f"""
        import ctypes, os, pathlib
        from fusec import settings
        from fusec.runtime.build_cpp import build_cpp, may_use_threads
        with settings.override(cache_dir=pathlib.Path({str(tmp_path / "cache")!r})):
            library = build_cpp({source!r}, pathlib.Path({str(include)!r}))
        x, y = (ctypes.c_float * 4096)(), (ctypes.c_float * 4096)()
        def run():
            library.run(x, y, ctypes.c_long(4096), 2 if may_use_threads() else 1)
        run()
        child = os.fork()
        if child == 0:
            run()
            os._exit(1 if may_use_threads() else 0)
        print(os.waitpid(child, 0)[1], may_use_threads())
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    assert (finished.stdout, finished.stderr) == ("0 True\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
@pytest.mark.parametrize("order", ["torch first", "kernel first"])
def test_one_openmp_runtime_serves_torch_and_kernels(
    include: Path, tmp_path: Path, order: str
) -> None:
    code = f"""
        import ctypes, pathlib
        from fusec import settings
        from fusec.runtime.build_cpp import build_cpp
        if {order == "torch first"}:
            import torch
        with settings.override(cache_dir=pathlib.Path({str(tmp_path / "cache")!r})):
            library = build_cpp({SOURCE!r}, pathlib.Path({str(include)!r}))
        x, y = (ctypes.c_float * 4096)(), (ctypes.c_float * 4096)()
        library.run(x, y, ctypes.c_long(4096))
        import torch
        torch.ones(1 << 20).exp()
        with open("/proc/self/maps") as maps:
            print(len({{line.split()[-1] for line in maps if "libgomp" in line}}))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (finished.stdout, finished.stderr) == ("1\n", "")
