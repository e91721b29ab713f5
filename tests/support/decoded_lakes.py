"""Lakes whose `samples` and `messages` are written as two flows would, from one log, without Spark.

Each flow has its own position and its own micro-batches; repeats are found as the pipeline finds
them.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.support.known_histories import MICROS, Event, KnownHistory
from tests.support.lake_rows import T0
from zenlake.lake.decoders import Decoders
from zenlake.lake.decoders.messages import INPUT, OUTPUT, MessageDecoder
from zenlake.lake.project import Project
from zenlake.lake.tables.commit import TableBatch
from zenlake.lake.tables.definitions import MESSAGES, MESSAGES_FAILED
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.projections import TableWriter, commit_numbered
from zenlake.lake.tables.reduce import conform
from zenlake.log.read.log import Log
from zenlake.log.read.reader import Reader
from zenlake.spark.duplicates import DuplicateFinder
from zenlake.spark.schema import SAMPLE_COLUMNS, to_spark

QUERY = "6f1c"
FAILING = '[[decoders]]\nkey = "**"\nuse = "number"\ntype = "int64"\n'
"A rule by which no payload of `json_event` can be decoded."


def json_event(number: int, at: float | None = None, source: str | None = None) -> Event:
    """Return a put of JSON on one of four keys, received `at` seconds after T0."""
    received = T0 * MICROS + round((number if at is None else at) * MICROS)
    name = None if source is None else (source, 1, number)
    key, text = f"robot/{number % 4}", b'{"number": %d}' % number
    return Event(key, text, received, source=name, encoding="application/json")


class DecodedLake(KnownHistory):
    """Lake with a flow `samples` and a flow `messages`."""

    def __init__(self, home: Path, rules: str = "", settings: str = "") -> None:
        super().__init__(home)
        self.configure(rules, settings)
        self.messages = DeltaStore(self.project.table("messages"), MESSAGES)
        self.failed = DeltaStore(self.project.table("messages_failed"), MESSAGES_FAILED)
        self._finders = {flow: DuplicateFinder(self.within) for flow in ("samples", "messages")}
        self._at: dict[str, dict[int, int]] = {"samples": {}, "messages": {}}
        self._number = {"samples": 0, "messages": 0}

    @property
    def within(self) -> float:
        return self.project.duplicates_within

    def configure(self, rules: str = "", settings: str = "") -> None:
        """Write a lake.toml with these rules of decoders."""
        path = self.project.home / "lake.toml"
        path.write_text(f'[lake]\nname = "past"\n{settings}\n{rules}')
        self.project = Project.load(path)

    def end(self) -> dict[int, int]:
        """Return the end of each partition of the log."""
        log = Log(self.project.log)
        return {number: log.mark(number).offset for number in log.partitions()}

    def take(self, flow: str, upto: dict[int, int] | None = None, tables: int = 2) -> None:
        """Run one micro-batch of a flow; only the first `tables` of it get their commit."""
        upto = self.end() if upto is None else upto
        before = self._at[flow]
        ranges = {p: (before.get(p, 0), end) for p, end in upto.items()}
        log = Log(self.project.log)
        repeats = self._finders[flow].find(log, ranges)
        stores = (
            {"samples": self.samples}
            if flow == "samples"
            else {"messages": self.messages, "messages_failed": self.failed}
        )
        writer = TableWriter(stores, f"{flow}/{self._number[flow]}")
        decoder = MessageDecoder(Decoders(self.project.decoders, self.project.home))
        for partition, (low, high) in sorted(ranges.items()):
            if low == high:
                continue
            for batch in Reader(log, partition).batches(low, high):
                rows = to_spark(batch, SAMPLE_COLUMNS)
                again = np.isin(rows.column("offset").to_numpy(), repeats.get(partition, []))
                if flow == "samples":
                    writer.add(rows.append_column("duplicate", pa.array(again)))
                    continue
                kept = pa.Table.from_batches([rows.filter(pa.array(~again))])
                puts = kept.filter(pa.compute.equal(kept["kind"], "put"))
                for piece in decoder.decode(conform(puts, INPUT)).to_batches():
                    writer.add(conform(piece, OUTPUT).to_batches()[0])
        written = writer.finish()
        batch_of = TableBatch(flow, QUERY, self._number[flow])
        for store in [*stores.values()][:tables] if written.rows else ():
            commit_numbered(store, [written], batch_of)
        self._at[flow] = {**before, **upto}
        self._number[flow] += 1

    def checkpoint(self, completed: bool = True) -> None:
        """Write Spark's checkpoint of the last micro-batch of the flow `messages`."""
        number = self._number["messages"] - 1
        write_checkpoint(self.project, "messages", number, self._at["messages"], completed)

    def tables(self) -> dict[str, pa.Table]:
        """Return all rows of both decoded tables in the order of the log."""
        return {store.table.name: in_order(store) for store in self.stores()}

    def stores(self) -> tuple[DeltaStore, DeltaStore]:
        """Return both decoded tables as they are now on the disk."""
        return (
            DeltaStore(self.project.table("messages"), MESSAGES),
            DeltaStore(self.project.table("messages_failed"), MESSAGES_FAILED),
        )


def write_checkpoint(
    project: Project, flow: str, number: int, ends: dict[int, int], completed: bool = True
) -> None:
    """Write what Spark leaves of the micro-batch `number` of a flow, which ends at `ends`."""
    folder = project.state / "_checkpoints" / flow / "0"
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    partitions = {str(partition): at for partition, at in ends.items()}
    line = json.dumps({"log": Log(project.log).id, "partitions": partitions})
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    (folder / "offsets" / str(number)).write_text(f"v1\n{{}}\n{line}\n")
    if completed:
        (folder / "commits" / str(number)).write_text("v1\n{}")


def in_order(store: DeltaStore) -> pa.Table:
    found = store.read()
    return found.sort_by([("partition", "ascending"), ("offset", "ascending")]).combine_chunks()


def from_scratch(lake: DecodedLake, home: Path, **upto: Any) -> dict[str, pa.Table]:
    """Return the tables that the flow makes of the whole log by the present rules of `lake`."""
    other = DecodedLake(home)
    other.project = Project.parse(
        (lake.project.home / "lake.toml")
        .read_text()
        .replace('name = "past"', f'name = "past"\nlog = "{lake.project.log}"'),
        home / "lake.toml",
    )
    other.take("messages", **upto)
    return other.tables()
