"""`scout`: asks for nodes by multicast, repeatedly, until stopped.

Knows the thread that sends SCOUT and receives HELLO; `transport/scouting.py` knows when to ask and
how to read an answer. Connects to no node.
"""

import logging
import threading
import time
from dataclasses import dataclass
from typing import TypeVar, final, overload

from zenlake.api.config.config import Config, for_mode
from zenlake.api.config.opening import scouting_group
from zenlake.api.handlers import (
    CallbackAnd,
    Handler,
    IntoCallback,
    IntoChannel,
    Receiver,
    make_sink,
)
from zenlake.api.sinks import Sink
from zenlake.api.values.enums import WHATAMI_OF, WhatAmI, WhatAmIMatcher
from zenlake.api.values.ids import ZenohId
from zenlake.api.values.wrapped import Unconstructed, make
from zenlake.errors import LinkError, ZError
from zenlake.link import multicast
from zenlake.link.options import LinkOptions
from zenlake.runtime.polling import make_waker, wait_readable
from zenlake.transport.scouting import Scouter
from zenlake.wire import enums as wire
from zenlake.wire import hello
from zenlake.wire.locator import EndPoint

log = logging.getLogger("zenlake.scouting")

ANY_ROLE = WhatAmIMatcher("router|peer|client")
READS_PER_TURN = 32  # Answers read before the thread looks again whether to ask or to stop.
IDLE_SECONDS = 3600.0  # Interval at which a thread without a group looks whether to stop.
STOP_SECONDS = 5.0  # Upper bound on waiting for the thread, and for a callback, to end.

H = TypeVar("H")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Hello(metaclass=Unconstructed):
    """Answer of one node."""

    whatami: WhatAmI
    zid: ZenohId
    _locators: tuple[str, ...]

    @property
    def locators(self) -> list[str]:
        """Locators at which the node can be reached."""
        return list(self._locators)

    @classmethod
    def of(cls, message: hello.WireHello) -> "Hello":
        return make(
            cls,
            whatami=WHATAMI_OF[message.whatami],
            zid=ZenohId.of(message.zid),
            _locators=tuple(str(locator) for locator in message.locators),
        )

    def __str__(self) -> str:
        locators = ", ".join(self._locators)
        return f"Hello {{ zid: {self.zid}, whatami: {self.whatami!r}, locators: [{locators}] }}"

    __repr__ = __str__


@final
class Scout(Receiver[H]):
    """Receiver of a Hello for every answer, several per node, until stopped or dropped."""

    _what = "scout"
    _given_by = "zenlake.scout"

    def __init__(self, sink: Sink[Hello], handler: H, asking: "ScoutThread") -> None:
        super().__init__(None, asking.stop, sink, handler)
        self._asking = asking

    def _check(self) -> None:
        if self._undeclared:
            raise ZError("Stopped scout")

    def stop(self, /) -> None:
        """Stop asking; iteration over the handler ends after the answers it holds."""
        super().undeclare()
        self._asking.join()
        self._sink.join(STOP_SECONDS)

    undeclare = stop

    def __exit__(self, /, *_args: object, **_kwargs: object) -> None:
        if not self._undeclared:
            self.stop()


class ScoutThread:
    """Thread that asks and receives. It does not refer to its Scout, so that one can be dropped."""

    def __init__(
        self, link: multicast.MulticastLink | None, what: wire.WireWhatAmI, sink: Sink[Hello]
    ) -> None:
        """`link`: None on a host without multicast, where the thread waits until it is stopped."""
        self._link = link
        self._sink = sink
        self._scouter = Scouter(what, time.monotonic())
        self._waker = make_waker()
        self._stopping = False
        # Reentrant: the garbage collector may drop a Scout while this thread holds the lock.
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="zenlake scout", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, from any thread; further calls do nothing."""
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._waker.wake()
        self._sink.close()

    def join(self) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            while not self._stopping:
                if self._link is None:
                    wait_readable([self._waker], IDLE_SECONDS)
                else:
                    self._turn(self._link)
        except LinkError as error:
            log.error("scouting ends: %s", error)
        finally:
            with self._lock:
                self._stopping = True
                self._waker.close()
            if self._link is not None:
                self._link.close()
            self._sink.close()

    def _turn(self, link: multicast.MulticastLink) -> None:
        now = time.monotonic()
        datagram = self._scouter.datagram(now)
        if datagram is not None:
            self._ask(link, datagram)
        wait = max(0.0, self._scouter.deadline - now)
        wait_readable([link.unicast, self._waker], wait)
        for _ in range(READS_PER_TURN):
            received = link.receive_unicast()
            if received is None or self._stopping:
                return
            heard = self._scouter.read_hello(received[0])
            if heard is not None and not self._sink.push([Hello.of(heard)], 1):
                self._sink.wait_room()

    def _ask(self, link: multicast.MulticastLink, datagram: bytes) -> None:
        try:
            link.send(datagram)
        except LinkError as error:  # No route at the moment; the next datagram may get through.
            log.debug("scouting: %s", error)


@overload
def scout(
    handler: IntoChannel[Hello] = None,
    what: WhatAmIMatcher | WhatAmI | str | None = None,
    config: Config | None = None,
) -> Scout[Handler[Hello]]: ...
@overload
def scout(
    handler: CallbackAnd[Hello, H],
    what: WhatAmIMatcher | WhatAmI | str | None = None,
    config: Config | None = None,
) -> Scout[H]: ...
@overload
def scout(
    handler: IntoCallback[Hello],
    what: WhatAmIMatcher | WhatAmI | str | None = None,
    config: Config | None = None,
) -> Scout[None]: ...
def scout(
    handler: object = None,
    what: WhatAmIMatcher | WhatAmI | str | None = None,
    config: Config | None = None,
) -> Scout[H]:
    """Look for nodes in the scouting group of `config`; each answer is a Hello.

    ZError: the group cannot be joined, such as on an interface that does not exist. On a host
    where no interface does multicast, and none is named, it finds nothing; a warning says so.
    """
    matcher = _matcher(what)
    if config is None:
        config = Config()
    elif not isinstance(config, Config):
        raise TypeError(f"argument 'config': {type(config).__name__!r} is not a Config")
    role = wire.WireWhatAmI.PEER
    group = EndPoint(scouting_group(lambda key: for_mode(config, key, role)))
    sink, shown, _ = make_sink(handler, "zenlake scout callback")
    link = None
    try:
        link = multicast.join(group, LinkOptions())
    except multicast.NoMulticast as error:
        log.warning("scouting finds nothing: %s (scouting/multicast/interface)", error)
    return make(Scout, sink, shown, ScoutThread(link, wire.WireWhatAmI(matcher.mask), sink))


def _matcher(what: object) -> WhatAmIMatcher:
    match what:
        case None:
            return ANY_ROLE
        case WhatAmIMatcher():
            return what
        case WhatAmI() | str():
            return WhatAmIMatcher(str(what))
    raise TypeError(f"argument 'what': {type(what).__name__!r} is not a WhatAmIMatcher")
