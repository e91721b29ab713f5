"""Offsets of a log as Spark stores them: their JSON, where a query starts, how far one batch goes,
and how a range of offsets is split into tasks.

Knows block tables (NumPy), limits and files beside the log. Does not know Spark or decode samples.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zenlake.errors import ZError
from zenlake.log.read.log import Log

FOLDER = "spark"  # Subfolder of the log in which queries keep their files.
NAME_DIGITS = 32  # Hex digits in the name of a query's start file.
TASK_BYTES = 32 << 20  # Log bytes per task: a longer range is split, so that every core gets work.
MAX_TASKS = 10_000  # Upper bound on tasks per range, whatever `minPartitions` asks for.

PerPartition = Mapping[int, int]
Blocks = npt.NDArray[np.void]


class DataLoss(ZError):
    """Error: the log no longer has offsets that a query still needs."""


class AnotherLog(ZError):
    """Error: the offsets belong to a log other than the one at this path."""


# ---- the JSON


class Offsets(NamedTuple):
    """The next offset to read in each partition of one log.

    `start` is where the query started; only its first two offsets carry it. Spark writes the end of
    a batch to its checkpoint, but not the start of the first batch, and asks for that start again
    after a crash. So the end of the first batch carries it.

    >>> Offsets("ab" * 16, {1: 7, 0: 5}).to_json()["partitions"]
    {'0': 5, '1': 7}
    """

    log: str
    partitions: PerPartition
    start: PerPartition | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form. Equal offsets give equal text, because Spark compares texts."""
        value: dict[str, Any] = {"log": self.log, "partitions": _with_text_keys(self.partitions)}
        if self.start is not None:
            value["start"] = _with_text_keys(self.start)
        return value

    @classmethod
    def from_json(cls, value: Any, log: Log) -> "Offsets":
        """Read the JSON form. ZError: not offsets; AnotherLog: offsets of another log."""
        try:
            log_id = value["log"]
            offsets = cls(log_id, _with_number_keys(value["partitions"]))
            if "start" in value:
                offsets = offsets._replace(start=_with_number_keys(value["start"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ZError(
                f"not offsets of a log: {str(value)[:100]!r}; "
                "the checkpoint is of another source, or damaged: use a new one"
            ) from None
        if log_id != log.id:
            raise AnotherLog(
                f"the offsets are of log {log_id}, but {log.path} holds log {log.id}: it was "
                "recreated. Put the old log back, or start with a new checkpoint"
            )
        return offsets

    @property
    def is_start(self) -> bool:
        """Whether these offsets are the start of the query: no batch was planned before them."""
        return self.start is not None and self.start == self.partitions

    def advance_to(self, partitions: PerPartition) -> "Offsets":
        """Return the end of a batch that starts here."""
        return Offsets(self.log, partitions, self.partitions if self.is_start else None)

    def batch_start(self, end: "Offsets") -> PerPartition:
        """Return the start of the batch that ends at `end`."""
        return end.start if self.is_start and end.start is not None else self.partitions


def _with_text_keys(offsets: PerPartition) -> dict[str, int]:
    return {str(partition): int(offsets[partition]) for partition in sorted(offsets)}


def _with_number_keys(value: Mapping[str, Any]) -> dict[int, int]:
    offsets = {int(partition): offset for partition, offset in value.items()}
    if any(type(offset) is not int or offset < 0 for offset in offsets.values()):
        raise ValueError
    return offsets


# ---- the offsets of a log


def durable_ends(log: Log) -> dict[int, int]:
    """Return the first offset of each partition that is not durable yet."""
    return {partition: log.mark(partition).offset for partition in log.partitions()}


def resolve_offsets(log: Log, where: str | PerPartition, otherwise: str) -> dict[int, int]:
    """Return an offset for each partition of `log`.

    `where` is "earliest", "latest" or offsets by partition; a partition that it does not name gets
    the offset that the word `otherwise` stands for.
    """
    named: PerPartition = {} if isinstance(where, str) else where
    word = where if isinstance(where, str) else otherwise
    partitions = log.partitions()
    for partition in named.keys() - set(partitions):
        raise ZError(
            f"the log {log.path} has no partition {partition}: "
            f"it has {', '.join(map(str, partitions)) or 'none'}"
        )
    return {
        partition: named[partition] if partition in named else _BY_WORD[word](log, partition)
        for partition in partitions
    }


_BY_WORD: dict[str, Callable[[Log, int], int]] = {
    "earliest": lambda log, partition: log.first(partition),
    "latest": lambda log, partition: int(log.mark(partition).offset),
}


def require_available(log: Log, partition: int, begin: int, end: int, fail: bool) -> int:
    """Return the offset from which the range `begin` to `end` can be read.

    That is `begin`, or the first offset that the log still has if `fail` is False.
    DataLoss: rows were removed and `fail` is True, or the partition is missing or ends too early.
    """
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


def missing_rows(log: Log, partition: int, begin: int, end: int) -> int:
    """Count the rows of a range that were removed, or are known to be damaged before reading."""
    first = min(max(log.first(partition), begin), end)
    count = first - begin
    for damage in log.damage(partition, first, end):
        count += max(min(damage.end, end) - max(damage.first, first), 0)
    return count


# ---- the end of a batch


def split_limit(backlog: PerPartition, limit: int) -> dict[int, int]:
    """Divide `limit` rows among partitions in proportion to their backlog; each gets at least one.

    >>> split_limit({0: 300, 1: 100, 2: 0}, 40)
    {0: 30, 1: 10, 2: 0}
    """
    total = sum(backlog.values())
    return {
        partition: min(waiting, max(1, limit * waiting // total)) if waiting else 0
        for partition, waiting in backlog.items()
    }


def stop_before(
    begin: PerPartition, end: PerPartition, stops: Iterable[PerPartition]
) -> PerPartition:
    """Return the end of a batch, cut at the first of `stops` that lies behind its begin.

    Partitions that the batch does not have count for nothing.

    >>> stop_before({0: 10, 1: 10}, {0: 50, 1: 60}, [{0: 10, 1: 5}, {0: 30, 1: 20}])
    {0: 30, 1: 20}
    >>> stop_before({0: 30, 1: 20}, {0: 50, 1: 60}, [{0: 30, 1: 20}])
    {0: 50, 1: 60}
    >>> stop_before({0: 30}, {0: 50}, [{0: 30, 5: 20}])
    {0: 50}
    """
    ahead = [stop for stop in stops if any(stop.get(n, 0) > begin.get(n, 0) for n in end)]
    if not ahead:
        return end
    stop = min(ahead, key=lambda stop: sum(stop.values()))
    return {n: max(begin.get(n, 0), min(at, stop.get(n, 0))) for n, at in end.items()}


def batch_end(
    log: Log, begin: PerPartition, end: PerPartition, rows: int | None, size: int | None
) -> dict[int, int]:
    """Return the ends of a batch from `begin` of at most `rows` samples and about `size` bytes."""
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
    """Return the offset `size` bytes after `begin`: at least one sample, at most `end`."""
    costs = _block_costs(blocks, begin, end)
    over = int(np.searchsorted(costs.bytes_so_far, size, side="right"))
    if over == len(costs.bytes_so_far):
        return end
    before = float(costs.bytes_so_far[over - 1]) if over else 0.0
    samples = (size - before) // costs.sample_bytes[over]
    return min(end, max(begin + 1, int(costs.first[over] + samples)))


def split_range(blocks: Blocks, begin: int, end: int, tasks: int) -> list[tuple[int, int]]:
    """Split a range into pieces of similar size: at least `tasks`, none much above TASK_BYTES.

    Pieces end where blocks end if there are enough blocks, so that no block is read twice.
    """
    if begin >= end:
        return []
    first, bytes_so_far, sample_bytes = _block_costs(blocks, begin, end)
    if not len(bytes_so_far):
        return [(begin, end)]  # The whole range is damaged; reading it reports that.
    total = float(bytes_so_far[-1])
    pieces = min(max(tasks, int(-(-total // TASK_BYTES))), end - begin, MAX_TASKS)
    cuts = np.arange(1, pieces) * (total / pieces)
    block = np.minimum(np.searchsorted(bytes_so_far, cuts), len(bytes_so_far) - 1)
    inner = first[block]
    if len(bytes_so_far) < 2 * pieces:
        before = np.where(block > 0, bytes_so_far[block - 1], 0.0)
        inner = inner + ((cuts - before) // sample_bytes[block]).astype(np.int64)
    bounds = np.unique(np.concatenate(([begin], np.clip(inner, begin, end), [end]))).tolist()
    return list(pairwise(bounds))


class _BlockCosts(NamedTuple):
    """Bytes that the samples of a range take in the log, one entry per block."""

    first: npt.NDArray[np.int64]
    "First offset of the range in each block."
    bytes_so_far: npt.NDArray[np.float64]
    "Bytes from the start of the range to the end of each block."
    sample_bytes: npt.NDArray[np.float64]
    "Mean bytes per sample of each block."


def _block_costs(blocks: Blocks, begin: int, end: int) -> _BlockCosts:
    blocks = blocks[blocks["samples"] > 0]
    base = blocks["base"].astype(np.int64)
    first = np.maximum(base, begin)
    count = np.minimum(base + blocks["samples"], end) - first
    inside = count > 0
    sample_bytes = (blocks["length"] / blocks["samples"])[inside]
    return _BlockCosts(first[inside], np.cumsum(count[inside] * sample_bytes), sample_bytes)


# ---- the remembered start


def remembered_start(log: Log, name: str, resolve: Callable[[], dict[int, int]]) -> dict[int, int]:
    """Return the start of the query `name`: the result of the first `resolve` call for this log."""
    path = _start_path(log, name)
    try:
        start = _read_start(path, log)
        if start is None:
            start = resolve()
            _write_if_absent(path, json.dumps(Offsets(log.id, start).to_json()))
            start = _read_start(path, log) or start
    except OSError as error:
        raise ZError(
            f"the start of the query cannot be kept in {path}: {error.strerror}. Make that folder "
            'writable, or give startingOffsets as "earliest" or as JSON'
        ) from None
    return start


def forget_start(log: Log, name: str) -> None:
    """Delete the start of the query `name`, once Spark's checkpoint has it."""
    with suppress(OSError):
        _start_path(log, name).unlink()


def _start_path(log: Log, name: str) -> Path:
    return log.path / FOLDER / f"{name}.json"


def _read_start(path: Path, log: Log) -> dict[int, int] | None:
    try:
        return dict(Offsets.from_json(json.loads(path.read_text()), log).partitions)
    except FileNotFoundError:
        return None
    except (ZError, ValueError):  # An earlier log's file, or an incomplete one.
        with suppress(OSError):
            path.unlink()
        return None


def _write_if_absent(path: Path, text: str) -> None:
    """Write `path` atomically; of several writers the first wins."""
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
