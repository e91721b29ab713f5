"""`zenlake lake run`: record and fill tables until told to stop.

Knows options, signals and what is printed. Does not know Spark or tables: lake/ does.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from zenlake.cli import session_options
from zenlake.cli.callback_queue import CallbackQueue
from zenlake.cli.display import error_console, print_event
from zenlake.cli.failure import FAILURE, reports_errors
from zenlake.cli.options import LakeArgument, ModeChoice, duration_option, json_option
from zenlake.cli.quantities import format_duration
from zenlake.cli.render.text import escape
from zenlake.cli.signals import stop_on_signals
from zenlake.quantities import MAX_SECONDS, counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from zenlake.lake.pipeline.runner import PipelineRunner, RunEvent
    from zenlake.lake.project import Project, RecordSettings
    from zenlake.log.write.recorder import Recorder, RecorderStats

WAIT_SECONDS = 0.25  # Longest time until a signal that arrives just before a wait is noticed.
CYCLE_SECONDS = 10.0  # Time between two lines about cycles.
TICK_SECONDS = 1.0  # Time between two states of the recorder.
STATUS = {"starting", "ready", "stopping", "stopped", "upkeep"}  # Events in the table's title.
STYLES = {"FAILED": "bold red", "RUNNING": "cyan"}


@reports_errors("lake")
def run(
    folder: LakeArgument,
    once: Annotated[
        bool,
        typer.Option("--once", help="Take the samples that are durable now, and end."),
    ] = False,
    every: Annotated[
        float,
        duration_option(
            "--every",
            least=0.0,
            most=MAX_SECONDS,
            bare=False,
            help="Time from the start of one micro-batch to the start of the next. Default: 1s.",
        ),
    ] = 1.0,
    record: Annotated[
        bool,
        typer.Option(
            "--record/--no-record",
            help="Record as [record] in lake.toml says, or do not record. --once never records.",
        ),
    ] = True,
    json: Annotated[
        bool, json_option("Print one JSON object per line: flow, cycle, failed, ...")
    ] = False,
    master: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Spark master: local[2], spark://host:7077, or, with --once, sc://host (Spark "
            "Connect).",
        ),
    ] = "local[*]",
    ui: Annotated[
        bool, typer.Option("--ui", help="Switch on Spark's web pages, and print their address.")
    ] = False,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A Spark setting; may be repeated."),
    ] = None,
) -> None:
    """Record samples and write them to the tables.

    One query that stays fills the built-in tables, and one query each the flows in
    transformations/; a line (--json: an event `cycle`) says what they did. A file that does not
    load, or a flow that fails, is shown and tried again; the others go on. A file that changes is
    loaded again. A run that was killed is completed by the next one: every row is in its table
    once.

    SIGTERM or Ctrl-C seals the log and ends after the current micro-batches. A second one ends it
    at once.

    Exit status: 0 it was told to stop (--once: every flow succeeded), 1 otherwise, 2 wrong usage.

    \b
    Examples:
      zenlake lake run fleet
      zenlake lake run fleet --once --json | jq 'select(.event == "cycle")'
      zenlake lake run fleet --every 1m --conf spark.driver.memory=4g
    """
    settings = {"spark.ui.enabled": "true"} if ui else {}
    settings |= dict(_split_setting(text) for text in conf or [])
    events: CallbackQueue[RunEvent] = CallbackQueue()
    with stop_on_signals(lambda _: events.close()):
        from zenlake.lake.pipeline.runner import PipelineRunner
        from zenlake.lake.project import Project

        project = Project.load(folder)
        recording = None if once or not record else project.record
        with RunTable(project, error_console(), as_json=json).live() as display:
            with _recording(recording, project) if recording else nullcontext() as recorder:
                running = PipelineRunner(
                    project,
                    every=None if once else every,
                    tell=events.offer,
                    master=master,
                    conf=settings,
                )
                stopped = _watch(running, recorder, events, display)
                if stopped:
                    display.show("stopping", {})
            ended = running.stop()  # The log is sealed by now, however long a batch takes.
            for event in events.drain():
                display.show(*event)
            ok = running.ok or stopped
            facts = {"cycles": running.cycles, "ok": ok, "unshown": events.dropped}
            display.show("stopped", facts)
    if not ended:  # A thread that waits for a killed Spark would keep the process alive.
        sys.stdout.flush()
        os._exit(0 if stopped else FAILURE)
    if not ok:
        raise typer.Exit(FAILURE)


def _split_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise typer.BadParameter(f"--conf {text}: write NAME=VALUE, such as spark.driver.memory=4g")
    return name.strip(), value


def _watch(
    running: "PipelineRunner",
    recorder: "Recorder | None",
    events: "CallbackQueue[RunEvent]",
    display: "RunTable",
) -> bool:
    """Show events until the run ends; return whether a signal ended it."""
    tick = 0.0
    while True:
        event = events.take(WAIT_SECONDS)
        if event is not None:
            display.show(*event)
        elif events.closed:
            return True
        elif running.wait(0.0):
            return False
        elif recorder is not None and time.monotonic() >= tick:
            tick = time.monotonic() + TICK_SECONDS
            display.update(recorder.stats())


@contextmanager
def _recording(record: "RecordSettings", project: "Project") -> "Iterator[Recorder]":
    """Record on a session of its own for the `with` block, and seal the log at the end."""
    from zenlake.log.write.recorder import Recorder

    at = session_options.SessionOptions(
        connect=[*record.connect] or None,
        mode=cast(ModeChoice, record.mode),
        config=record.config,
    )
    with (
        session_options.open_session(at) as session,
        Recorder(
            project.log,
            [*record.keys],
            session=session,
            partition=record.partition,
            codec=record.codec,
        ) as recorder,
    ):
        yield recorder


# ---- lines and the table


def format_event(event: str, facts: dict[str, Any]) -> str | None:
    """Return the line of an event; None if it has none.

    >>> format_event("flow", {"flow": "loss", "state": "FAILED", "reason": "no such column"})
    'flow loss failed: no such column'
    """
    match event:
        case "starting":
            return f"starting Spark ({facts['master']}), which takes a while"
        case "ready":
            pages = f"; its web pages: {facts['ui']}" if facts.get("ui") else ""
            return f"Spark is ready after {format_duration(facts['seconds'])}{pages}"
        case "flow" if facts["state"] == "WAITING":
            return f"flow {escape(facts['flow'])} waits: {escape(facts['reason'] or '')}"
        case "flow" if facts["state"] == "FAILED":
            return f"flow {escape(facts['flow'])} failed: {escape(facts['reason'] or '')}"
        case "cycle":
            flows = "; ".join(_format_flow(flow) for flow in facts["flows"])
            took = format_duration(facts["seconds"])
            return f"cycle {facts['number']:,} in {took}: {flows or 'nothing'}"
        case "failed":
            return f"{facts['what']} failed: {escape(facts['reason'])}"
        case "upkeep":
            return f"upkeep in {format_duration(facts['seconds'])}"
        case "stopping":
            return "stopping: the log is sealed, and the micro-batch under way ends first"
        case "stopped":
            return f"stopped after {counted(facts['cycles'], 'cycle')}"
    return None


def _format_flow(flow: dict[str, Any]) -> str:
    """Return the result of a flow in a cycle.

    >>> facts = {"flow": "loss", "taken": 5, "wrote": {"loss": 0}, "behind": 0, "state": "IDLE"}
    >>> _format_flow(facts)
    'loss: 5 read, 0 rows'
    """
    wrote = flow["wrote"]
    rows = [
        counted(count, "row") + (f" in {escape(table)}" if len(wrote) > 1 else "")
        for table, count in wrote.items()
    ]
    left = [f"{flow['behind']:,} behind"] if flow["behind"] else []
    result = ", ".join([f"{flow['taken']:,} read", *rows, *left])
    return f"{escape(flow['flow'])}: {result}" + (" (failed)" if flow["state"] == "FAILED" else "")


def _add_cycles(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return two cycles as one: the state of the second, and what both have read and written.

    >>> flow = {"flow": "own", "taken": 5, "wrote": {"own": 2}, "behind": 9, "state": "RUNNING"}
    >>> later = {**flow, "taken": 1, "behind": 0}
    >>> both = _add_cycles({"seconds": 0.5, "flows": [flow]}, {"seconds": 0.2, "flows": [later]})
    >>> both["seconds"], both["flows"][0]["taken"], both["flows"][0]["wrote"]
    (0.5, 6, {'own': 4})
    """
    before = {flow["flow"]: flow for flow in first["flows"]}
    flows = []
    for flow in second["flows"]:
        earlier = before.get(flow["flow"], {"taken": 0, "wrote": {}})
        wrote = {
            table: count + earlier["wrote"].get(table, 0) for table, count in flow["wrote"].items()
        }
        flows.append({**flow, "taken": flow["taken"] + earlier["taken"], "wrote": wrote})
    return {**second, "seconds": max(first["seconds"], second["seconds"]), "flows": flows}


class RunTable:
    """Events of a run: JSON, a live table with failures as lines above it, or only lines."""

    def __init__(self, project: "Project", console: "Console", *, as_json: bool = False) -> None:
        self._project = project
        self._console = console
        self._json = as_json
        self._flows: dict[str, dict[str, Any]] = {}
        self._status = "starting"
        self._stats: RecorderStats | None = None
        self._cycles: dict[str, Any] | None = None
        "Cycles that are not printed yet, added up."
        self._print_at = 0.0

    @contextmanager
    def live(self) -> "Iterator[RunTable]":
        """Keep the table on the terminal for the `with` block."""
        from rich.live import Live

        table = Live(self, console=self._console, refresh_per_second=2)
        with nullcontext() if self._json or not self._console.is_terminal else table:
            yield self

    def show(self, event: str, facts: dict[str, Any]) -> None:
        """Show an event."""
        if self._json:
            print_event(event, facts)
            return
        if event == "flow":
            self._flows.setdefault(facts["flow"], {}).update(facts)
        elif event == "cycle":
            for flow in facts["flows"]:
                self._flows[flow["flow"]] = flow
            took = format_duration(facts["seconds"])
            self._status = f"cycle {facts['number']:,} took {took}"
        if event in ("cycle", "stopped") and not self._console.is_terminal:
            self._print_cycles(facts if event == "cycle" else None)
        line = format_event(event, facts)
        if line and self._console.is_terminal and event in STATUS:
            self._status = line
        elif line and event != "cycle":
            self._console.print(line, style="red", soft_wrap=True)

    def _print_cycles(self, facts: dict[str, Any] | None) -> None:
        """Print cycles as one line every CYCLE_SECONDS, and the last ones at the end (None)."""
        if facts is not None:
            self._cycles = facts if self._cycles is None else _add_cycles(self._cycles, facts)
        due = facts is None or time.monotonic() >= self._print_at
        if self._cycles is not None and due:
            line = format_event("cycle", self._cycles)
            self._console.print(line, style="red", soft_wrap=True)
            self._cycles, self._print_at = None, time.monotonic() + CYCLE_SECONDS

    def update(self, stats: "RecorderStats") -> None:
        """Show the state of the recorder; as a line if it begins to fail, or works again."""
        changed = stats.failure != (self._stats and self._stats.failure)
        if changed and not self._json and not self._console.is_terminal:
            line = f"recording: {escape(stats.failure or 'works again')}"
            self._console.print(line, soft_wrap=True)
        self._stats = stats

    def __rich__(self) -> "Table":
        from rich.table import Table

        table = Table(
            title=f"{self._project.name}: {self._status}",
            caption=self._caption(),
            title_justify="left",
            caption_justify="left",
        )
        for name in ("flow", "into", "just read", "rows in all", "behind", "last commit", "state"):
            right = name in ("just read", "rows in all", "behind")
            table.add_column(name, justify="right" if right else "left")
        for name, flow in self._flows.items():
            state = flow.get("state", "")
            rows = flow.get("rows", {})
            table.add_row(
                escape(name),
                "\n".join(map(escape, flow.get("into", ()))),
                _format_count(flow.get("taken")),
                "\n".join(_format_count(rows.get(into)) for into in flow.get("into", ())),
                _format_count(flow.get("behind")),
                _format_clock(flow.get("at")),
                state.lower(),
                style=STYLES.get(state, ""),
            )
        return table

    def _caption(self) -> str | None:
        if self._stats is None:
            return None
        text = f"recorded {counted(self._stats.samples, 'sample')}"
        if self._stats.failure:
            return f"{text}; NOT WRITING: {escape(self._stats.failure)}"
        return f"{text}, durable to {self._stats.durable:,}, {counted(self._stats.gaps, 'gap')}"


def _format_count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _format_clock(at: float | None) -> str:
    return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}Z"
