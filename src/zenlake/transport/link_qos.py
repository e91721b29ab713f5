"""Link QoS: the priorities and the reliability that a link is meant for, and how two ends agree.

Knows the metadata `prio` and `rel` of an endpoint, the value of INIT's extension QoSLink, and which
of several links a message takes.
Rust: `io/zenoh-transport/src/unicast/establishment/ext/qos.rs`, `unicast/universal/tx.rs`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zenlake.errors import InvalidLocator, SessionRefused
from zenlake.wire.enums import PRIORITIES, CloseReason

PRIO, REL = "prio", "rel"
LANES, HAS_PRIORITIES, HAS_RELIABILITY = 0b001, 0b010, 0b100
TAG = 0b111
FIRST_SHIFT, LAST_SHIFT, RELIABLE_SHIFT = 3, 11, 19
LAST_PRIORITY = len(PRIORITIES) - 1

PriorityRange = tuple[int, int]
"First and last priority, both included."


@dataclass(frozen=True, slots=True)
class LinkQos:
    """Priorities and reliability that a link is meant for; None: all."""

    priorities: PriorityRange | None = None
    reliable: bool | None = None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> "LinkQos":
        """Return the QoS that `prio=1-7;rel=1` of an endpoint names. InvalidLocator: it is not
        valid."""
        prio, rel = metadata.get(PRIO), metadata.get(REL)
        reliable = None if rel is None else _read_number(rel)
        if rel is not None and reliable not in (0, 1):
            raise InvalidLocator(f"rel={rel}: write rel=0 (best effort) or rel=1 (reliable)")
        priorities = None if prio is None else _read_range(prio)
        return cls(priorities, None if reliable is None else bool(reliable))

    @classmethod
    def decode(cls, value: int) -> "LinkQos | None":
        """Return what QoSLink says; None: the sender wants no lanes. SessionRefused: nothing."""
        if value == 0:
            return None
        if not value & (HAS_PRIORITIES | HAS_RELIABILITY) and value != LANES:
            raise SessionRefused(f"QoSLink is {value:#x}", CloseReason.GENERIC)
        priorities = None
        if value & HAS_PRIORITIES:
            first, last = value >> FIRST_SHIFT & 0xFF, value >> LAST_SHIFT & 0xFF
            if max(first, last) > LAST_PRIORITY:
                raise SessionRefused(
                    f"QoSLink names the priorities {first} to {last}", CloseReason.GENERIC
                )
            priorities = first, last
        reliable = bool(value >> RELIABLE_SHIFT & 1) if value & HAS_RELIABILITY else None
        return cls(priorities, reliable)

    def encode(self) -> int | None:
        """Return the value of QoSLink; None: the extension QoS says it all."""
        value = 0
        if self.priorities is not None:
            first, last = self.priorities
            value |= HAS_PRIORITIES | first << FIRST_SHIFT | last << LAST_SHIFT
        if self.reliable is not None:
            value |= HAS_RELIABILITY | self.reliable << RELIABLE_SHIFT
        return value or None

    def metadata(self) -> str:
        """Return the metadata of a locator that names this QoS, with its `?`; "" if there is
        none."""
        pairs = []
        if self.priorities is not None:
            first, last = self.priorities
            pairs.append(f"{PRIO}={first}-{last}")
        if self.reliable is not None:
            pairs.append(f"{REL}={int(self.reliable)}")
        return "?" * bool(pairs) + ";".join(pairs)


def agree(opener: LinkQos, acceptor: LinkQos) -> LinkQos:
    """Return the QoS of a link from those of its ends. SessionRefused: they contradict each other.

    The acceptor may take more priorities than the opener uses, not fewer.
    """
    wanted, taken = opener.priorities, acceptor.priorities
    if wanted and taken and not (taken[0] <= wanted[0] and wanted[1] <= taken[1]):
        raise SessionRefused(
            f"the opener's endpoint has prio={wanted[0]}-{wanted[1]}, which is not within the "
            f"acceptor's prio={taken[0]}-{taken[1]}",
            CloseReason.GENERIC,
        )
    if None not in (opener.reliable, acceptor.reliable) and opener.reliable != acceptor.reliable:
        raise SessionRefused(
            f"the opener's endpoint has rel={opener.reliable:d}, the acceptor's "
            f"rel={acceptor.reliable:d}",
            CloseReason.GENERIC,
        )
    reliable = acceptor.reliable if opener.reliable is None else opener.reliable
    return LinkQos(wanted or taken, reliable)


def choose_link(links: Sequence[LinkQos], reliable: bool, priority: int) -> int:
    """Return the index of the link for messages of a reliability and a priority.

    The first link of these, each of which names a reliability: one of the same reliability with the
    shortest range of priorities around `priority`, one of the same reliability, any.
    """

    def misfit(index: int) -> tuple[int, int]:
        link = links[index]
        if link.reliable is not reliable:
            return 2, 0
        if link.priorities is None or not link.priorities[0] <= priority <= link.priorities[1]:
            return 1, 0
        return 0, link.priorities[1] - link.priorities[0]

    return min(range(len(links)), key=misfit)


def _read_number(text: str) -> int | None:
    """Return a number as Rust reads it, with or without `+`; None: `text` is not one."""
    digits = text.removeprefix("+")
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _read_range(text: str) -> PriorityRange:
    start, dash, end = text.partition("-")
    first, last = _read_number(start), _read_number(end if dash else start)
    if first is not None and last is not None and first <= last <= LAST_PRIORITY:
        return first, last
    raise InvalidLocator(
        f"prio={text}: write one priority, or the first and the last, of 0 to {LAST_PRIORITY}, "
        "such as prio=1-4"
    )
