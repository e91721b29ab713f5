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

from zenlake.cli import connecting, quantities
from zenlake.cli.quantities import Position, duration_shown, size_shown
from zenlake.cli.rows import Row, loss_text, rows_of, sample_of
from zenlake.cli.samples import console, print_object, print_text, sample_object, sample_text
from zenlake.cli.text import escape
from zenlake.errors import ZError

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.text import Text

    from zenlake.log.log import Log, PartitionReport

MAX_PARTITION = (1 << 31) - 1
FOLLOW_SECONDS = 0.1  # between two looks at how far a log is durable
MAX_ROWS = 4096  # of one batch that is shown, as each becomes an object
EXPORT_ROWS = 65_536  # of one batch that is exported

log = typer.Typer(
    help="Look at a recording, check it, and get samples out of it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

LogArgument = Annotated[Path, typer.Argument(metavar="LOG", help="The folder of a recording.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", "-k", metavar="KEYEXPR", help="Only keys that this matches."),
]
PartitionOption = Annotated[
    int | None,
    typer.Option("--partition", metavar="N", min=0, max=MAX_PARTITION, help="Only this one."),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="OFFSET|TIME",
        help="Where to start: 1500, 2026-11-15T10:00:00Z, -1h (before now) or now.",
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option("--until", "--to", metavar="OFFSET|TIME", help="Where to end, before it."),
]
LossesOption = Annotated[
    bool, typer.Option("--losses", help="Also what is known to be missing, where it is.")
]
SkipOption = Annotated[
    bool,
    typer.Option("--skip-damage", help="Pass over what is damaged, and name it at the end."),
]


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Registered; what goes wrong is said in one line, and is status 1."""

    @wraps(function)
    def run(**given: Any) -> None:
        try:
            function(**given)
        except ZError as error:
            connecting.fail(f"log {function.__name__}", error)

    log.command()(run)
    return run


class _Range:
    """Which part of a log is wanted: the options --partition, --from, --to and -k."""

    def __init__(
        self,
        path: Path,
        partition: int | None,
        start: str | None,
        end: str | None,
        key: str | None,
        *,
        losses: bool,
        skip_damage: bool,
    ) -> None:
        from zenlake.log.log import Log

        nowhere = Position(None, None)
        self.start = nowhere if start is None else quantities.position(start, "--from")
        self.end = nowhere if end is None else quantities.position(end, "--to")
        self.key = None if key is None else connecting.key_expr(key)
        self.losses = losses
        self._skip = skip_damage
        self.log = Log(path)
        self.partitions = _chosen(self.log, partition)
        for place in (self.start, self.end):
            _check_offset(place, self.partitions)
        self.skipped: list[Any] = []

    def bounds(self, partition: int) -> tuple[int, int]:
        """The offsets from where to where."""
        first, mark = self.log.first(partition), self.log.mark(partition).offset
        start, end = self._offset(partition, self.start), self._offset(partition, self.end)
        return first if start is None else start, mark if end is None else min(end, mark)

    def end_of(self, end: int) -> int | None:
        """None if there is no --until: then losses behind the last sample are read as well."""
        return None if self.end == Position(None, None) else end

    def _offset(self, partition: int, place: Position) -> int | None:
        if place.time is not None:
            return self.log.offset_at(partition, place.time)
        return place.offset

    def batches(
        self, partition: int, start: int, end: int | None, max_rows: int = MAX_ROWS
    ) -> "Iterator[pa.RecordBatch]":
        """Samples of an offset range; times of --from and --until are exact as well."""
        from zenlake.log.reader import Reader

        reader = Reader(self.log, partition)
        try:
            yield from reader.batches(
                start,
                end,
                start_time=self.start.time,
                end_time=self.end.time,
                key_expr=self.key,
                max_rows=max_rows,
                losses=self.losses,
                on_damage="skip" if self._skip else "raise",
            )
        finally:
            self.skipped += reader.skipped

    def tell_skipped(self) -> None:
        for damage in self.skipped:
            typer.echo(f"passed over {escape(str(damage))}", err=True)


def _chosen(opened: "Log", partition: int | None) -> list[int]:
    there = opened.partitions()
    if partition is None:
        return there
    if partition not in there:
        raise typer.BadParameter(f"--partition {partition}: there are {_numbers(there)}")
    return [partition]


def _check_offset(place: Position, partitions: list[int]) -> None:
    if place.offset is not None and len(partitions) > 1:
        raise typer.BadParameter(f"an offset needs --partition: there are {_numbers(partitions)}")


def _numbers(partitions: list[int]) -> str:
    return f"partitions {', '.join(map(str, partitions))}" if partitions else "none"


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
    from zenlake.cli.loginfo import facts_of, table_of
    from zenlake.log.log import Log

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
    from zenlake.log.log import Log

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
        raise typer.Exit(connecting.FAILURE)


def _print_report(one: "PartitionReport") -> None:
    offsets = f"offsets {one.first:,} to {one.end - 1:,}" if one.end > one.first else "no offsets"
    print_text(
        f"partition {one.partition}: {offsets}, {one.samples:,} samples and {one.losses:,} losses "
        f"in {one.blocks:,} blocks, {one.segments:,} segments, {size_shown(one.bytes)}: "
        + (f"DAMAGED in {len(one.damage):,} places" if one.damage else "whole")
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
    from zenlake.log.log import Log

    if before is None and keep is None:
        raise typer.BadParameter("say what goes: --before or --keep")
    place = Position(None, None) if before is None else quantities.position(before, "--before")
    size = None if keep is None else quantities.size(keep, "--keep")
    opened = Log(path)
    chosen = _chosen(opened, partition)
    _check_offset(place, chosen)
    try:
        removed = opened.trim(
            before_offset=place.offset,
            before_time=place.time,
            keep_bytes=size,
            partition=partition,
        )
    except OSError as error:
        raise ZError(f"{path}: {error.strerror}: may this user write there?") from None
    if json:
        print_object(removed._asdict())
    else:
        print_text(f"removed {removed.segments:,} segments, {size_shown(removed.bytes)}")


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
    wanted = _Range(path, partition, start, end, key, losses=losses, skip_damage=skip_damage)
    show = _print_object if json else _print_row
    rows = _followed(wanted) if follow else _rows(wanted, count)
    with suppress(KeyboardInterrupt) if follow else nullcontext():
        for number, row in enumerate(rows, 1):
            show(row)
            if number == count:
                break
    wanted.tell_skipped()


def _rows(wanted: _Range, count: int | None) -> Iterator[Row]:
    rows = MAX_ROWS if count is None else min(count, MAX_ROWS)
    for partition in wanted.partitions:
        start, end = wanted.bounds(partition)
        for batch in wanted.batches(partition, start, wanted.end_of(end), rows):
            yield from rows_of(batch)


def _followed(wanted: _Range) -> Iterator[Row]:
    """Those there are, and then those that become durable."""
    at = {partition: wanted.bounds(partition)[0] for partition in wanted.partitions}
    while True:
        quiet = True
        for partition, start in at.items():
            end = wanted.bounds(partition)[1]
            if end > start:
                quiet = False
                for batch in wanted.batches(partition, start, end):
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
    from zenlake.log.reader import batch_schema

    wanted = _Range(path, partition, start, end, key, losses=losses, skip_damage=skip_damage)
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
        f"{done.rows:,} rows in {escape(str(to))}, {size_shown(done.bytes)}, "
        f"in {duration_shown(seconds)}"
    )
    if done.attachments_left_out:
        print_text(
            f"without {done.attachments_left_out:,} attachments, which MCAP has no place for"
        )


def _exported(
    wanted: _Range, bounds: dict[int, tuple[int, int]], advance: _Advance
) -> "Iterator[pa.RecordBatch]":
    for number, (start, end) in bounds.items():
        at = start
        for batch in wanted.batches(number, start, wanted.end_of(end), EXPORT_ROWS):
            yield batch
            behind = batch.column("offset")[-1].as_py() + 1
            advance(behind - at)
            at = behind
        advance(max(0, end - at))
