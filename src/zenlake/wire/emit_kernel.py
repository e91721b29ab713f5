"""The compiled half of emit.py: columns to framed batches of PUSH messages.

Knows arrays and bytes. What repeats (keys, encodings, ids) comes already encoded, in tables of
bytes; a row names its entry by number. Every write is within what was sized beforehand.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from zenlake.wire.memory_kernel import copy_bytes

_PUSH, _PUT, _DEL = 0x1D, 0x01, 0x02
_TIMESTAMP, _ENCODING, _MORE = 0x20, 0x40, 0x80
_QOS_EXT, _SOURCE_EXT, _PUT_ATTACHMENT, _DEL_ATTACHMENT = 0x21, 0x41, 0x43, 0x42
_DEFAULT_QOS = 5


class Table(NamedTuple):
    """Encoded entries, one after another: entry i is data[offsets[i]:offsets[i + 1]]."""

    offsets: npt.NDArray[np.int64]
    data: npt.NDArray[np.uint8]


class PushColumns(NamedTuple):
    """Samples to be sent; every array but `kind` may be shorter by no more than its tables say."""

    kind: npt.NDArray[np.uint8]
    "PUT 1 or DEL 2."
    key: npt.NDArray[np.int32]
    keys: Table
    "Scope and suffix, as WireExpr is written."
    key_flags: npt.NDArray[np.uint8]
    "N and M of each entry of `keys`."
    payload_offsets: npt.NDArray[np.int64]
    payload: npt.NDArray[np.uint8]
    encoding: npt.NDArray[np.int32]
    encodings: Table
    "As written; empty for the default, which is not written."
    time: npt.NDArray[np.uint64]
    clock: npt.NDArray[np.int32]
    "-1: no timestamp."
    clocks: Table
    "Length and id."
    source: npt.NDArray[np.int32]
    "-1: no source info."
    sources: Table
    "Packed length and id."
    source_eid: npt.NDArray[np.uint32]
    source_sn: npt.NDArray[np.uint32]
    attached: npt.NDArray[np.uint8]
    attachment_offsets: npt.NDArray[np.int64]
    attachment: npt.NDArray[np.uint8]
    qos: npt.NDArray[np.uint8]


# Where the kernel is, in an int64 array.
ROW, OUT, SN, STATUS = range(4)
STATE_SIZE = 4
DONE, OUT_FULL, TOO_LONG = 0, 1, 2


@njit(cache=True, inline="always")
def _zint_len(value):
    length = 1
    while value >= np.uint64(0x80) and length < 9:
        value >>= np.uint64(7)
        length += 1
    return length


@njit(cache=True, inline="always")
def _put_zint(out, at, value):
    for _ in range(8):
        if value < np.uint64(0x80):
            break
        out[at] = np.uint8((value & np.uint64(0x7F)) | np.uint64(0x80))
        value >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@njit(cache=True, inline="always")
def _put_entry(out, at, table, number):
    start = table.offsets[number]
    length = table.offsets[number + 1] - start
    copy_bytes(out, at, table.data, start, length)
    return at + length


@njit(cache=True, inline="always")
def _entry_len(table, number):
    return table.offsets[number + 1] - table.offsets[number]


@njit(cache=True, inline="always")
def _source_len(c, i):
    return (
        _entry_len(c.sources, c.source[i])
        + _zint_len(np.uint64(c.source_eid[i]))
        + _zint_len(np.uint64(c.source_sn[i]))
    )


@njit(cache=True)
def message_len(c, i):
    """How many bytes row `i` takes as a PUSH."""
    length = 2 + _entry_len(c.keys, c.key[i])
    if c.qos[i] != _DEFAULT_QOS:
        length += 2
    if c.clock[i] >= 0:
        length += _zint_len(c.time[i]) + _entry_len(c.clocks, c.clock[i])
    if c.source[i] >= 0:
        size = _source_len(c, i)
        length += 1 + _zint_len(np.uint64(size)) + size
    if c.attached[i]:
        size = c.attachment_offsets[i + 1] - c.attachment_offsets[i]
        length += 1 + _zint_len(np.uint64(size)) + size
    if c.kind[i] == _PUT:
        size = c.payload_offsets[i + 1] - c.payload_offsets[i]
        length += _entry_len(c.encodings, c.encoding[i]) + _zint_len(np.uint64(size)) + size
    return length


@njit(cache=True)
def put_message(c, i, out, at):
    """Write row `i` as a PUSH; the position after it. There is room: message_len says how much."""
    key = c.key[i]
    qos = c.qos[i]
    out[at] = _PUSH | c.key_flags[key] | (_MORE if qos != _DEFAULT_QOS else 0)
    at = _put_entry(out, at + 1, c.keys, key)
    if qos != _DEFAULT_QOS:
        out[at] = _QOS_EXT
        out[at + 1] = qos
        at += 2
    put = c.kind[i] == _PUT
    stamped = c.clock[i] >= 0
    sourced = c.source[i] >= 0
    attached = c.attached[i] != 0
    encoded = put and _entry_len(c.encodings, c.encoding[i]) > 0
    out[at] = (
        (_PUT if put else _DEL)
        | (_TIMESTAMP if stamped else 0)
        | (_ENCODING if encoded else 0)
        | (_MORE if sourced or attached else 0)
    )
    at += 1
    if stamped:
        at = _put_zint(out, at, c.time[i])
        at = _put_entry(out, at, c.clocks, c.clock[i])
    if encoded:
        at = _put_entry(out, at, c.encodings, c.encoding[i])
    if sourced:
        out[at] = _SOURCE_EXT | (_MORE if attached else 0)
        at = _put_zint(out, at + 1, np.uint64(_source_len(c, i)))
        at = _put_entry(out, at, c.sources, c.source[i])
        at = _put_zint(out, at, np.uint64(c.source_eid[i]))
        at = _put_zint(out, at, np.uint64(c.source_sn[i]))
    if attached:
        start = c.attachment_offsets[i]
        length = c.attachment_offsets[i + 1] - start
        out[at] = _PUT_ATTACHMENT if put else _DEL_ATTACHMENT
        at = _put_zint(out, at + 1, np.uint64(length))
        copy_bytes(out, at, c.attachment, start, length)
        at += length
    if put:
        start = c.payload_offsets[i]
        length = c.payload_offsets[i + 1] - start
        at = _put_zint(out, at, np.uint64(length))
        copy_bytes(out, at, c.payload, start, length)
        at += length
    return at


@njit(cache=True)
def _open_batch(out, at, framing, frame, sn):
    """Leave room for the prefix and write the FRAME's header: `frame` holds its first byte, then
    its extensions (the lane), which follow the sequence number."""
    at += framing
    out[at] = frame[0]
    at = _put_zint(out, at + 1, np.uint64(sn))
    copy_bytes(out, at, frame, 1, len(frame) - 1)
    return at + len(frame) - 1


@njit(cache=True)
def _close_batch(out, start, at, framing):
    length = at - start - framing
    for i in range(framing):
        out[start + i] = (length >> (8 * i)) & 0xFF


@njit(cache=True, nogil=True)
def emit_kernel(c, framing, frame, max_batch, sn_mask, out, state):
    """Write rows from state[ROW] on, in batches of at most `max_batch` bytes.

    Ends when all rows are written, when `out` has no room for another whole batch, or before a row
    that fits no batch; only whole batches are written.
    """
    rows = len(c.kind)
    row = state[ROW]
    at = state[OUT]
    sn = state[SN]
    status = DONE
    start = at
    inside = False
    batch_end = at
    header = 1 + _zint_len(np.uint64(sn_mask)) + len(frame) - 1
    while row < rows:
        length = message_len(c, row)
        if inside and at + length > batch_end:
            _close_batch(out, start, at, framing)
            inside = False
        if not inside:
            if header + length > max_batch:
                status = TOO_LONG
                break
            start = at
            batch_end = start + framing + max_batch
            if batch_end > len(out):
                status = OUT_FULL
                break
            at = _open_batch(out, at, framing, frame, sn)
            sn = (sn + 1) & sn_mask
            inside = True
        at = put_message(c, row, out, at)
        row += 1
    if inside:
        _close_batch(out, start, at, framing)
    state[ROW] = row
    state[OUT] = at
    state[SN] = sn
    state[STATUS] = status
