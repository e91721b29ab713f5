"""Samples written down one by one, and what they come to, added up the slow way."""

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from zenlake.lake.project import Project
from zenlake.lake.tables import reduce, schema
from zenlake.lake.tables.definitions import TABLES
from zenlake.lake.tables.delta import DeltaStore

START = datetime(2026, 11, 15, 10, 0, tzinfo=UTC)
MINUTES = 30
ROBOT = "0a" * 16
OTHER = "0b" * 16
STOPPED_AFTER = 10 * 60.0
HOSTILE = (
    "x/</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "quotes/\"'`${window.hacked=1}&lt;",
    "тест/钥匙/😀",
    "turned/\u202egnp.exe",
    "line/\n7\u2028",
    "__proto__/constructor",
)


class Sample(NamedTuple):
    """One that was received: seconds since START, who numbered it, and how long it took."""

    at: float
    key: str
    size: int
    source: tuple[str, int, int] | None = None
    latency: float | None = None
    duplicate: bool = False

    @property
    def minute(self) -> int:
        return int(self.at // 60)


def samples() -> list[Sample]:
    found: list[Sample] = []
    for n in range(MINUTES * 60 * 2):  # twice a second, some numbers never come, some twice
        if n in (100, 101, 2000):
            continue
        latency = 0.002 + (n % 100) * 0.0001
        sample = Sample(n / 2 + 0.1, "robot/1/pose", 40 + n % 7, (ROBOT, 1, n), latency)
        found.append(sample)
        if n in (50, 51, 3001):
            found.append(sample._replace(at=sample.at + 0.2, duplicate=True))
    for n in range(int(STOPPED_AFTER)):  # both stop after ten minutes, and one was deleted
        found.append(Sample(n + 0.3, "robot/2/pose", 64, (OTHER, 7, n), -0.005))
        found.append(Sample(n + 0.4, "robot/3/pose", 64, (OTHER, 8, n), 0.05))
    for n in range(0, MINUTES * 60, 300):
        found.append(Sample(n + 1.0, "robot/1/slow", 1000 + n))
    for n, key in enumerate(HOSTILE):
        found += [Sample(1796.0 + (n + i) / 8, key, 3) for i in range(n + 1)]
    return sorted(found)


def losses() -> list[dict[str, Any]]:
    def lost(seconds: float, kind: str, count: int | None, **more: Any) -> dict[str, Any]:
        empty = dict.fromkeys(schema.LOSS.names)
        at = {"at": START + timedelta(seconds=seconds), "day": date(2026, 11, 15)}
        return empty | at | {"kind": kind, "count": count, "partition": 0, "offset": 1} | more

    return [
        lost(50.5, "source", 2, id=ROBOT, entity=1, first=100, last=101),
        lost(1000.5, "source", 1, id=ROBOT, entity=1, first=2000, last=2000),
        lost(300.0, "lane", 12, id=OTHER, priority=5, reliable=True, first=5, last=16),
        lost(310.0, "lane", 3, id=OTHER, priority=5, reliable=True, first=20, last=22),
        lost(900.0, "link", None, id=OTHER),
        lost(901.0, "dropped", 4),
    ]


def failures() -> list[dict[str, Any]]:
    return [
        dict.fromkeys(schema.MESSAGES_FAILED.names)
        | {
            "key": "robot/1/pose",
            "received_at": START + timedelta(seconds=seconds),
            "decoder": decoder,
            "reason": reason,
            "day": date(2026, 11, 15),
        }
        for seconds, decoder, reason in (
            (5.0, "json", "not JSON: <b>"),
            (6.0, "json", "not JSON: <b>"),
            (1201.0, "protobuf", "no descriptor"),
        )
    ]


def make(home: Path, *, pieces: int = 3) -> Project:
    """A lake with these samples, its health folded from `pieces` parts of them."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "lake.toml").write_text('[lake]\nname = "ledger"\n')
    project = Project.load(home)
    found = samples()
    cuts = [len(found) * n // pieces for n in range(pieces + 1)]
    parts = [reduce.compute_health(_rows(found[a:b])) for a, b in pairwise(cuts)]
    health = reduce.merge_health(pa.concat_tables(parts))
    store = DeltaStore(project.table("health"), TABLES["health"])
    half = START + timedelta(minutes=MINUTES // 2)
    early = pa.compute.less(health["minute"], pa.scalar(half, schema.TIME))
    store.commit(
        [
            store.write_file(health.filter(early)),
            store.write_file(health.filter(pa.compute.invert(early))),
        ]
    )
    put(project, "loss", losses())
    put(project, "messages_failed", failures())
    keys = sorted({sample.key for sample in found} - {"robot/3/pose"})
    put(project, "latest", [{"key": key, "encoding": "text/<i>", "hlc": 1} for key in keys])
    put(project, "tombstones", [{"key": "robot/3/pose", "hlc": 1}])
    return project


def put(project: Project, name: str, rows: list[dict[str, Any]]) -> None:
    table = TABLES[name]
    store = DeltaStore(project.table(name), table)
    store.commit(store.write(pa.Table.from_pylist(rows, table.schema)))


def _rows(found: list[Sample]) -> pa.Table:
    received = [START + timedelta(seconds=sample.at) for sample in found]
    return pa.table(
        {
            "key": [sample.key for sample in found],
            "payload": [b"x" * sample.size for sample in found],
            "source": pa.array(
                [
                    None
                    if sample.source is None
                    else dict(zip(_SOURCE, sample.source, strict=True))
                    for sample in found
                ],
                schema.SOURCE,
            ),
            "timestamp": pa.array(
                [
                    None
                    if sample.latency is None
                    else {"time": at - timedelta(seconds=sample.latency), "ntp64": 0, "id": "aa"}
                    for sample, at in zip(found, received, strict=True)
                ],
                schema.TIMESTAMP,
            ),
            "received_at": pa.array(received, schema.TIME),
            "duplicate": [sample.duplicate for sample in found],
        }
    )


_SOURCE = ("id", "entity", "sn")


class Sums:
    """Sums over the samples of a ledger."""

    def __init__(self, first: int = 0, last: int = MINUTES) -> None:
        every = [sample for sample in samples() if first <= sample.minute < last]
        once = [sample for sample in every if not sample.duplicate]
        self.once = once
        self.samples = len(once)
        self.bytes = sum(sample.size for sample in once)
        self.duplicates = len(every) - len(once)
        self.by_key: dict[str, list[Sample]] = defaultdict(list)
        for sample in once:
            self.by_key[sample.key].append(sample)
        self.per_minute = [0] * (last - first)
        for sample in once:
            self.per_minute[sample.minute - first] += 1

    def numbers(self, source: str, entity: int) -> list[int]:
        return [
            sample.source[2]
            for sample in self.once
            if sample.source and sample.source[:2] == (source, entity)
        ]

    def missing(self, source: str, entity: int) -> int:
        numbers = self.numbers(source, entity)
        return len(set(range(min(numbers), max(numbers) + 1)) - set(numbers))

    def silence(self, key: str) -> float:
        times = [sample.at for sample in self.by_key[key]]
        return max((b - a for a, b in pairwise(times)), default=0.0)

    def latencies(self, key: str | None = None) -> list[float]:
        rows = self.once if key is None else self.by_key[key]
        return sorted(sample.latency for sample in rows if sample.latency is not None)


def rank(values: list[float], share: float) -> float:
    """The value that so much of all lies below or at."""
    at = -(-len(values) * share // 1)
    return values[max(0, int(at) - 1)]
