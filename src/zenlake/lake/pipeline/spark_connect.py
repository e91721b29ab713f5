"""One Spark Connect session for the whole life of a running lake, and runs of its pipeline in it.

Does in one session what the command `spark-pipelines run` does in a session per run. Does not know
when to run, or who records.
"""

import logging
import os
import re
import subprocess
import sys
import tempfile
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from zenlake.errors import ZError
from zenlake.lake.pipeline import pyspark_internals
from zenlake.lake.pipeline.flows import Flow, collect_flows
from zenlake.lake.project import Project

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.pipelines.cli import PipelineSpec

REMOTE = "sc://"  # Prefix of a Spark Connect server, given in place of a master.
END_SECONDS = 30.0  # Longest wait for a local Spark to end.
SPECS = ("spark-pipeline.yml", "spark-pipeline.yaml")
SPARK_LOG = "spark.log"  # File of Spark's output in the state folder.
MAX_LOG_BYTES = 16 << 20  # Size above which Spark's output is emptied before a run.
MAX_REASON = 500  # Upper bound on the characters of a failure reason.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "localhost",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.pipelines.execution.maxConcurrentFlows": "1",  # See scaffold.CONFIGURATION.
    # The next cycle tries again, after the failure has been reported.
    "spark.sql.pipelines.maxFlowRetryAttempts": "0",
}
_EVENT = re.compile(r"Flow '?([^' ]+)'? (?:is|has) (?:been )?([A-Z]+)")
_RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)\w*|DataLoss|AnotherLog): (.+)", re.M)
_WRAPPED = re.compile(r"\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ")
_STATE = re.compile(r" SQLSTATE: \w+")

_log = logging.getLogger(__name__)


class FlowEvent(NamedTuple):
    """New state of a flow, with the reason if it failed."""

    flow: str
    state: str
    reason: str | None = None


class PipelineSession:
    """Spark Connect session in which the pipeline of a project runs.

    `master` is the master of a Spark to start here (`local[*]`, or a cluster), or the `sc://host`
    of a Spark Connect server. Create it outside the main thread: PySpark would handle SIGINT.
    """

    def __init__(self, project: Project, master: str, conf: Mapping[str, str]) -> None:
        # Spark warns of a pandas that is not used here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
        self.flows: dict[str, Flow] = {}
        "Flows that the transformations declared in the last run, by name."
        self.complete = False
        "Whether all transformations of the last run were read, so that `flows` has all flows."
        self._spec_path = find_spec(project)
        self._spec = _load_spec(self._spec_path)
        self.state = state_folder(project, self._spec.storage)
        self._log_file = None if self.state is None else self.state / SPARK_LOG
        self._server: _SparkServer | None = None
        if master.startswith(REMOTE):
            url = master
        else:
            self._server = _SparkServer(project.name, master, conf, self._log_file)
            url = self._server.url
        try:
            self._spark = _connect(url)
        except BaseException:
            self._end_server()
            raise

    def run(self, tell: Callable[[FlowEvent], None]) -> bool:
        """Process all durable samples once in every flow; return whether every flow succeeded.

        Calls `tell` for each change of a flow. ZError: the transformations cannot be read.
        """
        from pyspark.errors import PySparkException

        self._truncate_log()
        graph = self._create_graph()
        failed: set[str] = set()
        try:
            for response in pyspark_internals.start_run(self._spark, graph, self._spec.storage):
                for event in _flow_events(response):
                    # Spark reports a failed flow as completed first.
                    (failed.add if event.state == "FAILED" else failed.discard)(event.flow)
                    tell(event)
        except PySparkException as error:
            if not failed:  # Otherwise the event of the flow has the reason.
                raise ZError(extract_reason(str(error))) from None
        finally:
            pyspark_internals.drop_graph(self._spark, graph)
        return not failed

    @property
    def alive(self) -> bool:
        """Whether a Spark was started here and still runs."""
        return self._server is not None and self._server.alive

    def close(self) -> None:
        """End the session, and the Spark that was started for it."""
        if self._server is None or self._server.alive:  # A stop without a server retries for long.
            self._spark.stop()
        self._end_server()

    def kill(self) -> None:
        """End the Spark that was started here at once, from any thread."""
        if self._server is not None:
            self._server.kill()

    def _create_graph(self) -> str:
        """Run the transformations; return the id of the graph that they declare in Spark."""
        graph = pyspark_internals.create_graph(self._spark, self._spec)
        self.complete = False
        try:
            with collect_flows() as self.flows:
                pyspark_internals.register_definitions(
                    self._spark, graph, self._spec_path, self._spec
                )
        except Exception as error:
            pyspark_internals.drop_graph(self._spark, graph)
            if isinstance(error, ZError):
                reason = str(error)
            else:
                reason = extract_reason(f"{type(error).__name__}: {error}")
            raise ZError(f"{_locate_error(error, self._spec_path.parent)}: {reason}") from error
        self.complete = True
        return graph

    def _truncate_log(self) -> None:
        if self._log_file is not None:
            with suppress(OSError):
                if self._log_file.stat().st_size > MAX_LOG_BYTES:
                    os.truncate(self._log_file, 0)  # Spark has it open for appending.

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.close()


# ---- the project, as Spark knows it


def find_spec(project: Project) -> Path:
    """Return the file that describes the pipeline to Spark."""
    for name in SPECS:
        if (project.home / name).is_file():
            return project.home / name
    raise ZError(
        f"{project.home} has no {SPECS[0]}: make a lake elsewhere (zenlake lake init) and copy its"
    )


def _load_spec(path: Path) -> "PipelineSpec":
    from pyspark.errors import PySparkException
    from yaml import YAMLError

    try:
        return pyspark_internals.load_spec(path)
    except (PySparkException, YAMLError, OSError, LookupError, TypeError, ValueError) as error:
        raise ZError(f"{path}: {' '.join(str(error).split())}") from None


def state_folder(project: Project, storage: str) -> Path | None:
    """Return the folder of Spark's checkpoints; None if it is not on a local disk.

    ZError: the folder is missing because the lake was moved.
    """
    parts = urlsplit(storage)
    if parts.scheme != "file":
        return None
    state, own = Path(unquote(parts.path)), project.home / "state"
    if state != own and not state.exists() and own.exists():
        raise ZError(
            f"{find_spec(project)} says that the state is in {state}, which is not there: if the "
            f"lake was moved, write storage: {own.as_uri()}"
        )
    state.mkdir(parents=True, exist_ok=True)
    return state


def _locate_error(error: Exception, home: Path) -> str:
    """Return the last line of the project's own files in the traceback of an error."""
    found = str(home)
    for frame, line in traceback.walk_tb(error.__traceback__):
        if Path(frame.f_code.co_filename).is_relative_to(home):
            found = f"{frame.f_code.co_filename}, line {line}"
    return found


# ---- messages of Spark


def _flow_events(response: Mapping[str, Any]) -> Iterator[FlowEvent]:
    if "pipeline_event_result" not in response:
        return
    message = response["pipeline_event_result"].event.message
    found = _EVENT.match(message)
    if found:
        failed = found[2] == "FAILED"
        reason = extract_reason(message.partition("Error: ")[2]) if failed else None
        yield FlowEvent(found[1].rpartition(".")[2], found[2], reason)
    else:
        _log.debug("%s", message)


def extract_reason(text: str) -> str:
    """Return the line of a long Spark message that has the cause.

    >>> wrapped = "[STREAM_FAILED] Query [id = 1] terminated with exception: "
    >>> extract_reason(wrapped + "[A.B] no SQLSTATE: 1")
    '[A.B] no'
    >>> extract_reason("Traceback (most recent call last):\\nzenlake.errors.ZError: bad\\n at x")
    'bad'
    """
    raised = _RAISED.findall(text)
    if raised:
        name, why = raised[-1]
        found = why if name in ("ZError", "DataLoss", "AnotherLog") else f"{name}: {why}"
    else:
        found = next(iter(_WRAPPED.sub("", text).strip().splitlines()), "no reason given")
    found = _STATE.sub("", found).strip()
    return found if len(found) <= MAX_REASON else found[:MAX_REASON] + "..."


# ---- Spark


class _SparkServer:
    """Spark in its own JVM, serving Spark Connect on a local port."""

    def __init__(self, app: str, master: str, conf: Mapping[str, str], log: Path | None) -> None:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark import SparkContext
        from pyspark.errors import PySparkException

        settings = _configure(app, master, conf)
        self._home = tempfile.TemporaryDirectory(prefix="zenlake-spark-")
        try:
            with (
                (log or Path(os.devnull)).open("ab") as output,
                spark_home(Path(self._home.name), master),
            ):
                self._gateway = pyspark_internals.launch_gateway(settings, output)
        except (PySparkException, ZError) as error:
            self._home.cleanup()
            raise _start_error(error, log) from None
        try:
            self._context = SparkContext(conf=settings, gateway=self._gateway)
            port = pyspark_internals.connect_port(self._context)
        except (PySparkException, Py4JError, ZError, OSError, ValueError) as error:
            self._end()
            raise _start_error(error, log) from None
        # By this name: Connect sends a token without TLS to localhost only.
        self.url = f"{REMOTE}localhost:{port}"

    @property
    def alive(self) -> bool:
        return self._gateway.proc.poll() is None

    def kill(self) -> None:
        self._gateway.proc.kill()

    def close(self) -> None:
        with suppress(Exception):  # The JVM may be gone already.
            self._context.stop()
        self._end()

    def _end(self) -> None:
        self._gateway.shutdown()
        process = self._gateway.proc
        process.stdin.close()  # Ends the JVM.
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
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
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = str(uuid.uuid4())
    settings = SparkConf()
    for name, value in {**local_session.SETTINGS, **SETTINGS, **conf}.items():
        settings.set(name, value)
    return settings.setMaster(master).setAppName(app)


def _start_error(error: Exception, log: Path | None) -> ZError:
    return ZError(f"Spark does not start: {extract_reason(str(error))}; it says more in {log}")


def _connect(url: str) -> Any:
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession

    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # Use the columns and functions of Connect.
    try:
        return SparkSession.builder.remote(url).create()
    except PySparkException as error:
        raise ZError(f"no session with {url}: {extract_reason(str(error))}") from None
