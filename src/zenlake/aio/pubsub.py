"""Publishers and subscribers for asyncio.

Knows the names and arguments of the session API. Does not know how anything is sent or received.
"""

from collections.abc import MutableSet
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from zenlake.aio.handler import IntoHandler, Receiver, receive
from zenlake.aio.sending import SendGate
from zenlake.api.discovery.matching import MatchingStatus
from zenlake.api.values.encoding import Encoding, IntoEncoding
from zenlake.api.values.enums import CongestionControl, Priority, Reliability
from zenlake.api.values.ids import EntityGlobalId, SourceInfo
from zenlake.api.values.instrumentation import TimestampInstrumentation
from zenlake.api.values.sample import Sample
from zenlake.api.values.timestamps import Timestamp
from zenlake.api.values.zbytes import IntoZBytes
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr

if TYPE_CHECKING:
    import pyarrow as pa


class Subscriber(Receiver[Sample]):
    """Samples of the keys that match its key expression: `async for sample in subscriber`."""

    _what = "subscriber"

    @property
    def key_expr(self) -> KeyExpr:
        """What it subscribes to."""
        key: KeyExpr = self._entity.key_expr
        return key

    @property
    def id(self) -> EntityGlobalId:
        """Its id in the whole network."""
        found: EntityGlobalId = self._entity.id
        return found


class MatchingListener(Receiver[MatchingStatus]):
    """Whether anybody is there to receive: a MatchingStatus at every change."""

    _what = "matching listener"


class Sender:
    """Something declared that sends. Leaving `async with` undeclares it."""

    _what = "sender"

    def __init__(self, entity: Any, kept: MutableSet[Any]) -> None:
        self._entity = entity
        self._kept = kept
        self._gate = SendGate()
        self._undeclared = False

    @property
    def key_expr(self) -> KeyExpr:
        """What it was declared for."""
        key: KeyExpr = self._entity.key_expr
        return key

    @property
    def id(self) -> EntityGlobalId:
        """Its id in the whole network."""
        found: EntityGlobalId = self._entity.id
        return found

    @property
    def matching_status(self) -> MatchingStatus:
        """Whether anybody is there to receive, as far as is known now."""
        status: MatchingStatus = self._entity.matching_status
        return status

    async def declare_matching_listener(
        self, handler: IntoHandler[MatchingStatus] = None
    ) -> MatchingListener:
        """Tell `handler` whenever the matching status changes."""
        return receive(
            MatchingListener, handler, self._entity.declare_matching_listener, self._kept
        )

    async def undeclare(self) -> None:
        """Nothing can be sent with it any more."""
        if self._undeclared:
            raise ZError(f"Undeclared {self._what}")
        self._undeclared = True
        self._entity.undeclare()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if not self._undeclared:
            await self.undeclare()


class Publisher(Sender):
    """Puts and deletes on one key expression, with the same QoS every time."""

    _what = "publisher"

    def __init__(self, entity: Any, kept: MutableSet[Any]) -> None:
        super().__init__(entity, kept)

    @property
    def encoding(self) -> Encoding:
        """Of what is put without an encoding of its own."""
        found: Encoding = self._entity.encoding
        return found

    @property
    def congestion_control(self) -> CongestionControl:
        """What becomes of a sample when there is no room for it."""
        found: CongestionControl = self._entity.congestion_control
        return found

    @property
    def priority(self) -> Priority:
        """The lane that its samples take."""
        found: Priority = self._entity.priority
        return found

    @property
    def reliability(self) -> Reliability:
        """Whether links that lose messages are to be avoided."""
        found: Reliability = self._entity.reliability
        return found

    async def put(
        self,
        payload: IntoZBytes,
        *,
        encoding: IntoEncoding | None = None,
        attachment: IntoZBytes | None = None,
        timestamp: Timestamp | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
        source_info: SourceInfo | None = None,
    ) -> None:
        """Publish `payload`; waits while there is no room and it must not be dropped."""
        call = partial(
            self._entity.put,
            payload,
            encoding=encoding,
            attachment=attachment,
            timestamp=timestamp,
            timestamp_instrumentation=timestamp_instrumentation,
            source_info=source_info,
        )
        await self._gate.send(call, waits=not self._entity.has_room())

    async def delete(
        self,
        *,
        attachment: IntoZBytes | None = None,
        timestamp: Timestamp | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
        source_info: SourceInfo | None = None,
    ) -> None:
        """Say that the key's value is no more; waits as `put` does."""
        call = partial(
            self._entity.delete,
            attachment=attachment,
            timestamp=timestamp,
            timestamp_instrumentation=timestamp_instrumentation,
            source_info=source_info,
        )
        await self._gate.send(call, waits=not self._entity.has_room())

    def has_room(self) -> bool:
        """Whether a put would leave at once: neither wait nor be dropped."""
        return bool(self._entity.has_room())

    async def put_batch(self, batch: "pa.RecordBatch") -> int:
        """Publish every row of `batch` at once; gives how many. Waits; nothing is dropped."""
        count: int = await self._gate.send(partial(self._entity.put_batch, batch), waits=True)
        return count
