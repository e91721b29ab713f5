"""Nodes for tests: made with short words, waited for without a clock that decides."""

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from zenlake.errors import SessionEnded
from zenlake.runtime.message_handler import MessageHandler, OnMessage
from zenlake.runtime.node import Node, NodeConfig
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.offer import Offer
from zenlake.wire.enums import WireCongestionControl, WirePriority, WireWhatAmI
from zenlake.wire.network import NetworkMessage
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

PATIENCE = 30.0  # Seconds: far more than any step needs, even on a busy machine.
BLOCK = QoS(congestion_control=WireCongestionControl.BLOCK)
DROP = QoS(congestion_control=WireCongestionControl.DROP)
OFFER_FIELDS = {field.name for field in fields(Offer)}
ANYWHERE = "tcp/127.0.0.1:0"


def new_zid() -> WireZenohId:
    return WireZenohId(secrets.token_bytes(16))


def put(payload: bytes, qos: QoS = BLOCK, key: str = "t/k") -> Push:
    return Push(WireExpr(0, key), Put(payload), qos)


def numbered(number: int, size: int = 0, qos: QoS = BLOCK) -> Push:
    return put(b"%08d" % number + bytes(size), qos)


def payload_of(message: NetworkMessage) -> bytes:
    assert isinstance(message, Push)
    assert isinstance(message.body, Put)
    assert isinstance(message.body.payload, bytes)
    return message.body.payload


def number_of(message: NetworkMessage) -> int:
    return int(payload_of(message)[:8])


class Record(MessageHandler):
    """A handler that keeps what it is told. `then`: what else to do with a message."""

    def __init__(self, then: OnMessage | None = None) -> None:
        super().__init__(self._keep, self._keep_open, self._keep_close)
        self.messages: list[NetworkMessage] = []
        self.priorities: list[WirePriority] = []
        self.sessions: list[TransportSession] = []
        self.ends: list[tuple[TransportSession, SessionEnded]] = []
        self._then = then

    def _keep(
        self,
        session: TransportSession,
        message: NetworkMessage,
        priority: WirePriority,
        reliable: bool,
    ) -> None:
        self.messages.append(message)
        self.priorities.append(priority)
        if self._then is not None:
            self._then(session, message, priority, reliable)

    def _keep_open(self, session: TransportSession) -> None:
        self.sessions.append(session)

    def _keep_close(self, session: TransportSession, why: SessionEnded) -> None:
        self.ends.append((session, why))

    @property
    def numbers(self) -> list[int]:
        return [number_of(message) for message in self.messages]


def make_node(handler: Any = None, **settings: Any) -> Node:
    """`settings`: of NodeConfig or of Offer."""
    offer = {key: settings.pop(key) for key in OFFER_FIELDS & settings.keys()}
    offer = {"zid": new_zid(), "whatami": WireWhatAmI.PEER, **offer}
    return Node(NodeConfig(offer=Offer(**offer), **settings), handler or Record())


def port_of(locators: Sequence[str]) -> int:
    return int(locators[0].rpartition(":")[2])


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work` in many threads at once; what one raises is raised here."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
