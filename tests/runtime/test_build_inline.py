"""The whole program as a PyTorch extension: its source here, its build where there is a GPU."""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.errors import UnsupportedError


def test_the_source_has_every_kernel_and_a_function_that_launches_them() -> None:
    text = fusec.compile("x / norm(x, axis=0) + softmax(x) * s", name="both").show(
        "cuda", torch.empty(512, 4096, dtype=torch.bfloat16, device="meta"), 2.5
    )
    assert text.startswith("#include <ATen/cuda/CUDAContext.h>")
    launches = [line for line in text.splitlines() if "<<<blocks, " in line]
    assert len(launches) == text.count("__global__") > 2
    assert "void both_out(torch::Tensor x, double s, torch::Tensor out) {" in text
    assert "torch::Tensor both(torch::Tensor x, double s) {" in text
    assert 'check("x", x, torch::kBFloat16, {x.size(0), x.size(1)});' in text
    assert "at::cuda::getCurrentCUDAStream()" in text


def test_inputs_that_are_not_contiguous_have_no_host_function() -> None:
    turned = torch.empty_strided((64, 32), (1, 64), device="meta")
    text = fusec.compile("softmax(x)").show("cuda", turned)
    assert "__global__" in text
    assert "torch::Tensor" not in text


@pytest.mark.gpu
@pytest.mark.slow
def test_load_inline() -> None:
    function = fusec.compile("softmax(x) * s + b", backend="cuda", build="load_inline")
    for rows in (3, 70):
        x, b = torch.randn(rows, 1000, device="cuda"), torch.randn(1000, device="cuda")
        expected = torch.softmax(x, -1) * 2.5 + b
        torch.testing.assert_close(function(x, 2.5, b), expected)
        out = torch.empty_like(x)
        function(x, 2.5, b, out=out)
        torch.testing.assert_close(out, expected)
    assert len(function.variants) == 1
    with pytest.raises(UnsupportedError, match="contiguous"):
        function(torch.randn(1000, 70, device="cuda").t(), 2.5, b)
