"""Order of samples: which are delivered now, which wait for earlier ones, and gaps.

Knows sequence numbers, timestamps and the number of queries in progress. Does not know sessions,
threads or the clock: the time is an argument.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from heapq import heappop, heappush

from zenlake.api.values.sample import Sample
from zenlake.api.values.timestamps import Timestamp
from zenlake.api.values.wrapped import make
from zenlake.ext.advanced_config import Miss
from zenlake.ext.advanced_keys import UHLC

# Samples of one source that may wait for earlier ones; beyond that the gap is given up.
PENDING_SAMPLES = 16_384
SOURCES = 4_096  # Sources known to one subscriber; beyond that the longest silent one is forgotten.
# Seconds of silence after which a source is forgotten, unless its token is alive.
RETENTION = 3600.0

U32 = 0xFFFF_FFFF
HALF = U32 // 2


@dataclass(slots=True, eq=False)
class OrderedSource:
    """One publisher (samples ordered by its numbers), or one clock (by its timestamps).

    A position is a sequence number that no longer wraps, or a time in ticks.
    """

    name: str
    seen: float
    "Time at which it was seen last."
    last: int | None = None
    "Position of the sample that was delivered last."
    near: int = 0
    "Position close to the present sequence numbers."
    pending: dict[int, Sample] = field(default_factory=dict)
    _waiting: list[int] = field(default_factory=list)
    queries: int = 0
    "Queries in progress about this source only."
    asked: int | None = None
    "Position before which missing samples were asked for."
    alive: bool | None = None
    "Whether its liveliness token is alive; None: unknown."
    numbered: bool = field(init=False)

    def __post_init__(self) -> None:
        self.numbered = is_numbered(self.name)

    def position(self, sn: int) -> int:
        """Return the position of a 32-bit sequence number on a line that does not wrap."""
        self.near += ((sn - self.near + HALF) & U32) - HALF
        return self.near

    @property
    def next(self) -> int | None:
        """First missing position, if any sample was delivered."""
        return None if self.last is None else self.last + 1

    def is_next(self, position: int) -> bool:
        return self.last is None or not self.numbered or position == self.last + 1

    def hold(self, position: int, sample: Sample) -> None:
        heappush(self._waiting, position)
        self.pending[position] = sample

    def first(self) -> int | None:
        """Return the lowest waiting position."""
        return self._waiting[0] if self._waiting else None

    def take_first(self) -> Sample:
        return self.pending.pop(heappop(self._waiting))


class SampleOrder:
    """Sources of one subscriber; samples and misses to deliver are appended to `ready` and
    `missed`.

    `depth` is the number of samples held back while history is asked for; `recovers` says whether
    samples behind a gap wait for it to be filled.
    """

    def __init__(self, depth: int | None, recovers: bool) -> None:
        self.depth = min(depth or PENDING_SAMPLES, PENDING_SAMPLES)
        self.recovers = recovers
        self.ready: list[Sample] = []
        self.missed: list[Miss] = []
        self.sources: OrderedDict[str, OrderedSource] = OrderedDict()
        self.history = 0
        "Queries in progress about all sources."
        self.late = 0
        "Samples that were received again, or after their position was given up."
        self.given_up = 0
        "Gaps given up because more than PENDING_SAMPLES waited behind them."
        self.forgotten = 0
        "Sources forgotten by SOURCES or RETENTION."

    def source(self, name: str, now: float) -> OrderedSource:
        """Return the source of that name; add it if it is unknown."""
        source = self.sources.get(name)
        if source is None:
            self._forget(now)
            source = self.sources[name] = OrderedSource(name, now)
        else:
            self.sources.move_to_end(name)
            source.seen = now
        return source

    def take(self, sample: Sample, now: float) -> OrderedSource | None:
        """Take a live sample or a reply; return its source, if the sample names one."""
        if (info := sample.source_info) is not None:
            source = self.source(f"{info.source_id.zid}/{info.source_id.eid}", now)
            self._take(source, source.position(info.source_sn), sample)
            return source
        if (timestamp := sample.timestamp) is not None:
            clock, ticks = clock_and_ticks(timestamp)
            source = self.source(f"{clock}/{UHLC}", now)
            self._take(source, ticks, sample)
            return source
        self.ready.append(sample)
        return None

    def _take(self, source: OrderedSource, position: int, sample: Sample) -> None:
        if (source.last is not None and position <= source.last) or position in source.pending:
            self.late += 1
        elif self._must_wait(source, position):
            source.hold(position, sample)
            self._enforce_limit(source)
        else:
            self._release(source, position, sample)

    def _must_wait(self, source: OrderedSource, position: int) -> bool:
        if not source.is_next(position):
            return self.recovers
        if source.numbered and source.last is not None:
            return False
        return self.depth > 1 and bool(self.history or source.queries)

    def _enforce_limit(self, source: OrderedSource) -> None:
        behind_a_gap = source.numbered and source.last is not None
        if len(source.pending) >= (PENDING_SAMPLES if behind_a_gap else self.depth):
            self.given_up += behind_a_gap
            self._release_first(source)

    def _release_first(self, source: OrderedSource) -> None:
        position = source.first()
        assert position is not None
        self._release(source, position, source.take_first())

    def _release(self, source: OrderedSource, position: int, sample: Sample) -> None:
        """Report the samples missing before this one, then deliver it and those right behind it."""
        if not source.is_next(position) and source.last is not None:
            assert sample.source_info is not None
            self.missed.append(make(Miss, sample.source_info.source_id, position - source.last - 1))
        self.ready.append(sample)
        source.last = position
        while source.numbered and source.first() == source.last + 1:
            self.ready.append(source.take_first())
            source.last += 1

    def flush(self, source: OrderedSource) -> None:
        """Deliver waiting samples after a query ended, unless others are in progress: its gaps
        stay.

        A gap that opened after the query was sent is left: see `has_gap`.
        """
        while source.pending and not (self.history or source.queries):
            if self.has_gap(source) and self._is_unasked(source):
                return
            self._release_first(source)

    def has_gap(self, source: OrderedSource) -> bool:
        """Return whether samples wait for missing ones that no query in progress asks for."""
        waits = source.numbered and source.last is not None and bool(source.pending)
        return self.recovers and waits and not source.queries

    def _is_unasked(self, source: OrderedSource) -> bool:
        first = source.first()
        return first is not None and (source.asked is None or first > source.asked)

    def _forget(self, now: float) -> None:
        """Make room for one more source. The first is the one that was silent longest."""
        while self.sources:
            first = next(iter(self.sources.values()))
            silent = now - first.seen > RETENTION
            if silent and first.alive and len(self.sources) < SOURCES:
                first.seen = now
                self.sources.move_to_end(first.name)
            elif silent or len(self.sources) >= SOURCES:
                while first.pending:
                    self._release_first(first)
                del self.sources[first.name]
                self.forgotten += 1
            else:
                return


def is_numbered(name: str) -> bool:
    """Return whether a source of that name numbers its samples."""
    return not name.endswith(f"/{UHLC}")


def clock_and_ticks(timestamp: Timestamp) -> tuple[str, int]:
    """Return the clock's id as text, and its time without loss."""
    ticks, _, clock = str(timestamp).partition("/")
    return clock, int(ticks)


def number_range(first: int | None, last: int | None = None) -> str:
    """Return the parameter that asks for sequence numbers from `first` to `last`, both included.

    >>> number_range(3), number_range(None, 7), number_range(2**32, 2**32 + 1)
    ('_sn=3..', '_sn=..7', '_sn=0..1')
    """
    start = "" if first is None else str(first & U32)
    return f"_sn={start}..{'' if last is None else last & U32}"
