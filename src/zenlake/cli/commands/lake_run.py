"""`zenlake lake run`: record and make tables, cycle after cycle, until told to stop.

Knows options, signals and what is shown. Does not know Spark or tables: lake/ does.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from zenlake.cli import quantities, session_options
from zenlake.cli.quantities import counted, duration_shown
from zenlake.cli.render.sample import print_object
from zenlake.cli.render.text import escape
from zenlake.cli.signals import stopped_by_signals
from zenlake.errors import ZError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from zenlake.lake.pipeline.runner import RunEvent
    from zenlake.lake.project import Project, RecordSettings
    from zenlake.log.write.recorder import Recorder, RecorderStats

PIECE_SECONDS = 0.25  # of a wait: a signal that comes just before one is noticed after it
TICK_SECONDS = 1.0  # between two states of the live table
MAX_NEWS = 10_000  # that may wait to be shown; those beyond are counted
STYLES = {"FAILED": "bold red", "RUNNING": "cyan"}


def run(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of the lake, or its lake.toml.")
    ],
    once: Annotated[
        bool, typer.Option("--once", help="One cycle over what is durable now; records nothing.")
    ] = False,
    every: Annotated[
        str, typer.Option(metavar="DURATION", help="Time from the start of one cycle to the next.")
    ] = "10s",
    record: Annotated[
        bool,
        typer.Option(
            "--record/--no-record",
            help="RecordSettings as [record] in lake.toml says, or do not record.",
        ),
    ] = True,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line: flow, cycle, failed, ...")
    ] = False,
    master: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Which Spark to use: local[2], spark://host:7077, or sc://host (Spark Connect).",
        ),
    ] = "local[*]",
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A Spark setting; may be repeated."),
    ] = None,
) -> None:
    """Record, and make tables of what was recorded, cycle after cycle.

    A flow that fails is shown and tried again in the next cycle; the others go on. What a kill
    interrupts the next run does again; every row is in its table once.

    SIGTERM or Ctrl-C seals the log and ends after the cycle under way. Again: it ends at once.

    Exit status: 0 it was told to stop (--once: every flow went through), 1 otherwise, 2 wrong
    usage.

    \b
    Examples:
      zenlake lake run fleet
      zenlake lake run fleet --once --json | jq 'select(.event == "cycle")'
      zenlake lake run fleet --every 1m --conf spark.driver.memory=4g
    """
    seconds = None if once else quantities.seconds(every, "--every")
    settings = dict(_setting(one) for one in conf or [])
    told: SimpleQueue[int] = SimpleQueue()
    with stopped_by_signals(told.put):
        try:
            ok = _run(folder, seconds, record and not once, json, told, master, settings)
        except ZError as error:
            session_options.fail("lake run", error)
        except ModuleNotFoundError as error:
            session_options.fail(
                "lake run", f"{error.name} is missing: pip install 'zenlake[lake]'"
            )
    if not ok:
        raise typer.Exit(session_options.FAILURE)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise typer.BadParameter(f"--conf {text}: write NAME=VALUE, spark.driver.memory=4g say")
    return name.strip(), value


def _run(
    folder: Path,
    every: float | None,
    record: bool,
    json: bool,
    told: "SimpleQueue[int]",
    master: str,
    settings: dict[str, str],
) -> bool:
    from zenlake.lake.pipeline.runner import PipelineRunner
    from zenlake.lake.project import Project

    project = Project.load(folder)
    news: SimpleQueue[RunEvent] = SimpleQueue()
    unshown = 0

    def heard(said: "RunEvent") -> None:
        nonlocal unshown
        if news.qsize() < MAX_NEWS:
            news.put(said)
        else:
            unshown += 1

    with _display(project, json) as display:
        recording = _recording(project.record, project) if record and project.record else None
        with recording or nullcontext() as recorder:
            running = PipelineRunner(project, every=every, tell=heard, master=master, conf=settings)
            stopped = _watch(running, recorder, told, news, display)
            if stopped:
                display.show("stopping", {})
        ended = running.stop()  # the log is sealed by now, however long the cycle takes
        while not news.empty():
            display.show(*news.get())
        facts = {"cycles": running.cycles, "ok": running.ok or stopped, "unshown": unshown}
        display.show("stopped", facts)
    if not ended:  # a thread that waits for a Spark that was killed would hold up the end
        sys.stdout.flush()
        os._exit(0 if stopped else session_options.FAILURE)
    return running.ok or stopped


class _Running(Protocol):
    def wait(self, seconds: float) -> bool: ...


def _watch(
    running: _Running,
    recorder: "Recorder | None",
    told: "SimpleQueue[int]",
    news: "SimpleQueue[RunEvent]",
    display: "_Display",
) -> bool:
    """Until it ends by itself, or is told to by a signal: whether it was."""
    tick = 0.0
    while True:
        try:
            display.show(*news.get(timeout=PIECE_SECONDS))
            continue
        except Empty:
            pass
        if not told.empty():
            return True
        if running.wait(0.0):
            return False
        if recorder is not None and time.monotonic() >= tick:
            tick = time.monotonic() + TICK_SECONDS
            display.recorded(recorder.stats())


@contextmanager
def _recording(record: "RecordSettings", project: "Project") -> "Iterator[Recorder]":
    """A recorder, sealed at the end, on a session of its own."""
    from zenlake.cli.commands.ping import Mode
    from zenlake.log.write.recorder import Recorder

    at = session_options.SessionOptions(
        connect=[*record.connect] or None,
        mode=Mode(record.mode),
        config=record.config,
    )
    with (
        session_options.opened(at) as session,
        Recorder(
            project.log,
            [*record.keys],
            session=session,
            partition=record.partition,
            codec=record.codec,
        ) as recorder,
    ):
        yield recorder


# ---- shown


class _Display(Protocol):
    def show(self, event: str, facts: dict[str, Any]) -> None: ...
    def recorded(self, stats: "RecorderStats") -> None: ...


@contextmanager
def _display(project: "Project", json: bool) -> Iterator[_Display]:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False, markup=False)
    if json:
        yield _Json()
    elif not console.is_terminal:
        yield _RunLines(console)
    else:
        with Live(console=console, refresh_per_second=2, transient=False) as live:
            shown = _Table(project, console)
            live.update(shown)
            yield shown


class _Json:
    """For programs."""

    def show(self, event: str, facts: dict[str, Any]) -> None:
        print_object({"event": event, "time": time.time(), **facts})

    def recorded(self, stats: "RecorderStats") -> None:
        pass  # whoever wants that asks the recorder, see its admin key


class _RunLines:
    """A line for what a person wants to know, where there is no terminal."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._failure: str | None = None

    def show(self, event: str, facts: dict[str, Any]) -> None:
        line = line_shown(event, facts)
        if line:
            self._console.print(line, soft_wrap=True)

    def recorded(self, stats: "RecorderStats") -> None:
        if stats.failure != self._failure:
            self._failure = stats.failure
            self._console.print(f"recording: {escape(stats.failure or 'works again')}")


def line_shown(event: str, facts: dict[str, Any]) -> str | None:
    """What a line says of an event; None: nothing.

    >>> line_shown("flow", {"flow": "loss", "state": "FAILED", "reason": "no such column"})
    'flow loss failed: no such column'
    """
    match event:
        case "starting":
            return f"starting Spark ({facts['master']}), which takes a while"
        case "ready":
            return f"Spark is ready after {duration_shown(facts['seconds'])}"
        case "flow" if facts["state"] == "FAILED":
            return f"flow {escape(facts['flow'])} failed: {escape(facts['reason'] or '')}"
        case "cycle":
            flows = "; ".join(_flow_shown(one) for one in facts["flows"])
            took = duration_shown(facts["seconds"])
            return f"cycle {facts['number']:,} in {took}: {flows or 'nothing'}"
        case "failed":
            return f"{facts['what']} failed: {escape(facts['reason'])}"
        case "upkeep":
            return f"upkeep in {duration_shown(facts['seconds'])}"
        case "stopping":
            return "stopping: the log is sealed, and the cycle under way ends first"
        case "stopped":
            return f"stopped after {counted(facts['cycles'], 'cycle')}"
    return None


def _flow_shown(one: dict[str, Any]) -> str:
    """Return what a line says of a flow after a cycle.

    >>> facts = {"flow": "loss", "taken": 5, "wrote": {"loss": 0}, "behind": 0, "state": "IDLE"}
    >>> _flow_shown(facts)
    'loss: 5 read, 0 rows'
    """
    wrote = one["wrote"]
    rows = [
        counted(count, "row") + (f" in {escape(table)}" if len(wrote) > 1 else "")
        for table, count in wrote.items()
    ]
    left = [f"{one['behind']:,} behind"] if one["behind"] else []
    said = ", ".join([f"{one['taken']:,} read", *rows, *left])
    return f"{escape(one['flow'])}: {said}" + (" (failed)" if one["state"] == "FAILED" else "")


class _Table:
    """The live table, for a terminal. What was, above it, are lines."""

    def __init__(self, project: "Project", console: "Console") -> None:
        self._project = project
        self._console = console
        self._flows: dict[str, dict[str, Any]] = {}
        self._now = "starting"
        self._stats: RecorderStats | None = None

    def show(self, event: str, facts: dict[str, Any]) -> None:
        if event == "flow":
            self._flows.setdefault(facts["flow"], {}).update(facts)
        elif event == "cycle":
            for one in facts["flows"]:
                self._flows[one["flow"]] = one
            took = duration_shown(facts["seconds"])
            self._now = f"cycle {facts['number']:,} took {took}"
        line = line_shown(event, facts)
        if line and event in ("starting", "ready", "stopping", "stopped", "upkeep"):
            self._now = line
        elif line and event != "cycle":
            self._console.print(line, style="red", soft_wrap=True)

    def recorded(self, stats: "RecorderStats") -> None:
        self._stats = stats

    def __rich__(self) -> "Table":
        from rich.table import Table

        shown = Table(
            title=f"{self._project.name}: {self._now}",
            caption=self._recording(),
            title_justify="left",
            caption_justify="left",
        )
        for name in ("flow", "into", "this cycle", "rows in all", "behind", "last commit", "state"):
            right = name in ("this cycle", "rows in all", "behind")
            shown.add_column(name, justify="right" if right else "left")
        for name, one in self._flows.items():
            state = one.get("state", "")
            rows = one.get("rows", {})
            shown.add_row(
                escape(name),
                "\n".join(map(escape, one.get("into", ()))),
                _count(one.get("taken")),
                "\n".join(_count(rows.get(table)) for table in one.get("into", ())),
                _count(one.get("behind")),
                _clock(one.get("at")),
                state.lower(),
                style=STYLES.get(state, ""),
            )
        return shown

    def _recording(self) -> str | None:
        if self._stats is None:
            return None
        said = f"recorded {counted(self._stats.samples, 'sample')}"
        if self._stats.failure:
            return f"{said}; NOT WRITING: {escape(self._stats.failure)}"
        return f"{said}, durable to {self._stats.durable:,}, {counted(self._stats.gaps, 'gap')}"


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _clock(at: float | None) -> str:
    return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}Z"
