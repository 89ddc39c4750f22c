"""The contenders of a formula compute the same thing, and their scripts run in a fresh process."""

from collections.abc import Sequence

import pytest
import torch

import fusec
from fusec.cli.contenders import Case, input_texts, make_case
from fusec.cli.options import complete, parse_inputs
from fusec.runtime.bench import largest_error
from fusec.runtime.timing import child_script
from fusec.source import Source

GELU = "0.5*x*(1+tanh(0.79788456*(x+0.044715*x^3)))"
SOFTMAX = "softmax(where(index(-1) <= index(-2), x, -inf))"


def case_of(formula: str, inputs: Sequence[str], backend: str = "torch") -> Case:
    """A case without torch.compile, which starts slowly; fusec is its reference evaluator."""
    compiled = fusec.compile(formula, backend=backend)
    chosen = complete(parse_inputs(inputs), compiled.inputs, 64)
    return make_case(
        compiled, Source(formula), chosen, device="cpu", backend=backend, with_compile=False
    )


@pytest.mark.parametrize(
    ("formula", "inputs", "native"),
    [
        (GELU, ("x=48x64",), "gelu"),
        (GELU, ("x=48x64:bf16",), "gelu"),
        ("x*sigmoid(x)", ("x=48x64",), "silu"),
        ("softmax(x)", ("x=48x64",), "softmax"),
        ("layer_norm(x, w, b)", ("x=48x64", "w=64", "b=64"), "layer_norm"),
        ("x*rsqrt(mean(x^2) + 1e-6)*w", ("x=48x64", "w=64"), "rms_norm"),
        ("logsumexp(x) - x[t]", ("x=48x64", "t=48:i64"), "cross_entropy"),
        ("a*x + y", ("a=0.5", "x=48x64"), None),
        (SOFTMAX, ("x=64x64",), None),
        ("mean(x), var(x)", ("x=48x64",), None),
        ("x % 3 + x // 2", ("x=48x64:i32",), None),
        ("x*s", ("x=48x64", "s="), "mul"),
        ("x + f32(y)", ("x=48x64", "y=48x64:f8e4m3"), None),
        ("time*start + torch", ("time=8", "start=8", "torch=8"), "addcmul"),
    ],
)
def test_all_agree(formula: str, inputs: tuple[str, ...], native: str | None) -> None:
    case = case_of(formula, inputs)
    assert case.native == native
    names = [contender.name for contender in case.contenders]
    own = [] if native is None else [f"torch {native}"]
    assert names == ["eager", *own, "fusec", "fusec out="]
    reference = case.reference()
    epsilon = 2**-7 if any("bf16" in text for text in inputs) else 2**-21
    largest = max(float(abs(t).max()) for t in tensors(reference))
    for contender in case.contenders:
        # A dozen roundings of the storage type at the size of the largest value.
        assert largest_error(contender.call(), reference) <= 12 * epsilon * max(1.0, largest)
        if contender.host_call is not None:
            contender.host_call()


def tensors(values: object) -> list[torch.Tensor]:
    items = values if isinstance(values, tuple) else (values,)
    return [item.double() for item in items if isinstance(item, torch.Tensor)]


def test_every_script_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    case = case_of("time*start + torch", ("time=8", "start=8:bf16", "torch=8"))
    scripts = [c.script for c in case.contenders if c.script is not None]
    assert len(scripts) == 3
    for prepare, body in scripts:
        exec(child_script(prepare, body), {})  # as in a process of its own: no name is shared
        assert capsys.readouterr().out.startswith("seconds ")


def test_inputs_are_the_same_in_every_run_and_integers_are_positions() -> None:
    options = list(parse_inputs(["x=6x5", "t=6:i64", "m=6x5:bool", "s=0.5"]).values())
    texts = input_texts(options, "cpu")
    assert texts[1] == "torch.randint(0, 5, (6,), dtype=torch.int64, device='cpu')"
    assert texts[3] == "0.5"
    first, second = case_of("x+1", ("x=8x8",)), case_of("x+1", ("x=8x8",))
    assert torch.equal(tensors(first.inputs)[0], tensors(second.inputs)[0])


def test_a_wrong_formula_is_a_diagnostic() -> None:
    with pytest.raises(fusec.ShapeError):
        case_of("x + y", ("x=4x5", "y=4x6"))
