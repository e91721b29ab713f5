"""`zenlake replay`: put the samples of a log again.

Knows options, signals and what is printed. Does not know files: log/ does.
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from zenlake.cli import quantities, session_options
from zenlake.cli.display import AdvanceBar, progress_bar
from zenlake.cli.failure import fail, wrong_usage
from zenlake.cli.log_selection import (
    KeyOption,
    LogArgument,
    SkipOption,
    name_skip_option,
    print_skipped,
)
from zenlake.cli.options import json_option
from zenlake.cli.printing import print_object, print_text
from zenlake.cli.signals import stop_on_signals
from zenlake.errors import ZError
from zenlake.quantities import counted

if TYPE_CHECKING:
    from zenlake.log.replay.replayer import ReplayStats

AS_FAST_AS_POSSIBLE = "max"
MAX_SPEED = 1e6
INTERRUPTED = 130


@session_options.expand_options
def replay(
    at: session_options.SessionOptions,
    log: LogArgument,
    speed: Annotated[
        str,
        typer.Option(
            metavar="FACTOR",
            help="1 keeps the time between samples, 2 halves it; max sends without waiting.",
        ),
    ] = "1",
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="OFFSET|TIME",
            help="Begin at this time of reception, such as 2026-11-15T10:00:00Z or -1h, or at this "
            "offset. Default: the first sample.",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to", "--until", metavar="OFFSET|TIME", help="End before this offset or time."
        ),
    ] = None,
    key: KeyOption = None,
    remap: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FROM=TO",
            help="Replace the chunks FROM at the start of a key, where * matches any chunk, by TO; "
            "the first rule that matches applies. An empty FROM matches any key. May be repeated.",
        ),
    ] = None,
    timestamps: Annotated[
        Literal["original", "new"],
        typer.Option(
            help="original keeps timestamps; new replaces them by the time of this session."
        ),
    ] = "original",
    partition: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Only this partition. Default: all, merged by time."),
    ] = None,
    loop: Annotated[
        bool, typer.Option("--loop", help="Start over at the end, until Ctrl-C.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no progress bar on a terminal.")
    ] = False,
    skip_damage: SkipOption = False,
    json: Annotated[bool, json_option("Print one JSON object at the end.")] = False,
) -> None:
    """Put the samples of a recording again.

    Each has its recorded key, payload, encoding, timestamp and QoS. It sends every
    sample: when a queue is full it waits, whatever the sample's congestion control. Ctrl-C ends it.

    Exit status: 0 every sample was replayed, 1 some were not, or there is none, 2 wrong usage, 130
    Ctrl-C without --loop.

    \b
    Examples:
      zenlake replay rides -e tcp/127.0.0.1:7447
      zenlake replay rides -e tcp/127.0.0.1:7447 --from -1h -k 'robot/*/pose' --speed 10
      zenlake replay rides -l tcp/127.0.0.1:7447 --speed max --remap robot=replay/robot --loop
    """
    from zenlake.log.read.log import Log

    choice = _parse_choice(speed, start, end, key, remap or [])
    found = Log(log)
    with (
        session_options.open_session(at, meet=True) as session,
        progress_bar("", hide=quiet) as bar,
    ):
        from zenlake.log.replay.replayer import Replayer

        replayer = Replayer(
            found,
            session,
            partition=partition,
            timestamps=timestamps,
            loop=loop,
            on_progress=partial(_advance, bar),
            on_damage="skip" if skip_damage else "raise",
            **choice,
        )
        stopped: list[int] = []

        def stop(number: int) -> None:
            stopped.append(number)
            replayer.stop()

        with stop_on_signals(stop):
            try:
                stats = replayer.run()
            except ZError as error:
                raise name_skip_option(error) from None
    _print(stats, as_json=json)
    print_skipped(replayer.skipped)
    if stats.dropped:
        fail("replay", f"{counted(stats.dropped, 'sample')} could not be sent.")
    if not stats.samples and not stopped:
        fail("replay", f"{log}: no sample in this range and on these keys.")
    if stopped and not loop:
        raise typer.Exit(INTERRUPTED)


def _parse_choice(
    speed: str, start: str | None, end: str | None, key: str | None, remap: list[str]
) -> dict[str, Any]:
    """Return the arguments of a Replayer that are given as text."""
    first, last = quantities.position(start, "--from"), quantities.position(end, "--to")
    return {
        "speed": _parse_speed(speed),
        "start": first.offset,
        "start_time": first.time,
        "end": last.offset,
        "end_time": last.time,
        "key_expr": None if key is None else session_options.check_key_expr(key),
        "remap": [_parse_rule(text) for text in remap],
    }


def _parse_speed(text: str) -> float | None:
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


def _parse_rule(text: str) -> tuple[str, str]:
    from zenlake.log.replay.replayer import Remap

    start, equals, to = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"--remap {text}: write FROM=TO, such as robot=replay/robot")
    with wrong_usage(f"--remap {text}"):
        Remap([(start, to)])
    return start, to


def _advance(bar: AdvanceBar, stats: "ReplayStats") -> None:
    again = f", round {stats.rounds + 1}" if stats.rounds and stats.done else ""
    count = counted(stats.samples, "sample")
    bar(stats.done, stats.total or 1, f"{count}, {_per_second(stats):,.0f}/s{again}")


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
    size, took = quantities.format_size(stats.bytes), quantities.format_duration(stats.seconds)
    count = counted(stats.samples, "sample")
    parts = [f"{count}, {size} in {took}, {_per_second(stats):,.0f} samples/s"]
    if stats.lateness:
        parts.append(f"at most {stats.lateness * 1000:.3g} ms late")
    if stats.bad_keys:
        parts.append(f"{stats.bad_keys:,} left out: their key is not valid")
    if stats.heard < stats.samples:
        parts.append(f"no subscriber for {stats.samples - stats.heard:,} of them")
    print_text("; ".join(parts))
