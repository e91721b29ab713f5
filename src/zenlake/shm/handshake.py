"""The handshake of shared memory: two nodes prove to each other that they map the same /dev/shm.

Each node has one small segment with a random challenge, which the other one reads and returns in
INIT and OPEN. Knows that segment, and the counters in it by which a sender sees what was received.
Rust: `io/zenoh-transport/src/unicast/establishment/ext/shm`.

    0       8           16        24               1,048                     12,288
    | count | challenge | version | protocols (256) | counters (2,810 words) |
"""

import ctypes
import threading
from collections import deque
from importlib import import_module
from itertools import count
from struct import Struct

from zenlake.errors import AuthError, DecodeError
from zenlake.shm import native
from zenlake.shm.headers import POSIX
from zenlake.shm.segment import Segment, ShmError
from zenlake.transport.auth import Entropy
from zenlake.wire.cursor import ByteReader, ByteWriter

VERSION = 2  # Of the segment: Zenoh 1.10; earlier ones have other layouts.
HEAD = Struct("<QQQ")
MAX_PROTOCOLS = 256
PROTOCOLS = Struct(f"<{MAX_PROTOCOLS}I")
COUNTERS_AT = HEAD.size + PROTOCOLS.size
COUNTERS = 2810
LARGEST_COUNT = 0x7FFF_FFFF  # A larger one has been counted down below zero.
SEGMENT_BYTES = COUNTERS_AT + 4 * COUNTERS
SEGMENT_BITS = 32
PRIORITIES = 8
NO_COUNTERS, COUNTERS_FOLLOW = 0, 1

assert SEGMENT_BYTES == 12_288


class Counter:
    """Number of messages of one priority that a receiver has not taken yet, in shared memory."""

    def __init__(self, identity: int, segment: Segment) -> None:
        self.identity = identity
        self.address = segment.address + COUNTERS_AT + 4 * identity
        self.over = False
        "Whether the session has ended: the rest will not be taken."
        self._numbers = count(1)
        self._cancels = count(1)
        self._segment = segment  # Kept: it is the memory of the word.
        self._word = ctypes.c_uint32.from_address(self.address)
        self._word.value = 0
        self._last = self._cancelled = 0

    def next(self) -> int:
        """Return the number of the next message that is sent."""
        self._last = number = next(self._numbers)
        return number - self._cancelled

    def cancel(self) -> None:
        """Count a message that was not sent after all."""
        native.load().add(self.address, -1)
        self._cancelled = next(self._cancels)

    def delivered(self, number: int) -> bool:
        """Whether the receiver has taken message `number`, or never will.

        Where several threads send, and messages are dropped, it may become true one message late.
        """
        return self.over or number <= self._last - self._cancelled - self._word.value

    def end(self, *, lost: bool) -> None:
        """End the count; `lost`: the receiver takes no further message."""
        self.over = True
        if lost:
            self._word.value = 0


class OwnSegment:
    """The segment by which other nodes recognise this one."""

    def __init__(self, entropy: Entropy) -> None:
        self.segment = Segment.create(SEGMENT_BYTES, SEGMENT_BITS)
        self.challenge = int.from_bytes(entropy(8), "little")
        HEAD.pack_into(self.segment.map, 0, 1, self.challenge, VERSION)
        PROTOCOLS.pack_into(self.segment.map, HEAD.size, POSIX, *(0,) * (MAX_PROTOCOLS - 1))
        self._free = deque(range(COUNTERS))
        self._lock = threading.Lock()

    def lease(self) -> tuple[Counter, ...] | None:
        """Return a counter for each priority; None: all are in use."""
        with self._lock:
            if len(self._free) < PRIORITIES:
                return None
            taken = [self._free.popleft() for _ in range(PRIORITIES)]
        return tuple(Counter(identity, self.segment) for identity in taken)

    @property
    def is_delivered(self) -> bool:
        """Whether all messages were taken by their receivers."""
        words = memoryview(self.segment.map)[COUNTERS_AT:SEGMENT_BYTES].cast("I")
        return not any(0 < word <= LARGEST_COUNT for word in words)

    def give_back(self, counters: tuple[Counter, ...], *, lost: bool) -> None:
        for counter in counters:
            counter.end(lost=lost)
        with self._lock:  # Behind all others: a message may still be on its way.
            self._free.extend(counter.identity for counter in counters)


class PeerSegment:
    """The segment of another node."""

    def __init__(self, number: int) -> None:
        self._segment = Segment.open(number, size=SEGMENT_BYTES)
        used, self.challenge, version = HEAD.unpack_from(self._segment.map)
        why = None
        if version != VERSION:
            why = f"is of version {version}, this is {VERSION}"
        elif used > MAX_PROTOCOLS:
            why = f"has {used} protocols, more than {MAX_PROTOCOLS}"
        if why is not None:
            self._segment.close()
            raise ShmError(f"shared memory segment {number}: {why}")
        protocols = PROTOCOLS.unpack_from(self._segment.map, HEAD.size)[:used]
        self.reads_posix = POSIX in protocols

    def counter(self, identity: int) -> int:
        """Return the address of a counter."""
        return self._segment.address + COUNTERS_AT + 4 * identity

    def close(self) -> None:
        self._segment.close()


class ShmSteps:
    """The steps of one handshake, of either side (see `transport/establishment.py`).

    An agreement needs all four messages. A node that cannot read the other's segment leaves its
    own part out, and the session goes without shared memory.
    """

    def __init__(self, own: OwnSegment, *, reliable: bool) -> None:
        self.agreed = False
        self.peer: PeerSegment | None = None
        self.sent: tuple[Counter, ...] = ()
        "Counters of what this node sends, by priority; empty on a link that may lose messages."
        self.received: tuple[int, ...] = ()
        "Addresses of the peer's counters of what this node receives, by priority, or empty."
        self.declined: str | None = None
        "Reason for not sharing memory, of this node or as seen from it; None: none is known."
        self._own = own
        self._reliable = reliable

    def init_syn(self) -> bytes:
        w = ByteWriter()
        w.zint("segment", self._own.segment.number)
        return bytes(w.out)

    def init_ack(self, init_syn: bytes | None) -> bytes | None:
        """Read the opener's challenge; return it with the number of the acceptor's segment."""
        if init_syn is None:
            self.declined = "the peer does not offer it"
            return None
        try:
            r = ByteReader(init_syn)
            self.peer = self._open_peer(r.zint("segment", 0xFFFF_FFFF))
        except (DecodeError, ShmError) as error:
            self.declined = str(error)
            return None
        w = ByteWriter()
        w.zint("challenge", self.peer.challenge)
        w.zint("segment", self._own.segment.number)
        return bytes(w.out)

    def _open_peer(self, number: int) -> PeerSegment:
        if number == self._own.segment.number:  # It would be told this node's own challenge.
            raise ShmError("the peer names this node's own segment")
        return PeerSegment(number)

    def open_syn(self, init_ack: bytes | None) -> bytes | None:
        """Check this node's challenge; return the acceptor's, and the counters."""
        if init_ack is None:
            self.declined = "the peer does not offer it, or cannot read this node's segment"
            return None
        try:
            r = ByteReader(init_ack)
            challenge, number = r.zint("challenge"), r.zint("segment", 0xFFFF_FFFF)
            if challenge != self._own.challenge:
                raise ShmError("the peer read another challenge: it has another /dev/shm")
            self.peer = self._open_peer(number)
        except (DecodeError, ShmError) as error:
            self.declined = str(error)
            return None
        w = ByteWriter()
        w.zint("challenge", self.peer.challenge)
        return self._write_counters(w)

    def open_ack(self, open_syn: bytes | None) -> bytes | None:
        """Take the opener's counters; return the acceptor's. AuthError: the peer believes in
        shared memory that is not common."""
        if open_syn is None or self.peer is None:
            self.declined = self.declined or "the peer cannot read this node's segment"
            return None
        try:
            r = ByteReader(open_syn)
            if r.zint("challenge") != self._own.challenge:
                raise AuthError("shared memory: the peer returned another challenge")
            self.received = self._read_counters(r)
        except DecodeError as error:
            raise AuthError(f"shared memory: OpenSyn: {error}") from None
        answer = self._write_counters(ByteWriter())
        self.agreed = answer is not None
        return answer

    def take_open_ack(self, open_ack: bytes | None) -> None:
        """Take the acceptor's counters."""
        if open_ack is None or self.peer is None or self.declined:
            self.declined = self.declined or "the peer declined at last"
            return
        try:
            self.received = self._read_counters(ByteReader(open_ack))
        except DecodeError as error:
            raise AuthError(f"shared memory: OpenAck: {error}") from None
        self.agreed = True

    def close(self, *, lost: bool) -> None:
        """Free what the handshake and the session used; `lost`: the peer reads no further message.

        May be called again.
        """
        if self.sent:
            self._own.give_back(self.sent, lost=lost)
            self.sent = ()
        if self.peer is not None:
            self.agreed, self.received = False, ()
            self.peer.close()
            self.peer = None

    def _write_counters(self, w: ByteWriter) -> bytes | None:
        if not self._reliable:
            # Without counters a Rust node takes a buffer back after 0.1 s: what reads it is loaded
            # before the first one comes.
            import_module("zenlake.shm.views")
            try:
                native.load()
            except native.NotCompiled as error:
                self.declined = str(error)
                return None
            w.u8("counters", NO_COUNTERS)
            return bytes(w.out)
        counters = self._own.lease()
        if counters is None:
            self.declined = f"{COUNTERS // PRIORITIES} sessions of this node have it already"
            return None
        self.sent = counters
        w.u8("counters", COUNTERS_FOLLOW)
        for counter in counters:
            w.zint("counter", counter.identity)
        return bytes(w.out)

    def _read_counters(self, r: ByteReader) -> tuple[int, ...]:
        assert self.peer is not None
        if r.u8("counters") == NO_COUNTERS:
            return ()
        peer = self.peer
        return tuple(peer.counter(r.zint("counter", COUNTERS - 1)) for _ in range(PRIORITIES))
