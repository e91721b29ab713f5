"""Router: a session of mode "router" that reports its neighbours and drains before it closes.

Does not route: `zenlake.routing` below the session does.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from zenlake.api.config.config import Config
from zenlake.api.discovery.stats import Stats
from zenlake.api.session import Session
from zenlake.api.session_core import SessionCore
from zenlake.api.values.enums import WHATAMI_OF, WhatAmI
from zenlake.api.values.ids import ZenohId
from zenlake.api.values.wrapped import make
from zenlake.errors import SessionEnded, ZError
from zenlake.runtime import kernel_loader
from zenlake.runtime.polling import wait_readable
from zenlake.runtime.transport_session import TransportSession as Transport
from zenlake.wire.enums import CloseReason

log = logging.getLogger("zenlake.router")

QUIET_SECONDS = 0.1  # Time without a received byte after which the router counts as drained.
DRAIN_SECONDS = 2.0  # Upper bound on draining while bytes keep coming.
POLL_SECONDS = 0.01  # Interval at which the received bytes are checked.
CLOSE_REASONS = {int(reason): reason.name for reason in CloseReason}


@dataclass(frozen=True)
class Event:
    """Opening or end of a session."""

    opened: bool
    zid: ZenohId
    whatami: WhatAmI
    remote: str
    "Locator of the other node."
    why: str = ""
    "Cause of the end, in words."
    reason: str = ""
    "Name of the CLOSE reason of the end."
    by_peer: bool = False
    "Whether the other node ended the session."


Watch = Callable[[Event], None]


class _Watched(SessionCore):
    """SessionCore that reports every transport that opens or ends."""

    def __init__(self, config: Config, watch: Watch) -> None:
        super().__init__(config)
        self._watch = watch

    def opened(self, session: Transport) -> None:
        super().opened(session)
        self._watch(_event(session, None))

    def closed(self, session: Transport, why: SessionEnded) -> None:
        super().closed(session, why)
        self._watch(_event(session, why))


def _event(session: Transport, end: SessionEnded | None) -> Event:
    agreed = session.agreement
    node = (ZenohId.of(agreed.zid), WHATAMI_OF[agreed.whatami], str(session.remote))
    if end is None:
        return Event(True, *node)
    reason = CLOSE_REASONS.get(end.reason, str(end.reason))
    return Event(False, *node, end.why, reason, end.by_peer)


class Router:
    """A running router: a context manager, or `close()` it.

    `watch` is called with every Event, on the I/O thread, so it must not wait.
    """

    def __init__(self, config: Config, watch: Watch | None = None) -> None:
        if config.get_json("mode") != '"router"':
            raise ZError(f"the mode is {config.get_json('mode')}: a router has mode router")
        kernel_loader.make()  # Loads the compiled kernels in the background.
        self._core = _Watched(config, watch or _log)
        self._core.open()
        self.session: Session = make(Session, self._core)
        "The router's own session, which puts, gets and subscribes as any other."

    @property
    def zid(self) -> ZenohId:
        return self.session.zid()

    @property
    def locators(self) -> list[str]:
        """Locators at which the router listens, with actual ports, as endpoints for other nodes."""
        return [str(locator) for locator in self._core.node.locators]

    def stats(self) -> Stats:
        """Return the counters of messages received, forwarded and dropped, also per transport."""
        return self.session.stats()

    def tables(self) -> dict[str, int]:
        """Return the number of entries in each routing table; a session that ended leaves none."""
        with self._core.exchange.lock:
            return self._core.exchange.routing.size()

    def drain(self, seconds: float = DRAIN_SECONDS) -> bool:
        """Wait until no byte is received or unread for QUIET_SECONDS; False after `seconds`."""
        now = time.monotonic()
        end, since, before = now + seconds, now, self._received()
        while self._core.node.transports and now < end:
            time.sleep(POLL_SECONDS)
            now, received = time.monotonic(), self._received()
            if received != before or self._unread():
                since, before = now, received
            elif now - since >= QUIET_SECONDS:
                return True
        return now < end

    def _received(self) -> int:
        sessions = self._core.node.transports
        return sum(session.counters.received_bytes for session in sessions)

    def _unread(self) -> bool:
        """Return whether a link has bytes that back-pressure or a busy machine left unread."""
        sessions = self._core.node.transports
        links = [fd for session in sessions if (fd := session.link.fileno()) >= 0]
        return wait_readable(links, 0)

    def close(self) -> None:
        """Forward what was sent to the router before, and close. May be called again."""
        if not self.session.is_closed():
            self.drain()
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Router({self.zid} at {', '.join(self.locators) or 'no address'})"


def _log(event: Event) -> None:
    if event.opened:
        log.info("%s %s opened, %s", event.whatami, event.zid, event.remote)
    else:
        log.info("%s %s ended (%s): %s", event.whatami, event.zid, event.reason, event.why)


def run(
    listen: Sequence[str] = ("tcp/127.0.0.1:0",),
    connect: Sequence[str] = (),
    config: Config | None = None,
    *,
    watch: Watch | None = None,
) -> Router:
    """Start a router and return it. ZError: it cannot start, with the cause.

    Port 0 stands for a free port. Without a `config` multicast scouting is off; of a `config`,
    which is copied, everything but mode and endpoints applies.

    >>> import zenlake.router
    >>> with zenlake.router.run(listen=[]) as router:
    ...     with router.session.declare_subscriber("a/*") as subscriber:
    ...         router.session.put("a/b", "hello")
    ...         str(subscriber.recv().payload)
    'hello'
    """
    if config is None:
        config = Config()
        config.insert_json5("scouting/multicast/enabled", "false")
    config = copy(config)
    for key, value in (
        ("mode", "router"),
        ("listen/endpoints", list(listen)),
        ("connect/endpoints", list(connect)),
    ):
        config.insert_json5(key, json.dumps(value))
    return Router(config, watch)
