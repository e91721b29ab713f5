"""Course of the demo: a fleet drives, its lake fills and answers queries, figures are checked.

Knows the order of the steps and what is printed. account.py checks the figures.
"""

import importlib.util
import json
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demo.account import Account, Ledger, RobotFigures, account
from demo.child import Child, defer_signals, run_program
from demo.follow import START_BATCHES, Delays, Follower, measure_delays
from zenlake.lake.pipeline.flows import BUILT_IN
from zenlake.lake.pipeline.progress import (
    TABLES_FLOW,
    count_behind,
    durable_offsets,
    table_offsets,
)
from zenlake.lake.project import Project
from zenlake.lake.report import report
from zenlake.lake.tables.definitions import SAMPLES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.router import Router
from zenlake.router import run as run_router

JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # Options for a JVM that runs for a minute only.
SPARK = (
    *("--master", "local[2]"),
    *("--conf", "spark.driver.memory=1g"),
    *("--conf", f"spark.driver.extraJavaOptions={JVM}"),
)
START_SECONDS = 240.0  # Longest wait for a recorder, and then for Spark.
DRIVE_SECONDS = 120.0  # Longest wait for the fleet beyond the time of its drive.
SETTLE_SECONDS = 60.0  # Longest wait until the last samples are durable.
CATCH_UP_SECONDS = 300.0  # Longest wait until the tables have all samples.
SERVE_SECONDS = 120.0
RUN_END_SECONDS = 150.0
POLL_SECONDS = 0.25
FOLLOW_SECONDS = 2.0  # Delay within which the tables follow the fleet if the machine is not busy.
LINE_SECONDS = 3.0  # Time between two lines of progress without a terminal.
LOOK_BACK_NANOS = 5_000_000_000
RECORDER = "@/*/*/recorder/**"


class DemoFailed(Exception):
    """Step of the demo that did not end in time."""


class Options(NamedTuple):
    robots: int
    seconds: float
    out: Path
    keep: Path | None


class Teller:
    """Printer of progress: a changing line on a terminal, a line every few seconds elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._said = 0.0
        self._began = time.monotonic()

    def chapter(self, title: str) -> None:
        self.console.print(f"{self._clock()}   {title}", style="bold", markup=False)

    def shell(self, *words: object) -> None:
        shown = shlex.join(map(str, words))
        self.console.print(f"       $ {shown}", style="dim", markup=False, soft_wrap=True)

    def line(self, text: str, style: str = "") -> None:
        self.console.print(f"       {text}", style=style, markup=False, soft_wrap=True)

    def verdict(self, good: bool, text: str) -> None:
        self.line(f"{'✓' if good else '✗'} {text}", "green" if good else "bold red")

    @contextmanager
    def waiting(self) -> Iterator[Callable[[str], None]]:
        """Yield a function that shows a text as progress until the end of the block."""
        if self.console.is_terminal:
            with self.console.status("") as status:
                yield lambda text: status.update(escape(text))
            return
        yield self._now_and_then

    def _now_and_then(self, text: str) -> None:
        if time.monotonic() - self._said >= LINE_SECONDS:
            self._said = time.monotonic()
            self.line(text, "dim")

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self._began)
        return f"{seconds // 60}:{seconds % 60:02}"


def play(options: Options, console: Console) -> bool:
    """Run the whole demo; return whether every sample is accounted for."""
    tell = Teller(console)
    with ExitStack() as stack:
        home = stack.enter_context(_working_folder(options.keep))
        stage = Stage(tell, home, stack)
        ledger = stage.drive(options)
        answers = stage.ask(ledger)
        stage.stop()
        tell.chapter("the books")
        found = account(stage.project, ledger)
        show_robots(tell, ledger, found)
        show_tables(tell, found)
        tell.chapter("the report")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        written = report(stage.project, options.out)
        tell.line(
            f"{written.samples:,} samples of {written.keys:,} keys, {written.lost:,} missing, "
            f"{written.duplicates:,} repeats, {written.stopped:,} keys that stopped:"
        )
        tell.line(f"open {options.out}", "bold")
        if options.keep is not None:
            tell.line(f"the lake is in {stage.project.home}, to be asked further")
        show_delays(tell, stage.delays(ledger))
        good = found.balanced and answers
        tell.verdict(
            good,
            "everything that was sent is accounted for" if good else "the books do not balance",
        )
    return good


@contextmanager
def _working_folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="zenlake-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Stage:
    """Router and child processes of the demo."""

    def __init__(self, tell: Teller, home: Path, stack: ExitStack) -> None:
        self._tell = tell
        self._home = home
        self._stack = stack
        tell.chapter("a router")
        self.router: Router = stack.enter_context(
            run_router(["tcp/127.0.0.1:0", "udp/127.0.0.1:0"])
        )
        tcp, udp = sorted(self.router.locators)
        self.endpoint, self.udp_port = tcp, udp.rpartition(":")[2]
        tell.line(f"listens on {tcp} and {udp}")
        tell.chapter("a lake")
        self._call("lake", "init", str(home / "fleet"), "-e", tcp, "-k", "robot/**")
        self.project = Project.load(home / "fleet")
        self.run = self._start("zenlake", "lake", "run", str(self.project.home), "--json", *SPARK)
        self.follower = stack.enter_context(Follower(self.project))
        self._until("a recorder", START_SECONDS, lambda: self.recorded() is not None, self.spark)
        tell.line("it records, and Spark starts")
        self._until("Spark", START_SECONDS, self.runs, self.spark)
        tell.line("Spark waits for samples")

    # ---- driving

    def drive(self, options: Options) -> Ledger:
        """Let the fleet drive, and wait until the tables have all samples."""
        tell = self._tell
        tell.chapter(f"{options.robots} robots drive for {options.seconds:.0f} seconds")
        told = self._home / "ledger.json"
        fleet = self._start(
            "demo.fleet",
            *("--connect", self.endpoint, "--udp-port", self.udp_port),
            *("--robots", str(options.robots), "--seconds", str(options.seconds)),
            *("--ledger", str(told)),
        )

        def driving() -> str:
            sent = (fleet.last("sent") or {}).get("samples", 0)
            return f"{sent:,} sent; {self.recording()}; {self.spark()}"

        self._until(
            "the end of the drive",
            options.seconds + DRIVE_SECONDS,
            lambda: not fleet.running(),
            driving,
        )
        ledger: Ledger = json.loads(told.read_text())
        sent = sum(len(entry["sent"]) for entry in ledger["publishers"].values())
        tell.line(
            f"{sent:,} numbered samples sent, {len(ledger['tasks'])} tasks begun, "
            f"{ledger['answered']} of {ledger['asked']} questions answered by the planner"
        )
        self._settle()
        tell.chapter("the tables catch up")
        self._until("the tables", CATCH_UP_SECONDS, self.caught_up, self.spark)
        self.follower.stop()
        tell.line(self.spark())
        return ledger

    def _settle(self) -> None:
        """Wait until all received samples are durable and no more arrive."""
        self.router.drain()
        before = -1

        def settled() -> bool:
            nonlocal before
            stats = self.recorded("?durable")
            same = stats is not None and stats["received"] == before == stats["durable"]
            before = -1 if stats is None else stats["received"]
            return same

        self._until("the recorder", SETTLE_SECONDS, settled, self.recording)

    def recorded(self, parameters: str = "") -> dict[str, Any] | None:
        """Query the statistics of the recorder over Zenoh; return None if there is none."""
        for reply in self.router.session.get(RECORDER + parameters, timeout=SETTLE_SECONDS):
            if reply.ok is not None:
                stats: dict[str, Any] = json.loads(reply.ok.payload.to_string())
                return stats
        return None

    def recording(self) -> str:
        stats = self.recorded()
        if stats is None:
            return "no recorder"
        return f"{stats['durable']:,} durable, {stats['lost']:,} missed"

    def runs(self) -> bool:
        """Tell whether the flow of the built-in tables runs."""
        return any(
            (event.get("event"), event.get("flow"), event.get("state"))
            == ("flow", TABLES_FLOW, "RUNNING")
            for event in list(self.run.events)
        )

    def spark(self) -> str:
        """Return the state of the pipeline in words; print new failures."""
        for event in list(self.run.events):
            if event.get("reason") and not event.get("told"):
                event["told"] = True
                where = event.get("flow") or event.get("what")
                self._tell.line(f"{where} failed, and is tried again: {event['reason']}", "red")
        if not self.run.last("ready"):
            return "Spark starts"
        return self.follower.describe() or "Spark is ready, no rows yet"

    def caught_up(self) -> bool:
        """Tell whether every table has all durable samples."""
        durable, taken = durable_offsets(self.project), table_offsets(self.project)
        return bool(durable) and all(
            name in taken and count_behind(durable, taken[name]) == 0 for name in BUILT_IN
        )

    # ---- asking

    def ask(self, ledger: Ledger) -> bool:
        """Query the lake by both implementations; return whether the replies match the ledger."""
        tell = self._tell
        tell.chapter("its past, over Zenoh")
        serve = self._start(
            "zenlake", "serve", str(self.project.home), "-e", self.endpoint, "--json"
        )
        self._until(
            "answers",
            SERVE_SECONDS,
            lambda: serve.last("serving") is not None,
            lambda: "serve starts",
        )
        questions = list(_questions(ledger))
        good = True
        for module in ("zenlake", "zenoh"):
            if importlib.util.find_spec(module) is None:
                tell.line("eclipse-zenoh is not installed: it asks nothing")
                continue
            said = run_program(
                "demo.ask", module, self.endpoint, *(question.selector for question in questions)
            )
            for question, line in zip(questions, said.splitlines(), strict=True):
                replies = json.loads(line)
                right = question.right(replies)
                good = good and right
                if module == "zenlake" or not right:
                    tell.shell("zenlake", "get", "-e", self.endpoint, question.selector)
                    tell.verdict(right, f"{question.what}: {_format_replies(replies)}")
            if module == "zenoh" and good:
                tell.verdict(good, "eclipse-zenoh, asked the same, gets the same")
        return good

    def stop(self) -> None:
        """Stop `zenlake lake run`, and Spark with it."""
        self._tell.chapter("Spark ends")
        status = self.run.stop(RUN_END_SECONDS)
        if status:
            raise DemoFailed(f"`zenlake lake run` ended with status {status}\n{self.run.said()}")

    def delays(self, ledger: Ledger) -> Delays | None:
        """Measure how long after its put each row could be read."""
        samples = DeltaStore(self.project.table(SAMPLES.name), SAMPLES)
        rows = samples.read(columns=["key", "timestamp", "offset"])
        return measure_delays(rows, self.follower.commits, ledger["late"])

    # ---- processes

    def _call(self, *args: str) -> None:
        self._tell.shell("zenlake", *args)
        run_program("zenlake", *args)

    def _start(self, program: str, *args: str) -> Child:
        words = [program] if program == "zenlake" else ["python", "-m", program]
        self._tell.shell(*words, *args)
        with defer_signals():
            return self._stack.enter_context(Child(program, *args, folder=self._home))

    def _until(
        self, what: str, seconds: float, true: Callable[[], bool], shown: Callable[[], str]
    ) -> None:
        end = time.monotonic() + seconds
        with self._tell.waiting() as show:
            while not true():
                if not self.run.running():
                    raise DemoFailed("`zenlake lake run` ended by itself")
                if time.monotonic() > end:
                    raise DemoFailed(f"{what}: not within {seconds:.0f} s\n{self.run.said()}")
                show(shown())
                time.sleep(POLL_SECONDS)


# ---- questions


class Question(NamedTuple):
    """Query with the replies that the ledger expects."""

    what: str
    selector: str
    expected: list[tuple[str, str | None]]
    "Kind and payload of each reply; a payload of None matches any."

    def right(self, replies: list[dict[str, str]]) -> bool:
        """Tell whether the replies are the expected ones, in any order."""
        if len(replies) != len(self.expected):
            return False
        found = sorted((reply.get("kind", "error"), reply.get("payload", "")) for reply in replies)
        wanted = sorted((kind, payload or "") for kind, payload in self.expected)
        return all(
            kind == other_kind and (not payload or payload == other)
            for (kind, payload), (other_kind, other) in zip(wanted, found, strict=True)
        )


def _questions(ledger: Ledger) -> Iterator[Question]:
    publishers = ledger["publishers"]
    batteries = [entry["last"] for key, entry in publishers.items() if key.endswith("/battery")]
    yield Question(
        "the battery of every robot now",
        "robot/*/battery",
        [("put", payload) for payload in batteries],
    )
    times = [at for _, at in publishers["robot/1/pose"]["sent"]]
    low = times[-1] - LOOK_BACK_NANOS
    seconds = LOOK_BACK_NANOS // 10**9
    yield Question(
        f"where robot 1 was in the last {seconds} seconds of its drive",
        f"robot/1/pose?_time=[{_format_time(low)}..]",
        [("put", None) for at in times if at >= low],
    )
    task = next(task for task in ledger["tasks"] if task["finished"])
    middle = (task["began"] + task["finished"]) // 2
    yield Question("the first task is finished, and gone now", task["key"], [])
    yield Question(
        "and what it was, a moment before that",
        f"{task['key']}?_time=[..{_format_time(middle)}];_max=1",
        [("put", task["payload"])],
    )


def _format_time(nanos: int) -> str:
    seconds, rest = divmod(nanos, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


def _format_replies(replies: list[dict[str, str]]) -> str:
    if not replies:
        return "no reply"
    first = replies[0]
    text = first.get("error") or first["payload"]
    more = f", and {len(replies) - 1} more" if len(replies) > 1 else ""
    return f"{first.get('key', 'error')} = {text}{more}"


# ---- figures


def show_robots(tell: Teller, ledger: Ledger, found: Account) -> None:
    shown = Table(box=None, padding=(0, 1))
    for name in ("robot", "sent", "held", "lost", "repeats", "latency", ""):
        shown.add_column(name, justify="left" if not name else "right")
    for robot in found.robots:
        shown.add_row(
            str(robot.number),
            f"{robot.sent:,}",
            f"{robot.held:,}",
            f"{robot.lost + robot.tail:,}",
            f"{robot.repeated:,}",
            f"{robot.latency * 1000:,.1f} ms",
            _remark(robot, ledger),
        )
    tell.console.print(shown)


def _remark(robot: RobotFigures, ledger: Ledger) -> str:
    late, seconds = ledger["late"]
    remarks = {
        ledger["lossy"]: f"lost {ledger['datagrams_lost']} datagrams on its link"
        + (f", {robot.tail} samples at the end" if robot.tail else ""),
        ledger["silent"]: f"silent for the last {robot.silent:.1f} s",
        ledger["repeating"]: "repeats itself; nothing is twice",
        late: f"its clock is {seconds} s behind",
    }
    return remarks.get(robot.number, "")


def show_tables(tell: Teller, found: Account) -> None:
    rows = ", ".join(f"{name} {count:,}" for name, count in found.rows.items())
    tell.line(f"rows: {rows}; {found.payload / 2**20:,.1f} MiB of payload")
    losses = ", ".join(f"{kind} {count:,}" for kind, count in found.losses.items())
    tell.line(f"records of loss: {losses or 'none'}")
    for check in found.checks:
        other = "" if check.holds else f", and found are {check.found:,}"
        tell.verdict(check.holds, f"{check.what}: {check.expected:,}{other}")


def show_delays(tell: Teller, found: Delays | None) -> None:
    """Show how closely the tables followed the fleet, which depends on the machine."""
    if found is None:
        tell.line(f"no sample was put after the first {START_BATCHES} batches: no delay to show")
        return
    text = (
        f"the tables followed the fleet within {found.worst:.1f} s, half of the samples within "
        f"{found.median:.1f} s ({found.samples:,} put after the first {START_BATCHES} batches)"
    )
    if round(found.worst, 1) <= FOLLOW_SECONDS:
        tell.verdict(True, text)
    else:
        tell.line(f"{text}: more than {FOLLOW_SECONDS:.0f} s, as on a busy machine")
