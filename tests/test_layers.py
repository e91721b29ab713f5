"""Imports point one way only, and the lower layers cannot know sockets, clocks, threads, chance.

The order of the folders is the way data flows; a folder that does not exist yet has its place.
"""

import ast
from pathlib import Path

import pytest

import zenlake

ROOT = Path(zenlake.__file__).parent

# Each may import those before it, and itself.
ORDER = (
    "errors",
    "wire",
    "hlc",
    "keyexpr",
    "keytable",
    "transport",
    "routing",
    "link",
    "runtime",
    "sim",
    "columnar",
    "api",
    "handlers",
    "shm",
    "ext",
    "aio",
    "log",
    "capture",
    "router",
    "spark",
    "lake",
    "cli",
)
PURE = {"errors", "wire", "hlc", "keyexpr", "keytable", "transport", "routing"}
IMPURE = {
    "asyncio",
    "concurrent",
    "multiprocessing",
    "os",
    "queue",
    "random",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "socketserver",
    "ssl",
    "subprocess",
    "threading",
    "time",
    "uuid",
}
ONLY_IN = {
    "pyspark": {"spark", "lake.pipeline"},
    "pyarrow": {"columnar", "api", "aio", "log", "capture", "spark", "lake", "cli"},
    "numba": {"wire.kernels", "columnar.kernels", "log.kernels", "capture.kernels"},
    "deltalake": {"lake"},
    "typer": {"cli"},
    "rich": {"cli"},
}
FILES = sorted(ROOT.rglob("*.py"))


def layer_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports_of(path: Path) -> list[str]:
    """Every module that a file imports, at the top or inside a function."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            module = node.module or ""
            found.append(module)
            if module == "zenlake":
                found += [f"zenlake.{alias.name}" for alias in node.names]
    return found


def test_there_is_something_to_check() -> None:
    assert len(FILES) > 40
    assert {layer_of(path) for path in FILES} >= {"wire", "keyexpr", "columnar", "cli"}


def broken_rules(path: Path, layer: str) -> list[str]:
    """What a file of `layer` imports and may not."""
    broken: list[str] = []
    for name in imports_of(path):
        package, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        ours = package == "zenlake" and target and target != "__version__"
        if ours and (target not in ORDER or ORDER.index(target) > ORDER.index(layer)):
            broken.append(f"{layer} is before {name}")
        if layer in PURE and package in IMPURE:
            broken.append(f"{layer} is pure and imports {name}")
        if package in ONLY_IN and layer not in ONLY_IN[package]:
            broken.append(f"{layer} imports {name}, which only {ONLY_IN[package]} may")
    return broken


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_up_the_flow(path: Path) -> None:
    layer = layer_of(path)
    if layer == "__init__":
        return  # the package's face: it may name anything, and loads it only when used
    assert layer in ORDER, f"{layer} has no place in the order of layers"
    assert broken_rules(path, layer) == []


@pytest.mark.parametrize(
    ("line", "layer"),
    [
        ("from zenlake.cli import main", "wire"),
        ("import zenlake.columnar.read", "keyexpr"),
        ("def f():\n    import socket", "wire"),
        ("from time import monotonic", "routing"),
        ("import threading", "transport"),
        ("import random", "hlc"),
        ("import pyspark", "columnar"),
        ("from pyarrow import compute", "wire"),
        ("from zenlake import somewhere", "cli"),
    ],
)
def test_every_rule_can_be_broken(tmp_path: Path, line: str, layer: str) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(line + "\n")
    assert len(broken_rules(bad, layer)) == 1


def test_datetime_is_used_without_its_clock() -> None:
    """datetime is text and arithmetic in the pure layers: now() and today() are a clock."""
    for path in FILES:
        if layer_of(path) in PURE:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute):
                    assert node.attr not in {"now", "today", "utcnow"}, path
