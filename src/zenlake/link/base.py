"""Link contract: a link carries bytes to one peer and back, and never blocks.

Knows nothing of Zenoh except how batches are delimited (`framing`) and how large they may be.
`tests/link/test_contract.py` holds every kind of link to this page.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import IntEnum
from ipaddress import ip_address

from zenlake.wire.framing import Framing
from zenlake.wire.locator import Locator

MAX_STREAM_BATCH = 0xFFFF  # Largest batch length that the prefix of two bytes holds.
PROTOCOLS_OF_ONE_HOST = frozenset({"unixsock-stream", "unixpipe"})
READ_BYTES = 256 * 1024  # Upper bound on the bytes that one receive() of a stream returns.


class Progress(IntEnum):
    """State of a link's own handshake: TCP's connect, TLS, QUIC, the WebSocket upgrade."""

    DONE = 0
    WANT_READ = 1
    WANT_WRITE = 2


class TransportLink(ABC):
    """Link to one peer. `send` and `receive` may be called from two threads at the same time."""

    protocol: str
    "Protocol name as in locators: a key of `zenlake.link.PROTOCOLS`."
    local: Locator
    remote: Locator
    address: str
    "Peer in the terms of limits: its IP address, or the protocol's name where it has none."
    framing: Framing
    "STREAM (each batch has a length before it) or DATAGRAM (one send is one batch)."
    reliable: bool
    mtu: int = MAX_STREAM_BATCH
    "Largest batch, length prefix included, that INIT proposes."
    expires: float | None = None
    "UNIX seconds at which the peer's certificate ends and the link must be closed."
    driven: bool = False
    """Whether the link works by itself (QUIC). Its fileno() is then never writable, and
    readable when drive() has work to do: the link may have received bytes, or take more."""
    schedule: Callable[[float], None] | None = None
    "Set by the owner of the link, which calls drive() at that time of time.monotonic()."

    @abstractmethod
    def fileno(self) -> int:
        """Return the descriptor for epoll; -1 once closed."""

    @abstractmethod
    def handshake(self) -> Progress:
        """Continue the link's own handshake. Call until DONE; LinkError if it fails."""

    @abstractmethod
    def receive(self) -> bytes | None:
        """Return received bytes: up to READ_BYTES of a stream, or one batch. None: nothing now.

        b"": the peer closed the link. LinkError: the link is broken.
        """

    @property
    def more(self) -> bool:
        """Whether received bytes wait inside this process (TLS, WebSocket), invisible to epoll."""
        return False

    @abstractmethod
    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send bytes; return how many were taken, 0: retry when writable. A datagram: all or 0.

        LinkError: the link is broken, or the datagram is larger than `mtu`.
        """

    @property
    def same_host(self) -> bool:
        """Whether the peer is on this host: it has this host's address, or needs none."""
        if self.protocol in PROTOCOLS_OF_ONE_HOST:
            return True
        try:
            there = ip_address(self.address.partition("%")[0])
        except ValueError:
            return False
        there = getattr(there, "ipv4_mapped", None) or there
        here = self.local.address.rpartition(":")[0].strip("[]").partition("%")[0]
        return there.is_loopback or str(there) == here

    def limit_unread(self, size: int) -> None:
        """Limit the received bytes that wait in the system, where the link's user set no limit."""
        return

    @property
    def unsent(self) -> bool:
        """Whether bytes that send() took still wait inside this process; flush() sends them."""
        return False

    def flush(self) -> None:
        """Send the waiting bytes, as far as the socket takes them."""
        return

    def drive(self) -> None:
        """Do the work of a driven link that is due; errors are left to receive() and send()."""
        return

    @abstractmethod
    def close(self) -> None:
        """Close the socket at once. May be called again, from any thread."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.local} -> {self.remote}>"


class Listener(ABC):
    """Source of links that peers open."""

    locators: tuple[Locator, ...]
    "Locators to reach this listener: with the actual port, and each address of a wildcard."
    on_idle: Callable[[], None] | None = None
    "Set by the owner of the listener: called, on any thread, when it is no longer busy."

    @abstractmethod
    def fileno(self) -> int: ...

    @property
    def busy(self) -> bool:
        """Whether it accepts nothing until its link is closed (serial), and must not be watched:
        its descriptor is readable for as long as the link has bytes to read."""
        return False

    @abstractmethod
    def accept(self) -> TransportLink | None:
        """Return the link of the next peer, before its own handshake. None: no peer waits.

        An error of one peer is never raised here; LinkError: this listener is broken.
        """

    @abstractmethod
    def close(self) -> None: ...
