"""One Spark Connect session for as long as a lake runs, and runs of its pipeline in it.

Knows what `spark-pipelines run` does, which starts a session for each run. Does not know when to
run, or who records.
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
from zenlake.lake.pipeline import flows
from zenlake.lake.project import Project

if TYPE_CHECKING:
    from pyspark.pipelines.cli import PipelineSpec

REMOTE = "sc://"  # a Spark that is there already, in place of a master
END_SECONDS = 30.0  # for a local Spark to end
SPECS = ("spark-pipeline.yml", "spark-pipeline.yaml")
SPARK_LOG = "spark.log"  # in the folder of the state: what Spark says
MAX_LOG_BYTES = 16 << 20  # of it, looked at before each run
MAX_REASON = 500  # characters of why a flow failed
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
    "spark.sql.pipelines.execution.maxConcurrentFlows": "1",  # see start.CONFIGURATION
    # The next cycle tries again, and by then what was wrong has been shown.
    "spark.sql.pipelines.maxFlowRetryAttempts": "0",
}
_EVENT = re.compile(r"Flow '?([^' ]+)'? (?:is|has) (?:been )?([A-Z]+)")
_RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)\w*|DataLoss|AnotherLog): (.+)", re.M)
_WRAPPED = re.compile(r"\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ")
_STATE = re.compile(r" SQLSTATE: \w+")

_log = logging.getLogger(__name__)


class FlowEvent(NamedTuple):
    """What a flow does now; `reason` if it failed."""

    flow: str
    state: str
    reason: str | None = None


class PipelineSession:
    """A session, and runs of the pipeline of a project in it.

    `master` is that of a Spark to be started here (`local[*]`, or of a cluster), or `sc://host` of
    a Spark Connect server. Start it on a thread that is not the main one: PySpark takes SIGINT.
    """

    def __init__(self, project: Project, master: str, conf: Mapping[str, str]) -> None:
        # Of Spark, about a pandas that is not used here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
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
        """Everything that is durable now, once through every flow; whether all went well.

        `tell` hears what flows do. ZError: the transformations cannot be read.
        """
        from pyspark.errors import PySparkException
        from pyspark.pipelines.spark_connect_pipeline import start_run

        self._cut_log()
        graph = self._graph()
        failed: set[str] = set()
        try:
            for said in start_run(
                self._spark, graph, None, False, None, dry=False, storage=self._spec.storage
            ):
                for event in _flow_events(said):
                    # A flow that failed is said to be complete before.
                    (failed.add if event.state == "FAILED" else failed.discard)(event.flow)
                    tell(event)
        except PySparkException as error:
            if not failed:  # else it was said with the flow
                raise ZError(extract_reason(str(error))) from None
        finally:
            self._drop(graph)
        return not failed

    @property
    def alive(self) -> bool:
        """Whether the Spark that was started here is; of another nobody knows."""
        return self._server is not None and self._server.alive

    def close(self) -> None:
        """End the session, and the Spark that was started for it."""
        if self._server is None or self._server.alive:  # else it would be looked for, for long
            self._spark.stop()
        self._end_server()

    def kill(self) -> None:
        """End the Spark that was started here at once, from any thread."""
        if self._server is not None:
            self._server.kill()

    def _graph(self) -> str:
        """What the files of transformations declare, as Spark knows it."""
        from pyspark.pipelines import cli
        from pyspark.pipelines.spark_connect_graph_element_registry import (
            SparkConnectGraphElementRegistry,
        )
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph

        spec = self._spec
        graph = create_dataflow_graph(self._spark, spec.catalog, spec.database, spec.configuration)
        flows.declared_flows.clear()
        vars(cli)["log_with_curr_timestamp"] = _log.debug  # else it prints which files it reads
        try:
            registry = SparkConnectGraphElementRegistry(self._spark, graph)
            cli.register_definitions(self._spec_path, registry, spec, self._spark, graph)
        except Exception as error:
            self._drop(graph)
            why = error if isinstance(error, ZError) else extract_reason(f"{_name(error)}: {error}")
            raise ZError(f"{_locate_error(error, self._spec_path.parent)}: {why}") from error
        return graph

    def _drop(self, graph: str) -> None:
        import pyspark.sql.connect.proto as proto
        from pyspark.errors import PySparkException

        command = proto.Command()
        command.pipeline_command.drop_dataflow_graph.dataflow_graph_id = graph
        with suppress(PySparkException):  # the session is gone, and the graph with it
            self._spark.client.execute_command(command)

    def _cut_log(self) -> None:
        if self._log_file is not None:
            with suppress(OSError):
                if self._log_file.stat().st_size > MAX_LOG_BYTES:
                    os.truncate(self._log_file, 0)  # whoever writes it appends

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.close()


# ---- the project, as Spark knows it


def find_spec(project: Project) -> Path:
    """The file that describes the pipeline to Spark."""
    for name in SPECS:
        if (project.home / name).is_file():
            return project.home / name
    raise ZError(
        f"{project.home} has no {SPECS[0]}: make a lake elsewhere (zenlake lake init) and copy its"
    )


def _load_spec(path: Path) -> "PipelineSpec":
    from pyspark.errors import PySparkException
    from pyspark.pipelines.cli import load_pipeline_spec
    from yaml import YAMLError

    try:
        return load_pipeline_spec(path)
    except (PySparkException, YAMLError, OSError, LookupError, TypeError, ValueError) as error:
        raise ZError(f"{path}: {' '.join(str(error).split())}") from None


def state_folder(project: Project, storage: str) -> Path | None:
    """The folder of Spark's checkpoints; None: it is on no local disk.

    ZError: it is not that of this lake, which was moved or copied.
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
    """The last line of the project's own files that an error went through."""
    found = str(home)
    for frame, line in traceback.walk_tb(error.__traceback__):
        if Path(frame.f_code.co_filename).is_relative_to(home):
            found = f"{frame.f_code.co_filename}, line {line}"
    return found


def _name(error: Exception) -> str:
    return type(error).__name__


# ---- what Spark says


def _flow_events(said: Mapping[str, Any]) -> Iterator[FlowEvent]:
    if "pipeline_event_result" not in said:
        return
    message = said["pipeline_event_result"].event.message
    found = _EVENT.match(message)
    if found:
        failed = found[2] == "FAILED"
        reason = extract_reason(message.partition("Error: ")[2]) if failed else None
        yield FlowEvent(found[1].rpartition(".")[2], found[2], reason)
    else:
        _log.debug("%s", message)


def extract_reason(text: str) -> str:
    """The one line of Spark's many that says what is wrong.

    >>> extract_reason("[STREAM_FAILED] Query [id = 1] terminated with exception: [A.B] no SQLSTATE: 1")
    '[A.B] no'
    >>> extract_reason("boo\\nTraceback (most recent call last):\\nzenlake.errors.ZError: bad\\n at x")
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
    """A Spark in a JVM of its own, which serves Connect on a port of this machine."""

    def __init__(self, app: str, master: str, conf: Mapping[str, str], said: Path | None) -> None:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway

        from zenlake.spark import local_session

        home = local_session.java_home()
        if home is not None:
            os.environ["JAVA_HOME"] = str(home)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = str(uuid.uuid4())
        settings = SparkConf()
        for name, value in {**local_session.SETTINGS, **SETTINGS, **conf}.items():
            settings.set(name, value)
        settings.setMaster(master).setAppName(app)
        self._home = tempfile.TemporaryDirectory(prefix="zenlake-spark-")
        try:
            with (
                (said or Path(os.devnull)).open("ab") as out,
                _spark_home(Path(self._home.name), master),
            ):
                self._gateway = launch_gateway(  # type: ignore[no-untyped-call]
                    settings, {"stdout": out, "stderr": out}
                )
        except PySparkException as error:
            self._home.cleanup()
            raise _start_error(error, said) from None
        try:
            self._context = SparkContext(conf=settings, gateway=self._gateway)
            service = "org.apache.spark.sql.connect.service.SparkConnectService$"
            port = getattr(getattr(self._context._jvm, service), "MODULE$").localPort()
        except (PySparkException, Py4JError, OSError, ValueError) as error:
            self._end()
            raise _start_error(error, said) from None
        self.url = f"{REMOTE}localhost:{port}"  # by this name: a token goes there without TLS

    @property
    def alive(self) -> bool:
        return self._gateway.proc.poll() is None

    def kill(self) -> None:
        self._gateway.proc.kill()

    def close(self) -> None:
        with suppress(Exception):  # it may be gone already
            self._context.stop()
        self._end()

    def _end(self) -> None:
        self._gateway.shutdown()
        process = self._gateway.proc
        process.stdin.close()  # which ends the JVM
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._home.cleanup()


@contextmanager
def _spark_home(folder: Path, master: str) -> Iterator[None]:
    """While it lasts SPARK_HOME is the installed PySpark without its archive of Python sources.

    Workers would take PySpark from there, and compile it each time; as it is installed they start
    in half the time. A SPARK_HOME of the user stays.
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


def _start_error(error: Exception, said: Path | None) -> ZError:
    return ZError(f"Spark does not start: {extract_reason(str(error))}; it says more in {said}")


def _connect(url: str) -> Any:
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession

    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # columns and functions are those of Connect
    try:
        return SparkSession.builder.remote(url).create()
    except PySparkException as error:
        raise ZError(f"no session with {url}: {extract_reason(str(error))}") from None
