"""What is declared elsewhere, as far as this session wants to know: matching status and tokens.

Knows the INTERESTs of one session and what was declared for them. Does not know who declared it,
nor what publishers, queriers and liveliness subscribers do with it.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar

from zenlake.api.gc_finalize import ExchangeLike, finalize_safely
from zenlake.api.handlers import Receiver, make_sink
from zenlake.api.values.enums import Locality
from zenlake.api.values.wrapped import Unconstructed, Value, make
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.keyexpr.match import includes, intersects
from zenlake.keyexpr.tree import KeyExprTree
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
from zenlake.wire.enums import InterestMode, InterestOptions, Mapping
from zenlake.wire.interest import Interest
from zenlake.wire.wireexpr import WireExpr

MAX_DECLARED = 1_048_576  # of each kind, declared elsewhere; more are not seen, and counted

Kind = Literal["subscribers", "queryables"]
H = TypeVar("H")

_OPTIONS = {
    "subscribers": InterestOptions.KEYEXPRS | InterestOptions.SUBSCRIBERS,
    "queryables": InterestOptions.KEYEXPRS | InterestOptions.QUERYABLES,
}
_TOKENS = InterestOptions.KEYEXPRS | InterestOptions.TOKENS


class MatchingStatus(Value, metaclass=Unconstructed):
    """Whether anything matches a publisher's or querier's key expression."""

    __slots__ = ("_matching",)

    def __init__(self, matching: bool) -> None:
        self._matching = matching

    @property
    def matching(self) -> bool:
        """Is there a subscriber for the publisher, a queryable for the querier?"""
        return self._matching

    def _key(self) -> bool:
        return self._matching

    def __repr__(self) -> str:
        return f"MatchingStatus(matching={self._matching})"


class _Sayings:
    """Calls to make in order, one at a time, by whoever comes, outside of all locks."""

    __slots__ = ("_busy", "_calls")

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._busy = threading.Lock()

    def note(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def say(self) -> None:
        while self._calls and self._busy.acquire(blocking=False):
            try:
                while self._calls:
                    self._calls.popleft()()
            finally:
                self._busy.release()


class MatchWatch:
    """Whether there is a match for a key: something that was declared elsewhere, or here.

    `local` says whether there is one in this very session; `recheck` when that may have changed.
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
        "Only a complete queryable counts, whose key includes this one."
        self.hears = destination is not Locality.SESSION_LOCAL
        "What others declare counts."
        self.remote: set[int] = set()
        "Declarations of others that intersect the key."
        self.exchange = interests.exchange
        self._interests = interests
        self._kind = kind
        self._local = local
        self._destination = destination
        self._listeners: dict[object, tuple[Callable[[bool], None], Callable[[], None]]] = {}
        self._said = False
        "What the listeners were told last."
        self._sayings = _Sayings()
        self._closed = False

    @property
    def matching(self) -> bool:
        """Is there one now?"""
        if self.hears and self._interests.matches(self._kind, self):
            return True
        return self._destination is not Locality.REMOTE and self._local()

    def status(self) -> MatchingStatus:
        """The same, as the API shows it."""
        return make(MatchingStatus, self.matching)

    def declare_listener(self, handler: Any = None) -> "MatchingListener[Any]":
        """Be told when it changes."""
        return make(MatchingListener, self, handler)

    def listen(
        self, call: Callable[[bool], None], end: Callable[[], None] = lambda: None
    ) -> Callable[[], None]:
        """`call` with True if there is a match, then with every change; `end` when this closes.

        The result stops it.
        """
        token = object()
        with self._interests.lock:
            if self._closed:
                raise ZError("session closed")
            self._listeners[token] = call, end
        self._update(news=call)
        return partial(self._stop, token)

    def recheck(self) -> None:
        """Something has changed: tell the listeners, if it makes a difference."""
        if self._listeners:
            self._update()

    def close(self) -> None:
        """Nobody wants to know any more."""
        self._interests.unwatch(self._kind, self)
        self.end()

    def end(self) -> None:
        """The listeners hear no more."""
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
        """Find out, outside of all locks, and note who is to be told; again until it is so."""
        while True:
            now = self.matching
            with self._interests.lock:
                if now != self._said:
                    self._said = now
                    for call, _ in self._listeners.values():
                        self._sayings.note(partial(call, now))
                elif now and news is not None:
                    self._sayings.note(partial(news, now))
                news = None
            self._sayings.say()
            if self.matching == now:
                return


class TokenWatch(Protocol):
    """A liveliness subscriber."""

    @property
    def key(self) -> KeyExpr: ...
    @property
    def history(self) -> bool: ...
    def token(self, key: str, alive: bool) -> None: ...
    def end(self) -> None: ...


class TokenQuery(Protocol):
    """A liveliness query."""

    def token(self, key: str) -> None: ...
    def final(self) -> None: ...


@dataclass(slots=True)
class _RemoteDeclarations:
    """What was declared elsewhere, of one kind, and who watches it."""

    keys: dict[int, tuple[str, bool]] = field(default_factory=dict)
    "By id: key, and whether a queryable is complete."
    by_key: KeyExprTree[int] = field(default_factory=KeyExprTree)
    watches: KeyExprTree[MatchWatch] = field(default_factory=KeyExprTree)
    heard_by: dict[int, set[MatchWatch]] = field(default_factory=dict)
    "By id: the watches that count it."
    interests: dict[str, tuple[int, int]] = field(default_factory=dict)
    "By key: the INTEREST's id, and how many watches share it."

    def add(self, number: int, key: str, complete: bool) -> set[MatchWatch]:
        """Those that it may make a difference for."""
        if self.keys.get(number) == (key, complete):
            return set()  # every INTEREST is told of it; who asked has counted it
        touched = self.remove(number)
        self.keys[number] = key, complete
        self.by_key.insert(key, number)
        found = (watch for _, watches in self.watches.intersecting(key) for watch in watches)
        hearing = self.heard_by[number] = {watch for watch in found if watch.hears}
        for watch in hearing:
            watch.remote.add(number)
        return touched | hearing

    def remove(self, number: int) -> set[MatchWatch]:
        """Those that it may make a difference for."""
        key, _ = self.keys.pop(number, (None, False))
        if key is None:
            return set()
        self.by_key.remove(key, number)
        touched = self.heard_by.pop(number)
        for watch in touched:
            watch.remote.discard(number)
        return touched

    def open(self, watch: MatchWatch) -> None:
        self.watches.insert(watch.key, watch)
        if watch.hears:
            for _, ids in self.by_key.intersecting(watch.key):
                watch.remote.update(ids)
            for number in watch.remote:
                self.heard_by[number].add(watch)

    def close(self, watch: MatchWatch) -> bool:
        """Take `watch` away, and what only it wanted to know; False if it was not there."""
        if not self.watches.remove(watch.key, watch):
            return False
        for number in tuple(watch.remote):
            self.heard_by[number].discard(watch)
            if not self.heard_by[number]:  # it would grow old unnoticed
                self.remove(number)
        watch.remote = set()
        return True


class SessionInterests:
    """What one session wants to know of what others declare."""

    def __init__(self, exchange: ExchangeLike) -> None:
        self.exchange = exchange
        self.lock = threading.RLock()
        self.counters: Counter[str] = Counter()
        "What came beyond MAX_DECLARED, by kind."
        self._kinds = {"subscribers": _RemoteDeclarations(), "queryables": _RemoteDeclarations()}
        self._tokens: dict[int, str] = {}
        self._alive: Counter[str] = Counter()
        "How many tokens each key has."
        self._token_watches: dict[int, TokenWatch] = {}
        self._questions: dict[int, TokenQuery] = {}
        self._sayings = _Sayings()
        "What the token watches are to be told."

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
        """Whether a subscriber or queryable matches `key`: here (`local`), elsewhere, or both."""
        if self.exchange.closed:
            raise ZError("session closed")
        watch = MatchWatch(self, kind, key, complete, local, destination)
        declared = self._kinds[kind]
        new = self.exchange.next_id()
        with self.lock:
            declared.open(watch)
            if not watch.hears:
                return watch
            interest, sharing = declared.interests.get(key, (new, 0))
            declared.interests[key] = interest, sharing + 1
        if not sharing:
            self._send(interest, InterestMode.CURRENT_FUTURE, _OPTIONS[kind], key)
        return watch

    def unwatch(self, kind: Kind, watch: MatchWatch) -> None:
        """Forget `watch`; nothing happens when that was done."""
        declared = self._kinds[kind]
        with self.lock:
            if not declared.close(watch) or not watch.hears:
                return
            interest, sharing = declared.interests.pop(watch.key)
            if sharing > 1:
                declared.interests[watch.key] = interest, sharing - 1
        if sharing == 1:
            self._send_final(interest)

    def matches(self, kind: Kind, watch: MatchWatch) -> bool:
        """Was anything declared elsewhere that `watch` counts?"""
        if not watch.complete:
            return bool(watch.remote)
        with self.lock:
            found = [self._kinds[kind].keys[number] for number in watch.remote]
        return any(complete and includes(key, watch.key) for key, complete in found)

    def local_changed(self, kind: Kind = "subscribers") -> None:
        """The session's own subscribers or queryables have changed."""
        with self.lock:
            watches = [watch for _, some in self._kinds[kind].watches for watch in some]
        _recheck_all(watches)

    # ---- tokens

    def watch_tokens(self, watch: TokenWatch) -> int:
        """Tell `watch` about tokens, those that are there too if it has `history`; its id."""
        interest = self.exchange.next_id()
        with self.lock:
            self._token_watches[interest] = watch
            if watch.history:
                for key in self._alive:
                    if intersects(watch.key, key):
                        self._sayings.note(partial(watch.token, key, True))
        self._sayings.say()
        mode = InterestMode.CURRENT_FUTURE if watch.history else InterestMode.FUTURE
        self._send(interest, mode, _TOKENS, watch.key)
        return interest

    def unwatch_tokens(self, interest: int) -> None:
        """Forget that watch; nothing happens when that was done."""
        with self.lock:
            gone = self._token_watches.pop(interest, None)
            if gone is None:
                return
            others = [watch.key for watch in self._token_watches.values()]
            for number, key in list(self._tokens.items()):
                if not any(intersects(other, key) for other in others):
                    del self._tokens[number]  # it would grow old unnoticed
                    self._forget_alive(key)
        self._send_final(interest)

    def ask_tokens(self, interest: int, key: KeyExpr, question: TokenQuery) -> None:
        """Tell `question` each token that there is now, then that these were all."""
        with self.lock:
            self._questions[interest] = question
        try:
            self._send(interest, InterestMode.CURRENT, _TOKENS, key)
        except ZError:
            self.forget_question(interest)
            raise

    def forget_question(self, interest: int) -> None:
        """Its answers are not wanted any more."""
        with self.lock:
            self._questions.pop(interest, None)

    # ---- from routing

    def on_declare(self, message: Declare) -> None:
        """What somebody else has declared or taken back."""
        handle = _HANDLERS.get(type(message.body))
        if handle is not None:
            handle(self, message, message.body)

    def close(self) -> None:
        """Nobody is told anything any more."""
        with self.lock:
            watches = [
                watch
                for declared in self._kinds.values()
                for _, some in declared.watches
                for watch in some
            ]
            tokens, self._token_watches = list(self._token_watches.values()), {}
            self._kinds = {
                "subscribers": _RemoteDeclarations(),
                "queryables": _RemoteDeclarations(),
            }
            self._questions.clear()
            self._tokens.clear()
            self._alive.clear()
        for watch in watches:
            watch.end()
        for token_watch in tokens:
            token_watch.end()

    def _declared(self, kind: Kind, body: DeclareSubscriber | DeclareQueryable) -> None:
        complete = isinstance(body, DeclareQueryable) and body.info.complete
        with self.lock:
            declared = self._kinds[kind]
            if len(declared.keys) >= MAX_DECLARED and body.id not in declared.keys:
                self.counters[kind] += 1
                return
            touched = declared.add(body.id, body.key.suffix, complete)
        _recheck_all(touched)

    def _undeclared(self, kind: Kind, number: int) -> None:
        with self.lock:
            touched = self._kinds[kind].remove(number)
        _recheck_all(touched)

    def _on_token(self, message: Declare, body: DeclareToken) -> None:
        key, interest = body.key.suffix, message.interest_id
        with self.lock:
            question = None if interest is None else self._questions.get(interest)
            # Without an id it answers a question; one that has ended has no use for it.
            if question is None and body.id and body.id not in self._tokens:
                if len(self._tokens) >= MAX_DECLARED:
                    self.counters["tokens"] += 1
                    return
                self._tokens[body.id] = key
                self._alive[key] += 1
                if self._alive[key] == 1:
                    self._tell(key, True, current=interest is not None)
        self._sayings.say()
        if question is not None:
            question.token(key)

    def _on_token_gone(self, message: Declare, body: UndeclareToken) -> None:
        with self.lock:
            known = self._tokens.pop(body.id, None)
            if known is not None:
                if self._forget_alive(known):
                    self._tell(known, False)
            elif body.key is not None and body.key.suffix:  # one that was there before the watch
                self._tell(body.key.suffix, False)
        self._sayings.say()

    def _on_final(self, message: Declare, body: DeclareFinal) -> None:
        with self.lock:
            question = self._questions.pop(message.interest_id or 0, None)
        if question is not None:
            question.final()

    def _tell(self, key: str, alive: bool, current: bool = False) -> None:
        for watch in self._token_watches.values():
            if (watch.history or not current) and intersects(watch.key, key):
                self._sayings.note(partial(watch.token, key, alive))

    def _forget_alive(self, key: str) -> bool:
        """Whether that was the last token of `key`."""
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
        with suppress(ZError):  # a closed session has ended all
            self.exchange.send(Interest(number, qos=qos.DECLARE))


def _recheck_all(watches: Iterable[MatchWatch]) -> None:
    for watch in watches:
        watch.recheck()


_HANDLERS: dict[type, Callable[[SessionInterests, Declare, Any], None]] = {
    DeclareSubscriber: lambda interests, _, body: interests._declared("subscribers", body),
    UndeclareSubscriber: lambda interests, _, body: interests._undeclared("subscribers", body.id),
    DeclareQueryable: lambda interests, _, body: interests._declared("queryables", body),
    UndeclareQueryable: lambda interests, _, body: interests._undeclared("queryables", body.id),
    DeclareToken: SessionInterests._on_token,
    UndeclareToken: SessionInterests._on_token_gone,
    DeclareFinal: SessionInterests._on_final,
}


class MatchingListener(Receiver[H], Generic[H]):
    """Receives a MatchingStatus whenever it changes; made by a publisher or a querier.

    The first comes at once if there is a match.
    """

    _what = "matching listener"
    _given_by = "declare_matching_listener of a publisher or querier"

    def __init__(self, watch: MatchWatch, handler: Any = None) -> None:
        self._undeclared = True
        sink, reader, self._background = make_sink(handler, f"zenlake matching {watch.key}")
        self._exchange = watch.exchange

        def tell(matching: bool) -> None:
            sink.push((make(MatchingStatus, matching),), 1)

        try:
            self._stop = watch.listen(tell, sink.close)
        except ZError:
            sink.close()
            raise
        super().__init__(sink, reader)

    def undeclare(self, /) -> None:
        """Receive no more."""
        self._check()
        self._undeclared = True
        self._stop()

    def __del__(self) -> None:
        if not (self._undeclared or self._background):
            finalize_safely(self._exchange, self._stop)

    def __repr__(self) -> str:
        self._check()
        return "MatchingListener()"
