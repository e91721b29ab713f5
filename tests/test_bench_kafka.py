"""The Kafka side of the lake's benchmark, as far as it goes without Kafka: what it says is missing,
which arguments it refuses, and what its processes may import.
"""

import ast
import os
import re
from pathlib import Path
from typing import cast

import deltalake
import pyarrow as pa
import pytest

from bench.kafka import __main__ as command
from bench.kafka import installation
from bench.kafka.installation import VARIABLE, Installation, NotInstalledError
from bench.kafka.lake import BATCH_ROWS, KafkaLake, LiveQuery, write_rows
from bench.lake_rows import rows_of
from bench.process import Process
from tests.support.delta_runtime import start_delta_runtime

BENCH = Path(command.__file__).parents[1]
NOT_STARTED = cast(Process, None)
PARTS = ("broker", "spark", "venv/bin/python")


@pytest.fixture(scope="module", autouse=True)
def _delta_runtime(tmp_path_factory: pytest.TempPathFactory) -> None:
    start_delta_runtime(tmp_path_factory.mktemp("delta"))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with all parts, which the environment names."""
    for part in PARTS:
        (tmp_path / part).mkdir(parents=True)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


# ---- the installation


@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_variable_is_explained(
    value: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if value is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(NotInstalledError, match=f"make bench-kafka-jars {VARIABLE}="):
        Installation.find()
    assert command.main([]) == 1
    assert f"make bench-kafka-jars {VARIABLE}=" in capsys.readouterr().err


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_part_is_named(part: str, installed: Path) -> None:
    (installed / part).rmdir()
    with pytest.raises(NotInstalledError, match=f"{installed / part} is missing.*={installed}"):
        Installation.find()


def test_its_programs_do_not_get_the_other_spark(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "java_home", lambda: Path("/java"))
    monkeypatch.setenv("SPARK_HOME", "/other")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/other")
    found = Installation.find()
    variables = found.environment()
    assert "/other" not in variables.values()
    assert variables["PYSPARK_PYTHON"] == str(found.python)
    assert variables["JAVA_HOME"] == "/java"
    assert variables["PATH"] == os.environ["PATH"]
    assert (Path(variables["PYTHONPATH"]) / "bench" / "kafka" / "job.py").exists()


def test_the_connector_is_of_the_same_spark() -> None:
    folder = BENCH / "kafka"
    (pinned,) = re.findall(r"^pyspark==(\S+)$", (folder / "requirements.txt").read_text(), re.M)
    text = (folder / "spark.xml").read_text()
    assert f"spark-sql-kafka-0-10_2.13</artifactId>\n      <version>{pinned}<" in text
    assert f"delta-spark_{pinned.rpartition('.')[0]}_2.13<" in text


@pytest.mark.parametrize("name", ["__init__", "peer", "kafka/__init__", "kafka/feed", "kafka/job"])
def test_its_programs_import_no_zenlake(name: str) -> None:
    """The installation has a Python of its own, without zenlake and what zenlake needs."""
    nodes = list(ast.walk(ast.parse((BENCH / f"{name}.py").read_text())))
    modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }
    ours = {module for module in modules if module.partition(".")[0] in ("bench", "zenlake")}
    assert ours <= {"bench.peer"}


# ---- arguments


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rows", "0"],
        ["--rows", "many"],
        ["--turns", "-1"],
        ["--puts", "0"],
        ["--rate", "0"],
        ["--seconds", "0"],
        ["--seconds", "inf"],
        ["--seconds", "nan"],
    ],
)
def test_arguments_are_checked(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert f"argument {arguments[0]}: " in capsys.readouterr().err


def test_a_topic_has_rows(tmp_path: Path) -> None:
    lake = KafkaLake(tmp_path, NOT_STARTED, NOT_STARTED)
    with pytest.raises(ValueError, match=r"call fill\(\) first"):
        lake.drain()
    with pytest.raises(ValueError, match="positive, not 0"):
        lake.fill(0)


@pytest.fixture
def query(tmp_path: Path) -> LiveQuery:
    """Return a query whose table `latest` is empty."""
    write_latest(tmp_path)
    return LiveQuery(NOT_STARTED, NOT_STARTED, "topic", tmp_path)


def write_latest(folder: Path, *payloads: bytes) -> None:
    rows = pa.table({"payload": pa.array(payloads, pa.binary())})
    deltalake.write_deltalake(folder / "latest", rows, mode="overwrite")


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1.0), (10, 0.0), (-1, 1.0)])
def test_a_rate_is_positive(rate: int, seconds: float, query: LiveQuery) -> None:
    with pytest.raises(ValueError, match=f"positive, not {rate} and {seconds}"):
        query.send(rate, seconds)


# ---- data


def test_the_values_of_latest_are_read_once(query: LiveQuery, tmp_path: Path) -> None:
    assert query.latest_values() == []
    write_latest(tmp_path, b"1", b"2")
    assert sorted(query.latest_values()) == [b"1", b"2"]
    assert query.latest_values() == []
    write_latest(tmp_path, b"3")
    assert query.latest_values() == [b"3"]


def test_the_rows_are_the_fleet_s(tmp_path: Path) -> None:
    count = BATCH_ROWS + 3
    with pa.OSFile(str(write_rows(tmp_path, count))) as file:
        written = pa.ipc.open_stream(file).read_all()
    assert written.combine_chunks() == pa.Table.from_batches([rows_of(0, count)])
