"""The way out of a session: messages into batches, lane by lane, one encode for each.

Knows lanes, sequence numbers, batch sizes, fragments and how much may wait. Does not know the
link, nor who waits when a lane is full: `push` says FULL and the caller decides.

The rule of order: **a lane is pulled only when nothing waits in a lane of a higher priority.**
Messages depend on declarations: a key id means nothing to a peer that has not read its D_KEYEXPR.
A declaration names Priority.CONTROL (`qos.DECLARE`), whose lane is the first, and is pushed before
the first message that uses it. So it leaves before that message, whatever lane and reliability the
message has and however it came in: alone, in a run, in whole batches that the caller wrote, added
without a lock, as a large message or into the backlog. `Outbox.pull` enforces the rule, and nothing
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
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from zenlake.errors import EncodeError
from zenlake.transport.counters import Counters
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.fragments import MAX_FRAGMENTS, MAX_MESSAGE_BYTES
from zenlake.transport.sequence import SequenceOut
from zenlake.wire import frame
from zenlake.wire.batch import TransportMessage, write_batch
from zenlake.wire.cursor import U32, ByteWriter
from zenlake.wire.enums import PRIORITIES, WirePriority
from zenlake.wire.extensions import FLAG_EXTENSIONS, LANE
from zenlake.wire.fragment import Fragment, write_fragment
from zenlake.wire.framing import Framing, compress
from zenlake.wire.network import NETWORK, NetworkMessage
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import BLOCK, BLOCK_FIRST, PRIORITY_BITS

LANE_BATCHES = 4  # sealed batches that may wait in one lane
BACKLOG_BYTES = 32 << 20  # that may wait beyond full lanes, for callers that cannot wait themselves
BACKLOG_ENTRY_BYTES = 128  # what one of them takes beside its bytes
CONTROL_MESSAGES = 16  # KEEP_ALIVE, CLOSE and JOIN that may wait
FOUR_BYTES_FROM, FOUR_BYTES_TO = 1 << 21, (1 << 28) - 1  # sequence numbers of that length
FRAGMENT_OVERHEAD = 16  # header, number, lane, First, and some room

FLUSH_SECONDS = 0.001
"How long a message may wait for company in a batch."
BURST_SECONDS = 50e-6
"A caller that is back this soon after its last message has more to say: its batch may fill."
DROP_SECONDS = 0.001
"How long a message that may be dropped waits for room."
FRAGMENT_DROP_SECONDS = 0.05
"The same for a message in fragments, and for those behind it."
BLOCK_SECONDS = 5.0
"How long a message that must not be dropped waits; then the link is closed."


class IntegerSequence(Protocol):
    """A list or an array of them."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class EmitLane(NamedTuple):
    """Where whole batches go, as the link was negotiated."""

    reliable: bool
    priority: WirePriority | None
    "None on a link without lanes, which must never name one."
    batch_size: int
    "It counts the length prefix."
    sn_mask: int


class PushResult(IntEnum):
    DONE = 0
    FULL = 1
    "The lane has no room now; nothing was changed."


def may_drop(qos: int) -> bool:
    """Whether a message of this QoS may be given up when it does not move."""
    return not qos & (BLOCK | BLOCK_FIRST)


@dataclass(slots=True)
class FragmentedMessage:
    """A message on its way in fragments. While it is there its lane takes no other."""

    data: memoryview
    reliable: bool
    droppable: bool
    pos: int = 0
    moved_at: float = 0.0
    "When a piece of it was last taken."


class OutboundLane:
    """The messages of one priority that wait: sealed batches, then a large one, or an open batch.

    Both reliabilities share the batches; each has its own sequence numbers.
    """

    __slots__ = (
        "added",
        "backlog",
        "bit",
        "body",
        "headers",
        "large",
        "name",
        "open",
        "priority",
        "reliable",
        "sealed",
        "sequences",
        "start",
        "writer",
    )

    def __init__(
        self, index: int, priority: WirePriority | None, first_sns: tuple[int, int], mask: int
    ) -> None:
        self.bit = 1 << index
        "Of this lane in the outbox's sets of lanes."
        self.priority = priority
        "None where the link has no lanes: it must never be named there."
        named = priority is not None and priority is not WirePriority.DATA
        header = frame.ID | (FLAG_EXTENSIONS if named else 0)
        self.headers = (header, header | frame.FLAG_RELIABLE)
        "The first byte of a FRAME, of best effort and reliable,"
        self.name = bytes((LANE.header, priority)) if named and priority is not None else b""
        "and what follows its sequence number."
        self.sequences = tuple(SequenceOut(first, mask) for first in first_sns)
        "Of best effort and reliable."
        self.writer: ByteWriter | None = None
        "Writes into the open batch."
        self.added: list[bytes] = []
        "Reliable messages that follow what is in the open batch: see `Outbox.short_way`."
        self.open = False
        "Whether such may be added."
        self.start = 0
        self.body = 0
        "Where the open FRAME starts in it, and where its messages do."
        self.reliable: bool | None = None
        "The open FRAME's reliability."
        self.sealed: deque[bytes | bytearray | memoryview] = deque()
        self.large: FragmentedMessage | None = None
        self.backlog: deque[tuple[bytes, bool, bool]] = deque()


class Outbox:
    """What one session has to send.

    `batch_size` counts the length prefix. Without `qos` there is one lane. With `low_latency`
    messages go bare, each behind its own length.
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
        "When the open batches have to go; None: there are none, or they go at once."
        self.stalled_at: float | None = None
        "While there is a backlog: since when nothing was pulled."
        self.answering = True
        "Whether something came in since the last write: then an answer must not wait."
        self._framing = Framing.LOW_LATENCY if framing and low_latency else framing
        self._low_latency = low_latency
        self._compression = compression
        self._max_message = max_message
        # On a datagram the two bytes are not sent, yet the peer's size may count them.
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
        "By the priority bits of a QoS."
        self._waiting = 0
        "A bit for each lane that has something to send,"
        self.full = 0
        "and for each that has a whole batch; such a lane always has something to send."
        self.blocked = 0
        "And for each in which a message was dropped, and nothing has moved since."
        self._last_push = 0.0

    # ---- in

    def congested(self, qos: int, *, dropped: bool = False) -> bool:
        """Whether one like this was dropped since anything has moved in its lane: then no other
        need wait. `dropped`: one is now."""
        bit = self._lane_of[qos & PRIORITY_BITS].bit
        if dropped:
            self.blocked |= bit
        return bool(self.blocked & bit)

    def push(
        self, message: NetworkMessage, reliable: bool = True, *, now: float = 0.0
    ) -> PushResult:
        """Encode `message` into its lane's open batch. EncodeError: it can never be sent."""
        qos: int = message.qos
        lane = self._lane_of[qos & PRIORITY_BITS]
        if lane.open or lane.added:
            self._settle(lane)
        if lane.large is not None or lane.backlog:
            return PushResult.FULL
        if self._low_latency:
            w = ByteWriter()
            NETWORK.write(w, message)
            return self._push_bare(lane, w.out)
        if self._is_large(message):
            w = ByteWriter()
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
        """Whether `message` cannot fit a batch, as far as one look tells."""
        if type(message) is not Push or type(message.body) is not Put:
            return False
        return len(message.body.payload) > self._limit

    def push_encoded(
        self, data: bytes | memoryview, qos: int, reliable: bool = True, *, now: float = 0.0
    ) -> PushResult:
        """The same for a message that is encoded already; `data` must not change any more.

        Several may stand in it only if one batch surely holds them: fragments are one message.
        """
        lane = self._lane_of[qos & PRIORITY_BITS]
        if lane.open or lane.added:
            self._settle(lane)
        if lane.backlog or lane.large is not None:
            return PushResult.FULL
        w = lane.writer
        if w is not None and lane.reliable is reliable and len(w.out) + len(data) <= self._top:
            w.out += data  # in a burst: all that there is to do
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
        """The same for many: message i of `data` ends at ends[i]. From `first` on as many as there
        is room for; gives the next. All go to the lane of `qos`, and none is fragmented. With low
        latency each has to be pushed alone."""
        if self._low_latency:
            return first
        lane = self._lane_of[qos & PRIORITY_BITS]
        if lane.open or lane.added:
            self._settle(lane)
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
                break  # fits no batch, or there is no room
            self._seal(lane)
        return first

    def emit_lane(self, priority: WirePriority, reliable: bool) -> EmitLane | None:
        """The lane of `priority`, for whoever writes whole batches; None: not on this link."""
        if self._low_latency or self._compression or self._framing is not Framing.STREAM:
            return None
        lane = self._lane_of[priority]
        sn_mask = lane.sequences[reliable].mask
        return EmitLane(reliable, lane.priority, self._limit + Framing.STREAM, sn_mask)

    def push_batches(
        self,
        write: Callable[[int], tuple[memoryview, int, int]],
        priority: WirePriority,
        reliable: bool,
    ) -> PushResult:
        """Whole batches that `write` makes from the next sequence number on: the bytes, how many
        messages they hold, and the number that comes after them."""
        lane = self._lane_of[priority]
        if lane.backlog or lane.large is not None or len(lane.sealed) >= LANE_BATCHES:
            return PushResult.FULL
        if lane.open or lane.added:
            self._settle(lane)
        if lane.writer is not None:
            self._seal(lane)
        sequence = lane.sequences[reliable]
        data, messages, sequence.next = write(sequence.next)
        lane.sealed.append(data)
        self.full |= lane.bit
        self._waiting |= lane.bit
        self.counters.sent_messages += messages
        return PushResult.DONE

    def short_way(self, qos: int) -> "OutboundLane | None":
        """The lane of `qos`, for a caller that adds messages without any lock; None: it must not.

        While the lane is `open` it may append encoded messages to `added`, no more than one batch
        holds, and then has to look again: if the lane is not open any more, nobody may have seen
        the message, and `settle` is to be called.
        """
        return None if self._low_latency else self._lane_of[qos & PRIORITY_BITS]

    def open_short_way(self, qos: int) -> None:
        """What is in the lane of `qos` will be written soon: reliable messages may be added."""
        lane = self._lane_of[qos & PRIORITY_BITS]
        busy = lane.writer is None or lane.large is not None or lane.backlog
        lane.open = not busy and lane.reliable is True and not self._low_latency

    def close_short_ways(self) -> None:
        for lane in self._lanes:
            lane.open = False

    @property
    def top(self) -> int:
        """How long an open batch may get, its length prefix included."""
        return self._top

    def settle(self, lane: "OutboundLane") -> None:
        """Take what was added to a lane that may be open no more."""
        if lane.added:
            self._settle(lane)

    def _settle(self, lane: "OutboundLane") -> None:
        """What was added goes where it belongs: behind what is in the open batch."""
        lane.open = False  # first: whoever adds from now on sees it
        count = len(lane.added)
        messages = lane.added[:count]
        del lane.added[:count]
        self.counters.sent_messages += count
        if lane.large is not None or lane.backlog:
            lane.backlog.extend((message, True, False) for message in messages)
            self._backlog_bytes += sum(map(len, messages)) + count * BACKLOG_ENTRY_BYTES
        elif count:
            self._add(lane, messages)
        if count:
            self._waiting |= lane.bit

    def _add(self, lane: "OutboundLane", messages: list[bytes]) -> None:
        """Into the open batch, and more batches if need be; each message fits one."""
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

    def push_beyond(
        self, message: NetworkMessage | bytes, qos: int, reliable: bool, now: float
    ) -> bool:
        """Keep `message` although its lane is full, for a caller that cannot wait.

        False: the backlog is full too. It is sent in order, as soon as there is room.
        EncodeError: it can never be sent.
        """
        if not isinstance(message, bytes):
            w = ByteWriter()
            NETWORK.write(w, message)
            message = bytes(w.out)
        self._check_size(len(message))
        size = len(message) + BACKLOG_ENTRY_BYTES
        if self._backlog_bytes + size > BACKLOG_BYTES:
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
        """What waits beyond full lanes."""
        return self._backlog_bytes

    def has_room(self, qos: int) -> bool:
        """Whether a message of this QoS would be taken now."""
        lane = self._lane_of[qos & PRIORITY_BITS]
        return lane.large is None and not lane.backlog and len(lane.sealed) < LANE_BATCHES

    def in_fragments(self, qos: int) -> bool:
        """Whether a message in fragments holds up the lane of `qos`."""
        return self._lane_of[qos & PRIORITY_BITS].large is not None

    def push_control(self, message: TransportMessage) -> None:
        """A transport message of its own batch, before everything else."""
        if len(self._control) >= CONTROL_MESSAGES:
            self._control.popleft()
            self.counters.drop_sent(DropReason.CONTROL_BACKLOG)
        self._control.append(write_batch([message]))

    # ---- out

    @property
    def waiting(self) -> bool:
        return bool(self._control or self._waiting)

    def due(self, now: float, express: bool) -> bool:
        """After a push: whether all that waits is to be written now, or by `flush_at` at last.

        It may wait while a caller has more to say. Batches that are `full` are written at once.
        """
        burst = now - self._last_push < BURST_SECONDS
        self._last_push = now
        if self.full:  # what comes after a full batch is a burst, however long the batch took
            self.flush_at = None
            burst = True
        if express or self.answering or not burst:
            return True
        if self.flush_at is None:
            self.flush_at = now + FLUSH_SECONDS
            return False
        return now >= self.flush_at

    def pull(self, now: float, full_only: bool = False) -> bytes | bytearray | memoryview | None:
        """The next batch, framed: control first, then by priority. None: nothing waits, or with
        `full_only` nothing that is a whole batch.

        Before a whole batch there leaves all that waits in lanes of a higher priority, in open
        batches too: see the rule of order above.
        """
        if self._control:
            return self.pull_control()
        while self.full if full_only else self._waiting:
            lanes = self._waiting
            lane = self._lanes[(lanes & -lanes).bit_length() - 1]
            if lane.open or lane.added:
                self._settle(lane)
            if lane.backlog:
                self._refill(lane, now)
            batch = self._pull_lane(lane, now)
            self.blocked &= ~lane.bit
            if not lane.sealed and lane.large is None:
                self._no_longer_full(lane)
            if batch is not None:
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
        """The next control message alone: all that is left to say once a session is over."""
        if not self._control:
            return None
        self.counters.sent_batches += 1
        return self._finish(self._prefix + self._control.popleft())

    def written(self) -> None:
        """Everything that was pulled has been written."""
        self.answering = False
        self.flush_at = None

    def give_up_stale(self, now: float) -> bool:
        """Abandon large messages that may be dropped and no longer move; whether there was one."""
        found = False
        for lane in self._lanes:
            large = lane.large
            if large is None or not large.droppable:
                continue
            if now >= large.moved_at + FRAGMENT_DROP_SECONDS:
                found = True
                self._abandon(lane, large)
        return found

    def next_sns(self) -> list[tuple[int, int]]:
        """(reliable, best effort) of each lane, as JOIN announces them."""
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
        if FOUR_BYTES_FROM <= sn <= FOUR_BYTES_TO:  # nearly always, and at once
            low, high = sn & 0x7F | (sn & 0x3F80) << 1, (sn & 0x1FC000) << 2 | (sn & 0xFE00000) << 3
            out += (low | high | 0x808080).to_bytes(4, "little")
        else:
            w.zint("sn", sn, U32)
        out += lane.name
        lane.body = len(out)

    def _roll_back(self, lane: OutboundLane, w: ByteWriter, mark: int) -> None:
        """Take back what was written after `mark`, and the FRAME and batch that were left empty."""
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
        """What does not fit the open batch: into a new one, or in fragments."""
        self._check_size(len(encoded))
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
        """Low latency: no FRAME, no number, no fragments; each message behind its own length."""
        self._check_size(len(encoded))
        if len(lane.sealed) >= LANE_BATCHES:
            return PushResult.FULL
        out = lane.writer.out if lane.writer else bytearray()
        if self._framing:
            out += len(encoded).to_bytes(self._framing, "little")
        out += encoded
        if not self._framing or len(out) >= self._limit:  # one message is one datagram
            lane.sealed.append(out)
            lane.writer = None
            self.full |= lane.bit
        elif lane.writer is None:
            lane.writer = ByteWriter(out)
        self._waiting |= lane.bit
        self.counters.sent_messages += 1
        return PushResult.DONE

    def _check_size(self, size: int) -> None:
        """EncodeError for a message that no batch and no row of fragments can carry."""
        if self._low_latency:
            if size > self._limit:
                raise EncodeError(
                    f"has {size} bytes; a low-latency session sends at most {self._limit}",
                    "message",
                )
            return
        pieces = size // (self._limit - FRAGMENT_OVERHEAD) + 1
        if size > self._max_message or pieces > MAX_FRAGMENTS:
            raise EncodeError(
                f"has {size} bytes; at most {self._max_message} in {MAX_FRAGMENTS} fragments of "
                f"{self._limit - FRAGMENT_OVERHEAD} can be sent",
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
            sequence.skip()  # as every implementation does; receivers do not count it as a loss
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
        if large.pos:  # the receiver holds pieces of it; the last one ends it where Drop is unknown
            marker = self._fragment(lane, large, more=False, drop=True)
            lane.sealed.append(self._finish(marker))
        elif not lane.sealed:
            self._no_longer_full(lane)

    def _finish(self, out: bytes | bytearray) -> bytes | bytearray:
        """A batch behind its prefix, as it goes out: compressed if agreed, its length in place."""
        start = len(self._prefix)
        if self._compression:
            out = self._prefix + compress(bytes(out[start:]))
        if start:
            out = out if isinstance(out, bytearray) else bytearray(out)
            out[:start] = (len(out) - start).to_bytes(start, "little")
        return out

    def _refill(self, lane: OutboundLane, now: float) -> None:
        """Move from the backlog into the lane what has room there."""
        while lane.backlog and lane.large is None:
            data, reliable, may_drop = lane.backlog[0]
            if self._push_encoded(lane, data, reliable, may_drop, now) is PushResult.FULL:
                break
            lane.backlog.popleft()
            self._backlog_bytes -= len(data) + BACKLOG_ENTRY_BYTES
        if not self._backlog_bytes:
            self.stalled_at = None
