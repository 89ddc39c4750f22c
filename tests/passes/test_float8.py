"""Numbers that float8_e4m3fn does not hold become what the PyTorch at hand makes of them."""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.runtime import casts

VALUES = [448.0, 464.0, 465.0, 480.0, -465.0, 1e30, float("inf"), -float("inf"), float("nan"), 0.3]
HELD = [448.0, 448.0, None, None, None, None, None, None, None, 0.3125]
BACKENDS = ("cpp", "triton", "torch")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_casts_are_those_of_pytorch(backend: str, dtype: torch.dtype) -> None:
    x = torch.tensor(VALUES).to(dtype)
    got = fusec.compile("f8e4m3(x)", backend=backend)(x)
    torch.testing.assert_close(
        got.float(), x.to(torch.float8_e4m3fn).float(), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("backend", ["cpp", "triton"])
def test_older_versions_make_nan(
    backend: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(casts, "_float8_overflows", lambda: True)
    whole = not dtype.is_floating_point
    values = [448, 464, 465, -480, 1 << 40, 3] if whole else VALUES
    held = [448.0, 448.0, None, None, None, 3.0] if whole else HELD
    # A name of its own: what is kept of a formula is kept for one version of PyTorch.
    function = fusec.compile("f8e4m3(x)", backend=backend, name="older")
    got = function(torch.tensor(values, dtype=dtype))
    nan = float("nan")
    want = torch.tensor([nan if v is None else v for v in held])
    torch.testing.assert_close(got.float(), want, rtol=0, atol=0, equal_nan=True)


def test_what_is_kept_in_float8_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(casts, "_float8_overflows", lambda: True)
    x = torch.tensor([448.0, float("nan"), -2.0]).to(torch.float8_e4m3fn)
    got = fusec.compile("f8e4m3(x)", name="older")(x)
    torch.testing.assert_close(got.float(), x.float(), rtol=0, atol=0, equal_nan=True)
