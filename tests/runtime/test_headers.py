"""Compiled headers: the same libraries, made once, and done without wherever there is trouble."""

import ctypes
import shutil
from pathlib import Path

import pytest

from fusec import settings
from fusec.runtime import build_cpp as module
from fusec.runtime import headers
from fusec.runtime.build_cpp import build_cpp, build_library, find_compiler, is_gcc_for_linux
from fusec.runtime.cache import default_store

# Others read the text of the headers in every build, and have none of this; .ci/run installs GCC.
pytestmark = pytest.mark.skipif(
    not is_gcc_for_linux(find_compiler()), reason="only GCC for Linux has headers compiled"
)
INCLUDE = Path(module.__file__).parents[1] / "codegen" / "include"
BODIES = ("exp(x)", "erf(x)", "sin(x) + log(x)", "maximum(x, 2.0f)")


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_loaded", {})
    monkeypatch.setattr(module, "_refused_flags", {})
    monkeypatch.setattr(module, "_headers", headers.CompiledHeaders())
    with settings.override(cache_dir=tmp_path / "cache"):
        yield


@pytest.fixture
def include(tmp_path: Path) -> Path:
    folder = tmp_path / "include"
    folder.mkdir()
    (folder / "fusec.h").write_text("#define VALUE 3\n")
    return folder


def kernel(body: str) -> str:
    body = body.replace("exp(", "fusec::exp(").replace("erf(", "fusec::erf(")
    body = body.replace("sin(", "fusec::sin(").replace("log(", "fusec::log(")
    body = body.replace("maximum(", "fusec::maximum(")
    return (
        '// a kernel\n#include "fusec.h"\n\nextern "C" void run(const float* x_ptr, float* y, '
        "int64_t n) {\n  #pragma omp parallel for simd\n  for (int64_t i = 0; i < n; ++i) {\n"
        f"    const float x = x_ptr[i];\n    y[i] = {body};\n  }}\n}}\n"
    )


def constant(number: int) -> str:
    return f'#include "fusec.h"\nextern "C" int value() {{ return VALUE + {number}; }}\n'


def made(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache").rglob(headers.COMPILED))


def test_libraries_are_the_same_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = []
    for first in (1000, 0):
        monkeypatch.setattr(headers, "FIRST_KERNELS", first)
        with settings.override(cache_dir=tmp_path / "cache" / str(first)):
            keys = [build_library(kernel(body), INCLUDE)[0] for body in BODIES]
            found = [default_store().get(key) for key in keys]
        assert len(made(tmp_path)) == (0 if first else 1)
        libraries.append([one.files["kernel.so"] for one in found if one is not None])
        module._loaded.clear()
    assert len(libraries[0]) == len(BODIES)
    assert libraries[0] == libraries[1]


def test_they_are_made_for_the_third_kernel_and_found_by_the_next_process(
    tmp_path: Path, include: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        assert not made(tmp_path)
        assert build_cpp(constant(number), include).value() == 3 + number
    (path,) = made(tmp_path)
    monkeypatch.setattr(module, "_headers", headers.CompiledHeaders())
    searched = []
    run = module.run
    monkeypatch.setattr(module, "run", lambda c, t: searched.append(list(c)) or run(c, t))
    assert build_cpp(constant(9), include).value() == 12
    assert [f"-I{path.parent}" in command for command in searched] == [True]


def test_another_header_and_other_flags_have_their_own(
    tmp_path: Path, include: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "FIRST_KERNELS", 0)
    assert build_cpp(constant(0), include).value() == 3
    (include / "fusec.h").write_text("#define VALUE OTHER\n")
    assert build_cpp(constant(0), include, flags=["-DOTHER=5"]).value() == 5
    assert build_cpp(constant(0), include, flags=["-DOTHER=6"]).value() == 6
    assert len(made(tmp_path)) == 3


@pytest.mark.parametrize("content", [b"", b"gpch.014 of somebody else", None])
def test_damage_is_never_read(
    tmp_path: Path, include: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    monkeypatch.setattr(headers, "FIRST_KERNELS", 0)
    build_cpp(constant(0), include)
    (path,) = made(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    monkeypatch.setattr(module, "_headers", headers.CompiledHeaders())
    assert build_cpp(constant(1), include).value() == 4
    assert path.read_bytes() != whole[: len(whole) // 2]
    assert len(path.read_bytes()) > len(whole) // 2  # made again


def test_a_file_that_the_compiler_does_not_take_is_passed_over(
    include: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "FIRST_KERNELS", 0)

    def write_nonsense(store: object, key: str, compile_to: object) -> Path | None:
        return default_store().put(key, {headers.COMPILED: b"nonsense"}).directory

    monkeypatch.setattr(headers, "_made", write_nonsense)
    assert build_cpp(constant(1), include).value() == 4


def test_a_build_that_fails_with_them_is_tried_without(
    tmp_path: Path, include: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "FIRST_KERNELS", 0)
    run, tried = module.run, []

    def refuse(command: list[str], timeout: float) -> tuple[int, str]:
        compiled = any(f"-I{path.parent}" in command for path in made(tmp_path))
        tried.append(compiled)
        return (1, "fatal error: cannot relocate") if compiled else run(command, timeout)

    monkeypatch.setattr(module, "run", refuse)
    assert build_cpp(constant(1), include).value() == 4
    assert build_cpp(constant(2), include).value() == 5
    assert tried == [False, True, False, False]  # made, refused, without, and never again


@pytest.mark.parametrize("trouble", ["full disk", "no header", "compiler fails"])
def test_trouble_is_silent(
    tmp_path: Path, include: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(headers, "FIRST_KERNELS", 0)
    source = constant(1)
    if trouble == "full disk":
        usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    elif trouble == "no header":
        source = source.replace('#include "fusec.h"', "#define VALUE 3")
    else:
        run = module.run
        monkeypatch.setattr(
            module, "run", lambda c, t: (1, "no") if "-xc++-header" in c else run(c, t)
        )
    library: ctypes.CDLL = build_cpp(source, include)
    assert library.value() == 4
    assert not made(tmp_path)
