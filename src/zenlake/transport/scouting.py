"""Scouting: SCOUT asks who is there, HELLO answers where. The rules of both sides.

Knows when to ask, whom to answer and what to say. Does not know sockets, nor whom to dial.
"""

from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv6Address, ip_address

from zenlake.errors import DecodeError
from zenlake.wire.batch import read_scouting, write_scouting
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.hello import WireHello
from zenlake.wire.locator import Locator
from zenlake.wire.scout import WireScout
from zenlake.wire.zenohid import WireZenohId

FIRST_PERIOD = 1.0  # seconds from the first SCOUT to the second
PERIOD_FACTOR = 2.0
LONGEST_PERIOD = 8.0
MAX_LOCATORS = 32  # of one node: what is beyond is neither said nor heard
MAX_ANSWERS = 100  # to one source address within one WINDOW: a machine may run many nodes
MAX_SOURCES = 1000  # source addresses remembered, so answered, within one WINDOW
WINDOW = 1.0  # seconds

LOCAL_PROTOCOLS = {"unixsock-stream", "unixpipe"}  # they end where the machine does


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine as seen by itself: 127/8, ::1, their mapped forms."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def is_local(locator: Locator) -> bool:
    """Whether only nodes of the same machine reach `locator`."""
    host = locator.address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    return locator.protocol in LOCAL_PROTOCOLS or is_loopback(host)


def remote(locators: Iterable[Locator]) -> tuple[Locator, ...]:
    """Those that other machines reach."""
    return tuple(locator for locator in locators if not is_local(locator))


class Scouter:
    """Asks who is there: at once, then 1, 2, 4, 8, 8 ... seconds later."""

    def __init__(self, what: WireWhatAmI, now: float) -> None:
        self._what = what
        self._scout = write_scouting(WireScout(what))
        self._period = FIRST_PERIOD
        self.deadline = now
        "When the next SCOUT is due."
        self.bad = 0
        "Datagrams that were no scouting message."

    def datagram(self, now: float) -> bytes | None:
        """The SCOUT if it is due."""
        if now < self.deadline:
            return None
        self.deadline = now + self._period
        self._period = min(self._period * PERIOD_FACTOR, LONGEST_PERIOD)
        return self._scout

    def heard(self, data: bytes) -> WireHello | None:
        """The HELLO in `data`, of a role that was asked for. It may hold no locator."""
        try:
            message = read_scouting(data)
        except DecodeError:
            self.bad += 1
            return None
        if not isinstance(message, WireHello) or not message.whatami & self._what:
            return None
        message.locators = message.locators[:MAX_LOCATORS]
        return message


class Responder:
    """Answers who asks, each source address MAX_ANSWERS times a WINDOW."""

    def __init__(
        self, zid: WireZenohId, whatami: WireWhatAmI, locators: Callable[[], Sequence[Locator]]
    ) -> None:
        self._zid = zid
        self._whatami = whatami
        self._locators = locators
        self._answered: dict[str, tuple[float, int]] = {}
        self.bad = 0
        "Datagrams that were no scouting message."
        self.dropped = 0
        "SCOUTs beyond the limits, left without an answer."

    def answer(self, data: bytes, source: str, now: float) -> bytes | None:
        """The HELLO for the SCOUT in `data`, to go back to `source`, an IP address without port.

        None: it is not for us, we have no locator that `source` could reach, or it asks too often.
        """
        try:
            message = read_scouting(data)
        except DecodeError:
            self.bad += 1
            return None
        if not isinstance(message, WireScout) or not self._is_for_us(message):
            return None
        if not self._within_limits(source, now):
            self.dropped += 1
            return None
        locators = tuple(self._locators())
        if not is_loopback(source):
            locators = remote(locators)
        if not locators:
            return None
        return write_scouting(WireHello(self._zid, self._whatami, locators[:MAX_LOCATORS]))

    def _is_for_us(self, scout: WireScout) -> bool:
        return bool(scout.what & self._whatami) and scout.zid != self._zid

    def _within_limits(self, source: str, now: float) -> bool:
        self._forget(now)
        since, count = self._answered.get(source, (now, 0))
        if count >= MAX_ANSWERS or (not count and len(self._answered) >= MAX_SOURCES):
            return False
        self._answered[source] = since, count + 1
        return True

    def _forget(self, now: float) -> None:
        """Let go of windows that have ended; they stand in the order in which they began."""
        while self._answered:
            source, (since, _) = next(iter(self._answered.items()))
            if now - since < WINDOW:
                return
            del self._answered[source]
