"""A multicast group: the group's link and its core, on a node's I/O thread.

Knows which thread may do what, as transport_session.py does for one peer. Does not know what
messages mean.
"""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from zenlake.errors import LinkError, SessionClosed, SessionEnded
from zenlake.link import multicast as link
from zenlake.runtime.reactor import Timer, guard
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.multicast import GroupHandler, GroupOffer, Member, Multicast
from zenlake.transport.outbox import FLUSH_SECONDS, PushResult
from zenlake.wire.enums import CloseReason
from zenlake.wire.locator import EndPoint, Locator
from zenlake.wire.network import NetworkMessage
from zenlake.wire.qos import EXPRESS

if TYPE_CHECKING:
    from zenlake.runtime.node import Node

log = logging.getLogger("zenlake.runtime")

READS_PER_TURN = 32  # Datagrams read before the other links have their turn.
BURST_DATAGRAMS = 8  # Datagrams sent in one go: receivers have room for a few dozen.
BURST_PAUSE = 0.001  # Seconds between two bursts of a message in many fragments.
CLOSE_SECONDS = 1.0  # Time that close() gives the I/O thread.


class _GuardedHandler:
    """A group's handler whose failures are logged, so that they do not end the group."""

    def __init__(self, handler: GroupHandler) -> None:
        self.on_frame = handler.on_frame  # Not guarded: its errors end the member's batch.
        self._handler = handler

    def joined(self, member: Member) -> None:
        guard(self._handler.joined, member)

    def left(self, member: Member, why: SessionEnded) -> None:
        guard(self._handler.left, member, why)


class Group:
    """Membership of one group. `send` and `close` may be called on any thread."""

    def __init__(
        self, node: "Node", endpoint: str, offer: GroupOffer, handler: GroupHandler
    ) -> None:
        self._reactor = node.reactor
        self._link = link.join(EndPoint(endpoint), node.config.options)
        self._core = Multicast(
            offer,
            _GuardedHandler(handler),
            node.config.entropy,
            self._reactor.now(),
            process=node.config.memory,
        )
        self._lock = threading.RLock()
        self._flush_armed = False
        self._closing = False
        self._closed = threading.Event()
        self._timer: Timer | None = None
        self._reactor.call_soon(self._start)

    @property
    def local(self) -> Locator:
        return self._link.local

    @property
    def members(self) -> list[Member]:
        return list(self._core.members.values())

    @property
    def core(self) -> Multicast:
        return self._core

    def send(self, message: NetworkMessage, reliable: bool = True) -> bool:
        """Send to all members, without waiting; False: the message was dropped and counted."""
        with self._lock:
            if self._closing:
                raise SessionClosed("this node left the group", CloseReason.GENERIC)
            outbox, now = self._core.outbox, self._reactor.now()
            if outbox.push(message, reliable, now=now) is PushResult.FULL:
                self._flush(everything=True)
                if outbox.push(message, reliable, now=now) is PushResult.FULL:
                    outbox.counters.drop_sent(DropReason.CONGESTION_GROUP)
                    return False
            if outbox.due(now, bool(message.qos & EXPRESS)):
                self._flush()
            else:
                self._flush_at(now + FLUSH_SECONDS)
            return True

    def close(self) -> None:
        """Send CLOSE to the group and leave it. Waits for that, unless on the I/O thread."""
        if self._reactor.inside:
            self._close()
        else:
            self._reactor.call_soon(self._close)
            self._closed.wait(CLOSE_SECONDS)

    # ---- on the I/O thread

    def _start(self) -> None:
        if self._closing:
            return
        self._reactor.watch(self._link, self._on_group, read=True, write=False)
        self._reactor.watch(self._link.unicast, self._on_answer, read=True, write=False)
        self._on_time()

    def _on_group(self, readable: bool, writable: bool) -> None:
        self._read(self._link.receive)

    def _on_answer(self, readable: bool, writable: bool) -> None:
        """Read the sending socket, too, although members send to the group."""
        self._read(self._link.receive_unicast)

    def _read(self, receive: Callable[[], link.Received | None]) -> None:
        try:
            for _ in range(READS_PER_TURN):
                received = None if self._closing else receive()
                if received is None:  # Or a handler has closed the group.
                    break
                data, sender = received
                self._core.receive(data, sender, self._reactor.now())
        except LinkError as error:
            log.error("left a group: %s", error)
            self._close()

    def _on_time(self) -> None:
        if self._closing:
            return
        self._core.on_time(self._reactor.now())  # Without the lock: handlers are called.
        with self._lock:
            self._flush()
        self._timer = self._reactor.call_at(self._core.deadline(), self._on_time)

    def _flush_due(self) -> None:
        with self._lock:
            self._flush_armed = False
            if not self._closing:
                self._flush()

    def _flush_at(self, when: float) -> None:
        if not self._flush_armed:
            self._flush_armed = True
            self._reactor.call_at(when, self._flush_due)

    def _flush(self, *, everything: bool = False) -> None:
        """Send queued datagrams; one that the socket does not take now is lost and counted."""
        now = self._reactor.now()
        sent = 0
        while (everything or sent < BURST_DATAGRAMS) and (data := self._core.pull(now)) is not None:
            sent += 1
            try:
                if not self._link.send(data):
                    self._core.counters.drop_sent(DropReason.GROUP_SOCKET_FULL)
            except LinkError as error:
                self._core.counters.drop_sent(DropReason.GROUP_LINK_FAILED)
                log.warning("cannot send to a group: %s", error)
                return  # The rest leaves with the next JOIN.
        self._core.outbox.on_all_written()
        if self._core.waiting:
            self._flush_at(now + BURST_PAUSE)

    def _close(self) -> None:
        if self._closing:
            return
        with self._lock:
            self._closing = True
            self._flush(everything=True)
        self._core.close()  # Without the lock: handlers are called.
        with self._lock:
            self._flush()
        if self._timer is not None:
            self._timer.cancel()
            self._reactor.forget(self._link)
            self._reactor.forget(self._link.unicast)
        self._link.close()
        self._closed.set()
