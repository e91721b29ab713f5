"""Lakes with a known history: events in a log, some of them in tables, and expected answers.

The tables are written by what the stream sink runs in its tasks and in its commit, without Spark.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from zenlake.keyexpr import intersects
from zenlake.lake.project import Project
from zenlake.lake.tables.commit import TableBatch
from zenlake.lake.tables.definitions import LATEST, SAMPLES, TOMBSTONES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.projections import TableWriter, commit_numbered
from zenlake.log.block import OpenBlock, SourceLink
from zenlake.log.read.log import Log
from zenlake.log.read.reader import Reader
from zenlake.log.write.writer import ROTATE_BYTES, Writer
from zenlake.spark.schema import SAMPLE_COLUMNS, to_spark
from zenlake.wire.cursor import ByteWriter as Bytes
from zenlake.wire.delete import Del
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.push import Push, write_push
from zenlake.wire.put import Put
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

FLOW = "samples"
MICROS = 1_000_000


class Event(NamedTuple):
    """A sample as it was put, and when it was received (microseconds)."""

    key: str
    payload: bytes | None
    "None: a delete."
    received: int
    ntp64: int | None = None
    clock: str = "a"
    source: tuple[str, int, int] | None = None
    encoding: str = "zenoh/bytes"
    attachment: bytes | None = None

    @property
    def hlc(self) -> int:
        if self.ntp64 is not None:
            return self.ntp64
        seconds, micros = divmod(self.received, MICROS)
        return seconds << 32 | -(-(micros << 32) // MICROS)


def message(event: Event) -> bytes:
    stamp = (
        None if event.ntp64 is None else WireTimestamp(event.ntp64, WireZenohId.parse(event.clock))
    )
    source = None
    if event.source is not None:
        zid, entity, number = event.source
        source = WireSourceInfo(WireEntityId(WireZenohId.parse(zid), entity), number)
    body: Put | Del = Del(stamp, source, event.attachment)
    if event.payload is not None:
        kind = WireEncoding.parse(event.encoding)
        body = Put(event.payload, stamp, kind, source, event.attachment)
    w = Bytes()
    write_push(w, Push(WireExpr(0, event.key), body))
    return bytes(w.out)


class KnownHistory:
    """Lake with recorded events, of which the tables have a part."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.project = Project.parse('[lake]\nname = "past"\n', home / "lake.toml")
        self.events: dict[int, list[Event]] = {}
        self.samples = DeltaStore(self.project.table("samples"), SAMPLES)
        self.latest = DeltaStore(self.project.table("latest"), LATEST)
        self.tombstones = DeltaStore(self.project.table("tombstones"), TOMBSTONES)
        self._batches = 0

    def record(
        self,
        events: Sequence[Event],
        partition: int = 0,
        block: int = 7,
        rotate_bytes: int = ROTATE_BYTES,
    ) -> None:
        """Append events to the log and make them durable."""
        known = self.events.setdefault(partition, [])
        with Writer(self.project.log, partition, rotate_bytes=rotate_bytes) as writer:
            for at in range(0, len(events), block):
                writer.write([_block(events[at : at + block])])
        known += events

    def table(self, upto: dict[int, int], tables: Iterable[str] = ("samples", "latest")) -> None:
        """Commit one micro-batch, after which the tables have all rows before these offsets."""
        starts = {number: self.samples.offsets().get(number, 0) for number in upto}
        stores = {name: {"samples": self.samples, "latest": self.latest}[name] for name in tables}
        writer = TableWriter(stores, f"query/{self._batches}")
        for number, end in upto.items():
            if end > starts[number]:
                for batch in Reader(Log(self.project.log), number).batches(starts[number], end):
                    writer.add(to_spark(batch, SAMPLE_COLUMNS))
        written = writer.finish()
        if not written.rows:
            return
        for store in stores.values():
            commit_numbered(store, [written], TableBatch(FLOW, "query", self._batches))
        self._batches += 1

    def compact(self, *, vacuum: bool = False) -> None:
        """Merge the files of `samples` to one per day."""
        files = self.samples.snapshot().files
        if len(files) < 2:
            return
        added = self.samples.write(self.samples.read(files))
        self.samples.commit(added, files, {}, data_change=False)
        if vacuum:
            for file in files:
                (self.samples.path / file.path).unlink()

    # ---- expected answers

    def _ordered(self, key_expr: str) -> dict[str, list[tuple[tuple[Any, ...], Event]]]:
        """Return by key the sort key and the event, with only the last of repeated events."""
        found: dict[str, dict[Any, tuple[tuple[Any, ...], Event]]] = {}
        for partition, events in self.events.items():
            for offset, event in enumerate(events):
                if not intersects(key_expr, event.key):
                    continue
                clock = "" if event.ntp64 is None else event.clock
                order = (event.hlc, clock, partition, offset)
                name: Any = (event.hlc, clock, event.source)
                if event.ntp64 is None and event.source is None:
                    name = (partition, offset)
                known = found.setdefault(event.key, {})
                known[name] = max(known.get(name, (order, event)), (order, event))
        return {
            key: sorted(known.values(), key=lambda entry: entry[0]) for key, known in found.items()
        }

    def between(
        self, key_expr: str, low: int, high: int, count: int | None = None
    ) -> dict[str, list[Event]]:
        """Return the expected events by key, in order."""
        found = {}
        for key, known in self._ordered(key_expr).items():
            events = [event for order, event in known if low <= order[0] <= high]
            if events:
                found[key] = events[-count:] if count else events
        return found

    def latest_values(self, key_expr: str) -> dict[str, Event]:
        """Return the expected latest values of keys that were not deleted."""
        last = {key: known[-1][1] for key, known in self._ordered(key_expr).items()}
        return {key: event for key, event in last.items() if event.payload is not None}


def _block(events: Sequence[Event]) -> OpenBlock:
    block = OpenBlock()
    link = block.link(SourceLink(0, 0, b""))
    assert link is not None
    for event in events:
        block.key(link, 0, event.key.encode(), b"")
        block.add(link, True, event.received * 1000, 1, message(event))
    return block


def event_of(row: dict[str, Any]) -> Event:
    """Return the event of a row of History."""
    stamp, source = row["timestamp"], row["source"]
    schema = row["schema"]
    return Event(
        row["key"],
        None if row["kind"] == "delete" else row["payload"] or b"",
        round(row["received_at"].timestamp() * MICROS),
        None if stamp is None else stamp["ntp64"],
        "a" if stamp is None else stamp["id"],
        None if source is None else (source["id"], source["entity"], source["sn"]),
        "zenoh/bytes"
        if row["kind"] == "delete"
        else row["encoding"] + ("" if schema is None else f";{schema}"),
        row["attachment"],
    )


def by_key(batches: Iterable[pa.RecordBatch]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            found.setdefault(row["key"], []).append(event_of(row))
    return found
