"""Who may import whom: one table, one walk over the syntax trees of fusec."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "fusec"

# Part of fusec -> layer. A part imports from lower layers and from itself, so parts of one layer
# never see each other. `__init__` stands for the names that `import fusec` offers.
LAYERS = {
    "version": 0,
    "forks": 0,
    "collector": 1,
    "source": 1,
    "settings": 1,
    "errors": 2,
    "ir": 3,
    "passes": 4,
    "frontend": 4,
    "codegen": 5,
    "runtime": 6,
    "api": 7,
    "torch_backend": 8,
    "nn": 8,
    "__init__": 9,
    "cli": 10,
    "__main__": 11,
}

# From the passes, code generation takes the Plan and nothing else.
ONLY_MODULE = {("codegen", "passes"): "fusec.passes.fuse"}

FILES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path, root: Path = ROOT) -> str:
    first = path.relative_to(root).parts[0]
    return first.removesuffix(".py")


def imported_modules(tree: ast.Module, root: Path = ROOT) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each import of fusec, inside functions and by string as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [resolve(node, alias.name, root) for alias in node.names]
        elif isinstance(node, ast.Call) and called_name(node) in ("import_module", "__import__"):
            names = [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
        else:
            continue
        yield from ((node.lineno, name) for name in names if f"{name}.".startswith("fusec."))


def resolve(node: ast.ImportFrom, name: str, root: Path) -> str:
    """The module behind `from x import name`: x.name where that is a module, and else x."""
    if node.level:
        return "fusec.<relative import>"
    module = node.module or ""
    inner = root.joinpath(*module.split(".")[1:], name)
    is_module = inner.is_dir() or inner.with_suffix(".py").exists()
    return f"{module}.{name}" if is_module else module


def called_name(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def violations(part: str, tree: ast.Module, root: Path = ROOT) -> list[str]:
    """What `tree`, a file of `part`, imports and must not, as `line: reason`."""
    found = []
    for line, module in imported_modules(tree, root):
        target = module.split(".")[1] if "." in module else "__init__"
        allowed = ONLY_MODULE.get((part, target), module)
        if target not in LAYERS:
            found.append(f"{line}: {module} has no layer")
        elif target != part and LAYERS[target] >= LAYERS[part]:
            found.append(f"{line}: {part} must not import {module}")
        elif module != allowed:
            found.append(f"{line}: {part} may import {allowed} only, not {module}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    part = part_of(path)
    assert part in LAYERS, f"give {part} a layer in LAYERS"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert violations(part, tree) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_environment_is_read_in_settings_only(path: Path) -> None:
    if path == ROOT / "settings.py":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert environment_reads(tree) == []


def environment_reads(tree: ast.Module) -> list[int]:
    """Lines that reach for the process environment."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv"}
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            touched = node.attr in names and isinstance(node.value, ast.Name)
            touched = touched and node.value.id in ("os", "posix")
        elif isinstance(node, ast.ImportFrom):
            touched = node.module == "os" and any(alias.name in names for alias in node.names)
        else:
            continue
        if touched:
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    ("part", "code", "count"),
    [
        ("ir", "from fusec.errors import FusecError", 0),
        ("ir", "from fusec import errors, source", 0),
        ("ir", "def f():\n    from fusec.passes import fuse", 1),
        ("ir", "import fusec", 1),
        ("ir", "from .node import Node", 1),
        ("ir", "from fusec.nowhere import thing", 1),
        ("source", "from fusec.settings import current", 1),
        ("passes", "from fusec.frontend.parser import parse", 1),
        ("frontend", "from fusec.frontend.syntax import Call", 0),
        ("runtime", "import importlib\nimportlib.import_module('fusec.api')", 1),
        ("codegen", "from fusec.passes.fuse import Plan", 0),
        ("codegen", "from fusec.passes.simplify import simplify", 1),
        ("codegen", "from fusec.passes import Plan", 1),
        ("cli", "from fusec import __version__", 0),
    ],
)
def test_the_walk_sees_what_it_should(part: str, code: str, count: int) -> None:
    assert len(violations(part, ast.parse(code))) == count


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("import os\nos.environ['HOME']", 1),
        ("import os\nos.getenv('HOME')", 1),
        ("from os import environ, path", 1),
        ("from os import path", 0),
        ("settings.environ", 0),
    ],
)
def test_environment_reads_are_seen(code: str, count: int) -> None:
    assert len(environment_reads(ast.parse(code))) == count
