"""Peers that do not keep to the protocol, over raw TCP sockets.

Knows how to say anything at any moment, one handshake step at a time. Every wait has a deadline.
"""

import socket
from collections.abc import Sequence
from types import TracebackType

from zenlake.wire.batch import TransportMessage, read_batch, write_batch
from zenlake.wire.close import Close
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.framing import Framing, split, to_stream
from zenlake.wire.init import Init
from zenlake.wire.open import Open
from zenlake.wire.zenohid import WireZenohId

DEADLINE = 30.0
LEASE_MS = 10_000
FIRST_SN = 100
READ_BYTES = 65_536

HTTP_GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n"
# A TLS 1.2 record with the start of a ClientHello: version, random, no session id, one cipher.
TLS_CLIENT_HELLO = (
    bytes.fromhex("1603010200010001fc0303")
    + bytes(range(32))
    + bytes.fromhex("0000021301010001d1")
    + bytes(200)
)


def batch(*messages: TransportMessage) -> bytes:
    """One batch of a stream, behind its length."""
    return to_stream([write_batch(list(messages))], Framing.STREAM)


class HostilePeer:
    """A TCP connection to a port of this machine, and what can be said on it."""

    def __init__(
        self,
        port: int,
        zid: WireZenohId,
        *,
        receive_bytes: int | None = None,
        source: str = "127.0.0.1",
    ) -> None:
        self.zid = zid
        self._socket = socket.socket()
        self._socket.settimeout(DEADLINE)
        if receive_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        try:
            self._socket.bind((source, 0))
            self._socket.connect(("127.0.0.1", port))
        except OSError:
            self._socket.close()
            raise
        self.address = "{}:{}".format(*self._socket.getsockname())
        "As the other side sees it."
        self._buffer = b""

    def __enter__(self) -> "HostilePeer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    # ---- what it says

    def say(self, data: bytes) -> bool:
        """Whether all of it could be said; False: the other side has closed."""
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return True

    def send(self, *messages: TransportMessage) -> bool:
        return self.say(batch(*messages))

    def dribble(self, data: bytes) -> bool:
        """Send one byte per packet."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return all(self.say(data[pos : pos + 1]) for pos in range(len(data)))

    # ---- what it hears

    def hear(self) -> TransportMessage | None:
        """The first message of the next batch; None: the other side has closed."""
        while True:
            for start, end in split(self._buffer, Framing.STREAM):
                data, self._buffer = self._buffer[start:end], self._buffer[end:]
                messages = read_batch(data)
                if messages:
                    return messages[0]
                break
            else:
                data = self._read()
                if not data:
                    return None
                self._buffer += data

    def hear_close(self) -> int | None:
        """The reason of the CLOSE that comes at last; None: the link ended without one."""
        while (message := self.hear()) is not None:
            if isinstance(message, Close):
                return message.reason
        return None

    def _read(self) -> bytes:
        try:
            return self._socket.recv(READ_BYTES)
        except ConnectionError:
            return b""

    # ---- the handshake, step by step

    def init(self, whatami: WireWhatAmI = WireWhatAmI.CLIENT, *, auth: bytes | None = None) -> Init:
        """INIT syn; gives the INIT ack."""
        assert self.send(Init(self.zid, whatami, qos=True, patch=1, auth=auth))
        ack = self.hear()
        assert isinstance(ack, Init), ack
        return ack

    def open_syn(self, ack: Init, *, lease_ms: int = LEASE_MS, auth: bytes | None = None) -> Open:
        assert ack.cookie is not None
        return Open(lease_ms, FIRST_SN, ack.cookie, auth=auth)

    def establish(self, *, lease_ms: int = LEASE_MS) -> Open:
        """The whole handshake, as it should be."""
        assert self.send(self.open_syn(self.init(), lease_ms=lease_ms))
        ack = self.hear()
        assert isinstance(ack, Open), ack
        assert ack.ack
        return ack


class HostileServer:
    """A listener that lets the test speak with the peers that connect."""

    def __init__(self, zid: WireZenohId) -> None:
        self.zid = zid
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(DEADLINE)
        self.locator = "tcp/{}:{}".format(*self.listener.getsockname())

    def __enter__(self) -> "HostileServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.listener.close()

    def serve_once(self, after: Sequence[TransportMessage] = ()) -> None:
        """Accept one session as it should be, say `after`, and close the link."""
        sock, _ = self.listener.accept()
        with sock:
            sock.settimeout(DEADLINE)
            buffer = bytearray()
            if not _next_batch(sock, buffer):
                return
            sock.sendall(batch(Init(self.zid, WireWhatAmI.ROUTER, cookie=b"c", patch=1)))
            if not _next_batch(sock, buffer):
                return
            sock.sendall(batch(Open(LEASE_MS, FIRST_SN)) + b"".join(batch(m) for m in after))
            while sock.recv(READ_BYTES):  # until the other side has closed
                pass


def _next_batch(sock: socket.socket, buffer: bytearray) -> bytes:
    while True:
        for start, end in split(bytes(buffer), Framing.STREAM):
            found = bytes(buffer[start:end])
            del buffer[:end]
            return found
        data = sock.recv(READ_BYTES)
        if not data:
            return b""
        buffer += data
