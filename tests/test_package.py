"""Cost of an import, examples in docstrings, and that the package is typed."""

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import zenlake

MODULES = [
    info.name
    for info in pkgutil.walk_packages(zenlake.__path__, "zenlake.")
    if not info.name.startswith("zenlake.keyexpr")  # its examples run among its own tests
]
HEAVY = ["numpy", "numba", "pyarrow", "pyspark", "lz4", "typer", "rich", "asyncio", "socket"]


def loaded_by(statement: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.process
def test_import_zenlake_loads_nothing_heavy() -> None:
    assert not loaded_by("import zenlake") & set(HEAVY)


@pytest.mark.process
def test_the_object_codec_loads_nothing_heavy() -> None:
    loaded = loaded_by("import zenlake.wire.batch, zenlake.wire.framing, zenlake.hlc")
    assert not loaded & set(HEAVY)


@pytest.mark.process
def test_the_scan_loads_no_arrow() -> None:
    loaded = loaded_by("import zenlake.wire.scan, zenlake.wire.emit")
    assert "numba" in loaded
    assert not loaded & {"pyarrow", "pyspark", "typer"}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} does not say what it does"
    assert doctest.testmod(module).failed == 0


def test_there_are_examples() -> None:
    examples = 0
    for name in MODULES:
        for found in doctest.DocTestFinder().find(importlib.import_module(name)):
            examples += len(found.examples)
    assert examples > 10


def test_the_package_is_typed() -> None:
    assert (Path(zenlake.__file__).parent / "py.typed").exists()
