"""The kinds of links that the contract holds for, and what a test needs to drive any of them.

A new kind is one more entry of KINDS. Every wait polls and has a deadline.
"""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.support.certificates import Authority
from tests.support.serial_line import SerialLine
from tests.support.waiting import until_found
from zenlake import link as links
from zenlake.errors import LinkError
from zenlake.link.base import Listener, Progress, TransportLink
from zenlake.link.options import LinkOptions, TlsOptions
from zenlake.link.vsock import ANY, CIDS
from zenlake.sim.memory_link import Faults, Network
from zenlake.wire.framing import Framing
from zenlake.wire.locator import EndPoint

DEADLINE = 60.0
TICK = 0.001  # Time that one look waits; no result depends on it.
IDLE_TICKS = 20  # Looks after which a link that accepts nothing counts as full.

T = TypeVar("T")


def _no_options(folder: Path) -> LinkOptions:
    return LinkOptions()


def _tls_options(folder: Path) -> LinkOptions:
    authority = Authority(folder)
    server = authority.server()
    return LinkOptions(
        tls=TlsOptions(
            root_ca_certificate=authority.certificate,
            listen_private_key=server.key,
            listen_certificate=server.certificate,
        )
    )


@dataclass(frozen=True)
class Kind:
    """Properties of a kind of link, and where one can be made."""

    protocol: str
    endpoint: str
    "Where to listen; {folder} stands for the test's own."
    framing: Framing = Framing.STREAM
    reliable: bool = True
    mtu: int = 65_535
    address: str = "127.0.0.1"
    "Of the link that has connected."
    ends: bool = True
    "Whether the peer learns that this side closed."
    silent: bool = False
    "Whether a listener knows of a peer only by what it sends."
    speaks_first: bool = False
    "Whether the side that connected has to send before the other one can."
    line: bool = False
    "Whether two devices, one per end, are joined for as long as the test lasts; {line} is one."
    threads: bool = True
    options: Callable[[Path], LinkOptions] = _no_options
    faults: Faults | None = None
    "Of a link in memory: what its network does."


def has_vsock_loopback() -> bool:
    """Return whether this kernel links vsock sockets of one machine (module vsock_loopback)."""
    try:
        with socket.socket(socket.AF_VSOCK) as sock:
            sock.bind((CIDS["VMADDR_CID_LOCAL"], ANY))
    except OSError:
        return False
    return True


SLOW = Faults(delay=(0.001, 0.002))
KINDS = {
    "tcp": Kind("tcp", "tcp/127.0.0.1:0"),
    "tcp6": Kind("tcp", "tcp/[::1]:0", address="::1"),
    "tcp name": Kind("tcp", "tcp/localhost:0"),
    "unix": Kind("unixsock-stream", "unixsock-stream/{folder}/s", address="unixsock-stream"),
    "pipe": Kind("unixpipe", "unixpipe/{folder}/p", address="unixpipe"),
    "udp": Kind("udp", "udp/127.0.0.1:0", Framing.DATAGRAM, False, 65_487, ends=False, silent=True),
    "udp6": Kind(
        "udp", "udp/[::1]:0", Framing.DATAGRAM, False, 65_487, "::1", ends=False, silent=True
    ),
    "tls": Kind("tls", "tls/127.0.0.1:0", options=_tls_options),
    "quic": Kind("quic", "quic/127.0.0.1:0", speaks_first=True, options=_tls_options),
    "quic6": Kind("quic", "quic/[::1]:0", address="::1", speaks_first=True, options=_tls_options),
    "ws": Kind("ws", "ws/127.0.0.1:0", Framing.DATAGRAM),
    "serial": Kind(
        "serial", "serial/{line}", Framing.DATAGRAM, False, 1500, "serial", ends=False, line=True
    ),
    "memory": Kind("memory", "memory/here", address="here", threads=False, faults=SLOW),
    "memory in pieces": Kind(
        "memory",
        "memory/here",
        address="here",
        threads=False,
        faults=Faults((0.001, 0.002), chunk=5000),
    ),
    "memory datagrams": Kind(
        "memory",
        "memory/here",
        Framing.DATAGRAM,
        False,
        65_487,
        "here",
        ends=False,
        threads=False,
        faults=SLOW,
    ),
}
if has_vsock_loopback():
    KINDS["vsock"] = Kind("vsock", "vsock/VMADDR_CID_LOCAL:-1", address="vsock")


def progress(link: TransportLink) -> Progress:
    return link.handshake()


class Stage:
    """Opens links of one kind, drives them, and closes all of them at the end."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind = kind
        self.options = kind.options(folder)
        self.line = SerialLine() if kind.line else None
        device = self.line.__enter__().ends[0] if self.line else ""
        self.endpoint = EndPoint(kind.endpoint.format(folder=folder, line=device))
        self.network = Network(1, kind.faults) if kind.faults else None
        self._opened: list[TransportLink | Listener] = []

    def close(self) -> None:
        for opened in self._opened:
            opened.close()
        if self.line:
            self.line.__exit__(None, None, None)

    def keep(self, opened: T) -> T:
        assert isinstance(opened, TransportLink | Listener)
        self._opened.append(opened)
        return opened

    # --- opening

    def listen(self, endpoint: EndPoint | None = None) -> Listener:
        where = endpoint or self.endpoint
        if self.network:
            return self.keep(self.network.listen(where.address))
        listener = links.listen(where, self.options)
        assert isinstance(listener, Listener)
        return self.keep(listener)

    def connect(self, endpoint: EndPoint) -> TransportLink:
        if self.network:
            datagram = self.kind.framing is Framing.DATAGRAM
            return self.keep(self.network.connect(endpoint.address, datagram=datagram))
        if self.line:
            endpoint = EndPoint(f"{self.kind.protocol}/{self.line.ends[1]}")
        address = links.resolve(endpoint)[0]
        return self.keep(links.connect(endpoint, address, self.options))

    def accept(self, listener: Listener) -> TransportLink:
        return self.keep(self.until(listener.accept))

    def pair(self, listener: Listener) -> tuple[TransportLink, TransportLink]:
        """A link and its other end, their handshakes done."""
        connected = self.connect(listener.locators[0])
        if self.kind.silent:
            connected.send(b"first")
        if self.kind.line:
            connected.handshake()
        accepted = self.accept(listener)
        ends = [connected, accepted]
        self.until(lambda: set(map(progress, ends)) == {Progress.DONE} or None)
        if self.kind.silent:
            assert accepted.more
            assert self.until(accepted.receive) == b"first"
        if self.kind.speaks_first:
            assert self.carry(connected, accepted, b"first") == b"first"
        return connected, accepted

    def triple(self) -> tuple[Listener, TransportLink, TransportLink]:
        listener = self.listen()
        return listener, *self.pair(listener)

    # --- driving

    def until(self, look: Callable[[], T | None]) -> T:
        """Return the first result of `look` that is not None; time passes between two looks."""
        return until_found(look, pause=self.tick)

    def tick(self) -> None:
        if self.network:
            self.network.advance(self.network.now + TICK)
        else:
            time.sleep(TICK)
            for opened in self._opened:
                if isinstance(opened, TransportLink) and opened.driven:
                    opened.drive()

    def carry(self, sender: TransportLink, receiver: TransportLink, data: bytes) -> bytes:
        """Send all of `data`, reading at the other end: what arrived there."""
        left, arrived = memoryview(data), bytearray()

        def step() -> bool | None:
            nonlocal left
            if left:
                left = left[sender.send(left) :]
            if sender.unsent:
                sender.flush()
            arrived.extend(receiver.receive() or b"")
            return True if len(arrived) >= len(data) else None

        self.until(step)
        return bytes(arrived)

    def error_of(self, act: Callable[[], object]) -> LinkError:
        """The LinkError that `act` ends in, if it is done often enough."""

        def attempt() -> LinkError | None:
            try:
                act()
            except LinkError as error:
                return error
            return None

        return self.until(attempt)

    def receive_flushing(self, sender: TransportLink, receiver: TransportLink) -> bytes | None:
        if sender.unsent:
            sender.flush()
        return receiver.receive()

    def fill(self, sender: TransportLink, piece: bytes, limit: int) -> bytes:
        """Send until the link takes no more for some time: all that it took."""
        sent, idle = bytearray(), 0

        def blocked() -> bool | None:
            nonlocal idle
            taken = sender.send(piece)
            sent.extend(piece[:taken])
            assert len(sent) < limit, "there is no limit to what this link takes"
            idle = 0 if taken else idle + 1
            if sender.unsent:
                sender.flush()
            return True if idle >= IDLE_TICKS else None

        self.until(blocked)
        return bytes(sent)
