"""Columns of samples to framed batches of PUSH or RESPONSE messages: the scan in reverse.

Knows one lane and its sequence numbers. Does not know sockets, queues or which key ids were
declared (the tables in PushColumns say what to write). The compiled part is kernels/emit.py;
importing this module loads NumPy and Numba.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zenlake.errors import EncodeError
from zenlake.wire import push, reply, response
from zenlake.wire.cursor import U32, ByteWriter, encode
from zenlake.wire.encoding import WireEncoding, write_encoding
from zenlake.wire.enums import WirePriority
from zenlake.wire.fragment import Fragment, write_fragment
from zenlake.wire.frame import LaneSettings, header_parts
from zenlake.wire.framing import Framing, to_stream
from zenlake.wire.kernels import emit as kernel
from zenlake.wire.kernels.emit import EncodedTable, Envelope, PushColumns
from zenlake.wire.response import Response
from zenlake.wire.wireexpr import WireExpr, flags_of, write_wireexpr
from zenlake.wire.zenohid import WireZenohId, write_packed, write_zid

CHUNK_BYTES = 1 << 20
MAX_OVERHEAD = 1 << 17  # Upper bound of a message's bytes beside payload, attachment, envelope.


class EmittedBatches(NamedTuple):
    """Bytes to send, and where to go on."""

    data: memoryview
    "Whole batches, framed as on a stream; without a lane, messages alone."
    rows: int
    "How many rows they hold; a row that does not fit a batch is sent as fragments."
    next_sn: int


def table(entries: list[bytes]) -> EncodedTable:
    """Return encoded entries as the kernel takes them."""
    offsets = np.zeros(len(entries) + 1, np.int64)
    np.cumsum([len(entry) for entry in entries], out=offsets[1:])
    return EncodedTable(offsets, np.frombuffer(bytearray().join(entries), np.uint8))


def key_table(keys: list[WireExpr]) -> tuple[EncodedTable, npt.NDArray[np.uint8]]:
    """Return the encoded keys, and the header flags of each."""
    entries = [encode(write_wireexpr, key) for key in keys]
    return table(entries), np.array([flags_of(key) for key in keys], np.uint8)


def encoding_table(encodings: list[WireEncoding]) -> EncodedTable:
    default = WireEncoding()
    return table([b"" if e == default else encode(write_encoding, e) for e in encodings])


def clock_table(ids: list[WireZenohId]) -> EncodedTable:
    return table([encode(write_zid, "timestamp", zid) for zid in ids])


def source_table(ids: list[WireZenohId]) -> EncodedTable:
    return table([encode(write_packed, zid, 0) for zid in ids])


PUSHES = Envelope(push.ID, np.empty(0, np.uint8), np.empty(0, np.uint8))
"Envelope of rows that are sent as PUSH messages."


def response_envelope(like: Response) -> Envelope:
    """Return the envelope of rows that are sent as replies: all of `like` but key and body."""
    w = ByteWriter(bytearray((response.ID,)))
    w.zint("request id", like.request_id, U32)
    before = bytes(w.out[1:])
    response.EXTENSIONS.write(w, like, 0)
    after = bytes(w.out[1 + len(before) :]) + bytes((reply.ID,))
    return Envelope(w.out[0], _array(before), _array(after))


def _array(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(bytearray(data), np.uint8)


class Emitter:
    """Encoder of the rows of `columns` in order, some at a time.

    Without a `lane` it writes messages alone, one after another.
    """

    def __init__(
        self, columns: PushColumns, lane: LaneSettings | None, envelope: Envelope = PUSHES
    ) -> None:
        _check(columns)
        self._columns = columns
        self._envelope = envelope
        self.lane = lane
        self._frame = np.empty(0, np.uint8)
        if lane is not None:
            header, name = header_parts(lane.priority, lane.reliable)
            self._frame = np.array([header, *name], np.uint8)
        self._rows = len(columns.kind)
        self.row = 0
        "Index of the next row."
        # `next` runs under a session's lock. A kernel that is not compiled yet is compiled here,
        # on the caller's thread, by encoding no row.
        self._encode(0, np.empty(0, np.uint8), np.zeros(4, np.int64))

    @property
    def done(self) -> bool:
        return self.row >= self._rows

    def next(
        self, sn: int = 0, chunk_bytes: int = CHUNK_BYTES, most: int | None = None
    ) -> EmittedBatches:
        """Encode about `chunk_bytes` of rows from sequence number `sn` on, into a new buffer.

        With `most`, encode not more than that many rows. A message too long for a batch goes as
        fragments, after which one sequence number is skipped, as the Rust implementation does.
        """
        lane, before = self.lane, self.row
        if lane is not None and not 0 <= sn <= lane.sn_mask:
            raise EncodeError(f"is {sn}, outside 0 to {lane.sn_mask}", "sequence number")
        out = np.empty(max(chunk_bytes, lane.batch_size if lane else 0), np.uint8)
        state = np.array([before, 0, sn, 0], np.int64)
        stop = self._rows if most is None else min(self._rows, before + most)
        self._encode(stop, out, state)
        self.row, size = int(state[kernel.ROW]), int(state[kernel.OUT])
        if size or before >= stop:
            return EmittedBatches(out.data[:size], self.row - before, int(state[kernel.SN]))
        message = self.message()
        self.row += 1
        if lane is None:
            return EmittedBatches(memoryview(message), 1, sn)
        data, sn = _fragments(message, lane, sn)
        return EmittedBatches(memoryview(data), 1, sn)

    def message(self) -> bytes:
        """Encode the next row alone, however long; it stays the next row."""
        columns, row = self._columns, self.row
        size = sum(
            int(offsets[row + 1] - offsets[row])
            for offsets in (columns.payload_offsets, columns.attachment_offsets)
        )
        out = np.empty(size + self.overhead, np.uint8)
        state = np.array([row, 0, 0, 0], np.int64)
        no_frame = np.empty(0, np.uint8)
        kernel.emit_kernel(columns, self._envelope, row + 1, no_frame, 0, 0, out, state)
        return out[: state[kernel.OUT]].tobytes()

    def _encode(self, rows: int, out: npt.NDArray[np.uint8], state: npt.NDArray[np.int64]) -> None:
        lane = self.lane
        limits = (lane.max_batch, lane.sn_mask) if lane else (0, 0)
        kernel.emit_kernel(self._columns, self._envelope, rows, self._frame, *limits, out, state)

    @property
    def overhead(self) -> int:
        """Upper bound on the bytes of a message beside payload and attachment."""
        return MAX_OVERHEAD + len(self._envelope.before) + len(self._envelope.after)

    @property
    def largest(self) -> int:
        """Bytes of payload and attachment of the largest row."""
        if not self._rows:
            return 0
        sizes = np.diff(self._columns.payload_offsets) + np.diff(self._columns.attachment_offsets)
        return int(sizes.max())

    def messages(self) -> Iterator[bytes]:
        """Yield each remaining row as an encoded message."""
        while not self.done:
            message = self.message()
            self.row += 1
            yield message


def emit(
    columns: PushColumns,
    lane: LaneSettings,
    first_sn: int = 0,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    envelope: Envelope = PUSHES,
) -> Iterator[EmittedBatches]:
    """Yield all rows of `columns` in order, about `chunk_bytes` at a time."""
    emitter, sn = Emitter(columns, lane, envelope), first_sn
    while not emitter.done:
        emitted = emitter.next(sn, chunk_bytes)
        sn = emitted.next_sn
        yield emitted


def _check(columns: PushColumns) -> None:
    """Check numbers and offsets against tables and data: the kernel trusts them."""
    rows = len(columns.kind)
    for name, codes, entries, least in (
        ("key", columns.key, columns.keys, 0),
        ("encoding", columns.encoding, columns.encodings, 0),
        ("clock", columns.clock, columns.clocks, -1),
        ("source", columns.source, columns.sources, -1),
    ):
        known = len(entries.offsets) - 1
        if len(codes) != rows or (rows and not least <= codes.min() <= codes.max() < known):
            raise EncodeError(f"does not name {rows} entries of a table of {known}", name)
        _check_offsets(f"table of {name}", entries.offsets, entries.data)
    for name, column in (
        ("time", columns.time),
        ("source_eid", columns.source_eid),
        ("source_sn", columns.source_sn),
        ("attached", columns.attached),
        ("qos", columns.qos),
    ):
        if len(column) != rows:
            raise EncodeError(f"has {len(column)} rows, not {rows}", name)
    if len(columns.key_flags) != len(columns.keys.offsets) - 1:
        raise EncodeError("has not one entry for each key", "key_flags")
    for name, offsets, data in (
        ("payload", columns.payload_offsets, columns.payload),
        ("attachment", columns.attachment_offsets, columns.attachment),
    ):
        if len(offsets) != rows + 1:
            raise EncodeError(f"has {len(offsets)} offsets, not {rows + 1}", name)
        _check_offsets(name, offsets, data)


def _check_offsets(name: str, offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> None:
    if offsets[0] < 0 or offsets[-1] > len(data) or (offsets[1:] < offsets[:-1]).any():
        raise EncodeError("has offsets outside its data", name)


def _fragments(message: bytes, lane: LaneSettings, sn: int) -> tuple[bytes, int]:
    """Encode a message as FRAGMENTs; return them and the next sequence number."""
    rest = memoryview(message)  # slicing bytes would copy all the rest for every piece
    batches: list[bytes] = []
    while rest:
        fragment = Fragment(
            sn,
            reliable=lane.reliable,
            more=True,
            priority=WirePriority.DATA if lane.priority is None else lane.priority,
            first=not batches,
        )
        room = lane.max_batch - len(encode(write_fragment, fragment))
        if room < 1:
            raise EncodeError(f"of {lane.batch_size} cannot hold a fragment", "batch size")
        fragment.payload, rest = bytes(rest[:room]), rest[room:]
        fragment.more = bool(rest)
        batches.append(encode(write_fragment, fragment))
        sn = (sn + 1) & lane.sn_mask
    return to_stream(batches, Framing.STREAM), (sn + 1) & lane.sn_mask
