"""The part of a log that options select, and how it is read.

Knows partitions, offsets and times as users write them. Does not know what samples are read for.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zenlake.cli import quantities, session_options
from zenlake.cli.options import json_option
from zenlake.cli.quantities import NOWHERE, Position
from zenlake.cli.render.text import escape
from zenlake.errors import ZError
from zenlake.log import MAX_PARTITION

if TYPE_CHECKING:
    import pyarrow as pa

    from zenlake.log.read.log import Log

LogArgument = Annotated[Path, typer.Argument(metavar="LOG", help="Folder of the recording.")]
JsonOption = Annotated[bool, json_option("Print JSON instead of text.")]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", "-k", metavar="KEYEXPR", help="Only samples whose key it matches."),
]
PartitionOption = Annotated[
    int | None,
    typer.Option("--partition", metavar="N", min=0, max=MAX_PARTITION, help="Only this partition."),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="OFFSET|TIME",
        help="First sample: 1500, 2026-11-15T10:00:00Z, -1h (an hour ago) or now.",
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option("--until", "--to", metavar="OFFSET|TIME", help="End before this offset or time."),
]
LossesOption = Annotated[bool, typer.Option("--losses", help="Also show records of lost samples.")]
SkipOption = Annotated[
    bool,
    typer.Option("--skip-damage", help="Skip damaged blocks, and list them at the end."),
]


class LogSelection:
    """Part of a log that --partition, --from, --until and -k select."""

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
        from zenlake.log.read.log import Log

        self.start = quantities.position(start, "--from")
        self.end = quantities.position(end, "--until")
        self.key = None if key is None else session_options.check_key_expr(key)
        self.losses = losses
        self._skip = skip_damage
        self.log = Log(path)
        self.partitions = choose_partitions(self.log, partition)
        for place in (self.start, self.end):
            check_offset(place, self.partitions)
        self.skipped: list[Any] = []

    def bounds(self, partition: int) -> tuple[int, int]:
        """Return the first offset, and the offset after the last."""
        first, mark = self.log.first(partition), self.log.mark(partition).offset
        start, end = self.start.offset, self.end.offset
        # A time in --until gives no end offset: a clock that was set back may make later samples
        # older than it.
        if self.start.time is not None:
            start = self.log.offset_at(partition, self.start.time)
        return first if start is None else start, mark if end is None else min(end, mark)

    def end_of(self, end: int) -> int | None:
        """Return `end`, or None without --until: losses after the last sample are then read too."""
        return None if self.end == NOWHERE else end

    def batches(
        self, partition: int, start: int, end: int | None, max_rows: int
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the samples of an offset range, and only those between the times of the options."""
        from zenlake.log.read.reader import Reader

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
        except ZError as error:
            raise name_skip_option(error) from None
        finally:
            self.skipped += reader.skipped


def name_skip_option(error: ZError) -> ZError:
    """Return the error of a damaged log with the option's name in place of the argument's."""
    from zenlake.log.read.reader import SKIP

    return ZError(str(error).replace(SKIP, "--skip-damage"))


def print_skipped(skipped: Iterable[object]) -> None:
    """List damage that was skipped on standard error."""
    for damage in skipped:
        typer.echo(f"passed over {escape(str(damage))}", err=True)


def choose_partitions(opened: "Log", partition: int | None) -> list[int]:
    """Return the partitions of --partition: that one, or all."""
    partitions = opened.partitions()
    if partition is None:
        return partitions
    if partition not in partitions:
        there = format_numbers(partitions)
        raise typer.BadParameter(f"--partition {partition}: there are {there}")
    return [partition]


def check_offset(place: Position, partitions: list[int]) -> None:
    """Refuse an offset where several partitions are read."""
    if place.offset is not None and len(partitions) > 1:
        raise typer.BadParameter(
            f"an offset needs --partition: there are {format_numbers(partitions)}"
        )


def format_numbers(partitions: list[int]) -> str:
    """Return "partitions 0, 1" or "none"."""
    return f"partitions {', '.join(map(str, partitions))}" if partitions else "none"
