"""Matching status and liveliness tokens: declarations of other sessions that this session watches.

Knows the INTERESTs of one session and the declarations received for them. Does not know who
declared, nor what publishers, queriers and liveliness subscribers do with it.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, final, overload

from zenlake.api.entity import KeyedEntity
from zenlake.api.exchange_protocol import ExchangeLike
from zenlake.api.handlers import (
    CallbackAnd,
    Handler,
    IntoCallback,
    IntoChannel,
    Receiver,
    make_sink,
)
from zenlake.api.sinks import Sink
from zenlake.api.values.enums import Locality
from zenlake.api.values.sample import Sample
from zenlake.api.values.wrapped import Unconstructed, make
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.keyexpr.match import includes, intersects
from zenlake.keyexpr.tree import KeyExprTree
from zenlake.serial import SerialExecutor
from zenlake.wire import qos
from zenlake.wire.declare import (
    Declare,
    DeclareFinal,
    DeclareQueryable,
    DeclareSubscriber,
    DeclareToken,
    UndeclareQueryable,
    UndeclareSubscriber,
    UndeclareToken,
)
from zenlake.wire.delete import Del
from zenlake.wire.enums import InterestMode, InterestOptions, Mapping
from zenlake.wire.interest import Interest
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr

if TYPE_CHECKING:
    from zenlake.api.query.get import PendingGet

log = logging.getLogger("zenlake.api")

# Upper bound on remote declarations of each kind; further ones are ignored, logged and counted.
MAX_DECLARED = 1_048_576

Kind = Literal["subscribers", "queryables"]
H = TypeVar("H")

_OPTIONS = {
    "subscribers": InterestOptions.KEYEXPRS | InterestOptions.SUBSCRIBERS,
    "queryables": InterestOptions.KEYEXPRS | InterestOptions.QUERYABLES,
}
_TOKENS = InterestOptions.KEYEXPRS | InterestOptions.TOKENS
_ALIVE, _GONE = Put(), Del()


@final
@dataclass(frozen=True, order=True, slots=True)
class MatchingStatus(metaclass=Unconstructed):
    """Whether a subscriber or queryable matches the key expression of a publisher or querier."""

    matching: bool
    "Whether a subscriber matches the publisher, or a queryable the querier."


class MatchWatch:
    """Watch of whether any entity, remote or local, matches a key.

    `local` returns whether an entity of this session matches; call `recheck` when that may have
    changed.
    """

    def __init__(
        self,
        interests: "SessionInterests",
        kind: Kind,
        key: KeyExpr,
        complete: bool,
        local: Callable[[], bool],
        destination: Locality,
    ) -> None:
        self.key = key
        self.complete = complete
        "Whether only a complete queryable counts whose key includes this one."
        self.counts_remote = destination is not Locality.SESSION_LOCAL
        "Whether declarations of other sessions count."
        self.remote: set[int] = set()
        "Ids of remote declarations that intersect the key."
        self.exchange = interests.exchange
        self._interests = interests
        self._kind = kind
        self._local = local
        self._destination = destination
        self._listeners: dict[object, tuple[Callable[[bool], None], Callable[[], None]]] = {}
        self._told = False
        "Status that the listeners were told last."
        self._notifications = SerialExecutor("matching")
        self._closed = False

    @property
    def matching(self) -> bool:
        """Whether there is a match now."""
        if self.counts_remote and self._interests.matches(self._kind, self):
            return True
        return self._destination is not Locality.REMOTE and self._local()

    def listen(
        self, call: Callable[[bool], None], end: Callable[[], None] = lambda: None
    ) -> Callable[[], None]:
        """Call `call` with True if there is a match now, then with every change; `end` on closing.

        Returns a function that stops the calls.
        """
        token = object()
        with self._interests.lock:
            if self._closed:
                raise ZError("session closed")
            self._listeners[token] = call, end
        self._update(news=call)
        return partial(self._stop, token)

    def recheck(self) -> None:
        """Notify the listeners if the status has changed."""
        if self._listeners:
            self._update()

    def close(self) -> None:
        """Stop watching, and end the listeners."""
        self._interests.unwatch(self._kind, self)
        self.end()

    def end(self) -> None:
        """End the listeners."""
        with self._interests.lock:
            self._closed = True
            listeners, self._listeners = list(self._listeners.values()), {}
        for _, end in listeners:
            end()

    def _stop(self, token: object) -> None:
        with self._interests.lock:
            _, end = self._listeners.pop(token, (None, None))
        if end is not None:
            end()

    def _update(self, news: Callable[[bool], None] | None = None) -> None:
        """Re-evaluate the match without holding locks and queue notifications, until stable."""
        while True:
            now = self.matching
            with self._interests.lock:
                if now != self._told:
                    self._told = now
                    for call, _ in self._listeners.values():
                        self._notifications.submit(partial(call, now))
                elif now and news is not None:
                    self._notifications.submit(partial(news, now))
                news = None
            self._notifications.run()
            if self.matching == now:
                return


class TokenWatch(NamedTuple):
    """Liveliness subscriber: a watch of tokens."""

    key: KeyExpr
    history: bool
    sink: Sink[Sample]

    def on_token(self, key: str, alive: bool) -> None:
        self.sink.push((Sample.of(key, _ALIVE if alive else _GONE, qos.DEFAULT),), 1)


@dataclass(slots=True)
class _RemoteDeclarations:
    """Remote declarations of one kind, and the watches on them."""

    keys: dict[int, tuple[str, bool]] = field(default_factory=dict)
    "Key, and whether a queryable is complete, by declaration id."
    by_key: KeyExprTree[int] = field(default_factory=KeyExprTree)
    watches: KeyExprTree[MatchWatch] = field(default_factory=KeyExprTree)
    counted_by: dict[int, set[MatchWatch]] = field(default_factory=dict)
    "Watches that count a declaration, by its id."
    interests: dict[str, tuple[int, int]] = field(default_factory=dict)
    "Id of the INTEREST and number of watches that share it, by key."

    def all_watches(self) -> list[MatchWatch]:
        return [watch for _, watches in self.watches for watch in watches]

    def add(self, number: int, key: str, complete: bool) -> set[MatchWatch]:
        """Add a declaration; return the watches whose status it may change."""
        if self.keys.get(number) == (key, complete):
            return set()  # Each INTEREST gets the declaration; it was counted the first time.
        touched = self.remove(number)
        self.keys[number] = key, complete
        self.by_key.insert(key, number)
        found = (watch for _, watches in self.watches.intersecting(key) for watch in watches)
        counting = self.counted_by[number] = {watch for watch in found if watch.counts_remote}
        for watch in counting:
            watch.remote.add(number)
        return touched | counting

    def remove(self, number: int) -> set[MatchWatch]:
        """Remove a declaration; return the watches whose status that may change."""
        key, _ = self.keys.pop(number, (None, False))
        if key is None:
            return set()
        self.by_key.remove(key, number)
        touched = self.counted_by.pop(number)
        for watch in touched:
            watch.remote.discard(number)
        return touched

    def open(self, watch: MatchWatch) -> None:
        self.watches.insert(watch.key, watch)
        if watch.counts_remote:
            for _, ids in self.by_key.intersecting(watch.key):
                watch.remote.update(ids)
            for number in watch.remote:
                self.counted_by[number].add(watch)

    def close(self, watch: MatchWatch) -> bool:
        """Remove `watch` and the declarations that only it counted; return False if it was not
        there.
        """
        if not self.watches.remove(watch.key, watch):
            return False
        for number in tuple(watch.remote):
            self.counted_by[number].discard(watch)
            # Without an INTEREST its undeclaration would not be received.
            if not self.counted_by[number]:
                self.remove(number)
        watch.remote = set()
        return True


def _no_declarations() -> dict[Kind, _RemoteDeclarations]:
    return {"subscribers": _RemoteDeclarations(), "queryables": _RemoteDeclarations()}


class SessionInterests:
    """Watches of one session on the declarations of other sessions."""

    def __init__(self, exchange: ExchangeLike) -> None:
        self.exchange = exchange
        self.lock = threading.RLock()
        self.counters: Counter[str] = Counter()
        "Declarations beyond MAX_DECLARED, by kind."
        self._kinds = _no_declarations()
        self._tokens: dict[int, str] = {}
        self._alive: Counter[str] = Counter()
        "Number of tokens per key."
        self._token_watches: dict[int, TokenWatch] = {}
        self._questions: dict[int, PendingGet] = {}
        self._notifications = SerialExecutor("liveliness")
        "Queued calls of token watches."

    # ---- matching

    def watch(
        self,
        kind: Kind,
        key: KeyExpr,
        *,
        complete: bool = False,
        local: Callable[[], bool] = lambda: False,
        destination: Locality = Locality.ANY,
    ) -> MatchWatch:
        """Watch whether a subscriber or queryable matches `key`: of this session (`local`), of
        others, or both.
        """
        if self.exchange.closed:
            raise ZError("session closed")
        watch = MatchWatch(self, kind, key, complete, local, destination)
        declared = self._kinds[kind]
        new = self.exchange.next_id()
        with self.lock:
            declared.open(watch)
            if not watch.counts_remote:
                return watch
            interest, sharing = declared.interests.get(key, (new, 0))
            declared.interests[key] = interest, sharing + 1
        if not sharing:
            self._send(interest, InterestMode.CURRENT_FUTURE, _OPTIONS[kind], key)
        return watch

    def unwatch(self, kind: Kind, watch: MatchWatch) -> None:
        """Stop a watch; further calls do nothing."""
        declared = self._kinds[kind]
        with self.lock:
            if not declared.close(watch) or not watch.counts_remote:
                return
            interest, sharing = declared.interests.pop(watch.key)
            if sharing > 1:
                declared.interests[watch.key] = interest, sharing - 1
        if sharing == 1:
            self._send_final(interest)

    def matches(self, kind: Kind, watch: MatchWatch) -> bool:
        """Return whether a remote declaration counts for `watch`."""
        if not watch.complete:
            return bool(watch.remote)
        with self.lock:
            found = [self._kinds[kind].keys[number] for number in watch.remote]
        return any(complete and includes(key, watch.key) for key, complete in found)

    def local_changed(self, kind: Kind = "subscribers") -> None:
        """Re-evaluate the watches after a change of the session's own subscribers or queryables."""
        with self.lock:
            watches = self._kinds[kind].all_watches()
        _recheck_all(watches)

    # ---- tokens

    def watch_tokens(self, watch: TokenWatch) -> int:
        """Start telling `watch` of tokens, with `history` also of present ones; return the interest
        id.
        """
        interest = self.exchange.next_id()
        with self.lock:
            self._token_watches[interest] = watch
            if watch.history:
                for key in self._alive:
                    if intersects(watch.key, key):
                        self._notifications.submit(partial(watch.on_token, key, True))
        self._notifications.run()
        mode = InterestMode.CURRENT_FUTURE if watch.history else InterestMode.FUTURE
        self._send(interest, mode, _TOKENS, watch.key)
        return interest

    def unwatch_tokens(self, interest: int) -> None:
        """Stop a token watch; further calls do nothing."""
        with self.lock:
            gone = self._token_watches.pop(interest, None)
            if gone is None:
                return
            others = [watch.key for watch in self._token_watches.values()]
            for number, key in list(self._tokens.items()):
                if not any(intersects(other, key) for other in others):
                    del self._tokens[number]  # Without an INTEREST its end would not be received.
                    self._forget_alive(key)
        self._send_final(interest)

    def ask_tokens(self, interest: int, key: KeyExpr, question: "PendingGet") -> None:
        """Ask for the present tokens; `question` gets each of them, then `finish`."""
        with self.lock:
            self._questions[interest] = question
        try:
            self._send(interest, InterestMode.CURRENT, _TOKENS, key)
        except ZError:
            self.forget_question(interest)
            raise

    def forget_question(self, interest: int) -> None:
        """Drop a token query whose replies are no longer wanted."""
        with self.lock:
            self._questions.pop(interest, None)

    # ---- from routing

    def on_declare(self, message: Declare) -> None:
        """Handle a declaration or undeclaration of another session."""
        handle = _HANDLERS.get(type(message.body))
        if handle is not None:
            handle(self, message, message.body)

    def close(self) -> None:
        """End all watches."""
        with self.lock:
            watches = [watch for kind in self._kinds.values() for watch in kind.all_watches()]
            self._kinds = _no_declarations()
            tokens, self._token_watches = list(self._token_watches.values()), {}
            self._questions.clear()
            self._tokens.clear()
            self._alive.clear()
        for watch in watches:
            watch.end()
        for token_watch in tokens:
            token_watch.sink.close()

    def _on_declared(self, kind: Kind, body: DeclareSubscriber | DeclareQueryable) -> None:
        complete = isinstance(body, DeclareQueryable) and body.info.complete
        with self.lock:
            declared = self._kinds[kind]
            if len(declared.keys) >= MAX_DECLARED and body.id not in declared.keys:
                self._ignore(kind)
                return
            touched = declared.add(body.id, body.key.suffix, complete)
        _recheck_all(touched)

    def _ignore(self, kind: str) -> None:
        """Count a declaration beyond the limit, and log the first one of its kind."""
        if not self.counters[kind]:
            text = "other nodes have more than %s %s: further ones are not noticed here"
            log.warning(text, f"{MAX_DECLARED:,}", kind)
        self.counters[kind] += 1

    def _on_undeclared(self, kind: Kind, number: int) -> None:
        with self.lock:
            touched = self._kinds[kind].remove(number)
        _recheck_all(touched)

    def _on_token(self, message: Declare, body: DeclareToken) -> None:
        key, interest = body.key.suffix, message.interest_id
        with self.lock:
            question = None if interest is None else self._questions.get(interest)
            # A token without an id answers a query; it is useless once that has ended.
            if question is None and body.id and body.id not in self._tokens:
                if len(self._tokens) >= MAX_DECLARED:
                    self._ignore("tokens")
                    return
                self._tokens[body.id] = key
                self._alive[key] += 1
                if self._alive[key] == 1:
                    self._tell(key, True, current=interest is not None)
        self._notifications.run()
        if question is not None:
            question.add_token(key)

    def _on_token_gone(self, message: Declare, body: UndeclareToken) -> None:
        with self.lock:
            known = self._tokens.pop(body.id, None)
            if known is not None:
                if self._forget_alive(known):
                    self._tell(known, False)
            elif body.key is not None and body.key.suffix:  # A token older than the watch.
                self._tell(body.key.suffix, False)
        self._notifications.run()

    def _on_final(self, message: Declare, body: DeclareFinal) -> None:
        with self.lock:
            question = self._questions.pop(message.interest_id or 0, None)
        if question is not None:
            question.finish()

    def _tell(self, key: str, alive: bool, current: bool = False) -> None:
        for watch in self._token_watches.values():
            if (watch.history or not current) and intersects(watch.key, key):
                self._notifications.submit(partial(watch.on_token, key, alive))

    def _forget_alive(self, key: str) -> bool:
        """Count down the tokens of `key`; return whether it was the last."""
        self._alive[key] -= 1
        if self._alive[key] > 0:
            return False
        del self._alive[key]
        return True

    def _send(
        self, number: int, mode: InterestMode, options: InterestOptions, key: KeyExpr
    ) -> None:
        wire_key = WireExpr(0, key, Mapping.SENDER)
        self.exchange.send(Interest(number, mode, options, wire_key, qos.DECLARE))

    def _send_final(self, number: int) -> None:
        with suppress(ZError):  # A closed session has ended all interests.
            self.exchange.send(Interest(number, qos=qos.DECLARE))


def _recheck_all(watches: Iterable[MatchWatch]) -> None:
    for watch in watches:
        watch.recheck()


_HANDLERS: dict[type, Callable[[SessionInterests, Declare, Any], None]] = {
    DeclareSubscriber: lambda interests, _, body: interests._on_declared("subscribers", body),
    UndeclareSubscriber: lambda interests, _, body: interests._on_undeclared(
        "subscribers", body.id
    ),
    DeclareQueryable: lambda interests, _, body: interests._on_declared("queryables", body),
    UndeclareQueryable: lambda interests, _, body: interests._on_undeclared("queryables", body.id),
    DeclareToken: SessionInterests._on_token,
    UndeclareToken: SessionInterests._on_token_gone,
    DeclareFinal: SessionInterests._on_final,
}


@final
class MatchingListener(Receiver[H], Generic[H]):
    """Receiver of each change of a matching status; made by a publisher or a querier.

    If there is a match already, the first status is received at once.
    """

    _what = "matching listener"
    _given_by = "declare_matching_listener of a publisher or querier"

    def __init__(self, watch: MatchWatch, handler: object = None) -> None:
        sink, reader, background = make_sink(handler, f"zenlake matching {watch.key}")

        def tell(matching: bool) -> None:
            sink.push((make(MatchingStatus, matching),), 1)

        try:
            stop = watch.listen(tell, sink.close)
        except ZError:
            sink.close()
            raise
        super().__init__(watch.exchange, stop, sink, reader, background)

    def __repr__(self) -> str:
        self._check()
        return "MatchingListener()"


class WatchedEntity(KeyedEntity):
    """Base of publisher and querier: entities that subscribers or queryables match."""

    _watch: MatchWatch

    @property
    def matching_status(self) -> MatchingStatus:
        """Whether a subscriber matches the publisher, or a queryable the querier."""
        self._check()
        return make(MatchingStatus, self._watch.matching)

    @overload
    def declare_matching_listener(
        self, /, handler: IntoChannel[MatchingStatus] = None
    ) -> MatchingListener[Handler[MatchingStatus]]: ...
    @overload
    def declare_matching_listener(
        self, /, handler: CallbackAnd[MatchingStatus, H]
    ) -> MatchingListener[H]: ...
    @overload
    def declare_matching_listener(
        self, /, handler: IntoCallback[MatchingStatus]
    ) -> MatchingListener[None]: ...
    def declare_matching_listener(self, /, handler: object = None) -> MatchingListener[H]:
        """Declare a listener that receives each change of the matching status."""
        self._check()
        return make(MatchingListener, self._watch, handler)
