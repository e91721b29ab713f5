"""Scouting: SCOUT asks for nodes, HELLO answers with locators. The rules of both sides.

Knows when to ask, which SCOUTs to answer and with which locators. Does not know sockets, and does
not connect to the nodes that answer. Rust: `zenoh/src/net/runtime/orchestrator.rs`.
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

FIRST_PERIOD = 1.0  # Seconds from the first SCOUT to the second.
PERIOD_FACTOR = 2.0
LONGEST_PERIOD = 8.0
MAX_LOCATORS = 32  # Maximum locators per HELLO; further ones are neither sent nor accepted.
MAX_ANSWERS = 100  # HELLOs per WINDOW to one source address, where many nodes may run.
MAX_SOURCES = 1000  # Source addresses that get HELLOs within one WINDOW.
WINDOW = 1.0  # Seconds over which HELLOs are counted.

LOCAL_PROTOCOLS = {"unixsock-stream", "unixpipe"}  # Protocols within one machine.


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address: 127/8, ::1, or a mapped form."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def is_local(locator: Locator) -> bool:
    """Return whether only nodes of the same machine reach `locator`."""
    host = locator.address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    return locator.protocol in LOCAL_PROTOCOLS or is_loopback(host)


def remote_only(locators: Iterable[Locator]) -> tuple[Locator, ...]:
    """Return the locators that other machines reach."""
    return tuple(locator for locator in locators if not is_local(locator))


class Scouter:
    """Sender of SCOUTs: at once, then after 1, 2, 4, 8, 8 ... seconds."""

    def __init__(self, what: WireWhatAmI, now: float) -> None:
        self._what = what
        self._scout = write_scouting(WireScout(what))
        self._period = FIRST_PERIOD
        self.deadline = now
        "When the next SCOUT is due."
        self.bad = 0
        "Datagrams that are not a valid scouting message."

    def datagram(self, now: float) -> bytes | None:
        """Return the SCOUT if it is due."""
        if now < self.deadline:
            return None
        self.deadline = now + self._period
        self._period = min(self._period * PERIOD_FACTOR, LONGEST_PERIOD)
        return self._scout

    def read_hello(self, data: bytes) -> WireHello | None:
        """Return the HELLO in `data` if its role was asked for; it may have no locator."""
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
    """Sender of HELLOs in answer to SCOUTs, limited per source address."""

    def __init__(
        self, zid: WireZenohId, whatami: WireWhatAmI, locators: Callable[[], Sequence[Locator]]
    ) -> None:
        self._zid = zid
        self._whatami = whatami
        self._locators = locators
        self._answered: dict[str, tuple[float, int]] = {}
        self.bad = 0
        "Datagrams that are not a valid scouting message."
        self.dropped = 0
        "SCOUTs beyond the limits, left without an answer."

    def answer(self, data: bytes, source: str, now: float) -> bytes | None:
        """Return the HELLO for the SCOUT in `data` that came from the IP address `source`.

        None: the SCOUT asks for other roles, this node has no locator that `source` can reach, or
        the limits are reached.
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
            locators = remote_only(locators)
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
        """Remove the windows that have ended; the oldest come first."""
        while self._answered:
            source, (since, _) = next(iter(self._answered.items()))
            if now - since < WINDOW:
                return
            del self._answered[source]
