"""`zenlake record`: what is put on keys goes into a log, until told to stop."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from zenlake.cli import quantities, session_options
from zenlake.cli.display import live_line
from zenlake.cli.quantities import counted, duration_shown, size_shown
from zenlake.cli.render.sample import print_object, print_text
from zenlake.cli.render.text import escape
from zenlake.cli.signals import stopped_by_signals
from zenlake.log import MAX_PARTITION
from zenlake.quantities import Limit

if TYPE_CHECKING:
    from zenlake.log.write.recorder import Recorder, RecorderStats
    from zenlake.log.write.recovery import Recovery

MAX_SYNC_SECONDS = 60.0
MIN_ROTATE_BYTES = 1 << 16
TICK_SECONDS = 1.0  # between two objects, or two states of the live line
LINE_SECONDS = 10.0  # between two lines, where there is no terminal
POLL_SECONDS = 0.05  # between two looks at how many came, with --count


class CodecChoice(StrEnum):
    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Overflow(StrEnum):
    BLOCK = "block"
    DROP = "drop"


@session_options.connected
def record(
    at: session_options.SessionOptions,
    keys: Annotated[
        list[str],
        typer.Option(
            "--key", "-k", metavar="KEYEXPR", help="What to record, such as fleet/**; repeatable."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="LOG", help="The log's folder; made if missing."),
    ],
    partition: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=MAX_PARTITION, help="Of the log; each has one recorder."
        ),
    ] = 0,
    codec: Annotated[CodecChoice, typer.Option(help="How blocks are packed.")] = CodecChoice.NONE,
    rotate: Annotated[
        str, typer.Option(metavar="SIZE", help="Of a segment, before the next is begun.")
    ] = "256MiB",
    retain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AGE|SIZE",
            help="Remove segments that are older (7d), or the oldest above a size (50GiB); both "
            "may be given. Default: all is kept.",
        ),
    ] = None,
    sync: Annotated[
        str, typer.Option(metavar="DURATION", help="How long a sample may wait for the disk.")
    ] = "5ms",
    overflow: Annotated[
        Overflow,
        typer.Option(
            help="When the disk is too slow: block reads no more from the network, drop lets "
            "samples go and records that."
        ),
    ] = Overflow.BLOCK,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after at least so many samples.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="DURATION", help="End after this time, such as 10m.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a second, and one at the end.")
    ] = False,
) -> None:
    """Record into a log; SIGTERM or Ctrl-C seals it. Again: it ends at once.

    What counts as durable is on the disk and survives a kill or a power failure. While the disk
    is full or fails, nothing is acknowledged and it is tried again and again.

    Exit status: 0 sealed, 1 no session, the log is in use, or samples could not be written, 2 wrong
    usage.

    \b
    Examples:
      zenlake record -e tcp/127.0.0.1:7447 -k 'fleet/**' -o recording
      zenlake record -e tcp/router:7447 -k 'a/**' -k b -o LOG --retain 7d --retain 50GiB
      zenlake record -l tcp/0.0.0.0:7447 -k '**' -o LOG --duration 10m --json
    """
    checked = [session_options.key_expr(key) for key in keys]
    options = {
        "partition": partition,
        "codec": codec.value,
        "rotate_bytes": _rotate(rotate),
        "sync_seconds": _sync(sync),
        "overflow": overflow.value,
        **_retention(retain or []),
    }
    seconds = None if duration is None else quantities.seconds(duration, "--duration")
    told: SimpleQueue[int] = SimpleQueue()
    with stopped_by_signals(told.put), session_options.opened(at) as session:
        from zenlake.log.write.recorder import Recorder

        with Recorder(output, checked, session=session, **options) as recorder:
            began = time.monotonic()
            _tell_recovery(recorder.writer.recovery)
            with _display(recorder, checked, as_json=json) as show:
                _run(recorder, told, show, count, seconds)
    _sum_up(recorder, time.monotonic() - began, as_json=json)


def _rotate(text: str) -> int:
    size = quantities.size(text, "--rotate")
    if size < MIN_ROTATE_BYTES:
        raise typer.BadParameter(f"--rotate {text}: a segment has at least 64KiB")
    return size


def _sync(text: str) -> float:
    seconds = quantities.seconds(text, "--sync")
    if seconds > MAX_SYNC_SECONDS:
        raise typer.BadParameter(f"--sync {text}: at most {MAX_SYNC_SECONDS:g}s")
    return seconds


def _retention(texts: list[str]) -> dict[str, Any]:
    kept = quantities.limit(", ".join(texts), "--retain") if texts else Limit()
    return {"retain_seconds": kept.seconds, "retain_bytes": kept.bytes}


class Rate(NamedTuple):
    """Since the look before."""

    samples: float
    bytes: float


Show = Callable[["RecorderStats", Rate], None]


def _run(
    recorder: "Recorder",
    told: "SimpleQueue[int]",
    show: Show,
    count: int | None,
    seconds: float | None,
) -> None:
    """Until a signal, `count` or `seconds`; meanwhile `show` is called once a second."""
    before, at = recorder.stats(), time.monotonic()
    end = None if seconds is None else at + seconds
    show(before, Rate(0.0, 0.0))
    while True:
        now = time.monotonic()
        if now >= at + TICK_SECONDS:
            stats, took = recorder.stats(), now - at
            rate = Rate(
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
            told.get(timeout=wait)
            return
        except Empty:
            continue


# ---- shown


def _tell_recovery(found: "Recovery") -> None:
    """What the end of the recorder before left behind."""
    for torn in found.torn:
        typer.echo(
            f"cut off {counted(torn.length, 'byte')} that were never acknowledged; "
            f"they are kept in {escape(str(torn.kept))}",
            err=True,
        )
    for damage in found.damage:
        typer.echo(f"damaged: {escape(str(damage))}", err=True)


@contextmanager
def _display(recorder: "Recorder", keys: list[str], *, as_json: bool) -> Iterator[Show]:
    if as_json:
        yield _print_json
        return
    place = f"{escape(str(recorder.writer.path))}, partition {recorder.writer.partition}"
    with live_line(f"recording {' '.join(keys)} into {place}", LINE_SECONDS) as write:
        yield lambda stats, rate: write(line_shown(stats, rate), "red" if stats.failure else "")


def line_shown(stats: "RecorderStats", rate: Rate) -> str:
    """The live line."""
    waiting = stats.received - stats.durable
    parts = [
        f"{rate.samples:,.0f} samples/s",
        f"{size_shown(rate.bytes)}/s",
        f"durable to {stats.durable:,}" + (f" ({waiting:,} waiting)" if waiting else ""),
        counted(stats.gaps, "gap"),
        f"{stats.dropped:,} dropped",
        f"{size_shown(stats.disk_left)} left",
    ]
    if stats.failure:
        parts.append(f"NOT WRITING: {escape(stats.failure)}")
    return ", ".join(parts)


def _print_json(stats: "RecorderStats", rate: Rate) -> None:
    rates = {
        "samples_per_second": round(rate.samples, 1),
        "bytes_per_second": round(rate.bytes, 1),
    }
    print_object({"event": "recording", "time": time.time(), **stats._asdict(), **rates})


def _sum_up(recorder: "Recorder", seconds: float, *, as_json: bool) -> None:
    writer, stats = recorder.writer, recorder.stats()
    first = stats.received - stats.samples
    if as_json:
        facts = {
            "log": writer.log_id.hex(),
            "partition": writer.partition,
            "first": first,
            "seconds": round(seconds, 3),
        }
        print_object({"event": "sealed", "time": time.time(), **facts, **stats._asdict()})
        return
    offsets = f"offsets {first:,} to {stats.durable - 1:,}" if stats.samples else "no offsets"
    print_text(
        f"sealed {escape(str(writer.path))}, partition {writer.partition}: "
        f"{counted(stats.samples, 'sample')} ({offsets}), {size_shown(stats.bytes)} in "
        f"{duration_shown(seconds)}; {counted(stats.gaps, 'gap')}, "
        f"{stats.dropped:,} dropped"
    )
