"""The compiled half of scan.py: one row of numbers for every message of a buffer.

A second reader of the same bytes as the object codec, held to it by tests: same messages, same
bounds, same refusals at the same offsets. Knows batches, FRAMEs and the usual PUSH; all else is in
scan_network.py and scan_transport.py. Knows no keys (only scope and suffix) and no lanes' order.

Numba caches the kernel by the date of this file: touch it after a change in scan_core.py,
scan_network.py, scan_transport.py, ExtensionKind or Reason.
"""

import numpy as np
from numba import njit

from zenlake.errors import Reason
from zenlake.wire import frame, join, push, put
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.extensions import FLAG_EXTENSIONS
from zenlake.wire.kernels.memory import load8, pointer_to
from zenlake.wire.kernels.row import BARE, DEFAULT_LANE, ROW_WORDS
from zenlake.wire.kernels.scan_core import is_ascii, refuse
from zenlake.wire.kernels.scan_network import read_network
from zenlake.wire.kernels.scan_transport import read_frame_header, read_transport
from zenlake.wire.network import FIRST_ID as _FIRST_NETWORK_ID
from zenlake.wire.qos import DEFAULT
from zenlake.wire.wireexpr import FLAG_MAPPING, FLAG_NAMED

_DEFAULT_QOS = int(DEFAULT)


@njit(cache=True)
def _enter_batch(buf, pos, end, framing, limit, state):
    """Step into the next whole batch; False if it is not complete, or its length too large."""
    if framing == 0:
        if pos >= end or state["batch"] >= 0:
            return False
        state["batch_end"] = end
    else:
        if pos + framing > end:
            return False
        length = np.int64(0)
        for i in range(framing):
            length |= load8(buf, pos + i) << (8 * i)
        if length > limit:
            refuse(state, Reason.TOO_LARGE, pos)
            return False
        if pos + framing + length > end:
            return False
        pos += framing
        state["batch_end"] = pos + length
    state["pos"] = pos
    state["batch"] += 1
    state["in_frame"] = 0
    return True


@njit(cache=True, inline="always")
def _read_short_zint(buf, pos, end):
    """Read a zint of one or two bytes: (next position, value); -1 if it is longer or cut."""
    if pos >= end:
        return -1, np.int64(0)
    byte = load8(buf, pos)
    if byte < 0x80:
        return pos + 1, byte
    if pos + 1 >= end:
        return -1, np.int64(0)
    second = load8(buf, pos + 1)
    if second < 0x80:
        return pos + 2, (byte & 0x7F) | (second << 7)
    return -1, np.int64(0)


@njit(cache=True, inline="always")
def _read_plain_push(buf, pos, end, header, row):
    """Read a PUSH without extensions that holds a PUT without flags, as nearly all traffic is.

    Never refuses: at any other message it returns -1, and read_network decides.
    """
    pos, scope = _read_short_zint(buf, pos, end)
    if pos < 0:
        return -1
    suffix = np.int64(0)
    suffix_len = np.int64(0)
    if header & FLAG_NAMED:
        suffix, suffix_len = _read_short_zint(buf, pos, end)
        if suffix < 0:
            return -1
        pos = suffix + suffix_len
        if pos > end or not is_ascii(buf, suffix, pos):
            return -1
    if pos >= end or load8(buf, pos) != put.ID:
        return -1
    payload, payload_len = _read_short_zint(buf, pos + 1, end)
    if payload < 0 or payload + payload_len > end:
        return -1
    row["scope"] = scope
    row["mapping"] = 1 if header & FLAG_MAPPING else 0
    row["suffix"] = suffix
    row["suffix_len"] = suffix_len
    row["body"] = put.ID
    row["payload"] = payload
    row["payload_len"] = payload_len
    return payload + payload_len


@njit(cache=True, nogil=True)
def scan_kernel(data, framing, mode, limit, kind_table, rows, words, states):
    """Fill `rows` from where `states[0]` says; return the number of rows filled.

    Ends when the whole batches end, when `rows` is full, or at bad bytes (then "reason" is set, and
    "pos" is the first byte of the message that failed). `words` is a view of `rows` as 64-bit
    words, to clear a row at once. `mode`: 0 as framed, LOW_LATENCY (network messages also outside a
    FRAME), BARE (only network messages; ends before any other).
    """
    end = len(data)
    buf = pointer_to(data)
    kinds = pointer_to(kind_table)
    state = states[0]
    capacity = len(rows)
    count = 0
    pos = state["pos"]
    batch_end = state["batch_end"]
    batch = state["batch"]
    in_frame = state["in_frame"] != 0
    lane = state["lane"]
    sn = state["sn"]
    while True:
        if pos >= batch_end:
            if not _enter_batch(buf, pos, end, framing, limit, state):
                break
            pos = state["pos"]
            batch_end = state["batch_end"]
            batch = state["batch"]
            in_frame = False
            continue
        if count >= capacity:
            break
        header = load8(buf, pos)
        number = header & ID_MASK
        if mode == BARE and number < _FIRST_NETWORK_ID:
            break
        row = rows[count]
        for i in range(ROW_WORDS):
            words[count, i] = 0
        row["qos"] = _DEFAULT_QOS
        after = -1
        if number >= _FIRST_NETWORK_ID and (in_frame or mode != 0):
            if header & (FLAG_EXTENSIONS | ID_MASK) == push.ID:
                after = _read_plain_push(buf, pos + 1, batch_end, header, row)
            if after < 0:
                after = read_network(buf, pos + 1, batch_end, header, row, kinds, state)
            row["lane"] = lane if in_frame or mode == BARE else DEFAULT_LANE
            row["sn"] = sn if in_frame else 0
        elif number == frame.ID:
            after = read_frame_header(buf, pos + 1, batch_end, header, row, kinds, state)
            if after < 0:
                break
            in_frame = True
            lane = state["lane"]
            sn = state["sn"]
            pos = after
            continue
        elif number <= join.ID:
            in_frame = False
            after = read_transport(buf, pos + 1, batch_end, header, row, kinds, state)
            row["lane"] = state["lane"]
        else:
            refuse(state, Reason.UNKNOWN_ID, pos)
        if after < 0:
            break
        row["kind"] = number
        row["start"] = pos
        row["end"] = after
        row["batch"] = batch
        count += 1
        pos = after
    state["pos"] = pos
    state["in_frame"] = in_frame
    state["lane"] = lane
    state["sn"] = sn
    return count


@njit(cache=True)
def scan_held_kernel(data, framing, mode, limit, kind_table, rows, words, states):
    """Scan without releasing the GIL: for buffers so short that taking it back would cost more."""
    return scan_kernel(data, framing, mode, limit, kind_table, rows, words, states)
