"""The compiled half of emit.py: columns to framed batches of PUSH or RESPONSE messages.

Knows arrays and bytes. Keys, encodings and ids, which repeat, are encoded beforehand in tables of
bytes; a row names its entry by number. Every message is measured before it is written.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from zenlake.wire import delete, put, qos
from zenlake.wire.extensions import FLAG_EXTENSIONS, QOS, SOURCE_INFO
from zenlake.wire.kernels.memory import copy_bytes, pointer_to, store8, write_zint

_PUT, _DEL = put.ID, delete.ID
_TIMESTAMP, _ENCODING, _MORE = put.FLAG_TIMESTAMP, put.FLAG_ENCODING, FLAG_EXTENSIONS
_QOS_EXT, _SOURCE_EXT = QOS.header, SOURCE_INFO.header
_PUT_ATTACHMENT = put.EXTENSIONS.rows[-1].header
_DEL_ATTACHMENT = delete.EXTENSIONS.rows[-1].header
_DEFAULT_QOS = int(qos.DEFAULT)
_PREFIX = 2  # Bytes of the length before each batch of a stream.


class EncodedTable(NamedTuple):
    """Encoded entries, one after another: entry i is data[offsets[i]:offsets[i + 1]]."""

    offsets: npt.NDArray[np.int64]
    data: npt.NDArray[np.uint8]


class PushColumns(NamedTuple):
    """Columns of samples to send: one entry per row, and one more in the arrays of offsets."""

    kind: npt.NDArray[np.uint8]
    "PUT 1 or DEL 2."
    key: npt.NDArray[np.int32]
    keys: EncodedTable
    "Scope and suffix of each distinct key, as WireExpr is written."
    key_flags: npt.NDArray[np.uint8]
    "Header flags N and M of each entry of `keys`."
    payload_offsets: npt.NDArray[np.int64]
    payload: npt.NDArray[np.uint8]
    encoding: npt.NDArray[np.int32]
    encodings: EncodedTable
    "Distinct encodings as written; empty for the default, which is not written."
    time: npt.NDArray[np.uint64]
    clock: npt.NDArray[np.int32]
    "Entry of `clocks`, or -1: no timestamp."
    clocks: EncodedTable
    "Distinct clock ids, as length and id."
    source: npt.NDArray[np.int32]
    "Entry of `sources`, or -1: no source info."
    sources: EncodedTable
    "Distinct source ids, as packed length and id."
    source_eid: npt.NDArray[np.uint32]
    source_sn: npt.NDArray[np.uint32]
    attached: npt.NDArray[np.uint8]
    attachment_offsets: npt.NDArray[np.int64]
    attachment: npt.NDArray[np.uint8]
    qos: npt.NDArray[np.uint8]


class Envelope(NamedTuple):
    """Bytes that all messages share: a header, and the bytes between it, the key and the body."""

    header: int
    "Header byte, without the flags of the key."
    before: npt.NDArray[np.uint8]
    "Bytes between the header and the key."
    after: npt.NDArray[np.uint8]
    """Bytes between the key and the body. If the header says that there are extensions, they are
    here, and the QoS of a row is not written."""


# Indices into the kernel's state, an int64 array.
ROW, OUT, SN, STATUS = range(4)
STATE_SIZE = 4
DONE, OUT_FULL, TOO_LONG = 0, 1, 2


@njit(cache=True, inline="always")
def _zint_len(value):
    """Return how many bytes a zint takes."""
    length = 1
    while value >= np.uint64(0x80) and length < 9:
        value >>= np.uint64(7)
        length += 1
    return length


@njit(cache=True, inline="always")
def _block_len(length):
    """Return how many bytes a length and as many bytes take."""
    return _zint_len(np.uint64(length)) + length


@njit(cache=True, inline="always")
def _copy_entry(out, at, data, start, length):
    """Copy an entry of a table; return the position after it."""
    copy_bytes(out, at, data, start, length)
    return at + length


@njit(cache=True, inline="always")
def _write_block(out, at, data, start, length):
    """Write a length and as many bytes; return the position after them."""
    at = write_zint(out, at, np.uint64(length))
    copy_bytes(out, at, data, start, length)
    return at + length


@njit(cache=True, inline="always")
def _start_batch(out, at, frame, frame_data, sn):
    """Leave room for the batch's length and write the FRAME's header; return the position after.

    The header is its first byte, the sequence number, and what else `frame` holds (the lane).
    """
    at += _PREFIX
    store8(out, at, np.int64(frame[0]))
    at = write_zint(out, at + 1, np.uint64(sn))
    return _copy_entry(out, at, frame_data, 1, len(frame) - 1)


@njit(cache=True, inline="always")
def _end_batch(out, start, at):
    """Write the length of the batch out[start:at] into its prefix."""
    length = at - start - _PREFIX
    store8(out, start, length)
    store8(out, start + 1, length >> 8)


@njit(cache=True, nogil=True)
def emit_kernel(c, e, stop, frame, max_batch, sn_mask, buffer, state):
    """Write rows from state[ROW] up to `stop`, in batches of at most `max_batch` bytes.

    Each row of the columns `c` is a message with the envelope `e`. Ends when all are written, when
    `buffer` has no room for another whole batch, or before a row that does not fit a batch; only
    whole batches are written. Without a `frame` the messages are written one after another, with
    nothing around.
    """
    # Every use of a tuple's field counts a reference up and down; a local variable does not.
    kinds = c.kind
    keys = c.key
    key_offsets = c.keys.offsets
    key_data = pointer_to(c.keys.data)
    key_flags = c.key_flags
    payload_offsets = c.payload_offsets
    payload = pointer_to(c.payload)
    encodings = c.encoding
    encoding_offsets = c.encodings.offsets
    encoding_data = pointer_to(c.encodings.data)
    times = c.time
    clocks = c.clock
    clock_offsets = c.clocks.offsets
    clock_data = pointer_to(c.clocks.data)
    sources = c.source
    source_offsets = c.sources.offsets
    source_data = pointer_to(c.sources.data)
    source_eids = c.source_eid
    source_sns = c.source_sn
    attacheds = c.attached
    attachment_offsets = c.attachment_offsets
    attachment = pointer_to(c.attachment)
    qos_bytes = c.qos
    message_header = np.int64(e.header)
    before = pointer_to(e.before)
    before_len = len(e.before)
    after = pointer_to(e.after)
    after_len = len(e.after)
    own_qos = message_header & _MORE == 0
    frame_data = pointer_to(frame)
    out = pointer_to(buffer)
    room = len(buffer)

    row = state[ROW]
    at = state[OUT]
    sn = state[SN]
    status = DONE
    framed = len(frame) > 0
    start = at
    inside = not framed
    batch_end = room if inside else at
    header = 1 + _zint_len(np.uint64(sn_mask)) + len(frame) - 1
    while row < stop:
        put = kinds[row] == _PUT
        key = keys[row]
        qos_byte = qos_bytes[row]
        clock = clocks[row]
        source = sources[row]
        attached = attacheds[row] != 0
        encoding = encodings[row]

        # How long the message will be: room is made before anything is written.
        key_len = key_offsets[key + 1] - key_offsets[key]
        has_qos = own_qos and qos_byte != _DEFAULT_QOS
        length = 2 + before_len + key_len + (2 if has_qos else 0) + after_len
        clock_len = np.int64(0)
        if clock >= 0:
            clock_len = clock_offsets[clock + 1] - clock_offsets[clock]
            length += _zint_len(times[row]) + clock_len
        id_len = np.int64(0)
        source_len = np.int64(0)
        if source >= 0:
            id_len = source_offsets[source + 1] - source_offsets[source]
            source_len = (
                id_len
                + _zint_len(np.uint64(source_eids[row]))
                + _zint_len(np.uint64(source_sns[row]))
            )
            length += 1 + _block_len(source_len)
        attachment_len = attachment_offsets[row + 1] - attachment_offsets[row]
        if attached:
            length += 1 + _block_len(attachment_len)
        payload_len = payload_offsets[row + 1] - payload_offsets[row]
        encoding_len = np.int64(0)
        if put:
            encoding_len = encoding_offsets[encoding + 1] - encoding_offsets[encoding]
            length += encoding_len + _block_len(payload_len)

        if framed and inside and at + length > batch_end:
            _end_batch(out, start, at)
            inside = False
        if not inside:
            if header + length > max_batch:
                status = TOO_LONG
                break
            start = at
            batch_end = start + _PREFIX + max_batch
            if batch_end > room:
                status = OUT_FULL
                break
            at = _start_batch(out, at, frame, frame_data, sn)
            sn = (sn + 1) & sn_mask
            inside = True
        elif at + length > batch_end:
            status = OUT_FULL
            break

        store8(out, at, message_header | np.int64(key_flags[key]) | (_MORE if has_qos else 0))
        at = _copy_entry(out, at + 1, before, 0, before_len)
        at = _copy_entry(out, at, key_data, key_offsets[key], key_len)
        if has_qos:
            store8(out, at, _QOS_EXT)
            store8(out, at + 1, np.int64(qos_byte))
            at += 2
        at = _copy_entry(out, at, after, 0, after_len)
        flags = (_TIMESTAMP if clock >= 0 else 0) | (_ENCODING if encoding_len else 0)
        flags |= _MORE if source >= 0 or attached else 0
        store8(out, at, (_PUT if put else _DEL) | flags)
        at += 1
        if clock >= 0:
            at = write_zint(out, at, times[row])
            at = _copy_entry(out, at, clock_data, clock_offsets[clock], clock_len)
        if encoding_len:
            at = _copy_entry(out, at, encoding_data, encoding_offsets[encoding], encoding_len)
        if source >= 0:
            store8(out, at, _SOURCE_EXT | (_MORE if attached else 0))
            at = write_zint(out, at + 1, np.uint64(source_len))
            at = _copy_entry(out, at, source_data, source_offsets[source], id_len)
            at = write_zint(out, at, np.uint64(source_eids[row]))
            at = write_zint(out, at, np.uint64(source_sns[row]))
        if attached:
            store8(out, at, _PUT_ATTACHMENT if put else _DEL_ATTACHMENT)
            at = _write_block(out, at + 1, attachment, attachment_offsets[row], attachment_len)
        if put:
            at = _write_block(out, at, payload, payload_offsets[row], payload_len)
        row += 1
    if framed and inside:
        _end_batch(out, start, at)
    state[ROW] = row
    state[OUT] = at
    state[SN] = sn
    state[STATUS] = status
