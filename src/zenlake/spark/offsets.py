"""Offsets of a log as Spark keeps them: JSON that names its log, where a query starts, how far
it may go at once, and how a range is cut into tasks.

Knows block tables (NumPy), limits and files beside the log. Does not know Spark or decode anything.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from zenlake.errors import ZError

FOLDER = "spark"  # in the log's folder: what queries keep there
NAME_DIGITS = 32  # of the file of one query
TASK_BYTES = 32 << 20  # of the log: a longer range is cut, so that every core gets some
MAX_TASKS = 10_000  # of one range: whatever is asked for

PerPartition = Mapping[int, int]
Blocks = npt.NDArray[np.void]


class DataLoss(ZError):
    """Offsets that a query still needs are not in the log any more."""


class AnotherLog(ZError):
    """Offsets of a log that is not the one at this path."""


class LogLike(Protocol):
    """What planning asks of a log (see zenlake.log.read.log)."""

    path: Path

    @property
    def id(self) -> str: ...
    def partitions(self) -> list[int]: ...
    def mark(self, partition: int) -> Any: ...
    def first(self, partition: int) -> int: ...
    def blocks(self, partition: int, start: int = 0, end: int | None = None) -> Any: ...
    def damage(self, partition: int, start: int = 0, end: int | None = None) -> Any: ...


# ---- the JSON


class Offsets(NamedTuple):
    """The next offset of each partition.

    `start` is where the query started; it stands in its first two offsets only. Spark writes the
    end of a batch to its checkpoint, but not where the first one starts, and asks for that again
    after a crash: so the end says it.

    >>> Offsets("ab" * 16, {1: 7, 0: 5}).to_json()["partitions"]
    {'0': 5, '1': 7}
    """

    log: str
    partitions: PerPartition
    start: PerPartition | None = None

    def to_json(self) -> dict[str, Any]:
        """The same text for the same offsets: Spark compares texts."""
        found: dict[str, Any] = {"log": self.log, "partitions": _named(self.partitions)}
        if self.start is not None:
            found["start"] = _named(self.start)
        return found

    @classmethod
    def from_json(cls, value: Any, log: LogLike) -> "Offsets":
        """ZError: these are no offsets; AnotherLog: they are not of this log."""
        try:
            theirs = value["log"]
            found = cls(theirs, _numbered(value["partitions"]))
            if "start" in value:
                found = found._replace(start=_numbered(value["start"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ZError(
                f"these are no offsets of a log: {str(value)[:100]!r}; "
                "the checkpoint is of another source, or damaged: use a new one"
            ) from None
        if theirs != log.id:
            raise AnotherLog(
                f"the offsets are of log {theirs}, but {log.path} holds log {log.id}: it was made "
                "anew. Put the old log back, or start with a new checkpoint"
            )
        return found

    @property
    def is_start(self) -> bool:
        """Whether nothing was planned before these."""
        return self.start is not None and self.start == self.partitions

    def moved(self, partitions: PerPartition) -> "Offsets":
        """The end of a batch that starts here."""
        return Offsets(self.log, partitions, self.partitions if self.is_start else None)

    def until(self, end: "Offsets") -> PerPartition:
        """Where the batch starts that ends at `end`."""
        return end.start if self.is_start and end.start is not None else self.partitions


def _named(offsets: PerPartition) -> dict[str, int]:
    return {str(partition): int(offsets[partition]) for partition in sorted(offsets)}


def _numbered(value: Mapping[str, Any]) -> dict[int, int]:
    found = {int(partition): offset for partition, offset in value.items()}
    if any(type(offset) is not int or offset < 0 for offset in found.values()):
        raise ValueError
    return found


# ---- what there is


def available(log: LogLike) -> dict[int, int]:
    """The first offset of each partition that is not durable yet."""
    return {partition: log.mark(partition).offset for partition in log.partitions()}


def resolve_offsets(log: LogLike, where: str | PerPartition, otherwise: str) -> dict[int, int]:
    """Offsets for "earliest", for "latest", or for some; partitions without one: `otherwise`."""
    named: PerPartition = {} if isinstance(where, str) else where
    word = where if isinstance(where, str) else otherwise
    partitions = log.partitions()
    for partition in named.keys() - set(partitions):
        raise ZError(
            f"the log {log.path} has no partition {partition}: "
            f"it has {', '.join(map(str, partitions)) or 'none'}"
        )
    return {
        partition: named[partition] if partition in named else _WORDS[word](log, partition)
        for partition in partitions
    }


_WORDS: dict[str, Callable[[LogLike, int], int]] = {
    "earliest": lambda log, partition: log.first(partition),
    "latest": lambda log, partition: int(log.mark(partition).offset),
}


def require_available(log: LogLike, partition: int, begin: int, end: int, fail: bool) -> int:
    """`begin`, or the first offset that is there if `fail` is False. DataLoss: some are gone."""
    if partition not in log.partitions():
        raise DataLoss(
            f"partition {partition} of the log {log.path} is gone: put it back, "
            "or start with a new checkpoint"
        )
    mark = log.mark(partition).offset
    if max(begin, end) > mark:
        raise DataLoss(
            f"partition {partition} of the log {log.path} ends at offset {mark}, before "
            f"{max(begin, end)} that is asked for. If a checkpoint asks for it the log is an older "
            "copy: put the newer one back, or start with a new checkpoint"
        )
    first = log.first(partition)
    if begin >= min(first, end):
        return begin
    if fail:
        raise DataLoss(
            f"partition {partition} of the log {log.path}: offsets {begin} to "
            f"{min(first, end) - 1} are gone, it starts at {first} now. Start with a new "
            "checkpoint, or set failOnDataLoss to false to go on without them"
        )
    return min(first, end)


def missing_rows(log: LogLike, partition: int, begin: int, end: int) -> int:
    """How many rows of a range were removed, or are known to be damaged before they are read."""
    first = min(max(log.first(partition), begin), end)
    count = first - begin
    for damage in log.damage(partition, first, end):
        count += max(min(damage.end, end) - max(damage.first, first), 0)
    return count


# ---- how far


def split_limit(backlog: PerPartition, limit: int) -> dict[int, int]:
    """A limit over partitions, by what waits in each; none is left out.

    >>> shares({0: 300, 1: 100, 2: 0}, 40)
    {0: 30, 1: 10, 2: 0}
    """
    total = sum(backlog.values())
    return {
        partition: min(waiting, max(1, limit * waiting // total)) if waiting else 0
        for partition, waiting in backlog.items()
    }


def batch_end(
    log: LogLike, begin: PerPartition, end: PerPartition, rows: int | None, size: int | None
) -> dict[int, int]:
    """The ends of a batch from `begin` of at most `rows` samples and about `size` bytes."""
    backlog = {partition: end[partition] - begin[partition] for partition in end}
    if rows is not None and sum(backlog.values()) > rows:
        backlog = split_limit(backlog, rows)
    ends = {partition: begin[partition] + count for partition, count in backlog.items()}
    if size is None:
        return ends
    total = sum(backlog.values())
    for partition, count in backlog.items():
        if count:
            start = begin[partition]
            blocks = log.blocks(partition, start, ends[partition])
            budget = max(1, size * count // total)
            ends[partition] = offset_within_bytes(blocks, start, ends[partition], budget)
    return ends


def offset_within_bytes(blocks: Blocks, begin: int, end: int, size: int) -> int:
    """How far `size` bytes last from `begin`: at least for one sample, at most to `end`."""
    low, spent, each = _costs(blocks, begin, end)
    over = int(np.searchsorted(spent, size, side="right"))
    if over == len(spent):
        return end
    before = float(spent[over - 1]) if over else 0.0
    return min(end, max(begin + 1, int(low[over] + (size - before) // each[over])))


def split_range(blocks: Blocks, begin: int, end: int, tasks: int) -> list[tuple[int, int]]:
    """The range in pieces of similar size: as many as `tasks`, and none much above TASK_BYTES.

    Pieces end where blocks do if there are enough of them, so that no block is read twice.
    """
    if begin >= end:
        return []
    low, spent, each = _costs(blocks, begin, end)
    if not len(spent):
        return [(begin, end)]  # all of it is damaged: reading it says so
    total = float(spent[-1])
    pieces = min(max(tasks, int(-(-total // TASK_BYTES))), end - begin, MAX_TASKS)
    at = np.arange(1, pieces) * (total / pieces)
    block = np.minimum(np.searchsorted(spent, at), len(spent) - 1)
    inner = low[block]
    if len(spent) < 2 * pieces:
        before = np.where(block > 0, spent[block - 1], 0.0)
        inner = inner + ((at - before) // each[block]).astype(np.int64)
    bounds = np.unique(np.concatenate(([begin], np.clip(inner, begin, end), [end]))).tolist()
    return list(pairwise(bounds))


def _costs(
    blocks: Blocks, begin: int, end: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Of blocks that have samples of a range: the first, bytes up to the end of each, of one."""
    blocks = blocks[blocks["samples"] > 0]
    base = blocks["base"].astype(np.int64)
    low = np.maximum(base, begin)
    count = np.minimum(base + blocks["samples"], end) - low
    inside = count > 0
    each = (blocks["length"] / blocks["samples"])[inside]
    return low[inside], np.cumsum(count[inside] * each), each


# ---- a start that is kept


def remembered_start(
    log: LogLike, name: str, resolve: Callable[[], dict[int, int]]
) -> dict[int, int]:
    """What `resolve` said the first time that `name` was asked for in this log."""
    path = log.path / FOLDER / f"{name}.json"
    try:
        found = _read_kept(path, log)
        if found is None:
            found = resolve()
            _keep(path, json.dumps(Offsets(log.id, found).to_json()))
            found = _read_kept(path, log) or found
    except OSError as error:
        raise ZError(
            f"where the query starts cannot be kept in {path}: {error.strerror}. Make that folder "
            'writable, or give startingOffsets as "earliest" or as JSON'
        ) from None
    return found


def forget(log: LogLike, name: str) -> None:
    """The start is in Spark's checkpoint by now: the next new query finds its own."""
    with suppress(OSError):
        (log.path / FOLDER / f"{name}.json").unlink()


def _read_kept(path: Path, log: LogLike) -> dict[int, int] | None:
    try:
        return dict(Offsets.from_json(json.loads(path.read_text()), log).partitions)
    except FileNotFoundError:
        return None
    except (ZError, ValueError):  # of a log that was here before; or never whole
        with suppress(OSError):
            path.unlink()
        return None


def _keep(path: Path, text: str) -> None:
    """The file is there as a whole or not at all, and the first who writes it wins."""
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()
