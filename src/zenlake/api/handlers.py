"""Handlers: the values that users pass as `handler`, and the reader that they get.

Knows which sink a handler stands for. Does not know what an item is.
"""

import operator
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, final

from zenlake.api.entity import Entity
from zenlake.api.exchange_protocol import ExchangeLike
from zenlake.api.sinks import Channel, Direct, Fifo, Ring, Sink, Threaded
from zenlake.api.values.wrapped import Unconstructed, make, materialize_inherited
from zenlake.errors import ZError

FIFO_ITEMS = 256  # Capacity of DefaultHandler.
MAX_CAPACITY = (1 << 64) - 1

T = TypeVar("T")
H = TypeVar("H")


# Values for `handler` ----------------------------------------------------------------------------


@final
class Callback(Generic[T]):
    """Function called with each item, and another one called once after the last item.

    The calls are made one after another, in order, on the entity's own thread. With
    `indirect=False` they are made on the receiving thread: `callback` must not wait then.

    >>> double = Callback(lambda x: 2 * x)
    >>> double(4), double.drop, double.indirect
    (8, None, True)
    """

    __slots__ = ("_callback", "_drop", "_indirect")

    def __init__(
        self,
        callback: Callable[[T], object],
        drop: Callable[[], object] | None = None,
        *,
        indirect: bool = True,
    ) -> None:
        if not callable(callback):
            raise TypeError(f"callback: {type(callback).__name__!r} object is not callable")
        if drop is not None and not callable(drop):
            raise TypeError(f"drop: {type(drop).__name__!r} object is not callable")
        self._callback = callback
        self._drop = drop
        self._indirect = indirect

    def __call__(self, arg: T, /) -> object:
        return self._callback(arg)

    @property
    def callback(self) -> Callable[[T], object]:
        """Function called with each item."""
        return self._callback

    @property
    def drop(self) -> Callable[[], object] | None:
        """Function called after the last item."""
        return self._drop

    @property
    def indirect(self) -> bool:
        """Whether the calls are made on a thread of their own."""
        return self._indirect

    def _key(self) -> tuple[object, object, bool]:
        return (self._callback, self._drop, self._indirect)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Callback) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Callback({self._callback!r}, {self._drop!r}, indirect={self._indirect})"


@dataclass(frozen=True, repr=False)
class _Channel(Generic[T]):
    """Channel that holds `capacity` items."""

    capacity: int
    "Number of items that it holds."

    def __post_init__(self) -> None:
        number = operator.index(self.capacity)
        if number < 0:
            raise OverflowError("can't convert negative int to unsigned")
        if number > MAX_CAPACITY:
            raise OverflowError("int too big to convert")
        object.__setattr__(self, "capacity", number)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.capacity})"


@final
class FifoChannel(_Channel[T]):
    """Channel that keeps every item, in order; above `capacity` the producer waits.

    >>> FifoChannel(16)
    FifoChannel(16)
    """


@final
class RingChannel(_Channel[T]):
    """Channel that keeps the last `capacity` items and drops older ones.

    >>> RingChannel(1).capacity
    1
    """


@final
@dataclass(frozen=True)
class DefaultHandler(Generic[T]):
    """Handler used when none is given: a FifoChannel of 256 items.

    >>> DefaultHandler()
    DefaultHandler()
    """


IntoChannel = DefaultHandler[T] | FifoChannel[T] | RingChannel[T] | None
"Handler that gives a reader: a channel, or None for the default."
CallbackAnd = tuple[Callable[[T], object], H]
"Handler of a callback and any object, which becomes the receiver's `handler`."
IntoCallback = Callable[[T], object]
"Handler that takes the items itself, without a reader: a function or a Callback."


# Readers -----------------------------------------------------------------------------------------


@final
class Handler(Generic[T], metaclass=Unconstructed):
    """Reader of received items, in order. Several threads may read it.

    Iteration ends when the entity is undeclared, the query has its last reply, or the session is
    closed.
    """

    __slots__ = ("__weakref__", "_channel")

    _given_by = "a session's methods, which give one"

    def __init__(self, channel: Channel[T]) -> None:
        self._channel = channel

    def recv(self, /) -> T:
        """Return the next item; wait for it. ZError: there is none and none will follow."""
        return self._channel.recv()

    def try_recv(self, /) -> T | None:
        """Return the next item, or None if there is none now. ZError: none will follow."""
        return self._channel.try_recv()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            return self._channel.recv()
        except ZError:
            raise StopIteration from None

    def __del__(self) -> None:
        channel = getattr(self, "_channel", None)
        if channel is not None and not sys.is_finalizing():
            channel.abandon()


materialize_inherited(Handler, "__class_getitem__")


class Receiver(Entity, Generic[H]):
    """Base of entities with a handler; reading is passed to the handler until undeclared."""

    def __init__(
        self,
        exchange: ExchangeLike | None,
        end: Callable[[], None],
        sink: Sink[Any],
        handler: H,
        background: bool = False,
    ) -> None:
        super().__init__(exchange, end, background)
        self._sink = sink
        self._handler = handler

    @property
    def handler(self) -> H:
        """Reader of the items; None with a callback."""
        self._check()
        return self._handler

    # The handler may be the user's own object; type checkers are told of Handlers alone.

    def recv(self: "Receiver[Handler[T]]", /) -> T:
        """Return the next item; wait for it. ZError: there is none and none will follow."""
        return self.handler.recv()

    def try_recv(self: "Receiver[Handler[T]]", /) -> T | None:
        """Return the next item, or None if there is none now. ZError: none will follow."""
        return self.handler.try_recv()

    def __iter__(self: "Receiver[Handler[T]]") -> Handler[T]:
        return iter(self.handler)


# The sink of a handler ---------------------------------------------------------------------------

DROP_IN_TUPLE = (
    "Passing drop-callback using a tuple `(callback, drop-callback)` does not work: a tuple is "
    "`(callback, handler)`. Write `Callback(callback, drop)`. If the second is meant to be a "
    'handler: warnings.filterwarnings("ignore", message="Passing drop-callback")'
)


def make_sink(
    handler: object, name: str, *, of_samples: bool = False
) -> tuple[Sink[Any], Any, bool]:
    """Make the sink for a user's `handler` argument; `name` names the callback thread.

    With `of_samples` the items are samples, the only ones that some handlers take.

    Returns the sink, the entity's `.handler`, and whether the entity outlives its Python object
    (background).

    >>> sink, handler, background = make_sink(None, "example")
    >>> sink.push(["a", "b"], 2), handler.recv(), handler.try_recv(), handler.try_recv()
    (True, 'a', 'b', None)
    """
    match handler:
        case Sink() if handler.of_samples and not of_samples:
            raise ValueError(
                f"Invalid handler type {type(handler).__name__}: it takes samples only, which "
                "declare_subscriber gives"
            )
        case None | DefaultHandler():
            return _channel(Fifo(FIFO_ITEMS))
        case FifoChannel():
            return _channel(Fifo(handler.capacity))
        case RingChannel():
            return _channel(Ring(handler.capacity))
        case Channel():
            return _channel(handler)
        case Sink():
            return handler, None, False
        case (callback, other) if isinstance(handler, tuple) and callable(callback):
            if callable(other):
                warnings.warn(DROP_IN_TUPLE, UserWarning, stacklevel=_callers_level())
            return _callback(callback, name), other, False
        case _ if callable(handler):
            return _callback(handler, name), None, True
    raise ValueError(f"Invalid handler type {type(handler).__name__}")


def _callers_level() -> int:
    """Return the stack level of the user's code, for a warning to name it."""
    level, frame = 1, sys._getframe(1)
    while frame.f_globals.get("__name__", "").startswith("zenlake.") and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    return level


def _channel(channel: Channel[T]) -> tuple[Sink[T], Handler[T], bool]:
    return channel, make(Handler, channel), False


def _callback(callback: Callable[[T], object], name: str) -> Sink[T]:
    given = callback if isinstance(callback, Callback) else Callback(callback)
    if given.indirect:
        return Threaded(given.callback, given.drop, name)
    return Direct(given.callback, given.drop)
