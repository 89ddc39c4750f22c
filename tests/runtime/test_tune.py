"""The tuner, and schedules that do not depend on the number of rows."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fusec
from fusec import settings
from fusec.codegen.candidates import around
from fusec.codegen.kernel import Config, Form
from fusec.codegen.layout import Arrangement, Layout
from fusec.codegen.schedule import choose_triton
from fusec.runtime import tune


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path) -> Iterator[None]:
    with settings.override(cache_dir=tmp_path / "cache"):
        yield


CONFIGS = {
    "flat": (Config(1, 1024, 4), Form.FLAT),
    "tile": (Config(2, 1024, 4), Form.TILE),
    "short rows": (Config(32, 64, 4), Form.ROWS),
    "a row": (Config(1, 4096, 4, even=True), Form.ROWS),
    "loop": (Config(1, 8192, 16, resident=False), Form.ROWS),
    "shared": (Config(1, 4096, 4, resident=False, splits=64), Form.ROWS),
    "columns": (
        Config(64, 64, 2, resident=False, lanes_along_rows=True, splits=16),
        Form.ROWS,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_candidates_are_sound_and_differ(name: str) -> None:
    config, form = CONFIGS[name]
    found = around(config, form, "triton")
    assert len(found) >= 4
    assert len(set(found)) == len(found)
    assert config not in found
    for other in found:
        assert 1 <= other.warps <= 32
        assert other.block_rows >= 1
        assert other.block_cols >= 1
        assert (other.resident, other.even) == (config.resident, config.even)
        if config.resident and form is Form.ROWS:
            assert other.block_cols == config.block_cols  # the row still fills its tile
        if config.splits == 1:
            assert other.splits == 1  # the number of kernels stays


def test_candidates_of_a_loop_on_a_cpu() -> None:
    found = around(Config(1, 1, resident=False), Form.FLAT, "cpp")
    assert {(c.prefetch, c.stream) for c in found} >= {(True, 0), (False, 128), (False, 1024)}


def test_a_search_gives_the_same_numbers_and_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(64, 300)
    searches: list[str] = []
    search = tune._search

    def watched(*arguments: object) -> Config:
        searches.append("search")
        return search(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tune, "_search", watched)
    for _ in range(2):
        f = fusec.compile("softmax(x) * y", tune=0.2)
        torch.testing.assert_close(f(x, x), torch.softmax(x, -1) * x)
        assert len(f.variants) == 1
    assert searches == ["search"]
    y = torch.randn(100, 400)  # of the same class of sizes
    for function in (f, fusec.compile("softmax(x) * y", tune=0.2)):
        torch.testing.assert_close(function(y, y), torch.softmax(y, -1) * y)
    assert searches == ["search"]
    fusec.compile("softmax(x) * y", tune=0.2)(torch.randn(64, 5000), torch.randn(64, 5000))
    assert len(searches) == 2  # another class of sizes


def test_the_quickest_candidate_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def times(calls: dict[str, object], *_: object) -> dict[str, object]:
        taken = {name: 1.0 for name in calls} | {"1": 0.5}
        return {name: tune_timing(value) for name, value in taken.items()}

    monkeypatch.setattr(tune, "time_in_turns", times)
    kept: list[Config] = []
    search = tune._search

    def watched(*arguments: object) -> Config:
        kept.append(search(*arguments))  # type: ignore[arg-type]
        return kept[-1]

    monkeypatch.setattr(tune, "_search", watched)
    fusec.compile("x * 3 + y", tune=5.0)(torch.ones(8, 8), torch.ones(8, 8))
    rules = fusec.compile("x * 3 + y")
    rules(torch.ones(8, 8), torch.ones(8, 8))
    assert len(kept) == 1
    assert kept[0].prefetch or kept[0].stream  # the first candidate, not the rules' choice


def tune_timing(milliseconds: float) -> object:
    from fusec.runtime.timing import Timing

    return Timing(milliseconds, milliseconds, milliseconds, 5)


def test_a_damaged_choice_is_searched_again() -> None:
    f = fusec.compile("x + 1", tune=0.05)
    f(torch.ones(8))
    for path in settings.get().cache_dir.rglob("config.json"):  # type: ignore[union-attr]
        path.write_text("{")
    again = fusec.compile("x + 1", tune=0.05)
    assert torch.equal(again(torch.ones(9)), torch.full((9,), 2.0))


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "10", True, None])
def test_what_is_no_time(seconds: object) -> None:
    with pytest.raises(fusec.UnsupportedError, match="tune is"):
        fusec.compile("x", tune=seconds)  # type: ignore[arg-type]


def test_options_survive_a_pickle() -> None:
    f = pickle.loads(pickle.dumps(fusec.compile("x + 1", tune=1.5, batch_invariant=True)))
    assert f._formula.tune == 1.5
    assert f._formula.batch_invariant


def test_no_candidate_takes_several_rows_where_there_is_one() -> None:
    config = choose_triton(Form.ROWS, (), arrangement(1, 1000))
    assert {c.block_rows for c in around(config, Form.ROWS, "triton", lone=True)} == {1}
    several = {c.block_rows for c in around(config, Form.ROWS, "triton")}
    assert len(several) > 1  # which rows among others may have


# -- batch_invariant ------------------------------------------------------------------------------


def arrangement(rows: int, cols: int, *, columns: bool = False) -> Arrangement:
    """Of one operand; a single row has no axis of rows."""
    if rows == 1 and not columns:
        return Arrangement(
            Layout((), ((0,),), ((1,),), (0,)), (), (cols,), ((1,),), (0,), (0,), cols
        )
    strides: tuple[int | str, ...] = (1, "rows") if columns else ("cols", 1)
    numbers = (1, rows) if columns else (cols, 1)
    layout = Layout(((0,),), ((1,),), (strides,), (0,))
    return Arrangement(layout, (rows,), (cols,), (numbers,), (0,), (0,), rows * cols)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("cols", [64, 1000, 4096, 40_000, 300_000, 1 << 22])
def test_one_schedule_for_any_number_of_rows(cols: int, columns: bool) -> None:
    chosen = (
        choose_triton(Form.ROWS, (), arrangement(rows, cols, columns=columns), invariant=True)
        for rows in (1, 2, 7, 132, 513)
    )
    # Wide offsets are the only thing to differ: they change no sum.
    assert len({replace(config, wide_index=False) for config in chosen}) == 1
    usual = {
        choose_triton(Form.ROWS, (), arrangement(rows, 300_000, columns=columns))
        for rows in (1, 7, 513)
    }
    assert len(usual) > 1  # which is what the option is for


def test_rows_have_the_same_bits_in_any_batch() -> None:
    f = fusec.compile("softmax(x), sum(x)", backend="triton", batch_invariant=True)
    x = torch.randn(5, 70_000)
    whole = f(x)
    for rows in (1, 3):
        for result, all_rows in zip(f(x[:rows]), whole, strict=True):
            assert torch.equal(result, all_rows[:rows])


@pytest.mark.gpu
@pytest.mark.parametrize("cols", [64, 1000, 4096, 70_000])
def test_rows_have_the_same_bits_in_any_batch_on_a_gpu(cols: int) -> None:
    f = fusec.compile("softmax(x), sum(x)", batch_invariant=True)
    x = torch.randn(700, cols, device="cuda")
    whole = f(x)
    for rows in (1, 8, 132):
        for result, all_rows in zip(f(x[:rows]), whole, strict=True):
            assert torch.equal(result, all_rows[:rows])


@pytest.mark.gpu
def test_a_search_on_a_gpu() -> None:
    x = torch.randn(512, 4096, device="cuda", dtype=torch.bfloat16)
    f = fusec.compile("softmax(x)", tune=5.0)
    torch.testing.assert_close(f(x), torch.softmax(x, -1))
    assert len(f.variants) == 1
