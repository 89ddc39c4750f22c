"""Inputs that broke other systems: every line of ``shared/cases/cases.jsonl`` is a test here.

The file stands beside the repository, and so does the runner whose rules decide what a line
demands. Lines that need more than one call have a test of their own below. A line for a feature
that does not exist yet names its issue; nothing else is excused.
"""

from __future__ import annotations

import importlib.util
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fusec
from fusec.errors import DTypeError, FusecError, ShapeError, UnsupportedError
from tests.formulas import same_bits

CASES = Path(__file__).parent.parent.parent / "shared" / "cases"
BACKENDS = ("cpp", "triton")
HEAVY = bool(os.environ.get("HEAVY"))
# What a call cannot show. The first three are below; the others say where they are.
BY_HAND = {
    "alias-same-tensor-twice": "test_the_same_tensor_twice",
    "alias-out-expanded": "test_an_expanded_out_is_refused",
    "alias-out-shape": "test_a_wrong_out_is_refused",
    "rec-many-shapes": "tests/test_api.py",
    "cache-multiprocess": "tests/runtime/test_cache.py",
    "cache-publish-atomic": "tests/runtime/test_cache.py",
    "ag-forward-mode": "tests/test_autograd.py",
    "inst-lazy-import": "tests/test_import.py",
}
# Lines about traced functions whose meaning a formula has as well.
AS_FORMULA = {
    "nan-inf-literal": "clamp(clamp(x, -0.5, inf), -inf, 0.5) + where(x == inf, 0 * f32(0), 0.0)",
    "nan-clamp-inf": "clamp_min(x, 1.) * .5",
    "lay-multi-output-shapes": "2.0*a, 3.0*b",
    "dt-fp8-cast": "f32(f8e4m3(x * 2))",
    "dt-float-to-u8": "u8(x)",
    "ct-chain-1000": "1.0*" * 1000 + "x",
}
# What the message of a refused formula has to say.
MESSAGES = {
    "sec-inject-01": ("1:2",),
    "sec-inject-02": ("1:12", "strings"),
    "sec-inject-03": ("1:2", "lambda"),
    "sec-inject-05": ("1:4", "import"),
    "sec-inject-07": ("1:2", "attribute"),
    "sec-inject-09": ("1:1", "f-strings"),
    "err-msg-01": ("'foo'", "did you mean"),
    "err-msg-02": ("'z'", "the inputs are x, z"),
    "err-msg-04": ("unexpected end", "1:4"),
    "err-msg-07": ("bad number '1.2.3'",),
    "err-msg-08": ("1:1", "an expression to return is missing"),
}


def _lines() -> list[dict[str, Any]]:
    path = CASES / "cases.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def _runner() -> Any:
    """The runner, which no package holds."""
    path = CASES / "run_cases.py"
    if not path.exists():
        return None
    spec = importlib.util.spec_from_file_location("run_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        spec.loader.exec_module(module)
    module.CUSTOM = True  # an internal error is never a good refusal
    return module


LINES = _lines()
BY_ID = {case["id"]: case for case in LINES}
RUNNER = _runner()


def _marks(case: dict[str, Any], backend: str) -> list[Any]:
    if case.get("heavy") and not HEAVY:
        return [pytest.mark.skip(reason="needs gigabytes; HEAVY=1 runs it")]
    return []


def _runnable(case: dict[str, Any], device: str) -> bool:
    if case["id"] in BY_HAND or (case.get("procedure") and case["issue"] in ("Solid", "Speed")):
        return False
    return device == "cuda" or case.get("device", "any") == "any"


def _params() -> list[Any]:
    pairs = [(c, b) for c in LINES if _runnable(c, "cpu") for b in BACKENDS]
    return [pytest.param(c, b, id=f"{c['id']}-{b}", marks=_marks(c, b)) for c, b in pairs]


class _Refused(Exception):
    """The line asks for what fusec says it does not do."""


def _build(case: dict[str, Any], backend: str) -> Callable[..., Any]:
    """The compiled line; whatever it raises has to be a FusecError."""

    def guarded(make: Callable[[], Any]) -> Any:
        try:
            return make()
        except FusecError:
            raise
        except Exception as error:  # of any kind: that it is not a FusecError is the failure
            raise AssertionError(f"not an error of fusec's: {error!r}") from error

    if case["dsl"] is None:
        function = eval(
            case["torch_fn"],
            {"torch": torch, "F": torch.nn.functional, "math": RUNNER.math},
        )
        traced = fusec.compile(function, backend=backend)
        return lambda **inputs: guarded(lambda: traced(**inputs))
    compiled = guarded(lambda: fusec.compile(case["dsl"], keepdim=True, backend=backend))
    return lambda **inputs: guarded(lambda: compiled(**inputs))


def _run(case: dict[str, Any], backend: str, device: str) -> None:
    status, message = RUNNER.run_case(case, lambda line: _build(line, backend), device)
    if status == "UNSUP":
        raise _Refused(message)
    assert status == "PASS", message


def test_the_cases_are_there() -> None:
    if not LINES:
        pytest.skip(f"{CASES} is not beside this repository")
    assert len(BY_ID) == len(LINES)
    assert set(BY_HAND) | set(AS_FORMULA) | set(MESSAGES) <= set(BY_ID)


@pytest.mark.parametrize(("case", "backend"), _params())
def test_case(case: dict[str, Any], backend: str) -> None:
    _run(case, backend, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c["id"], marks=_marks(c, "auto")) for c in LINES if _runnable(c, "cuda")],
)
def test_case_on_the_gpu(case: dict[str, Any]) -> None:
    if case.get("device") == "cuda2" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    if case["expect"]["type"] == "property" and not case["expect"].get("check"):
        pytest.skip("a test below or in tests/runtime does what the line says")
    _run(case, "auto", "cuda")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [n for n in AS_FORMULA if n in BY_ID])
def test_case_as_a_formula(name: str, backend: str) -> None:
    case = dict(BY_ID[name], dsl=AS_FORMULA[name])
    expect = dict(case["expect"], error_ok=False, ref=case["torch_fn"])
    _run(dict(case, expect=expect), backend, "cpu")


@pytest.mark.parametrize("name", [n for n in MESSAGES if n in BY_ID])
def test_message(name: str) -> None:
    case = BY_ID[name]
    inputs = {i["name"]: RUNNER.make(i, "cpu") for i in case["inputs"]}
    with pytest.raises(FusecError) as caught:
        fusec.compile(case["dsl"])(**inputs)
    for words in MESSAGES[name]:
        assert words in str(caught.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_tensor_twice(backend: str) -> None:
    f = fusec.compile("x*y + max(x)*min(y)", backend=backend)
    t = torch.randn(7, 65, generator=torch.Generator().manual_seed(0))
    apart = f(x=t, y=t.clone())
    assert same_bits(f(x=t, y=t), apart)
    assert f(x=t, y=t, out=t) is t
    assert same_bits(t, apart)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_expanded_out_is_refused(backend: str) -> None:
    f = fusec.compile("x + 1", backend=backend)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    out = torch.zeros(3, 1)
    with pytest.raises(ShapeError, match="overlaps itself"):
        f(x, out=out.expand(3, 4))
    assert not out.any()
    with pytest.raises(ShapeError, match="overlaps itself"):
        f(x, out=torch.zeros(6).as_strided((3, 4), (1, 1)))  # rows begin inside of others
    woven = torch.zeros(13).as_strided((3, 4), (3, 2))  # 0 2 4 6, 3 5 7 9, 6 ...
    with pytest.raises(ShapeError, match="overlaps itself"):
        f(x, out=woven)
    apart = torch.zeros(21).as_strided((3, 4), (7, 2))  # 0 2 4 6, 7 9 11 13 ...
    assert torch.equal(f(x, out=apart), x + 1)
    tracked = torch.zeros(3, 4, requires_grad=True)
    with pytest.raises(UnsupportedError, match="requires grad"):
        f(x, out=tracked)
    assert not tracked.any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wrong_out_is_refused(backend: str) -> None:
    f = fusec.compile("x + y", backend=backend)
    x, y = torch.ones(4), torch.ones(3, 4)
    short, whole = torch.zeros(4), torch.zeros(3, 4, dtype=torch.int32)
    with pytest.raises(ShapeError, match=r"out is \[4\], the result is \[3, 4\]"):
        f(x, y, out=short)
    with pytest.raises(DTypeError, match=r"int32.*torch.float32"):
        f(x, y, out=whole)
    with pytest.raises(UnsupportedError, match="on meta"):
        f(x, y, out=torch.empty(3, 4, device="meta"))
    assert not short.any()
    assert not whole.any()


@pytest.mark.gpu
def test_devices_that_differ() -> None:
    x = torch.ones(3)
    with pytest.raises(UnsupportedError, match=r"'y' is on cpu, 'x' is on cuda:0(.|\n)*\.to"):
        fusec.compile("x + y")(x.cuda(), x)
    with pytest.raises(UnsupportedError, match="'x' is on cuda"):
        fusec.compile("x + y", backend="cpp")(x.cuda(), x.cuda())
