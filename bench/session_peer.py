"""The other process of the session benchmark: `python -m bench.session_peer ROLE ARGUMENTS`.

It reports where it listens, then runs until its input ends: a raw socket that echoes, or a zenlake
node or an eclipse-zenoh peer that echoes and counts.
"""

import resource
import secrets
import socket
from typing import Any

from bench.peer import open_listening, report, resident_bytes, run_role, serve
from zenlake.errors import SessionEnded
from zenlake.link.options import LinkOptions, TlsOptions
from zenlake.runtime.node import Node, NodeConfig
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.admission import AdmissionLimits
from zenlake.transport.offer import Offer
from zenlake.wire.enums import WirePriority, WireWhatAmI
from zenlake.wire.framing import Framing
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.scan import Scanner
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

PING, FLOW, DONE = "bench/ping", "bench/flow", "bench/done"


def offer(**changes: Any) -> Offer:
    zid = WireZenohId(secrets.token_bytes(16))
    return Offer(zid=zid, whatami=WireWhatAmI.PEER, **changes)


def link_options(tls: dict[str, str] | None) -> LinkOptions:
    return LinkOptions(tls=TlsOptions(**tls) if tls else None)  # type: ignore[arg-type]


class Counting:
    """Handler that counts messages by the scan and answers the last one, or echoes all bytes."""

    def __init__(self) -> None:
        self.expected = 0
        self.echo = False
        self.count = 0
        self._scanner = Scanner()

    def opened(self, session: TransportSession) -> None: ...

    def closed(self, session: TransportSession, why: SessionEnded) -> None: ...

    def on_frame(
        self,
        session: TransportSession,
        priority: WirePriority,
        reliable: bool,
        data: bytes,
        pos: int,
        end: int,
    ) -> int:
        if self.echo:
            session.send_encoded(data[pos:end], priority, reliable)
            return end
        part = data[pos:end]
        for chunk in self._scanner.chunks(part, Framing.DATAGRAM, low_latency=True):
            self.count += len(chunk.rows)
        if self.expected and self.count >= self.expected:
            self.count = self.expected = 0
            session.send(Push(WireExpr(0, DONE), Put(b"")))
        return end


def raw() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        report(port=listener.getsockname()[1])
        sock, _ = listener.accept()
        with sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := sock.recv(65536):
                sock.sendall(data)


def ours(endpoint: str = "tcp/127.0.0.1:0", tls: dict[str, str] | None = None) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    handler = Counting()
    limits = AdmissionLimits(sessions=5000)
    options = link_options(tls)
    with Node(NodeConfig(offer=offer(), limits=limits, options=options), handler) as node:
        (locator,) = node.listen(endpoint)
        report(endpoint=locator)

        def status() -> None:
            used = resource.getrusage(resource.RUSAGE_SELF)
            report(
                rss=resident_bytes(), cpu=used.ru_utime + used.ru_stime, sessions=len(node.sessions)
            )

        def set_mode(echo: bool = False, expected: int = 0) -> None:
            handler.echo, handler.expected, handler.count = echo, expected, 0
            report(ok=True)

        serve({"status": status, "mode": set_mode})


def theirs() -> None:
    import zenoh

    endpoint, opened = open_listening(zenoh, "peer")
    with opened as session:
        block = zenoh.CongestionControl.BLOCK
        pong = session.declare_publisher(PING + "/back", express=True, congestion_control=block)
        done = session.declare_publisher(DONE, congestion_control=block)
        left = [0]

        def flow(sample: object) -> None:
            left[0] -= 1
            if left[0] == 0:
                done.put(b"")

        subscribers = [
            session.declare_subscriber(PING, lambda sample: pong.put(sample.payload)),
            session.declare_subscriber(FLOW, flow),
        ]
        report(endpoint=endpoint)

        def set_mode(echo: bool = False, expected: int = 0) -> None:
            left[0] = expected
            report(ok=True)

        serve({"mode": set_mode})
        subscribers.clear()


if __name__ == "__main__":
    run_role({"raw": raw, "ours": ours, "theirs": theirs})
