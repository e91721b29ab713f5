"""Unicast session: the life of one link from the first INIT to the CLOSE.

Knows handshake, lanes, fragments, lease and keep-alive. Does not know the link (bytes go through
`receive` and `pull`), the clock (`now` is an argument) or what a network message means.
"""

from collections.abc import Callable
from math import inf
from typing import NoReturn, Protocol

from zenlake.errors import DecodeError, Reason, SessionClosed, SessionEnded, SessionRefused
from zenlake.transport.counters import Counters
from zenlake.transport.establishment import Acceptor, Opener, reason_text
from zenlake.transport.fragments import (
    MAX_MESSAGE_BYTES,
    MAX_SESSION_BYTES,
    PROCESS,
    ByteBudget,
)
from zenlake.transport.lanes import Deliver, InboundLanes, OnGap, discard_frame
from zenlake.transport.offer import KEEP_ALIVES, Agreement
from zenlake.transport.outbox import BLOCK_SECONDS, Outbox
from zenlake.transport.sequence import SequenceIn
from zenlake.wire import fragment, frame
from zenlake.wire.batch import TRANSPORT, TransportMessage, write_batch
from zenlake.wire.close import Close
from zenlake.wire.cursor import ByteReader
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.enums import PRIORITIES, CloseReason, WirePriority
from zenlake.wire.framing import MAX_BATCH_BYTES, Framing, to_stream, uncompress
from zenlake.wire.keepalive import KeepAlive
from zenlake.wire.network import FIRST_ID

HANDSHAKE_SECONDS = 10.0  # Time for all four messages of the handshake.
NUMBERED = (frame.Frame, fragment.Fragment)  # Messages that a low-latency session does not use.


class UnicastHandler(Protocol):
    """Receiver of a session's messages."""

    def opened(self) -> None:
        """Called when the handshake is complete."""

    def on_frame(
        self, priority: WirePriority, reliable: bool, data: bytes, pos: int, end: int
    ) -> int:
        """Handle the network messages from `pos` on; return the position after the last.

        They end at `end`, or before a byte that does not start a network message. DecodeError: the
        session ends.
        """


class Unicast:
    """One session over one link, seen from one side.

    Two threads may use it at once, one for `receive` and `on_time`, the other, under a lock of
    the caller's, for `pull` and the `outbox`.

    `receive` and `on_time` raise SessionRefused or SessionClosed when the session ends; the caller
    then sends what `pull` still returns (a CLOSE) and closes the link.
    """

    def __init__(
        self,
        handshake: Opener | Acceptor,
        handler: UnicastHandler,
        framing: Framing,
        now: float,
        *,
        until: float | None = None,
        max_message: int = MAX_MESSAGE_BYTES,
        process: ByteBudget = PROCESS,
    ) -> None:
        self.counters = Counters()
        self.outbox: Outbox | None = None
        "Queue of outbound messages; None until the session is open."
        self.ended = False
        self.on_gap: OnGap | None = None
        "Called for missing sequence numbers; must be set before the session is open."
        self.enough: Callable[[], bool] = lambda: False
        "Called after each batch of a stream: True leaves the remaining bytes for later."
        self.pending = False
        'Whether `enough` left bytes unread: receive(b"") goes on with them.'
        self.last_received = now
        self.last_sent = now
        self.handshake = handshake
        self._opened = handler.opened
        self._deliver: Deliver = handler.on_frame
        self._framing = framing
        self._max_message = max_message
        self._memory = ByteBudget(MAX_SESSION_BYTES, process)
        self._open_until = now + HANDSHAKE_SECONDS if until is None else until
        self._keep_alive_at = 0.0
        self._farewell: CloseReason | None = None
        self._farewell_sent = False
        self._out: list[bytes] = []
        self._rest = bytearray()
        self._limit = MAX_BATCH_BYTES
        self._lanes: InboundLanes | None = None
        self._released = False
        "Whether this link no longer uses its lanes."
        self.session_left = False
        "Whether the peer's CLOSE was for the whole session, not for this link alone."
        self._low_latency = False
        self._compression = False
        if isinstance(handshake, Opener):
            self._answer(handshake.first())

    @property
    def agreement(self) -> Agreement | None:
        return self.handshake.agreement

    # ---- in

    def receive(self, data: bytes, now: float) -> None:
        """Handle bytes of the link: any part of a stream, or one datagram."""
        if self.ended:
            return
        self.last_received = now
        self.counters.received_bytes += len(data)
        if self.outbox is not None:
            self.outbox.answering = True
        try:
            if not self._framing:
                if len(data) > self._limit:
                    self._refuse_length(len(data))
                self._batch(data, 0, len(data), now)
            else:
                self._stream(data, now)
        except DecodeError as error:
            self._end(f"a batch does not decode: {error}", CloseReason.INVALID)
        except SessionEnded as error:
            self.end(error.reason)  # A lane's rule was broken, or the handler refused the peer.
            raise

    def _stream(self, data: bytes, now: float) -> None:
        self.pending = False
        pos = 0
        if self._rest:
            if self._has_whole_batch():
                data = bytes(self._rest) + data
                self._rest.clear()
            else:
                pos = self._complete(data)
                if not self._has_whole_batch():
                    return
                batch = bytes(self._rest)
                self._rest.clear()
                if not self._next_batch(batch, self._framing, len(batch), now):
                    self._rest += data[pos:]
                    return
        size = len(data)
        while True:
            prefix = self._framing
            start = pos + prefix
            if start > size:
                break
            length = int.from_bytes(data[pos:start], "little")
            if length > self._limit:
                self._refuse_length(length)
            if start + length > size:
                break
            pos = start + length
            if not self._next_batch(data, start, pos, now):
                break
        if pos < size and not self.ended:
            self._rest += data[pos:]

    def _next_batch(self, data: bytes, start: int, end: int, now: float) -> bool:
        """Handle one batch; return whether the next may be read now."""
        self._batch(data, start, end, now)
        self.pending = not self.ended and self.enough()
        return not (self.ended or self.pending)

    def _complete(self, data: bytes) -> int:
        """Add to an unfinished batch what is missing of it, and no more: all else need not be
        copied. Gives how much of `data` that was."""
        rest, prefix = self._rest, self._framing
        taken = max(0, prefix - len(rest))
        rest += data[:taken]
        if len(rest) < prefix:
            return len(data)
        length = int.from_bytes(rest[:prefix], "little")
        if length > self._limit:
            self._refuse_length(length)
        missing = prefix + length - len(rest)
        rest += data[taken : taken + missing]
        return taken + missing

    def _has_whole_batch(self) -> bool:
        rest, prefix = self._rest, self._framing
        if len(rest) < prefix:
            return False
        length = int.from_bytes(rest[:prefix], "little")
        if length > self._limit:
            self._refuse_length(length)
        return len(rest) >= prefix + length

    def _refuse_length(self, length: int) -> NoReturn:
        self._end(f"a batch of {length} bytes came, {self._limit} were agreed", CloseReason.INVALID)

    def _batch(self, data: bytes, pos: int, end: int, now: float) -> None:
        self.counters.received_batches += 1
        lanes = self._lanes
        if lanes is None:
            self._handshake_batch(data, pos, end, now)
            return
        if self._compression:
            data = uncompress(data[pos:end], limit=self._limit)
            pos, end = 0, len(data)
        start = pos
        try:
            while pos < end and not self.ended:
                header = data[pos]
                kind = header & ID_MASK
                if kind == frame.ID and not self._low_latency:
                    pos = lanes.on_frame(self._deliver, data, pos, end, header)
                elif kind >= FIRST_ID and self._low_latency:
                    self.counters.received_frames += 1
                    pos = self._deliver(WirePriority.DATA, True, data, pos, end)
                else:
                    pos = self._transport_message(data, pos, end, lanes)
        except DecodeError as error:
            error.offset -= start  # Relative to the batch, however the stream was cut.
            raise

    def _transport_message(self, data: bytes, pos: int, end: int, lanes: InboundLanes) -> int:
        r = ByteReader(data, pos, end)
        message = TRANSPORT.read(r)
        if self._low_latency and type(message) in NUMBERED:
            raise DecodeError(Reason.UNKNOWN_ID, "header", pos)
        if type(message) is fragment.Fragment:
            if self._farewell is None:
                lanes.on_fragment(self._deliver, message, pos)
        elif type(message) is Close:
            self.session_left = message.session
            self._finish()
            raise SessionClosed(
                f"the peer closed with reason {reason_text(message.reason)}",
                message.reason,
                by_peer=True,
            )
        elif type(message) is not KeepAlive:
            self.counters.ignored += 1
        return r.pos

    def _handshake_batch(self, data: bytes, pos: int, end: int, now: float) -> None:
        if pos == end:
            return
        try:
            r = ByteReader(data, pos, end)
            message = TRANSPORT.read(r)
            r.finish("batch")
        except DecodeError as error:
            error.offset -= pos
            raise
        try:
            answer = self.handshake.receive(message)
        except SessionRefused as refusal:
            self._refuse(refusal)
        if answer is not None:
            self._answer(answer)
        if self.handshake.agreement is not None:
            self._open(self.handshake.agreement, now)

    def _open(self, agreed: Agreement, now: float) -> None:
        lanes = len(PRIORITIES) if agreed.qos else 1
        self._low_latency = agreed.low_latency
        self._compression = agreed.compression
        stream = self._framing is Framing.STREAM
        self.outbox = Outbox(
            batch_size=agreed.batch_size,
            framing=self._framing,
            sn_mask=agreed.sn_mask,
            first_sns=[(agreed.initial_sn, agreed.initial_sn)] * lanes,
            qos=agreed.qos,
            low_latency=agreed.low_latency,
            compression=agreed.compression,
            max_message=self._max_message,
            counters=self.counters,
        )
        self._limit = agreed.batch_size - (Framing.STREAM if stream else 0)
        if agreed.low_latency and stream:
            self._framing = Framing.LOW_LATENCY
            self._limit = MAX_BATCH_BYTES
        self._lanes = InboundLanes(
            first_sns=[(agreed.peer_initial_sn, agreed.peer_initial_sn)] * lanes,
            mask=agreed.sn_mask,
            patch=agreed.patch,
            counters=self.counters,
            memory=self._memory,
            max_message=self._max_message,
            on_gap=self.on_gap,
        )
        self._keep_alive_at = now + agreed.lease / KEEP_ALIVES
        self._opened()

    def deliver_to(self, deliver: Deliver) -> None:
        """Have the messages of later FRAMEs delivered by `deliver`."""
        self._deliver = deliver

    def join(self, first: "Unicast") -> None:
        """Become a further link of the session of `first`: both number their lanes together."""
        assert self.outbox is not None
        assert first.outbox is not None
        assert first._lanes is not None
        self.outbox.share_sequences(first.outbox)
        first._lanes.links += 1
        self._lanes = first._lanes

    # ---- out

    def pull(self, now: float, full_only: bool = False) -> bytes | bytearray | memoryview | None:
        """Return the next framed batch for the link; None: nothing waits."""
        batch: bytes | bytearray | memoryview | None
        if self._out:
            self.counters.sent_batches += 1
            batch = self._out.pop(0)
        elif self.outbox is None:
            return None
        elif self.ended or self._farewell_sent:
            batch = self.outbox.pull_control()
        else:
            batch = self.outbox.pull(now, full_only)
            if batch is None and self._farewell is not None:
                self._farewell_sent = True
                self.outbox.push_control(Close(self._farewell))
                batch = self.outbox.pull_control()
        if batch is not None:
            self.last_sent = now
            self.counters.sent_bytes += len(batch)
        return batch

    def close(self, reason: CloseReason = CloseReason.GENERIC) -> None:
        """Queue a CLOSE behind everything that waits: the last batch that `pull` returns.

        The session reads on until the peer's CLOSE, but delivers nothing any more.
        """
        if self.ended or self._farewell is not None:
            return
        if self.outbox is not None:
            self._farewell = reason
            self._deliver = discard_frame
            self._release()
        else:
            self._send_close(reason)
            self._finish()

    def _answer(self, message: TransportMessage) -> None:
        batch = write_batch([message])
        self._out.append(to_stream([batch], Framing.STREAM) if self._framing else batch)

    def _send_close(self, reason: int) -> None:
        close = Close(reason)
        if self.outbox is not None:
            self.outbox.push_control(close)
        else:
            self._answer(close)

    # ---- time

    def deadline(self) -> float:
        """Return when `on_time` is due at the latest."""
        if self.ended or self._farewell is not None:
            return inf
        agreed = self.agreement
        if agreed is None or self.outbox is None:
            return self._open_until
        next_time = min(self.last_received + agreed.peer_lease, self._keep_alive_at)
        stalled = self.outbox.stalled_at  # Read once: the sending thread may set it to None.
        if stalled is not None:
            next_time = min(next_time, stalled + BLOCK_SECONDS)
        return next_time

    def has_expired(self, now: float) -> bool:
        """Whether the handshake or the peer's silence has taken too long, unless something of the
        peer waits to be read."""
        if self.ended or self._farewell is not None:
            return False
        agreed = self.agreement
        if agreed is None or self.outbox is None:
            return now >= self._open_until
        return now >= self.last_received + agreed.peer_lease

    def on_time(self, now: float) -> None:
        """Queue a KEEP_ALIVE if it is due. Raises when the peer's lease has expired.

        A session that is being closed has no deadline: its closer decides how long to wait.
        """
        if self.ended or self._farewell is not None:
            return
        agreed = self.agreement
        if agreed is None or self.outbox is None:
            if now >= self._open_until:
                self._refuse(SessionRefused("the handshake took too long", CloseReason.GENERIC))
            return
        if now >= self.last_received + agreed.peer_lease:
            self._end(f"nothing came for {agreed.peer_lease:g} s", CloseReason.EXPIRED)
        stalled = self.outbox.stalled_at
        if stalled is not None and now >= stalled + BLOCK_SECONDS:
            self._end(f"takes nothing for {BLOCK_SECONDS:g} s", CloseReason.UNRESPONSIVE)
        if now >= self._keep_alive_at:
            assert self._lanes is not None
            self._lanes.tick()
            interval = agreed.lease / KEEP_ALIVES
            self._keep_alive_at = self.last_sent + interval
            if now < self._keep_alive_at:
                return
            self._keep_alive_at = now + interval
            if not self.outbox.waiting:
                self.outbox.push_control(KeepAlive())

    # ---- the end

    def end(self, reason: int) -> None:
        """Queue a CLOSE instead of everything that waits."""
        if not self.ended:
            self._finish()  # First, so that a concurrent `pull` returns nothing after the CLOSE.
            if not self._farewell_sent:
                self._send_close(reason)

    def _refuse(self, refusal: SessionRefused) -> NoReturn:
        if not refusal.by_peer:
            self._send_close(refusal.reason)
        self._finish()
        raise refusal

    def _end(self, why: str, reason: CloseReason) -> NoReturn:
        self.end(reason)
        raise (SessionRefused if self.outbox is None else SessionClosed)(why, reason)

    def _finish(self) -> None:
        self.ended = True
        self._rest.clear()
        self._release()

    def _release(self) -> None:
        if self._lanes is not None and not self._released:
            self._released = True
            self._lanes.release()

    def sequences(self) -> dict[tuple[WirePriority, bool], SequenceIn]:
        """Return the sequence of every lane that was used, with its gaps and stale numbers."""
        return self._lanes.gaps() if self._lanes is not None else {}
