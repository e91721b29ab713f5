"""Plain puts, copied with other keys in one pass, without rows of the scan.

Knows a PUSH whose key is an id alone, that has no extension but QoS, and holds a PUT with nothing
but a payload. Ends before any other message, which scan.py and push_run.py read. Does not know what
an id stands for.
"""

import numpy as np
from numba import njit

from zenlake.wire import push, put
from zenlake.wire.extensions import FLAG_EXTENSIONS, QOS
from zenlake.wire.kernels.memory import copy_bytes, load8, pointer_to, store8
from zenlake.wire.qos import DEFAULT, PRIORITY_BITS
from zenlake.wire.wireexpr import FLAG_MAPPING, FLAG_NAMED

RELIABLE_BIT = int(PRIORITY_BITS) + 1  # Bit of a lane's number above its priority.
NUMBERS = 1 << 24  # How many numbers `link << 17 | mapping << 16 | scope` can have.

# Why the kernel ended: all copied, another kind of message, an unknown id, another lane, no room.
ALL, OTHER, UNKNOWN, LANE, FULL = range(5)
# Indices into its state, an int64 array: where it goes on, and what it found.
POS, BATCH, LEFT, COUNT, LANE_OF, NUMBER = range(6)
STATE_SIZE = 6

_PUSH, _PUT, _QOS = push.ID, put.ID, QOS.header
_Z, _N, _M = FLAG_EXTENSIONS, FLAG_NAMED, FLAG_MAPPING
_PRIORITIES, _DEFAULT_PRIORITY = int(PRIORITY_BITS), int(DEFAULT.priority)


@njit(cache=True, inline="always")
def _read_scope(buf, pos):
    """Read a key id of at most three bytes: (next position or -1, scope)."""
    scope = load8(buf, pos)
    pos += 1
    if scope >= 0x80:
        more = load8(buf, pos)
        pos += 1
        scope = (scope & 0x7F) | (more & 0x7F) << 7
        if more >= 0x80:
            more = load8(buf, pos)
            pos += 1
            if more > 3:
                return np.int64(-1), scope
            scope |= more << 14
    return pos, scope


@njit(cache=True, inline="always")
def _read_payload(buf, pos, size):
    """Read a PUT without flags: (position after its payload or -1, payload's length).

    A length of more than two bytes counts as not plain: large payloads take the path of the scan.
    """
    if size - pos < 2 or load8(buf, pos) != _PUT:
        return np.int64(-1), np.int64(0)
    length = load8(buf, pos + 1)
    pos += 2
    if length >= 0x80:
        if pos >= size:
            return np.int64(-1), length
        more = load8(buf, pos)
        pos += 1
        if more >= 0x80:
            return np.int64(-1), length
        length = (length & 0x7F) | more << 7
    if pos + length > size:
        return np.int64(-1), length
    return pos + length, length


@njit(cache=True, nogil=True)
def plain_kernel(
    data, counts, links, reliable, codes, offsets, keys, flags, seen, sizes, buffer, ends, state
):
    """Copy messages from data[state[POS]] on, each with the key of its code; return why it ended.

    Batch i has counts[i] messages, of which state[LEFT] are left in batch state[BATCH].
    codes[number] is 1 plus the code of a key id, 0 if the id is unknown. The key of a code is
    written as keys[offsets[code] : offsets[code + 1]] with its flags; flags[code] of -1 leaves the
    message out. seen[code] and sizes[code] count messages and bytes of payloads. The i-th message
    written ends at ends[i] of `buffer`; all are of the lane state[LANE_OF].
    """
    buf = pointer_to(data)
    out = pointer_to(buffer)
    key_data = pointer_to(keys)
    size = np.int64(len(data))
    pos = state[POS]
    batch = state[BATCH]
    left = state[LEFT]
    at = np.int64(0)
    count = np.int64(0)
    lane = np.int64(-1)
    status = OTHER
    while True:
        while left == 0 and batch + 1 < len(counts):
            batch += 1
            left = np.int64(counts[batch])
        if left == 0:
            status = ALL
            break
        if size - pos < 4:
            break
        header = load8(buf, pos)
        if header & ~(_M | _Z) != _PUSH:
            break
        after_key, scope = _read_scope(buf, pos + 1)
        if after_key < 0:
            break
        body = after_key
        priority = _DEFAULT_PRIORITY
        if header & _Z:
            if size - body < 2 or load8(buf, body) != _QOS or load8(buf, body + 1) >= 0x80:
                break
            priority = load8(buf, body + 1) & _PRIORITIES
            body += 2
        end, length = _read_payload(buf, body, size)
        if end < 0:
            break
        number = np.int64(links[batch]) << 17 | (np.int64(1) if header & _M else 0) << 16 | scope
        if number >= len(codes):
            break
        code = np.int64(codes[number]) - 1
        if code < 0:
            state[NUMBER] = number
            status = UNKNOWN
            break
        if code >= len(flags) or code + 1 >= len(offsets):
            break
        if flags[code] >= 0:
            this = np.int64(priority | (RELIABLE_BIT if reliable[batch] else 0))
            if lane >= 0 and lane != this:
                status = LANE
                break
            key_start = offsets[code]
            key_len = offsets[code + 1] - key_start
            rest = end - after_key
            if at + 1 + key_len + rest > len(buffer) or count >= len(ends):
                status = FULL
                break
            lane = this
            store8(out, at, (header & ~(_N | _M)) | np.int64(flags[code]))
            copy_bytes(out, at + 1, key_data, key_start, key_len)
            copy_bytes(out, at + 1 + key_len, buf, after_key, rest)
            at += 1 + key_len + rest
            ends[count] = at
            count += 1
        seen[code] += 1
        sizes[code] += length
        pos = end
        left -= 1
    state[POS] = pos
    state[BATCH] = batch
    state[LEFT] = left
    state[COUNT] = count
    state[LANE_OF] = lane
    return status
