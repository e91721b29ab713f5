"""The tape: runs of messages go into the open block; a thread of its own makes blocks durable.

Knows blocks, losses, group commit and back-pressure. Does not know files (writer.py) or what a
session is; it never makes a sample of what came from a link.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from zenlake.api.pubsub.subscriber import RunSink
from zenlake.api.values.sample import PLAIN, Sample
from zenlake.errors import LinkError, SessionEnded, ZError
from zenlake.log import format as layout
from zenlake.log.block import Loss, OpenBlock, SourceLink
from zenlake.log.format import Mark
from zenlake.log.write.source_gaps import SourceGap, SourceTracker
from zenlake.log.write.writer import LogWriteError, Writer
from zenlake.wire.cursor import ByteWriter as Bytes
from zenlake.wire.enums import CloseReason, Mapping, WirePriority, WireWhatAmI
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr

if TYPE_CHECKING:
    from zenlake.keytable import KeyTable
    from zenlake.runtime.local_delivery import RawPush
    from zenlake.runtime.session_face import SessionFace
    from zenlake.runtime.transport_session import TransportSession
    from zenlake.wire.push_run import PushRun

log = logging.getLogger("zenlake.log")

SYNC_SECONDS = 0.005  # a sample waits at most so long before it is written,
SYNC_BYTES = 1 << 20  # or until so much waits
PLACES = 4  # tries: a block that has no room for its keys is cut, a link whose ids changed is new
META_BYTES = 4 << 20  # of keys in one block; then it is cut
BLOCK_BYTES = 4 << 20  # a block that has so much is closed, whether it can be written or not
KEPT_BUFFERS = 4
WAITING_BYTES = 64 << 20  # not durable yet; then the network is not read
RETRY_SECONDS = 0.5  # between two attempts to write after a failure
LAST_RETRY_SECONDS = 0.05  # the same, once it is to end
MAX_LOSSES = 65_536  # records that wait for a commit; more are counted only
CLOSE_SECONDS = 10.0  # to make the rest durable at the end, when writing fails
MAX_MESSAGE_BYTES = layout.MAX_BLOCK_BYTES - (8 << 20)  # with its key and what stands around it
MAX_NAMES_BYTES = 64 << 20  # that the ids of one frame stand for

_LANE_RELIABLE = 0x08
_NOBODY = SourceLink(0, 0, b"")
_SCOPE = 0xFFFF
_FULL_KEY = int(Mapping.SENDER) << 16


class WireKey(NamedTuple):
    """A key as a link knows it: mapping and scope as one number, the suffix, and the prefix."""

    number: int
    suffix: bytes
    prefix: bytes


class RecordingSink(RunSink):
    """What a recorder subscribes with. One writer, one thread that commits."""

    messages_from = 0

    def __init__(
        self,
        writer: Writer,
        *,
        sync_seconds: float = SYNC_SECONDS,
        sync_bytes: int = SYNC_BYTES,
        sync_samples: int | None = None,
        overflow: str = "block",
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__()
        if overflow not in ("block", "drop"):
            raise ZError(f"overflow is 'block' or 'drop', not {overflow!r}")
        if sync_seconds < 0 or sync_bytes < 1 or (sync_samples is not None and sync_samples < 1):
            raise ZError("sync_seconds is at least 0, sync_bytes and sync_samples at least 1")
        self.writer = writer
        self.mark: Mark = writer.mark
        self.failure: Exception | None = None
        self.received = writer.next
        "The offset of the next sample that comes."
        self.bytes = 0
        self.losses: Counter[str] = Counter()
        "Records of loss by kind,"
        self.missing: Counter[str] = Counter()
        "and what they say is missing."
        self.unrecorded = 0
        "Of them, those that there was no room for."
        self.sources = SourceTracker()
        self.waiting = 0
        "Bytes that are not durable yet."
        self._sync_seconds = sync_seconds
        self._sync_bytes = sync_bytes
        self._sync_samples = sync_samples
        self._overflow = overflow
        self._clock = clock
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._changed = threading.Condition(self._lock)
        self._block = OpenBlock()
        self._since = 0.0
        "When the oldest sample came that no commit has taken."
        self._full: deque[OpenBlock] = deque()
        self._buffers: list[bytearray] = []
        "Of blocks that are written."
        self._links: dict[Any, SourceLink] = {None: _NOBODY}
        self._serial = 0
        self._let_go = 0
        "Samples dropped since the last that was taken."
        self._open_losses = 0
        self._room_calls: list[Callable[[], None]] = []
        self._closed = False
        self._over = False
        "Nothing becomes durable any more."
        self._close_until = 0.0
        self._ending = threading.Event()
        if writer.next:  # nobody knows what was sent since the last recording
            with self._lock:
                self._lose(Loss(layout.LINK, clock(), b""))
        self._thread = threading.Thread(target=self._commits, name="zenlake log", daemon=True)
        self._thread.start()

    # ---- in, on the I/O thread or that of a local put

    def push_run(
        self, run: "PushRun", rows: Any, keys: "KeyTable", port: "SessionFace | None"
    ) -> bool:
        chosen = run.rows[run.first : run.stop]
        if rows is None:
            data = run.data[int(chosen[0]["start"]) : int(chosen[-1]["end"])]
            names = run.keys
        else:
            import numpy as np

            from zenlake.wire.push_run import chosen_bytes

            data = chosen_bytes(run, rows)
            names = [run.keys[code] for code in np.unique(run.codes[rows]).tolist()]
            chosen = chosen[rows]
        named = [WireKey(number, suffix, keys.prefix(number) or b"") for number, suffix in names]
        reliable = bool(int(chosen[0]["lane"]) & _LANE_RELIABLE)
        numbered = () if run.plain else self.sources.gaps(chosen, run.data)
        return self._take(port, reliable, named, len(chosen), data, numbered)

    def push_message(self, one: "RawPush") -> bool:
        port, reliable, name, data, start, end, push = one
        number, suffix = (name, b"") if isinstance(name, int) else name
        prefix = (port.face.keys.prefix(number) or b"") if number & _SCOPE else b""
        gaps = self._gaps_of(push)
        view = memoryview(data)[start:end]
        return self._take(port, reliable, [WireKey(number, suffix, prefix)], 1, view, gaps)

    def push_one(self, sample: Sample) -> bool:
        push = sample._push()
        body = Put(bytes(sample.payload)) if push is PLAIN else push.body
        key = str(sample.key_expr)
        w = Bytes()
        NETWORK.write(w, replace(push, key=WireExpr(0, key, Mapping.SENDER), body=body))
        names = [WireKey(_FULL_KEY, key.encode(), b"")]
        return self._take(None, True, names, 1, memoryview(w.out), self._gaps_of(push))

    def _gaps_of(self, push: Push | None) -> Iterable[SourceGap]:
        source = None if push is None else push.body.source_info
        return () if source is None else self.sources.gap(source)

    def _take(
        self,
        port: "SessionFace | None",
        reliable: bool,
        names: list[WireKey],
        count: int,
        data: memoryview,
        gaps: Iterable[SourceGap],
    ) -> bool:
        """Messages into the open block; False if that is enough for now."""
        now = self._clock()
        with self._lock:
            named = sum(len(name.prefix) for name in names)
            if self._closed or not self._fits(len(data), named):
                self.dropped += count
                self._let_go += count
                for gap in gaps:  # between what is let go; that itself is not missing
                    self._lose_of_source(gap._replace(row=0), now)
                return True
            self._lose_dropped(now)
            place = self._place(port, names)
            for gap in gaps:
                self._lose_of_source(gap, now)
            if not self._block:
                self._started()
            self._block.add(place, reliable, now, count, data)
            self.received += count
            self.bytes += len(data)
            self.waiting += len(data)
            self._look_at_size()
            return self._has_room()

    def _fits(self, size: int, named: int) -> bool:
        """Whether so many bytes may be taken; what is too long for a block never is."""
        if size > MAX_MESSAGE_BYTES or named > MAX_NAMES_BYTES:
            return False
        if self._block.size + size > BLOCK_BYTES:
            self._cut()
        return self._overflow == "block" or self.waiting < WAITING_BYTES

    def _place(self, port: "SessionFace | None", names: list[WireKey]) -> int:
        """The link's number in the open block, which knows the keys then."""
        for _ in range(PLACES):
            place = self._block.link(self._link(port))
            if place is None or self._block.meta >= META_BYTES:
                self._cut()
                continue
            if all(self._block.key(place, *name) for name in names):
                return place
            del self._links[port]  # an id stands for something else now
        raise AssertionError("a new link has no keys that contradict")

    def _link(self, port: "SessionFace | None") -> SourceLink:
        link = self._links.get(port)
        if link is None:
            self._serial += 1
            agreed = port.session.agreement if port is not None else None
            raw = agreed.zid.raw if agreed is not None else b""
            link = SourceLink(self._serial, int(agreed.whatami) if agreed is not None else 0, raw)
            self._links[port] = link
        return link

    def _look_at_size(self) -> None:
        block = self._block
        many = self._sync_samples is not None and block.count >= self._sync_samples
        if many or block.size >= self._sync_bytes:
            self._work.notify()

    def _started(self) -> None:
        if not self._full:
            self._since = time.monotonic()
            self._work.notify()

    def _cut(self) -> None:
        if self._block:
            self._full.append(self._block)
            self._block = OpenBlock(self._buffers.pop() if self._buffers else None)
            self._work.notify()

    # ---- loss

    def _lose_of_source(self, gap: SourceGap, now: int) -> None:
        first, missing = gap.first, gap.missing
        loss = Loss(layout.SOURCE, now, gap.id, first, gap.last, missing, gap.entity)
        self._lose(loss, gap.row)

    def lost(
        self,
        session: "TransportSession",
        priority: WirePriority,
        reliable: bool,
        first: int,
        missing: int,
    ) -> None:
        """Numbers of a lane never came."""
        lane = int(priority) | (_LANE_RELIABLE if reliable else 0)
        zid, last = session.zid.raw, first + missing - 1 & session.agreement.sn_mask
        with self._lock:
            self._lose(Loss(layout.LANE, self._clock(), zid, first, last, missing, lane=lane))

    def closed(self, session: "TransportSession", why: SessionEnded) -> None:
        """A link ended: nobody knows what is sent until there is another, unless it was the
        sender itself that said goodbye."""
        broke = isinstance(why.__cause__, LinkError) or why.reason != CloseReason.GENERIC
        goodbye = why.by_peer and not broke and session.agreement.whatami is not WireWhatAmI.ROUTER
        with self._lock:
            self._links.pop(session.face, None)
            if not goodbye:
                self._lose(Loss(layout.LINK, self._clock(), session.zid.raw))

    def _lose_dropped(self, now: int) -> None:
        if self._let_go:
            self._lose(Loss(layout.DROPPED, now, b"", missing=self._let_go))
            self._let_go = 0

    def _lose(self, loss: Loss, ahead: int = 0) -> None:
        if self._closed:
            return
        kind = layout.LOSS_KINDS[loss.kind]
        self.losses[kind] += 1
        self.missing[kind] += max(loss.missing, 0)
        if self._open_losses == MAX_LOSSES:
            self.unrecorded += 1
            return
        if not self._block:
            self._started()
        self._open_losses += 1
        self._block.lost(loss, ahead)

    # ---- out, on the committing thread

    def _commits(self) -> None:
        while True:
            with self._work:
                while not self._due():
                    self._work.wait(self._wait())
                blocks = self._swap()
                if not blocks and self._closed:
                    return
            self._commit(blocks)

    def _due(self) -> bool:
        if self._closed or self._full:
            return True
        block = self._block
        return bool(block) and (
            block.size >= self._sync_bytes
            or (self._sync_samples is not None and block.count >= self._sync_samples)
            or time.monotonic() >= self._since + self._sync_seconds
        )

    def _wait(self) -> float | None:
        if not self._block:
            return None
        return max(0.0, self._since + self._sync_seconds - time.monotonic())

    def _swap(self) -> list[OpenBlock]:
        self._cut()
        blocks = list(self._full)
        self._full.clear()
        self._open_losses = 0
        return blocks

    def _commit(self, blocks: list[OpenBlock]) -> None:
        """Make blocks durable, however often it takes."""
        while True:
            try:
                mark = self.writer.write(blocks)
                break
            except Exception as error:
                if self.failure is None:
                    defect = not isinstance(error, LogWriteError)
                    log.error("nothing is acknowledged: %s", error, exc_info=defect)
                with self._lock:
                    self.failure = error
                    if self._closed and time.monotonic() >= self._close_until:
                        self._give_up()
                        return
                if self._ending.wait(RETRY_SECONDS):
                    time.sleep(LAST_RETRY_SECONDS)
        with self._lock:
            if self.failure is not None:
                log.warning("writing works again: offset %d is durable", mark.offset)
            self.failure = None
            self.mark = mark
            self.waiting -= sum(block.size for block in blocks)
            used = [block.buffer for block in blocks if len(block.buffer) <= 2 * BLOCK_BYTES]
            self._buffers += used[: KEPT_BUFFERS - len(self._buffers)]
            self._changed.notify_all()
            calls = self._made_room()
        for call in calls:
            call()

    def _give_up(self) -> None:
        self._full.clear()
        self._block = OpenBlock()
        self._over = True
        self._changed.notify_all()
        self.dropped += self.received - self.mark.offset
        log.error("%d samples were not made durable", self.received - self.mark.offset)

    # ---- room

    def _has_room(self) -> bool:
        return self._overflow == "drop" or self.waiting < WAITING_BYTES

    def _made_room(self) -> list[Callable[[], None]]:
        if 2 * self.waiting > WAITING_BYTES and not self._closed:
            return []
        calls, self._room_calls = self._room_calls, []
        return calls

    def when_room(self, call: Callable[[], None]) -> None:
        with self._lock:
            if not self._closed and not self._has_room():
                self._room_calls.append(call)
                return
        call()

    def wait_room(self) -> None:
        with self._lock:
            while not self._closed and not self._has_room():
                self._changed.wait()

    # ---- for whoever waits, and the end

    def durable(self, timeout: float | None = None, target: int | None = None) -> Mark:
        """Wait until all that came before this call is durable, or before offset `target`."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            target = self.received if target is None else target
            while self.mark.offset < target:
                left = None if until is None else until - time.monotonic()
                if (left is not None and left <= 0) or self._over:
                    why = f": {self.failure}" if self.failure is not None else ""
                    raise ZError(f"offset {target} is not durable, only {self.mark.offset} is{why}")
                self._changed.wait(left)
            return self.mark

    def close(self) -> None:
        """Take no more; what came is made durable."""
        with self._lock:
            self._lose_dropped(self._clock())
            self._closed = True
            self._close_until = time.monotonic() + CLOSE_SECONDS
            self._ending.set()
            self._work.notify_all()
            self._changed.notify_all()
            calls = self._made_room()
        for call in calls:
            call()

    def join(self, timeout: float | None) -> bool:
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._changed = threading.Condition(self._lock)
        self._closed = self._over = True
        self._room_calls = []
