"""Undocumented parts of PySpark that a lake relies on, checked before they are used.

Written for PySpark 4.3; each function names the attributes it needs. Does not know lakes. If the
installed PySpark lacks one, the caller gets a ZError that names it instead of an AttributeError.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from zenlake.errors import ZError

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.pipelines.cli import PipelineSpec

TESTED = "4.3"  # PySpark release with which these parts were checked.
_CLI = "pyspark.pipelines.cli"
_PIPELINE = "pyspark.pipelines.spark_connect_pipeline"
_REGISTRY = "pyspark.pipelines.spark_connect_graph_element_registry"

_log = logging.getLogger(__name__)


# ---- pipelines: what the command `spark-pipelines run` calls


def load_spec(path: Path) -> "PipelineSpec":
    """Load a pipeline specification by `pyspark.pipelines.cli.load_pipeline_spec`."""
    loaded: PipelineSpec = _find(_CLI, "load_pipeline_spec")(path)
    return loaded


def create_graph(spark: Any, spec: "PipelineSpec") -> str:
    """Create an empty dataflow graph in the session; return its id.

    Relies on `spark_connect_pipeline.create_dataflow_graph`.
    """
    create = _find(_PIPELINE, "create_dataflow_graph")
    graph: str = create(spark, spec.catalog, spec.database, spec.configuration)
    return graph


def register_definitions(spark: Any, graph: str, spec_path: Path, spec: "PipelineSpec") -> None:
    """Run the files of a pipeline, which declare its flows in the graph.

    Relies on `cli.register_definitions` and `SparkConnectGraphElementRegistry`. Replaces
    `cli.log_with_curr_timestamp`, which prints every file name to standard output.
    """
    registry = _find(_REGISTRY, "SparkConnectGraphElementRegistry")(spark, graph)
    register = _find(_CLI, "register_definitions")
    _find(_CLI, "log_with_curr_timestamp")
    vars(import_module(_CLI))["log_with_curr_timestamp"] = _log.debug
    register(spec_path, registry, spec, spark, graph)


def start_run(spark: Any, graph: str, storage: str) -> Iterator[Mapping[str, Any]]:
    """Run all flows of a graph; yield the responses of Spark until they have ended.

    Relies on `spark_connect_pipeline.start_run`.
    """
    responses: Iterator[Mapping[str, Any]] = _find(_PIPELINE, "start_run")(
        spark, graph, None, False, None, dry=False, storage=storage
    )
    return responses


def drop_graph(spark: Any, graph: str) -> None:
    """Drop a dataflow graph; no-op if its session is gone.

    Relies on the `pipeline_command` of `pyspark.sql.connect.proto` and on
    `client.execute_command` of a Connect session.
    """
    from pyspark.errors import PySparkException

    command = _find("pyspark.sql.connect.proto", "Command")()
    _require(command, "pipeline_command")
    command.pipeline_command.drop_dataflow_graph.dataflow_graph_id = graph
    execute = _require(spark.client, "execute_command")
    with suppress(PySparkException):
        execute(command)


# ---- the JVM


def launch_gateway(conf: "SparkConf", output: IO[bytes]) -> Any:
    """Start a JVM whose output goes to a file; return its py4j gateway.

    Relies on `pyspark.java_gateway.launch_gateway` and its `popen_kwargs`, and on `proc`, the
    process of the gateway.
    """
    gateway = _find("pyspark.java_gateway", "launch_gateway")(
        conf, {"stdout": output, "stderr": output}
    )
    _require(gateway, "proc")
    return gateway


def forget_gateway() -> None:
    """Let the next SparkContext of this process use another JVM, after the first has ended.

    Relies on `_gateway`, `_jvm` and `_active_spark_context` of SparkContext and on
    `_instantiatedSession` and `_activeSession` of SparkSession.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    for owner, names in (
        (SparkContext, ("_gateway", "_jvm", "_active_spark_context")),
        (SparkSession, ("_instantiatedSession", "_activeSession")),
    ):
        for name in names:
            _require(owner, name)
            setattr(owner, name, None)


# ---- data frames


def preset_schema(df: Any, schema: Any) -> None:
    """Tell a Connect data frame its columns, so that it need not ask Spark for them.

    Relies on `_cached_schema` of Connect's DataFrame; a classic DataFrame has no such attribute
    and needs none.
    """
    if hasattr(df, "_cached_schema"):
        vars(df)["_cached_schema"] = schema


# ---- checks


def hide_pandas_warning() -> None:
    """Hide that PySpark does not fully support the installed pandas, which is not used here."""
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")


@contextmanager
def no_pandas_warning() -> Iterator[None]:
    """Hide the warning for the `with` block."""
    with warnings.catch_warnings():
        hide_pandas_warning()
        yield


def _find(module: str, name: str) -> Any:
    try:
        with no_pandas_warning():
            return _require(import_module(module), name)
    except ImportError as error:
        raise _missing(f"{module}: {error}") from error


def _require(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError as error:
        where = getattr(owner, "__name__", type(owner).__name__)
        raise _missing(f"{where}.{name}") from error


def _missing(what: str) -> ZError:
    import pyspark

    return ZError(
        f"PySpark {pyspark.__version__} does not have what a lake needs ({what}): "
        f"pip install 'pyspark[pipelines]=={TESTED}.*'"
    )
