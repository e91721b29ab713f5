"""Rows of the log in Spark's form, made by hand, for tests of the tables."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from zenlake.lake.tables import schema
from zenlake.lake.tables.projections import RowChunk
from zenlake.lake.tables.reduce import conform

T0 = 1_790_000_000  # seconds: 2026-09-21 14:13:20 UTC


@dataclass(frozen=True)
class Row:
    """One sample; times in microseconds after T0."""

    key: str
    offset: int
    partition: int = 0
    received: int = 0
    stamp: int | None = None
    clock: str = "a1"
    delete: bool = False
    payload: bytes = b"x"
    source: tuple[str, int, int] | None = None
    duplicate: bool = False

    @property
    def received_at(self) -> int:
        return T0 * 1_000_000 + self.received

    @property
    def sent_at(self) -> int | None:
        return None if self.stamp is None else T0 * 1_000_000 + self.stamp

    @property
    def hlc(self) -> int:
        """HLC time by its definition, in Python integers."""
        time = self.received_at if self.sent_at is None else self.sent_at
        return ntp64(time)

    @property
    def version(self) -> tuple[int, str, int, int]:
        """Sort key by which rows of a key are newer or older."""
        return self.hlc, self.clock if self.stamp is not None else "", self.partition, self.offset


def ntp64(microseconds: int) -> int:
    seconds, rest = divmod(microseconds, 1_000_000)
    return (seconds << 32) + -(-(rest << 32) // 1_000_000)


def as_rows(rows: Iterable[Row], marked: bool = False) -> pa.Table:
    """Return rows as format("zenoh") does, with the column `duplicate` if `marked`."""
    rows = list(rows)
    made = [
        {
            "key": row.key,
            "kind": "delete" if row.delete else "put",
            "payload": None if row.delete else row.payload,
            "encoding": "zenoh/bytes",
            "timestamp": None
            if row.sent_at is None
            else {"time": row.sent_at, "ntp64": ntp64(row.sent_at), "id": row.clock},
            "source": None
            if row.source is None
            else dict(zip(("id", "entity", "sn"), row.source, strict=True)),
            "priority": 5,
            "congestion_control": "drop",
            "express": False,
            "reliable": True,
            "received_at": row.received_at,
            "partition": row.partition,
            "offset": row.offset,
        }
        for row in rows
    ]
    table = pa.Table.from_pylist(made, schema.SAMPLE)
    if marked:
        table = table.append_column(
            "duplicate", pa.array([row.duplicate for row in rows], pa.bool_())
        )
    return table


def as_samples(rows: pa.Table) -> pa.Table:
    """Return what the sink writes into `samples` of these rows, columns they lack being null."""
    known = rows.column_names
    missing = pa.schema([field for field in schema.SAMPLE if field.name not in known])
    for field, column in zip(missing, conform(rows, missing).columns, strict=True):
        rows = rows.append_column(field, column)
    return RowChunk(rows).unique_samples
