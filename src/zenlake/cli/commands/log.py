"""`zenlake log`: what a recording holds, whether it is whole, and how to get it out.

Knows options and what is shown. Does not know files: log/ does.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from zenlake.cli import quantities, session_options
from zenlake.cli.log_selection import (
    NOWHERE,
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
    chosen,
)
from zenlake.cli.quantities import counted, duration_shown, size_shown
from zenlake.cli.render.rows import Row, loss_text, rows_of, sample_of
from zenlake.cli.render.sample import console, print_object, print_text, sample_object, sample_text
from zenlake.cli.render.text import escape
from zenlake.errors import ZError

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.text import Text

    from zenlake.log.read.log import PartitionReport

FOLLOW_SECONDS = 0.1  # between two looks at how far a log is durable
SHOWN_ROWS = 4096  # of one batch, as each becomes an object
EXPORT_ROWS = 65_536  # of one batch that is exported

log = typer.Typer(
    help="Look at a recording, check it, and get samples out of it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Registered; what goes wrong is said in one line, and is status 1."""

    @wraps(function)
    def run(**given: Any) -> None:
        try:
            function(**given)
        except ZError as error:
            session_options.fail(f"log {function.__name__}", error)
        except OSError as error:
            if error.filename is None:
                raise  # not about a file: standard output is closed
            session_options.fail(f"log {function.__name__}", f"{error.filename}: {error.strerror}")

    log.command()(run)
    return run


class _Advance(Protocol):
    def __call__(self, amount: int, total: int | None = None) -> None: ...


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[_Advance]:
    """On standard error, and only on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    stderr = Console(stderr=True)
    with Progress(console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(what, total=total)

        def advance(amount: int, total: int | None = None) -> None:
            bar.update(task, advance=amount, total=total)

        yield advance


# ---- info


@_command
def info(
    path: LogArgument,
    keys: Annotated[
        bool,
        typer.Option("--keys", help="Count the keys even if that takes a while: it reads all."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show what a recording holds: partitions, offsets, times, sizes, losses and keys.

    Exit status: 0 shown, 1 there is no log, 2 wrong usage.

    \b
    Examples:
      zenlake log info recording
      zenlake log info recording --json | jq .samples
    """
    from zenlake.cli.render.log_info import facts_of, table_of
    from zenlake.log.read.log import Log

    facts = facts_of(Log(path), path, keys=keys)
    if json:
        print_object(facts)
    else:
        console().print(table_of(facts))


# ---- verify


@_command
def verify(path: LogArgument, json: JsonOption = False) -> None:
    """Read everything, and check every checksum and that no block is missing.

    Torn files are no damage: their bytes were never acknowledged.

    Exit status: 0 it is whole, 1 something is damaged (and which offsets), or there is no log, 2
    wrong usage.

    \b
    Example:
      zenlake log verify recording
    """
    from zenlake.log.read.log import Log

    opened, done = Log(path), 0
    with _progress("verifying", None) as advance:

        def progress(read: int, total: int) -> None:
            nonlocal done
            advance(read - done, total)
            done = read

        report = opened.verify(progress)
    for one in report.partitions:
        (_print_report_object if json else _print_report)(one)
    if not report.ok:
        raise typer.Exit(session_options.FAILURE)


def _print_report(one: "PartitionReport") -> None:
    offsets = f"offsets {one.first:,} to {one.end - 1:,}" if one.end > one.first else "no offsets"
    print_text(
        f"partition {one.partition}: {offsets}, {counted(one.samples, 'sample')} and "
        f"{counted(one.losses, 'loss')} in {counted(one.blocks, 'block')}, "
        f"{counted(one.segments, 'segment')}, {size_shown(one.bytes)}: "
        + (f"DAMAGED in {counted(len(one.damage), 'place')}" if one.damage else "whole")
    )
    for damage in one.damage:
        print_text(f"  damaged: {escape(str(damage))}")
    for file in one.torn:
        print_text(f"  torn, never acknowledged: {escape(str(file))}")


def _print_report_object(one: "PartitionReport") -> None:
    damage = [found._asdict() for found in one.damage]
    print_object(asdict(one) | {"damage": damage, "torn": [str(file) for file in one.torn]})


# ---- trim


@_command
def trim(
    path: LogArgument,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="OFFSET|TIME", help="Remove segments that have nothing from then on: -7d."
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Remove the oldest segments, as long as this much stays of each."
        ),
    ] = None,
    partition: PartitionOption = None,
    json: JsonOption = False,
) -> None:
    """Remove the oldest segments of each partition. The last one always stays.

    It may run beside a recorder. With both options a segment goes that either of them names.

    Exit status: 0 removed (or nothing to remove), 1 there is no log, or it could not be removed, 2
    wrong usage.

    \b
    Examples:
      zenlake log trim recording --before -7d
      zenlake log trim recording --keep 50GiB
    """
    from zenlake.log.read.log import Log

    if before is None and keep is None:
        raise typer.BadParameter("say what goes: --before or --keep")
    place = NOWHERE if before is None else quantities.position(before, "--before")
    size = None if keep is None else quantities.size(keep, "--keep")
    opened = Log(path)
    check_offset(place, chosen(opened, partition))
    removed = opened.trim(
        before_offset=place.offset,
        before_time=place.time,
        keep_bytes=size,
        partition=partition,
    )
    if json:
        print_object(removed._asdict())
    else:
        print_text(f"removed {counted(removed.segments, 'segment')}, {size_shown(removed.bytes)}")


# ---- cat


@_command
def cat(
    path: LogArgument,
    key: KeyOption = None,
    partition: PartitionOption = None,
    start: FromOption = None,
    end: ToOption = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is recorded, until Ctrl-C.")
    ] = False,
    losses: LossesOption = False,
    skip_damage: SkipOption = False,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a sample, as `zenlake sub` has it.")
    ] = False,
) -> None:
    """Show recorded samples as `zenlake sub` shows them, one partition after another.

    Exit status: 0 all was shown, 1 there is no log, or it is damaged, 2 wrong usage, 130 Ctrl-C
    without --follow.

    \b
    Examples:
      zenlake log cat recording -k 'fleet/*/pose' --from -10m
      zenlake log cat recording --follow --from now --json | jq .value
    """
    if follow and end is not None:
        raise typer.BadParameter("--follow goes on until Ctrl-C: leave --until out")
    wanted = LogSelection(path, partition, start, end, key, losses=losses, skip_damage=skip_damage)
    show = _print_object if json else _print_row
    rows = _followed(wanted) if follow else _rows(wanted, count)
    with suppress(KeyboardInterrupt) if follow else nullcontext():
        for number, row in enumerate(rows, 1):
            show(row)
            if number == count:
                break
    wanted.tell_skipped()


def _rows(wanted: LogSelection, count: int | None) -> Iterator[Row]:
    rows = SHOWN_ROWS if count is None else min(count, SHOWN_ROWS)
    for partition in wanted.partitions:
        start, end = wanted.bounds(partition)
        for batch in wanted.batches(partition, start, wanted.end_of(end), rows):
            yield from rows_of(batch)


def _followed(wanted: LogSelection) -> Iterator[Row]:
    """Those there are, and then those that become durable."""
    at = {partition: wanted.bounds(partition)[0] for partition in wanted.partitions}
    while True:
        quiet = True
        for partition, start in at.items():
            end = wanted.bounds(partition)[1]
            if end > start:
                quiet = False
                for batch in wanted.batches(partition, start, end, SHOWN_ROWS):
                    yield from rows_of(batch)
                at[partition] = end
        if quiet:
            time.sleep(FOLLOW_SECONDS)


def _print_row(row: Row) -> None:
    from rich.text import Text

    place = f"{row['partition']}:{row['offset']}  {row['received_at']}  "
    print_text(Text.assemble((place, "dim"), _row_text(row)))


def _row_text(row: Row) -> "Text":
    from rich.text import Text

    if row["kind"] == "loss":
        return Text.assemble(("LOSS", "bold red"), f"  {escape(loss_text(row['loss']))}")
    return sample_text(sample_of(row))


def _print_object(row: Row) -> None:
    said = (
        {"kind": "LOSS", "loss": row["loss"]}
        if row["kind"] == "loss"
        else sample_object(sample_of(row)) | {"reliable": row["reliable"]}
    )
    print_object(said | {name: row[name] for name in ("partition", "offset", "received_at")})


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
        typer.Option("--until", metavar="OFFSET|TIME", help="Where to end, before it."),
    ] = None,
    losses: LossesOption = False,
    skip_damage: SkipOption = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite FILE; it is replaced when all is written.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Write samples to a Parquet, Arrow or MCAP file.

    MCAP has a channel for each key, and the topic @zenlake/deletes for deletes; attachments have no
    place there and are counted.

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
    with _progress("exporting", total) as advance:
        done = exporting.export(
            _exported(wanted, bounds, advance),
            to,
            schema=batch_schema(None, losses=losses),
            overwrite=force,
        )
    seconds = time.monotonic() - began
    wanted.tell_skipped()
    if json:
        print_object({"file": str(to), **done._asdict(), "seconds": round(seconds, 3)})
        return
    print_text(
        f"{counted(done.rows, 'row')} in {escape(str(to))}, {size_shown(done.bytes)}, "
        f"in {duration_shown(seconds)}"
    )
    if done.attachments_left_out:
        attachments = counted(done.attachments_left_out, "attachment")
        print_text(f"without {attachments}: MCAP has no place for them")


def _exported(
    wanted: LogSelection, bounds: dict[int, tuple[int, int]], advance: _Advance
) -> "Iterator[pa.RecordBatch]":
    for number, (start, end) in bounds.items():
        at = start
        for batch in wanted.batches(number, start, wanted.end_of(end), EXPORT_ROWS):
            yield batch
            behind = batch.column("offset")[-1].as_py() + 1
            advance(behind - at)
            at = behind
        advance(max(0, end - at))
