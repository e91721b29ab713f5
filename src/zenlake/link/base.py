"""What a link is: bytes to one peer and back, never blocking. The contract of every file here.

Knows nothing of Zenoh but how batches are told apart on it (`framing`) and how large they may be.
`tests/link/test_contract.py` holds every kind of link to this page.
"""

from abc import ABC, abstractmethod
from enum import IntEnum

from zenlake.wire.framing import Framing
from zenlake.wire.locator import Locator

MAX_STREAM_BATCH = 0xFFFF  # what the prefix of two bytes can say
READ_BYTES = 256 * 1024  # the most that one receive() of a stream takes


class Progress(IntEnum):
    """Where a link's own handshake stands: TCP's connect, TLS, the WebSocket upgrade."""

    DONE = 0
    WANT_READ = 1
    WANT_WRITE = 2


class TransportLink(ABC):
    """One peer. `send` and `receive` may be called from two threads at the same time."""

    protocol: str
    "As in its locators: tcp, tls, udp, unixsock-stream, ws."
    local: Locator
    remote: Locator
    address: str
    "Whom limits count: the peer's IP address; the protocol's name where there is none."
    framing: Framing
    "STREAM (batches need a length before them) or DATAGRAM (one send is one batch)."
    reliable: bool
    mtu: int = MAX_STREAM_BATCH
    "The largest batch, length prefix included, as INIT proposes it."
    expires: float | None = None
    "UNIX seconds after which the link must not be used (a certificate's end), once it is done."

    @abstractmethod
    def fileno(self) -> int:
        """What epoll watches; -1 once closed."""

    @abstractmethod
    def handshake(self) -> Progress:
        """Go on with the link's own handshake. Call until DONE; LinkError if it fails."""

    @abstractmethod
    def receive(self) -> bytes | None:
        """What has arrived: of a stream up to READ_BYTES, else one batch. None: nothing now.

        b"" is the end: the peer closed. LinkError: the link is broken.
        """

    @property
    def more(self) -> bool:
        """Whether bytes wait inside this process (TLS, WebSocket), where epoll cannot see them."""
        return False

    @abstractmethod
    def send(self, data: bytes | bytearray | memoryview) -> int:
        """How many bytes were taken; 0: none now, try when writable. A DATAGRAM: all or none.

        LinkError: the link is broken, or the datagram is larger than `mtu`.
        """

    @property
    def unsent(self) -> bool:
        """Whether taken bytes still wait inside this process (WebSocket); flush() sends them."""
        return False

    def flush(self) -> None:
        """Send what `unsent` speaks of, as far as the socket takes it."""
        return

    @abstractmethod
    def close(self) -> None:
        """Let go of the socket, at once. May be called again, from any thread."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.local} -> {self.remote}>"


class Listener(ABC):
    """Where peers come in."""

    locators: tuple[Locator, ...]
    "Where this listener is reached: the port that was given out, each address of a wildcard."

    @abstractmethod
    def fileno(self) -> int: ...

    @abstractmethod
    def accept(self) -> TransportLink | None:
        """The next peer, its own handshake not done yet. None: nobody now.

        What is wrong with one peer is never raised here; LinkError: this listener is broken.
        """

    @abstractmethod
    def close(self) -> None: ...
