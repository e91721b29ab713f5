"""One run of a lake by Spark's declarative pipelines on a Spark Connect server.

Does what the command `spark-pipelines run` does, and tells how it went. Does not start a Spark.
"""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from zenlake.errors import ZError
from zenlake.lake.pipeline import pyspark_internals
from zenlake.lake.pipeline.flows import Flow, collect
from zenlake.lake.pipeline.queries import remote_storage
from zenlake.lake.pipeline.spark_session import extract_reason
from zenlake.lake.pipeline.transformations import describe_error, find_spec, load_spec
from zenlake.lake.project import Project

REMOTE = "sc://"  # Prefix of a Spark Connect server, given in place of a master.
_EVENT = re.compile(r"Flow '?([^' ]+)'? (?:is|has) (?:been )?([A-Z]+)")

_log = logging.getLogger(__name__)


class FlowEvent(NamedTuple):
    """New state of a flow, with the reason if it failed."""

    flow: str
    state: str
    reason: str | None = None


class PipelineSession:
    """Spark Connect session in which the pipeline of a project runs once.

    Create it outside the main thread: PySpark would handle SIGINT.
    """

    def __init__(self, project: Project, url: str) -> None:
        pyspark_internals.hide_pandas_warning()
        self.flows: dict[str, Flow] = {}
        "Flows that the transformations declared, by name."
        self._project = project
        self._spec_path = find_spec(project)
        load_spec(project)  # Raises an error that names the file.
        self._spec = pyspark_internals.load_spec(self._spec_path)
        self._spark = _connect(url)

    def run(self, tell: Callable[[FlowEvent], None]) -> dict[str, FlowEvent]:
        """Process all durable samples once in every flow; return the last event of each flow.

        Calls `tell` for each change of a flow. ZError: the transformations cannot be read.
        """
        from pyspark.errors import PySparkException

        graph = self._create_graph()
        storage = remote_storage(self._spec.storage) or self._project.state.as_uri()
        last: dict[str, FlowEvent] = {}
        try:
            for response in pyspark_internals.start_run(self._spark, graph, storage):
                for event in _flow_events(response):
                    last[event.flow] = event
                    tell(event)
        except PySparkException as error:
            if not any(event.reason for event in last.values()):
                raise ZError(extract_reason(str(error))) from None
        finally:
            pyspark_internals.drop_graph(self._spark, graph)
        return last

    def close(self) -> None:
        self._spark.stop()

    def _create_graph(self) -> str:
        """Run the transformations; return the id of the graph that they declare in Spark."""
        graph = pyspark_internals.create_graph(self._spark, self._spec)
        try:
            with collect(self._project, in_pipeline=True) as declared:
                pyspark_internals.register_definitions(
                    self._spark, graph, self._spec_path, self._spec
                )
        except Exception as error:
            pyspark_internals.drop_graph(self._spark, graph)
            raise ZError(describe_error(error, self._project.home)) from error
        self.flows = declared.flows
        return graph


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


def _connect(url: str) -> Any:
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession

    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # Use the columns and functions of Connect.
    try:
        return SparkSession.builder.remote(url).create()
    except PySparkException as error:
        raise ZError(f"no session with {url}: {extract_reason(str(error))}") from None
