"""`zenlake replay`: what a log holds, put again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zenlake.cli import quantities, session_options
from zenlake.cli.render.sample import print_object, print_text
from zenlake.cli.signals import stopped_by_signals

if TYPE_CHECKING:
    from zenlake.log.replay.replayer import ReplayStats

AS_FAST_AS_POSSIBLE = "max"
MAX_SPEED = 1e6
INTERRUPTED = 130


class Timestamps(StrEnum):
    ORIGINAL = "original"
    NEW = "new"


@session_options.connected
def replay(
    at: session_options.SessionOptions,
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The folder that was recorded to.")],
    speed: Annotated[
        str,
        typer.Option(
            metavar="FACTOR",
            help="1 keeps the time between samples, 2 halves it; max leaves out all waiting.",
        ),
    ] = "1",
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="T",
            help="Begin here: a time of reception such as 2026-11-15T10:00:00Z or -1h, or an "
            "offset. Default: the first sample.",
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="T", help="End before this time or offset.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", "-k", metavar="KEYEXPR", help="Only samples on keys that it intersects."
        ),
    ] = None,
    remap: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FROM=TO",
            help="Keys that start with the chunks FROM, which may be *, start with TO instead; the "
            "first that fits holds. An empty FROM fits every key. May be repeated.",
        ),
    ] = None,
    timestamps: Annotated[
        Timestamps,
        typer.Option(help="As recorded, or of the clock of this session where there was one."),
    ] = Timestamps.ORIGINAL,
    partition: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Only this one. Default: all, merged by time."),
    ] = None,
    loop: Annotated[
        bool, typer.Option("--loop", help="Begin again at the end, until Ctrl-C.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar, which only a terminal gets.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="What was done as one JSON object, at the end.")
    ] = False,
) -> None:
    """Put again what was recorded: same keys, payloads, encodings, timestamps, QoS.

    Nothing is left out: where there is no room it waits, whatever congestion control a sample has.
    Ctrl-C ends it.

    Exit status: 0 all was replayed, 1 it was not, or there is nothing to replay, 2 wrong usage, 130
    Ctrl-C without --loop.

    \b
    Examples:
      zenlake replay rides -e tcp/127.0.0.1:7447
      zenlake replay rides -e tcp/127.0.0.1:7447 --from -1h -k 'robot/*/pose' --speed 10
      zenlake replay rides -l tcp/127.0.0.1:7447 --speed max --remap robot=replay/robot --loop
    """
    from zenlake.log.read.log import Log

    choice = _choice(speed, start, end, key, remap or [])
    found = Log(log)
    with session_options.opened(at, meet=True) as session, _progress(quiet) as tell:
        from zenlake.log.replay.replayer import Replayer

        replayer = Replayer(
            found,
            session,
            partition=partition,
            timestamps=timestamps.value,
            loop=loop,
            on_progress=tell,
            **choice,
        )
        stopped: list[int] = []

        def stop(number: int) -> None:
            stopped.append(number)
            replayer.stop()

        with stopped_by_signals(stop):
            stats = replayer.run()
    _print(stats, as_json=json)
    if stats.dropped:
        session_options.fail(
            "replay",
            f"{quantities.counted(stats.dropped, 'sample')} did not leave: see the log for why.",
        )
    if not stats.samples and not stopped:
        session_options.fail(
            "replay", f"{log}: no sample in the range and on the keys that were asked."
        )
    if stopped and not loop:
        raise typer.Exit(INTERRUPTED)


def _choice(
    speed: str, start: str | None, end: str | None, key: str | None, remap: list[str]
) -> dict[str, Any]:
    """The arguments of a Replayer that are given as text."""
    nowhere = quantities.Position(None, None)
    first = nowhere if start is None else quantities.position(start, "--from")
    last = nowhere if end is None else quantities.position(end, "--to")
    return {
        "speed": _speed(speed),
        "start": first.offset,
        "start_time": first.time,
        "end": last.offset,
        "end_time": last.time,
        "key_expr": None if key is None else session_options.key_expr(key),
        "remap": [_rule(text) for text in remap],
    }


def _speed(text: str) -> float | None:
    if text == AS_FAST_AS_POSSIBLE:
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed <= MAX_SPEED:
        raise typer.BadParameter(
            f"--speed {text}: write a number above 0, such as 1 or 2.5, or {AS_FAST_AS_POSSIBLE}"
        )
    return speed


def _rule(text: str) -> tuple[str, str]:
    from zenlake.errors import InvalidKeyExpr
    from zenlake.log.replay.replayer import Remap

    start, equals, to = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"--remap {text}: write FROM=TO, such as robot=replay/robot")
    try:
        Remap([(start, to)])
    except InvalidKeyExpr as error:
        raise typer.BadParameter(f"--remap {text}: {error}") from None
    return start, to


@contextmanager
def _progress(quiet: bool) -> "Iterator[Callable[[ReplayStats], None] | None]":
    """A bar on a terminal, beside what is printed."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        yield None
        return
    shown = TextColumn("{task.description}", markup=False)
    with Progress(BarColumn(), TaskProgressColumn(), shown, console=console) as bar:
        task = bar.add_task("", total=None)

        def tell(stats: "ReplayStats") -> None:
            again = f", round {stats.rounds + 1}" if stats.rounds and stats.done else ""
            count = quantities.counted(stats.samples, "sample")
            said = f"{count}, {_per_second(stats):,.0f}/s{again}"
            bar.update(task, total=stats.total or 1, completed=stats.done, description=said)

        yield tell


def _per_second(stats: "ReplayStats") -> float:
    return stats.samples / stats.seconds if stats.seconds > 0 else 0.0


def _print(stats: "ReplayStats", *, as_json: bool) -> None:
    if as_json:
        print_object(
            {
                "samples": stats.samples,
                "bytes": stats.bytes,
                "heard": stats.heard,
                "bad_keys": stats.bad_keys,
                "dropped": stats.dropped,
                "rounds": stats.rounds,
                "seconds": round(stats.seconds, 6),
                "samples_per_second": round(_per_second(stats), 3),
                "lateness": round(stats.lateness, 6),
            }
        )
        return
    size, took = quantities.size_shown(stats.bytes), quantities.duration_shown(stats.seconds)
    count = quantities.counted(stats.samples, "sample")
    said = [f"{count}, {size} in {took}, {_per_second(stats):,.0f} samples/s"]
    if stats.lateness:
        said.append(f"at most {stats.lateness * 1000:.3g} ms late")
    if stats.bad_keys:
        said.append(f"{stats.bad_keys:,} left out: their key is none")
    if stats.heard < stats.samples:
        said.append(f"nobody subscribes to {stats.samples - stats.heard:,} of them")
    print_text("; ".join(said))
