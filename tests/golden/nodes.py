"""Tools of a scenario that is recorded: zenoh nodes on loopback with taps between them.

Knows zenoh's configuration keys; knows nothing of what the nodes say.
"""

# mypy: allow-untyped-calls
# zenoh's stubs leave close() without a return type.

import json
import socket
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import zenoh

from tests.golden.proxy import LOOPBACK, GroupTap, Tape, TcpTap, UdpTap, free_port
from tests.golden.vectors import Vector

ORIGIN = "eclipse-zenoh 1.10.2 on both sides, loopback, shared memory off"
BY_HAND = "eclipse-zenoh 1.10.2 as B, A's bytes written by hand, loopback, shared memory off"
A_ID = "a1a2a3a4"
B_ID = "b1b2b3b4b5b6b7b8b9babbbcbdbebfb0"
OPEN_WITHIN_MS = 5000

Settings = dict[str, object]

QOS_OFF: Settings = {"transport/unicast/qos/enabled": False}
COMPRESSION: Settings = {"transport/unicast/compression/enabled": True}
LOW_LATENCY: Settings = {**QOS_OFF, "transport/unicast/lowlatency": True}


def config(mode: str, zid: str, settings: Settings) -> zenoh.Config:
    """A node that listens and dials nowhere, unless `settings` say so."""
    keys: Settings = {
        "mode": mode,
        "id": zid,
        "listen/endpoints": [],
        "connect/timeout_ms": OPEN_WITHIN_MS,
        "connect/exit_on_failure": True,
        "scouting/multicast/enabled": False,
        "transport/shared_memory/enabled": False,
        **settings,
    }
    built = zenoh.Config()
    for key, value in keys.items():
        built.insert_json5(key, json.dumps(value))
    return built


class Stage:
    """The nodes and taps of one recording, closed in reverse order of their opening."""

    def __init__(self, name: str, sentence: str) -> None:
        self.name = name
        self.tape = Tape()
        self.origin = ORIGIN
        self.framing = "stream16"
        self.compression = False
        self.who = ["A dials, B accepts"]
        self._sentence = sentence
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def node(self, mode: str, zid: str, settings: Settings | None = None) -> zenoh.Session:
        """An open session, closed with the stage if the scenario does not close it."""
        session = zenoh.open(config(mode, zid, settings or {}))
        self._stack.callback(session.close)
        return session

    def listen(
        self, mode: str = "router", zid: str = B_ID, settings: Settings | None = None
    ) -> tuple[zenoh.Session, int]:
        """A node that listens on a free TCP port, and that port."""
        port = free_port()
        endpoints: Settings = {"listen/endpoints": [f"tcp/{LOOPBACK}:{port}"]}
        return self.node(mode, zid, {**endpoints, **(settings or {})}), port

    def dial(
        self, port: int, mode: str = "client", zid: str = A_ID, settings: Settings | None = None
    ) -> zenoh.Session:
        """A node that dials a TCP port of this machine."""
        keys: Settings = {"connect/endpoints": [f"tcp/{LOOPBACK}:{port}"]}
        if mode == "peer":
            keys["listen/endpoints"] = [f"tcp/{LOOPBACK}:0"]
        return self.node(mode, zid, {**keys, **(settings or {})})

    def tap(self, port: int, *, wide: bool = False, buffer: int = 0) -> TcpTap:
        """A recording proxy before a TCP port."""
        self.framing = "stream32" if wide else self.framing
        return self._stack.enter_context(TcpTap(self.tape, port, wide=wide, buffer=buffer))

    def udp_tap(self, port: int) -> UdpTap:
        """A recording proxy before a UDP port."""
        self.framing = "datagram"
        return self._stack.enter_context(UdpTap(self.tape, port))

    def group_tap(self, group: str, port: int) -> GroupTap:
        """Record a multicast group; the sender of each datagram is its `address:port`."""
        self.framing = "datagram"
        tap = GroupTap(self.tape, group, port, lambda address, _: f"{address[0]}:{address[1]}")
        return self._stack.enter_context(tap)

    def pair(
        self,
        a: str = "client",
        b: str = "router",
        settings: Settings | None = None,
        *,
        a_settings: Settings | None = None,
        b_settings: Settings | None = None,
        a_id: str = A_ID,
        wide: bool = False,
    ) -> tuple[zenoh.Session, zenoh.Session]:
        """A node A that dialled a node B through a tap; `settings` are for both."""
        common = settings or {}
        self.who.append(f"A is a {a} with id {a_id}, B is a {b} with id {B_ID}")
        changed = {**common, **{f"A {k}": v for k, v in (a_settings or {}).items()}}
        changed |= {f"B {k}": v for k, v in (b_settings or {}).items()}
        self.who.extend(f"set: {key} = {json.dumps(value)}" for key, value in changed.items())
        node_b, port = self.listen(b, B_ID, {**common, **(b_settings or {})})
        proxy = self.tap(port, wide=wide)
        node_a = self.dial(proxy.port, a, a_id, {**common, **(a_settings or {})})
        self.settle(0.1)
        return node_a, node_b

    def raw(self, port: int) -> socket.socket:
        """A plain connection to a TCP port of this machine."""
        sock = socket.create_connection((LOOPBACK, port), timeout=5)
        self._stack.callback(sock.close)
        return sock

    def settle(self, quiet: float = 0.06) -> None:
        """Wait until the nodes have fallen silent."""
        self.tape.settle(quiet)

    def vector(self, names: dict[str, str] | None = None) -> Vector:
        """Return the tape without keep-alives that only repeat; `names` renames senders."""
        batches: list[tuple[str, bytes]] = []
        idle = {b"\x04", b"\x00\x04"} if self.compression else {b"\x04"}
        said: set[str] = set()
        for heard, batch in self.tape.batches():
            sender = (names or {}).get(heard, heard)
            if batch in idle and sender in said:
                continue
            said = said | {sender} if batch in idle else said - {sender}
            batches.append((sender, batch))
        comments = [self._sentence, self.origin, *self.who, *self.tape.remarks()]
        return Vector(self.name, comments, self.framing, self.compression, batches)
