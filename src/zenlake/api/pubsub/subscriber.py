"""Subscribers of one session, and the delivery of samples to them.

Knows which subscribers match a key, and how samples are handed over. Does not know where samples
come from.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from zenlake.api.arguments import IntoKeyExpr, key_of, member
from zenlake.api.entity import KeyedEntity
from zenlake.api.exchange_protocol import ExchangeLike
from zenlake.api.handlers import Receiver, make_sink
from zenlake.api.sinks import Sink
from zenlake.api.values.enums import Locality
from zenlake.api.values.sample import Sample, SampleChunk, SharedChunk, samples, samples_of
from zenlake.api.values.wrapped import make
from zenlake.caching import BoundedCache
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.keyexpr.tree import KeyExprTree
from zenlake.runtime.exchange import Exchange
from zenlake.wire import qos
from zenlake.wire.declare import Declare, DeclareSubscriber, UndeclareSubscriber
from zenlake.wire.entity import WireEntityId
from zenlake.wire.enums import Mapping
from zenlake.wire.wireexpr import WireExpr

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from zenlake.api.discovery.matching import SessionInterests
    from zenlake.keytable import KeyTable
    from zenlake.runtime.local_delivery import Delivery, RawPush, RunPart
    from zenlake.runtime.session_face import SessionFace
    from zenlake.shm.pointers import HeldPayload, HeldPayloads
    from zenlake.wire.push import Push
    from zenlake.wire.push_run import PushRun

MAX_KNOWN_KEYS = 8_192  # Keys whose matching subscribers are remembered.
NO_SUBSCRIBERS: tuple["SubscriberEntry", ...] = ()

H = TypeVar("H")
_EntryCache = BoundedCache[str, tuple["SubscriberEntry", ...]]


class SubscriberEntry:
    """Declared subscriber: its keys, allowed origin and sink."""

    __slots__ = ("id", "keys", "origin", "sink")

    def __init__(self, keys: dict[int, KeyExpr], origin: Locality, sink: Sink[Any]) -> None:
        self.id = next(iter(keys))
        self.keys = keys
        "Key expressions by declaration id; a sample that several of them match is delivered once."
        self.origin = origin
        self.sink = sink

    def accepts(self, local: bool) -> bool:
        """Whether it wants the puts of its own session (`local`), or those of other sessions."""
        return self.origin is Locality.ANY or local is (self.origin is Locality.SESSION_LOCAL)


class RunSink(Sink[Any]):
    """Sink that takes samples by the run, as the scan found them, so that no Sample is made."""

    of_samples = True
    messages_from: int | None = None
    """Least size in bytes from which a sample that arrived alone is passed to `push_message` as its
    encoded message; None: never.
    """

    def push_run(
        self,
        run: "PushRun",
        rows: "npt.NDArray[np.int64] | None",
        keys: "KeyTable",
        port: "SessionFace | None",
    ) -> bool:
        """Take the rows of `run` that `rows` selects (None: all), and their link's key table."""
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


@final
class Subscriber(KeyedEntity, Receiver[H], Generic[H]):
    """Receiver of samples on a key expression; made by `Session.declare_subscriber`.

    Iterate it, or call `recv()`; with a callback neither is needed. It is undeclared by
    `undeclare()`, by the end of a `with` block, and when the last reference to it goes. With a
    callback it stays until the session closes, whether it is referenced or not.
    """

    _what = "subscriber"
    _given_by = "session.declare_subscriber"

    def __init__(
        self,
        exchange: ExchangeLike,
        declared: SubscriberEntry,
        end: Callable[[SubscriberEntry], None],
        handler: H,
        background: bool,
    ) -> None:
        super().__init__(exchange, partial(end, declared), declared.sink, handler, background)
        self._id = WireEntityId(exchange.zid, declared.id)
        self._key_expr = declared.keys[declared.id]


def _new_caches() -> tuple[_EntryCache, _EntryCache]:
    """Return empty caches of matches: for puts by other sessions, and by this one."""
    return _EntryCache(MAX_KNOWN_KEYS), _EntryCache(MAX_KNOWN_KEYS)


class Subscribers:
    """Subscribers of one session."""

    def __init__(self, exchange: Exchange, interests: "SessionInterests") -> None:
        self.exchange = exchange
        self._interests = interests
        self._tree: KeyExprTree[SubscriberEntry] = KeyExprTree()
        self._all: dict[int, SubscriberEntry] = {}
        self._by_key = _new_caches()
        """Matching subscribers by key: of samples from other sessions, and of this session's own
        puts."""
        self._sets: dict[tuple[int, ...], tuple[SubscriberEntry, ...]] = {}
        self._dropped_before = 0
        "Drops counted by handlers of subscribers that were undeclared."

    def declare(
        self, key_expr: IntoKeyExpr, handler: Any, allowed_origin: Locality | None
    ) -> Subscriber[Any]:
        key = key_of(key_expr)
        origin = member("allowed_origin", allowed_origin, Locality.DEFAULT)
        sink, given, background = make_sink(handler, f"zenlake subscriber {key}", of_samples=True)
        declared = self.declare_sink([key], sink, origin)
        return make(Subscriber, self.exchange, declared, self.undeclare, given, background)

    def declare_sink(
        self, keys: Iterable[KeyExpr], sink: Sink[Any], origin: Locality = Locality.DEFAULT
    ) -> SubscriberEntry:
        """Declare one subscriber on any number of keys."""
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
            with suppress(ZError):  # A closed session has undeclared everything.
                for number in declared.keys:
                    self.exchange.send(Declare(UndeclareSubscriber(number), qos=qos.DECLARE))
        declared.sink.close()
        self._dropped_before += declared.sink.dropped
        self._interests.local_changed()

    def close(self) -> list[Sink[Any]]:
        """Close all sinks and return them; some still deliver queued samples."""
        with self.exchange.lock:
            sinks = [declared.sink for declared in self._all.values()]
            self._all.clear()
            self._tree = KeyExprTree()
            self._changed()
        for sink in sinks:
            sink.close()
            self._dropped_before += sink.dropped
        return sinks

    @property
    def dropped(self) -> int:
        """Number of samples that handlers dropped."""
        return self._dropped_before + sum(entry.sink.dropped for entry in list(self._all.values()))

    def _changed(self) -> None:
        self._by_key = _new_caches()
        self._sets = {}
        self.exchange.changed()

    def matching(self, key: str, *, local: bool = False) -> tuple[SubscriberEntry, ...]:
        """Return the subscribers that match a put on `key` by other sessions, or by this session
        (`local`). Equal sets return the identical tuple."""
        known = self._by_key[local]
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
                found = self._sets.setdefault(numbers, found) if found else NO_SUBSCRIBERS
                self._by_key[local].keep(key, found, len(key))
        return found

    def takes_bytes(self, subscribers: tuple[SubscriberEntry, ...]) -> bool:
        """Return whether one of `subscribers` takes the bytes of messages instead of samples."""
        return any(isinstance(entry.sink, RunSink) for entry in subscribers)

    def deliver(
        self, subscribers: tuple[SubscriberEntry, ...], delivery: "Delivery"
    ) -> list[Sink[Any]]:
        """Hand samples to `subscribers`; return the sinks that are now over capacity."""
        full: list[Sink[Any]] = []
        items: Iterable[Sample] = ()
        part, message, count = delivery.part, delivery.message, delivery.count
        if delivery.payloads is not None:
            items = _shared_samples(delivery, delivery.payloads)
        elif part is None:
            data = repeat(delivery.data)
            items = samples(delivery.keys, data, delivery.starts, delivery.ends, delivery.rests)
        elif not all(isinstance(entry.sink, RunSink) for entry in subscribers):
            items = _scanned_samples(delivery, part)
        if len(subscribers) > 1:
            items = tuple(items)
        for declared in subscribers:
            sink = declared.sink
            if not sink.elastic:
                pass
            elif delivery.payloads is None:
                sink.fit(int(delivery.ends[-1] - delivery.starts[0]) // count)
            else:
                sink.fit(delivery.payloads.mean_size)
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
    rests = part.run.message_starts(part.rows)
    starts, ends = delivery.starts, delivery.ends
    assert not isinstance(starts, tuple)
    assert not isinstance(ends, tuple)
    # Copies: the next scan overwrites the arrays.
    chunk = SampleChunk(delivery.data, starts.copy(), ends.copy(), rests)
    return samples_of(delivery.keys, chunk, delivery.count)


def _shared_samples(
    delivery: "Delivery", payloads: "HeldPayload | HeldPayloads"
) -> Iterable[Sample]:
    """Return samples with payloads in shared memory, made as they are taken."""
    part = delivery.part
    numbers: Sequence[int] = range(delivery.count)
    rests: Sequence[int | Push | None] | None
    if part is None:
        rests = tuple(delivery.rests)
    else:
        rests = part.run.message_starts(part.rows)
        if part.rows is not None:
            numbers = part.rows.tolist()
    chunk = SharedChunk(delivery.data, payloads, numbers, rests)
    return samples_of(delivery.keys, chunk, delivery.count)


def _wants(sink: RunSink, one: "RawPush") -> bool:
    """Whether it takes the message itself."""
    _, _, _, _, start, end, _ = one
    return sink.messages_from is not None and end - start >= sink.messages_from
