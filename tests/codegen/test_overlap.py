"""Kernels of shared rows: the later is launched while the earlier ends, and waits inside."""

from __future__ import annotations

import re

import pytest
import torch

import fusec
from fusec.runtime import launch, steps
from fusec.runtime.specialize import (
    USUAL,
    Argument,
    Circumstances,
    kernel_of,
    lay_out_all,
    parts_of,
)

ROWS, COLS = 8, 300_000
VARIANCE = "(x - mean(x)) * rsqrt(mean((x - mean(x))^2) + max(x))"


def kernels(text: str, where: Circumstances = USUAL) -> list[tuple[bool, bool]]:
    """Of each kernel: whether it waits for another, and whether another may begin meanwhile."""
    from fusec.ir.dtypes import F32

    function = fusec.compile(text)
    arguments = [Argument(F32, (ROWS, COLS), (COLS, 1)) for _ in function.inputs]
    special = function.specialization(arguments)
    chosen, laid, _ = lay_out_all(special, arguments, special.sizes(arguments), {}, "triton", where)
    found = [kernel_of(chosen, one, part) for one in laid for part in parts_of(one)]
    return [(kernel.waits, kernel.followed) for kernel in found]


def test_which_kernels_overlap() -> None:
    assert kernels("softmax(x)") == [(False, True), (True, False)]
    assert kernels("sum(x)") == [(False, True), (True, False)]
    assert kernels(VARIANCE) == [(False, True), (True, False)]
    three = kernels("sum(exp(x - mean(x) / sum(x)))")
    assert three[0] == (False, True)
    assert three[-1] == (True, False)
    assert all(waits and followed for waits, followed in three[1:-1])
    assert kernels("x * 2") == [(False, False)]


@pytest.mark.parametrize(
    "where", [Circumstances(capability=80), Circumstances(overlap=False)], ids=["A100", "old"]
)
def test_others_follow_each_other(where: Circumstances) -> None:
    assert kernels("softmax(x)", where) == [(False, False)] * 2


@pytest.mark.parametrize(("target", "counts"), [("sm_80", (0, 0)), ("sm_90", (1, 1))])
def test_what_the_machine_code_asks_for(target: str, counts: tuple[int, int]) -> None:
    x = torch.empty(ROWS, COLS, device="meta")
    text = fusec.compile("softmax(x)").show("ptx", x, target=target)
    asked = (text.count("griddepcontrol.launch_dependents"), text.count("griddepcontrol.wait"))
    assert asked == counts
    printed = fusec.compile("softmax(x)").show("triton", x, target=target)
    assert ("griddepcontrol" in printed) == (counts != (0, 0))


def test_the_kernel_says_so() -> None:
    x = torch.empty(ROWS, COLS, device="meta")
    shown = fusec.compile("softmax(x)", backend="triton").show("kernel", x)
    assert shown.count("begins while the kernel before it ends") == 1


def test_nothing_is_read_before_the_wait() -> None:
    x = torch.empty(ROWS, COLS, device="meta")
    source = fusec.compile("softmax(x)").show("triton", x, target="sm_90")
    last = source[source.index("def softmax_kernel_2(") :]
    first_load = re.search(r"tl\.load", last)
    assert first_load
    assert last.index("_await_earlier_kernel()") < first_load.start()


def test_which_versions_of_cuda_may(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    for version, driver, may in (
        (None, 0, False),
        ("11.8", 11080, False),
        ("12.4", 12020, False),  # an older driver of the same major version
        ("12.4", 12040, True),
    ):
        monkeypatch.setattr(torch.version, "cuda", version)
        monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda d=driver: d, raising=False)
        assert steps.may_overlap(gpu) == may
    assert launch.may_overlap(torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("text", ["softmax(x)", "sum(x)", "var(x) * x", VARIANCE])
@pytest.mark.parametrize("rows", [1, 8, 32])
def test_results_are_those_of_the_formula(text: str, rows: int) -> None:
    """Again and again, with inputs and memory of results that earlier kernels have just left."""
    function = fusec.compile(text)
    x = torch.rand(rows, 1 << 18, device="cuda")
    for k in range(200):
        y = x * (k % 7 + 1)
        result = function(y)
        if k % 20 == 0:
            wanted = fusec.compile(text, backend="torch")(y.double())
            torch.testing.assert_close(result.double(), wanted, rtol=1e-4, atol=1e-5)
        x = (x + result.mean() * 0).clamp(0.01, 1)


@pytest.mark.gpu
def test_a_graph_replays_them() -> None:
    function = fusec.compile("softmax(x)")
    x = torch.rand(8, 1 << 18, device="cuda")
    out = torch.empty_like(x)
    bound = function.bind(x, out=out)
    bound()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound()
    for k in range(5):
        x.uniform_(-k, k + 1)
        out.zero_()
        graph.replay()
        torch.testing.assert_close(out, torch.softmax(x, -1))
