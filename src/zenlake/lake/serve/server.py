"""A queryable that answers from a lake: latest values, or the past that `_time` and `_max` name.

Knows sessions, queries and how many may be answered at once. What is true of the past, history.py
knows.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import lru_cache, partial
from queue import Empty, Full, Queue
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from zenlake.api.query.query import Query
from zenlake.api.session import Session
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr, intersects
from zenlake.lake.project import Project
from zenlake.lake.serve.history import RESTARTS, History, KeyPredicate
from zenlake.lake.serve.time_range import EVERYTHING, HlcRange, hlc_range, of_parameters
from zenlake.wire.cursor import U64
from zenlake.wire.delete import Del
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.put import Put
from zenlake.wire.reply import WireReply
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.zenohid import WireZenohId

MAX_QUERIES = 4  # that are answered at once
MAX_WAITING = 256  # that wait for that; one more is told so
MAX_SAMPLES = 1 << 40  # that `_max` may name
SEND_ROWS = 128  # replies that are made before the first of them is sent
ROOM_SECONDS = 0.0005  # between two looks whether the link has room
JOIN_SECONDS = 10.0
BUSY = f"more than {MAX_WAITING} queries wait here: ask again later"
STOPPING = "what answers here was stopped before the end: ask again"
TEXT = "text/plain"

log = logging.getLogger("zenlake.serve")


class HistoryRequest(NamedTuple):
    """What the parameters of a query ask for."""

    times: HlcRange | None = None
    "None: the latest values."
    newest: int | None = None


def parse_request(parameters: str, now: int) -> HistoryRequest:
    """What parameters mean, read at `now` (nanoseconds since 1970). Those not known are ignored.

    >>> parse_request("", 0), parse_request("_max=2;x=1", 0).newest
    (HistoryRequest(times=None, newest=None), 2)
    >>> parse_request("_max=two", 0)
    Traceback (most recent call last):
    zenlake.errors.ZError: _max='two' is no number of samples: write a whole number from 1 on
    """
    found: dict[str, str] = {}
    for item in parameters.split(";"):
        name, _, value = item.partition("=")
        found.setdefault(name, value)
    newest = None
    if "_max" in found:
        text = found["_max"]
        if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= MAX_SAMPLES):
            raise ZError(
                f"_max={text[:80]!r} is no number of samples: write a whole number from 1 on"
            )
        newest = int(text)
    if "_time" in found:
        return HistoryRequest(hlc_range(of_parameters(parameters, found["_time"]), now), newest)
    return HistoryRequest(None if newest is None else EVERYTHING, newest)


class ServeStats(NamedTuple):
    """Since it was opened."""

    queries: int
    "received"
    answered: int
    "to the end"
    replies: int
    errors: int
    "queries that got an error: what they asked was wrong, or could not be read"
    refused: int
    "since too many waited"
    left: int
    "whose asker was gone, or out of time, before the end"
    waiting: int
    restarts: int
    "answers that went on with newer files"


class Server:
    """Answers queries on some key expressions from a lake, as long as it is open.

    MAX_QUERIES are answered at once; each answer is read and sent piece by piece, no faster than
    the asker takes it.
    """

    def __init__(
        self,
        session: Session,
        lake: Project | History,
        keys: Sequence[str] = ("**",),
        *,
        complete: bool = True,
    ) -> None:
        self.history = lake if isinstance(lake, History) else History(lake)
        self.keys = tuple(KeyExpr(key) for key in keys)
        self.counters: Counter[str] = Counter()
        self._queue: Queue[tuple[Query, KeyPredicate | None] | None] = Queue(MAX_WAITING)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._workers = [
            threading.Thread(target=self._work, name=f"zenlake serve {number}", daemon=True)
            for number in range(MAX_QUERIES)
        ]
        for worker in self._workers:
            worker.start()
        self._queryables: list[Any] = []
        try:
            for number, key in enumerate(self.keys):
                take = partial(self._take, self._share(number))
                self._queryables.append(session.declare_queryable(key, take, complete=complete))
        except BaseException:
            self.close()
            raise

    def stats(self) -> ServeStats:
        """What it has done so far."""
        with self._lock:
            counted = {name: self.counters[name] for name in ServeStats._fields}
        restarts = self.history.counters[RESTARTS]
        return ServeStats(**counted | {"waiting": self._queue.qsize(), "restarts": restarts})

    def close(self) -> None:
        """Answer no more: what is being answered ends where it is."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        for queryable in self._queryables:
            with suppress(ZError):  # the session was closed before
                queryable.undeclare()
        for _ in self._workers:  # behind those that wait, which are told that it is over
            self._queue.put(None)
        for worker in self._workers:
            worker.join(JOIN_SECONDS)
        with suppress(Empty):  # those that came while it ended
            while True:
                left = self._queue.get_nowait()
                if left is not None:
                    _refuse(left[0], STOPPING)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()

    # ---- queries

    def _share(self, number: int) -> KeyPredicate | None:
        """Which keys one of several queryables answers for, so that none is answered twice."""
        mine, before = self.keys[number], self.keys[:number]
        if mine == "**" and not before:
            return None
        return lambda key: intersects(mine, key) and not any(intersects(one, key) for one in before)

    def _take(self, share: KeyPredicate | None, query: Query) -> None:
        self._count("queries")
        try:
            self._queue.put_nowait((query, share))
        except Full:
            self._count("refused")
            _refuse(query, BUSY)

    def _count(self, name: str, more: int = 1) -> None:
        with self._lock:
            self.counters[name] += more

    def _work(self) -> None:
        while (taken := self._queue.get()) is not None:
            query, share = taken
            del taken
            with query:
                try:
                    self._answer(query, share)
                except Exception as error:
                    self._count("errors")
                    if not isinstance(error, ZError):
                        log.exception("a query was not answered: %s", query)
                    _refuse(query, str(error) or type(error).__name__)
            del query

    def _answer(self, query: Query, share: KeyPredicate | None) -> None:
        if self._stopped.is_set():
            raise ZError(STOPPING)
        asked = parse_request(str(query.parameters), time.time_ns())
        key = str(query.key_expr)
        if asked.times is None:
            batches = self.history.latest(key, also=share)
        else:
            batches = self.history.between(key, *asked.times, asked.newest, also=share)
        asker = _ReplyChannel(query)
        with closing(batches):
            for batch in batches:
                sent = asker.send(batch, self._stopped)
                self._count("replies", sent)
                if sent < batch.num_rows:
                    if self._stopped.is_set():
                        raise ZError(STOPPING)
                    self._count("left")
                    return
        self._count("answered")


def _refuse(query: Query, why: str) -> None:
    with query, suppress(ZError):  # nobody is there any more
        query.reply_err(why, encoding=TEXT)


class _ReplyChannel:
    """The one who asked: whether it still waits, and has room for another reply."""

    def __init__(self, query: Query) -> None:
        self._asked = asked = query._asked
        exchange: Any = asked.exchange
        self._remote = asked._answer == exchange.send
        self._waiting = exchange.routing.local.requests
        self._number, self._qos = asked.request.id, asked.request.qos
        self._responder = query._responder

    def takes(self, stopped: threading.Event) -> bool:
        """True as soon as it has room; False: it is gone, or has waited long enough."""
        while not self._asked.ended:
            if not self._remote:
                return True
            pending = self._waiting.get(self._number)
            if pending is None or stopped.is_set():
                return False
            port = pending.face.link
            if port is None or port.session.has_room(self._qos):
                return True
            time.sleep(ROOM_SECONDS)
        return False

    def send(self, batch: pa.RecordBatch, stopped: threading.Event) -> int:
        """A reply for each row; gives how many there were before it was gone."""
        answer, qos, responder = self._asked.answer, self._qos, self._responder
        for start in range(0, batch.num_rows, SEND_ROWS):
            # All made before the first is sent: what follows quickly shares frames and writes.
            replies = list(zip(*_build_replies(batch.slice(start, SEND_ROWS)), strict=True))
            for number, (key, reply) in enumerate(replies):
                if not self.takes(stopped):
                    return start + number
                answer(key, reply, qos, responder)
        return int(batch.num_rows)


# ---- rows as replies


def _build_replies(batch: pa.RecordBatch) -> tuple[list[str], list[WireReply]]:
    """The keys and the replies of some rows."""
    stamp = batch.column("timestamp")
    columns = [batch.column(name) for name in _COLUMNS]
    columns += [pc.struct_field(stamp, name) for name in ("ntp64", "id")]
    keys = batch.column("key").to_pylist()
    return keys, [
        _build_reply(*row) for row in zip(*(one.to_pylist() for one in columns), strict=True)
    ]


_COLUMNS = ("kind", "payload", "encoding", "schema", "attachment")


def _build_reply(
    kind: str,
    payload: bytes | None,
    encoding: str | None,
    schema: str | None,
    attachment: bytes | None,
    ntp64: int | None,
    clock: str | None,
) -> WireReply:
    stamp = None if ntp64 is None else WireTimestamp(ntp64 & U64, _parse_clock_id(clock or ""))
    if kind == "delete":
        return WireReply(Del(stamp, None, attachment))
    return WireReply(
        Put(payload or b"", stamp, _parse_encoding(encoding, schema), None, attachment)
    )


_parse_clock_id = lru_cache(1024)(WireZenohId.parse)


@lru_cache(1024)
def _parse_encoding(encoding: str | None, schema: str | None) -> WireEncoding:
    return WireEncoding.parse((encoding or "") if schema is None else f"{encoding or ''};{schema}")
