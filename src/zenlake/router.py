"""A router at work: who comes and goes, what it counts, and how it ends without losing anything.

Knows one session of mode "router". What goes where is decided below it.
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
from zenlake.errors import SessionEnded, ZError
from zenlake.runtime import kernel_loader
from zenlake.runtime.transport_session import TransportSession as Transport
from zenlake.wire.enums import CloseReason

log = logging.getLogger("zenlake.router")

QUIET_SECONDS = 0.1  # in which nothing came: what had been sent to the router has been read
DRAIN_SECONDS = 2.0  # after which it ends although more comes
LOOK_SECONDS = 0.01
CLOSE_REASONS = {int(reason): reason.name for reason in CloseReason}


@dataclass(frozen=True)
class Event:
    """A session that opened, or ended."""

    opened: bool
    zid: ZenohId
    whatami: WhatAmI
    remote: str
    "Where the other side is."
    why: str = ""
    "It ended,"
    reason: str = ""
    "and the name of CLOSE's reason for that."
    by_peer: bool = False


Watch = Callable[[Event], None]


class _Watched(SessionCore):
    """A session's parts that tell who comes and goes."""

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
    who = (ZenohId.of(agreed.zid), WHATAMI_OF[agreed.whatami], str(session.link.remote))
    if end is None:
        return Event(True, *who)
    reason = CLOSE_REASONS.get(end.reason, str(end.reason))
    return Event(False, *who, end.why, reason, end.by_peer)


class Router:
    """Open as soon as it is made; a context manager, or `close()` it.

    `watch` is called with every Event, on the I/O thread: it must not wait.
    """

    def __init__(self, config: Config, watch: Watch | None = None) -> None:
        if config.get_json("mode") != '"router"':
            raise ZError(f"the mode is {config.get_json('mode')}: a router has mode router")
        kernel_loader.make()  # loads what frames of many messages need, beside the work
        self._core = _Watched(config, watch or _log)
        self._core.open()
        self.session = Session.of(self._core)
        "The router's own: it puts, gets, subscribes as any other."

    @property
    def zid(self) -> ZenohId:
        return self.session.zid()

    @property
    def locators(self) -> list[str]:
        """Where it listens, the ports in numbers; to be given to others as endpoints."""
        return [str(locator) for locator in self._core.node.locators]

    def stats(self) -> Stats:
        """What was received, passed on and lost, and why; one entry for each transport."""
        return self.session.stats()

    def tables(self) -> dict[str, int]:
        """How many entries its tables have: as before, when everybody has gone."""
        with self._core.exchange.lock:
            return self._core.exchange.routing.size()

    def drain(self, seconds: float = DRAIN_SECONDS) -> bool:
        """Wait until nothing has come for a moment; False: there was more for `seconds`."""
        now = time.monotonic()
        end, since, before = now + seconds, now, self._received()
        while self._core.node.sessions and now < end:
            time.sleep(LOOK_SECONDS)
            now, received = time.monotonic(), self._received()
            if received != before:
                since, before = now, received
            elif now - since >= QUIET_SECONDS:
                return True
        return now < end

    def _received(self) -> int:
        return sum(one.counters.received_bytes for one in self._core.node.sessions.values())

    def close(self) -> None:
        """Pass on what was sent to it before, say goodbye, and end. May be called again."""
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
    """A router that is running when this returns. ZError: it cannot, and why.

    Port 0 is a free one. Without a `config` it looks for nobody by multicast; a `config` is copied,
    and of it all but mode and endpoints count.

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
