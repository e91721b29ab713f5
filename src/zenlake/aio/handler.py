"""Receivers on an event loop: `recv`, `async for`, callbacks that may be coroutines.

Knows the kinds of handler that a user passes. Does not know what is received.
"""

from collections.abc import Callable, Iterable, MutableSet
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from zenlake.aio.sink import EMPTY, AsyncSink, CallbackSink, RingSink
from zenlake.api.handlers import FIFO_ITEMS, Callback, DefaultHandler, FifoChannel, RingChannel
from zenlake.errors import ZError

T = TypeVar("T")
R = TypeVar("R", bound="Receiver[Any]")

IntoHandler = (
    DefaultHandler[T]
    | FifoChannel[T]
    | RingChannel[T]
    | Callback[T]
    | Callable[[T], object]
    | tuple[Callable[[T], object], object]
    | None
)
"""Handler argument: a channel; a callback (a plain or a coroutine function, called on the loop, one
call after another); or a callback and any object, which becomes the receiver's `handler`.
"""


class HandlerPlan(NamedTuple):
    """Parts of a handler argument."""

    sink: AsyncSink[Any]
    callback: Callable[[Any], object] | None = None
    drop: Callable[[], object] | None = None
    handler: object = None
    background: bool = False
    "Whether the entity outlives its receiver object."

    def start(self) -> None:
        if self.callback is not None:
            self.sink.deliver_to(self.callback, self.drop)


def plan_for(handler: Any, wrap: Callable[[Any], Any] | None = None) -> HandlerPlan:
    """Make the sink that `handler` asks for, on the running loop; apply `wrap` to every item."""
    match handler:
        case None | DefaultHandler():
            return HandlerPlan(AsyncSink(FIFO_ITEMS, wrap))
        case FifoChannel():
            return HandlerPlan(AsyncSink(handler.capacity, wrap))
        case RingChannel():
            return HandlerPlan(RingSink(handler.capacity, wrap))
        case (callback, other) if isinstance(handler, tuple) and callable(callback):
            return _plan_callback(callback, wrap)._replace(handler=other)
        case _ if callable(handler):
            return _plan_callback(handler, wrap)._replace(background=True)
    raise ValueError(f"Invalid handler type {type(handler).__name__}")


def _plan_callback(callback: Any, wrap: Callable[[Any], Any] | None) -> HandlerPlan:
    given = callback if isinstance(callback, Callback) else Callback(callback)
    return HandlerPlan(CallbackSink(wrap), given.callback, given.drop)


class Handler(Generic[T]):
    """Reader of a bounded queue, for the tasks of one event loop.

    While the queue is full the network is not read. A cancelled `recv` loses nothing.
    """

    _what: ClassVar[str] = "handler"
    "Noun for the receiver in errors."

    def __init__(self, plan: HandlerPlan) -> None:
        self._sink: AsyncSink[T] = plan.sink
        self._callback = plan.callback
        self._handler = plan.handler

    @property
    def handler(self) -> object:
        """Object that was passed beside the callback; without a callback, the receiver itself."""
        return self if self._callback is None else self._handler

    @property
    def dropped(self) -> int:
        """Number of dropped items: by a full ring, or without a reader."""
        return self._sink.dropped

    async def recv(self) -> T:
        """Return the next item; wait for it. ZError: there is none and none will follow."""
        self._check_taker()
        return await self._sink.recv()

    def try_recv(self) -> T | None:
        """Return the next item, or None if there is none now. ZError: none will follow."""
        self._check_taker()
        item = self._sink.take()
        if item is not EMPTY:
            return item  # type: ignore[return-value]
        if self._sink.closed:
            raise ZError("channel is empty and closed")
        return None

    def __aiter__(self) -> Self:
        self._check_taker()
        return self

    async def __anext__(self) -> T:
        item = self._sink.take_in_turn()
        if item is not EMPTY:
            return item  # type: ignore[return-value]
        try:
            return await self._sink.recv()
        except ZError:
            if self._sink.closed:
                raise StopAsyncIteration from None
            raise

    def _check_taker(self) -> None:
        if self._callback is not None:
            raise ZError(f"this {self._what} has a callback, which takes all that it receives")


class Declaration:
    """Base of declared entities. Leaving `async with` undeclares them."""

    _what: ClassVar[str]
    "Noun for the entity in errors."
    _undeclared = False

    def __init__(self, entity: Any, kept: MutableSet[Handler[Any]]) -> None:
        self._entity = entity
        self._kept = kept

    async def undeclare(self) -> None:
        """Undeclare this entity."""
        if self._undeclared:
            raise ZError(f"Undeclared {self._what}")
        self._undeclared = True
        await self._end()

    async def _end(self) -> None:
        self._entity.undeclare()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_args: object) -> None:
        if not self._undeclared:
            await self.undeclare()


class Receiver(Handler[T], Declaration):
    """Declared entity that receives. Leaving `async with` undeclares it.

    With a callback it stays declared until then, or until the session is closed; otherwise also
    until its last reference goes.
    """

    def __init__(self, plan: HandlerPlan, entity: Any, kept: MutableSet[Handler[Any]]) -> None:
        Handler.__init__(self, plan)
        Declaration.__init__(self, entity, kept)
        if plan.background:
            kept.add(self)

    async def undeclare(self) -> None:
        """Stop receiving, and wait for callbacks of received items; a queue can still be read."""
        await super().undeclare()
        self._sink.close()
        self._kept.discard(self)
        await self._sink.delivered()


def receive(
    kind: type[R],
    handler: object,
    declare: Callable[[AsyncSink[Any]], Any],
    kept: MutableSet[Handler[Any]],
    wrap: Callable[[Any], Any] | None = None,
) -> R:
    """Declare an entity whose items go to `handler`; `kept` holds references to those with
    callbacks.
    """
    plan = plan_for(handler, wrap)
    receiver = kind(plan, declare(plan.sink), kept)
    plan.start()
    return receiver


async def wait_delivered(handlers: Iterable[Handler[Any]]) -> None:
    """Wait until the callbacks of all `handlers` have worked off their queues."""
    for handler in list(handlers):
        await handler._sink.delivered()
