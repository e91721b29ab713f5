"""Connectors: what keeps a node connected to an endpoint, or to all endpoints of a group.

Knows when to try again, and which link failed. Does not open links: the node does.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from zenlake.errors import LinkError, SessionEnded, SessionRefused, ZError
from zenlake.runtime.multilink_session import MultiLinkSession
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.retry import Retry, RetryPolicy
from zenlake.wire.enums import CloseReason
from zenlake.wire.locator import EndPoint
from zenlake.wire.zenohid import WireZenohId

if TYPE_CHECKING:
    from zenlake.runtime.node import Node

log = logging.getLogger("zenlake.runtime")

Done = Callable[[TransportSession | ZError], None]
"Called on the I/O thread with the open session, or with the reason why there is none."


class Connector:
    """Keeps a node connected to the first of its endpoints that answers."""

    def __init__(
        self,
        node: "Node",
        endpoints: tuple[EndPoint, ...],
        policy: RetryPolicy,
        expect: WireZenohId | None,
        done: Done | None = None,
    ) -> None:
        self.session: TransportSession | None = None
        self.last_error: ZError | None = None
        self.attempts = 0
        self._node = node
        self.endpoints = endpoints
        self._tried = 0
        "Endpoints that failed since the last session or wait."
        self._expect = expect
        self._report = done
        self.stopped = False
        if len(endpoints) == 1:
            policy = RetryPolicy.from_config(endpoints[0].config, policy)
        self._retry = Retry(policy, node.reactor.now())

    def stop(self) -> None:
        """Do not connect again; an open session stays."""
        self.stopped = True

    def attempt(self) -> None:
        if not self.stopped:
            self.attempts += 1
            endpoint = self.endpoints[self._tried]
            self._node.connect_soon(endpoint, self._done, expect=self._expect)

    def _done(self, found: TransportSession | ZError) -> None:
        now = self._node.reactor.now()
        if isinstance(found, TransportSession):
            endpoint = self.endpoints[self._tried]
            self.session = found.whole
            self.last_error = None
            self._tried = 0
            self._retry.succeeded(now)
            self._opened(endpoint, found)
        else:
            self.last_error = found
            log.info("%s: no session: %s", self.endpoints[self._tried].locator, found)
            self._tried = (self._tried + 1) % len(self.endpoints)
            if self._tried:
                self.attempt()
            else:
                self._again(self._retry.failed(now))
            if self.stopped:
                self._tell(found)

    def _opened(self, endpoint: EndPoint, link: TransportSession) -> None:
        if isinstance(link, MultiLinkSession):  # It takes no further link: until it loses one.
            link.on_loss.append(self._lost)
        else:
            link.on_end.append(self._lost)
        self._tell(link.whole)

    def _tell(self, found: TransportSession | ZError) -> None:
        report, self._report = self._report, None
        if report is not None:
            report(found)

    def _lost(self, end: SessionEnded) -> None:
        self.session = None
        self.last_error = end
        self._again(self._retry.lost(self._node.reactor.now()))

    def _again(self, when: float | None) -> None:
        if when is None:
            self.stop()  # The policy gives up; keep_connected() makes a new connector.
        elif not self.stopped:
            self._node.reactor.call_at(when, self.attempt)


class GroupConnector(Connector):
    """Connector of a client: to one node, over all endpoints of the first group that answers.

    Rust: `connect_peers_single_link` of `zenoh/src/net/runtime/orchestrator.rs`.
    """

    def __init__(
        self, node: "Node", groups: Sequence[Sequence[EndPoint]], policy: RetryPolicy, done: Done
    ) -> None:
        endpoints = tuple(endpoint for group in groups for endpoint in group)
        super().__init__(node, endpoints, policy, None, done)
        self._groups = groups
        self._once = policy.timeout == 0 or policy.first == 0
        self._further_policy = replace(policy, timeout=None)
        self._further: dict[EndPoint, FurtherLink] = {}
        self._awaited: set[EndPoint] = set()
        "Further endpoints of the group that were not linked yet, or with one attempt: not tried."

    def stop(self) -> None:
        super().stop()
        self._leave()

    def _leave(self) -> None:
        """Open no further link of the session that has ended."""
        for further in list(self._further.values()):
            further.stop()
        self._further.clear()

    def _opened(self, endpoint: EndPoint, link: TransportSession) -> None:
        session = link.whole
        session.on_end.append(self._lost)
        if link is not session:
            link.on_end.append(lambda end: self._lost_link(endpoint, session, end))
        group = next(group for group in self._groups if endpoint in group)
        others = [other for other in dict.fromkeys(group) if other != endpoint]
        self._awaited = set(others)
        if session.agreement.multilink is None:
            for other in others:
                self.not_linked(other, session, self.no_further(session), final=True)
        else:
            for other in others:
                self._further[other] = FurtherLink(self, self._node, other, session)
            for further in tuple(self._further.values()):
                further.attempt()
        self._tell_if_linked(session)

    @property
    def further_policy(self) -> RetryPolicy:
        """Retries of a further link: for as long as the session is open."""
        return self._further_policy

    def linked(self, endpoint: EndPoint, session: TransportSession) -> None:
        """Note a further link of the session."""
        self._awaited.discard(endpoint)
        self._tell_if_linked(session)

    def not_linked(
        self, endpoint: EndPoint, session: TransportSession, error: ZError, *, final: bool
    ) -> None:
        """Note a further link that failed; `final`: that it is not tried again."""
        if session is not self.session or self.stopped:
            return
        missing = LinkError(
            f"strategy allOf wants a link over each of its locators, and {endpoint.locator} has "
            f"none: {error}. Remove it, or set connect/timeout_ms to 0 to open without it"
        )
        self.last_error = missing
        if final or endpoint in self._awaited:
            log.warning("%s: no further link: %s", endpoint.locator, error)
        if self._once:
            self._awaited.discard(endpoint)
            self._tell_if_linked(session)
        elif final:
            self._tell(missing)

    def no_further(self, session: TransportSession) -> LinkError:
        """Return the error of a session that has as many links as one of its nodes admits."""
        return LinkError(
            f"the session with {session.zid} takes no further link: raise on both nodes "
            f"transport/unicast/max_links, which is {self._node.config.max_links} here"
        )

    def _tell_if_linked(self, session: TransportSession) -> None:
        if not self._awaited:
            self._tell(session)

    def _lost_link(self, endpoint: EndPoint, session: TransportSession, end: SessionEnded) -> None:
        """Open the first link again, unless the session ended with it."""
        if session is self.session and session.over is None and not self.stopped:
            self._further[endpoint] = FurtherLink(self, self._node, endpoint, session)
            self._further[endpoint].lost(end)

    def _lost(self, end: SessionEnded) -> None:
        self._leave()
        if self._once and self._report is not None:
            self.stop()
            self._tell(end)
        super()._lost(end)


class FurtherLink(Connector):
    """Connector of a further link of a client's session, which keeps it until the session ends."""

    def __init__(
        self, owner: GroupConnector, node: "Node", endpoint: EndPoint, whole: TransportSession
    ) -> None:
        super().__init__(node, (endpoint,), owner.further_policy, whole.zid)
        self._owner, self._of = owner, whole

    def lost(self, end: SessionEnded) -> None:
        """Open the link again, after a pause."""
        self._lost(end)

    def _done(self, found: TransportSession | ZError) -> None:
        endpoint, session = self.endpoints[0], self._of
        if isinstance(found, TransportSession):
            if found is found.whole:
                self.stop()
                self._owner.not_linked(
                    endpoint, session, self._owner.no_further(session), final=True
                )
                return
            if self.stopped or found.whole is not session:
                found.close()  # The session has ended meanwhile.
                return
        else:
            other_node = (
                isinstance(found, SessionRefused)
                and not found.by_peer
                and found.reason == CloseReason.INVALID
            )
            if other_node:
                self.stop()
                found = LinkError(f"{found}; an endpoint of another node has to be its own entry")
            self._owner.not_linked(endpoint, session, found, final=other_node)
        super()._done(found)

    def _opened(self, endpoint: EndPoint, link: TransportSession) -> None:
        super()._opened(endpoint, link)
        self._owner.linked(endpoint, self._of)
