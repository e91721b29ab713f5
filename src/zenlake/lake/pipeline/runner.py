"""A lake that runs: cycle after cycle, each one run of the pipeline, and upkeep between them.

Knows when, what is told about it, and how it is stopped. Recording is somebody else's business.
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
from zenlake.lake.pipeline import flows
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
from zenlake.log.read.log import Log

STOP_SECONDS = 30.0  # that a cycle under way may take to end, and Spark with it
KILL_SECONDS = 10.0  # and after Spark was killed
LOCK = "lock"  # in the folder of the state

_log = logging.getLogger(__name__)


class RunEvent(NamedTuple):
    """Something that happened: `starting`, `ready`, `flow`, `cycle`, `failed`, `upkeep`."""

    event: str
    facts: dict[str, Any]


class FlowReport(NamedTuple):
    """A flow after a cycle."""

    flow: str
    into: tuple[str, ...]
    state: str
    taken: int
    "Samples of the log, in this cycle."
    behind: int
    "Samples that are durable and not taken."
    at: float | None
    "When its last micro-batch ended, in seconds since 1970."
    rows: dict[str, int]
    "Rows in each of its tables, in all."
    wrote: dict[str, int]
    "Rows that this cycle added, to each table that rows are appended to."
    reason: str | None


class PipelineRunner:
    """Runs the pipeline of a lake on a thread of its own, until `stop`.

    `every`: seconds from the start of one cycle to that of the next, which is left out if nothing
    was recorded meanwhile; None: one cycle, then it ends. `tell` hears of everything, on that
    thread. `ok` says how it went, once `wait` says that it has ended.
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
        """Whether it has ended, within `seconds`."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> bool:
        """End after the cycle under way; one that takes too long is broken off, and its last
        micro-batch is done again by the next run. False: the thread still waits for Spark."""
        self._stopped.set()
        if self.wait(STOP_SECONDS):
            return True
        _log.warning("the cycle under way does not end: it is broken off")
        if self._pipelines is not None:
            self._pipelines.kill()
        return self.wait(KILL_SECONDS)

    # ---- on its thread

    def _main(self) -> None:
        try:
            with exclusive(self._project):
                while not self._over():
                    self._start_and_run()
        except ZError as error:
            self._failed(error)
        except Exception as error:
            self._failed(error)
            raise

    def _over(self) -> bool:
        return self._stopped.is_set() or (self._every is None and self.cycles > 0)

    def _start_and_run(self) -> None:
        """Until it is over, or Spark is gone."""
        began = time.monotonic()
        self._say("starting", lake=self._project.name, master=self._spark[0])
        with closing(PipelineSession(self._project, *self._spark)) as self._pipelines:
            self._say("ready", seconds=round(time.monotonic() - began, 3))
            self._before = self._taken(self._pipelines.state)
            seen: dict[int, int] | None = None
            while not self._over():
                began, durable = time.monotonic(), durable_offsets(self._project)
                if self._every is None or durable != seen or not self.ok:
                    self._cycle(self._pipelines)
                    seen = durable
                self._upkeep(self._pipelines.state)
                if self._every is not None:
                    self._stopped.wait(max(0.0, began + self._every - time.monotonic()))
                if not self.ok and not self._pipelines.alive:
                    return

    def _cycle(self, pipelines: PipelineSession) -> None:
        began = time.monotonic()
        states: dict[str, FlowEvent] = {}

        def heard(event: FlowEvent) -> None:
            states[event.flow] = event
            self._say("flow", **event._asdict())

        self.cycles += 1
        rows = appended_rows(self._project)
        try:
            self.ok = pipelines.run(heard)
        except ZError as error:
            if self._stopped.is_set():
                return  # it was broken off
            self._failed(error)
        self._say(
            "cycle",
            number=self.cycles,
            ok=self.ok,
            seconds=round(time.monotonic() - began, 3),
            flows=[one._asdict() for one in self._reports(pipelines.state, states, rows)],
        )

    def _reports(
        self, state: Path | None, states: dict[str, FlowEvent], rows_before: Mapping[str, int]
    ) -> Iterator[FlowReport]:
        done = self._taken(state)
        appended = appended_rows(self._project)
        durable = durable_offsets(self._project)
        for name, one in flows.declared_flows.items():
            event = states.get(name) or FlowEvent(name, "IDLE")
            now, before = done.get(name), self._before.get(name)
            offsets = {} if now is None else now.offsets
            rows = {table: count_rows(self._project, table) for table in one.into}
            yield FlowReport(
                name,
                one.into,
                event.state,
                count_behind(offsets, {} if before is None else before.offsets),
                count_behind(durable, offsets),
                None if now is None else now.at,
                {table: count for table, count in rows.items() if count is not None},
                {
                    table: max(0, appended[table] - rows_before.get(table, 0))
                    for table in one.into
                    if table in appended
                },
                event.reason,
            )
        self._before = done

    def _taken(self, state: Path | None) -> dict[str, CommittedOffsets]:
        if state is None or not (self._project.log / "log.json").is_file():
            return {}
        return committed_offsets(state, Log(self._project.log).id)

    def _upkeep(self, state: Path | None) -> None:
        """What is wrong here is told, and stops nothing."""
        project = self._project
        try:
            if not project.tables.is_dir():
                return
            if not self._over() and maintenance.is_due(project):
                began = time.monotonic()
                kept = maintenance.run_maintenance(project)
                gone = None if state is None else trim(project, state, flows.declared_flows)
                self._say(
                    "upkeep",
                    seconds=round(time.monotonic() - began, 3),
                    log=None if gone is None else gone._asdict(),
                    **{
                        what: {name: one._asdict() for name, one in done.items()}
                        for what, done in kept._asdict().items()
                    },
                )
        except maintenance.MaintenanceBusy:
            pass
        except (ZError, OSError) as error:
            self._say("failed", what="upkeep", reason=str(error))

    def _failed(self, error: Exception) -> None:
        self.ok = False
        self._say("failed", what="run", reason=str(error) or type(error).__name__)

    def _say(self, event: str, **facts: Any) -> None:
        self._tell(RunEvent(event, facts))


@contextmanager
def exclusive(project: Project) -> Iterator[None]:
    """While it lasts no other process runs this lake. ZError: one does."""
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
