"""Runner of a lake: starts its queries, tries failed ones again, reports, and maintains tables.

Knows when to start and stop, and which events to report. Does not record, and does not know how a
query fills its tables.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from zenlake import filelock
from zenlake.errors import ZError
from zenlake.lake.pipeline import one_off
from zenlake.lake.pipeline.flows import Flow
from zenlake.lake.pipeline.progress import (
    RowCounter,
    RowCounts,
    committed_offsets,
    count_behind,
    durable_offsets,
    log_id,
    trim,
)
from zenlake.lake.pipeline.queries import (
    FlowQuery,
    ResidentQuery,
    TableQuery,
    Trigger,
    remote_storage,
)
from zenlake.lake.pipeline.spark_session import SPARK_LOG, SparkDriver
from zenlake.lake.pipeline.transformations import Transformations, load_spec
from zenlake.lake.project import Project
from zenlake.lake.tables import maintenance
from zenlake.log.read.log import Trimmed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_SECONDS = 30.0  # Longest wait for the current micro-batches and Spark to end.
KILL_SECONDS = 10.0  # Longest wait for the thread after Spark was killed.
POLL_SECONDS = 0.2  # Time between two looks at the queries.
RELOAD_SECONDS = 2.0  # Time between two looks for changed transformations.
START_SECONDS = 20.0  # Longest time for which a starting query delays the start of the next one.
FIRST_RETRY_SECONDS = 1.0  # Pause before a failed flow is tried again; doubles with each failure.
LAST_RETRY_SECONDS = 60.0  # Longest pause before a failed flow is tried again.
RENEW_SECONDS = 60.0  # Shortest time after which a flow reads tables again that have changed.
WARM_SECONDS = 30.0  # Time after which workers get a task, so that Spark does not end them.
WARM_UP_STOP_SECONDS = 5.0  # Longest wait for a warm-up when the lake is stopped.
GONE_SECONDS = 2.0  # Longest wait for the end of a JVM that does not answer.
LOCK = "lock"  # Name of the lock file in the state folder.

_log = logging.getLogger(__name__)


class RunEvent(NamedTuple):
    """Event of a running lake: `starting`, `ready`, `flow`, `cycle`, `failed` or `upkeep`."""

    event: str
    facts: dict[str, Any]


class FlowReport(NamedTuple):
    """State of a flow, and what it did since the last report."""

    flow: str
    into: tuple[str, ...]
    state: str
    taken: int
    "Samples that the flow took from the log."
    behind: int
    "Durable samples that the flow has not taken."
    at: float | None
    "Time at which the flow was last seen to advance, in seconds since 1970."
    rows: dict[str, int]
    "Rows in each of its tables."
    wrote: dict[str, int]
    "Rows appended to each of its tables without folding."
    reason: str | None

    @classmethod
    def of(
        cls,
        flow: Flow,
        state: str,
        reason: str | None,
        before: Mapping[int, int],
        offsets: Mapping[int, int],
        durable: Mapping[int, int],
        rows: RowCounts,
        at: float | None = None,
    ) -> "FlowReport":
        """Return the report of a flow that went from the offsets `before` to `offsets`."""
        return cls(
            flow.name,
            flow.into,
            state,
            count_behind(offsets, before),
            count_behind(durable, offsets),
            at,
            {table: rows.total[table] for table in flow.into if table in rows.total},
            {table: rows.appended[table] for table in flow.into if table in rows.appended},
            reason,
        )


class SparkGone(Exception):
    """The JVM has ended."""


class PipelineRunner:
    """Thread that runs the flows of a lake until `stop`.

    `every` is the time in seconds from the start of one micro-batch of a flow to the next; None
    takes what is durable now and ends. `tell` gets every event, on that thread or on the thread of
    maintenance. `ok` tells whether all flows ran when it was last looked, once `wait` has returned
    True.
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
        self._master, self._conf = master, dict(conf or {})
        self._stopped = threading.Event()
        self._driver: SparkDriver | None = None
        self._rows = RowCounter(project)
        self._upkeep: threading.Thread | None = None
        self._upkeep_backoff = Backoff()
        self._thread = threading.Thread(target=self._main, name="zenlake lake", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether the thread has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> bool:
        """End after the current micro-batches; return False if the thread still waits for Spark.

        Micro-batches and maintenance that take too long are aborted; the next run repeats them.
        """
        self._stopped.set()
        if self.wait(STOP_SECONDS):
            return True
        _log.warning("micro-batches or maintenance under way do not end: they are aborted")
        if self._driver is not None:
            self._driver.kill()
        return self.wait(KILL_SECONDS)

    # ---- on the thread

    def _main(self) -> None:
        try:
            with running_alone(self._project):
                if self._master.startswith(one_off.REMOTE):
                    self._run_elsewhere()
                while not self._is_over():
                    self._start_and_run()
        except ZError as error:
            self._report_failure(error)
        except BaseException as error:
            self._report_failure(error)
            raise

    def _is_over(self) -> bool:
        return self._stopped.is_set() or (self._every is None and self.cycles > 0)

    def _run_elsewhere(self) -> None:
        """Run all flows once by Spark's pipelines on a Spark Connect server."""
        if self._every is not None:
            raise ZError(
                f"{self._master}: a Spark Connect server runs a lake once: add --once, and repeat "
                "it by a timer, or name a master (local[*], spark://host:7077) for a run that stays"
            )
        began = time.monotonic()
        self._emit("starting", lake=self._project.name, master=self._master)
        with closing(one_off.PipelineSession(self._project, self._master)) as session:
            self._emit("ready", seconds=_since(began))
            ended = session.run(lambda event: self._emit("flow", **event._asdict()))
            flows = self._one_off_reports(session.flows, ended)
        self.cycles, self.ok = 1, not any(report.reason for report in flows)
        self._emit(
            "cycle",
            number=1,
            ok=self.ok,
            seconds=_since(began),
            flows=[report._asdict() for report in flows],
        )

    def _one_off_reports(
        self, flows: Mapping[str, Flow], ended: Mapping[str, one_off.FlowEvent]
    ) -> list[FlowReport]:
        done = committed_offsets(self._project.state, log_id(self._project))
        durable, rows = durable_offsets(self._project), self._rows.count()
        reports = []
        for name, flow in flows.items():
            event = ended.get(name) or one_off.FlowEvent(name, "IDLE")
            offsets = done[name].offsets if name in done else {}
            reports.append(
                FlowReport.of(flow, event.state, event.reason, {}, offsets, durable, rows)
            )
        return reports

    def _start_and_run(self) -> None:
        """Start Spark and run the flows until the end, or until Spark is gone."""
        began = time.monotonic()
        project = self._project
        spec = load_spec(project)
        self._emit("starting", lake=project.name, master=self._master)
        conf = {**spec.configuration, **self._conf}
        with closing(
            SparkDriver(project.name, self._master, conf, project.state / SPARK_LOG)
        ) as self._driver:
            self._emit("ready", seconds=_since(began), ui=self._driver.ui)
            flows = RunningFlows(project, self._driver, remote_storage(spec.storage), self._emit)
            try:
                if self._every is None:
                    self._run_once(flows)
                else:
                    self._run_resident(flows, self._every)
            except SparkGone:
                if not self._stopped.is_set():  # Otherwise `stop` has ended it.
                    self.ok = False
                    self._emit("failed", what="Spark", reason="it has ended, and is started again")
                    self._stopped.wait(FIRST_RETRY_SECONDS)
            finally:
                flows.stop()
                self._end_upkeep()

    def _run_once(self, flows: "RunningFlows") -> None:
        began = time.monotonic()
        flows.run_once(self._stopped)
        self._report(flows, _since(began))
        self._maintain(flows)

    def _run_resident(self, flows: "RunningFlows", every: float) -> None:
        trigger = {"processingTime": f"{round(every * 1000)} milliseconds"}
        while not self._stopped.is_set():
            flows.supervise(trigger)
            if flows.advanced():
                self._report(flows, round(flows.batch_seconds(), 3))
            self._maintain_aside(flows)
            self._stopped.wait(POLL_SECONDS)

    def _report(self, flows: "RunningFlows", seconds: float) -> None:
        self.cycles += 1
        self.ok = flows.ok
        reports = [report._asdict() for report in flows.reports(self._rows.count())]
        self._emit("cycle", number=self.cycles, ok=self.ok, seconds=seconds, flows=reports)

    # ---- maintenance

    def _maintain_aside(self, flows: "RunningFlows") -> None:
        """Maintain the lake on a thread of its own if it is due: batches go on meanwhile."""
        if self._upkeep is not None and self._upkeep.is_alive():
            return
        if maintenance.is_due(self._project) and time.monotonic() >= self._upkeep_backoff.retry_at:
            self._upkeep = threading.Thread(
                target=self._maintain, args=(flows,), name="zenlake upkeep", daemon=True
            )
            self._upkeep.start()

    def _end_upkeep(self) -> None:
        if self._upkeep is not None:
            self._upkeep.join(STOP_SECONDS)

    def _maintain(self, flows: "RunningFlows") -> None:
        """Maintain the lake if it is due; a failure is reported and stops nothing."""
        project = self._project
        try:
            if not project.tables.is_dir() or not maintenance.is_due(project):
                return
            began = time.monotonic()
            report = maintenance.run_maintenance(project)
            trimmed = flows.trim_log()
            self._emit(
                "upkeep",
                seconds=_since(began),
                log=None if trimmed is None else trimmed._asdict(),
                **{
                    step: {name: result._asdict() for name, result in results.items()}
                    for step, results in report._asdict().items()
                },
            )
            self._upkeep_backoff.succeed()
        except maintenance.MaintenanceBusy:
            self._upkeep_backoff.fail(time.monotonic())
        except Exception as error:  # noqa: BLE001 - tables of other tools may raise anything
            self._upkeep_backoff.fail(time.monotonic())
            self._emit("failed", what="upkeep", reason=str(error) or type(error).__name__)

    def _report_failure(self, error: BaseException) -> None:
        self.ok = False
        self._emit("failed", what="run", reason=str(error) or type(error).__name__)

    def _emit(self, event: str, **facts: Any) -> None:
        self._tell(RunEvent(event, facts))


# ---- flows


class Backoff:
    """Pauses between attempts, which double with each failure up to a limit."""

    def __init__(self) -> None:
        self.retry_at = 0.0
        self._pause = FIRST_RETRY_SECONDS

    def fail(self, now: float) -> None:
        self.retry_at = now + self._pause
        self._pause = min(2 * self._pause, LAST_RETRY_SECONDS)

    def succeed(self) -> None:
        self._pause = FIRST_RETRY_SECONDS


class RunningFlow:
    """One flow of a running lake: its query, its state, and how far it is."""

    def __init__(self, flow: Flow, query: ResidentQuery) -> None:
        self.flow = flow
        self.query = query
        self.state = "WAITING"
        self.reason: str | None = None
        self.started = 0.0  # Time of the last start.
        self.backoff = Backoff()
        self.offsets: Mapping[int, int] = query.offsets()
        self.reported = self.offsets  # Offsets at the last report.
        self.at: float | None = None
        self.warmed_at = -inf  # Time at which all its Python workers had a task.
        self._warming: threading.Thread | None = None

    def is_due(self, now: float) -> bool:
        failed = self.state == "FAILED" and now >= self.backoff.retry_at
        return failed or self.state == "WAITING"

    def is_starting(self, now: float) -> bool:
        """Tell whether the first micro-batch since the last start is under way."""
        starts = self.state == "RUNNING" and now < self.started + START_SECONDS
        return starts and not self.query.has_run

    def look(self) -> None:
        """Notice how far the query is."""
        offsets = self.query.offsets()
        if offsets != self.offsets:
            if count_behind(offsets, self.offsets):  # A restart may have gone back.
                self.backoff.succeed()
            self.offsets, self.at = offsets, time.time()

    def keep_warm(self, now: float) -> None:
        """Let Spark start the workers of a query, and keep them: small batches need but one.

        On a thread of its own: while other queries have all cores, the task waits for one.
        """
        is_due = self.state == "RUNNING" and now >= self.warmed_at + WARM_SECONDS
        if is_due and (self._warming is None or not self._warming.is_alive()):
            self.warmed_at = now
            self._warming = threading.Thread(target=self._warm, name="zenlake warm", daemon=True)
            self._warming.start()

    def end_warm_up(self) -> None:
        """Wait for the warm-up under way, within a limit: it removes what it has written."""
        if self._warming is not None:
            self._warming.join(WARM_UP_STOP_SECONDS)

    def _warm(self) -> None:
        try:
            self.query.keep_warm()
        except Exception as error:  # noqa: BLE001 - what ails Spark ails the next batch, too
            _log.info("flow %s: %s", self.flow.name, error)

    def report(self, durable: Mapping[int, int], rows: RowCounts) -> FlowReport:
        """Return the state, and what the flow did since the last report."""
        before, self.reported = self.reported, self.offsets
        return FlowReport.of(
            self.flow, self.state, self.reason, before, self.offsets, durable, rows, self.at
        )


class RunningFlows:
    """The flows that the transformations declare, each with its resident query.

    A file that does not load, or a flow that fails, takes only itself down and is tried again.
    """

    def __init__(
        self,
        project: Project,
        driver: SparkDriver,
        storage: str | None,
        emit: Callable[..., None],
    ) -> None:
        self._project = project
        self._driver = driver
        self._storage = storage
        self._emit = emit
        self._spark: SparkSession = driver.session
        self._transformations = Transformations(project, self._spark)
        self._flows: dict[str, RunningFlow] = {}
        self._files: dict[str, Backoff] = {}
        "Files that do not load."
        self._problem: str | None = None
        "Why the flows of all files cannot run together."
        self._reload_at = 0.0
        self._news = False
        prepare_session(self._spark)

    @property
    def ok(self) -> bool:
        """Whether all files load and no flow has failed."""
        return self._complete and all(flow.state != "FAILED" for flow in self._flows.values())

    @property
    def _complete(self) -> bool:
        """Whether all files are loaded, so that no flow that needs the log is missing."""
        return not self._transformations.failures and self._problem is None

    # ---- supervision

    def supervise(self, trigger: Trigger) -> None:
        """Load what has changed, notice what has ended, and start what is due.

        SparkGone: the JVM has ended.
        """
        with self._spark_calls():
            now = time.monotonic()
            if now >= self._reload_at:
                self._reload_at = now + RELOAD_SECONDS
                self._reload(now)
            for flow in self._flows.values():
                if flow.state == "RUNNING":
                    self._look(flow, now)
                    self._renew(flow, now)
                    flow.keep_warm(now)
            if any(flow.is_starting(now) for flow in self._flows.values()):
                return  # One start at a time: each starts processes.
            due = next((flow for flow in self._flows.values() if flow.is_due(now)), None)
            if due is not None:
                self._start(due, trigger)

    def run_once(self, stopped: threading.Event) -> None:
        """Let every flow take what is durable now, one after the other."""
        if not (self._project.log / "log.json").is_file():
            raise ZError(f"{self._project.log} has no log yet: record first (zenlake record)")
        with self._spark_calls():
            self._reload(time.monotonic())
            for flow in self._flows.values():
                if stopped.is_set():
                    return
                self._start(flow, {"availableNow": True})
                while flow.state == "RUNNING" and not stopped.is_set():
                    stopped.wait(POLL_SECONDS)
                    self._look(flow, time.monotonic(), completes=True)

    def stop(self) -> None:
        """End all queries; micro-batches under way end first, within a limit."""
        until = time.monotonic() + STOP_SECONDS
        for flow in self._flows.values():
            flow.end_warm_up()
            with suppress(Exception):  # Spark may be gone.
                while flow.query.busy and time.monotonic() < until:
                    time.sleep(POLL_SECONDS / 4)
            self._stop_query(flow)

    @contextmanager
    def _spark_calls(self) -> Iterator[None]:
        """Raise SparkGone in place of any error that comes from a JVM that has ended."""
        if not self._driver.alive:
            raise SparkGone
        self._driver.truncate_log()
        try:
            yield
        except Exception as error:
            if self._driver.ends_within(GONE_SECONDS):
                raise SparkGone from error
            raise

    def _start(self, flow: RunningFlow, trigger: Trigger) -> None:
        if not (self._project.log / "log.json").is_file():
            if flow.reason is None:  # Another process records, and has not begun.
                self._set_state(flow, "WAITING", f"{self._project.log} has no log yet")
            return
        flow.started = time.monotonic()
        try:
            flow.query.start(trigger)
        except ZError as error:
            if self._driver.ends_within(0.0):
                raise
            self._fail(flow, str(error), flow.started)
            return
        is_first = not flow.offsets
        flow.look()
        if is_first:
            flow.reported = flow.offsets
        self._set_state(flow, "RUNNING")

    def _look(self, flow: RunningFlow, now: float, *, completes: bool = False) -> None:
        """Notice how far a query is, and that it has ended."""
        active = flow.query.active
        flow.look()
        if active:
            return
        reason = flow.query.failure()
        self._stop_query(flow)
        if reason is None and completes:
            self._set_state(flow, "COMPLETED")
        else:
            self._fail(flow, reason or "the query has ended by itself", now)

    def _renew(self, flow: RunningFlow, now: float) -> None:
        """Start a query again between two micro-batches if tables that it reads have changed."""
        due = flow.state == "RUNNING" and now >= flow.started + RENEW_SECONDS
        if due and flow.query.is_stale() and not flow.query.busy:
            self._stop_query(flow)
            flow.state = "WAITING"

    def _fail(self, flow: RunningFlow, reason: str, now: float) -> None:
        flow.backoff.fail(now)
        self._set_state(flow, "FAILED", reason)

    def _set_state(self, flow: RunningFlow, state: str, reason: str | None = None) -> None:
        flow.state, flow.reason = state, reason
        self._tell(flow.flow.name, state, reason)

    def _tell(self, name: str, state: str, reason: str | None) -> None:
        self._news = True
        self._emit("flow", flow=name, state=state, reason=reason)

    def _stop_query(self, flow: RunningFlow) -> None:
        """End a query. The next start goes on from what its tables have, whatever happens here."""
        try:
            flow.query.stop()
        except Exception as error:  # noqa: BLE001 - Spark may be gone
            _log.warning("flow %s: %s", flow.flow.name, error)

    # ---- files

    def _reload(self, now: float) -> None:
        """Load new and changed files, and stop the flows that are gone or made otherwise."""
        due = frozenset(name for name, file in self._files.items() if now >= file.retry_at)
        try:
            changed = self._transformations.reload(due)
            if not changed and self._problem is None:
                return
            self._note_failures(due.union(changed), now)
            declared = self._transformations.flows()
            self._problem = None
        except ZError as error:
            if self._problem != str(error):
                self._problem = str(error)
                self._emit("failed", what="transformations", reason=self._problem)
            return
        before = self._flows
        kept = {name: old for name, old in before.items() if declared.get(name) == old.flow}
        # Assigned at once: a flow that is missing would not keep the log from being trimmed.
        self._flows = {
            name: kept.get(name) or RunningFlow(flow, self._query(flow))
            for name, flow in declared.items()
        }
        for name, old in before.items():
            if name not in kept:
                self._stop_query(old)

    def _note_failures(self, loaded: frozenset[str], now: float) -> None:
        """Tell of the files among `loaded` that do not load, and set when they are tried again."""
        failures = self._transformations.failures
        self._files = {name: self._files.get(name, Backoff()) for name in failures}
        for name, reason in failures.items():
            if name in loaded:
                self._files[name].fail(now)
                self._tell(name, "FAILED", reason)

    def _query(self, flow: Flow) -> ResidentQuery:
        kind = TableQuery if flow.rows is None else FlowQuery
        return kind(self._project, self._spark, flow, self._storage)

    # ---- reports

    def advanced(self) -> bool:
        """Tell whether a flow has advanced or changed its state since the last report."""
        return self._news or any(flow.offsets != flow.reported for flow in self._flows.values())

    def batch_seconds(self) -> float:
        """Return the duration of the longest micro-batch since the last report."""
        with self._spark_calls():
            advanced = [flow for flow in self._flows.values() if flow.offsets != flow.reported]
            return max((flow.query.batch_seconds for flow in advanced), default=0.0)

    def reports(self, rows: RowCounts) -> list[FlowReport]:
        """Return the state of every flow and what it did since the last call; `rows` of tables."""
        self._news = False
        durable = durable_offsets(self._project)
        found = [flow.report(durable, rows) for flow in self._flows.values()]
        return found + [
            FlowReport(name, (), "FAILED", 0, 0, None, {}, {}, reason)
            for name, reason in self._transformations.failures.items()
        ]

    def trim_log(self) -> Trimmed | None:
        """Trim the log behind all flows; None if it is not known how far they are."""
        if self._storage is not None:
            return None
        if not self._complete or not self._flows:
            return Trimmed(0, 0)
        return trim(self._project, [flow.query.needed() for flow in self._flows.values()])


def prepare_session(spark: "SparkSession") -> None:
    """Make the source of ranges known to a session, safe for queries that start at once."""
    from zenlake.spark.local_session import patch_source_env_map
    from zenlake.spark.log_ranges import NAME, LogRangeSource

    spark.dataSource.register(LogRangeSource)
    for name in ("zenoh", NAME):
        patch_source_env_map(spark, name)


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)


@contextmanager
def running_alone(project: Project) -> Iterator[None]:
    """Keep other processes from running this lake. ZError: another process runs it."""
    folder = project.state
    try:
        folder.mkdir(exist_ok=True)
        lock = (folder / LOCK).open("a")
    except OSError as error:
        raise ZError(f"{folder} cannot be written: {error.strerror}") from None
    with lock:
        if not filelock.lock(lock):
            raise ZError(f"another process runs {project.home}: stop it first")
        yield
