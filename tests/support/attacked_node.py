"""A node under attack, and the honest_session in it: an honest session that must lose nothing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.hostile import HostilePeer
from tests.support.runtime_nodes import (
    ANYWHERE,
    PATIENCE,
    Record,
    make_node,
    new_zid,
    numbered,
    payload_of,
    port_of,
    put,
)
from tests.support.waiting import until
from zenlake.errors import SessionEnded, SessionRefused
from zenlake.runtime.node import Node
from zenlake.runtime.transport_session import TransportSession
from zenlake.wire.enums import WirePriority
from zenlake.wire.network import NetworkMessage
from zenlake.wire.zenohid import WireZenohId

WINDOW = 64  # Messages of the honest session that are under way.
CANARY_ROUNDS = 200  # Messages that must come back after an attack.


def connect(node: Node, locator: str) -> TransportSession:
    """Connect, again where a busy machine was too slow for the limits of the node under attack."""

    def attempt() -> TransportSession | SessionRefused:
        try:
            return node.connect(locator)
        except SessionRefused as refused:
            return refused

    found = until(attempt, lambda result: isinstance(result, TransportSession))
    assert isinstance(found, TransportSession)
    return found


class HonestSession:
    """Sends numbered messages to a node that echoes them, all the time, from its own thread."""

    def __init__(self, locator: str, **settings: Any) -> None:
        self.handler = Record(lambda *_: self._room.release())
        self._room = threading.Semaphore(WINDOW)
        self.node = make_node(self.handler, lease_ms=60_000, **settings)
        self.sent = 0
        self.failure: BaseException | None = None
        self._locator = locator
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="honest_session", daemon=True)

    def start(self) -> None:
        self.node.start()
        self.session = connect(self.node, self._locator)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping:
                if self._room.acquire(timeout=0.05):
                    assert self.session.send(numbered(self.sent))
                    self.sent += 1
        except BaseException as error:  # noqa: BLE001 - shown by finish()
            self.failure = error

    @property
    def echoed(self) -> int:
        return len(self.handler.messages)

    def moves(self) -> None:
        """Wait until it has been served once more."""
        before = self.echoed
        until(lambda: self.echoed >= before + CANARY_ROUNDS or self.failure)
        assert self.failure is None

    def finish(self) -> None:
        """Every message came back, exactly once and in order."""
        self._stopping = True
        self._thread.join(PATIENCE)
        assert self.failure is None
        until(lambda: self.echoed >= self.sent)
        assert self.handler.numbers == list(range(self.sent))
        assert not self.handler.ends
        assert [s.gaps for s in self.session.sequences.values()] == [0]

    def close(self) -> None:
        self._stopping = True
        if self._thread.is_alive():
            self._thread.join(PATIENCE)
        self.node.close()


class AttackedNode(Record):
    """The node's handler: echoes to the honest_session, keeps what strangers say."""

    def __init__(self, caplog: pytest.LogCaptureFixture, honest: dict[str, Any]) -> None:
        super().__init__()
        self.honest = honest
        "Settings of honest nodes."
        self.caplog = caplog
        self.strange: list[NetworkMessage] = []
        self.honest_zid: WireZenohId | None = None
        self.node: Node
        self.port: int
        self.honest_session: HonestSession

    def _keep(
        self,
        session: TransportSession,
        message: NetworkMessage,
        priority: WirePriority,
        reliable: bool,
    ) -> None:
        if session.zid == self.honest_zid:
            session.send(message)
        else:
            self.strange.append(message)

    def peer(self, zid: WireZenohId | None = None, **settings: Any) -> HostilePeer:
        return HostilePeer(self.port, zid or new_zid(), **settings)

    def session_of(self, peer: HostilePeer) -> TransportSession:
        until(lambda: peer.zid in self.node.sessions)
        return self.node.sessions[peer.zid]

    def end_of(self, peer: HostilePeer) -> SessionEnded:
        """Why the session with `peer` ended, as the handler was told."""

        def found() -> list[SessionEnded]:
            return [end for session, end in list(self.ends) if session.zid == peer.zid]

        until(found)
        return found()[0]

    def logged(self, peer: HostilePeer, *words: str) -> None:
        """A line of the log names the peer's address, and these words."""

        def found() -> bool:
            lines = [record.getMessage() for record in list(self.caplog.records)]
            return any(peer.address in line and all(w in line for w in words) for line in lines)

        until(found)

    def check(self) -> None:
        """The node is up, it serves the honest_session and newcomers, and nothing is pending."""
        until(lambda: self.node.pending == 0)
        self.honest_session.moves()
        with make_node(**self.honest) as newcomer:
            session = connect(newcomer, f"tcp/127.0.0.1:{self.port}#bind=127.0.0.77:0")
            before = len(self.strange)
            assert session.send(put(b"still there?"))
            until(lambda: len(self.strange) > before)
            assert payload_of(self.strange[-1]) == b"still there?"
        self.honest_session.finish()


@contextmanager
def attacked(
    caplog: pytest.LogCaptureFixture, *, honest: dict[str, Any] | None = None, **settings: Any
) -> Iterator[AttackedNode]:
    """A node with `settings`; when the attack is over everything must be as before."""
    caplog.set_level("INFO", "zenlake.runtime")
    target = AttackedNode(caplog, honest or {})
    with make_node(target, **settings) as node:
        target.node = node
        target.port = port_of(node.listen(ANYWHERE))
        honest_session = target.honest_session = HonestSession(
            f"tcp/127.0.0.1:{target.port}#bind=127.0.0.99:0", **target.honest
        )
        target.honest_zid = honest_session.node.zid
        try:
            honest_session.start()
            honest_session.moves()
            yield target
            target.check()
        finally:
            target.honest_session.close()
