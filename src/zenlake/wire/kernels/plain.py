"""Puts of the most usual kind, copied with other keys in one pass, without rows.

Knows a PUSH whose key is an id alone, that has no extension but QoS, and holds a PUT with nothing
but a payload. Ends before any other, which scan and runs read. Does not know what an id stands for.
"""

# mypy: allow-untyped-defs

import numpy as np
from numba import njit

from zenlake.wire import push, put
from zenlake.wire.extensions import FLAG_EXTENSIONS, QOS
from zenlake.wire.kernels.memory import copy_bytes, load8, place_of, store8
from zenlake.wire.qos import DEFAULT, PRIORITY_BITS
from zenlake.wire.wireexpr import FLAG_MAPPING, FLAG_NAMED

RELIABLE_BIT = int(PRIORITY_BITS) + 1  # of a lane, beside its priority
NUMBERS = 1 << 24  # link << 17 | mapping << 16 | scope

# Why the kernel ended.
ALL, OTHER, UNKNOWN, LANE, FULL = range(5)
# Its state, in an int64 array: where it goes on, and what it found.
POS, BATCH, LEFT, COUNT, LANE_OF, NUMBER = range(6)
STATE_SIZE = 6

_PUSH, _PUT, _QOS = push.ID, put.ID, QOS.header
_Z, _N, _M = FLAG_EXTENSIONS, FLAG_NAMED, FLAG_MAPPING
_PRIORITIES, _DEFAULT_PRIORITY = int(PRIORITY_BITS), int(DEFAULT.priority)


@njit(cache=True, nogil=True)
def plain_kernel(
    data, counts, links, reliable, codes, offsets, keys, flags, seen, sizes, buffer, ends, state
):
    """Copy messages from data[state[POS]] on: each batch has counts[i] of them, of which
    state[LEFT] are left in batch state[BATCH].

    codes[number] is 1 plus the code of an id, 0 if it is unknown. A code's key is written as
    keys[offsets[code] : offsets[code + 1]] with its flags; flags[code] of -1: it is left out.
    seen[code] and sizes[code] count messages and bytes of payloads. Message i of what is written
    ends at ends[i] of `buffer`; all are of the lane state[LANE_OF]. Gives why it ended.
    """
    buf = place_of(data)
    out = place_of(buffer)
    key_data = place_of(keys)
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
        scope = load8(buf, pos + 1)
        after = pos + 2
        if scope >= 0x80:
            more = load8(buf, after)
            after += 1
            scope = (scope & 0x7F) | (more & 0x7F) << 7
            if more >= 0x80:
                more = load8(buf, after)
                after += 1
                if more > 3:
                    break
                scope |= more << 14
        body = after
        priority = _DEFAULT_PRIORITY
        if header & _Z:
            if size - body < 2 or load8(buf, body) != _QOS or load8(buf, body + 1) >= 0x80:
                break
            priority = load8(buf, body + 1) & _PRIORITIES
            body += 2
        if size - body < 2 or load8(buf, body) != _PUT:
            break
        length = load8(buf, body + 1)
        end = body + 2
        if length >= 0x80:
            if end >= size:
                break
            more = load8(buf, end)
            end += 1
            length = (length & 0x7F) | (more & 0x7F) << 7
            if more >= 0x80:  # long ones have another way
                break
        end += length
        if end > size:
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
            if at + 1 + key_len + end - after > len(buffer) or count >= len(ends):
                status = FULL
                break
            lane = this
            store8(out, at, (header & ~(_N | _M)) | np.int64(flags[code]))
            copy_bytes(out, at + 1, key_data, key_start, key_len)
            at += 1 + key_len
            copy_bytes(out, at, buf, after, end - after)
            at += end - after
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
