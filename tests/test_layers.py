"""Imports point one way only, and the lower layers cannot import sockets, clocks or threads.

Two levels: `ORDER` lists the packages in the order in which data flows through them, `INNER` the
rooms inside a package. A third-party library is imported only by the rooms that `ONLY_IN` lists.
"""

import ast
from pathlib import Path

import pytest

import zenlake

ROOT = Path(zenlake.__file__).parent

# A package may import itself and the packages before it.
ORDER = (
    "errors",
    "quantities",
    "checked",
    "caching",
    "serial",
    "wire",
    "hlc",
    "keyexpr",
    "keytable",
    "transport",
    "routing",
    "filelock",
    "link",
    "shm",
    "runtime",
    "sim",
    "columnar",
    "api",
    "handlers",
    "ext",
    "aio",
    "log",
    "capture",
    "router",
    "spark",
    "lake",
    "cli",
)
# A room may import itself and the rooms of the same package before it.
INNER = {
    "log": (
        "format",
        "files",
        "block",
        "kernels",
        "read",
        "write",
        "replay",
        "export",
    ),
    "lake": (
        "project",
        "scaffold",
        "tables",
        "kernels",
        "decoders",
        "serve",
        "report",
        "pipeline",
        "reprocess",
        "template",
    ),
    "shm": (
        "layout",
        "segment",
        "native",
        "headers",
        "kernels",
        "holds",
        "arena",
        "views",
        "foreign",
        "pointers",
        "handshake",
        "node",
        "session",
        "provider",
    ),
    "capture": ("kernels",),  # kernels import no other room of the package
    "columnar": ("schema", "kernels"),
}
PURE = {
    "errors",
    "quantities",
    "checked",
    "caching",
    "wire",
    "hlc",
    "keyexpr",
    "keytable",
    "transport",
    "routing",
}
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
    "pyspark": {"spark", "lake.pipeline", "lake.template"},
    "pyarrow": {"columnar", "api", "aio", "log", "capture", "spark", "lake", "cli"},
    "numba": {
        "wire.kernels",
        "shm.kernels",
        "columnar.kernels",
        "log.kernels",
        "capture.kernels",
        "lake.kernels",
    },
    "deltalake": {"lake"},
    "typer": {"cli"},
    "rich": {"cli"},
}
FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    """Return `package` or `package.room` for a file below the package's folder."""
    first, *rest = path.relative_to(ROOT).with_suffix("").parts
    return f"{first}.{rest[0]}" if rest and rest[0] != "__init__" else first


def is_module(folder: Path, name: str) -> bool:
    return (folder / name).is_dir() or (folder / f"{name}.py").is_file()


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
            elif module.startswith("zenlake.") and module.count(".") == 1:
                folder = ROOT / module.removeprefix("zenlake.")
                names = [alias.name for alias in node.names]
                found += [f"{module}.{name}" for name in names if is_module(folder, name)]
    return found


def test_there_is_something_to_check() -> None:
    assert len(FILES) > 40
    rooms = {room_of(path) for path in FILES}
    assert rooms >= {"errors", "wire.kernels", "lake.pipeline", "cli.commands"}
    for package, order in INNER.items():
        assert {f"{package}.{room}" for room in order} <= rooms


def may_import(room: str, library: str) -> bool:
    """Say whether `room`, or the package it belongs to, may import `library`."""
    allowed = ONLY_IN.get(library)
    return allowed is None or room in allowed or room.partition(".")[0] in allowed


def broken_rules(path: Path, room: str) -> list[str]:
    """List the imports of a file in `room` that its place in the order does not allow."""
    layer, _, inner = room.partition(".")
    order = INNER.get(layer, ())
    broken: list[str] = []
    for name in imports_of(path):
        package, _, rest = name.partition(".")
        target, _, rest = rest.partition(".")
        other = rest.partition(".")[0]
        ours = package == "zenlake" and target and target != "__version__"
        if ours and (target not in ORDER or ORDER.index(target) > ORDER.index(layer)):
            broken.append(f"{layer} is before {name}")
        if ours and target == layer and inner in order and other != inner:
            first = order.index(other) if other in order else len(order)
            if other and first > order.index(inner):
                broken.append(f"{room} is before {name}")
        if layer in PURE and package in IMPURE:
            broken.append(f"{layer} is pure and imports {name}")
        if not may_import(room, package):
            broken.append(f"{room} imports {name}, which only {ONLY_IN[package]} may")
    return broken


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_up_the_flow(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return  # the package's face: it may name anything, and loads it only when used
    assert room.partition(".")[0] in ORDER, f"{room} has no place in the order of layers"
    assert broken_rules(path, room) == []


@pytest.mark.parametrize(
    ("line", "room"),
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
        ("import pyspark", "lake.tables"),
        ("import numba", "wire.scan"),
        ("from zenlake.lake.pipeline import sink", "lake.serve"),
        ("from zenlake.log.write.writer import Writer", "log.read"),
        ("from zenlake.capture import rows", "capture.kernels"),
    ],
)
def test_every_rule_can_be_broken(tmp_path: Path, line: str, room: str) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(line + "\n")
    assert len(broken_rules(bad, room)) == 1


def test_datetime_is_used_without_its_clock() -> None:
    """datetime is text and arithmetic in the pure layers: now() and today() are a clock."""
    for path in FILES:
        if room_of(path).partition(".")[0] in PURE:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute):
                    assert node.attr not in {"now", "today", "utcnow"}, path
