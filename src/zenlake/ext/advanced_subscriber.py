"""AdvancedSubscriber: history, recovery and miss detection around a plain subscriber.

Knows which queries to make, and when. Does not know how samples are ordered (`advanced_order.py`),
nor how a session receives them.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, final, overload

from zenlake.api.entity import KeyedEntity
from zenlake.api.handlers import (
    Callback,
    CallbackAnd,
    Handler,
    IntoCallback,
    IntoChannel,
    Receiver,
    make_sink,
)
from zenlake.api.query.get import split_selector
from zenlake.api.query.options import QueryOptions
from zenlake.api.session_core import core_of
from zenlake.api.sinks import Sink
from zenlake.api.values.enums import (
    ConsolidationMode,
    Locality,
    QueryTarget,
    ReplyKeyExpr,
    SampleKind,
)
from zenlake.api.values.reply import Reply
from zenlake.api.values.sample import Sample
from zenlake.api.values.wrapped import make
from zenlake.errors import ZError
from zenlake.ext.advanced_config import HistoryConfig, Miss, RecoveryConfig, seconds
from zenlake.ext.advanced_keys import (
    all_publishers_key,
    own_key,
    parse_source,
    publishers_key,
    source_key,
)
from zenlake.ext.advanced_order import OrderedSource, SampleOrder, is_numbered, number_range
from zenlake.ext.periodic import SCHEDULER, Periodic
from zenlake.keyexpr import KeyExpr
from zenlake.serial import SerialExecutor

if TYPE_CHECKING:
    from zenlake.api.pubsub.arrow import ArrowBatches
    from zenlake.api.pubsub.subscriber import Subscriber
    from zenlake.api.session import Session
    from zenlake.columnar.record_batch import RecordBatch

log = logging.getLogger("zenlake.ext")

QUERY_TIMEOUT = 10.0  # Seconds per query for history or missing samples.
ASKED = QueryOptions(
    QUERY_TIMEOUT, QueryTarget.ALL, ConsolidationMode.NONE, ReplyKeyExpr.ANY, QUERY_TIMEOUT
)
BACKLOG = 1_024  # Queued steps above which the network has to wait.
JOIN = 10.0  # Seconds that undeclare waits for a running callback.

H = TypeVar("H")
X = TypeVar("X")


class SampleIntake(Sink[Sample]):
    """Sink of the inner subscriber's samples, and destination of the replies to its queries.

    All steps run in a serial executor, so nothing here needs a lock. It is full when `sink`, which
    gets the ordered samples, is.
    """

    def __init__(
        self,
        session: "Session",
        key: KeyExpr,
        sink: Sink[Sample],
        history: HistoryConfig | None,
        recovery: RecoveryConfig | None,
    ) -> None:
        super().__init__()
        self._session = weakref.ref(session)
        self._key = key
        self._sink = sink
        self._asked_history = _history_parameters(history)
        depth = None if history is None else history.max_samples
        self._order = SampleOrder(depth, recovery is not None)
        self._order.history = int(history is not None)
        self._steps = SerialExecutor("advanced subscriber")
        self.exchange = core_of(session).exchange
        self._room = True
        self._over = False
        self._misses: dict[Sink[Miss], None] = {}
        self.periodic: Periodic | None = None
        self.undeclares = ExitStack()
        """Undeclare functions of everything declared for this subscriber; the inner subscriber's is
        called last, and closes this sink.
        """
        self.skipped = 0
        "Periodic queries left out because earlier samples have not been read yet."

    # ---- sink of the inner subscriber

    def push(self, items: Iterable[Sample], count: int) -> bool:
        self.run(self._on_samples, items)
        return self._room and len(self._steps) < BACKLOG

    def when_room(self, call: Callable[[], None]) -> None:
        self.run(self._sink.when_room, call)

    def wait_room(self) -> None:
        self._sink.wait_room()

    def close(self) -> None:
        self.run(self._end)

    def join(self, timeout: float | None) -> bool:
        return self._sink.join(timeout)

    def run(self, step: Callable[..., object], *arguments: object) -> None:
        self._steps.submit(partial(step, *arguments))
        self._steps.run()

    # ---- samples, replies, tokens, heartbeats

    def _on_samples(self, samples: Iterable[Sample]) -> None:
        now = time.monotonic()
        for sample in samples:
            source = self._order.take(sample, now)
            if source is not None and self._order.has_gap(source):
                self._ask_for_gap(source)
        self._deliver()

    def on_replies(self, replies: Iterable[Reply]) -> None:
        now = time.monotonic()
        for reply in replies:
            sample = reply.ok
            if sample is not None and self._key.intersects(sample.key_expr):
                self._order.take(sample, now)
        self._deliver()

    def on_answered(self, source: OrderedSource | None) -> None:
        """Deliver what waited for a query that has ended."""
        if source is None:
            self._order.history -= 1
            ended = list(self._order.sources.values())
        else:
            source.queries -= 1
            ended = [source]
        for each in ended:
            self._order.flush(each)
            if self._order.has_gap(each):
                self._ask_for_gap(each)
        self._deliver()

    def _on_token(self, token: Sample) -> None:
        """Note that a publisher appeared or went; ask a new one for its history."""
        key = str(token.key_expr)
        name = parse_source(key)
        if token.kind is SampleKind.DELETE:
            if name is not None and name in self._order.sources:
                self._order.sources[name].alive = False
            return
        source = None if name is None else self._order.source(name, time.monotonic())
        if source is not None:
            source.alive = True
        self._ask(key, self._asked_history, source)

    def _on_heartbeat(self, beat: Sample) -> None:
        """Ask for samples missing before the last number of a publisher."""
        key, payload = str(beat.key_expr), beat.payload.to_bytes()
        name = parse_source(key)
        if beat.kind is SampleKind.DELETE or len(payload) < 4:
            return
        if name is None or not is_numbered(name):
            return
        if self._order.history and name not in self._order.sources:
            self._order.source(name, time.monotonic())
            return  # The query for the history of all sources covers it.
        source = self._order.source(name, time.monotonic())
        last = source.position(int.from_bytes(payload[:4], "little"))
        if not source.queries and (source.last is None or last > source.last):
            source.asked = last
            self._ask(key, number_range(source.next, last), source)

    # ---- queries

    def session(self) -> "Session":
        session = self._session()
        if session is None:
            raise ZError("session closed")
        return session

    def ask_for_history(self) -> None:
        """Ask all publishers for history; `_order.history` counts this query since `__init__`."""
        self._get(all_publishers_key(self._key), self._asked_history, None)

    def _ask_for_news(self) -> None:
        """Ask every source, unless a query about it is in progress, for samples after its last."""
        if not self._room:
            self.skipped += 1
            return
        for source in list(self._order.sources.values()):
            if source.numbered and source.alive is not False and not source.queries:
                self._ask_for_gap(source)

    def _ask_for_gap(self, source: OrderedSource) -> None:
        source.asked = max(source.pending, default=source.last)
        self._ask(source_key(self._key, source.name), number_range(source.next), source)

    def _ask(self, key: str, parameters: str, source: OrderedSource | None) -> None:
        if source is None:
            self._order.history += 1
        else:
            source.queries += 1
        self._get(key, parameters, source)

    def _get(self, key: str, parameters: str, source: OrderedSource | None) -> None:
        replies = RecoveryReplies(self, source)
        if self._over:
            replies.close()
            return
        selector = f"{key}?{parameters}" if parameters else key
        try:
            core_of(self.session()).queries.ask(*split_selector(selector), ASKED, replies)
        except ZError as error:
            log.debug("advanced subscriber on %s: no query: %s", self._key, error)
            replies.close()

    # ---- declarations

    def detect_late_publishers(self) -> None:
        tokens = (
            self.session()
            .liveliness()
            .declare_subscriber(
                publishers_key(self._key),
                Callback(partial(self.run, self._on_token), indirect=False),
                history=True,
            )
        )
        self.undeclares.callback(tokens.undeclare)

    def recover(self, recovery: RecoveryConfig, allowed_origin: Locality | None) -> None:
        if recovery.heartbeat:
            beats = self.session().declare_subscriber(
                publishers_key(self._key),
                Callback(partial(self.run, self._on_heartbeat), indirect=False),
                allowed_origin=allowed_origin,
            )
            self.undeclares.callback(beats.undeclare)
        period = seconds("periodic_queries", recovery.periodic_queries)
        if period is not None:
            self.periodic = SCHEDULER.every(period, partial(self.run, self._ask_for_news))
            self.undeclares.callback(self.periodic.cancel)

    # ---- delivery

    def _deliver(self) -> None:
        missed, self._order.missed = self._order.missed, []
        ready, self._order.ready = self._order.ready, []
        if missed:
            for sink in list(self._misses):
                sink.push(missed, len(missed))
        if ready:
            self._room = self._sink.push(ready, len(ready))
            self.dropped = self._sink.dropped
            if not self._room:
                self._sink.when_room(self._has_room)

    def _has_room(self) -> None:
        self._room = True

    def add_listener(self, sink: Sink[Miss]) -> None:
        self.run(self._misses.setdefault, sink)

    def remove_listener(self, sink: Sink[Miss]) -> None:
        self._misses.pop(sink, None)
        sink.close()

    def _end(self) -> None:
        self._over = True
        if self.periodic is not None:
            self.periodic.cancel()
        self._sink.close()
        misses, self._misses = self._misses, {}
        for sink in misses:
            sink.close()


class RecoveryReplies(Sink[Reply]):
    """Sink of the replies to one query, about one source or (None) about all."""

    def __init__(self, intake: SampleIntake, source: OrderedSource | None) -> None:
        super().__init__()
        self._intake = intake
        self._source = source
        self._open = threading.Lock()

    def push(self, items: Iterable[Reply], count: int) -> bool:
        self._intake.run(self._intake.on_replies, items)
        return True

    def close(self) -> None:
        # Only the first call counts; several threads may close it.
        if self._open.acquire(blocking=False):
            self._intake.run(self._intake.on_answered, self._source)


@final
class AdvancedSubscriber(KeyedEntity, Receiver[H]):
    """Subscriber that asks for history, recovers lost samples, and reports those it cannot recover.

    Made by `declare_advanced_subscriber`. Samples of one source are received in the order in which
    they were published.
    """

    _what: ClassVar[str] = "subscriber"
    _given_by = "declare_advanced_subscriber"
    __repr__ = object.__repr__

    def __init__(
        self, intake: SampleIntake, inner: "Subscriber[Any]", handler: H, background: bool
    ) -> None:
        super().__init__(intake.exchange, intake.undeclares.close, intake, handler, background)
        self._intake = intake
        self._id = inner.id.wire
        self._key_expr = inner.key_expr

    @overload
    def sample_miss_listener(
        self, /, handler: IntoChannel[Miss] = None
    ) -> "SampleMissListener[Handler[Miss]]": ...
    @overload
    def sample_miss_listener(self, /, handler: CallbackAnd[Miss, X]) -> "SampleMissListener[X]": ...
    @overload
    def sample_miss_listener(
        self, /, handler: IntoCallback[Miss]
    ) -> "SampleMissListener[None]": ...
    def sample_miss_listener(self, /, handler: object = None) -> "SampleMissListener[X]":
        """Receive a Miss for samples that were lost and not recovered.

        Only publishers that were declared with `sample_miss_detection` number their samples.
        """
        self._check()
        sink, reader, background = make_sink(handler, f"zenlake-misses-{self.key_expr}")
        self._intake.add_listener(sink)
        end = partial(self._intake.remove_listener, sink)
        return make(SampleMissListener, self._exchange, end, sink, reader, background)

    @overload
    def detect_publishers(
        self, /, handler: "ArrowBatches", *, history: bool | None = None
    ) -> "Subscriber[Handler[RecordBatch]]": ...
    @overload
    def detect_publishers(
        self, /, handler: IntoChannel[Sample] = None, *, history: bool | None = None
    ) -> "Subscriber[Handler[Sample]]": ...
    @overload
    def detect_publishers(
        self, /, handler: CallbackAnd[Sample, X], *, history: bool | None = None
    ) -> "Subscriber[X]": ...
    @overload
    def detect_publishers(
        self, /, handler: IntoCallback[Sample], *, history: bool | None = None
    ) -> "Subscriber[None]": ...
    def detect_publishers(
        self, /, handler: object = None, *, history: bool | None = None
    ) -> "Subscriber[X]":
        """Receive samples when matching publishers with `publisher_detection` appear and go.

        With `history` publishers that are there already are received first.
        """
        self._check()
        liveliness = self._intake.session().liveliness()
        declared: Subscriber[X] = liveliness.declare_subscriber(
            publishers_key(self.key_expr), cast(Any, handler), history=history
        )
        return declared


@final
class SampleMissListener(Receiver[H]):
    """Receiver of a Miss for each run of samples that were lost."""

    _what: ClassVar[str] = "sample-miss listener"
    _given_by = "AdvancedSubscriber.sample_miss_listener"

    def undeclare(self, /) -> None:
        """Stop receiving; misses received before can still be read."""
        super().undeclare()
        self._sink.join(JOIN)


@overload
def declare_advanced_subscriber(
    session: "Session",
    key_expr: KeyExpr | str,
    handler: "ArrowBatches",
    *,
    allowed_origin: Locality | None = None,
    history: HistoryConfig | None = None,
    recovery: RecoveryConfig | None = None,
    subscriber_detection: bool | None = None,
) -> "AdvancedSubscriber[Handler[RecordBatch]]": ...
@overload
def declare_advanced_subscriber(
    session: "Session",
    key_expr: KeyExpr | str,
    handler: IntoChannel[Sample] = None,
    *,
    allowed_origin: Locality | None = None,
    history: HistoryConfig | None = None,
    recovery: RecoveryConfig | None = None,
    subscriber_detection: bool | None = None,
) -> AdvancedSubscriber[Handler[Sample]]: ...
@overload
def declare_advanced_subscriber(
    session: "Session",
    key_expr: KeyExpr | str,
    handler: CallbackAnd[Sample, H],
    *,
    allowed_origin: Locality | None = None,
    history: HistoryConfig | None = None,
    recovery: RecoveryConfig | None = None,
    subscriber_detection: bool | None = None,
) -> AdvancedSubscriber[H]: ...
@overload
def declare_advanced_subscriber(
    session: "Session",
    key_expr: KeyExpr | str,
    handler: IntoCallback[Sample],
    *,
    allowed_origin: Locality | None = None,
    history: HistoryConfig | None = None,
    recovery: RecoveryConfig | None = None,
    subscriber_detection: bool | None = None,
) -> AdvancedSubscriber[None]: ...
def declare_advanced_subscriber(
    session: "Session",
    key_expr: KeyExpr | str,
    handler: object = None,
    *,
    allowed_origin: Locality | None = None,
    history: HistoryConfig | None = None,
    recovery: RecoveryConfig | None = None,
    subscriber_detection: bool | None = None,
) -> AdvancedSubscriber[H]:
    """Declare a subscriber of `key_expr`, with history, recovery and miss detection as configured.

    `subscriber_detection` declares a liveliness token by which other sessions see this subscriber.
    """
    key = KeyExpr(key_expr)
    _check(history)
    sink, reader, background = make_sink(handler, f"zenlake-advanced-{key}", of_samples=True)
    intake = SampleIntake(session, key, sink, history, recovery)
    inner = core_of(session).subscribers.declare(key_expr, intake, allowed_origin)
    intake.undeclares.callback(inner.undeclare)
    try:
        if history is not None:
            intake.ask_for_history()
            if history.detect_late_publishers:
                intake.detect_late_publishers()
        if recovery is not None:
            intake.recover(recovery, allowed_origin)
        if subscriber_detection:
            token = own_key(key, "sub", inner.id.zid, inner.id.eid)
            intake.undeclares.callback(session.liveliness().declare_token(token).undeclare)
    except BaseException:
        intake.undeclares.close()
        raise
    return make(AdvancedSubscriber, intake, inner, reader, background)


def _check(history: HistoryConfig | None) -> None:
    if history is not None and history.max_samples == 0:
        raise ZError("max_samples must not be zero: leave it out to ask for all there is")
    if history is not None and history.max_age is not None and not history.max_age > 0:
        raise ZError("max_age must not be zero: it is in seconds; leave it out for any age")


def _history_parameters(history: HistoryConfig | None) -> str:
    """Return the parameters of a query for history.

    >>> _history_parameters(HistoryConfig(max_samples=3, max_age=1.5))
    '_max=3;_time=[now(-1.500000s)..]'
    """
    asked = []
    if history is not None and history.max_samples is not None:
        asked.append(f"_max={history.max_samples}")
    if history is not None and history.max_age is not None:
        asked.append(f"_time=[now(-{history.max_age:f}s)..]")
    return ";".join(asked)
