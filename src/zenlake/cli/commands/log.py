"""`zenlake log`: inspect, verify, trim, print and export a recording.

Knows options and what is printed. Does not know files: log/ does.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zenlake.cli import quantities
from zenlake.cli.display import AdvanceBar, progress_bar
from zenlake.cli.failure import FAILURE, reports_errors
from zenlake.cli.log_selection import (
    FromOption,
    JsonOption,
    KeyOption,
    LogArgument,
    LogSelection,
    LossesOption,
    PartitionOption,
    SkipOption,
    ToOption,
    check_offset,
    choose_partitions,
    print_skipped,
)
from zenlake.cli.options import command_group, count_option, json_option
from zenlake.cli.printing import print_line, print_object, print_table, print_text
from zenlake.cli.quantities import format_duration, format_size
from zenlake.cli.render.rows import Row, build_sample, describe_loss, read_rows
from zenlake.cli.render.sample import describe_sample, format_sample
from zenlake.cli.render.text import escape
from zenlake.quantities import counted
from zenlake.quantities import size as read_size

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.text import Text

    from zenlake.log.read.log import PartitionReport

FOLLOW_SECONDS = 0.1  # Time between two checks for new durable samples.
PRINTED_ROWS = 4096  # Rows per batch that is printed.
EXPORT_ROWS = 65_536  # Rows per batch that is exported.

log = command_group("Inspect, verify, trim, print and export a recording.")


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Register a command that reports its errors in one line."""
    return log.command()(reports_errors("log")(function))


# ---- info


@_command
def info(
    path: LogArgument,
    keys: Annotated[
        bool,
        typer.Option("--keys", help="Count the keys even of a large log, which reads all of it."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show partitions, offsets, times, sizes, losses and keys.

    Exit status: 0 done, 1 there is no log, 2 wrong usage.

    \b
    Examples:
      zenlake log info recording
      zenlake log info recording --json | jq .samples
    """
    from zenlake.cli.render.log_info import build_table, collect_facts
    from zenlake.log.read.log import Log

    facts = collect_facts(Log(path), path, keys=keys)
    if json:
        print_object(facts)
    else:
        print_table(build_table(facts))


# ---- verify


@_command
def verify(path: LogArgument, json: JsonOption = False) -> None:
    """Check every checksum, and that no block is missing.

    Torn files do not count as damage: their bytes were never acknowledged.

    Exit status: 0 the log is intact, 1 it is damaged (the offsets are printed), or there is no
    log, 2 wrong usage.

    \b
    Example:
      zenlake log verify recording
    """
    from zenlake.log.read.log import Log

    with progress_bar("verifying") as advance:
        report = Log(path).verify(advance)
    for partition in report.partitions:
        (_print_report_object if json else _print_report)(partition)
    if not report.ok:
        raise typer.Exit(FAILURE)


def _print_report(report: "PartitionReport") -> None:
    first, end = report.first, report.end
    offsets = f"offsets {first:,} to {end - 1:,}" if end > first else "no offsets"
    print_text(
        f"partition {report.partition}: {offsets}, {counted(report.samples, 'sample')} and "
        f"{counted(report.losses, 'loss')} in {counted(report.blocks, 'block')}, "
        f"{counted(report.segments, 'segment')}, {format_size(report.bytes)}: "
        + (f"DAMAGED in {counted(len(report.damage), 'place')}" if report.damage else "intact")
    )
    for damage in report.damage:
        print_text(f"  damaged: {escape(str(damage))}")
    for file in report.torn:
        print_text(f"  torn, never acknowledged: {escape(str(file))}")


def _print_report_object(report: "PartitionReport") -> None:
    damage = [found._asdict() for found in report.damage]
    print_object(asdict(report) | {"damage": damage, "torn": [str(file) for file in report.torn]})


# ---- trim


@_command
def trim(
    path: LogArgument,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="OFFSET|TIME",
            help="Remove segments that end before this offset or time, such as -7d.",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Remove the oldest segments, as long as this much of each partition stays.",
        ),
    ] = None,
    partition: PartitionOption = None,
    json: JsonOption = False,
) -> None:
    """Remove the oldest segments of each partition. The last one always stays.

    It may run beside a recorder. With both options, a segment is removed if either one says so.

    Exit status: 0 done (or nothing to remove), 1 there is no log, or a file could not be removed, 2
    wrong usage.

    \b
    Examples:
      zenlake log trim recording --before -7d
      zenlake log trim recording --keep 50GiB
    """
    from zenlake.log.read.log import Log

    if before is None and keep is None:
        raise typer.BadParameter("say what to remove: --before or --keep")
    place = quantities.position(before, "--before")
    size = None if keep is None else quantities.parse(read_size, keep, "--keep")
    opened = Log(path)
    check_offset(place, choose_partitions(opened, partition))
    removed = opened.trim(
        before_offset=place.offset,
        before_time=place.time,
        keep_bytes=size,
        partition=partition,
    )
    text = f"removed {counted(removed.segments, 'segment')}, {format_size(removed.bytes)}"
    print_line(removed._asdict() if json else text)


# ---- cat


@_command
def cat(
    path: LogArgument,
    key: KeyOption = None,
    partition: PartitionOption = None,
    start: FromOption = None,
    end: ToOption = None,
    count: Annotated[int | None, count_option("samples")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new samples, until Ctrl-C.")
    ] = False,
    losses: LossesOption = False,
    skip_damage: SkipOption = False,
    json: Annotated[
        bool, json_option("Print one JSON object per sample, as `zenlake sub` does.")
    ] = False,
) -> None:
    """Print samples as `zenlake sub` does.

    Partitions are printed one after another.

    Exit status: 0 done, 1 there is no log, or it is damaged, 2 wrong usage, 130 Ctrl-C
    without --follow.

    \b
    Examples:
      zenlake log cat recording -k 'fleet/*/pose' --from -10m
      zenlake log cat recording --follow --from now --json | jq .value
    """
    if follow and end is not None:
        raise typer.BadParameter("--follow goes on until Ctrl-C: leave --until out")
    wanted = LogSelection(path, partition, start, end, key, losses=losses, skip_damage=skip_damage)
    rows = _follow(wanted) if follow else _rows(wanted, count)
    with suppress(KeyboardInterrupt) if follow else nullcontext():
        for number, row in enumerate(rows, 1):
            print_line(_describe_row(row) if json else _format_row(row))
            if number == count:
                break
    print_skipped(wanted.skipped)


def _rows(wanted: LogSelection, count: int | None) -> Iterator[Row]:
    rows = PRINTED_ROWS if count is None else min(count, PRINTED_ROWS)
    for partition in wanted.partitions:
        start, end = wanted.bounds(partition)
        for batch in wanted.batches(partition, start, wanted.end_of(end), rows):
            yield from read_rows(batch)


def _follow(wanted: LogSelection) -> Iterator[Row]:
    """Yield the rows of the log, and then new ones as they become durable."""
    at = {partition: wanted.bounds(partition)[0] for partition in wanted.partitions}
    while True:
        quiet = True
        for partition, start in at.items():
            end = wanted.bounds(partition)[1]
            if end > start:
                quiet = False
                for batch in wanted.batches(partition, start, end, PRINTED_ROWS):
                    yield from read_rows(batch)
                at[partition] = end
        if quiet:
            time.sleep(FOLLOW_SECONDS)


def _format_row(row: Row) -> "Text":
    from rich.text import Text

    place = f"{row['partition']}:{row['offset']}  {row['received_at']}  "
    if row["kind"] == "loss":
        loss = f"  {escape(describe_loss(row['loss']))}"
        return Text.assemble((place, "dim"), ("LOSS", "bold red"), loss)
    return Text.assemble((place, "dim"), format_sample(build_sample(row)))


def _describe_row(row: Row) -> dict[str, Any]:
    fields = (
        {"kind": "LOSS", "loss": row["loss"]}
        if row["kind"] == "loss"
        else describe_sample(build_sample(row)) | {"reliable": row["reliable"]}
    )
    return fields | {name: row[name] for name in ("partition", "offset", "received_at")}


# ---- export


@_command
def export(
    path: LogArgument,
    to: Annotated[
        Path,
        typer.Option("--to", "-o", metavar="FILE", help="FILE.parquet, FILE.arrow or FILE.mcap."),
    ],
    key: KeyOption = None,
    partition: PartitionOption = None,
    start: FromOption = None,
    end: Annotated[
        str | None,
        typer.Option("--until", metavar="OFFSET|TIME", help="End before this offset or time."),
    ] = None,
    losses: LossesOption = False,
    skip_damage: SkipOption = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace FILE once the new file is complete.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Write samples to a Parquet, Arrow or MCAP file.

    An MCAP file has a channel for each key, and the topic @zenlake/deletes for deletes; it cannot
    hold attachments, which are counted.

    Exit status: 0 the file is complete, 1 it could not be written, or the log is damaged, 2 wrong
    usage.

    \b
    Examples:
      zenlake log export recording --to day.parquet --from 2026-11-15 --until 2026-11-16
      zenlake log export recording -k 'robot/1/**' --to robot.mcap    # open it with Foxglove
    """
    from zenlake.log import export as exporting
    from zenlake.log.read.batches import batch_schema

    wanted = LogSelection(path, partition, start, end, key, losses=losses, skip_damage=skip_damage)
    bounds = {number: wanted.bounds(number) for number in wanted.partitions}
    total = sum(max(0, end - start) for start, end in bounds.values())
    began = time.monotonic()
    with progress_bar("exporting") as advance:
        done = exporting.export(
            _export_batches(wanted, bounds, advance, total),
            to,
            schema=batch_schema(None, losses=losses),
            overwrite=force,
        )
    seconds = time.monotonic() - began
    print_skipped(wanted.skipped)
    if json:
        print_object({"file": str(to), **done._asdict(), "seconds": round(seconds, 3)})
        return
    print_text(
        f"{counted(done.rows, 'row')} in {escape(str(to))}, {format_size(done.bytes)}, "
        f"in {format_duration(seconds)}"
    )
    if done.attachments_left_out:
        attachments = counted(done.attachments_left_out, "attachment")
        print_text(f"without {attachments}: MCAP has no place for them")


def _export_batches(
    wanted: LogSelection,
    bounds: dict[int, tuple[int, int]],
    advance: AdvanceBar,
    total: int,
) -> "Iterator[pa.RecordBatch]":
    """Yield the batches of all partitions, and move the progress bar."""
    done = 0
    for number, (start, end) in bounds.items():
        for batch in wanted.batches(number, start, wanted.end_of(end), EXPORT_ROWS):
            yield batch
            advance(done + batch.column("offset")[-1].as_py() + 1 - start, total)
        done += max(0, end - start)
