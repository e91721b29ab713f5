"""Which part of a log is wanted: the options that say so, and the reading of it.

Knows partitions, offsets and times as users write them. Does not know what is done with samples.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zenlake.cli import quantities, session_options
from zenlake.cli.quantities import Position
from zenlake.cli.render.text import escape
from zenlake.errors import ZError
from zenlake.log import MAX_PARTITION

if TYPE_CHECKING:
    import pyarrow as pa

    from zenlake.log.read.log import Log

NOWHERE = Position(None, None)

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


class LogSelection:
    """What --partition, --from, --until and -k choose of a log."""

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

        self.start = NOWHERE if start is None else quantities.position(start, "--from")
        self.end = NOWHERE if end is None else quantities.position(end, "--until")
        self.key = None if key is None else session_options.key_expr(key)
        self.losses = losses
        self._skip = skip_damage
        self.log = Log(path)
        self.partitions = chosen(self.log, partition)
        for place in (self.start, self.end):
            check_offset(place, self.partitions)
        self.skipped: list[Any] = []

    def bounds(self, partition: int) -> tuple[int, int]:
        """The offsets from where to where."""
        first, mark = self.log.first(partition), self.log.mark(partition).offset
        start, end = self.start.offset, self.end.offset  # a clock may have been set back:
        if self.start.time is not None:  # later samples may still be from before --until
            start = self.log.offset_at(partition, self.start.time)
        return first if start is None else start, mark if end is None else min(end, mark)

    def end_of(self, end: int) -> int | None:
        """None if there is no --until: then losses behind the last sample are read as well."""
        return None if self.end == NOWHERE else end

    def batches(
        self, partition: int, start: int, end: int | None, max_rows: int
    ) -> "Iterator[pa.RecordBatch]":
        """Samples of an offset range; times of --from and --until are exact as well."""
        from zenlake.log.read.reader import SKIP, Reader

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
            raise ZError(str(error).replace(SKIP, "--skip-damage")) from None
        finally:
            self.skipped += reader.skipped

    def tell_skipped(self) -> None:
        for damage in self.skipped:
            typer.echo(f"passed over {escape(str(damage))}", err=True)


def chosen(opened: "Log", partition: int | None) -> list[int]:
    there = opened.partitions()
    if partition is None:
        return there
    if partition not in there:
        raise typer.BadParameter(f"--partition {partition}: there are {numbers(there)}")
    return [partition]


def check_offset(place: Position, partitions: list[int]) -> None:
    if place.offset is not None and len(partitions) > 1:
        raise typer.BadParameter(f"an offset needs --partition: there are {numbers(partitions)}")


def numbers(partitions: list[int]) -> str:
    return f"partitions {', '.join(map(str, partitions))}" if partitions else "none"
