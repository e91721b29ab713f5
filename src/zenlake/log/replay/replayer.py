"""Replay: puts the samples of a log again, at the pace of their recording or faster.

Knows times of reception, partitions and key mappings. Does not know how messages are sent
(encoded_sender.py) or how a log is read (log/read/reader.py).
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from zenlake.api.session import Session
from zenlake.api.session_core import core_of
from zenlake.errors import InvalidKeyExpr, ZError
from zenlake.keyexpr import KeyExpr, includes, intersects, validate
from zenlake.log.format import Entries
from zenlake.log.replay.encoded_sender import EncodedSender, SendOutcome

if TYPE_CHECKING:
    from zenlake.log.read.index import Damage
    from zenlake.log.read.log import Log
    from zenlake.log.read.log_keys import LogKeys
    from zenlake.log.read.spans import SampleSpan

PUT_BYTES = 4 << 20  # Bytes put at once: between two puts a replay can be stopped.
PROGRESS_SECONDS = 0.1  # Seconds between two calls of on_progress.
LONGEST_SLEEP = 0.5  # Longest sleep in seconds: progress is reported between two sleeps.
NANOS = 1e9
TIMESTAMPS = ("original", "new")


class ReplayStats(NamedTuple):
    """The counters of a replay."""

    samples: int
    "Number of samples put."
    bytes: int
    "Size of their payloads."
    heard: int
    "Number of samples that matched a subscriber."
    bad_keys: int
    "Samples left out because their key is undeclared or invalid."
    dropped: int
    "Copies that were not sent: too large for a session, or the session had ended."
    done: int
    "Number of offsets replayed in this round."
    total: int
    "Number of offsets of a round."
    rounds: int
    "Number of finished rounds; at most 1 unless the replay loops."
    time: int
    "Reception time of the last sample put, in nanoseconds since 1970; 0 before the first."
    seconds: float
    "Seconds since the replay began."
    lateness: float
    "Largest delay of a sample behind its due time, in seconds."


class ReplayPiece(NamedTuple):
    """Consecutive batches of one partition, with their due times."""

    times: npt.NDArray[np.int64]
    "Due time of each batch by the clock of the recording; never decreasing."
    batches: Entries
    ends: npt.NDArray[np.int64]
    "End of each batch in `data`."
    offsets: npt.NDArray[np.int64]
    "The offset after the last sample of each batch."
    data: memoryview
    keys: "LogKeys"
    partition: int

    def part(self, first: int, stop: int) -> "ReplayPiece":
        start = int(self.ends[first - 1]) if first else 0
        return ReplayPiece(
            self.times[first:stop],
            self.batches[first:stop],
            self.ends[first:stop] - start,
            self.offsets[first:stop],
            self.data[start : int(self.ends[stop - 1])],
            self.keys,
            self.partition,
        )


class Remap:
    """Mapping of keys by rules (from, to). The first rule whose `from` matches the first chunks of
    a key replaces those by its `to`; the rest of the key stays. A `from` may contain * and $*. An
    empty `from` matches every key; an empty `to` removes the matched chunks.

    >>> remap = Remap([("robot/*/pose", "sim/pose"), ("robot", "replay/robot"), ("", "other")])
    >>> remap("robot/7/pose/x"), remap("robot/7"), remap("robots")
    ('sim/pose/x', 'replay/robot/7', 'other/robots')
    """

    def __init__(self, rules: Iterable[tuple[str, str]]) -> None:
        self._rules = [_rule(*rule) for rule in rules]

    def __call__(self, key: str) -> str:
        for start, chunks, to in self._rules:
            rest = _rest_of(key, start, chunks)
            if rest is not None:
                return f"{to}/{rest}" if to and rest else to or rest
        return key


def _rule(start: str, to: str) -> tuple[str, int, str]:
    for text in (start, to):
        if text:
            validate(text)
    if "**" in start.split("/"):
        raise InvalidKeyExpr(
            f"remap {start!r}: ** does not say where the rest of a key starts; write whole chunks, "
            "such as robot/*"
        )
    if "*" in to:
        raise InvalidKeyExpr(f"remap to {to!r}: write a key without wildcards")
    return start, start.count("/") + 1 if start else 0, to


def _rest_of(key: str, start: str, chunks: int) -> str | None:
    """Return the rest of `key` after `start`; None if the key does not match."""
    if not chunks:
        return key
    parts = key.split("/", chunks)
    head = "/".join(parts[:chunks])
    if len(parts) < chunks or not (head == start or ("*" in start and includes(start, head))):
        return None
    return parts[chunks] if len(parts) > chunks else ""


def due_times(
    times: npt.NDArray[np.int64], origin: int, began: float, speed: float
) -> npt.NDArray[np.float64]:
    """Return the due times of samples received at `times`, if `origin` is due at `began`.

    Each is computed from the origin, not from the one before, so that errors do not add up.

    >>> due_times(np.array([5_000_000_000, 6_000_000_000]), 5_000_000_000, 100.0, 2.0).tolist()
    [100.0, 100.5]
    """
    due: npt.NDArray[np.float64] = began + (times - origin) / (NANOS * speed)
    return due


def pieces(spans: "Iterable[SampleSpan]", partition: int) -> Iterator[ReplayPiece]:
    """Yield a partition's batches with their due times.

    Where the clock of the recording was set back, samples are due at once until it has caught up.
    """
    last = np.iinfo(np.int64).min
    for span in spans:
        if len(span.batches):
            times = np.maximum.accumulate(np.maximum(span.batches["time"], last))
            last = int(times[-1])
            yield ReplayPiece(
                times,
                span.batches,
                np.cumsum(span.batches["length"], dtype=np.int64),
                span.base + np.cumsum(span.batches["count"], dtype=np.int64),
                span.data,
                span.keys,
                partition,
            )


def merge(partitions: Sequence[Iterator[ReplayPiece]]) -> Iterator[ReplayPiece]:
    """Yield the batches of all partitions by time, and by partition where times are equal."""
    heap: list[tuple[int, int, int, ReplayPiece]] = []

    def add(piece: ReplayPiece | None, number: int, first: int = 0) -> None:
        if piece is not None:
            heappush(heap, (int(piece.times[first]), number, first, piece))

    for number, stream in enumerate(partitions):
        add(next(stream, None), number)
    while heap:
        _, number, first, piece = heappop(heap)
        stop = len(piece.times)
        if heap:
            side: Literal["left", "right"] = "right" if number < heap[0][1] else "left"
            stop = max(first + 1, int(np.searchsorted(piece.times, heap[0][0], side)))
        yield piece.part(first, stop)
        if stop < len(piece.times):
            add(piece, number, stop)
        else:
            add(next(partitions[number], None), number)


class Replayer:
    """Replay of a log: puts its samples as they were recorded, with key, payload, encoding,
    timestamp, source, attachment and QoS. Waits where there is no room, so that none is dropped.

    `speed` 1 keeps the times between samples, 2 halves them, None does not wait at all. `start`
    and `end` are offsets of one partition; `start_time` and `end_time` are times of reception in
    nanoseconds since 1970; ends are not included. `key_expr` selects by the recorded key, `remap`
    then maps keys (see Remap). With `timestamps="new"` a sample that has a timestamp gets one of
    the session's clock. `run` replays what is durable when it is called, partitions merged by
    time, and with `loop` again and again until `stop`. It raises DamagedLog at a damaged block,
    unless `on_damage` is "skip": then `skipped` says what is missing.
    """

    def __init__(
        self,
        log: "Log | Path | str",
        session: Session,
        *,
        partition: int | None = None,
        speed: float | None = 1.0,
        start: int | None = None,
        end: int | None = None,
        start_time: int | None = None,
        end_time: int | None = None,
        key_expr: str | None = None,
        remap: Sequence[tuple[str, str]] = (),
        timestamps: str = "original",
        loop: bool = False,
        on_damage: Literal["raise", "skip"] = "raise",
        on_progress: Callable[[ReplayStats], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        if speed is not None and not 0 < speed < float("inf"):
            raise ZError(f"speed is {speed}: it is more than 0, or None for as fast as possible")
        if timestamps not in TIMESTAMPS:
            raise ZError(f"timestamps are 'original' or 'new', not {timestamps!r}")
        if not isinstance(log, (str, Path)):
            self._log = log
        else:
            from zenlake.log.read.log import Log

            self._log = Log(log)
        self._partitions = self._log.partitions() if partition is None else [partition]
        if (start is not None or end is not None) and len(self._partitions) > 1:
            raise ZError(
                f"offsets are those of one partition: choose one of {self._partitions}, or a time"
            )
        self._from = (start, start_time)
        self._to = (end, end_time)
        self._key_expr = None if key_expr is None else KeyExpr(key_expr)
        self._remap = Remap(remap) if remap else None
        self._speed = speed
        self._loop = loop
        self._on_damage = on_damage
        self._skipped: dict[Damage, None] = {}
        self._on_progress = on_progress
        self._clock = clock
        self._stopped = threading.Event()
        self._sleep = sleep or self._stopped.wait
        rename = self._rename if self._key_expr is not None or self._remap is not None else None
        self._out = EncodedSender(core_of(session), rename=rename, restamp=timestamps == "new")
        self._sent = SendOutcome()
        self._starts: dict[int, int] = {}
        self._passed: dict[int, int] = {}
        "Number of offsets replayed in this round, by partition."
        self._total = 0
        self._rounds = 0
        self._time = 0
        self._began: float | None = None
        self._ended: float | None = None
        self._lateness = 0.0
        self._reported = float("-inf")

    @property
    def skipped(self) -> "list[Damage]":
        """Damage that was passed over, each once however often the log is replayed."""
        return [*self._skipped]

    @property
    def stats(self) -> ReplayStats:
        """Return the counters so far. Any thread may call it."""
        began, sent = self._began, self._sent
        seconds = 0.0 if began is None else (self._ended or self._clock()) - began
        return ReplayStats(
            **sent._asdict(),
            done=sum(self._passed.values()),
            total=self._total,
            rounds=self._rounds,
            time=self._time,
            seconds=seconds,
            lateness=self._lateness,
        )

    def run(self) -> ReplayStats:
        """Replay the log; return at its end, or after `stop`."""
        if self._began is not None:
            raise ZError("a Replayer runs once: make another one")
        self._began = self._clock()
        try:
            ranges = [self._range(partition) for partition in self._partitions]
            while self._round(ranges) and self._loop and not self._stopped.is_set():
                pass
            self._out.flush()
        finally:
            self._ended = self._clock()
        self._report(now=None)
        return self.stats

    def stop(self) -> None:
        """Let `run` return soon. Any thread may call it."""
        self._stopped.set()

    def _rename(self, key: str) -> str | None:
        if self._key_expr is not None and not intersects(self._key_expr, key):
            return None
        return key if self._remap is None else self._remap(key)

    def _range(self, partition: int) -> tuple[int, int, int]:
        """Return a partition, and the range of offsets to replay."""
        log, durable = self._log, self._log.mark(partition).offset

        def offset(place: tuple[int | None, int | None], otherwise: int) -> int:
            number, when = place
            if number is not None:
                return number
            return otherwise if when is None else log.offset_at(partition, when)

        start = offset(self._from, log.first(partition))
        self._total += max(0, min(offset(self._to, durable), durable) - start)
        # The clock may have been set back: samples after the first that is too late may be in time.
        end = durable if self._to[0] is None else min(self._to[0], durable)
        return partition, start, max(start, end)

    def _spans(self, partition: int, start: int, end: int) -> "Iterator[SampleSpan]":
        from zenlake.log.read.reader import Reader

        reader = Reader(self._log, partition)
        try:
            yield from reader.spans(
                start,
                end,
                start_time=self._from[1],
                end_time=self._to[1],
                key_expr=self._key_expr,
                on_damage=self._on_damage,
            )
        finally:
            self._skipped |= dict.fromkeys(reader.skipped)

    def _round(self, ranges: list[tuple[int, int, int]]) -> bool:
        """Replay the ranges once. Return False if they were empty, or the replay was stopped."""
        self._starts = {partition: start for partition, start, _ in ranges}
        self._passed = dict.fromkeys(self._starts, 0)
        streams = [
            pieces(self._spans(partition, start, end), partition)
            for partition, start, end in ranges
            if start < end
        ]
        origin: int | None = None
        began = self._clock()
        for piece in streams[0] if len(streams) == 1 else merge(streams):
            origin = int(piece.times[0]) if origin is None else origin
            if not self._replay(piece, origin, began):
                return False
        if origin is not None:
            self._rounds += 1
        return origin is not None

    def _replay(self, piece: ReplayPiece, origin: int, began: float) -> bool:
        """Put a piece when it is due. Return False if the replay was stopped."""
        due = None if self._speed is None else due_times(piece.times, origin, began, self._speed)
        at, count = 0, len(piece.times)
        while at < count:
            if self._stopped.is_set():
                return False
            now = self._clock()
            stop = count if due is None else int(np.searchsorted(due, now, "right"))
            self._report(now)
            if stop <= at:
                assert due is not None
                self._sleep(min(float(due[at]) - now, LONGEST_SLEEP))
                continue
            start = int(piece.ends[at - 1]) if at else 0
            most = int(np.searchsorted(piece.ends, start + PUT_BYTES, "right"))
            stop = min(stop, max(at + 1, most))
            self._put(piece.part(at, stop))
            if due is not None:
                self._out.flush()
                self._lateness = max(self._lateness, self._clock() - float(due[at]))
            at = stop
        return True

    def _put(self, piece: ReplayPiece) -> None:
        self._sent = self._sent.plus(self._out.put(piece.data, piece.keys, piece.batches))
        self._time = int(piece.times[-1])
        self._passed[piece.partition] = int(piece.offsets[-1]) - self._starts[piece.partition]

    def _report(self, now: float | None) -> None:
        if self._on_progress is None:
            return
        if now is None or now >= self._reported + PROGRESS_SECONDS:
            self._reported = self._reported if now is None else now
            self._on_progress(self.stats)
