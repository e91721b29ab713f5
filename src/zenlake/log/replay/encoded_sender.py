"""The sender of encoded messages: puts many at a time, as a session's own.

Knows their keys, the sessions that want each key, and how to wait for room. Does not know where
the messages come from. Importing it loads NumPy and Numba.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zenlake.caching import BoundedCache
from zenlake.errors import InvalidKeyExpr, MessageTooLarge, SessionEnded, ZError
from zenlake.keyexpr import KeyExpr, validate
from zenlake.log.format import RELIABLE, Entries
from zenlake.runtime import kernel_loader
from zenlake.transport.drop_reason import DropReason
from zenlake.wire import push
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.enums import PRIORITIES, WireCongestionControl, WirePriority
from zenlake.wire.kernels import plain
from zenlake.wire.kernels.restamp import restamp_kernel
from zenlake.wire.network import NETWORK
from zenlake.wire.packed import PackedMessages
from zenlake.wire.push import Push
from zenlake.wire.push_run import STAMP_BYTES, KeyGrouper, PushRun, rewrite
from zenlake.wire.qos import BLOCK, PRIORITY_BITS, QoS
from zenlake.wire.scan import Rows, Scanner, read_only_array
from zenlake.wire.wireexpr import WireExpr, flags_of, write_wireexpr
from zenlake.wire.zenohid import write_zid

if TYPE_CHECKING:
    from zenlake.api.session_core import SessionCore
    from zenlake.columnar.read import KeySource
    from zenlake.runtime.transport_session import TransportSession as Transport

log = logging.getLogger("zenlake.api")

CHUNK_ROWS = 16_384  # Messages that are grouped by key at once.
MAX_ROUTES = 8192  # Upper bound on cached routes.
FRAME_BYTES = 32  # Bytes of a batch reserved for its headers.
MAX_PLAIN_KEYS = 1024  # Upper bound on the ids that the copying kernel knows.
PLAIN_BYTES = 512 << 10  # Bytes that one call of the copying kernel may produce.
PLAIN_MESSAGES = 65_536  # Messages that one call of the copying kernel may produce.
FEW = 64  # With shorter runs of one lane, grouping rows is faster than copying.
_RELIABLE = plain.RELIABLE_BIT  # Set in a lane's number beside its priority.
_LINK_SHIFT = 1  # Position of the link's number beside the mapping bit.

Numbers = npt.NDArray[Any]
Lanes = Numbers | int
"Lane of each message, or of all: its priority, and _RELIABLE."


class SendOutcome(NamedTuple):
    """Counts of the messages that were put."""

    samples: int = 0
    "Number of messages put."
    bytes: int = 0
    "Size of their payloads."
    heard: int = 0
    "Number of them that matched a subscriber."
    bad_keys: int = 0
    "Messages left out: the id in their key is undeclared, or the key is invalid."
    dropped: int = 0
    "Copies that were not sent: too large for a session, or the session had ended."

    def plus(self, other: "SendOutcome") -> "SendOutcome":
        return SendOutcome(*(a + b for a, b in zip(self, other, strict=True)))


class _ReplayRoute(NamedTuple):
    """Cached routing decision for one recorded key."""

    key: KeyExpr = KeyExpr.trusted("")
    local: tuple[Any, ...] = ()
    "Matching subscribers of the session itself."
    out: tuple[tuple[Any, WireExpr], ...] = ()
    "Faces of the sessions that want it, with the key as each knows it."
    wanted: bool = True
    "False if the messages are left out."
    bad: bool = False
    "Whether the key is undeclared or invalid."


_UNWANTED, _BAD = _ReplayRoute(wanted=False), _ReplayRoute(wanted=False, bad=True)


class _PlainKeyTable:
    """The ids that plain_kernel copies, valid for one version of the keys and of the routes."""

    def __init__(self, versions: tuple[int, int]) -> None:
        self.versions = versions
        self.port: Any = None
        "The face of the only session that wants any of the keys."
        self.fits = True
        "False once a key has a second session or a local subscriber: then rows are needed."
        self.codes = np.zeros(plain.NUMBERS, np.int32)  # Untouched pages take no memory.
        self.routes: list[_ReplayRoute] = []
        self.offsets = np.zeros(1, np.int64)
        self.keys = np.zeros(0, np.uint8)
        self.flags = np.zeros(0, np.int16)
        self.seen = np.zeros(0, np.int64)
        self.sizes = np.zeros(0, np.int64)

    def add(self, number: int, route: _ReplayRoute) -> None:
        """Add the route of the id `number`, or set `fits` to False if it is not a plain one."""
        ports = [port for port, _ in route.out]
        others = [port for port in ports if self.port not in (None, port)]
        if route.local or len(ports) > 1 or others or len(self.routes) >= MAX_PLAIN_KEYS:
            self.fits = False
            return
        w, flags = ByteWriter(), -1
        for port, wire in route.out:
            self.port = port
            write_wireexpr(w, wire)
            flags = flags_of(wire)
        self.routes.append(route)
        self.codes[number] = len(self.routes)
        self.keys = np.append(self.keys, np.frombuffer(w.out, np.uint8))
        self.offsets = np.append(self.offsets, len(self.keys))
        self.flags = np.append(self.flags, np.int16(flags))
        self.seen = np.append(self.seen, 0)
        self.sizes = np.append(self.sizes, 0)

    def take_counts(self) -> SendOutcome:
        """Return the counts of the messages copied since the last call, and reset them."""
        sizes = zip(self.routes, self.sizes.tolist(), strict=True)
        size = sum(size for route, size in sizes if route.wanted)
        found = _outcome(self.routes, self.seen.tolist(), size)
        self.seen[:] = self.sizes[:] = 0
        return found


class EncodedSender:
    """Sender of encoded PUSH messages; for one thread at a time.

    Waits where there is no room, whatever congestion control a message has: replaying a recording
    must not drop samples. `rename` maps a key to the key to use, or to None to leave its messages
    out. With `restamp` a message with a timestamp gets one of the session's clock instead.
    """

    def __init__(
        self,
        core: "SessionCore",
        *,
        rename: Callable[[str], str | None] | None = None,
        restamp: bool = False,
    ) -> None:
        kernel_loader.load()
        self._core = core
        self._exchange = core.exchange
        self._rename = rename
        self._scanner = Scanner(CHUNK_ROWS)
        self._second = Scanner(CHUNK_ROWS) if restamp else None
        "Scans messages whose timestamps were replaced."
        self._grouper = KeyGrouper(secrets.randbits(64), CHUNK_ROWS)
        self._here: kernel_loader.Kernels | None = None
        "Kernels for delivery to the session's own subscribers."
        self._routes = BoundedCache[bytes, _ReplayRoute](MAX_ROUTES)
        self._keep = np.full(CHUNK_ROWS, BLOCK, np.uint8)
        self._plain = _PlainKeyTable((-1, -1))
        self._copied = np.empty(PLAIN_BYTES, np.uint8)
        self._copied_ends = np.empty(PLAIN_MESSAGES, np.int64)
        self._used: set[Transport] = set()
        self._dropped = 0
        w = ByteWriter()
        write_zid(w, "zid", self._exchange.zid)
        self._clock = bytes(w.out)

    def put(self, data: memoryview, keys: "KeySource", batches: Entries) -> SendOutcome:
        """Put all messages of `data`, in order.

        `batches` are the entries that they were recorded with (format.BATCH_ENTRY): count, link
        and flags of each are used. Raise ZError if there is something other than as many PUSH
        messages, or the session is closed.
        """
        exchange = self._exchange
        if exchange.closed:
            raise ZError("session closed")
        if exchange.node.reactor.inside:
            raise RuntimeError("many messages at once may have to wait: not on the I/O thread")
        self._dropped = 0
        sent = SendOutcome()
        if not exchange.stamps:
            sent, data, batches = self._put_plain(data, keys, batches)
        if len(data) or batches["count"].any():
            sent = sent.plus(self._put_all(data, keys, batches))
        return sent._replace(dropped=self._dropped)

    def _put_all(self, data: memoryview, keys: "KeySource", batches: Entries) -> SendOutcome:
        """Put PUSH messages of any kind, by rows of the scan."""
        batch_of = np.repeat(batches, batches["count"])
        sent, done, end = SendOutcome(), 0, 0
        for rows, consumed, error in self._scanner.bare(data):
            start, done, end = done, done + len(rows), consumed
            if done > len(batch_of):
                break
            batch = batch_of[start:done]
            rows["mapping"] |= batch["link"] << _LINK_SHIFT
            sent = sent.plus(self._put_rows(data, rows, keys, batch["flags"] & RELIABLE))
            if error is not None:
                raise error
        if end != len(data) or done != len(batch_of):
            raise ZError(
                f"{done} of {len(batch_of)} messages and {end} of {len(data)} bytes were PUSH "
                "messages; what follows is something else"
            )
        return sent

    def flush(self) -> None:
        """Send all open batches now."""
        for session in self._used:
            session.flush()
        self._used.clear()

    def _put_rows(
        self, data: memoryview, rows: Rows, keys: "KeySource", reliable: Numbers
    ) -> SendOutcome:
        if self._second is not None and rows["clock"].any():
            mappings = rows["mapping"].copy()
            data, rows = self._restamp(data, rows, self._second)
            rows["mapping"] = mappings
        sent, at = SendOutcome(), 0
        while at < len(rows):
            run = self._grouper.run(data, 0, rows, at)
            if run.stop > at:
                lanes = _lanes(run, reliable[at : run.stop])
                sent = sent.plus(self._put_run(run, keys, lanes))
                at = run.stop
            elif rows[at]["kind"] == push.ID:
                sent = sent.plus(self._put_one(data, rows[at], keys, bool(reliable[at])))
                at += 1
            else:
                raise ZError(f"message {at} has the id {rows[at]['kind']:#x}: it is not a PUSH")
        return sent

    def _restamp(self, data: memoryview, rows: Rows, scanner: Scanner) -> tuple[memoryview, Rows]:
        """Return the messages with timestamps of this session, and their rows."""
        size = int(rows[-1]["end"]) - int(rows[0]["start"])
        out = np.empty(size + len(rows) * STAMP_BYTES, np.uint8)
        first = self._exchange.reserve_stamps(len(rows))
        clock = np.frombuffer(bytearray(self._clock), np.uint8)
        used = restamp_kernel(read_only_array(data), rows, np.uint64(first - 1), clock, out)
        assert used >= 0, "there is room for the longest timestamp in every message"
        view = out.data[:used]
        (found, *_) = scanner.bare(view)
        assert len(found.rows) == len(rows)
        return view, found.rows

    # ---- keys

    def _route(self, keys: "KeySource", number: int, suffix: bytes) -> _ReplayRoute:
        prefix = keys.prefix(number)
        if prefix is None:
            return _BAD
        if self._routes.version != self._exchange.version:
            self._routes.renew(self._exchange.version)
        text = prefix + suffix
        return self._routes.get(text) or self._find(text)

    def _find(self, text: bytes) -> _ReplayRoute:
        """Find the route of a key, and cache it."""
        route = _BAD
        try:
            key = text.decode()
            validate(key)
            renamed = key if self._rename is None else self._rename(key)
            route = _UNWANTED if renamed is None else self._way(KeyExpr(renamed))
        except (UnicodeDecodeError, InvalidKeyExpr) as error:
            log.warning("left out: %s", error)
        return self._routes.keep(text, route, len(text))

    def _way(self, key: KeyExpr) -> _ReplayRoute:
        local = self._core.subscribers.matching(key, local=True)
        return _ReplayRoute(key, local, self._exchange.outbound_faces(key))

    # ---- plain puts, copied by a kernel

    def _put_plain(
        self, data: memoryview, keys: "KeySource", batches: Entries
    ) -> tuple[SendOutcome, memoryview, Entries]:
        """Put the messages at the start that the kernel can copy to the one session that wants
        them. Return the counts, and the data and batches of the rest."""
        versions = (keys.version, self._exchange.version)
        if self._plain.versions != versions:
            self._plain = _PlainKeyTable(versions)
        known, ends = self._plain, self._copied_ends
        links, reliable = batches["link"].copy(), batches["flags"] & RELIABLE
        columns = (batches["count"].astype(np.int64), links, reliable)
        state = np.zeros(plain.STATE_SIZE, np.int64)
        state[plain.BATCH] = -1
        why = plain.FULL
        while known.fits and why not in (plain.ALL, plain.OTHER):
            if self._exchange.version != versions[1]:
                break
            why = plain.plain_kernel(
                read_only_array(data),
                *columns,
                known.codes,
                known.offsets,
                known.keys,
                known.flags,
                known.seen,
                known.sizes,
                self._copied,
                ends,
                state,
            )
            count, lane = int(state[plain.COUNT]), int(state[plain.LANE_OF])
            if count:
                self._send(known.port.session, self._copied.data, ends[:count], lane)
            if why == plain.UNKNOWN:
                number = int(state[plain.NUMBER])
                known.add(number, self._route(keys, number, b""))
            elif why == plain.LANE and count < FEW:
                break
        pos, batch, left = state[:3].tolist()
        rest = batches[max(batch, 0) :].copy()
        if batch >= 0:
            rest["count"][0] = left
        return known.take_counts(), data[pos:], rest

    # ---- runs of messages

    def _put_run(self, run: PushRun, keys: "KeySource", lanes: Lanes) -> SendOutcome:
        """Rewrite a run once per distinct set of keys, and send or deliver it."""
        routes = [self._route(keys, number, suffix) for number, suffix in run.keys]
        stamps = (0, b"")
        if self._exchange.stamps and run.stampless:
            stamps = (self._exchange.reserve_stamps(len(run)) - 1, self._clock)
        wires: dict[Any, list[WireExpr | None]] = {}
        for code, route in enumerate(routes):
            for port, wire in route.out:
                wires.setdefault(port, [None] * len(routes))[code] = wire
        written: dict[tuple[WireExpr | None, ...], tuple[memoryview, Numbers, Lanes]] = {}
        for port, of_port in wires.items():
            name = tuple(of_port)
            if name not in written:
                written[name] = (
                    *rewrite(run, of_port, *stamps),
                    _select_lanes(run, of_port, lanes),
                )
            self._send(port.session, *written[name])
        here = [WireExpr(0, route.key) if route.local else None for route in routes]
        if any(here):
            self._put_here(*rewrite(run, here, *stamps), _select_lanes(run, here, lanes))
        return _summary(run, routes)

    def _send(self, session: "Transport", data: memoryview, ends: Numbers, lanes: Lanes) -> None:
        self._used.add(session)
        for first, stop, lane in _lane_ranges(lanes, len(ends)):
            try:
                self._send_lane(session, data, ends, first, stop, lane)
            except SessionEnded:
                self._count_dropped(DropReason.SESSION_CLOSED, len(ends) - first)
                return

    def _send_lane(
        self, session: "Transport", data: memoryview, ends: Numbers, at: int, stop: int, lane: int
    ) -> None:
        """Send the messages [at, stop): small ones by the batch, larger ones in fragments."""
        qos = QoS(PRIORITIES[lane & PRIORITY_BITS], WireCongestionControl.BLOCK)
        reliable = bool(lane & _RELIABLE)
        most = session.agreement.batch_size - FRAME_BYTES
        for cut in (*_too_large(ends, at, stop, most), stop):
            if cut > at:
                self._send_small(session, data, ends, at, cut, qos, reliable)
            if cut < stop:
                self._send_one(session, data[_start(ends, cut) : ends[cut]], qos, reliable)
            at = cut + 1

    def _send_small(
        self,
        session: "Transport",
        data: memoryview,
        ends: Numbers,
        at: int,
        stop: int,
        qos: QoS,
        reliable: bool,
    ) -> None:
        place = session.emit_lane(qos.priority, reliable)
        if place is not None:
            packed = PackedMessages(data, ends, at, stop, place)
            session.send_batches(packed, qos.priority, reliable)
            return
        most = session.agreement.batch_size - FRAME_BYTES
        while at < stop:
            start = _start(ends, at)
            if not session.has_room(qos):
                self._send_one(session, data[start : ends[at]], qos, reliable)  # It waits for room.
                at += 1
                continue
            upto = at + int(np.searchsorted(ends[at:stop], start + most, "right"))
            part = data[start : ends[upto - 1]]
            self._dropped += session.send_run(
                part, ends[at:upto] - start, self._keep, reliable, qos.priority
            )
            at = upto

    def _send_one(self, session: "Transport", data: memoryview, qos: QoS, reliable: bool) -> None:
        try:
            session.send_encoded(bytes(data), qos, reliable)  # May wait for room.
        except MessageTooLarge as error:
            self._count_dropped(DropReason.MESSAGE_TOO_LARGE, 1)
            log.warning("%s: %s", session, error)

    def _count_dropped(self, reason: DropReason, count: int) -> None:
        self._exchange.dropped[reason] += count
        self._dropped += count

    def _put_here(self, data: memoryview, ends: Numbers, lanes: Lanes) -> None:
        """Deliver to the session's own subscribers; wait where there is no room."""
        self._here = self._here or kernel_loader.make()
        for first, stop, reliable in _lane_ranges(lanes & _RELIABLE, len(ends)):
            part = bytes(data[int(ends[first - 1]) if first else 0 : int(ends[stop - 1])])
            for sink in self._exchange.delivery.deliver_encoded(
                part,
                partial(self._core.subscribers.matching, local=True),
                self._here,
                reliable=bool(reliable),
            ):
                sink.wait_room()  # type: ignore[attr-defined]

    # ---- single messages

    def _put_one(
        self, data: memoryview, row: Any, keys: "KeySource", reliable: bool
    ) -> SendOutcome:
        """Put a message with a timestamp stack, through the object codec.

        The stack is sent unchanged: it describes the path of the message when it was recorded.
        """
        message = NETWORK.read(ByteReader(bytes(data), int(row["start"]), int(row["end"])))
        assert isinstance(message, Push)
        number = int(row["mapping"]) << 16 | int(row["scope"])
        route = self._route(keys, number, message.key.suffix.encode())
        if not route.wanted:
            return SendOutcome(bad_keys=int(route.bad))
        lane = message.qos & PRIORITY_BITS | (_RELIABLE if reliable else 0)
        if self._exchange.stamps and message.body.timestamp is None:
            message.body.timestamp = self._exchange.stamp()
        for port, wire in route.out:
            message.key = wire
            w = ByteWriter()
            NETWORK.write(w, message)
            ends = np.array([len(w.out)], np.int64)
            self._send(port.session, memoryview(w.out), ends, lane)
        if route.local:
            message.key = WireExpr()
            self._core.deliver_local(route.local, route.key, message)
        return SendOutcome(1, int(row["payload_len"]), int(bool(route.out or route.local)))


def _lanes(run: PushRun, reliable: Numbers) -> Lanes:
    if run.plain and reliable.all():
        return WirePriority.DATA | _RELIABLE
    lanes: Numbers = run.rows["qos"][run.first : run.stop] & PRIORITY_BITS
    lanes |= reliable * np.uint8(_RELIABLE)
    return lanes


def _select_lanes(run: PushRun, keys: Sequence[WireExpr | None], lanes: Lanes) -> Lanes:
    """Return the lanes of the messages whose key is not None."""
    if isinstance(lanes, int) or None not in keys:
        return lanes
    chosen: Numbers = lanes[run.select_rows([key is not None for key in keys])]
    return chosen


def _lane_ranges(lanes: Lanes, count: int) -> list[tuple[int, int, int]]:
    """Split into contiguous [first, stop) ranges of equal lane; returns (first, stop, lane)."""
    if isinstance(lanes, int) or not count:
        return [(0, count, int(lanes))] if count else []
    cuts = (np.flatnonzero(lanes[1:] != lanes[:-1]) + 1).tolist()
    firsts = [0, *cuts]
    return list(zip(firsts, [*cuts, count], lanes[firsts].tolist(), strict=True))


def _start(ends: Numbers, at: int) -> int:
    return int(ends[at - 1]) if at else 0


def _too_large(ends: Numbers, at: int, stop: int, most: int) -> list[int]:
    """Return which of the messages [at, stop) have more than `most` bytes."""
    start = _start(ends, at)
    if int(ends[stop - 1]) - start <= most:
        return []
    first = [at] if int(ends[at]) - start > most else []
    sizes = ends[at + 1 : stop] - ends[at : stop - 1]
    if not len(sizes) or int(sizes.max()) <= most:
        return first
    others: list[int] = (np.flatnonzero(sizes > most) + at + 1).tolist()
    return first + others


def _summary(run: PushRun, routes: Sequence[_ReplayRoute]) -> SendOutcome:
    starts, ends = run.starts, run.ends
    if not all(route.wanted for route in routes):
        rows = run.select_rows([route.wanted for route in routes])
        starts, ends = starts[rows], ends[rows]
    counts = [len(run)] if len(routes) == 1 else np.bincount(run.codes).tolist()
    return _outcome(routes, counts, int(ends.sum()) - int(starts.sum()))


def _outcome(routes: Sequence[_ReplayRoute], counts: Sequence[int], size: int) -> SendOutcome:
    """Return the counts of messages that take `routes`, with `size` bytes of payloads."""
    by_route = list(zip(counts, routes, strict=True))
    return SendOutcome(
        sum(count for count, route in by_route if route.wanted),
        size,
        sum(count for count, route in by_route if route.out or route.local),
        sum(count for count, route in by_route if route.bad),
    )
