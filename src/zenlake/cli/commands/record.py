"""`zenlake record`: record samples into a log, until told to stop.

Knows options, signals and what is printed. Does not know files: log/ does.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from zenlake.cli import quantities, session_options
from zenlake.cli.display import live_line, print_event
from zenlake.cli.printing import print_text
from zenlake.cli.quantities import format_duration, format_size
from zenlake.cli.render.text import escape
from zenlake.cli.signals import stop_on_signals
from zenlake.log import MAX_PARTITION
from zenlake.quantities import Limit, counted

if TYPE_CHECKING:
    from zenlake.log.write.recorder import Recorder, RecorderStats
    from zenlake.log.write.recovery import Recovery

MAX_SYNC_SECONDS = 60.0
MIN_ROTATE_BYTES = 1 << 16
TICK_SECONDS = 1.0  # Time between two JSON objects, or two states of the live line.
LINE_SECONDS = 10.0  # Time between two lines where there is no terminal.
POLL_SECONDS = 0.05  # Time between two checks of --count.


class CodecChoice(StrEnum):
    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class OverflowChoice(StrEnum):
    BLOCK = "block"
    DROP = "drop"


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
    codec: Annotated[CodecChoice, typer.Option(help="Compression of blocks.")] = CodecChoice.NONE,
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
        OverflowChoice,
        typer.Option(
            help="When the disk is too slow: block stops reading from the network, drop discards "
            "samples and records the loss."
        ),
    ] = OverflowChoice.BLOCK,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="End after at least this many samples."),
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="DURATION", help="End after this time, such as 10m.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per second, and one at the end.")
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
        "codec": codec.value,
        "rotate_bytes": _parse_rotate(rotate),
        "sync_seconds": _parse_sync(sync),
        "overflow": overflow.value,
        **_parse_retention(retain or []),
    }
    seconds = None if duration is None else quantities.seconds(duration, "--duration")
    signalled: SimpleQueue[int] = SimpleQueue()
    with stop_on_signals(signalled.put), session_options.open_session(at) as session:
        from zenlake.log.write.recorder import Recorder

        with Recorder(output, checked, session=session, **options) as recorder:
            began = time.monotonic()
            _print_recovery(recorder.writer.recovery)
            with _display(recorder, checked, as_json=json) as show:
                _run(recorder, signalled, show, count, seconds)
    _print_total(recorder, time.monotonic() - began, as_json=json)


def _parse_rotate(text: str) -> int:
    size = quantities.size(text, "--rotate")
    if size < MIN_ROTATE_BYTES:
        raise typer.BadParameter(f"--rotate {text}: a segment has at least 64KiB")
    return size


def _parse_sync(text: str) -> float:
    seconds = quantities.seconds(text, "--sync")
    if seconds > MAX_SYNC_SECONDS:
        raise typer.BadParameter(f"--sync {text}: at most {MAX_SYNC_SECONDS:g}s")
    return seconds


def _parse_retention(texts: list[str]) -> dict[str, Any]:
    kept = quantities.limit(", ".join(texts), "--retain") if texts else Limit()
    return {"retain_seconds": kept.seconds, "retain_bytes": kept.bytes}


class RecordRate(NamedTuple):
    """Samples and bytes per second since the last tick."""

    samples: float
    bytes: float


ShowRate = Callable[["RecorderStats", RecordRate], None]


def _run(
    recorder: "Recorder",
    signalled: "SimpleQueue[int]",
    show: ShowRate,
    count: int | None,
    seconds: float | None,
) -> None:
    """Wait for a signal, `count` or `seconds`, and call `show` once per second."""
    before, at = recorder.stats(), time.monotonic()
    end = None if seconds is None else at + seconds
    show(before, RecordRate(0.0, 0.0))
    while True:
        now = time.monotonic()
        if now >= at + TICK_SECONDS:
            stats, took = recorder.stats(), now - at
            rate = RecordRate(
                (stats.samples - before.samples) / took, (stats.bytes - before.bytes) / took
            )
            show(stats, rate)
            before, at = stats, now
        if end is not None and now >= end:
            return
        if count is not None and recorder.stats().samples >= count:
            return
        due = at + TICK_SECONDS if end is None else min(end, at + TICK_SECONDS)
        wait = max(0.0, due - now) if count is None else min(POLL_SECONDS, max(0.0, due - now))
        try:
            signalled.get(timeout=wait)
            return
        except Empty:
            continue


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


@contextmanager
def _display(recorder: "Recorder", keys: list[str], *, as_json: bool) -> Iterator[ShowRate]:
    if as_json:
        yield _print_json
        return
    place = f"{escape(str(recorder.writer.path))}, partition {recorder.writer.partition}"
    with live_line(f"recording {' '.join(keys)} into {place}", LINE_SECONDS) as write:
        yield lambda stats, rate: write(format_stats(stats, rate), "red" if stats.failure else "")


def format_stats(stats: "RecorderStats", rate: RecordRate) -> str:
    """Return the live line."""
    waiting = stats.received - stats.durable
    parts = [
        f"{rate.samples:,.0f} samples/s",
        f"{format_size(rate.bytes)}/s",
        f"durable to {stats.durable:,}" + (f" ({waiting:,} waiting)" if waiting else ""),
        counted(stats.gaps, "gap"),
        f"{stats.dropped:,} dropped",
        f"{format_size(stats.disk_left)} left",
    ]
    if stats.failure:
        parts.append(f"NOT WRITING: {escape(stats.failure)}")
    return ", ".join(parts)


def _print_json(stats: "RecorderStats", rate: RecordRate) -> None:
    rates = {
        "samples_per_second": round(rate.samples, 1),
        "bytes_per_second": round(rate.bytes, 1),
    }
    print_event("recording", {**stats._asdict(), **rates})


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
