"""Queryable that answers from a lake: latest values, or the past selected by `_time` and `_max`.

Knows sessions, queries and their limits. Does not know tables; history.py reads them.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from queue import Empty, Full, Queue
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from zenlake.api.query.query import Query
from zenlake.api.query.reply_batch import reply_batch
from zenlake.api.session import Session
from zenlake.api.values.selector import Parameters
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr, intersects
from zenlake.lake.project import Project
from zenlake.lake.serve.history import RESTARTS, History, KeyPredicate
from zenlake.lake.serve.time_range import EVERYTHING, HlcRange, hlc_range, of_parameters

MAX_QUERIES = 4  # Queries answered at the same time.
MAX_WAITING = 256  # Queries that may wait; further ones are refused.
MAX_SAMPLES = 1 << 40  # Highest value of `_max`.
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
    too_large: int
    "Samples that are too large for the link to a querier: it got an error in place of each."
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
        with closing(batches):
            for batch in batches:
                sent, too_large = reply_batch(query, as_samples(batch), self._is_open)
                self._count("replies", sent - too_large)
                self._count("too_large", too_large)
                if sent < batch.num_rows:
                    if self._stopped.is_set():
                        raise ZError(STOPPING)
                    self._count("left")
                    return
        self._count("answered")

    def _is_open(self) -> bool:
        return not self._stopped.is_set()


def _refuse(query: Query, why: str) -> None:
    with query, suppress(ZError):  # The querier is gone.
        query.reply_err(why, encoding=TEXT)


# ---- rows as replies


def as_samples(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of a history as columnar/ has samples, with the columns that a reply has."""
    stamp = rows.column("timestamp")
    ntp64 = pc.struct_field(stamp, "ntp64")
    columns = {name: rows.column(name) for name in _COLUMNS}
    columns["timestamp"] = pa.StructArray.from_arrays(
        [ntp64.cast(pa.uint64(), safe=False), pc.struct_field(stamp, "id")],
        ["time", "id"],
        mask=ntp64.is_null(),
    )
    return pa.RecordBatch.from_pydict(columns)


_COLUMNS = ("key", "kind", "payload", "encoding", "schema", "attachment")
