"""Check of the tables against the fleet's ledger: every sample is stored or known to be lost.

Knows the ledger and the tables, which it reads without Spark.
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
    """Expected and actual number of something."""

    what: str
    expected: int
    found: int

    @property
    def holds(self) -> bool:
        return self.expected == self.found


class Balance(NamedTuple):
    """Samples of one publisher: sent, stored and lost."""

    key: str
    sent: int
    held: int
    lost: int
    "Numbers that the recorder recorded as missing."
    tail: int
    "Numbers after the last one received, which only the sender knows."

    @property
    def accounted(self) -> int:
        return self.held + self.lost + self.tail


class RobotFigures(NamedTuple):
    """Figures of one robot from the ledger and the tables."""

    number: int
    sent: int
    held: int
    lost: int
    tail: int
    repeated: int
    latency: float
    "Median latency in seconds, including the difference of the two clocks."
    silent: float
    "Seconds from its last sample to the last sample of the fleet."


class Account(NamedTuple):
    """Result of the check."""

    checks: list[Check]
    robots: list[RobotFigures]
    rows: dict[str, int]
    payload: int
    losses: dict[str, int]
    "Loss records by kind."

    @property
    def balanced(self) -> bool:
        return all(check.holds for check in self.checks)


def account(project: Project, ledger: Ledger) -> Account:
    """Check the tables of a lake against the ledger of the fleet."""
    tables = {name: _read(project, name) for name in TABLES}
    held = _payload_crcs(tables["samples"])
    lost = _count_lost(tables["loss"])
    publishers, tasks = ledger["publishers"], ledger["tasks"]
    numbered = {
        key: held.get((entry["source"], entry["entity"]), {}) for key, entry in publishers.items()
    }
    finished = [task["key"] for task in tasks if task["finished"]]
    begun = {task["key"]: task["payload"] for task in tasks if not task["finished"]}
    last = {key: entry["last"] for key, entry in publishers.items() if entry["sent"]} | begun
    broken = sum(entry["broken"] for entry in publishers.values())
    readable = sum(
        len(numbered[key]) for key, entry in publishers.items() if entry["encoding"] in DECODED
    )
    balance = [
        Balance(key, len(entry["sent"]), len(numbered[key]), *_missing(entry, numbered[key], lost))
        for key, entry in publishers.items()
    ]
    checks = [
        Check(
            "numbered samples sent = in `samples` + counted as lost",
            sum(line.sent for line in balance),
            sum(line.accounted for line in balance),
        ),
        Check(
            "publishers for which that holds one by one",
            len(publishers),
            sum(line.sent == line.accounted for line in balance),
        ),
        Check(
            "samples lost at the end of a link that loses none",
            0,
            sum(line.tail for line in balance if _robot_number(line.key) != ledger["lossy"]),
        ),
        Check(
            "payloads that are, byte for byte, what was sent",
            sum(map(len, numbered.values())),
            sum(_count_equal(entry, numbered[key]) for key, entry in publishers.items()),
        ),
        Check(
            "rows of `samples`: nothing twice, nothing else",
            sum(map(len, numbered.values())) + len(tasks) + len(finished),
            tables["samples"].num_rows,
        ),
        Check(
            "repeats recognised",
            sum(entry["repeated"] for entry in publishers.values()),
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
            len(last) - sum(line.tail > 0 for line in balance),
            _count_with_last(tables["latest"], last),
        ),
        Check("keys in `tombstones`", len(finished), tables["tombstones"].num_rows),
        Check("payloads decoded", readable - broken + len(tasks), tables["messages"].num_rows),
        Check("payloads that could not be", broken, tables["messages_failed"].num_rows),
    ]
    return Account(
        checks,
        _robot_figures(ledger, tables["samples"], balance),
        {name: table.num_rows for name, table in tables.items()},
        _sum(pc.binary_length(tables["samples"]["payload"])),
        Counter(tables["loss"]["kind"].to_pylist()),
    )


def _read(project: Project, name: str) -> pa.Table:
    store = DeltaStore(project.table(name), TABLES[name])
    return store.read()


def _sum(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column).as_py() or 0)


def _payload_crcs(samples: pa.Table) -> dict[tuple[str, int], dict[int, int]]:
    """Return by source and number the CRC-32 of the payload."""
    found: dict[tuple[str, int], dict[int, int]] = {}
    for source, payload in zip(samples["source"], samples["payload"], strict=True):
        who = source.as_py()
        if who is not None:
            mine = found.setdefault((who["id"], who["entity"]), {})
            mine[who["sn"]] = zlib.crc32(payload.as_buffer())
    return found


def _count_lost(loss: pa.Table) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for row in loss.select(["kind", "id", "entity", "count"]).to_pylist():
        if row["kind"] == "source":
            found[row["id"], row["entity"]] += row["count"]
    return found


def _missing(
    publisher: Ledger, numbers: Iterable[int], lost: Counter[tuple[str, int]]
) -> tuple[int, int]:
    """Return how many numbers the recorder missed, and how many follow the last one received."""
    tail = len(publisher["sent"]) - 1 - max(numbers, default=-1)
    return lost[publisher["source"], publisher["entity"]], tail


def _count_equal(publisher: Ledger, held: dict[int, int]) -> int:
    sent = publisher["sent"]
    return sum(number < len(sent) and sent[number][0] == crc for number, crc in held.items())


def _count_with_last(latest: pa.Table, last: dict[str, str | None]) -> int:
    """Count the keys whose latest payload was sent last; a payload of None matches any."""
    found = 0
    for key, payload in zip(latest["key"].to_pylist(), latest["payload"].to_pylist(), strict=True):
        found += key in last and last[key] in (None, payload.decode(errors="replace"))
    return found


def _robot_figures(ledger: Ledger, samples: pa.Table, balance: list[Balance]) -> list[RobotFigures]:
    number = np.array([_robot_number(key) for key in samples["key"].to_pylist()])
    received = samples["received_at"].cast(pa.int64()).to_numpy()
    stamped = pc.struct_field(samples["timestamp"], "time").cast(pa.int64()).to_numpy()
    figures = []
    for robot in sorted({_robot_number(key) for key in ledger["publishers"]}):
        mine = [line for line in balance if _robot_number(line.key) == robot]
        at = number == robot
        figures.append(
            RobotFigures(
                robot,
                sum(line.sent for line in mine),
                sum(line.held for line in mine),
                sum(line.lost for line in mine),
                sum(line.tail for line in mine),
                sum(ledger["publishers"][line.key]["repeated"] for line in mine),
                float(np.median(received[at] - stamped[at])) / 1e6,
                float(received.max() - received[at].max()) / 1e6,
            )
        )
    return figures


def _robot_number(key: str) -> int:
    return int(key.split("/")[1])
