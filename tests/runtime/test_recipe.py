"""Calls made ready by an earlier process: used when they fit, and only then."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fusec
from fusec import settings
from fusec.errors import DTypeError, ShapeError, UnknownNameError
from fusec.runtime import build_cpp, build_cuda, driver, prepared, recipe
from fusec.runtime.build_cpp import find_compiler
from fusec.runtime.build_cuda import CudaCompiler
from fusec.runtime.cache import MANIFEST, default_store

# The calls that are kept here are of C++ kernels; .ci/run installs a compiler.
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")

FORMULA = "x * s - mean(x)"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(build_cpp, "_loaded", {})  # what other tests have loaded stays loaded
    monkeypatch.setattr(prepared, "_functions", {})
    (tmp_path / "cache").mkdir(mode=0o700)
    with settings.override(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"


def inputs(rows: int = 3) -> tuple[torch.Tensor, float]:
    return torch.arange(4.0 * rows).reshape(rows, 4), 2.5


def fresh() -> fusec.CompiledFunction:
    """The function as a new process has it: nothing is loaded or planned."""
    build_cpp._loaded.clear()
    prepared._functions.clear()
    return fusec.compile(FORMULA)


def used_recipe(function: fusec.CompiledFunction, rows: int = 3) -> bool:
    """Call it, check the numbers, and say whether that went without a plan."""
    x, s = inputs(rows)
    torch.testing.assert_close(function(x, s), x * s - x.mean(-1, keepdim=True))
    return not function._specials


def entries(cache: Path, name: str) -> list[Path]:
    return [path.parent for path in cache.glob(f"*/*/{name}")]


def rewrite(directory: Path, name: str, content: bytes) -> None:
    """Replace a file of an entry, its checksum included."""
    default_store().remove(directory.parent.name + directory.name)
    default_store().put(directory.parent.name + directory.name, {name: content})


def test_a_second_process_needs_no_plan() -> None:
    assert not used_recipe(fresh())
    assert used_recipe(fresh())
    assert not used_recipe(fresh(), rows=5)
    assert used_recipe(fresh(), rows=5)


def test_what_was_built_is_listed_and_counted_as_before() -> None:
    planned = fresh()
    before = fusec.stats()
    used_recipe(planned)
    between = fusec.stats()
    recalled = fresh()
    assert used_recipe(recalled)
    after = fusec.stats()
    assert recalled.variants == planned.variants
    assert len(recalled.variants) == 1
    assert [b - a for a, b in zip(before, between, strict=True)] == [1, 1]
    assert [b - a for a, b in zip(between, after, strict=True)] == [1, 1]
    assert not used_recipe(recalled, rows=7)  # the same kernel, now with a plan
    assert recalled.variants == planned.variants
    assert fusec.stats() == after


def test_the_rest_works_without_a_plan_at_first() -> None:
    used_recipe(fresh())
    function = fresh()
    assert used_recipe(function)
    x, s = inputs()
    with pytest.raises(UnknownNameError, match="missing input 's'"):
        function(x)
    with pytest.raises(DTypeError, match="is a str"):
        function(x, "2")
    with pytest.raises(ShapeError):
        function(x, torch.ones(7))
    assert "mean" in function.show("graph", x, torch.tensor(s))
    assert (function.inputs, function.outputs) == (("x", "s"), ("out",))
    bound = fresh().bind(x, s)
    torch.testing.assert_close(bound(), x * s - x.mean(-1, keepdim=True))


@pytest.mark.parametrize(
    "change",
    [
        {"cxxflags": ("-DNOTHING",)},
        {"num_threads": 1},
        {"debug": 1},
        {"tool_environment": (("TRITON_X", "1"),)},
    ],
    ids=str,
)
def test_other_settings_make_another_recipe(change: dict[str, object]) -> None:
    used_recipe(fresh())
    with settings.override(**change):
        assert not used_recipe(fresh())
    assert used_recipe(fresh())


def test_other_sources_of_fusec_make_another_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    used_recipe(fresh())
    monkeypatch.setattr(recipe, "checkout", lambda: {"sources": "edited"})
    assert not used_recipe(fresh())


def test_a_change_to_any_file_changes_the_checkout(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    package = Path(fusec.__file__).parent
    program = "from fusec.runtime.cache import checkout; print(checkout()['sources'])"

    def state() -> str:
        return subprocess.run(
            [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True,
            env=settings.child_environment(PYTHONPATH=str(root), PYTHONDONTWRITEBYTECODE="1"),
        ).stdout  # fmt: skip

    import shutil

    shutil.copytree(package, root / "fusec", ignore=shutil.ignore_patterns("__pycache__"))
    first = state()
    assert state() == first
    for name in ("codegen/schedule.py", "codegen/include/fusec.h", "ir/ops.py"):
        path = root / "fusec" / name
        if path.exists():
            path.write_text(path.read_text() + "\n")
            changed = state()
            assert changed != first
            first = changed


def test_formulas_options_and_layouts_do_not_share() -> None:
    used_recipe(fresh())
    x, s = inputs()
    for function in (
        fusec.compile(FORMULA, numerics="precise"),
        fusec.compile(FORMULA, keepdim=True),
        fusec.compile(FORMULA, name="other"),
        fusec.compile(FORMULA, inputs=("s", "x")),
        fusec.compile(FORMULA + " "),
    ):
        function(x, s) if function.inputs == ("x", "s") else function(s, x)
        assert function._specials
    for values in (
        (x.double(), s),
        (x, 2),
        (x, torch.tensor(s)),
        (torch.arange(12.0).reshape(4, 3).T, s),
        (torch.arange(13.0)[1:].reshape(3, 4), s),
    ):
        function = fresh()
        torch.testing.assert_close(
            function(*values), values[0] * values[1] - values[0].mean(-1, keepdim=True)
        )
        assert function._specials


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"[[[],[],[]],1]", b"null", b'[[[1],[],[]],"",[]]', "everything"],
    ids=repr,
)
def test_a_damaged_recipe_is_made_again(cache: Path, content: bytes | str) -> None:
    used_recipe(fresh())
    (entry,) = entries(cache, "recipe.json")
    if isinstance(content, bytes):
        rewrite(entry, "recipe.json", content)
    else:
        (entry / MANIFEST).write_text("?")
    assert not used_recipe(fresh())
    assert used_recipe(fresh())


def test_a_recipe_whose_kernel_is_gone_is_made_again(cache: Path) -> None:
    used_recipe(fresh())
    (library,) = entries(cache, "kernel.so")
    default_store().remove(library.parent.name + library.name)
    assert not used_recipe(fresh())
    assert used_recipe(fresh())


def test_a_damaged_kernel_is_not_loaded(cache: Path) -> None:
    used_recipe(fresh())
    (library,) = entries(cache, "kernel.so")
    content = bytearray((library / "kernel.so").read_bytes())
    content[len(content) // 2] ^= 1
    # Another file by that name: this process still has the old one mapped.
    (library / "kernel.so").unlink()
    (library / "kernel.so").write_bytes(content)
    assert not used_recipe(fresh())


def test_damaged_names_are_found_again(cache: Path) -> None:
    used_recipe(fresh())
    (entry,) = entries(cache, "names.json")
    for content in (b"", b"[1]", b"{}", b"[1,2]", b'[["x"],[3]]'):
        rewrite(entry, "names.json", content)
        assert used_recipe(fresh())


def test_a_function_writes_a_bounded_number_of_recipes(cache: Path) -> None:
    function = fresh()
    for rows in range(1, recipe.LIMIT + 10):
        used_recipe(function, rows)
    assert len(entries(cache, "recipe.json")) == recipe.LIMIT


def test_recipes_hold_data_alone(cache: Path) -> None:
    used_recipe(fresh())
    (entry,) = entries(cache, "recipe.json")
    text = (entry / "recipe.json").read_text()
    assert json.loads(text)
    assert str(cache) not in text


def test_a_warm_process_loads_no_compiler() -> None:
    used_recipe(fresh())
    program = f"""
import sys, torch, fusec
function = fusec.compile({FORMULA!r})
x = torch.arange(12.0).reshape(3, 4)
torch.testing.assert_close(function(x, 2.5), x * 2.5 - x.mean(-1, keepdim=True))
print(*sorted(m for m in sys.modules if m.startswith('fusec.') or m in ('lark', 'triton')))
"""
    root = settings.get().cache_dir
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env=settings.child_environment(FUSEC_CACHE_DIR=str(root)),
    )  # fmt: skip
    loaded = done.stdout.split()
    assert "fusec.runtime.prepared" in loaded
    for heavy in ("lark", "triton", "fusec.ir", "fusec.passes", "fusec.frontend", "fusec.codegen"):
        assert heavy not in loaded


# -- GPU kernels ----------------------------------------------------------------------------------

GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that says what it is, and a compiler for it."""
    facts = SimpleNamespace(
        name="GPU", major=9, minor=0, multi_processor_count=132, total_memory=1 << 37
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: facts)
    monkeypatch.setattr(build_cuda, "find_compiler", lambda build: CudaCompiler(build, "/x", "1"))
    recipe._cuda_facts.cache_clear()


def place(asked: str, backend: str, device: torch.device = GPU, build: str = "auto") -> str | None:
    return recipe.key(fusec.compile("x", build=build)._formula, asked, backend, device, "call")


@pytest.mark.usefixtures("gpu_facts")
def test_what_was_asked_for_decides_a_recipe() -> None:
    """``auto`` may choose CUDA C++, which ``triton`` must not be given."""
    kept = [place("auto", "triton"), place("triton", "triton"), place("cuda", "cuda")]
    kept += [place("cuda", "cuda", build="nvcc"), place("cuda", "cuda", build="nvrtc")]
    assert None not in kept
    assert len(set(kept)) == len(kept)
    assert kept[0] == place("auto", "triton")


@pytest.mark.usefixtures("gpu_facts")
def test_another_cuda_compiler_makes_another_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {asked: place(asked, "triton") for asked in ("auto", "triton")}
    monkeypatch.setattr(build_cuda, "find_compiler", lambda build: None)
    assert place("triton", "triton") == before["triton"]
    assert place("auto", "triton") not in (None, before["auto"])


@pytest.mark.usefixtures("gpu_facts")
def test_what_is_interpreted_or_evaluated_is_not_kept() -> None:
    cpu = torch.device("cpu")
    for asked, backend, device in (
        ("cuda", "cuda", cpu), ("triton", "triton", cpu), ("torch", "torch", GPU),
    ):  # fmt: skip
        assert place(asked, backend, device) is None


def test_a_cuda_kernel_comes_back_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = prepared.StepPlan(
        "cuda", "ab" * 32, "softmax_kernel", ("*bf16", "*bf16", "i32"), (0, 0, 64),
        ((0, 0), (1, 1)), (), grid=(8, 1, 1), block=256, cluster=4,
    )  # fmt: skip
    built = recipe.Built(step.binary, "softmax_kernel", "cuda", "x bf16[]", "rows")
    kept = recipe.Recipe(prepared.CallPlan((), (), (step,)), "kind", (built,))
    recipe.save("cd" * 32, kept)
    assert recipe.load("cd" * 32) == kept
    loaded: list[tuple[Any, ...]] = []

    def load(code: bytes, *facts: object) -> Any:
        def prepare(*launch: object) -> None:
            loaded.append((code, *facts, *launch))

        return SimpleNamespace(prepare=prepare)

    monkeypatch.setattr(driver, "load_function", load)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", int, raising=False)
    monkeypatch.setattr(prepared, "_functions", {})
    assert prepared.ready(kept.plan, GPU) is None  # the kernel is not in the cache
    monkeypatch.setattr(prepared, "_functions", {})
    default_store().put(step.binary, {"cubin": b"code"})
    assert prepared.ready(kept.plan, GPU) is not None
    assert loaded == [(b"code", "softmax_kernel", 0, 0, step.types, 256, (4, 1, 1), False)]


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "triton", "auto"])
def test_a_warm_process_launches_gpu_kernels_without_a_compiler(backend: str) -> None:
    program = f"""
import sys, torch, fusec
function = fusec.compile("softmax(x) * s", backend={backend!r})
x = torch.randn(64, 50257, device="cuda", dtype=torch.bfloat16)
expected = torch.softmax(x.double(), -1) * 2.5
torch.testing.assert_close(function(x, 2.5).double(), expected, rtol=1e-2, atol=1e-5)
heavy = ("lark", "triton", "fusec.ir", "fusec.passes", "fusec.frontend", "fusec.codegen")
print(*(m for m in heavy if m in sys.modules), "and")
print(*sorted({{v.backend for v in function.variants}}))
"""
    root = settings.get().cache_dir
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True,
            env=settings.child_environment(FUSEC_CACHE_DIR=str(root)),
        )  # fmt: skip
        said.append(done.stdout.split("and"))
    (compilers, first), (none, second) = said
    assert first == second
    assert first.split() == (["cuda"] if backend != "triton" else ["triton"])
    assert "fusec.codegen" in compilers
    assert none.split() == []
