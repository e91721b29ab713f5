"""Shared memory of a session: pointers instead of payloads, in both directions.

Knows which fields of a message carry a payload, and the accounting with the peer's counters. Does
not know sockets or routes.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from zenlake.shm import native
from zenlake.shm.arena import SharedBuffer
from zenlake.shm.foreign import MAX_COPIED_PAYLOAD, Pointer, read_pointer
from zenlake.shm.handshake import Counter, ShmSteps
from zenlake.shm.node import NodeShm, process_memory
from zenlake.shm.segment import ShmError
from zenlake.wire.cursor import ByteReader, encode
from zenlake.wire.err import Err
from zenlake.wire.network import NETWORK, NetworkMessage
from zenlake.wire.push import Push
from zenlake.wire.put import SHM_SLICE, Put, Slice, read_slices, write_slices
from zenlake.wire.qos import PRIORITY_BITS
from zenlake.wire.query import WireQuery
from zenlake.wire.reply import WireReply
from zenlake.wire.request import Request
from zenlake.wire.response import Response

if TYPE_CHECKING:
    from zenlake.shm.pointers import PointerReader, SharedPut, SharedPuts

POINTER_BYTES = 48  # Upper bound on what a pointer adds to the head of a put.

Carrier = Put | Err | WireQuery
"A message part with a payload that may be in shared memory."


class Loan(NamedTuple):
    """Buffer whose reference a message gives to the peer, unless the message is dropped."""

    counter: Counter
    "Counter of messages on their way."
    header: int
    "Address of the buffer's header."

    def settle(self, send: Callable[[], bool]) -> bool:
        """Call `send`, and take the reference back unless it sends; return what it returns."""
        sent = False
        try:
            sent = send()
            return sent
        finally:
            if not sent:
                self.cancel()

    def cancel(self) -> None:
        """Take the reference back: the message was dropped."""
        self.counter.cancel()
        native.load().add(self.header, -1)


SharedPutEncoder = Callable[[bytes], tuple[bytes, Counter, int] | None]
"""Encodes a put whose payload is in the pool, from the payload; returns the message, and the fields
of its Loan. None: the pool has no room."""


class ShmSession:
    """Shared memory with one peer, once both have agreed on it."""

    def __init__(self, node: NodeShm, steps: ShmSteps) -> None:
        self.node = node
        self._steps = steps
        self._foreign = process_memory().foreign
        self._foreign.drop_ended()
        config = node.config
        self.threshold = config.threshold
        self.views = config.zero_copy
        "Whether received payloads stay in shared memory while they are used."
        peer_reads = steps.peer is not None and steps.peer.reads_posix
        self.sends = bool(steps.sent) and peer_reads
        "Whether this node may send pointers."
        self.shares_puts = self.sends and bool(config.pool_bytes) and "put" in config.kinds
        "Whether payloads of puts go through the pool."

    # ---- receiving, on the I/O thread

    def expand(self, message: NetworkMessage) -> None:
        """Replace the pointers of a received message by the payload, in place.

        A payload that is one buffer becomes a view of it, unless the configuration wants copies.
        ShmError: it is gone.
        """
        carrier = carrier_of(message)
        if carrier is None or not carrier.shm:
            return
        assert isinstance(message, Push | Request | Response)
        priority = message.qos & PRIORITY_BITS
        if type(carrier) is WireQuery:
            carrier.shm = False
            if carrier.body is not None:
                assert isinstance(carrier.body.payload, bytes)
                slices = read_slices(ByteReader(carrier.body.payload))
                payload = self._payload(slices, priority, views=self.views)
                carrier.body = replace(carrier.body, payload=payload)
        elif type(carrier) is Err:
            carrier.shm = False  # The mark says nothing.
        else:
            assert type(carrier) is Put
            assert isinstance(carrier.payload, tuple)
            carrier.shm, slices, carrier.payload = False, carrier.payload, b""
            carrier.payload = self._payload(slices, priority, views=self.views)  # type: ignore[assignment]

    def read_one(self, data: bytes, pos: int, end: int) -> "SharedPut | None":
        """Return the put with a pointer at `pos`; None: it has to be expanded. The compiled readers
        are loaded."""
        return self._pointers.read_one(data, pos, end, self._steps.received)

    def read_many(self, data: bytes, pos: int, end: int) -> "SharedPuts | None":
        """Return the puts with pointers from `pos` on; None: they have to be expanded one at a
        time. The compiled readers are loaded."""
        return self._pointers.read(data, pos, end, self._steps.received)

    @cached_property
    def _pointers(self) -> "PointerReader":
        from zenlake.shm.pointers import PointerReader

        return PointerReader(self._foreign)

    def _payload(
        self, slices: tuple[Slice, ...], priority: int, *, views: bool
    ) -> bytes | memoryview:
        """Return the payload that slices stand for; every pointer is taken, even if one fails."""
        failure: ShmError | None = None
        parts: list[bytes | memoryview] = []
        limit = MAX_COPIED_PAYLOAD

        def read(pointer: Pointer) -> bytes | memoryview:
            if views and len(slices) == 1:
                return self._foreign.view(pointer)
            return self._foreign.copy(pointer, limit)

        for kind, data in slices:
            if kind != SHM_SLICE:
                parts.append(data)
                continue
            try:
                parts.append(read(read_pointer(data)))
                limit -= len(parts[-1])
            except ShmError as error:
                failure = failure or error
            if self._steps.received:
                native.load().add(self._steps.received[priority], -1)
        if failure is not None:
            raise failure
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # ---- sending, on any thread

    def share(self, message: NetworkMessage) -> tuple[NetworkMessage, Loan | None]:
        """Return `message` with a pointer in place of its payload, if that can be shared, and what
        it lends to the peer; else `message` itself."""
        if not self.sends:
            return message, None
        if type(message) is Push and type(message.body) is Put:
            slices, loan = self._lend(message.body.payload, message.qos, "put")
            if slices is not None:
                body = replace(message.body, payload=slices, shm=True)
                return replace(message, body=body), loan
        elif type(message) is Response and type(message.body) is WireReply:
            answer = message.body
            if type(answer.body) is Put:
                slices, loan = self._lend(answer.body.payload, message.qos, "reply")
                if slices is not None:
                    body = replace(answer.body, payload=slices, shm=True)
                    return replace(message, body=replace(answer, body=body)), loan
        elif type(message) is Request and message.body.body is not None:
            slices, loan = self._lend(message.body.body.payload, message.qos, "query")
            if slices is not None:
                value = replace(message.body.body, payload=encode(write_slices, slices))
                return replace(message, body=replace(message.body, body=value, shm=True)), loan
        return message, None

    def _lend(
        self, payload: object, qos: int, kind: str
    ) -> tuple[tuple[Slice, ...] | None, Loan | None]:
        """Return a payload as a pointer that the peer may keep; None: it is sent as bytes."""
        if type(payload) is bytes and len(payload) < self.threshold:
            return None, None
        if not isinstance(payload, bytes | memoryview) or not payload:
            return None, None
        sent = self._steps.sent
        if not sent:  # The session has ended.
            return None, None
        counter = sent[qos & PRIORITY_BITS]
        try:
            functions = native.load()
        except native.NotCompiled:
            return None, None
        buffer = own_buffer(payload)
        if buffer is not None:
            functions.add(buffer.header_address, 1)
            functions.add(counter.address, 1)
        elif len(payload) >= self.threshold and kind in self.node.config.kinds:
            buffer = self.node.place(payload, counter.address)
        if buffer is None:
            return None, None
        buffer.sent[counter] = counter.next()
        loan = Loan(counter, buffer.header_address)
        return (Slice(SHM_SLICE, buffer.pointer(len(payload))),), loan

    def put_encoder(self, push: Push) -> SharedPutEncoder:
        """Return a function that encodes `push`, a put, with a payload in the pool.

        It returns None if there is no room. `push` has no payload and no options.
        """
        assert isinstance(push.body, Put)
        empty = replace(push, body=replace(push.body, payload=(), shm=True))
        head = encode(NETWORK.write, empty)[:-1] + b"\x01" + bytes((SHM_SLICE,))
        steps, place = self._steps, self.node.place
        number = push.qos & PRIORITY_BITS

        def encode_put(payload: bytes) -> tuple[bytes, Counter, int] | None:
            sent = steps.sent
            if not sent:  # The session has ended.
                return None
            counter = sent[number]
            buffer = place(payload, counter.address)
            if buffer is None:
                return None
            buffer.sent[counter] = counter.next()
            pointer = buffer.pointer(len(payload))
            message = head + bytes((len(pointer),)) + pointer
            return message, counter, buffer.header_address

        return encode_put

    def close(self, *, lost: bool) -> None:
        """End the use of the peer's memory: the session has ended; `lost`: the peer reads no
        further message."""
        self._steps.close(lost=lost)
        self._foreign.drop_unheld()


def carrier_of(message: NetworkMessage) -> Carrier | None:
    """Return the part of a message that has a payload; None: there is none."""
    if not isinstance(message, Push | Request | Response):
        return None
    body = message.body
    if type(body) is WireReply:
        body = body.body
    return body if isinstance(body, Put | Err | WireQuery) else None


def own_buffer(payload: bytes | memoryview) -> SharedBuffer | None:
    """Return the buffer of this process that `payload` is a view of; None: it is other memory."""
    if type(payload) is not memoryview:
        return None
    from zenlake.shm.views import OwnLease, lease_of

    lease = lease_of(payload)
    if type(lease) is OwnLease and lease.is_own and lease.is_valid:
        return lease.buffer
    return None
