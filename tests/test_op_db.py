"""PyTorch's own operator database against fusec, operator by operator, sample by sample.

Every operator of fusec that PyTorch has as well is a row of MAPPED. A sample is translated into a
call of the operator's formula; what a formula cannot say is counted with its reason, and the counts
are printed at the end of the run.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch

import fusec
from tests.op_db_rows import MAPPED, Call, Inexpressible

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("expecttest", reason="the operator database needs expecttest")
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db

# Samples of one operator and type, evenly chosen from all there are.
HEAVY = bool(os.environ.get("HEAVY"))
MOST_SAMPLES = {torch.float32: 40 if HEAVY else 6}
FEW_SAMPLES = 40 if HEAVY else 1  # of every other type
LARGEST = 20_000  # elements


@cache
def _compiled(formula: str, inputs: tuple[str, ...], keepdim: bool, backend: str) -> Any:
    return fusec.compile(formula, inputs=inputs, keepdim=keepdim, backend=backend)


def _operator(name: str) -> Any:
    base, _, variant = name.partition(":")
    return next(o for o in op_db if o.name == base and o.variant_test_name == variant)


def every_sample(name: str, dtype: torch.dtype, requires_grad: bool = False) -> list[Any]:
    """The operator's samples, the same in every run."""
    torch.manual_seed(0)
    # PyTorch looks for a unittest among the callers, and reads the sources of all that it meets.
    no_unittest = mock.patch.object(common_utils, "extract_test_fn", return_value=None)
    with warnings.catch_warnings(), no_unittest:
        warnings.simplefilter("ignore")
        return list(_operator(name).sample_inputs("cpu", dtype, requires_grad=requires_grad))


def _samples(name: str, dtype: torch.dtype) -> list[Any]:
    """Some of the operator's samples, the same in every run."""
    if dtype not in _operator(name).dtypes:
        return []
    every = every_sample(name, dtype)
    step = max(1, -(-len(every) // MOST_SAMPLES.get(dtype, FEW_SAMPLES)))
    return every[::step]


def _eager(name: str, sample: Any) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = _operator(name).op(sample.input, *sample.args, **sample.kwargs)
    assert isinstance(result, torch.Tensor)
    return result


def _truth(name: str, sample: Any) -> torch.Tensor:
    """PyTorch's result with 16-bit and 32-bit floats computed in float64."""

    def wide(value: Any) -> Any:
        if torch.is_tensor(value) and value.is_floating_point():
            return value.double()
        return value

    eager = _eager(name, sample)
    if not eager.is_floating_point():
        return eager
    operator = _operator(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kwargs = {k: wide(v) for k, v in sample.kwargs.items() if k != "dtype"}
        result = operator.op(wide(sample.input), *(wide(a) for a in sample.args), **kwargs)
    assert isinstance(result, torch.Tensor)
    return result


def _run(call: Call, backend: str) -> torch.Tensor:
    names = tuple(call.inputs)
    compiled = _compiled(call.formula, names, call.keepdim, backend)
    result = compiled(**call.inputs)
    assert isinstance(result, torch.Tensor)
    return result


def _check(name: str, dtype: torch.dtype, sample: Any, backend: str) -> None:
    """One sample; raises Inexpressible where a formula cannot say it."""
    call = MAPPED[name].build([sample.input, *sample.args], dict(sample.kwargs))
    tensors = [v for v in call.inputs.values() if torch.is_tensor(v)]
    if sum(t.numel() for t in tensors) > LARGEST:
        raise Inexpressible("a sample that is large")
    if any(not isinstance(v, (torch.Tensor, bool, int, float)) for v in call.inputs.values()):
        raise Inexpressible("an argument that is neither a tensor nor a number")
    if any(t.dtype.is_complex for t in tensors) or any(
        isinstance(v, complex) for v in call.inputs.values()
    ):
        raise Inexpressible("complex numbers")
    expected = _eager(name, sample)
    result = _run(call, backend)
    what = f"{call.formula} for {_describe(call)}"
    assert result.shape == expected.shape, f"{what}: {result.shape}, not {expected.shape}"
    assert result.dtype == expected.dtype, f"{what}: {result.dtype}, not {expected.dtype}"
    if not expected.is_floating_point():
        assert torch.equal(result, expected), f"{what}: {result}, not {expected}"
        return
    truth = _truth(name, sample).to(expected.dtype).double()
    rtol = {torch.float64: 1e-12, torch.float32: 5e-6}.get(expected.dtype, 2.0**-8)
    largest = truth.nan_to_num(0, 0, 0).abs().max().item() if truth.numel() else 0.0
    atol = rtol * 0.2 * max(1.0, min(largest, 1e6))
    close = torch.isclose(result.double(), truth, rtol=rtol, atol=atol, equal_nan=True)
    no_worse = (result.double() - truth).abs() <= (expected.double() - truth).abs()
    assert bool((close | no_worse).all()), (
        f"{what}\ntruth {truth}\neager {expected}\nfusec {result}"
    )


def _describe(call: Call) -> str:
    return ", ".join(
        f"{n}: {v.dtype} {list(v.shape)}" if torch.is_tensor(v) else f"{n} = {v!r}"
        for n, v in call.inputs.items()
    )


def _all_samples(name: str, dtypes: tuple[torch.dtype, ...], backend: str, most: int) -> Any:
    """How many samples there were and were checked, and why the others were not."""
    tally: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for dtype in dtypes:
        for sample in _samples(name, dtype):
            if tally["checked"] >= most:
                break
            tally["samples"] += 1
            try:
                _check(name, dtype, sample, backend)
            except Inexpressible as reason:
                reasons[str(reason)] += 1
            else:
                tally["checked"] += 1
    assert tally["checked"], f"no sample of {name} could be said as a formula: {dict(reasons)}"
    return {"operator": name, **tally, "left out": dict(reasons)}


@pytest.mark.parametrize("name", MAPPED)
def test_operator(name: str, record_property: Any) -> None:
    """``tests/conftest.py`` prints the sums of what is recorded here."""
    record_property("op_db", _all_samples(name, MAPPED[name].dtypes, "cpp", 1000))


@pytest.mark.parametrize("name", MAPPED)
def test_operator_in_triton(name: str, record_property: Any) -> None:
    dtypes = MAPPED[name].dtypes[:1]
    record_property("op_db triton", _all_samples(name, dtypes, "triton", 2))
