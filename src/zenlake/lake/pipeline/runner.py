"""Runner of a lake: cycles, each of which runs the pipeline once, with maintenance in between.

Knows when to run, which events to report and how to stop. Does not record.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from zenlake import filelock
from zenlake.errors import ZError
from zenlake.lake.pipeline.progress import (
    CommittedOffsets,
    appended_rows,
    committed_offsets,
    count_behind,
    count_rows,
    durable_offsets,
    trim,
)
from zenlake.lake.pipeline.spark_connect import FlowEvent, PipelineSession
from zenlake.lake.project import Project
from zenlake.lake.tables import maintenance
from zenlake.log.read.log import Log, Trimmed

STOP_SECONDS = 30.0  # Longest wait for the current cycle and Spark to end.
KILL_SECONDS = 10.0  # Longest wait for the thread after Spark was killed.
LOCK = "lock"  # Name of the lock file in the state folder.

_log = logging.getLogger(__name__)


class RunEvent(NamedTuple):
    """Event of a running lake: `starting`, `ready`, `flow`, `cycle`, `failed` or `upkeep`."""

    event: str
    facts: dict[str, Any]


class FlowReport(NamedTuple):
    """State of a flow after a cycle."""

    flow: str
    into: tuple[str, ...]
    state: str
    taken: int
    "Samples that the flow took from the log in this cycle."
    behind: int
    "Durable samples that the flow has not taken."
    at: float | None
    "End of its last micro-batch, in seconds since 1970."
    rows: dict[str, int]
    "Rows in each of its tables."
    wrote: dict[str, int]
    "Rows that this cycle appended to each of its tables without folding."
    reason: str | None


class PipelineRunner:
    """Thread that runs the pipeline of a lake until `stop`.

    `every` is the number of seconds from the start of one cycle to the next, which is skipped if
    nothing was recorded meanwhile; None runs one cycle. `tell` gets every event, on that thread.
    `ok` tells whether the last cycle succeeded, once `wait` has returned True.
    """

    def __init__(
        self,
        project: Project,
        *,
        every: float | None,
        tell: Callable[[RunEvent], None],
        master: str = "local[*]",
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.ok = True
        self.cycles = 0
        self._project = project
        self._every = every
        self._tell = tell
        self._spark = master, dict(conf or {})
        self._stopped = threading.Event()
        self._pipelines: PipelineSession | None = None
        self._before: dict[str, CommittedOffsets] = {}
        self._thread = threading.Thread(target=self._main, name="zenlake lake", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether the thread has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> bool:
        """End after the current cycle; return False if the thread still waits for Spark.

        A cycle that takes too long is aborted; the next run repeats its last micro-batch.
        """
        self._stopped.set()
        if self.wait(STOP_SECONDS):
            return True
        _log.warning("the current cycle does not end: it is aborted")
        if self._pipelines is not None:
            self._pipelines.kill()
        return self.wait(KILL_SECONDS)

    # ---- on the thread

    def _main(self) -> None:
        try:
            with exclusive(self._project):
                while not self._is_over():
                    self._start_and_run()
        except ZError as error:
            self._report_failure(error)
        except Exception as error:
            self._report_failure(error)
            raise

    def _is_over(self) -> bool:
        return self._stopped.is_set() or (self._every is None and self.cycles > 0)

    def _start_and_run(self) -> None:
        """Start Spark and run cycles until the end, or until Spark is gone."""
        began = time.monotonic()
        self._emit("starting", lake=self._project.name, master=self._spark[0])
        with closing(PipelineSession(self._project, *self._spark)) as self._pipelines:
            self._emit("ready", seconds=round(time.monotonic() - began, 3))
            self._before = self._committed_offsets(self._pipelines.state)
            seen: dict[int, int] | None = None
            while not self._is_over():
                began, durable = time.monotonic(), durable_offsets(self._project)
                if self._every is None or durable != seen or not self.ok:
                    self._cycle(self._pipelines)
                    seen = durable
                self._maintain(self._pipelines)
                if self._every is not None:
                    self._stopped.wait(max(0.0, began + self._every - time.monotonic()))
                if not self.ok and not self._pipelines.alive:
                    return

    def _cycle(self, pipelines: PipelineSession) -> None:
        began = time.monotonic()
        states: dict[str, FlowEvent] = {}

        def on_event(event: FlowEvent) -> None:
            states[event.flow] = event
            self._emit("flow", **event._asdict())

        self.cycles += 1
        rows = appended_rows(self._project)
        try:
            self.ok = pipelines.run(on_event)
        except ZError as error:
            if self._stopped.is_set():
                return  # `stop` has aborted it.
            self._report_failure(error)
        self._emit(
            "cycle",
            number=self.cycles,
            ok=self.ok,
            seconds=round(time.monotonic() - began, 3),
            flows=[report._asdict() for report in self._reports(pipelines, states, rows)],
        )

    def _reports(
        self,
        pipelines: PipelineSession,
        states: dict[str, FlowEvent],
        rows_before: Mapping[str, int],
    ) -> Iterator[FlowReport]:
        done = self._committed_offsets(pipelines.state)
        appended = appended_rows(self._project)
        durable = durable_offsets(self._project)
        for name, flow in pipelines.flows.items():
            event = states.get(name) or FlowEvent(name, "IDLE")
            now, before = done.get(name), self._before.get(name)
            offsets = {} if now is None else now.offsets
            rows = {table: count_rows(self._project, table) for table in flow.into}
            yield FlowReport(
                name,
                flow.into,
                event.state,
                count_behind(offsets, {} if before is None else before.offsets),
                count_behind(durable, offsets),
                None if now is None else now.at,
                {table: count for table, count in rows.items() if count is not None},
                {
                    table: max(0, appended[table] - rows_before.get(table, 0))
                    for table in flow.into
                    if table in appended
                },
                event.reason,
            )
        self._before = done

    def _committed_offsets(self, state: Path | None) -> dict[str, CommittedOffsets]:
        if state is None or not (self._project.log / "log.json").is_file():
            return {}
        return committed_offsets(state, Log(self._project.log).id)

    def _maintain(self, pipelines: PipelineSession) -> None:
        """Maintain the lake if it is due; a failure is reported and stops nothing."""
        project = self._project
        try:
            if not project.tables.is_dir():
                return
            if not self._is_over() and maintenance.is_due(project):
                began = time.monotonic()
                report = maintenance.run_maintenance(project)
                trimmed = self._trim(pipelines)
                self._emit(
                    "upkeep",
                    seconds=round(time.monotonic() - began, 3),
                    log=None if trimmed is None else trimmed._asdict(),
                    **{
                        step: {name: result._asdict() for name, result in results.items()}
                        for step, results in report._asdict().items()
                    },
                )
        except maintenance.MaintenanceBusy:
            pass
        except (ZError, OSError) as error:
            self._emit("failed", what="upkeep", reason=str(error))

    def _trim(self, pipelines: PipelineSession) -> Trimmed | None:
        """Trim the log, unless a flow that still needs it may be missing."""
        if pipelines.state is None:
            return None
        if not pipelines.complete:
            return Trimmed(0, 0)
        return trim(self._project, pipelines.state, pipelines.flows)

    def _report_failure(self, error: Exception) -> None:
        self.ok = False
        self._emit("failed", what="run", reason=str(error) or type(error).__name__)

    def _emit(self, event: str, **facts: Any) -> None:
        self._tell(RunEvent(event, facts))


@contextmanager
def exclusive(project: Project) -> Iterator[None]:
    """Keep other processes from running this lake. ZError: another process runs it."""
    folder = project.home / "state"
    try:
        folder.mkdir(exist_ok=True)
        lock = (folder / LOCK).open("a")
    except OSError as error:
        raise ZError(f"{folder} cannot be written: {error.strerror}") from None
    with lock:
        if not filelock.lock(lock):
            raise ZError(f"another process runs {project.home}: stop it first")
        yield
