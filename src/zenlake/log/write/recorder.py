"""The recorder: subscribes with a session, writes a log, and reports how far it is durable.

Knows sessions, key expressions and the admin space. Does not see the messages: recording_sink.py
handles them.
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Self

from zenlake.api import session as sessions
from zenlake.api.arguments import IntoKeyExpr, key_of
from zenlake.api.config.config import Config
from zenlake.api.pubsub.subscriber import SubscriberEntry
from zenlake.api.query.query import Query
from zenlake.api.query.queryable import Queryable
from zenlake.api.session import Session
from zenlake.api.session_core import SessionCore, core_of
from zenlake.errors import ZError
from zenlake.keyexpr import includes
from zenlake.log.format import Mark
from zenlake.log.write.recording_sink import CLOSE_SECONDS, SYNC_BYTES, SYNC_SECONDS, RecordingSink
from zenlake.log.write.writer import ROTATE_BYTES, Writer
from zenlake.quantities import counted
from zenlake.runtime import kernel_loader

ASK_SECONDS = 10.0  # Longest time that a query waits for durability.
MAX_ASKING = 1024  # Upper bound on such waiting queries.
NAME_DIGITS = 16  # Hex digits of the log's name in the admin space.
JOIN_SECONDS = CLOSE_SECONDS + 5.0  # Longest wait for a thread to end.


class RecorderStats(NamedTuple):
    """The counters of a recorder."""

    samples: int
    "Number of samples received since the recorder was opened."
    bytes: int
    "Size of their messages."
    received: int
    "The offset after the last received sample."
    durable: int
    "The offset after the last durable sample."
    waiting_bytes: int
    "Size of the messages that are not durable yet."
    gaps: int
    "Number of loss records."
    lost: int
    "Number of samples and lane numbers that those report as missing."
    dropped: int
    "Number of samples that the recorder itself dropped."
    disk_left: int
    "Free bytes on the log's file system."
    failure: str | None
    "Why nothing is acknowledged now; None while writing works."


class Recorder:
    """Recorder of the samples on key expressions into one partition of a log.

    A sample is recorded once `durable` returns: then it survives a kill of this process and a
    power loss. With `overflow="block"` the network is not read while the disk cannot follow; with
    "drop" samples are dropped and counted, and their loss is recorded.

    The recorder uses `session`, which stays open, or opens one of its own with `config`.
    """

    def __init__(
        self,
        path: Path | str,
        key_expr: IntoKeyExpr | Sequence[IntoKeyExpr],
        *,
        session: Session | None = None,
        config: Config | None = None,
        partition: int = 0,
        codec: str = "none",
        rotate_bytes: int = ROTATE_BYTES,
        retain_bytes: int | None = None,
        retain_seconds: float | None = None,
        sync_seconds: float = SYNC_SECONDS,
        sync_bytes: int = SYNC_BYTES,
        sync_samples: int | None = None,
        overflow: str = "block",
    ) -> None:
        given = [key_expr] if isinstance(key_expr, str) else key_expr
        keys = [key_of(key) for key in (given if isinstance(given, Sequence) else [given])]
        if not keys:
            raise ZError("a recorder needs a key expression")
        kernel_loader.load()
        self.writer = Writer(
            path,
            partition,
            codec=codec,
            rotate_bytes=rotate_bytes,
            retain_bytes=retain_bytes,
            retain_seconds=retain_seconds,
        )
        self._closed = False
        self._pid = os.getpid()
        self._own = session is None
        self._session: Session | None = session
        self._first = self.writer.next
        self._sink: RecordingSink | None = None
        self._declared: SubscriberEntry | None = None
        self._queryable: Queryable[Any] | None = None
        self._asked: SimpleQueue[tuple[int, float, Query] | None] = SimpleQueue()
        "Queries that wait for an offset: (offset, deadline, query). None ends the thread."
        self._answering = threading.Thread(
            target=self._answer_waiting, name="zenlake log answers", daemon=True
        )
        try:
            self._sink = RecordingSink(
                self.writer,
                sync_seconds=sync_seconds,
                sync_bytes=sync_bytes,
                sync_samples=sync_samples,
                overflow=overflow,
            )
            self._session = session or sessions.open(config or Config())
            self._core: SessionCore = core_of(self._session)
            self._core.watchers += (self._sink,)
            self._core.exchange.wants_messages = True
            self._declared = self._core.subscribers.declare_sink(_without_covered(keys), self._sink)
            self._answering.start()
            self._queryable = self._session.declare_queryable(
                self.admin_key, self._answer, complete=True
            )
        except BaseException:
            self._abort()
            raise

    @property
    def session(self) -> Session:
        assert self._session is not None
        return self._session

    @property
    def sink(self) -> RecordingSink:
        assert self._sink is not None
        return self._sink

    @property
    def admin_key(self) -> str:
        """Return the key whose queries are answered with `stats()` as JSON.

        With the parameter `durable` the answer waits until every sample that was received before
        the query is durable.
        """
        role = self._core.exchange.whatami.name.lower()  # type: ignore[union-attr]
        # A hash instead of the id: a publisher that knows the id could put imitated blocks.
        log = hashlib.sha256(self.writer.log_id).hexdigest()[:NAME_DIGITS]
        return f"@/{self._core.exchange.zid}/{role}/recorder/{log}/{self.writer.partition}"

    @property
    def mark(self) -> Mark:
        """Return the end of the durable part of the log."""
        return self.sink.mark

    def durable(self, timeout: float | None = None) -> Mark:
        """Wait until every sample that was received before this call is durable.

        Raise ZError with the cause if that takes longer than `timeout` seconds.
        """
        return self.sink.durable(timeout)

    def stats(self) -> RecorderStats:
        sink = self.sink
        return RecorderStats(
            samples=sink.received - self._first,
            bytes=sink.bytes,
            received=sink.received,
            durable=sink.mark.offset,
            waiting_bytes=sink.waiting,
            gaps=sink.losses.total(),
            lost=sink.missing.total(),
            dropped=sink.dropped,
            disk_left=self.writer.disk_left(),
            failure=self._failure,
        )

    @property
    def _failure(self) -> str | None:
        if self.sink.failure is not None:
            return str(self.sink.failure)
        if self._core.exchange.closed and not self._closed:
            return "its session was closed: nothing more is recorded"
        return None

    def _answer(self, query: Query) -> None:
        if "durable" not in query.parameters:
            self._reply_stats(query)
        elif self._asked.qsize() < MAX_ASKING:
            self._asked.put((self.sink.received, time.monotonic() + ASK_SECONDS, query))
        else:
            with query:
                query.reply_err(f"{MAX_ASKING} others wait for the disk already: ask later")

    def _answer_waiting(self) -> None:
        """Answer queries with `durable`, on a thread of their own: other queries never wait."""
        while (asked := self._asked.get()) is not None:
            target, until, query = asked
            with suppress(ZError):  # The session is closed: no reply can be sent.
                try:
                    self.sink.durable(max(0.0, until - time.monotonic()), target)
                except ZError as error:
                    with query:
                        query.reply_err(str(error))
                else:
                    self._reply_stats(query)

    def _reply_stats(self, query: Query) -> None:
        with query:
            text = json.dumps(self.stats()._asdict())
            query.reply(self.admin_key, text, encoding="application/json")

    def close(self) -> None:
        """Make everything durable, settle the log and release it.

        Raise ZError if some samples did not become durable. If interrupted, it can be called
        again.
        """
        if self._closed:
            return
        if os.getpid() != self._pid:  # In the child of a fork: the log belongs to the parent.
            self._closed = True
            return
        sink = self.sink
        self._stop_receiving()
        if not sink.join(JOIN_SECONDS):
            raise ZError(
                f"{counted(self._unsaved, 'sample')} not durable: the disk does not answer"
            )
        self._answering.join(JOIN_SECONDS)
        self.writer.close()
        self._closed = True
        if self._unsaved:
            raise ZError(f"{counted(self._unsaved, 'sample')} not durable: {sink.failure}")

    @property
    def _unsaved(self) -> int:
        return self.sink.received - self.sink.mark.offset

    def _stop_receiving(self) -> None:
        """Undeclare the subscriber and the queryable, and close the sink. May be repeated."""
        if self._session is not None:
            core = core_of(self._session)
            if self._queryable is not None and not core.exchange.closed:
                with suppress(ZError):  # An interrupted close has undeclared it.
                    self._queryable.undeclare()
            core.watchers = tuple(each for each in core.watchers if each is not self._sink)
            if self._declared is not None:
                core.subscribers.undeclare(self._declared)
        self.sink.close()
        self._asked.put(None)
        if self._own and self._session is not None:
            self._session.close()

    def _abort(self) -> None:
        """Close everything that was opened before the constructor failed."""
        if self._sink is not None:
            self._stop_receiving()
            self._sink.join(JOIN_SECONDS)
        if self._answering.is_alive():
            self._answering.join(JOIN_SECONDS)
        self.writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Recorder({str(self.writer.path)!r}, partition={self.writer.partition})"


def _without_covered(keys: list[Any]) -> list[Any]:
    """Drop key expressions covered by another one in the list."""
    distinct = list(dict.fromkeys(keys))
    return [
        key
        for key in distinct
        if not any(other != key and includes(other, key) for other in distinct)
    ]
