"""`import fusec` is cheap: it loads nothing heavy, and its names arrive on first use."""

import subprocess
import sys

import pytest

import fusec

HEAVY = ["filelock", "lark", "mpmath", "numpy", "rich", "sympy", "torch", "triton", "typer"]


def modules_after(code: str) -> set[str]:
    """Names of the modules that a fresh interpreter holds once it has run `code`."""
    script = f"{code}\nimport sys\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    return set(done.stdout.split())


def test_import_loads_nothing_heavy() -> None:
    modules = modules_after("import fusec; fusec.__version__; dir(fusec)")
    assert modules & set(HEAVY) == set()
    assert {name for name in modules if name.startswith("fusec")} == {"fusec", "fusec.version"}


def test_errors_load_nothing_heavy() -> None:
    assert modules_after("import fusec; fusec.FusecError") & set(HEAVY) == set()


@pytest.mark.parametrize("name", fusec.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(fusec, name) is getattr(fusec, name)
    assert name in dir(fusec)


def test_every_error_is_public() -> None:
    from fusec import errors

    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.FusecError)
    }
    assert defined <= set(fusec.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'fusec' has no attribute 'nonesuch'"):
        _ = fusec.nonesuch
