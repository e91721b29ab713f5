"""The fleet's ledger held against the tables: what was sent, is there, is known to be lost.

Knows both. Reads the tables without Spark.
"""

import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.lake.project import Project
from zenlake.lake.tables.definitions import TABLES
from zenlake.lake.tables.delta import DeltaStore

Ledger = dict[str, Any]
DECODED = ("application/json", "text/plain")


class Check(NamedTuple):
    """Something that must be so."""

    what: str
    expected: int
    found: int

    @property
    def holds(self) -> bool:
        return self.expected == self.found


class Balance(NamedTuple):
    """One publisher: what was sent of it, and where that is."""

    key: str
    sent: int
    held: int
    lost: int
    "Numbers that the recorder missed, and says so."
    tail: int
    "Numbers after the last that came: only the sender knows of them."

    @property
    def accounted(self) -> int:
        return self.held + self.lost + self.tail


class RobotFigures(NamedTuple):
    """One robot, by both."""

    number: int
    sent: int
    held: int
    lost: int
    tail: int
    repeated: int
    latency: float
    "Seconds, the median; holds the difference of two clocks."
    silent: float
    "Seconds, from its last sample to the last of anybody."


class Account(NamedTuple):
    checks: list[Check]
    robots: list[RobotFigures]
    rows: dict[str, int]
    payload: int
    losses: dict[str, int]
    "Records of loss, by kind."

    @property
    def balanced(self) -> bool:
        return all(check.holds for check in self.checks)


def account(project: Project, ledger: Ledger) -> Account:
    tables = {name: _read(project, name) for name in TABLES}
    held = _held(tables["samples"])
    lost = _lost(tables["loss"])
    voices, tasks = ledger["voices"], ledger["tasks"]
    numbered = {key: held.get((one["source"], one["entity"]), {}) for key, one in voices.items()}
    finished = [task["key"] for task in tasks if task["finished"]]
    begun = {task["key"]: task["payload"] for task in tasks if not task["finished"]}
    last = {key: one["last"] for key, one in voices.items() if one["sent"]} | begun
    broken = sum(one["broken"] for one in voices.values())
    readable = sum(len(numbered[key]) for key, one in voices.items() if one["encoding"] in DECODED)
    balance = [
        Balance(key, len(one["sent"]), len(numbered[key]), *_missing(one, numbered[key], lost))
        for key, one in voices.items()
    ]
    checks = [
        Check(
            "numbered samples sent = in `samples` + counted as lost",
            sum(one.sent for one in balance),
            sum(one.accounted for one in balance),
        ),
        Check(
            "publishers for which that holds one by one",
            len(voices),
            sum(one.sent == one.accounted for one in balance),
        ),
        Check(
            "samples lost at the end of a link that loses none",
            0,
            sum(one.tail for one in balance if _robot(one.key) != ledger["lossy"]),
        ),
        Check(
            "payloads that are, byte for byte, what was sent",
            sum(map(len, numbered.values())),
            sum(_same(one, numbered[key]) for key, one in voices.items()),
        ),
        Check(
            "rows of `samples`: nothing twice, nothing else",
            sum(map(len, numbered.values())) + len(tasks) + len(finished),
            tables["samples"].num_rows,
        ),
        Check(
            "repeats recognised",
            sum(one["repeated"] for one in voices.values()),
            _sum(tables["health"]["duplicates"]),
        ),
        Check(
            "samples counted by `health`",
            tables["samples"].num_rows,
            _sum(tables["health"]["count"]),
        ),
        Check("keys alive in `latest`", len(last), tables["latest"].num_rows),
        Check(
            "of these with the last value sent",
            len(last) - sum(one.tail > 0 for one in balance),
            _with_last(tables["latest"], last),
        ),
        Check("keys in `tombstones`", len(finished), tables["tombstones"].num_rows),
        Check("payloads decoded", readable - broken + len(tasks), tables["messages"].num_rows),
        Check("payloads that could not be", broken, tables["messages_failed"].num_rows),
    ]
    return Account(
        checks,
        _robots(ledger, tables["samples"], balance),
        {name: table.num_rows for name, table in tables.items()},
        _sum(pc.binary_length(tables["samples"]["payload"])),
        Counter(tables["loss"]["kind"].to_pylist()),
    )


def _read(project: Project, name: str) -> pa.Table:
    store = DeltaStore(project.table(name), TABLES[name])
    return store.read()


def _sum(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column).as_py() or 0)


def _held(samples: pa.Table) -> dict[tuple[str, int], dict[int, int]]:
    """By source, of each number, the CRC-32 of its payload."""
    found: dict[tuple[str, int], dict[int, int]] = {}
    for source, payload in zip(samples["source"], samples["payload"], strict=True):
        who = source.as_py()
        if who is not None:
            mine = found.setdefault((who["id"], who["entity"]), {})
            mine[who["sn"]] = zlib.crc32(payload.as_buffer())
    return found


def _lost(loss: pa.Table) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for row in loss.select(["kind", "id", "entity", "count"]).to_pylist():
        if row["kind"] == "source":
            found[row["id"], row["entity"]] += row["count"]
    return found


def _missing(
    voice: Ledger, numbers: Iterable[int], lost: Counter[tuple[str, int]]
) -> tuple[int, int]:
    """How many the recorder says are lost, and how many after the last that came."""
    tail = len(voice["sent"]) - 1 - max(numbers, default=-1)
    return lost[voice["source"], voice["entity"]], tail


def _same(voice: Ledger, held: dict[int, int]) -> int:
    sent = voice["sent"]
    return sum(number < len(sent) and sent[number][0] == crc for number, crc in held.items())


def _with_last(latest: pa.Table, last: dict[str, str | None]) -> int:
    """None is a payload that the ledger does not keep."""
    found = 0
    for key, payload in zip(latest["key"].to_pylist(), latest["payload"].to_pylist(), strict=True):
        found += key in last and last[key] in (None, payload.decode(errors="replace"))
    return found


def _robots(ledger: Ledger, samples: pa.Table, balance: list[Balance]) -> list[RobotFigures]:
    number = np.array([_robot(key) for key in samples["key"].to_pylist()])
    received = samples["received_at"].cast(pa.int64()).to_numpy()
    stamped = pc.struct_field(samples["timestamp"], "time").cast(pa.int64()).to_numpy()
    figures = []
    for robot in sorted({_robot(key) for key in ledger["voices"]}):
        mine = [one for one in balance if _robot(one.key) == robot]
        at = number == robot
        figures.append(
            RobotFigures(
                robot,
                sum(one.sent for one in mine),
                sum(one.held for one in mine),
                sum(one.lost for one in mine),
                sum(one.tail for one in mine),
                sum(ledger["voices"][one.key]["repeated"] for one in mine),
                float(np.median(received[at] - stamped[at])) / 1e6,
                float(received.max() - received[at].max()) / 1e6,
            )
        )
    return figures


def _robot(key: str) -> int:
    return int(key.split("/")[1])
