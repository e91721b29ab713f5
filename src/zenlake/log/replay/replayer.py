"""Replay: what a log holds, put again by a session, at the pace of its recording or faster.

Knows times of reception, partitions and which keys are to be others. Does not know how messages
leave (api/runs.py) or how a log is read (reader.py).
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
from zenlake.errors import InvalidKeyExpr, ZError
from zenlake.keyexpr import KeyExpr, includes, intersects, validate
from zenlake.log.format import RELIABLE, Entries
from zenlake.log.replay.encoded_sender import EncodedSender, MessageKeys, SendOutcome

if TYPE_CHECKING:
    from zenlake.log.read.index import Damage
    from zenlake.log.read.log import Log
    from zenlake.log.read.reader import SampleSpan

PUT_BYTES = 4 << 20  # put at once, at most: between two such it is looked whether to stop
PROGRESS_SECONDS = 0.1  # between two calls of on_progress
LONGEST_SLEEP = 0.5  # seconds at once: then it is told how far the replay is
NANOS = 1e9
TIMESTAMPS = ("original", "new")


class ReplayStats(NamedTuple):
    """What a replay has done so far."""

    samples: int
    "that were put"
    bytes: int
    "of their payloads"
    heard: int
    "of the samples, those that anybody wanted"
    bad_keys: int
    "samples left out: their key is unknown or no key"
    dropped: int
    "copies that did not leave: too large for a session, or it ended"
    done: int
    "offsets that were passed in this round,"
    total: int
    "of so many"
    rounds: int
    "that are over: 1 at most unless it loops"
    time: int
    "of reception of what was put last, in nanoseconds since 1970; 0: nothing was put"
    seconds: float
    "since it began"
    lateness: float
    "the most seconds that anything left later than it should have"


class ReplayPiece(NamedTuple):
    """Batches that are put one after another."""

    times: npt.NDArray[np.int64]
    "When each is due by the clock of the recording: never goes back."
    batches: Entries
    ends: npt.NDArray[np.int64]
    "Where the data of each ends,"
    offsets: npt.NDArray[np.int64]
    "and the offset after its last sample."
    data: memoryview
    keys: MessageKeys
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
    """Other keys: the first rule whose `from` is at the start of a key, by whole chunks, puts its
    `to` there; the rest of the key stays. A `from` may have * and $* in its chunks. An empty one
    is at the start of every key; an empty `to` takes the start away.

    >>> remap = Remap([("robot/*/pose", "sim/pose"), ("robot", "replay/robot"), ("", "other")])
    >>> remap("robot/7/pose/x"), remap("robot/7"), remap("robots")
    ('sim/pose/x', 'replay/robot/7', 'other/robots')
    """

    def __init__(self, rules: Iterable[tuple[str, str]]) -> None:
        self._rules = [_rule(*rule) for rule in rules]

    def __call__(self, key: str) -> str:
        for start, chunks, to in self._rules:
            rest = _after(key, start, chunks)
            if rest is not None:
                return f"{to}/{rest}" if to and rest else to or rest
        return key


def _rule(start: str, to: str) -> tuple[str, int, str]:
    for text in (start, to):
        if text:
            validate(text)
    if "**" in start.split("/"):
        raise InvalidKeyExpr(
            f"remap {start!r}: ** has no end where the rest of a key starts; write whole chunks, "
            "such as robot/*"
        )
    if "*" in to:
        raise InvalidKeyExpr(f"remap to {to!r}: write a key without wildcards")
    return start, start.count("/") + 1 if start else 0, to


def _after(key: str, start: str, chunks: int) -> str | None:
    """What follows `start` in `key`; None if that does not start so."""
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
    """When what was received at `times` is due, if `origin` was at `began`: no step depends on the
    one before, so nothing drifts.

    >>> due_times(np.array([5_000_000_000, 6_000_000_000]), 5_000_000_000, 100.0, 2.0).tolist()
    [100.0, 100.5]
    """
    due: npt.NDArray[np.float64] = began + (times - origin) / (NANOS * speed)
    return due


def pieces(spans: "Iterable[SampleSpan]", partition: int) -> Iterator[ReplayPiece]:
    """A partition's batches. Where the clock of the recording was set back, what came until it had
    caught up is due at once."""
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


def merged(partitions: Sequence[Iterator[ReplayPiece]]) -> Iterator[ReplayPiece]:
    """The batches of all, by time; of the same time, by the number of their partition."""
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
    """Puts what a log holds, as it was recorded: key, payload, encoding, timestamp, source,
    attachment and QoS; and waits where there is no room, so nothing is left out.

    `speed` 1 keeps the times between samples, 2 halves them, None leaves out all waiting. `start`
    and `end` are offsets of one partition; `start_time` and `end_time` times of reception in
    nanoseconds since 1970; ends are not included. `key_expr` chooses by the recorded key, `remap`
    then gives other keys (see Remap). `timestamps="new"`: what had a timestamp gets one of the
    session's clock. All that is durable when `run` is called is replayed, partitions merged by
    time, and with `loop` again and again until `stop`. DamagedLog: a block is damaged, unless
    `on_damage` is "skip": then `skipped` says what is missing.
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
        self._out = EncodedSender(session._core, rename=rename, restamp=timestamps == "new")
        self._sent = SendOutcome()
        self._starts: dict[int, int] = {}
        self._passed: dict[int, int] = {}
        "Offsets of this round, by partition."
        self._total = 0
        self._rounds = 0
        self._time = 0
        self._began: float | None = None
        self._ended: float | None = None
        self._lateness = 0.0
        self._told = float("-inf")

    @property
    def skipped(self) -> "list[Damage]":
        """Damage that was passed over, each once however often the log is replayed."""
        return [*self._skipped]

    @property
    def stats(self) -> ReplayStats:
        """What was done so far; from any thread."""
        began, sent = self._began, self._sent
        seconds = 0.0 if began is None else (self._ended or self._clock()) - began
        return ReplayStats(
            samples=sent.samples,
            bytes=sent.bytes,
            heard=sent.heard,
            bad_keys=sent.bad_keys,
            dropped=sent.dropped,
            done=sum(self._passed.values()),
            total=self._total,
            rounds=self._rounds,
            time=self._time,
            seconds=seconds,
            lateness=self._lateness,
        )

    def run(self) -> ReplayStats:
        """Replay all of it; returns when that is done, or after `stop`."""
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
        self._tell(now=None)
        return self.stats

    def stop(self) -> None:
        """End it soon; from any thread."""
        self._stopped.set()

    def _rename(self, key: str) -> str | None:
        if self._key_expr is not None and not intersects(self._key_expr, key):
            return None
        return key if self._remap is None else self._remap(key)

    def _range(self, partition: int) -> tuple[int, int, int]:
        """A partition, and the offsets that are to be replayed."""
        log, durable = self._log, self._log.mark(partition).offset

        def offset(place: tuple[int | None, int | None], otherwise: int) -> int:
            number, when = place
            if number is not None:
                return number
            return otherwise if when is None else log.offset_at(partition, when)

        start = offset(self._from, log.first(partition))
        self._total += max(0, min(offset(self._to, durable), durable) - start)
        # A clock may have been set back: behind the first sample that is too late others are not.
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
        """Once through; False if there was nothing, or it was stopped."""
        self._starts = {partition: start for partition, start, _ in ranges}
        self._passed = dict.fromkeys(self._starts, 0)
        streams = [pieces(self._spans(*one), one[0]) for one in ranges if one[1] < one[2]]
        origin: int | None = None
        began = self._clock()
        for piece in streams[0] if len(streams) == 1 else merged(streams):
            origin = int(piece.times[0]) if origin is None else origin
            if not self._replay(piece, origin, began):
                return False
        if origin is not None:
            self._rounds += 1
        return origin is not None

    def _replay(self, piece: ReplayPiece, origin: int, began: float) -> bool:
        """False: it was stopped."""
        due = None if self._speed is None else due_times(piece.times, origin, began, self._speed)
        at, count = 0, len(piece.times)
        while at < count:
            if self._stopped.is_set():
                return False
            now = self._clock()
            stop = count if due is None else int(np.searchsorted(due, now, "right"))
            self._tell(now)
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
        batches = piece.batches
        links, reliable = batches["link"], batches["flags"] & RELIABLE
        sent = self._out.put(
            piece.data,
            piece.keys,
            counts=batches["count"],
            links=links if links.any() else None,
            reliable=None if reliable.all() else reliable,
        )
        self._sent = self._sent.plus(sent)
        self._time = int(piece.times[-1])
        self._passed[piece.partition] = int(piece.offsets[-1]) - self._starts[piece.partition]

    def _tell(self, now: float | None) -> None:
        if self._on_progress is None:
            return
        if now is None or now >= self._told + PROGRESS_SECONDS:
            self._told = self._told if now is None else now
            self._on_progress(self.stats)
