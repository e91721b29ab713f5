"""The recorder: a session's subscriber that writes a log, and says how far it is durable.

Knows sessions, key expressions and the admin space. What is recorded never becomes a sample: see
tape.py.
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
from zenlake.api.session_core import SessionCore
from zenlake.errors import ZError
from zenlake.keyexpr import includes
from zenlake.log.format import Mark
from zenlake.log.write.recording_sink import CLOSE_SECONDS, SYNC_BYTES, SYNC_SECONDS, RecordingSink
from zenlake.log.write.writer import ROTATE_BYTES, Writer
from zenlake.quantities import counted
from zenlake.runtime import kernel_loader

ASK_SECONDS = 10.0  # that a query for the durable mark waits at most,
MAX_ASKING = 1024  # and how many of them
NAME_DIGITS = 16  # of the log's name in the admin space
JOIN_SECONDS = CLOSE_SECONDS + 5.0


class RecorderStats(NamedTuple):
    """What a recorder has done so far."""

    samples: int
    "received since it was opened"
    bytes: int
    "of their messages"
    received: int
    "the offset after the last sample received"
    durable: int
    "the offset after the last sample that is durable"
    waiting_bytes: int
    gaps: int
    "records of loss"
    lost: int
    "samples and lane numbers that they say are missing"
    dropped: int
    "samples that the recorder itself let go"
    disk_left: int
    failure: str | None
    "why nothing is acknowledged now"


class Recorder:
    """Records what is put on key expressions into one partition of a log.

    A sample is recorded when `durable` says so: then it survives a kill of this process and the
    loss of everything that was not synced. With `overflow="block"` the network is not read while
    the disk cannot follow; with "drop" samples are let go, counted, and their loss is recorded.

    `session`: record with this one, which stays open; otherwise one is opened with `config`.
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
        self._tape: RecordingSink | None = None
        self._declared: SubscriberEntry | None = None
        self._queryable: Queryable[Any] | None = None
        self._asked: SimpleQueue[tuple[int, float, Query] | None] = SimpleQueue()
        "Who waits: for which offset, until when; None: nobody any more."
        self._answering = threading.Thread(
            target=self._answer_all, name="zenlake log answers", daemon=True
        )
        try:
            self._tape = RecordingSink(
                self.writer,
                sync_seconds=sync_seconds,
                sync_bytes=sync_bytes,
                sync_samples=sync_samples,
                overflow=overflow,
            )
            self._session = session or sessions.open(config or Config())
            self._core: SessionCore = self._session._core
            self._core.watchers += (self._tape,)
            self._core.exchange.wants_messages = True
            self._declared = self._core.subscribers.declare_sink(_apart(keys), self._tape)
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
    def tape(self) -> RecordingSink:
        assert self._tape is not None
        return self._tape

    @property
    def admin_key(self) -> str:
        """Whoever queries this gets `stats()` as JSON; with the parameter `durable` only once all
        that the recorder had received by then is durable."""
        role = self._core.exchange.whatami.name.lower()  # type: ignore[union-attr]
        # Not the id itself: whoever knows that could put what looks like a block of this log.
        log = hashlib.sha256(self.writer.log_id).hexdigest()[:NAME_DIGITS]
        return f"@/{self._core.exchange.zid}/{role}/recorder/{log}/{self.writer.partition}"

    @property
    def mark(self) -> Mark:
        """How far the log is durable."""
        return self.tape.mark

    def durable(self, timeout: float | None = None) -> Mark:
        """Wait until all that was received before this call is durable.

        ZError: it is not within `timeout` seconds, and why.
        """
        return self.tape.durable(timeout)

    def stats(self) -> RecorderStats:
        tape = self.tape
        return RecorderStats(
            samples=tape.received - self._first,
            bytes=tape.bytes,
            received=tape.received,
            durable=tape.mark.offset,
            waiting_bytes=tape.waiting,
            gaps=tape.losses.total(),
            lost=tape.missing.total(),
            dropped=tape.dropped,
            disk_left=self.writer.disk_left(),
            failure=self._failure,
        )

    @property
    def _failure(self) -> str | None:
        if self.tape.failure is not None:
            return str(self.tape.failure)
        if self._core.exchange.closed and not self._closed:
            return "its session was closed: nothing more is recorded"
        return None

    def _answer(self, query: Query) -> None:
        if "durable" not in query.parameters:
            self._tell(query)
        elif self._asked.qsize() < MAX_ASKING:
            self._asked.put((self.tape.received, time.monotonic() + ASK_SECONDS, query))
        else:
            with query:
                query.reply_err(f"{MAX_ASKING} others wait for the disk already: ask later")

    def _answer_all(self) -> None:
        """On a thread of its own: who only wants to know how things stand waits for no disk."""
        while (asked := self._asked.get()) is not None:
            target, until, query = asked
            with suppress(ZError):  # the session is closed: nobody can be told
                try:
                    self.tape.durable(max(0.0, until - time.monotonic()), target)
                except ZError as error:
                    with query:
                        query.reply_err(str(error))
                else:
                    self._tell(query)

    def _tell(self, query: Query) -> None:
        with query:
            said = json.dumps(self.stats()._asdict())
            query.reply(self.admin_key, said, encoding="application/json")

    def close(self) -> None:
        """Make everything durable, seal the log and give it free. ZError: some of it is not.

        What interrupts it leaves a recorder that can be closed again.
        """
        if self._closed:
            return
        if os.getpid() != self._pid:  # of a fork: the log is the parent's
            self._closed = True
            return
        tape = self.tape
        self._leave()
        if not tape.join(JOIN_SECONDS):
            raise ZError(
                f"{counted(self._unsaved, 'sample')} not durable: the disk does not answer"
            )
        self._answering.join(JOIN_SECONDS)
        self.writer.close()
        self._closed = True
        if self._unsaved:
            raise ZError(f"{counted(self._unsaved, 'sample')} not durable: {tape.failure}")

    @property
    def _unsaved(self) -> int:
        return self.tape.received - self.tape.mark.offset

    def _leave(self) -> None:
        """Hear no more. May be repeated."""
        if self._session is not None:
            core = self._session._core
            if self._queryable is not None and not core.exchange.closed:
                with suppress(ZError):  # it was, before something interrupted
                    self._queryable.undeclare()
            core.watchers = tuple(one for one in core.watchers if one is not self._tape)
            if self._declared is not None:
                core.subscribers.undeclare(self._declared)
        self.tape.close()
        self._asked.put(None)
        if self._own and self._session is not None:
            self._session.close()

    def _abort(self) -> None:
        """What was opened before something failed."""
        if self._tape is not None:
            self._leave()
            self._tape.join(JOIN_SECONDS)
        if self._answering.is_alive():
            self._answering.join(JOIN_SECONDS)
        self.writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Recorder({str(self.writer.path)!r}, partition={self.writer.partition})"


def _apart(keys: list[Any]) -> list[Any]:
    """Without those that others include."""
    distinct = list(dict.fromkeys(keys))
    return [
        key
        for key in distinct
        if not any(other != key and includes(other, key) for other in distinct)
    ]
