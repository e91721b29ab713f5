"""`zenlake record`: record samples into a log, until told to stop.

Knows options, signals and what is printed. Does not know files: log/ does.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from zenlake import quantities
from zenlake.cli import session_options
from zenlake.cli.display import print_event, state_display, ticks
from zenlake.cli.options import json_option
from zenlake.cli.printing import print_text
from zenlake.cli.quantities import format_duration, format_size, parse
from zenlake.cli.render.text import escape
from zenlake.cli.signals import stop_on_signals
from zenlake.log import MAX_PARTITION
from zenlake.quantities import Limit, counted

if TYPE_CHECKING:
    from zenlake.log.write.recorder import Recorder, RecorderStats
    from zenlake.log.write.recovery import Recovery

MAX_SYNC_SECONDS = 60.0
MIN_ROTATE_BYTES = 1 << 16


@session_options.expand_options
def record(
    at: session_options.SessionOptions,
    keys: Annotated[
        list[str],
        typer.Option(
            "--key",
            "-k",
            metavar="KEYEXPR",
            help="Keys to record, such as fleet/**; may be repeated.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="LOG", help="Folder of the log; created if missing."
        ),
    ],
    partition: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=MAX_PARTITION,
            help="Partition of the log; each has one recorder.",
        ),
    ] = 0,
    codec: Annotated[
        Literal["none", "lz4", "zstd"], typer.Option(help="Compression of blocks.")
    ] = "none",
    rotate: Annotated[
        str, typer.Option(metavar="SIZE", help="Size at which a new segment is begun.")
    ] = "256MiB",
    retain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AGE|SIZE",
            help="Remove segments that are older (7d), or the oldest above a total size (50GiB); "
            "both may be given. Default: nothing is removed.",
        ),
    ] = None,
    sync: Annotated[
        str, typer.Option(metavar="DURATION", help="Longest time a sample waits to be written.")
    ] = "5ms",
    overflow: Annotated[
        Literal["block", "drop"],
        typer.Option(
            help="When the disk is too slow: block stops reading from the network, drop discards "
            "samples and records the loss."
        ),
    ] = "block",
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="End after at least this many samples."),
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="DURATION", help="End after this time, such as 10m.")
    ] = None,
    json: Annotated[
        bool, json_option("Print one JSON object per second, and one at the end.")
    ] = False,
) -> None:
    """Record samples into a log, until SIGTERM or Ctrl-C seals it.

    A second signal ends it at once. Samples that are reported as durable survive a kill and a
    power failure. While the disk is full or fails, the recorder acknowledges nothing and retries.

    Exit status: 0 the log is sealed, 1 no session, the log is in use, or writing failed, 2 wrong
    usage.

    \b
    Examples:
      zenlake record -e tcp/127.0.0.1:7447 -k 'fleet/**' -o recording
      zenlake record -e tcp/router:7447 -k 'a/**' -k b -o LOG --retain 7d --retain 50GiB
      zenlake record -l tcp/0.0.0.0:7447 -k '**' -o LOG --duration 10m --json
    """
    checked = [session_options.check_key_expr(key) for key in keys]
    options = {
        "partition": partition,
        "codec": codec,
        "rotate_bytes": _parse_rotate(rotate),
        "sync_seconds": _parse_sync(sync),
        "overflow": overflow,
        **_parse_retention(retain or []),
    }
    seconds = None if duration is None else parse(quantities.seconds, duration, "--duration")
    stopped = Event()
    with stop_on_signals(lambda _: stopped.set()), session_options.open_session(at) as session:
        from zenlake.log.write.recorder import Recorder

        with Recorder(output, checked, session=session, **options) as recorder:
            began = time.monotonic()
            _print_recovery(recorder.writer.recovery)
            place = f"{escape(str(recorder.writer.path))}, partition {partition}"
            title = f"recording {' '.join(checked)} into {place}"
            with state_display("recording", title, as_json=json) as show:
                for stats, rate in _states(recorder, stopped, count, seconds):
                    facts, style = stats._asdict() | rate._asdict(), "red" if stats.failure else ""
                    show(facts, format_stats(stats, rate), style)
    _print_total(recorder, time.monotonic() - began, as_json=json)


def _parse_rotate(text: str) -> int:
    size = parse(quantities.size, text, "--rotate")
    if size < MIN_ROTATE_BYTES:
        raise typer.BadParameter(f"--rotate {text}: a segment has at least 64KiB")
    return size


def _parse_sync(text: str) -> float:
    seconds = parse(quantities.seconds, text, "--sync")
    if seconds > MAX_SYNC_SECONDS:
        raise typer.BadParameter(f"--sync {text}: at most {MAX_SYNC_SECONDS:g}s")
    return seconds


def _parse_retention(texts: list[str]) -> dict[str, Any]:
    kept = parse(quantities.limit, ", ".join(texts), "--retain") if texts else Limit()
    return {"retain_seconds": kept.seconds, "retain_bytes": kept.bytes}


class RecordRate(NamedTuple):
    """Rates since the last tick."""

    samples_per_second: float
    bytes_per_second: float


def _states(
    recorder: "Recorder", stopped: Event, count: int | None, seconds: float | None
) -> "Iterator[tuple[RecorderStats, RecordRate]]":
    """Yield the state and the rates every second, until a signal, `count` or `seconds`."""
    before, at = None, 0.0
    for _ in ticks(
        stopped, seconds, lambda: count is not None and recorder.stats().samples >= count
    ):
        stats, now = recorder.stats(), time.monotonic()
        last, took = before or stats, now - at  # The first rates are 0.
        samples, size = stats.samples - last.samples, stats.bytes - last.bytes
        yield stats, RecordRate(round(samples / took, 1), round(size / took, 1))
        before, at = stats, now


# ---- output


def _print_recovery(found: "Recovery") -> None:
    """Print what the previous recorder left unfinished."""
    for torn in found.torn:
        typer.echo(
            f"cut off {counted(torn.length, 'byte')} that were never acknowledged; "
            f"they are kept in {escape(str(torn.kept))}",
            err=True,
        )
    for damage in found.damage:
        typer.echo(f"damaged: {escape(str(damage))}", err=True)


def format_stats(stats: "RecorderStats", rate: RecordRate) -> str:
    """Return the live line."""
    waiting = stats.received - stats.durable
    parts = [
        f"{rate.samples_per_second:,.0f} samples/s",
        f"{format_size(rate.bytes_per_second)}/s",
        f"durable to {stats.durable:,}" + (f" ({waiting:,} waiting)" if waiting else ""),
        counted(stats.gaps, "gap"),
        f"{stats.dropped:,} dropped",
        f"{format_size(stats.disk_left)} left",
    ]
    if stats.failure:
        parts.append(f"NOT WRITING: {escape(stats.failure)}")
    return ", ".join(parts)


def _print_total(recorder: "Recorder", seconds: float, *, as_json: bool) -> None:
    writer, stats = recorder.writer, recorder.stats()
    first = stats.received - stats.samples
    if as_json:
        facts = {
            "log": writer.log_id.hex(),
            "partition": writer.partition,
            "first": first,
            "seconds": round(seconds, 3),
        }
        print_event("sealed", {**facts, **stats._asdict()})
        return
    offsets = f"offsets {first:,} to {stats.durable - 1:,}" if stats.samples else "no offsets"
    print_text(
        f"sealed {escape(str(writer.path))}, partition {writer.partition}: "
        f"{counted(stats.samples, 'sample')} ({offsets}), {format_size(stats.bytes)} in "
        f"{format_duration(seconds)}; {counted(stats.gaps, 'gap')}, "
        f"{stats.dropped:,} dropped"
    )
