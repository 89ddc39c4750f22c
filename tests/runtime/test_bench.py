"""The timing protocol: bytes, errors, turns, first calls, and rows that fail without harm."""

import math
import time

import pytest
import torch

from fusec.runtime import bench, timing
from fusec.runtime.device import cpu_facts, gpu_facts, measure_copy


def test_bytes_count_each_element_once() -> None:
    x = torch.empty(8, 16)
    assert bench.fewest_bytes([x, x.bfloat16(), 0.5]) == 8 * 16 * (4 + 2)
    assert bench.fewest_bytes([torch.empty(16).expand(8, 16)]) == 16 * 4
    assert bench.fewest_bytes([x.t(), torch.empty(0, 4), torch.tensor(1.0)]) == 8 * 16 * 4 + 4


@pytest.mark.parametrize(
    ("output", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([math.inf, math.nan], [math.inf, math.nan], 0.0),
        ([math.inf, 0.0], [1.0, 0.0], math.inf),
        ([math.nan, 0.0], [1.0, 0.0], math.inf),
        ([1.0], [math.nan], math.inf),
        ([-math.inf], [math.inf], math.inf),
        ([], [], 0.0),
    ],
)
def test_largest_error(output: list[float], expected: list[float], error: float) -> None:
    assert bench.largest_error(torch.tensor(output), torch.tensor(expected)) == error


def test_largest_error_of_several_outputs_and_wrong_shapes() -> None:
    pair = (torch.ones(3), torch.tensor([5, 6]))
    assert bench.largest_error(pair, (torch.ones(3), torch.tensor([5, 8]))) == 2
    assert bench.largest_error(torch.ones(3), torch.ones(4)) == math.inf
    assert bench.largest_error(torch.tensor([True]), torch.tensor([False])) == 1


def test_contenders_take_turns() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in ("a", "b", "c")}
    taken = timing.time_in_turns(calls, "cpu", seconds=0.0, fewest_rounds=20)
    assert set(taken) == {"a", "b", "c"}
    assert taken["a"].samples == 20
    rounds = ["".join(order[-60 + k : -57 + k or None]) for k in range(0, 60, 3)]
    assert all(set(names) == set("abc") for names in rounds)
    before = {pair for names in rounds for pair in (names[:2], names[1:])}
    assert len(before) == 6  # each comes right behind each of the others at some time
    again: list[str] = []
    calls = {name: (lambda name=name: again.append(name)) for name in ("a", "b", "c")}
    timing.time_in_turns(calls, "cpu", seconds=0.0, fewest_rounds=20)
    assert again[-60:] == order[-60:]


def test_host_time_is_taken_in_turns() -> None:
    order: list[str] = []
    calls = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    taken = timing.host_in_turns(calls, "cpu", rounds=6)
    assert set(taken) == {"a", "b"}
    turns = "".join(order)
    assert turns[:10] == "a" * 5 + "b" * 5
    rounds = {turns[k : k + 40] for k in range(10, 250, 40)}
    assert rounds == {"a" * 20 + "b" * 20, "b" * 20 + "a" * 20}


def test_another_librarys_results_are_compared_as_tensors() -> None:
    x = torch.randn(64)
    contender = bench.Contender("list", lambda: x.tolist(), as_torch=lambda r: torch.tensor(r))
    report = bench.compare(
        [contender],
        [x],
        lambda: x.double()[:8],
        device="cpu",
        effort=bench.Effort(0.0, rounds=3, kernels=False, first_calls=False),
        part=lambda outputs: outputs[:8],
    )
    (row,) = report.measurements
    assert (row.largest_error, row.problem) == (0.0, None)
    assert report.bytes_moved == 2 * x.nbytes


def test_the_median_is_that_of_the_call() -> None:
    taken = timing.time_in_turns({"nap": lambda: time.sleep(0.01)}, "cpu", seconds=0.1)["nap"]
    assert 10.0 <= taken.milliseconds < 30.0
    assert taken.low <= taken.milliseconds <= taken.high


def test_compare_fills_every_column_and_keeps_failures() -> None:
    x = torch.randn(256, 256)
    seen: list[float] = []

    def broken() -> object:
        raise RuntimeError("no such kernel\nsecond line")

    script = ("x = torch.randn(4)", "torch.relu(x)")
    report = bench.compare(
        [
            bench.Contender("relu", lambda: torch.relu(x), lambda: torch.relu(x[:2]), script),
            bench.Contender("wrong", lambda: torch.relu(x) + 1),
            bench.Contender("broken", broken),
            bench.Contender("no child", lambda: torch.relu(x), None, ("", "raise ValueError('x')")),
        ],
        [x],
        lambda: torch.relu(x.double()),
        device="cpu",
        effort=bench.Effort(0.1),
        progress=lambda what, fraction: seen.append(fraction),
    )
    relu, wrong, failed, childless = report.measurements
    assert report.bytes_moved == 2 * x.nbytes
    assert report.copy_gigabytes_per_second > 0
    assert relu.timing is not None
    assert relu.gigabytes_per_second == pytest.approx(2 * x.nbytes / relu.timing.milliseconds / 1e6)
    assert relu.percent_of_copy is not None
    assert relu.host_microseconds is not None
    assert relu.first_call_seconds is not None
    assert (relu.kernels, relu.largest_error, relu.problem) == (None, 0.0, None)
    assert wrong.largest_error == pytest.approx(1.0)
    assert wrong.first_call_seconds is None
    assert (failed.timing, failed.problem) == (None, "no such kernel")
    assert childless.timing is not None
    assert childless.problem == "first call in a fresh process: ValueError: x"
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_first_call_starts_with_empty_caches_and_the_second_keeps_them() -> None:
    body = """\
    import os, pathlib
    mark = pathlib.Path(os.environ["FUSEC_CACHE_DIR"], "built")
    if not mark.exists():
        time.sleep(0.3)
        mark.touch()
    """
    seconds = timing.first_call("", body)
    assert seconds.cold >= 0.3 > seconds.warm


def test_facts_of_this_machine() -> None:
    facts = cpu_facts()
    assert facts.name
    assert facts.cores >= 1
    assert len(gpu_facts()) == torch.cuda.device_count()
    copied = measure_copy("cpu", 1 << 20, seconds=0.01)
    assert copied.bytes_moved == 1 << 20
    assert copied.gigabytes_per_second > 0


@pytest.mark.gpu
def test_device_time_kernels_and_host_time_on_a_gpu() -> None:
    x = torch.randn(4096, 4096, device="cuda")
    report = bench.compare(
        [
            bench.Contender("relu", lambda: torch.relu(x)),
            bench.Contender("three", lambda: torch.sin(torch.relu(x) + 1)),
        ],
        [x],
        lambda: torch.relu(x.double()),
        device="cuda",
        effort=bench.Effort(0.5, first_calls=False),
    )
    relu, three = report.measurements
    assert (relu.kernels, three.kernels) == (1, 3)
    assert relu.percent_of_copy is not None
    assert 60 < relu.percent_of_copy < 130
    assert relu.timing is not None
    assert three.timing is not None
    assert 2 < three.timing.milliseconds / relu.timing.milliseconds < 4
    assert relu.host_microseconds is not None
    assert relu.host_microseconds < 1000
