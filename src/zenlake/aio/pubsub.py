"""Publishers and subscribers for asyncio.

Knows the names and arguments of the session API. Does not know how anything is sent or received.
"""

from collections.abc import MutableSet
from functools import partial
from typing import TYPE_CHECKING, Any

from zenlake import api
from zenlake.aio.handler import (
    Declaration,
    Handler,
    IntoHandler,
    Receiver,
    receive,
)
from zenlake.aio.sending import SendGate
from zenlake.api.discovery.matching import MatchingStatus
from zenlake.api.forwarding import Attribute, forward_method, forward_property, signature_of
from zenlake.api.values.encoding import Encoding
from zenlake.api.values.enums import CongestionControl, Priority, Reliability
from zenlake.api.values.ids import EntityGlobalId
from zenlake.api.values.sample import Sample
from zenlake.api.values.zbytes import IntoZBytes
from zenlake.keyexpr import KeyExpr

if TYPE_CHECKING:
    from zenlake.columnar.record_batch import IntoRecordBatch


class Subscriber(Receiver[Sample]):
    """Receiver of samples on its key expression: `async for sample in subscriber`."""

    _what = "subscriber"

    key_expr: Attribute[KeyExpr] = forward_property(api.Subscriber.key_expr)
    id: Attribute[EntityGlobalId] = forward_property(api.Subscriber.id)


class MatchingListener(Receiver[MatchingStatus]):
    """Receiver of each change of a matching status."""

    _what = "matching listener"


class Sender(Declaration):
    """Declared entity that sends. Leaving `async with` undeclares it."""

    def __init__(self, entity: Any, kept: MutableSet[Handler[Any]]) -> None:
        super().__init__(entity, kept)
        self._gate = SendGate()

    async def declare_matching_listener(
        self, handler: IntoHandler[MatchingStatus] = None
    ) -> MatchingListener:
        """Receive the matching status whenever it changes."""
        return receive(
            MatchingListener, handler, self._entity.declare_matching_listener, self._kept
        )


class Publisher(Sender):
    """Publisher on one key expression, with the same QoS for every put and delete."""

    _what = "publisher"

    key_expr: Attribute[KeyExpr] = forward_property(api.Publisher.key_expr)
    id: Attribute[EntityGlobalId] = forward_property(api.Publisher.id)
    matching_status: Attribute[MatchingStatus] = forward_property(api.Publisher.matching_status)
    encoding: Attribute[Encoding] = forward_property(api.Publisher.encoding)
    congestion_control: Attribute[CongestionControl] = forward_property(
        api.Publisher.congestion_control
    )
    priority: Attribute[Priority] = forward_property(api.Publisher.priority)
    reliability: Attribute[Reliability] = forward_property(api.Publisher.reliability)
    has_room = forward_method(api.Publisher.has_room)

    @signature_of(api.Publisher.put)
    async def put(self, payload: IntoZBytes, **options: Any) -> None:
        """Publish `payload`; wait while there is no room and it must not be dropped."""
        call = partial(self._entity.put, payload, **options)
        await self._gate.send(call, waits=not self._entity.has_room())

    @signature_of(api.Publisher.delete)
    async def delete(self, **options: Any) -> None:
        """Publish that the key no longer has a value; wait as `put` does."""
        call = partial(self._entity.delete, **options)
        await self._gate.send(call, waits=not self._entity.has_room())

    async def put_batch(self, batch: "IntoRecordBatch") -> int:
        """Publish every row of `batch`; return their number. Waits for room; drops nothing."""
        count: int = await self._gate.send(partial(self._entity.put_batch, batch), waits=True)
        return count
