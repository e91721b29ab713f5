"""Queryable that answers from a lake: latest values, or the past selected by `_time` and `_max`.

Knows sessions, queries and their limits. Does not know tables; history.py reads them.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import lru_cache, partial
from queue import Empty, Full, Queue
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from zenlake.api.query.query import Query, request_of, responder_of
from zenlake.api.session import Session
from zenlake.api.values.selector import Parameters
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

MAX_QUERIES = 4  # Queries answered at the same time.
MAX_WAITING = 256  # Queries that may wait; further ones are refused.
MAX_SAMPLES = 1 << 40  # Highest value of `_max`.
SEND_ROWS = 128  # Replies built before the first of them is sent.
ROOM_SECONDS = 0.0005  # Pause between two checks for room on the link.
JOIN_SECONDS = 10.0  # Longest wait for a worker at close.
BUSY = f"more than {MAX_WAITING} queries wait here: ask again later"
STOPPING = "the server was stopped before the end of the answer: ask again"
TEXT = "text/plain"

log = logging.getLogger("zenlake.serve")


class HistoryRequest(NamedTuple):
    """Range of the past that the parameters of a query select."""

    times: HlcRange | None = None
    "Range of time; None for the latest values."
    newest: int | None = None
    "Number of newest samples per key; None for all."


def parse_request(parameters: str, now: int) -> HistoryRequest:
    """Parse query parameters at `now`, in nanoseconds since 1970; ignores unknown parameters.

    >>> parse_request("", 0), parse_request("_max=2;x=1", 0).newest
    (HistoryRequest(times=None, newest=None), 2)
    >>> parse_request("_max=two", 0)
    Traceback (most recent call last):
    zenlake.errors.ZError: _max='two' is not a valid count: write a whole number from 1 on
    """
    found = Parameters(parameters)
    newest, text, when = None, found.get("_max"), found.get("_time")
    if text is not None:
        if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= MAX_SAMPLES):
            raise ZError(f"_max={text[:80]!r} is not a valid count: write a whole number from 1 on")
        newest = int(text)
    if when is not None:
        return HistoryRequest(hlc_range(of_parameters(parameters, when), now), newest)
    return HistoryRequest(None if newest is None else EVERYTHING, newest)


class ServeStats(NamedTuple):
    """Counters of a server since it was opened."""

    queries: int
    "Queries received."
    answered: int
    "Queries answered to the end."
    replies: int
    "Replies sent."
    errors: int
    "Queries answered with an error, for wrong parameters or unreadable data."
    refused: int
    "Queries refused because too many were waiting."
    left: int
    "Queries whose querier was gone, or out of time, before the end."
    waiting: int
    "Queries that wait now."
    restarts: int
    "Answers that continued with newer files."


class Server:
    """Server that answers queries on some key expressions from a lake until it is closed.

    Answers MAX_QUERIES at the same time. Each answer is read and sent piece by piece, no faster
    than the querier takes it.
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
                take = partial(self._enqueue, self._key_filter(number))
                self._queryables.append(session.declare_queryable(key, take, complete=complete))
        except BaseException:
            self.close()
            raise

    def stats(self) -> ServeStats:
        """Return the counters."""
        with self._lock:
            counted = {name: self.counters[name] for name in ServeStats._fields}
        restarts = self.history.counters[RESTARTS]
        return ServeStats(**counted | {"waiting": self._queue.qsize(), "restarts": restarts})

    def close(self) -> None:
        """Stop: queries that are being answered or wait get an error."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        for queryable in self._queryables:
            with suppress(ZError):  # The session is closed already.
                queryable.undeclare()
        for _ in self._workers:  # Queued after the waiting queries, which get an error first.
            self._queue.put(None)
        for worker in self._workers:
            worker.join(JOIN_SECONDS)
        with suppress(Empty):  # Queries that arrived during the close.
            while True:
                left = self._queue.get_nowait()
                if left is not None:
                    _refuse(left[0], STOPPING)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # ---- queries

    def _key_filter(self, number: int) -> KeyPredicate | None:
        """Return the keys that a queryable answers for, so that no key is answered twice."""
        mine, before = self.keys[number], self.keys[:number]
        if mine == "**" and not before:
            return None
        return lambda key: (
            intersects(mine, key) and not any(intersects(other, key) for other in before)
        )

    def _enqueue(self, key_filter: KeyPredicate | None, query: Query) -> None:
        self._count("queries")
        try:
            self._queue.put_nowait((query, key_filter))
        except Full:
            self._count("refused")
            _refuse(query, BUSY)

    def _count(self, name: str, more: int = 1) -> None:
        with self._lock:
            self.counters[name] += more

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            query, key_filter = item
            del item
            with query:
                try:
                    self._answer(query, key_filter)
                except Exception as error:
                    self._count("errors")
                    if not isinstance(error, ZError):
                        log.exception("a query was not answered: %s", query)
                    _refuse(query, str(error) or type(error).__name__)
            del query

    def _answer(self, query: Query, key_filter: KeyPredicate | None) -> None:
        if self._stopped.is_set():
            raise ZError(STOPPING)
        request = parse_request(str(query.parameters), time.time_ns())
        key = str(query.key_expr)
        if request.times is None:
            batches = self.history.latest(key, key_filter=key_filter)
        else:
            batches = self.history.between(
                key, *request.times, request.newest, key_filter=key_filter
            )
        channel = _ReplyChannel(query)
        with closing(batches):
            for batch in batches:
                sent = channel.send(batch, self._stopped)
                self._count("replies", sent)
                if sent < batch.num_rows:
                    if self._stopped.is_set():
                        raise ZError(STOPPING)
                    self._count("left")
                    return
        self._count("answered")


def _refuse(query: Query, why: str) -> None:
    with query, suppress(ZError):  # The querier is gone.
        query.reply_err(why, encoding=TEXT)


class _ReplyChannel:
    """Way back to the querier: whether it still waits, and its link has room for a reply."""

    def __init__(self, query: Query) -> None:
        self._asked = asked = request_of(query)
        exchange: Any = asked.exchange
        self._remote = asked.is_remote
        self._waiting = exchange.routing.local.requests
        self._number, self._qos = asked.request.id, asked.request.qos
        self._responder = responder_of(query)

    def wait_for_room(self, stopped: threading.Event) -> bool:
        """Wait until the link has room; return False if the query has ended or the server stops."""
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
        """Send a reply per row; return the number sent before the query ended."""
        answer, qos, responder = self._asked.answer, self._qos, self._responder
        for start in range(0, batch.num_rows, SEND_ROWS):
            # Built before the first is sent: replies in quick succession share frames and writes.
            replies = list(zip(*_build_replies(batch.slice(start, SEND_ROWS)), strict=True))
            for number, (key, reply) in enumerate(replies):
                if not self.wait_for_room(stopped):
                    return start + number
                answer(key, reply, qos, responder)
        return int(batch.num_rows)


# ---- rows as replies


def _build_replies(batch: pa.RecordBatch) -> tuple[list[str], list[WireReply]]:
    """Return the keys and the replies of some rows."""
    stamp = batch.column("timestamp")
    columns = [batch.column(name) for name in _COLUMNS]
    columns += [pc.struct_field(stamp, name) for name in ("ntp64", "id")]
    keys = batch.column("key").to_pylist()
    return keys, [
        _build_reply(*row) for row in zip(*(column.to_pylist() for column in columns), strict=True)
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
