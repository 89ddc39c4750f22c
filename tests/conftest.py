"""What every test shares: GPU skips, golden files, a private kernel cache, fixed random choices."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

GOLDEN_ROOT = Path(__file__).parent / "golden"
_CACHE_ROOT = pytest.StashKey[str]()

# The same examples in every run, and no deadline: a first example may well compile a kernel.
# `--hypothesis-profile=explore` draws fresh ones.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True)
hypothesis.settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the files under tests/golden that differ; refused when CI is set",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-golden") and os.environ.get("CI"):
        raise pytest.UsageError("--update-golden is refused when CI is set: review goldens as text")
    if hasattr(config, "workerinput"):
        return  # an xdist worker inherits the directory from the process that started it
    cache_root = tempfile.mkdtemp(prefix="fusec-test-cache-")
    config.stash[_CACHE_ROOT] = cache_root
    os.environ["FUSEC_CACHE_DIR"] = cache_root


def pytest_unconfigure(config: pytest.Config) -> None:
    if _CACHE_ROOT in config.stash:
        shutil.rmtree(config.stash[_CACHE_ROOT], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items or _has_cuda_device():
        return
    for item in gpu_items:
        item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How much of PyTorch's operator database was checked, and what was left out, by reason."""
    for title in ("op_db", "op_db triton"):
        reports = terminalreporter.stats.get("passed", [])
        found = [v for r in reports for k, v in r.user_properties if k == title]
        if not found:
            continue
        samples, checked = (sum(f[key] for f in found) for key in ("samples", "checked"))
        line = f"{title}: {len(found)} operators, {samples} samples, {checked} checked"
        terminalreporter.write_line(line)
        for entry in found:
            for reason, count in entry["left out"].items():
                terminalreporter.write_line(f"  {count} of {entry['operator']}: {reason}")


def _has_cuda_device() -> bool:
    import torch  # only when a test asks for a GPU: the rest of the suite may not need torch

    return torch.cuda.is_available()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("gelu.triton.py", text)` asserts that tests/golden/gelu.triton.py holds `text`.

    Names keep the real extension of what they hold. With --update-golden the file is written.
    """

    def check(name: str, actual: str) -> None:
        path = GOLDEN_ROOT / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(actual, encoding="utf-8", newline="\n")
        how = f"pytest {request.node.nodeid} --update-golden"
        if not path.exists():
            pytest.fail(f"no golden file {path}; to write it, run: {how}", pytrace=False)
        expected = path.read_text(encoding="utf-8")
        assert actual == expected, f"{path} differs; if that is intended, run: {how}"

    return check
