"""Inbound lanes: the FRAMEs and FRAGMENTs of one sender, each lane with its own sequence.

Knows sequence numbers and fragments. Does not read network messages, except to skip those of a
FRAME that is not delivered.
"""

from collections.abc import Callable
from functools import partial

from zenlake.errors import DecodeError, Reason, SessionClosed
from zenlake.transport.counters import Counters
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.fragments import MAX_MESSAGE_BYTES, ByteBudget, FragmentAssembly
from zenlake.transport.sequence import SequenceIn
from zenlake.wire import fragment, frame
from zenlake.wire.cursor import U32, ByteReader
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.enums import PRIORITIES, CloseReason, WirePriority
from zenlake.wire.extensions import FLAG_EXTENSIONS
from zenlake.wire.network import FIRST_ID, NETWORK

Deliver = Callable[[WirePriority, bool, bytes, int, int], int]
"Called with (priority, reliable, data, pos, end); returns where the network messages end."
OnGap = Callable[[WirePriority, bool, int, int], None]
"Called with (priority, reliable, first missing sequence number, count of missing ones)."


class InboundLane:
    """Sequence and reassembly of one lane."""

    __slots__ = ("assembly", "sequence")

    def __init__(self, sequence: SequenceIn, assembly: FragmentAssembly) -> None:
        self.sequence = sequence
        self.assembly = assembly


class InboundLanes:
    """The lanes of one sender, each created when it is first used."""

    __slots__ = (
        "_counters",
        "_first_sns",
        "_lanes",
        "_mask",
        "_max_message",
        "_memory",
        "_on_gap",
        "_patch",
        "_ticks",
        "links",
    )

    def __init__(
        self,
        *,
        first_sns: list[tuple[int, int]],
        mask: int,
        patch: int,
        counters: Counters,
        memory: ByteBudget,
        max_message: int = MAX_MESSAGE_BYTES,
        on_gap: OnGap | None = None,
    ) -> None:
        self._on_gap = on_gap
        self._first_sns = first_sns
        "First (best effort, reliable) sequence numbers by priority; one pair: no QoS lanes."
        self._mask = mask
        self._patch = patch
        self._counters = counters
        self._memory = memory
        self._max_message = max_message
        self._lanes: dict[int, InboundLane] = {}
        self._ticks = 0
        self.links = 1
        "Links over which these lanes are received: several with MultiLink."

    def on_frame(self, deliver: Deliver, data: bytes, pos: int, end: int, header: int) -> int:
        """Deliver the network messages of the FRAME at `pos`; return where it ends."""
        reliable = header & frame.FLAG_RELIABLE != 0
        if header & FLAG_EXTENSIONS:
            r = ByteReader(data, pos + 1, end)
            found = frame.read_frame(r, header)
            sn, priority, body = found.sn, found.priority, r.pos
        else:
            sn, body = read_sn(data, pos + 1, end)
            priority = WirePriority.DATA
        lane = self._lane(priority, reliable, sn, pos)
        self._counters.received_frames += 1
        if lane.sequence.admit(sn):
            if lane.assembly.is_unfinished:  # No sender writes a FRAME between fragments.
                lane.assembly.abandon(DropReason.FRAGMENT_MISSING)
            return deliver(priority, reliable, data, body, end)
        return skip_messages(data, body, end)

    def on_fragment(self, deliver: Deliver, piece: fragment.Fragment, pos: int) -> None:
        """Add a FRAGMENT, and deliver the message that it completes."""
        lane = self._lane(piece.priority, piece.reliable, piece.sn, pos)
        if not lane.sequence.admit_fragment(piece.sn):
            return
        whole = lane.assembly.add(piece, self._patch)
        if not piece.more or piece.drop:
            lane.sequence.end_fragments()
        if whole is None:
            return
        try:
            done = deliver(piece.priority, piece.reliable, whole, 0, len(whole))
        except DecodeError:
            done = -1
        if done != len(whole):
            self._counters.drop_received(DropReason.FRAGMENT_INVALID)

    def _lane(self, priority: WirePriority, reliable: bool, sn: int, pos: int) -> InboundLane:
        if sn > self._mask:
            raise DecodeError(Reason.TOO_LARGE, "sn", pos + 1)
        index = priority << 1 | reliable
        lane = self._lanes.get(index)
        return lane or self._new_lane(priority, reliable, index)

    def _new_lane(self, priority: WirePriority, reliable: bool, index: int) -> InboundLane:
        if len(self._first_sns) > 1:
            first = self._first_sns[priority][reliable]
        elif priority is WirePriority.DATA:
            first = self._first_sns[0][reliable]
        else:
            raise SessionClosed(
                f"lane {priority.name} was named, and no lanes were agreed", CloseReason.INVALID
            )
        lane = InboundLane(
            SequenceIn(
                first,
                self._mask,
                partial(self._on_gap, priority, reliable) if self._on_gap is not None else None,
            ),
            FragmentAssembly(
                self._mask, self._memory, self._counters.drop_received, self._max_message
            ),
        )
        self._lanes[index] = lane
        return lane

    def gaps(self) -> dict[tuple[WirePriority, bool], SequenceIn]:
        """Return the sequence of every lane that was used, by (priority, reliable)."""
        return {
            (PRIORITIES[index >> 1], bool(index & 1)): lane.sequence
            for index, lane in dict(self._lanes).items()
        }

    def have_restarted(self, next_sns: list[tuple[int, int]]) -> bool:
        """Whether a sender that announces these next numbers, (best effort, reliable) of each
        priority, has restarted."""
        return any(
            lane.sequence.has_restarted(next_sns[(index >> 1) % len(next_sns)][index & 1])
            for index, lane in self._lanes.items()
        )

    def tick(self, reliable: bool = False) -> None:
        """Count a keep-alive interval on every lane of best effort; with `reliable` on all lanes,
        as fragments on them may be lost too. Each link calls this."""
        self._ticks += 1
        if self._ticks % self.links:
            return
        for index, lane in self._lanes.items():
            if reliable or not index & 1:
                lane.assembly.tick()

    def release(self) -> None:
        """Give up all unfinished messages, unless another link may complete them."""
        self.links -= 1
        if self.links:
            return
        for lane in self._lanes.values():
            lane.assembly.abandon(DropReason.FRAGMENT_SESSION_ENDED)


def read_sn(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """Decode a sequence number; one of up to 28 bits without a cursor, as every FRAME has one."""
    four = data[pos : pos + 4]
    if len(four) < 4 or pos + 4 > end or four[3] > 0x7F:
        r = ByteReader(data, pos, end)
        return r.zint("sn", U32), r.pos
    a, b, c, d = four
    if a < 0x80:
        return a, pos + 1
    if b < 0x80:
        return a & 0x7F | b << 7, pos + 2
    if c < 0x80:
        return a & 0x7F | (b & 0x7F) << 7 | c << 14, pos + 3
    return a & 0x7F | (b & 0x7F) << 7 | (c & 0x7F) << 14 | d << 21, pos + 4


def skip_messages(data: bytes, pos: int, end: int) -> int:
    """Return where the network messages from `pos` on end, without delivering them."""
    r = ByteReader(data, pos, end)
    while r.pos < end and data[r.pos] & ID_MASK >= FIRST_ID:
        NETWORK.read(r)
    return r.pos


def discard_frame(priority: WirePriority, reliable: bool, data: bytes, pos: int, end: int) -> int:
    """Skip the messages of a FRAME: the `Deliver` of a session that no longer delivers."""
    return skip_messages(data, pos, end)
