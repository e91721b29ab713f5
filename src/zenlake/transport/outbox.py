"""The outbox of a session: encodes messages into the batches of their lanes.

Knows lanes, sequence numbers, batch sizes, fragments and how much may wait. Does not know the
link, nor who waits when a lane is full: `push` returns FULL and the caller decides.

The rule of order: **a lane is pulled only when nothing waits in a lane of a higher priority.**
Messages depend on declarations: a key id means nothing to a peer that has not read its D_KEYEXPR.
A declaration names Priority.CONTROL (`qos.DECLARE`), whose lane is the first, and is pushed before
the first message that uses it. So it leaves before that message, whatever lane and reliability the
message has and however it was pushed: alone, in a run, in whole batches that the caller wrote, on
the fast path, as a large message or into the backlog. `Outbox.pull` enforces the rule, and nothing
else takes batches from a lane. It holds for `full_only` too: open batches of higher priorities
leave before a whole batch of a lower one. A link without lanes has one queue, in the order of the
pushes.
No id is taken back while a session lasts, so there is no U_KEYEXPR that could overtake data.
Rust has the same rule: QoSType::DECLARE names Priority::Control, and `pull` in
io/zenoh-transport/src/common/pipeline.rs does not look at a lower queue while a higher one holds
an open batch back.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from enum import IntEnum
from itertools import accumulate
from typing import Any, Protocol

from zenlake.errors import MessageTooLarge
from zenlake.transport.counters import Counters
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.fragments import MAX_FRAGMENTS, MAX_MESSAGE_BYTES
from zenlake.transport.lane import FragmentedMessage, OutboundLane
from zenlake.wire.batch import TransportMessage, read_batch, write_batch
from zenlake.wire.cursor import U32, ByteWriter, encode
from zenlake.wire.enums import PRIORITIES, WirePriority
from zenlake.wire.fragment import Fragment, write_fragment
from zenlake.wire.frame import Frame, LaneSettings
from zenlake.wire.framing import Framing, compress, uncompress
from zenlake.wire.network import NETWORK, NetworkMessage
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import BLOCK, BLOCK_FIRST, PRIORITY_BITS

LANE_BATCHES = 4  # Sealed batches that may wait in one lane.
BACKLOG_BYTES = 32 << 20  # Bytes beyond full lanes, for callers that cannot wait themselves.
MAX_BACKLOG_BYTES = 128 << 20
"""Bytes beyond full lanes of a link that makes progress: its senders wait, but each may be in the
middle of a large message, and an interest may be answered with any number of declarations."""
STUCK_SECONDS = 0.5  # A link that has taken nothing for this long makes no progress.
BACKLOG_ENTRY_BYTES = 128  # Memory of one backlog entry beside its message.
KEPT_BYTES = 1 << 20  # Bytes of sent batches that one of several links keeps.
CONTROL_MESSAGES = 16  # KEEP_ALIVE, CLOSE and JOIN messages that may wait.
FOUR_BYTES_FROM, FOUR_BYTES_TO = 1 << 21, (1 << 28) - 1  # Sequence numbers encoded in four bytes.
FRAGMENT_OVERHEAD = 16  # Bytes of a FRAGMENT beside its piece: header, number, lane, First, slack.

FLUSH_SECONDS = 0.001
"How long a message may wait in a batch for further messages."
BURST_SECONDS = 50e-6
"A caller that pushes again this soon is sending a burst: its batch may fill before it leaves."
DROP_SECONDS = 0.001
"How long a message that may be dropped waits for room."
FRAGMENT_DROP_SECONDS = 0.05
"How long a droppable message in fragments, or a message behind it, waits for progress."
BLOCK_SECONDS = 5.0
"How long a message that must not be dropped waits without progress; then the link is closed."


class IntegerSequence(Protocol):
    """A list or an array of integers."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class PushResult(IntEnum):
    """Whether a push took its message."""

    DONE = 0
    FULL = 1
    "The lane has no room now; nothing was changed."


def may_drop(qos: int) -> bool:
    """Whether a message of this QoS may be dropped when there is no room."""
    return not qos & (BLOCK | BLOCK_FIRST)


class Outbox:
    """Messages that one session has to send.

    `batch_size` includes the length prefix. Without `qos` there is one lane. With `low_latency`
    messages are sent without FRAMEs, each behind its own length.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        framing: Framing,
        sn_mask: int,
        first_sns: list[tuple[int, int]],
        qos: bool,
        low_latency: bool = False,
        compression: bool = False,
        max_message: int = MAX_MESSAGE_BYTES,
        counters: Counters | None = None,
    ) -> None:
        self.counters = counters or Counters()
        self.flush_at: float | None = None
        "When the open batches have to be written; None: there are none, or they leave at once."
        self.stalled_at: float | None = None
        "When a batch was last pulled, while there is a backlog; None: there is no backlog."
        self.answering = True
        "Whether bytes were received since the last write: then an answer must not wait."
        self._framing = Framing.LOW_LATENCY if framing and low_latency else framing
        self._low_latency = low_latency
        self._compression = compression
        self._max_message = max_message
        # A datagram has no length prefix, yet the peer's batch size may include it.
        self._limit = batch_size - Framing.STREAM - compression
        self._prefix = bytes(self._framing)
        self._top = len(self._prefix) + self._limit
        self._control: deque[bytes] = deque()
        self._backlog_bytes = 0
        names = PRIORITIES if qos else (None,)
        self._lanes = [
            OutboundLane(index, name, sns, sn_mask)
            for index, (name, sns) in enumerate(zip(names, first_sns, strict=True))
        ]
        self._lane_of = self._lanes if qos else self._lanes * len(PRIORITIES)
        "Lanes by the priority bits of a QoS."
        self._waiting = 0
        "Set of lanes, by their bits, that have something to send."
        self.full = 0
        "Subset of `_waiting`: lanes that have a whole batch."
        self.blocked = 0
        "Set of lanes in which a message was dropped and nothing was pulled since."
        self._last_push = 0.0
        self._kept: deque[bytes] | None = None
        "Last batches of the first lane, without their prefixes; None: they are not kept."
        self._kept_bytes = 0

    def share_sequences(self, other: "Outbox") -> None:
        """Number messages together with `other`: another link of the same session. At any time a
        lane and reliability is sent by one of them only."""
        for lane, shared in zip(self._lanes, other._lanes, strict=True):
            lane.sequences = shared.sequences

    # ---- several links of one session: what the first lane sent survives its link

    def keep_first_lane(self) -> None:
        """Keep the last batches of the first lane, for another link if this one ends."""
        self._kept = self._kept or deque()

    def _keep(self, body: bytes) -> None:
        assert self._kept is not None
        self._kept.append(body)
        self._kept_bytes += len(body)
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft())

    def take_first_lane(self, now: float) -> list[bytes]:
        """Return the kept batches of the first lane, and all that wait in it: the link has ended,
        and what the peer has read of them is not known."""
        self.release(0)
        lane, batches = self._lanes[0], list(self._kept or ())
        self._kept, self._kept_bytes = None, 0
        self._control.clear()
        others, self._waiting = self._waiting & ~lane.bit, self._waiting & lane.bit
        while (batch := self.pull(now)) is not None:
            self.counters.sent_batches -= 1  # The other link sends it.
            batches.append(self._body(batch))
        self._waiting |= others
        return batches

    def send_again(self, bodies: list[bytes]) -> None:
        """Queue what `take_first_lane` of another link returned, before all else in the lane.

        The sequence numbers stay, so the peer drops the batches that it has read already.
        """
        largest, lane = self._limit + self._compression, self._lanes[0]
        fitting = [body for body in bodies if len(body) <= largest]
        if len(fitting) < len(bodies):
            lost = self._count_messages(body for body in bodies if len(body) > largest)
            self.counters.drop_sent(DropReason.LINK_LOST, lost)
        if fitting:
            lane.sealed.extendleft(self._framed(body) for body in reversed(fitting))
            self.full |= lane.bit
            self._waiting |= lane.bit

    def _body(self, batch: bytes | bytearray | memoryview) -> bytes:
        return bytes(memoryview(batch)[len(self._prefix) :])

    def hold(self, qos: int) -> None:
        """Keep the lane of `qos` from being pulled until it is released: batches of smaller numbers
        are under way on another link. A lane without its bit does not count as waiting."""
        lane = self._lane_of[qos & PRIORITY_BITS]
        self.full &= ~lane.bit
        self._waiting &= ~lane.bit
        lane.bit = 0

    def release(self, qos: int) -> None:
        """Let the lane of `qos` be pulled again."""
        lane = self._lane_of[qos & PRIORITY_BITS]
        lane.bit = 1 << self._lanes.index(lane)
        if lane.sealed or lane.large is not None:
            self.full |= lane.bit
        if lane.sealed or lane.large is not None or lane.writer is not None or lane.backlog:
            self._waiting |= lane.bit

    def is_numbered(self, qos: int) -> bool:
        """Whether all that waits in the lane of `qos` has its sequence number."""
        lane = self._lane_of[qos & PRIORITY_BITS]
        return lane.large is None and not lane.backlog

    # ---- in

    def congested(self, qos: int, *, dropped: bool = False) -> bool:
        """Whether a message was dropped on the lane of `qos` since the lane last made progress;
        callers then drop at once instead of waiting. `dropped=True` records a drop."""
        bit = self._lane_of[qos & PRIORITY_BITS].bit
        if dropped:
            self.blocked |= bit
        return bool(self.blocked & bit)

    def push(
        self, message: NetworkMessage, reliable: bool = True, *, now: float = 0.0
    ) -> PushResult:
        """Encode `message` into its lane's open batch. MessageTooLarge: it can never be sent."""
        qos: int = message.qos
        lane = self._lane_of[qos & PRIORITY_BITS]
        if lane.open or lane.appended:
            self._absorb(lane)
        if lane.large is not None or lane.backlog:
            return PushResult.FULL
        if self._low_latency:
            return self._push_bare(lane, encode(NETWORK.write, message))
        if self._is_large(message):
            w = ByteWriter()  # Not `encode`, which would copy the payload again.
            NETWORK.write(w, message)
            return self._push_to_next(lane, memoryview(w.out), reliable, may_drop(qos), now)
        w = lane.writer or self._open(lane)
        if lane.reliable is not reliable:
            self._start_frame(lane, w, reliable)
        out, mark = w.out, len(w.out)
        try:
            NETWORK.write(w, message)
        except BaseException:
            self._roll_back(lane, w, mark)
            raise
        if len(out) <= self._top:
            self._waiting |= lane.bit
            self.counters.sent_messages += 1
            return PushResult.DONE
        encoded = bytes(out[mark:])
        self._roll_back(lane, w, mark)
        return self._push_to_next(lane, encoded, reliable, may_drop(qos), now)

    def _is_large(self, message: NetworkMessage) -> bool:
        """Whether the payload of `message` alone is larger than a batch."""
        if type(message) is not Push or type(message.body) is not Put:
            return False
        return len(message.body.payload) > self._limit

    def push_encoded(
        self, data: bytes | memoryview, qos: int, reliable: bool = True, *, now: float = 0.0
    ) -> PushResult:
        """Push one message that is encoded already; `data` must not change any more.

        `data` may hold several messages only if they surely fit one batch: fragments are one
        message.
        """
        lane = self._lane_of[qos & PRIORITY_BITS]
        if lane.open or lane.appended:
            self._absorb(lane)
        if lane.backlog or lane.large is not None:
            return PushResult.FULL
        w = lane.writer
        if w is not None and lane.reliable is reliable and len(w.out) + len(data) <= self._top:
            w.out += data  # In a burst nothing else is left to do.
            self.counters.sent_messages += 1
            return PushResult.DONE
        return self._push_encoded(lane, data, reliable, may_drop(qos), now)

    def _push_encoded(
        self,
        lane: OutboundLane,
        data: bytes | memoryview,
        reliable: bool,
        may_drop: bool,
        now: float,
    ) -> PushResult:
        if self._low_latency:
            return self._push_bare(lane, data)
        w = lane.writer or self._open(lane)
        if lane.reliable is not reliable:
            self._start_frame(lane, w, reliable)
        if len(w.out) + len(data) <= self._top:
            w.out += data
            self._waiting |= lane.bit
            self.counters.sent_messages += 1
            return PushResult.DONE
        self._roll_back(lane, w, len(w.out))
        return self._push_to_next(lane, data, reliable, may_drop, now)

    def push_run(
        self,
        data: memoryview,
        ends: IntegerSequence,
        qos: int,
        reliable: bool,
        first: int,
        now: float,
    ) -> int:
        """Push encoded messages from number `first` on, as many as there is room for; return the
        number of the next. Message i of `data` ends at ends[i].

        All go to the lane of `qos`, and none is fragmented. A low-latency session takes none: there
        each message has to be pushed alone.
        """
        if self._low_latency:
            return first
        lane = self._lane_of[qos & PRIORITY_BITS]
        if lane.open or lane.appended:
            self._absorb(lane)
        total = len(ends)
        while first < total and not lane.backlog and lane.large is None:
            start = int(ends[first - 1]) if first else 0
            w = lane.writer
            if w is None or lane.reliable is not reliable:
                w = w or self._open(lane)
                self._start_frame(lane, w, reliable)
            stop = bisect_right(ends, start + self._top - len(w.out), first)
            if stop > first:
                w.out += data[start : ends[stop - 1]]
                self._waiting |= lane.bit
                self.counters.sent_messages += stop - first
                first = stop
                continue
            self._roll_back(lane, w, len(w.out))
            if lane.writer is None or len(lane.sealed) >= LANE_BATCHES:
                break  # The message fits no batch, or the lane is full.
            self._seal(lane)
        return first

    def emit_lane(self, priority: WirePriority, reliable: bool) -> LaneSettings | None:
        """Return the lane of `priority` for a caller that writes whole batches; None: this link
        takes none."""
        if self._low_latency or self._compression or self._framing is not Framing.STREAM:
            return None
        lane = self._lane_of[priority]
        sn_mask = lane.sequences[reliable].mask
        return LaneSettings(reliable, lane.priority, self._limit + Framing.STREAM, sn_mask)

    def push_batches(
        self,
        write: Callable[[int], tuple[memoryview, int, int]],
        priority: WirePriority,
        reliable: bool,
    ) -> PushResult:
        """Push the whole batches that `write` makes from the next sequence number on.

        `write` returns their bytes, the number of messages in them, and the sequence number that
        follows.
        """
        lane = self._lane_of[priority]
        if lane.backlog or lane.large is not None or len(lane.sealed) >= LANE_BATCHES:
            return PushResult.FULL
        if lane.open or lane.appended:
            self._absorb(lane)
        if lane.writer is not None:
            self._seal(lane)
        sequence = lane.sequences[reliable]
        data, messages, sequence.next = write(sequence.next)
        lane.sealed.append(data)
        self.full |= lane.bit
        self._waiting |= lane.bit
        self.counters.sent_messages += messages
        return PushResult.DONE

    # ---- the fast path: its rules are in fast_path.py

    def fast_path(self, qos: int) -> OutboundLane | None:
        """Return the lane of `qos` for a caller that appends; None: there is no fast path."""
        return None if self._low_latency else self._lane_of[qos & PRIORITY_BITS]

    def enable_fast_path(self, qos: int) -> None:
        """Open the lane of `qos` for appending, if it has a reliable open batch (rule 1).

        The caller sees to it that the batch is written soon.
        """
        lane = self._lane_of[qos & PRIORITY_BITS]
        busy = lane.writer is None or lane.large is not None or lane.backlog
        lane.open = not busy and lane.reliable is True and not self._low_latency

    def disable_fast_paths(self) -> None:
        """Close every lane for appending: the session ends."""
        for lane in self._lanes:
            lane.open = False

    @property
    def top(self) -> int:
        """Upper bound on the bytes of an open batch, its length prefix included."""
        return self._top

    def absorb_appended(self, lane: OutboundLane) -> None:
        """Queue the messages that were appended while the lane was being closed (rule 3)."""
        if lane.appended:
            self._absorb(lane)

    def _absorb(self, lane: OutboundLane) -> None:
        """Close a lane for appending and queue the messages that were appended to it (rule 4)."""
        messages = lane.take_appended()
        count = len(messages)
        self.counters.sent_messages += count
        if lane.large is not None or lane.backlog:
            lane.backlog.extend((message, True, False) for message in messages)
            self._backlog_bytes += sum(map(len, messages)) + count * BACKLOG_ENTRY_BYTES
        elif count:
            self._fill_batches(lane, messages)
        if count:
            self._waiting |= lane.bit

    def _fill_batches(self, lane: OutboundLane, messages: list[bytes]) -> None:
        """Write messages into the open batch, and into further ones as needed; each fits one."""
        ends = list(accumulate(map(len, messages)))
        data = memoryview(b"".join(messages))
        first = start = 0
        while first < len(ends):
            w = lane.writer or self._open(lane)
            if lane.reliable is not True:
                self._start_frame(lane, w, True)
            stop = bisect_right(ends, start + self._top - len(w.out), first)
            if stop > first:
                w.out += data[start : ends[stop - 1]]
                first, start = stop, ends[stop - 1]
            else:
                self._roll_back(lane, w, len(w.out))
                if lane.writer is not None:
                    self._seal(lane)

    # ---- beyond a full lane

    def push_beyond(
        self, message: NetworkMessage | bytes, qos: int, reliable: bool, now: float
    ) -> bool:
        """Keep `message` in the backlog of its full lane, for a caller that cannot wait.

        It is sent in order, as soon as there is room. False: the backlog is full too.
        MessageTooLarge: it can never be sent.
        """
        if not isinstance(message, bytes):
            message = encode(NETWORK.write, message)
        self.check_size(len(message))
        size = len(message) + BACKLOG_ENTRY_BYTES
        moves = self.stalled_at is None or now < self.stalled_at + STUCK_SECONDS
        if self._backlog_bytes + size > (MAX_BACKLOG_BYTES if moves else BACKLOG_BYTES):
            return False
        self._backlog_bytes += size
        lane = self._lane_of[qos & PRIORITY_BITS]
        lane.backlog.append((message, reliable, may_drop(qos)))
        self._waiting |= lane.bit
        if self.stalled_at is None:
            self.stalled_at = now
        return True

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait beyond full lanes."""
        return self._backlog_bytes

    def has_room(self, qos: int) -> bool:
        """Whether a message of this QoS would be queued now."""
        lane = self._lane_of[qos & PRIORITY_BITS]
        return lane.large is None and not lane.backlog and len(lane.sealed) < LANE_BATCHES

    def next_sn(self, qos: int, reliable: bool) -> int:
        """Return the sequence number of the next FRAME in the lane of `qos`."""
        return self._lane_of[qos & PRIORITY_BITS].sequences[reliable].next

    def is_idle(self, qos: int) -> bool:
        """Whether nothing at all waits in the lane of `qos`."""
        lane = self._lane_of[qos & PRIORITY_BITS]
        held = not lane.bit
        return not (held or lane.open or lane.appended or self._waiting & lane.bit)

    def count_unsent(self) -> int:
        """Return the number of messages that wait. Decodes their batches: for a link that ended."""
        count = 0
        for lane in self._lanes:
            if lane.open or lane.appended:
                self._absorb(lane)
            if lane.writer is not None:
                self._seal(lane)
            count += self._count_messages(self._body(batch) for batch in lane.sealed)
            count += len(lane.backlog) + (lane.large is not None)
        return count

    def _count_messages(self, bodies: Iterable[bytes]) -> int:
        """Return how many messages are in the FRAMEs of batches; FRAGMENTs are left out."""
        if self._compression:
            bodies = (uncompress(body, limit=self._limit) for body in bodies)
        found = (message for body in bodies for message in read_batch(body))
        return sum(len(m.messages) for m in found if isinstance(m, Frame))

    def in_fragments(self, qos: int) -> bool:
        """Whether a message in fragments blocks the lane of `qos`."""
        return self._lane_of[qos & PRIORITY_BITS].large is not None

    def push_control(self, message: TransportMessage) -> None:
        """Queue a transport message, in a batch of its own, before all other messages."""
        if len(self._control) >= CONTROL_MESSAGES:
            self._control.popleft()
            self.counters.drop_sent(DropReason.CONTROL_BACKLOG)
        self._control.append(write_batch([message]))

    # ---- out

    @property
    def waiting(self) -> bool:
        """Whether there is something to send."""
        return bool(self._control or self._waiting)

    def due(self, now: float, express: bool) -> bool:
        """After a push: whether the caller is to write everything now; if not, `flush_at` is the
        latest time for it. Open batches may wait during a burst; `full` ones leave at once."""
        burst = now - self._last_push < BURST_SECONDS
        self._last_push = now
        if self.full:  # A message behind a full batch is part of a burst, however long that took.
            self.flush_at = None
            burst = True
        if express or self.answering or not burst:
            return True
        if self.flush_at is None:
            self.flush_at = now + FLUSH_SECONDS
            return False
        return now >= self.flush_at

    def pull(self, now: float, full_only: bool = False) -> bytes | bytearray | memoryview | None:
        """Take the next batch, framed: control first, then by priority. None: nothing waits, or
        with `full_only` no whole batch.

        Everything in lanes of a higher priority leaves before a whole batch, in open batches too:
        see the rule of order above.
        """
        if self._control:
            return self.pull_control()
        while self.full if full_only else self._waiting:
            lanes = self._waiting
            lane = self._lanes[(lanes & -lanes).bit_length() - 1]
            if lane.open or lane.appended:
                self._absorb(lane)
            if lane.backlog:
                self._refill(lane, now)
            batch = self._pull_lane(lane, now)
            self.blocked &= ~lane.bit
            if not lane.sealed and lane.large is None:
                self._no_longer_full(lane)
            if batch is not None:
                if self._kept is not None and lane is self._lanes[0]:
                    self._keep(self._body(batch))
                self.counters.sent_batches += 1
                if self.stalled_at is not None:
                    self.stalled_at = now
                return batch
        return None

    def _no_longer_full(self, lane: OutboundLane) -> None:
        self.full &= ~lane.bit
        if lane.writer is None and not lane.backlog:
            self._waiting &= ~lane.bit

    def pull_control(self) -> bytes | bytearray | memoryview | None:
        """Take the next control message; the only kind that is sent once a session has ended."""
        if not self._control:
            return None
        self.counters.sent_batches += 1
        return self._finish(self._prefix + self._control.popleft())

    def on_all_written(self) -> None:
        """Note that every pulled batch has been written."""
        self.answering = False
        self.flush_at = None

    def give_up_stale(self, now: float) -> bool:
        """Drop fragmented messages that may be dropped and make no progress; whether there was
        one."""
        found = False
        for lane in self._lanes:
            large = lane.large
            if large is None or not large.droppable or not lane.bit:
                continue
            if now >= large.moved_at + FRAGMENT_DROP_SECONDS:
                found = True
                self._abandon(lane, large)
        return found

    def next_sns(self) -> list[tuple[int, int]]:
        """Return (reliable, best effort) of each lane, as JOIN announces them."""
        return [(lane.sequences[1].next, lane.sequences[0].next) for lane in self._lanes]

    # ---- batches

    def _open(self, lane: OutboundLane) -> ByteWriter:
        w = ByteWriter(bytearray(self._prefix))
        lane.writer = w
        lane.reliable = None
        return w

    def _start_frame(self, lane: OutboundLane, w: ByteWriter, reliable: bool) -> None:
        out = w.out
        lane.start = len(out)
        lane.reliable = reliable
        out.append(lane.headers[reliable])
        sn = lane.sequences[reliable].take()
        if FOUR_BYTES_FROM <= sn <= FOUR_BYTES_TO:  # Nearly always; faster than `zint`.
            low, high = sn & 0x7F | (sn & 0x3F80) << 1, (sn & 0x1FC000) << 2 | (sn & 0xFE00000) << 3
            out += (low | high | 0x808080).to_bytes(4, "little")
        else:
            w.zint("sn", sn, U32)
        out += lane.name
        lane.body = len(out)

    def _roll_back(self, lane: OutboundLane, w: ByteWriter, mark: int) -> None:
        """Remove the bytes after `mark`, and then an empty FRAME and an empty batch."""
        del w.out[mark:]
        assert lane.reliable is not None
        if len(w.out) == lane.body:
            del w.out[lane.start :]
            lane.sequences[lane.reliable].give_back()
            lane.reliable = None
        if len(w.out) == len(self._prefix):
            lane.writer = None

    def _push_to_next(
        self,
        lane: OutboundLane,
        encoded: bytes | memoryview,
        reliable: bool,
        may_drop: bool,
        now: float,
    ) -> PushResult:
        """Queue a message that does not fit the open batch: in a new one, or in fragments."""
        self.check_size(len(encoded))
        if len(lane.sealed) >= LANE_BATCHES:
            return PushResult.FULL
        if lane.writer is not None:
            self._seal(lane)
        w = self._open(lane)
        self._start_frame(lane, w, reliable)
        if len(w.out) - len(self._prefix) + len(encoded) <= self._limit:
            w.out += encoded
        else:
            self._roll_back(lane, w, len(w.out))
            lane.large = FragmentedMessage(memoryview(encoded), reliable, may_drop, moved_at=now)
            self.full |= lane.bit
        self._waiting |= lane.bit
        self.counters.sent_messages += 1
        return PushResult.DONE

    def _push_bare(self, lane: OutboundLane, encoded: bytes | bytearray | memoryview) -> PushResult:
        """Queue a message of a low-latency session: no FRAME, no sequence number, no fragments."""
        self.check_size(len(encoded))
        if len(lane.sealed) >= LANE_BATCHES:
            return PushResult.FULL
        out = lane.writer.out if lane.writer else bytearray()
        if self._framing:
            out += len(encoded).to_bytes(self._framing, "little")
        out += encoded
        if not self._framing or len(out) >= self._limit:  # One message per datagram.
            lane.sealed.append(out)
            lane.writer = None
            self.full |= lane.bit
        elif lane.writer is None:
            lane.writer = ByteWriter(out)
        self._waiting |= lane.bit
        self.counters.sent_messages += 1
        return PushResult.DONE

    def check_size(self, size: int) -> None:
        """Raise MessageTooLarge if no batch and no series of fragments can carry a message."""
        if self._low_latency:
            if size > self._limit:
                raise MessageTooLarge(
                    f"has {size} bytes; a low-latency session sends at most {self._limit}: send "
                    "less at once, or open the session without transport/unicast/lowlatency",
                    "message",
                )
            return
        pieces = size // (self._limit - FRAGMENT_OVERHEAD) + 1
        if size > self._max_message or pieces > MAX_FRAGMENTS:
            raise MessageTooLarge(
                f"has {size} bytes; at most {self._max_message} in {MAX_FRAGMENTS} fragments of "
                f"{self._limit - FRAGMENT_OVERHEAD} can be sent: send less at once",
                "message",
            )

    def _seal(self, lane: OutboundLane) -> None:
        assert lane.writer is not None
        out = lane.writer.out
        lane.sealed.append(out if self._low_latency else self._finish(out))
        lane.writer = None
        self.full |= lane.bit

    def _pull_lane(self, lane: OutboundLane, now: float) -> bytes | bytearray | memoryview | None:
        if lane.sealed:
            return lane.sealed.popleft()
        if lane.large is not None:
            return self._next_piece(lane, lane.large, now)
        if lane.writer is None:
            return None
        out, lane.writer = lane.writer.out, None
        return out if self._low_latency else self._finish(out)

    def _next_piece(
        self, lane: OutboundLane, large: FragmentedMessage, now: float
    ) -> bytes | bytearray:
        size = self._limit - FRAGMENT_OVERHEAD
        start, end = large.pos, min(large.pos + size, len(large.data))
        large.pos, large.moved_at = end, now
        more = end < len(large.data)
        sequence = lane.sequences[large.reliable]
        piece = self._fragment(lane, large, more=more, first=start == 0)
        piece += large.data[start:end]
        if not more:
            sequence.skip()  # As every implementation does; receivers do not count a loss.
            lane.large = None
        return self._finish(piece)

    def _fragment(
        self,
        lane: OutboundLane,
        large: FragmentedMessage,
        *,
        more: bool,
        first: bool = False,
        drop: bool = False,
    ) -> bytearray:
        w = ByteWriter(bytearray(self._prefix))
        write_fragment(
            w,
            Fragment(
                lane.sequences[large.reliable].take(),
                reliable=large.reliable,
                more=more,
                priority=WirePriority.DATA if lane.priority is None else lane.priority,
                first=first,
                drop=drop,
            ),
        )
        return w.out

    def _abandon(self, lane: OutboundLane, large: FragmentedMessage) -> None:
        self.counters.drop_sent(DropReason.CONGESTION_FRAGMENTS)
        lane.large = None
        if large.pos:  # The receiver has pieces; a last one ends them where Drop is unknown.
            marker = self._fragment(lane, large, more=False, drop=True)
            lane.sealed.append(self._finish(marker))
        elif not lane.sealed:
            self._no_longer_full(lane)

    def _finish(self, out: bytes | bytearray) -> bytes | bytearray:
        """Compress a batch, if that was agreed, and write its length into its prefix."""
        start = len(self._prefix)
        if self._compression:
            return self._framed(compress(bytes(out[start:])))
        if start:
            out = out if isinstance(out, bytearray) else bytearray(out)
            out[:start] = (len(out) - start).to_bytes(start, "little")
        return out

    def _framed(self, body: bytes) -> bytes:
        size = len(self._prefix)
        return len(body).to_bytes(size, "little") + body if size else body

    def _refill(self, lane: OutboundLane, now: float) -> None:
        """Move messages from the backlog into the lane while it has room."""
        while lane.backlog and lane.large is None:
            data, reliable, may_drop = lane.backlog[0]
            if self._push_encoded(lane, data, reliable, may_drop, now) is PushResult.FULL:
                break
            lane.backlog.popleft()
            self._backlog_bytes -= len(data) + BACKLOG_ENTRY_BYTES
        if not self._backlog_bytes:
            self.stalled_at = None
