"""Spark for a running lake: a JVM of its own, with this process as its driver.

Knows how Spark is started, ended and found dead, and its output. Does not know flows or tables.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from zenlake.errors import ZError
from zenlake.lake.pipeline import pyspark_internals

if TYPE_CHECKING:
    from pyspark import SparkConf

END_SECONDS = 30.0  # Longest wait for a local Spark to end.
SPARK_LOG = "spark.log"  # File of Spark's output in the state folder.
MAX_LOG_BYTES = 16 << 20  # Size above which Spark's output is emptied.
MAX_REASON = 500  # Upper bound on the characters of a failure reason.
LOOPBACK = "127.0.0.1"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "4",
}
LOCAL_SETTINGS = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
"Settings of a Spark without other machines: nothing listens on the network."
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^(zenlake\.)?(?:\w+\.)*(\w+): (.+)", re.M)
_ERROR = re.compile(r"\w*(?:Error|Exception)\w*")
_WRAPPED = re.compile(r"\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ")
_STATE = re.compile(r" SQLSTATE: \w+")


class SparkDriver:
    """A Spark whose driver is this process.

    `master` is `local[*]` or a cluster. Create it outside the main thread: PySpark would handle
    SIGINT.
    """

    def __init__(self, app: str, master: str, conf: Mapping[str, str], log: Path) -> None:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark import SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        pyspark_internals.hide_pandas_warning()
        settings = _configure(app, master, conf)
        self._log = log
        self._home = tempfile.TemporaryDirectory(prefix="zenlake-spark-")
        pyspark_internals.forget_gateway()
        try:
            with log.open("ab") as output, spark_home(Path(self._home.name), master):
                self._gateway = pyspark_internals.launch_gateway(settings, output)
        except (PySparkException, ZError) as error:
            self._home.cleanup()
            raise _start_error(error, log) from None
        try:
            self._context = SparkContext(conf=settings, gateway=self._gateway)
            self.session: SparkSession = SparkSession(self._context)
        except (PySparkException, Py4JError, ZError, OSError, ValueError) as error:
            self._end()
            raise _start_error(error, log) from None

    @property
    def ui(self) -> str | None:
        """URL of Spark's web pages; None if they are switched off."""
        return self._context.uiWebUrl

    @property
    def alive(self) -> bool:
        return self._gateway.proc.poll() is None

    def ends_within(self, seconds: float) -> bool:
        """Wait up to `seconds` for the JVM to end; return whether it has."""
        try:
            self._gateway.proc.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End the JVM at once, from any thread."""
        self._gateway.proc.kill()

    def truncate_log(self) -> None:
        """Empty the file of Spark's output if it is large."""
        with suppress(OSError):
            if self._log.stat().st_size > MAX_LOG_BYTES:
                os.truncate(self._log, 0)  # Spark has it open for appending.

    def close(self) -> None:
        with suppress(Exception):  # The JVM may be gone already.
            self.session.stop()
        self._end()

    def _end(self) -> None:
        with suppress(Exception):
            self._gateway.shutdown()
        process = self._gateway.proc
        process.stdin.close()  # Ends the JVM.
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        pyspark_internals.forget_gateway()
        self._home.cleanup()


@contextmanager
def spark_home(folder: Path, master: str) -> Iterator[None]:
    """Set SPARK_HOME to the installed PySpark without its archive of Python sources.

    Workers would import PySpark from the archive and compile it at each start; from the installed
    package they start in half the time. A SPARK_HOME of the user stays.
    """
    import pyspark

    if "SPARK_HOME" in os.environ or not master.startswith("local"):
        yield
        return
    for name in ("bin", "jars", "sbin"):
        (folder / name).symlink_to(Path(pyspark.__file__).parent / name)
    os.environ["SPARK_HOME"] = str(folder)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def _configure(app: str, master: str, conf: Mapping[str, str]) -> "SparkConf":
    """Set the environment that the JVM inherits; return its configuration."""
    from pyspark import SparkConf

    from zenlake.spark import local_session

    home = local_session.java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = SparkConf()
    chosen = {**local_session.SETTINGS, **SETTINGS}
    if master.startswith("local"):
        chosen |= LOCAL_SETTINGS
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)  # Where the web pages listen.
    for name, value in {**chosen, **conf}.items():
        settings.set(name, value)
    return settings.setMaster(master).setAppName(app)


def _start_error(error: Exception, log: Path) -> ZError:
    return ZError(f"Spark does not start: {extract_reason(str(error))}; it says more in {log}")


def extract_reason(text: str) -> str:
    """Return the line of a long Spark message that has the cause.

    >>> wrapped = "[STREAM_FAILED] Query [id = 1] terminated with exception: "
    >>> extract_reason(wrapped + "[A.B] no SQLSTATE: 1")
    '[A.B] no'
    >>> extract_reason(_TRACEBACK + "\\n  x: y\\nzenlake.errors.ZError: bad\\n at x")
    'bad'
    """
    _, traced, last = text.rpartition(_TRACEBACK)
    raised = _RAISED.findall(last)[:1] if traced else []
    raised = raised or [
        line for line in _RAISED.findall(text) if line[0] or _ERROR.fullmatch(line[1])
    ]
    if raised:
        own, name, why = raised[-1]
        found = why if own else f"{name}: {why}"
    else:
        found = next(iter(_WRAPPED.sub("", text).strip().splitlines()), "no reason given")
    found = _STATE.sub("", found).strip()
    return found if len(found) <= MAX_REASON else found[:MAX_REASON] + "..."
