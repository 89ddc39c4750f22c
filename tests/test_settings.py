"""What the environment says, and what code may change for a while."""

from pathlib import Path

import pytest

from fusec import settings
from fusec.settings import Settings, from_environment


def test_an_empty_environment_gives_the_defaults() -> None:
    assert from_environment({}) == Settings()
    assert Settings().cxx == (("c++",), ("g++",), ("clang++",))


def test_every_variable_is_typed() -> None:
    found = from_environment(
        {
            "FUSEC_CACHE_DIR": "~/kernels",
            "FUSEC_DEBUG": "3",
            "FUSEC_CXX": "ccache g++-12",
            "FUSEC_CXXFLAGS": "-g '-DNAME=a b'",
            "FUSEC_NUM_THREADS": "8",
            "FUSEC_NO_CACHE": "1",
            "FUSEC_NO_HELPER": "1",
            "FUSEC_DUMP": "/tmp/dump",
            "DISABLE_LLVM_OPT": "1",
            "PATH": "/bin",
        }
    )
    assert found == Settings(
        cache_dir=Path.home() / "kernels",
        debug=3,
        cxx=(("ccache", "g++-12"),),
        cxxflags=("-g", "-DNAME=a b"),
        num_threads=8,
        no_cache=True,
        no_helper=True,
        dump=Path("/tmp/dump"),
        tool_environment=(("DISABLE_LLVM_OPT", "1"),),
    )


def test_cxx_comes_before_the_usual_names() -> None:
    assert from_environment({"CXX": "icpx"}).cxx == (("icpx",), ("c++",), ("g++",), ("clang++",))


@pytest.mark.parametrize("text", ["", "0", "no", "False", " off "])
def test_words_that_mean_no(text: str) -> None:
    assert not from_environment({"FUSEC_NO_CACHE": text}).no_cache


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FUSEC_DEBUG", "6"),
        ("FUSEC_DEBUG", "-1"),
        ("FUSEC_DEBUG", "yes"),
        ("FUSEC_NUM_THREADS", "0"),
    ],
)
def test_a_bad_number_is_named(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be an integer from .* got '{text}'"):
        from_environment({name: text})


def test_override_nests_and_restores() -> None:
    before = settings.get()
    with settings.override(debug=5):
        with settings.override(num_threads=2) as inner:
            assert settings.get() is inner
            assert (inner.debug, inner.num_threads) == (5, 2)
        assert settings.get().debug == 5
    assert settings.get() is before
    with pytest.raises(TypeError), settings.override(unknown=1):
        pass


def test_reload_reads_the_environment_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings.get()
    monkeypatch.setenv("FUSEC_DEBUG", "4")
    assert settings.get() is before
    with settings.override():
        assert settings.reload().debug == 4
