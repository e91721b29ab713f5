"""Expected content of the tables, computed sample by sample, and its comparison with the tables.

The samples are those of the publishers; only their positions and receive times come from the log.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import VariantVal

from tests.support.lake_publishers import ExpectedSample, LedgerPublisher
from tests.support.log_recording import lost, rows
from zenlake.wire.zenohid import WireZenohId

Row = dict[str, Any]
Source = tuple[str, int, int] | None
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = 60_000_000  # Microseconds.
PARTITIONS = (0, 1)


def table(path: Path) -> pa.Table:
    """All rows, as any other reader of Delta sees them."""
    from deltalake import DeltaTable

    return pa.table(DeltaTable(path).to_pyarrow_table())


def same_rows(first: Path, other: Path) -> None:
    """Both tables have the same rows, whatever files they are in."""
    left, right = (Counter(map(repr, table(path).to_pylist())) for path in (first, other))
    assert left == right, f"{first} and {other}: {list((left - right) + (right - left))[:3]}"


class Account:
    """Expected rows of all publishers, and of samples without number and timestamp."""

    def __init__(
        self, log: Path, publishers: Sequence[LedgerPublisher], plain: Sequence[ExpectedSample]
    ) -> None:
        self.said: list[tuple[ExpectedSample, Source]] = [
            (sample, (*publisher.sources[sample.source[0]], sample.source[1]))
            for publisher in publishers
            for sample in publisher.account.values()
            if sample.source is not None
        ]
        self.said += [(sample, None) for sample in plain]
        self.gaps = set().union(*(publisher.gaps for publisher in publishers))
        self.log = {partition: rows(log, partition) for partition in PARTITIONS}
        self._path = log
        self.first: list[Row] = []
        "Rows of the log that repeat no earlier row."
        self.repeats: list[Row] = []
        "Rows of the log that repeat an earlier row."
        seen: set[Source] = set()
        for row in (row for partition in PARTITIONS for row in self.log[partition]):
            source = source_of(row)
            (self.repeats if source in seen else self.first).append(row)
            if source is not None:
                seen.add(source)

    # ---- one table after the other

    def check(self, tables: Path) -> None:
        """AssertionError: a table does not hold what it has to, and what is wrong with it."""
        self.check_samples(table(tables / "samples").to_pylist())
        self.check_latest(
            table(tables / "latest").to_pylist(), table(tables / "tombstones").to_pylist()
        )
        self.check_loss(table(tables / "loss").to_pylist())
        self.check_messages(
            table(tables / "messages").to_pylist(), table(tables / "messages_failed").to_pylist()
        )
        self.check_health(table(tables / "health").to_pylist())

    def check_samples(self, found: list[Row]) -> None:
        same(map(told, found), (expected(said, source) for said, source in self.said))
        same(map(pointer_to, found), map(pointer_to, self.first))

    def check_latest(self, living: list[Row], dead: list[Row]) -> None:
        best: dict[str, tuple[ExpectedSample, Source]] = {}
        for said, source in self.said:  # of equal ones the later wins
            before = best.get(said.key)
            if before is None or order(before[0]) <= order(said):
                best[said.key] = said, source
        puts = [pair for pair in best.values() if pair[0].payload is not None]
        same(map(told, living), (expected(*pair) for pair in puts))
        gone = [said for said, _ in best.values() if said.payload is None]
        same(
            ((row["key"], *stamp_of(row)) for row in dead),
            ((said.key, *order(said)) for said in gone),
        )

    def check_loss(self, found: list[Row]) -> None:
        recorded = [
            (number, loss)
            for number in PARTITIONS
            for loss in lost(self._path, number)
            if loss.offset
            < len(self.log[number])  # what is behind the last sample comes with the next
        ]
        names = ("partition", "offset", "kind", "first", "last", "count", "id", "entity")
        same(
            (tuple(row[name] for name in names) for row in found),
            (
                (
                    *(number, loss.offset, loss.kind, loss.first, loss.last),
                    None if loss.missing < 0 else loss.missing,
                    str(WireZenohId(loss.id)) if loss.id else None,
                    loss.entity,
                )
                for number, loss in recorded
            ),
        )
        gaps = {
            (row["id"], row["entity"], row["first"], row["last"])
            for row in found
            if row["kind"] == "source"
        }
        assert gaps == self.gaps

    def check_messages(self, found: list[Row], failed: list[Row]) -> None:
        good, bad = [], []
        for said, source in self.said:
            if said.payload is None or said.encoding == "zenoh/bytes":
                continue
            try:
                good.append((said.key, source, DECODED[said.encoding](said.payload)))
            except ValueError:
                bad.append((said.key, source, said.payload))
        same(((row["key"], source_of(row), value_of(row)) for row in found), good)
        same(((row["key"], source_of(row), row["payload"]) for row in failed), bad)
        assert all(row["reason"] for row in failed)
        assert good
        assert bad

    def check_health(self, found: list[Row]) -> None:
        groups: dict[Any, list[Row]] = defaultdict(list)
        for row in self.first:
            groups[group_of(row)].append(row)
        repeats = Counter(group_of(row) for row in self.repeats)
        names = ("count", "bytes", "duplicates", "first_sn", "last_sn", "gaps")
        wanted = []
        for group in groups.keys() | repeats.keys():
            mine = groups.get(group, [])
            numbers = [row["source"]["sn"] for row in mine if row["source"]]
            span: tuple[Any, Any] = (None, None)
            missing: int | None = None
            if numbers:
                span = min(numbers), max(numbers)
                missing = max(numbers) - min(numbers) + 1 - len(numbers)
            size = sum(len(row["payload"] or b"") for row in mine)
            wanted.append((group, len(mine), size, repeats[group], *span, missing))
        same(
            (
                (
                    (
                        int(row["minute"].timestamp()) // 60,
                        *(row[name] for name in ("key", "source_id", "entity")),
                    ),
                    *(row[name] for name in names),
                )
                for row in found
            ),
            wanted,
        )
        assert sum(row["count"] for row in found) == len(self.said)
        assert sum(row["duplicates"] for row in found) == len(self.repeats) > 0


# ---- rows and accounts in the same words


def text_of(payload: bytes) -> str:
    return payload.decode()


DECODED: dict[str, Callable[[bytes], Any]] = {
    "application/json": lambda payload: tuple(sorted(json.loads(payload).items())),
    "application/json;fleet.Pose": lambda payload: tuple(sorted(json.loads(payload).items())),
    "text/plain": text_of,
    "zenoh/string": text_of,
}


def value_of(row: Row) -> Any:
    value = VariantVal(row["value"]["value"], row["value"]["metadata"]).toPython()
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


def order(said: ExpectedSample) -> tuple[int | None, str | None]:
    """Return the order that decides the newest of a key; without timestamps the last one is."""
    return (None, None) if said.stamp is None else (said.ntp64, said.stamp[1])


def stamp_of(row: Row) -> tuple[int | None, str | None]:
    stamp = row["timestamp"]
    return (None, None) if stamp is None else (stamp["ntp64"], stamp["id"])


def source_of(row: Row) -> Source:
    source = row["source"]
    return None if source is None else (source["id"], source["entity"], source["sn"])


def told(row: Row) -> Hashable:
    encoding, schema = row["encoding"], row["schema"]
    return (
        *(row[name] for name in ("key", "kind", "payload", "attachment")),
        encoding if schema is None else f"{encoding};{schema}",
        *stamp_of(row),
        source_of(row),
    )


def expected(said: ExpectedSample, source: Source) -> Hashable:
    kind = "delete" if said.payload is None else "put"
    return (
        *(said.key, kind, said.payload, said.attachment, said.encoding),
        *order(said),
        source,
    )


def pointer_to(row: Row) -> Hashable:
    """Which of the rows of the log it is."""
    return row["partition"], row["offset"], row["key"], source_of(row), moment_of(row)


def moment_of(row: Row) -> int:
    """Of its reception, in microseconds."""
    found: int = (row["received_at"] - EPOCH) // timedelta(microseconds=1)
    return found


def group_of(row: Row) -> Hashable:
    source = source_of(row)
    return moment_of(row) // MINUTE, row["key"], *((None, None) if source is None else source[:2])


def same(found: Iterable[Hashable], wanted: Iterable[Hashable]) -> None:
    """Check that both have equal elements, each as often, in any order."""
    left, right = Counter(found), Counter(wanted)
    too_many, missing = left - right, right - left
    assert left == right, (
        f"{too_many.total()} too many, such as {[*too_many][:3]}; "
        f"{missing.total()} missing, such as {[*missing][:3]}; of {right.total()}"
    )
