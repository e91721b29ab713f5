"""A TCP link to a real node, driven by the codec alone: the least that a Zenoh client does.

For tests that put our bytes before another implementation and read its bytes. Every wait has a
deadline.
"""

import socket
from collections.abc import Iterator
from types import TracebackType

from zenlake.wire.batch import TransportMessage, read_batch, write_batch
from zenlake.wire.close import Close
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing, split, to_stream
from zenlake.wire.init import Init
from zenlake.wire.network import NetworkMessage
from zenlake.wire.open import Open
from zenlake.wire.zenohid import WireZenohId

DEADLINE = 10.0
BATCH_SIZE = 65_535
LEASE_MS = 10_000


class RawLink:
    """An open session of a client without QoS lanes: one reliable lane, Data."""

    def __init__(self, port: int, zid: WireZenohId) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self._buffer = b""
        self.send_batch([Init(zid, WireWhatAmI.CLIENT, batch_size=BATCH_SIZE, patch=1)])
        (ack,) = self.receive()
        assert isinstance(ack, Init), ack
        assert ack.cookie is not None
        self.send_batch([Open(LEASE_MS, 0, ack.cookie)])
        (opened,) = self.receive()
        assert isinstance(opened, Open), opened
        assert opened.ack
        self.batch_size = min(BATCH_SIZE, ack.batch_size)
        self.next_sn = 0

    def __enter__(self) -> "RawLink":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        try:
            self.send_batch([Close(session=True)])
        finally:
            self._socket.close()

    def abandon(self) -> None:
        """Close the socket without a word: the other side has ended the session."""
        self._socket.close()

    def send_batch(self, messages: list[TransportMessage]) -> None:
        self.send_stream(to_stream([write_batch(messages)], Framing.STREAM))

    def send_stream(self, data: bytes | memoryview) -> None:
        self._socket.sendall(data)

    def send(self, *messages: NetworkMessage) -> None:
        self.send_batch([Frame(self.next_sn, messages=list(messages))])
        self.next_sn += 1

    def receive(self) -> list[TransportMessage]:
        """The messages of the next batch."""
        while True:
            for start, end in split(self._buffer, Framing.STREAM):
                batch, self._buffer = self._buffer[start:end], self._buffer[end:]
                return read_batch(batch)
            data = self._socket.recv(65536)
            if not data:
                raise EOFError("the other side closed the link")
            self._buffer += data

    def network_messages(self) -> Iterator[NetworkMessage]:
        """Network messages as they come; ends by the deadline's exception."""
        while True:
            for message in self.receive():
                if isinstance(message, Frame):
                    yield from message.messages
