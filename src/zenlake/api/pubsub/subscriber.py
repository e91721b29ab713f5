"""Subscribers: those a session has declared, and the samples that reach them.

Knows who wants a key, and how samples are handed over. Does not know where samples come from.
"""

from collections.abc import Iterable
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from zenlake.api.arguments import IntoKeyExpr, key_of, member
from zenlake.api.gc_finalize import finalize_safely
from zenlake.api.handlers import Receiver, Sink, make_sink
from zenlake.api.values.enums import Locality
from zenlake.api.values.ids import EntityGlobalId
from zenlake.api.values.sample import Sample, SampleChunk, samples, samples_of
from zenlake.api.values.wrapped import make
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.keyexpr.tree import KeyExprTree
from zenlake.runtime.exchange import Exchange
from zenlake.wire import entity, qos
from zenlake.wire.declare import Declare, DeclareSubscriber, UndeclareSubscriber
from zenlake.wire.enums import Mapping
from zenlake.wire.wireexpr import WireExpr

if TYPE_CHECKING:
    from zenlake.api.discovery.matching import SessionInterests
    from zenlake.runtime.local_delivery import Delivery, RawPush, RunPart
    from zenlake.runtime.session_face import SessionFace
    from zenlake.wire.push_run import PushRun

MAX_KNOWN_KEYS = 8_192  # whose subscribers are remembered,
LONG_KEY = 1024  # unless they are longer
NOBODY: tuple["SubscriberEntry", ...] = ()

H = TypeVar("H")


class SubscriberEntry:
    """A subscriber, as long as it is declared."""

    __slots__ = ("id", "keys", "origin", "sink")

    def __init__(self, keys: dict[int, KeyExpr], origin: Locality, sink: Sink[Any]) -> None:
        self.id = next(iter(keys))
        self.keys = keys
        "By the number of the declaration. What several of them match it hears once."
        self.origin = origin
        self.sink = sink

    def accepts(self, local: bool) -> bool:
        """Whether it wants the puts of its own session (`local`), or those of other sessions."""
        return self.origin is Locality.ANY or local is (self.origin is Locality.SESSION_LOCAL)


class RunSink(Sink[Any]):
    """A sink that takes samples by the run, as the scan found them: no Sample is made."""

    messages_from: int | None = None
    """From how many bytes on a sample that came alone is given as the message that it was, to
    `push_message`; None: never."""

    def push_run(self, run: "PushRun", rows: Any, keys: Any, port: "SessionFace | None") -> bool:
        """The rows of `run` that `rows` names (None: all), by the key table of their link."""
        raise NotImplementedError

    def push_message(self, one: "RawPush") -> bool:
        raise NotImplementedError

    def push_one(self, sample: Sample) -> bool:
        raise NotImplementedError

    def push(self, items: Iterable[Sample], count: int) -> bool:
        room = True
        for sample in items:
            room = self.push_one(sample)
        return room


class Subscriber(Receiver[H], Generic[H]):
    """Receives samples on a key expression; made by `Session.declare_subscriber`.

    Iterate it, or call `recv()`; with a callback it needs nothing more. Undeclared by
    `undeclare()`, by the end of a `with` block, and when nothing holds it any more (unless a
    callback gets its samples: that goes on until the session closes).
    """

    _what = "subscriber"
    _given_by = "session.declare_subscriber"

    def __init__(
        self, subscribers: "Subscribers", declared: SubscriberEntry, handler: H, background: bool
    ) -> None:
        super().__init__(declared.sink, handler)
        self._subscribers = subscribers
        self._declared = declared
        self._background = background

    @property
    def id(self) -> EntityGlobalId:
        """Its id in the whole system."""
        self._check()
        zid = self._subscribers.exchange.zid
        return EntityGlobalId.of(entity.WireEntityId(zid, self._declared.id))

    @property
    def key_expr(self) -> KeyExpr:
        """What it subscribed to."""
        self._check()
        return self._declared.keys[self._declared.id]

    def undeclare(self, /) -> None:
        """Receive no more. Whoever waits in `recv()` is woken."""
        self._check()
        self._undeclared = True
        self._subscribers.undeclare(self._declared)

    def __del__(self) -> None:
        if not getattr(self, "_undeclared", True) and not self._background:
            self._undeclared = True
            declared, subscribers = self._declared, self._subscribers
            finalize_safely(subscribers.exchange, lambda: subscribers.undeclare(declared))

    def __repr__(self) -> str:
        self._check()
        return f"Subscriber({self.key_expr!r})"


class Subscribers:
    """The subscribers of one session."""

    def __init__(self, exchange: Exchange, interests: "SessionInterests") -> None:
        self.exchange = exchange
        self._interests = interests
        self._tree: KeyExprTree[SubscriberEntry] = KeyExprTree()
        self._all: dict[int, SubscriberEntry] = {}
        self._found: tuple[
            dict[str, tuple[SubscriberEntry, ...]], dict[str, tuple[SubscriberEntry, ...]]
        ]
        self._found = ({}, {})
        "Who hears what comes from others, and what the session itself puts, by key."
        self._sets: dict[tuple[int, ...], tuple[SubscriberEntry, ...]] = {}
        self._let_go = 0
        "By handlers of subscribers that are no more."

    def declare(
        self, key_expr: IntoKeyExpr, handler: Any, allowed_origin: Locality | None
    ) -> Subscriber[Any]:
        key = key_of(key_expr)
        origin = member("allowed_origin", allowed_origin, Locality.DEFAULT)
        sink, given, background = make_sink(handler, f"zenlake subscriber {key}")
        return make(Subscriber, self, self.declare_sink([key], sink, origin), given, background)

    def declare_sink(
        self, keys: Iterable[KeyExpr], sink: Sink[Any], origin: Locality = Locality.DEFAULT
    ) -> SubscriberEntry:
        """One subscriber, whatever the number of its keys."""
        declared = SubscriberEntry({self.exchange.next_id(): key for key in keys}, origin, sink)
        with self.exchange.lock:
            self._all[declared.id] = declared
            for key in declared.keys.values():
                self._tree.insert(key, declared)
            self._changed()
        if origin is not Locality.SESSION_LOCAL:
            for number, key in declared.keys.items():
                body = DeclareSubscriber(number, WireExpr(0, key, Mapping.SENDER))
                self.exchange.send(Declare(body, qos=qos.DECLARE))
        self._interests.local_changed()
        return declared

    def undeclare(self, declared: SubscriberEntry) -> None:
        with self.exchange.lock:
            if self._all.pop(declared.id, None) is None:
                return
            for key in declared.keys.values():
                self._tree.remove(key, declared)
            self._changed()
        if declared.origin is not Locality.SESSION_LOCAL:
            with suppress(ZError):  # a closed session has taken all back
                for number in declared.keys:
                    self.exchange.send(Declare(UndeclareSubscriber(number), qos=qos.DECLARE))
        declared.sink.close()
        self._let_go += declared.sink.dropped
        self._interests.local_changed()

    def close(self) -> list[Sink[Any]]:
        """Nothing comes any more; gives the sinks, some of which still deliver what waits."""
        with self.exchange.lock:
            sinks = [declared.sink for declared in self._all.values()]
            self._all.clear()
            self._tree = KeyExprTree()
            self._changed()
        for sink in sinks:
            sink.close()
            self._let_go += sink.dropped
        return sinks

    @property
    def dropped(self) -> int:
        """Samples that the handlers let go."""
        return self._let_go + sum(one.sink.dropped for one in list(self._all.values()))

    def _changed(self) -> None:
        self._found = ({}, {})
        self._sets = {}
        self.exchange.changed()

    def matching(self, key: str, *, local: bool = False) -> tuple[SubscriberEntry, ...]:
        """Return the subscribers that match a put on `key` by other sessions, or by this session
        (`local`). Equal sets return the identical tuple."""
        known = self._found[local]
        found = known.get(key)
        if found is None:
            with self.exchange.lock:
                accepting = {
                    declared.id: declared
                    for _, values in self._tree.intersecting(key)
                    for declared in values
                    if declared.accepts(local)
                }
                numbers = tuple(sorted(accepting))
                found = tuple(accepting[number] for number in numbers)
                found = self._sets.setdefault(numbers, found) if found else NOBODY
                known = self._found[local]
                if len(known) >= MAX_KNOWN_KEYS:
                    known.clear()
                if len(key) <= LONG_KEY:
                    known[key] = found
        return found

    def deliver(
        self, subscribers: tuple[SubscriberEntry, ...], delivery: "Delivery"
    ) -> list[Sink[Any]]:
        """Hand samples to `subscribers`; return the sinks that are now over capacity."""
        full: list[Sink[Any]] = []
        items: Iterable[Sample] = ()
        part, message, count = delivery.part, delivery.message, delivery.count
        if part is None:
            data = repeat(delivery.data)
            items = samples(delivery.keys, data, delivery.starts, delivery.ends, delivery.rests)
        elif not all(isinstance(entry.sink, RunSink) for entry in subscribers):
            items = _scanned_samples(delivery, part)
        if len(subscribers) > 1:
            items = tuple(items)
        for declared in subscribers:
            sink = declared.sink
            if sink.elastic:
                sink.fit(int(delivery.ends[-1] - delivery.starts[0]) // count)
            if part is not None and isinstance(sink, RunSink):
                room = sink.push_run(*part)
            elif message is not None and isinstance(sink, RunSink) and _wants(sink, message):
                room = sink.push_message(message)
            else:
                room = sink.push(items, count)
            if not room:
                full.append(sink)
        return full


def _scanned_samples(delivery: "Delivery", part: "RunPart") -> Iterable[Sample]:
    """Return the samples of scanned rows, made as they are taken."""
    starts, ends = delivery.starts, delivery.ends
    assert not isinstance(starts, tuple)
    assert not isinstance(ends, tuple)
    # Copies: the next scan overwrites the arrays.
    chunk = SampleChunk(delivery.data, starts.copy(), ends.copy(), part.run.places(part.rows))
    return samples_of(delivery.keys, chunk, delivery.count)


def _wants(sink: RunSink, one: "RawPush") -> bool:
    """Whether it takes the message itself."""
    _, _, _, _, start, end, _ = one
    return sink.messages_from is not None and end - start >= sink.messages_from
