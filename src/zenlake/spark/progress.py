"""The number of rows by which a query is behind its log, from the progress that Spark reports.

Knows the offsets in a progress report. Does not read the log.
"""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


def behind(progress: Any, source: int = 0) -> dict[int, int]:
    """Count per partition the rows that were durable at the last batch and are not read yet.

    `progress` is `query.lastProgress` or its dict; for None the result is empty. The count includes
    rows that `keyExpr` will leave out: only reading a row shows its key.

    >>> end, latest = '{"log": "ab", "partitions": {"0": 5}}', '{"partitions": {"0": 12, "1": 3}}'
    >>> behind({"sources": [{"endOffset": end, "latestOffset": latest}]})
    {0: 7, 1: 3}
    """
    latest = _offsets(progress, source, "latestOffset").get("partitions", {})
    end = _offsets(progress, source, "endOffset").get("partitions", {})
    return {
        int(partition): max(offset - end.get(partition, 0), 0)
        for partition, offset in latest.items()
    }


def skipped(progress: Any, source: int = 0) -> dict[int, int]:
    """Count per partition the missing rows that a query has skipped so far in this run.

    Only a query with `failOnDataLoss` false skips rows.

    >>> skipped({"sources": [{"latestOffset": '{"partitions": {"0": 12}, "skipped": {"0": 4}}'}]})
    {0: 4}
    """
    found = _offsets(progress, source, "latestOffset").get("skipped", {})
    return {int(partition): count for partition, count in found.items()}


def _offsets(progress: Any, source: int, name: str) -> dict[str, Any]:
    if progress is None:
        return {}
    report = progress if isinstance(progress, Mapping) else json.loads(progress.json)
    value = report["sources"][source].get(name)
    found = json.loads(value) if isinstance(value, str) else value
    return found if isinstance(found, dict) else {}


class Lag(StreamingQueryListener):
    """Listener that prints after each batch how many rows are left.

    `spark.streams.addListener(Lag())` writes lines to stderr; a `say` of yours gets them instead.
    """

    def __init__(self, say: Callable[[str], object] | None = None) -> None:
        self._say = say or (lambda line: sys.stderr.write(line + "\n"))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for line in progress_lines(json.loads(event.progress.json)):
            self._say(line)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def progress_lines(report: Mapping[str, Any]) -> list[str]:
    """Return one line per log that the query reads.

    >>> end, latest = '{"partitions": {"0": 5}}', '{"log": "ab", "partitions": {"0": 12}}'
    >>> source = {"numInputRows": 5, "endOffset": end, "latestOffset": latest}
    >>> progress_lines({"name": "q", "batchId": 3, "sources": [source]})
    ['q: batch 3: 5 rows, 7 behind']
    """
    name = report.get("name") or report.get("id")
    lines = []
    for number, source in enumerate(report["sources"]):
        if "log" in _offsets(report, number, "latestOffset"):
            text = f"{name}: batch {report['batchId']}: {source['numInputRows']} rows"
            text += f", {sum(behind(report, number).values())} behind"
            missing = sum(skipped(report, number).values())
            lines.append(text + (f", {missing} skipped" if missing else ""))
    return lines
