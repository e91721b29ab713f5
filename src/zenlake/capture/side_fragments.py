"""Fragmented messages of one side of a recorded session, joined by lane.

The recording may start anywhere, have gaps, and lack the handshake: the resolution of sequence
numbers need not be known.
"""

from dataclasses import dataclass
from typing import NamedTuple

from zenlake.transport.drop_reason import DropReason
from zenlake.transport.fragments import ByteBudget, FragmentAssembly, OnDrop
from zenlake.transport.offer import SN_MASKS
from zenlake.wire.enums import WirePriority
from zenlake.wire.fragment import Fragment


class JoinedMessage(NamedTuple):
    """Bytes of a whole message, the number of its first FRAGMENT, and how many there were."""

    data: bytes
    sn: int
    pieces: int


@dataclass(slots=True)
class LaneAssembly:
    """Unfinished message of a lane."""

    assembly: FragmentAssembly
    unbroken: bool
    "True if nothing is missing before the next piece: it may begin a message without First."
    count: int = 0
    first_sn: int = 0
    last_sn: int = 0


class SideFragments:
    """Joiner of the fragments of one side."""

    def __init__(
        self, memory: ByteBudget, on_drop: OnDrop, limit: int, *, unbroken: bool = True
    ) -> None:
        self.unbroken = unbroken
        "True if nothing is missing before the first piece of a lane."
        self._memory = memory
        self._on_drop = on_drop
        self._limit = limit
        self._lanes: dict[tuple[WirePriority, bool], LaneAssembly] = {}

    def add(self, piece: Fragment) -> JoinedMessage | None:
        """Add a piece; return the message if this is the last piece of it and none is missing."""
        number = piece.priority, piece.reliable
        lane = self._lanes.get(number)
        if lane is None:
            assembly = FragmentAssembly(SN_MASKS[-1], self._memory, self._on_drop, self._limit)
            lane = self._lanes[number] = LaneAssembly(assembly, self.unbroken)
        if piece.first or lane.count == 0:
            lane.count, lane.first_sn = 0, piece.sn
        elif piece.sn == 0 and lane.last_sn in SN_MASKS:
            lane.assembly.mask = lane.last_sn
        elif piece.sn != lane.last_sn + 1:
            lane.unbroken = False
        lane.count += 1
        lane.last_sn = piece.sn
        whole = lane.assembly.add(piece, 0 if lane.unbroken else 1)
        joined = None if whole is None else JoinedMessage(whole, lane.first_sn, lane.count)
        if not piece.more:
            lane.unbroken = True
        if not piece.more or piece.drop:
            lane.count = 0
        return joined

    def break_off(self) -> None:
        """Note that pieces may be missing."""
        self.unbroken = False
        for lane in self._lanes.values():
            lane.assembly.abandon(DropReason.FRAGMENT_MISSING)
            lane.unbroken = False

    def finish(self) -> None:
        """Give up the unfinished messages: nothing follows."""
        for lane in self._lanes.values():
            lane.assembly.abandon(DropReason.FRAGMENT_SESSION_ENDED)
