"""The compiled half of emit.py: columns to framed batches of PUSH messages.

Knows arrays and bytes. What repeats (keys, encodings, ids) comes already encoded, in tables of
bytes; a row names its entry by number. Every write is within what was sized beforehand.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from zenlake.wire import delete, push, put, qos
from zenlake.wire.extensions import FLAG_EXTENSIONS, QOS, SOURCE_INFO
from zenlake.wire.kernels.memory import copy_bytes, place_of, put_zint, store8

_PUSH, _PUT, _DEL = push.ID, put.ID, delete.ID
_TIMESTAMP, _ENCODING, _MORE = put.FLAG_TIMESTAMP, put.FLAG_ENCODING, FLAG_EXTENSIONS
_QOS_EXT, _SOURCE_EXT = QOS.header, SOURCE_INFO.header
_PUT_ATTACHMENT = put.EXTENSIONS.rows[-1].header
_DEL_ATTACHMENT = delete.EXTENSIONS.rows[-1].header
_DEFAULT_QOS = int(qos.DEFAULT)
_PREFIX = 2  # bytes of a stream's batch length


class EncodedTable(NamedTuple):
    """Encoded entries, one after another: entry i is data[offsets[i]:offsets[i + 1]]."""

    offsets: npt.NDArray[np.int64]
    data: npt.NDArray[np.uint8]


class PushColumns(NamedTuple):
    """Samples to be sent: one entry a row in each array, one more in the arrays of offsets."""

    kind: npt.NDArray[np.uint8]
    "PUT 1 or DEL 2."
    key: npt.NDArray[np.int32]
    keys: EncodedTable
    "Scope and suffix, as WireExpr is written."
    key_flags: npt.NDArray[np.uint8]
    "N and M of each entry of `keys`."
    payload_offsets: npt.NDArray[np.int64]
    payload: npt.NDArray[np.uint8]
    encoding: npt.NDArray[np.int32]
    encodings: EncodedTable
    "As written; empty for the default, which is not written."
    time: npt.NDArray[np.uint64]
    clock: npt.NDArray[np.int32]
    "-1: no timestamp."
    clocks: EncodedTable
    "Length and id."
    source: npt.NDArray[np.int32]
    "-1: no source info."
    sources: EncodedTable
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
def _put_entry(out, at, data, start, stop):
    copy_bytes(out, at, data, start, stop - start)
    return at + stop - start


@njit(cache=True, nogil=True)
def emit_kernel(c, stop, frame, max_batch, sn_mask, buffer, state):
    """Write rows from state[ROW] up to `stop`, in batches of at most `max_batch` bytes.

    Ends when all are written, when `out` has no room for another whole batch, or before a row that
    fits no batch; only whole batches are written. Without a `frame` the messages are written bare,
    one after another.
    """
    # Every use of a tuple's field counts a reference up and down; a local variable does not.
    kinds = c.kind
    keys = c.key
    key_offsets = c.keys.offsets
    key_data = place_of(c.keys.data)
    key_flags = c.key_flags
    payload_offsets = c.payload_offsets
    payload = place_of(c.payload)
    encodings = c.encoding
    encoding_offsets = c.encodings.offsets
    encoding_data = place_of(c.encodings.data)
    times = c.time
    clocks = c.clock
    clock_offsets = c.clocks.offsets
    clock_data = place_of(c.clocks.data)
    sources = c.source
    source_offsets = c.sources.offsets
    source_data = place_of(c.sources.data)
    source_eids = c.source_eid
    source_sns = c.source_sn
    attacheds = c.attached
    attachment_offsets = c.attachment_offsets
    attachment = place_of(c.attachment)
    qos_bytes = c.qos
    frame_place = place_of(frame)
    out = place_of(buffer)
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
        encoded = put and encoding_offsets[encoding + 1] > encoding_offsets[encoding]
        extended = source >= 0 or attached

        # How long it will be: room is made before anything is written.
        length = 2 + key_offsets[key + 1] - key_offsets[key]
        if qos_byte != _DEFAULT_QOS:
            length += 2
        if clock >= 0:
            length += _zint_len(times[row]) + clock_offsets[clock + 1] - clock_offsets[clock]
        source_len = np.int64(0)
        if source >= 0:
            source_len = (
                source_offsets[source + 1]
                - source_offsets[source]
                + _zint_len(np.uint64(source_eids[row]))
                + _zint_len(np.uint64(source_sns[row]))
            )
            length += 1 + _zint_len(np.uint64(source_len)) + source_len
        attachment_len = attachment_offsets[row + 1] - attachment_offsets[row]
        if attached:
            length += 1 + _zint_len(np.uint64(attachment_len)) + attachment_len
        payload_len = payload_offsets[row + 1] - payload_offsets[row]
        if put:
            length += encoding_offsets[encoding + 1] - encoding_offsets[encoding]
            length += _zint_len(np.uint64(payload_len)) + payload_len

        if framed and inside and at + length > batch_end:
            store8(out, start, at - start - _PREFIX)
            store8(out, start + 1, (at - start - _PREFIX) >> 8)
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
            # Room for the prefix, then the FRAME's header: its first byte, the sequence number, and
            # what else `frame` holds (the lane).
            at += _PREFIX
            store8(out, at, np.int64(frame[0]))
            at = put_zint(out, at + 1, np.uint64(sn))
            copy_bytes(out, at, frame_place, 1, len(frame) - 1)
            at += len(frame) - 1
            sn = (sn + 1) & sn_mask
            inside = True
        elif at + length > batch_end:
            status = OUT_FULL
            break

        flags = np.int64(key_flags[key]) | (_MORE if qos_byte != _DEFAULT_QOS else 0)
        store8(out, at, _PUSH | flags)
        at = _put_entry(out, at + 1, key_data, key_offsets[key], key_offsets[key + 1])
        if qos_byte != _DEFAULT_QOS:
            store8(out, at, _QOS_EXT)
            store8(out, at + 1, np.int64(qos_byte))
            at += 2
        flags = (_TIMESTAMP if clock >= 0 else 0) | (_ENCODING if encoded else 0)
        flags |= _MORE if extended else 0
        store8(out, at, (_PUT if put else _DEL) | flags)
        at += 1
        if clock >= 0:
            at = put_zint(out, at, times[row])
            at = _put_entry(out, at, clock_data, clock_offsets[clock], clock_offsets[clock + 1])
        if encoded:
            at = _put_entry(
                out, at, encoding_data, encoding_offsets[encoding], encoding_offsets[encoding + 1]
            )
        if source >= 0:
            store8(out, at, _SOURCE_EXT | (_MORE if attached else 0))
            at = put_zint(out, at + 1, np.uint64(source_len))
            at = _put_entry(
                out, at, source_data, source_offsets[source], source_offsets[source + 1]
            )
            at = put_zint(out, at, np.uint64(source_eids[row]))
            at = put_zint(out, at, np.uint64(source_sns[row]))
        if attached:
            store8(out, at, _PUT_ATTACHMENT if put else _DEL_ATTACHMENT)
            at = put_zint(out, at + 1, np.uint64(attachment_len))
            copy_bytes(out, at, attachment, attachment_offsets[row], attachment_len)
            at += attachment_len
        if put:
            at = put_zint(out, at, np.uint64(payload_len))
            copy_bytes(out, at, payload, payload_offsets[row], payload_len)
            at += payload_len
        row += 1
    if framed and inside:
        store8(out, start, at - start - _PREFIX)
        store8(out, start + 1, (at - start - _PREFIX) >> 8)
    state[ROW] = row
    state[OUT] = at
    state[SN] = sn
    state[STATUS] = status
