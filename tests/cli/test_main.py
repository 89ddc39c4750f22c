"""Exit codes, streams and wording of the command line. The compiler itself is a stand-in here."""

import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import fusec
from fusec import api, errors, settings
from fusec.cli import main
from fusec.ir.derived import DERIVED
from fusec.source import Source, Span

Run = Callable[..., SimpleNamespace]
COMMAND = [sys.executable, "-c", "import sys; from fusec.cli import main; sys.exit(main())"]
ROOT = Path(__file__).parents[2]


class StandIn:
    """What `fusec.compile` returns, as far as `show` looks at it."""

    inputs = ("x", "y")

    def __init__(self, source: str) -> None:
        self.source = source

    def show(self, stage: str, *examples: object, target: str | None = None) -> str:
        if stage == "sass":
            raise errors.UnsupportedError("no disassembler", backend="triton")
        return f"{stage} of {self.source} for {target}, {len(examples)} examples\n"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> SimpleNamespace:
        code = main(arguments)
        streams = capsys.readouterr()
        return SimpleNamespace(code=code, out=streams.out, err=streams.err)

    return call


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Replaces `fusec.compile`: by a stand-in, or by one that raises what it is given."""

    def replace(outcome: object = None) -> None:
        def compile(source: str, **options: object) -> StandIn:
            if isinstance(outcome, BaseException):
                raise outcome
            return StandIn(source)

        monkeypatch.setattr(api, "compile", compile)

    return replace


def test_help_and_version(run: Run) -> None:
    shown = run("--help")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("Usage: fusec")
    assert all(command in shown.out for command in ("show", "bench", "doctor", "ops"))
    assert run().out == shown.out
    assert run("show", "--help").code == 0
    assert run("--version").out == f"fusec {fusec.__version__}\n"


def test_help_loads_neither_torch_nor_triton() -> None:
    script = (
        "import sys\nfrom fusec.cli import main\nassert main(['--help']) == 0\n"
        "print(sorted({'torch', 'triton', 'sympy', 'numpy', 'lark', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("shwo",), "error: no such command 'shwo'", "did you mean 'show'?"),
        (("show",), "error: missing argument 'formula'", "see fusec show --help"),
        (("show", "x", "--stge"), "error: no such option: --stge", "did you mean '--stage'?"),
        (("show", "-x"), "error: no such option: -x", "a formula that begins with '-' goes"),
        (("doctor", "--bad"), "error: no such option: --bad", "see fusec doctor --help"),
        (("show", "-sum(x)"), "error: missing argument 'formula'", "a formula that begins with"),
        (("show", "x", "--stage", "tritn"), "error: --stage cannot be 'tritn'", "'triton'?"),
        (("show", "x", "--backend", "ccp"), "error: --backend cannot be 'ccp'", "'cpp'?"),
        (("show", "x", "--numerics", "fats"), "error: --numerics cannot be 'fats'", "'fast'?"),
        (("show", "x", "-i", "x=4:bf61"), "-i:1:5: error: there is no type 'bf61'", "'bf16'?"),
        (("bench", "x", "--seconds", "long"), "error: invalid value for '--seconds'", "see fusec"),
        (("bench", "x", "--device", "cdua"), "error: --device cannot be 'cdua'", "'cuda'?"),
    ],
)
def test_what_is_typed_wrong(run: Run, arguments: tuple[str, ...], message: str, hint: str) -> None:
    result = run(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith(message)
    assert hint in result.err.splitlines()[-1]
    assert "Traceback" not in result.err


def test_show_prints_exactly_the_stage(run: Run, compiling: Callable[[], None]) -> None:
    compiling()
    result = run("show", "x+y", "--stage", "ptx", "--target", "sm_90")
    assert (result.code, result.err) == (0, "")
    assert result.out == "ptx of x+y for sm_90, 0 examples\n"
    assert run("show", "x+y", "-s", "cpp", "-i", "y=4").out.endswith("None, 2 examples\n")
    assert run("show", "x+y", "--target", "sm_90").out.startswith("triton of")


def test_show_all_goes_on_where_a_stage_is_missing(run: Run, compiling: Callable[[], None]) -> None:
    compiling()
    result = run("show", "x+y", "--stage", "all")
    assert result.code == 0
    assert "# ---- graph ----\ngraph of x+y" in result.out
    assert "# ---- sass ----\n(none: no disassembler)" in result.out
    assert "# ---- amdgcn ----\namdgcn of x+y" in result.out


def test_an_input_the_formula_lacks(run: Run, compiling: Callable[[], None]) -> None:
    compiling()
    result = run("show", "x+y", "-s", "cpp", "-i", "z=4")
    assert result.code == 2
    assert "the formula has no input 'z' (its inputs: x, y)" in result.err


def test_a_diagnostic_is_shown_as_it_is_and_names_the_file(
    run: Run, compiling: Callable[[object], None], tmp_path: Path
) -> None:
    text = "x +"
    compiling(errors.ParseError("an operand is missing", source=Source(text), span=Span(3, 3)))
    result = run("show", text, "-s", "graph")
    assert result.code == 2
    assert result.err == "<formula>:1:4: error: an operand is missing\n1 | x +\n  |    ^\n"
    path = tmp_path / "sum.fuse"
    path.write_text(text)
    assert run("show", str(path), "-s", "graph").err.startswith(f"{path}:1:4: error:")


def test_a_bug_is_one_line(run: Run, compiling: Callable[[object], None]) -> None:
    compiling(KeyError("lost\nthings"))
    result = run("show", "x", "-s", "cpp")
    assert result.code == 70
    assert len(result.err.splitlines()) == 1
    assert result.err.startswith("fusec: internal error: KeyError: ")
    assert result.err.endswith("set FUSEC_DEBUG=1 for the traceback\n")
    with settings.override(debug=1):
        assert "Traceback" in run("show", "x", "-s", "cpp").err


def test_an_internal_error_of_the_compiler(run: Run, compiling: Callable[[object], None]) -> None:
    compiling(errors.InternalError("a node has no type"))
    result = run("show", "x", "-s", "cpp")
    assert result.code == 70
    assert "error: a node has no type" in result.err


def test_ctrl_c_is_quiet(run: Run, compiling: Callable[[object], None]) -> None:
    compiling(KeyboardInterrupt())
    result = run("show", "x", "-s", "cpp")
    assert (result.code, result.out, result.err.strip()) == (130, "", "")


@pytest.mark.parametrize("arguments", [["ops"], ["ops", "--markdown"], ["--help"]])
def test_a_broken_pipe_is_silent(arguments: list[str]) -> None:
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


# Linux, where .ci/run runs, has such a device, and nothing stands for it elsewhere.
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["ops"], ["show", "x", "-s", "formula"], ["--help"]])
def test_a_full_disk_is_no_fault_of_ours(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        finished = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, cwd=ROOT, check=False
        )
    assert finished.returncode == 2
    assert finished.stderr.decode().splitlines() == [
        "error: No space left on device",
        "hint: make room, or write to another disk",
    ]


@pytest.mark.parametrize("arguments", [["ops"], ["show", "x + 1", "-s", "cpp"], ["--help"]])
@pytest.mark.parametrize("closed", [">&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_output_is_no_fault_of_ours(arguments: list[str], closed: str) -> None:
    command = f"{shlex.join([*COMMAND, *arguments])} {closed}"
    finished = subprocess.run(command, shell=True, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    assert finished.returncode == 2
    said = finished.stderr.decode().splitlines()
    assert said == ([] if "2>" in closed else [
        "error: Bad file descriptor",
        "hint: standard output is closed; send it to a file, or to /dev/null",
    ])  # fmt: skip


def test_closed_errors_and_input_do_not_matter() -> None:
    command = f"{shlex.join([*COMMAND, 'show', 'x + 1', '-s', 'formula'])} <&- 2>&-"
    finished = subprocess.run(command, shell=True, stdout=subprocess.PIPE, cwd=ROOT, check=False)
    assert finished.returncode == 0
    assert finished.stdout.startswith(b"x + 1\n")


def test_ops_lists_every_operator_and_function(run: Run) -> None:
    text = run("ops", "--markdown").out
    assert "| `a + b` | sum of two values | promote | `torch.add` |" in text
    assert "`a \\| b`" in text
    listed = run("ops").out
    assert "tanh(a)" in listed
    for name in (*DERIVED, "norm", "index", "size", "bf16"):
        assert f"| `{name}(" in text, name
        assert f"\n{name}(" in listed, name
    assert max(map(len, listed.splitlines())) <= 80


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
        type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"),
    ],
)
def test_inputs_that_do_not_fit_are_no_bug(
    run: Run, compiling: Callable[[object], None], error: Exception
) -> None:
    compiling(error)
    done = run("show", "x + y")
    assert done.code == 2
    assert done.err.splitlines()[0] == "error: not enough memory"


def test_a_warning_shows_no_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(source: str, **options: object) -> StandIn:
        warnings.simplefilter("always")
        warnings.warn("the cache is full", UserWarning, stacklevel=1)
        return StandIn(source)

    monkeypatch.setattr(api, "compile", warn)
    done = run("show", "x + y")
    assert (done.code, done.err) == (0, "warning: the cache is full\n")
