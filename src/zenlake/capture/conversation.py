"""The Zenoh session in a captured stream: handshake, batches, fragments, recovery after gaps.

Knows the framing of batches and when it changes, for both sides of one stream. Does not know keys
or columns: every row of the scan goes to a sink, in the order of its side.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from zenlake.capture.batch_framing import (
    COMPRESSED,
    LOW_LATENCY,
    PLAIN,
    REPEATED_CLOSE_BYTES,
    BatchFraming,
    first_message,
    is_repeated_close,
    is_session_start,
    possible_forms,
)
from zenlake.capture.kernels import packets as kernel
from zenlake.capture.packets import Packets
from zenlake.capture.reassembly import NOTHING, Reassembly
from zenlake.capture.report import Report
from zenlake.capture.side_fragments import JoinedMessage, SideFragments
from zenlake.errors import DecodeError, Reason
from zenlake.transport.fragments import MAX_MESSAGE_BYTES, ByteBudget
from zenlake.wire import close, fragment, hello, init, join, scout
from zenlake.wire import open as open_
from zenlake.wire.batch import ScoutingMessage, read_scouting, walk
from zenlake.wire.cursor import ByteReader
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.framing import FLAG_COMPRESSED, Framing, to_stream, uncompress
from zenlake.wire.hello import WireHello
from zenlake.wire.init import Init
from zenlake.wire.join import Join
from zenlake.wire.kernels.row import LANE_RELIABLE, ROW
from zenlake.wire.open import Open
from zenlake.wire.scan import Rows, Scanner
from zenlake.wire.scout import WireScout
from zenlake.wire.zenohid import WireZenohId

if TYPE_CHECKING:
    from zenlake.capture.rows import RowCollector

MAX_FRAGMENT_BYTES = 256 << 20  # Bytes of unfinished messages, of all streams together.
MAX_RESYNC_BYTES = 256 << 10  # Bytes kept of a side while its next batch is searched for.
PLAIN_BYTES = 4 << 20  # Bytes uncompressed at once.
SCAN_ROWS = 16_384
ENDS = 16_384  # Batches split at once.
MAX_HANDSHAKE_BYTES = 16 << 10  # Bytes of the longest handshake message accepted.
PEEK_PIECES = 256  # Packets of a side that are searched for its INIT.

SCOUT_KIND, HELLO_KIND = 8, 9  # Kinds in rows: their own ids are those of INIT and OPEN.
NO_LANE = 0x80  # Bit of a row's lane: the message stood outside a FRAME.
IN_WORDS = 0x80  # Bit of a row's flags: only the object codec reads the message.

_SPECIAL = np.zeros(256, np.bool_)
_SPECIAL[[fragment.ID, init.ID, join.ID]] = True
_SCOUTING_KINDS = {WireScout: SCOUT_KIND, WireHello: HELLO_KIND}

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Ends = tuple[tuple[str, int], tuple[str, int]]
"Address and port of both sides."


class Decoder:
    """State that all streams of one reading share."""

    def __init__(self, data: Bytes, sink: "RowCollector", report: Report) -> None:
        self.data = data
        self.sink = sink
        self.report = report
        self.memory = ByteBudget(MAX_FRAGMENT_BYTES)
        self.scanner = Scanner(SCAN_ROWS)
        self.single = Scanner(2)
        "Scanner for one message, while the other is in use."
        self.ends = np.zeros(ENDS, np.int64)


class StreamSide:
    """One side of a stream, and the reader of what it sent."""

    def __init__(self, decoder: Decoder, conversation: "Conversation", number: int) -> None:
        self.conversation = conversation
        self.number = number
        self.code = 2 * conversation.number + number
        "Unique number of the side; the other side's differs in the last bit."
        self.end: tuple[str, int] = conversation.ends[number]
        self.zid: WireZenohId | None = None
        self.init: Init | None = None
        self._decoder = decoder
        self._report = decoder.report
        self.reassembly = Reassembly(decoder.report)
        self._pending = NOTHING
        "Pieces of a batch that is not complete yet."
        self._latest = NOTHING
        "Packet with the highest number that was read from."
        self._form: BatchFraming | None = None
        "Framing of the next batch; None while it has to be found."
        self._handshake = True
        self._skip = 0
        "Bytes left of a batch that has a gap."
        self._fragments = SideFragments(
            decoder.memory,
            lambda reason: decoder.report.count(reason.description),
            MAX_MESSAGE_BYTES,
        )

    @property
    def other(self) -> "StreamSide":
        return self.conversation.sides[1 - self.number]

    # ---- from packets to contiguous bytes

    def regions(self, packets: Packets) -> list[tuple[int, Packets]]:
        if self.conversation.is_tcp:
            return list(self.reassembly.add(packets))
        return [(0, packets)]

    def peek(self, regions: list[tuple[int, Packets]]) -> None:
        """Learn this side's offer before the other side's next batches are read."""
        if self.init is None and self._handshake and regions:
            pieces = np.concatenate([self._pending, regions[0][1]])
            if len(pieces):
                buf, _ = self._join(pieces[:PEEK_PIECES])
                length = int.from_bytes(buf[:2].tobytes(), "little")
                self.learn(first_message(buf[2 : 2 + length].tobytes()))

    def read(self, gap: int, pieces: Packets) -> Iterator[None]:
        """Read up to the first incomplete batch; yield where the sink may be emptied."""
        if gap:
            self._skip_gap(gap)
        if self._skip:
            skipped = min(self._skip, int(pieces["size"].sum()))
            pieces = _after(pieces, skipped)
            self._skip -= skipped
            self._undecodable(skipped)
        if not len(pieces):
            return
        pending = np.concatenate([self._pending, pieces]) if len(self._pending) else pieces
        buf, ends = self._join(pending)
        locator = _PacketLocator(pending, ends, self._latest)
        if not len(self._latest) or pieces["number"].max() > self._latest["number"][0]:
            newest = int(pieces["number"].argmax())
            self._latest = pieces[newest : newest + 1].copy()
        pos = 0
        while True:
            form = self._form
            before = pos, form, self._handshake
            if self._handshake:
                pos = self._read_handshake(buf, pos, locator)
            elif form is None:
                pos = self._find_batch(buf, pos, ends)
            else:
                pos = yield from self._read_batches(buf, pos, locator, form)
            if before == (pos, self._form, self._handshake):
                break
        if self.conversation.is_tcp:
            self._pending = _after(pending, pos).copy()
        else:
            self._undecodable(len(buf) - pos)

    def finish(self) -> Iterator[None]:
        """End the stream: the bytes left are not a whole batch."""
        size = int(self._pending["size"].sum())
        if size == REPEATED_CLOSE_BYTES and self._form == LOW_LATENCY[True]:
            buf, ends = self._join(self._pending)
            if is_repeated_close(buf.tobytes()):
                locator = _PacketLocator(self._pending, ends, self._latest)
                yield from self._read_batches(buf, 0, locator, PLAIN)
                size = 0
        self._report.count("bytes of batches that the capture does not have whole", size)
        self._pending = NOTHING
        self._fragments.finish()

    def _join(self, pieces: Packets) -> tuple[Bytes, Numbers]:
        """Return the pieces' bytes, with a length before datagrams, and where each piece ends."""
        sizes = pieces["size"].astype(np.int64)
        prefix = np.full(len(pieces), -1, np.int32)
        if not self.conversation.is_tcp:
            starts = np.flatnonzero(pieces["offset"] == 0)
            if len(starts):
                prefix[starts] = np.add.reduceat(sizes, starts)
        ends = np.cumsum(sizes + 2 * (prefix >= 0))
        out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        kernel.join_pieces(self._decoder.data, pieces["at"], pieces["size"], prefix, out)
        return out, ends

    def _skip_gap(self, gap: int) -> None:
        """Note missing bytes; if all belong to one batch, the next one's position is known."""
        self._report.count("bytes missing in streams", gap)
        had = int(self._pending["size"].sum())
        self._undecodable(had)
        ahead = self._skip
        if not ahead and had and self._form is not None:
            framing = self._form.framing
            buf, _ = self._join(self._pending)
            if had >= framing:
                ahead = int.from_bytes(buf[:framing].tobytes(), "little") + framing - had
        self._pending = NOTHING
        self._skip = max(0, ahead - gap)
        if ahead < gap:
            self._form = None
        self._handshake = False
        self._fragments.break_off()

    def _undecodable(self, size: int) -> None:
        self._report.count("bytes that could not be decoded", size)

    # ---- the handshake, and finding the next batch without one

    def _read_handshake(self, buf: Bytes, pos: int, locator: "_PacketLocator") -> int:
        """Read a batch of the handshake; end the handshake if it is none."""
        length = int.from_bytes(buf[pos : pos + 2].tobytes(), "little")
        end = pos + 2 + length
        kind = int(buf[pos + 2]) & ID_MASK if length and pos + 2 < len(buf) else None
        if kind not in (None, init.ID, open_.ID, close.ID):
            self._after_handshake()
            return pos
        if end > len(buf):
            # INIT fits a packet; without the SYN this may be a piece of any batch.
            if length > MAX_HANDSHAKE_BYTES or not self.reassembly.from_start:
                self._after_handshake()
            return pos
        message = first_message(buf[pos + 2 : end].tobytes())
        if length and message is None:
            self._after_handshake()
            return pos
        self.learn(message)
        for _ in self._scan(
            buf[pos:end], np.array([end - pos]), *locator.of(np.array([end])), PLAIN
        ):
            pass
        if isinstance(message, Open):
            self._after_handshake()
        return end

    def learn(self, message: object) -> None:
        if isinstance(message, Init | Join | WireScout | WireHello) and message.zid is not None:
            self.zid = message.zid
        if isinstance(message, Init):
            self.init = message
            opener = self.number if not message.ack else 1 - self.number
            self.conversation.opener = opener

    def _after_handshake(self) -> None:
        self._handshake = False
        forms = self.conversation.forms()
        self._form = forms[0] if len(forms) == 1 else None

    def _find_batch(self, buf: Bytes, pos: int, ends: Numbers) -> int:
        """Return the first packet from `pos` on that starts with a batch, in any framing."""
        starts = np.unique(np.append(ends[(ends > pos) & (ends < len(buf))], pos))
        for start in starts.tolist():
            for form in self.conversation.forms():
                if self._is_batch(buf, start, form):
                    self._undecodable(start - pos)
                    self._form = form
                    return int(start)
        if not self.conversation.is_tcp:
            return pos
        keep = len(buf) - MAX_RESYNC_BYTES
        kept = starts[starts >= keep]
        after = int(kept[0]) if len(kept) else len(buf)
        self._undecodable(after - pos)
        return after

    def _is_batch(self, buf: Bytes, pos: int, form: BatchFraming) -> bool:
        """Return whether a whole batch stands here, followed by nothing but another."""
        start = pos + form.framing
        length = int.from_bytes(buf[pos:start].tobytes(), "little")
        end = start + length
        if not 0 < length <= form.limit or end > len(buf):
            return False
        if end + form.framing < len(buf):
            following = int.from_bytes(buf[end : end + form.framing].tobytes(), "little")
            after = int(buf[end + form.framing])
            if following > form.limit:
                return False
            if following and not (
                after <= FLAG_COMPRESSED if form.compression else form.may_start(after)
            ):
                return False
        return form.reads(buf[start:end].tobytes())

    # ---- batches

    def _read_batches(
        self, buf: Bytes, pos: int, locator: "_PacketLocator", form: BatchFraming
    ) -> Generator[None, None, int]:
        """Read whole batches from `pos` on; return where the last one ends."""
        ends = self._decoder.ends
        while True:
            count, after, too_long = kernel.split_batches(
                buf, pos, int(form.framing), form.limit, ends
            )
            if count:
                found = ends[:count].copy()
                numbers, times = locator.of(found)
                found -= pos
                read = self._scan_compressed if form.compression else self._scan
                yield from read(buf[pos:after], found, numbers, times, form)
            pos = after
            if too_long:
                self._form = None
                self._fragments.break_off()
                return pos
            if count < len(ends):
                return pos

    def _scan_compressed(
        self, data: Bytes, ends: Numbers, numbers: Numbers, times: Numbers, form: BatchFraming
    ) -> Iterator[None]:
        plain: list[bytes] = []
        size = first = start = 0
        for i, end in enumerate(ends.tolist()):
            batch = data[start + 2 : end].tobytes()
            start = end
            try:
                plain.append(uncompress(batch))
            except DecodeError:
                self._undecodable(len(batch))
                plain.append(b"")
            size += len(plain[-1])
            if size >= PLAIN_BYTES or i + 1 == len(ends):
                stream = np.frombuffer(to_stream(plain, Framing.STREAM), np.uint8)
                new_ends = np.cumsum([len(batch) + 2 for batch in plain])
                span = slice(first, i + 1)
                yield from self._scan(stream, new_ends, numbers[span], times[span], PLAIN)
                plain, size, first = [], 0, i + 1

    def _scan(
        self, data: Bytes, ends: Numbers, numbers: Numbers, times: Numbers, form: BatchFraming
    ) -> Iterator[None]:
        """Scan whole batches; leave a bad one at its first bad message."""
        batch, span = 0, len(ends)
        while batch < len(ends):
            start = int(ends[batch - 1]) if batch else 0
            last = min(batch + span, len(ends))
            part = data[start : int(ends[last - 1])]
            for scan in self._decoder.scanner.chunks(
                part,  # type: ignore[arg-type]
                form.framing,
                low_latency=form.low_latency,
                limit=form.limit,
            ):
                if len(scan.rows):
                    rows = scan.rows.view(np.uint64).copy().view(ROW)  # a copy of plain words
                    if form.low_latency:
                        rows["lane"] = NO_LANE
                    where = rows["batch"] + batch
                    self._take(rows, part, numbers[where], times[where])
                    yield
            if scan.error is None:
                batch, span = last, 2 * span
            else:  # read the rest in small steps: each error copies the bytes it was found in
                bad = int(np.searchsorted(ends[:-1], start + scan.consumed, "right"))
                at = (int(ends[bad - 1]) if bad else 0) - start + form.framing
                whole = part[: int(ends[bad]) - start]
                one = slice(bad, bad + 1)
                if scan.error.reason is Reason.SHARED_MEMORY:
                    self._in_words(whole, at, scan.consumed, numbers[one], times[one], form)
                else:
                    self._bad_batch(len(whole) - scan.consumed)
                yield
                batch, span = bad + 1, 1

    def _bad_batch(self, size: int) -> None:
        self._report.count("batches with bad bytes")
        self._undecodable(size)

    def _in_words(
        self, data: Bytes, at: int, first: int, number: Numbers, time: Numbers, form: BatchFraming
    ) -> None:
        """Read a batch with payloads in shared memory by the object codec, from `first` on.

        The scan does not read such messages: their rows have only a kind and a position.
        """
        found: list[tuple[int, int, int, int]] = []
        try:
            for located in walk(
                ByteReader(data.tobytes(), at, shm=True), low_latency=form.low_latency
            ):
                holder = located.frame
                lane, sn = NO_LANE, 0
                if holder is not None:
                    lane = holder.priority | (LANE_RELIABLE if holder.reliable else 0)
                    sn = holder.sn
                if located.start >= first and not isinstance(located.message, Frame):
                    found.append((located.start, located.end, lane, sn))
        except DecodeError:
            self._bad_batch(len(data) - (found[-1][1] if found else first))
        rows = np.zeros(len(found), ROW)
        if found:
            rows["start"], rows["end"], rows["lane"], rows["sn"] = np.array(found).T
            rows["kind"] = data[rows["start"]] & ID_MASK
            rows["flags"] = IN_WORDS
            self._decoder.sink.add(
                self, rows, data, np.repeat(number, len(rows)), np.repeat(time, len(rows))
            )

    def _take(self, rows: Rows, data: Bytes, numbers: Numbers, times: Numbers) -> None:
        """Hand rows to the sink; a joined message follows its last FRAGMENT."""
        add, done = self._decoder.sink.add, 0
        for i in np.flatnonzero(_SPECIAL[rows["kind"]]).tolist():
            row = rows[i]
            message = first_message(data[int(row["start"]) : int(row["end"])].tobytes())
            if not isinstance(message, Fragment):
                self.learn(message)
                continue
            joined = self._fragments.add(message)
            whole = None if joined is None else self._scan_joined(joined, int(row["lane"]))
            if joined is not None and whole is not None:
                upto, one = slice(done, i + 1), slice(i, i + 1)
                add(self, rows[upto], data, numbers[upto], times[upto])
                bare = np.frombuffer(joined.data, np.uint8)
                add(self, whole, bare, numbers[one], times[one], joined.pieces)
                done = i + 1
        if done < len(rows):
            add(self, rows[done:], data, numbers[done:], times[done:])

    def _scan_joined(self, joined: JoinedMessage, lane: int) -> Rows | None:
        """Return the row of a joined message; None if it does not decode."""
        scan = next(self._decoder.single.bare(joined.data))
        if scan.error is not None or len(scan.rows) != 1 or scan.consumed != len(joined.data):
            self._report.count("joined messages that could not be decoded")
            return None
        rows = scan.rows.copy()
        rows["lane"], rows["sn"] = lane, joined.sn
        return rows


class Conversation:
    """Both sides of a stream, and what they agreed on."""

    def __init__(self, decoder: Decoder, number: int, protocol: str, ends: Ends) -> None:
        self.number = number
        self.protocol = protocol
        self.ends = ends
        self.is_tcp = protocol == "tcp"
        self.opener: int | None = None
        self._decoder = decoder
        self._session = False
        "Datagrams only: an INIT was seen, so that ids mean transport messages."
        self.sides = (StreamSide(decoder, self, 0), StreamSide(decoder, self, 1))

    def forms(self) -> tuple[BatchFraming, ...]:
        """Return the framings that a batch after the handshake may have."""
        inits = [side.init for side in self.sides if side.init is not None]
        if not inits and self.protocol == "multicast":
            return PLAIN, COMPRESSED
        return possible_forms(inits, is_stream=self.is_tcp)

    def read(self, packets: tuple[Packets, Packets]) -> Iterator[None]:
        """Read the packets of each side in one window of the file."""
        if not self.is_tcp:
            packets = (
                self._without_scouting(self.sides[0], packets[0]),
                self._without_scouting(self.sides[1], packets[1]),
            )
        regions = [side.regions(some) for side, some in zip(self.sides, packets, strict=True)]
        yield from self._read(regions)

    def finish(self) -> Iterator[None]:
        yield from self._read([list(side.reassembly.finish()) for side in self.sides])
        for side in self.sides:
            yield from side.finish()

    def _read(self, regions: list[list[tuple[int, Packets]]]) -> Iterator[None]:
        for side, some in zip(self.sides, regions, strict=True):
            side.peek(some)
        for side, some in zip(self.sides, regions, strict=True):
            for gap, pieces in some:
                yield from side.read(gap, pieces)

    def _without_scouting(self, side: StreamSide, packets: Packets) -> Packets:
        """Take scouting messages out of the packets.

        SCOUT and HELLO share the ids of INIT and OPEN: a group has no handshake, and HELLO is sent
        where there was none.
        """
        if not len(packets):
            return packets
        cut = packets["cut"] > 0
        report, data = self._decoder.report, self._decoder.data
        report.count("bytes that could not be decoded", int(packets["size"][cut].sum()))
        packets = packets[~cut & (packets["size"] > 0)]
        heads = data[packets["at"]] & ID_MASK
        keep = np.ones(len(packets), np.bool_)
        alone = (packets["offset"] == 0) & (packets["more"] == 0)
        for i in np.flatnonzero(alone & ((heads == scout.ID) | (heads == hello.ID))).tolist():
            packet = packets[i]
            raw = data[int(packet["at"]) : int(packet["at"]) + int(packet["size"])]
            message = self._scouting(raw.tobytes())
            if message is not None:
                keep[i] = False
                side.learn(message)
                rows = np.zeros(1, ROW)
                rows["kind"], rows["end"] = _SCOUTING_KINDS[type(message)], len(raw)
                times = packets["time"][i : i + 1].copy()
                self._decoder.sink.add(side, rows, raw, packets["number"][i : i + 1].copy(), times)
        return packets[keep]

    def _scouting(self, datagram: bytes) -> ScoutingMessage | None:
        self._session = self._session or (self.protocol == "udp" and is_session_start(datagram))
        if self._session:
            return None
        try:
            return read_scouting(datagram)
        except DecodeError:
            return None


class _PacketLocator:
    """Finder of the packet that completed a message: the last to arrive of all up to its end."""

    def __init__(self, pieces: Packets, ends: Numbers, before: Packets) -> None:
        numbers = np.concatenate([before["number"], pieces["number"]])
        latest = np.arange(len(numbers))
        if (numbers[1:] < numbers[:-1]).any():
            newest = numbers >= np.maximum.accumulate(numbers)
            latest = np.maximum.accumulate(np.where(newest, latest, 0))
        latest = latest[len(before) :]
        self._numbers = numbers[latest]
        self._times = np.concatenate([before["time"], pieces["time"]])[latest]
        self._ends = ends

    def of(self, ends: Numbers) -> tuple[Numbers, Numbers]:
        """Return number and time of the packets that completed messages with these ends."""
        which = np.searchsorted(self._ends, ends)
        return self._numbers[which], self._times[which]


def _after(pieces: Packets, size: int) -> Packets:
    """Return the pieces without their first `size` bytes."""
    ends = np.cumsum(pieces["size"], dtype=np.int64)
    first = int(np.searchsorted(ends, size, "right"))
    rest = pieces[first:]
    if len(rest):
        done = size - (int(ends[first - 1]) if first else 0)
        if done:
            rest = rest.copy()
            rest["at"][0] += done
            rest["size"][0] -= done
    return rest
