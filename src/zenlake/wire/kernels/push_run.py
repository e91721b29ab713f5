"""The compiled half of push_run.py: rows of the scan grouped by key, and written for another link.

Knows rows and bytes that the scan has checked. Does not know what a key or a destination is: a
group is a number, and a table says what to write instead of its key.
"""

import numpy as np
from numba import njit

from zenlake.wire import err, push, put, response
from zenlake.wire.extensions import (
    ENC_MASK,
    ENC_UNIT,
    ENC_Z64,
    FLAG_EXTENSIONS,
    IDENTITY_MASK,
    NODE_ID,
)
from zenlake.wire.kernels.memory import copy_bytes, load8, mix, pointer_to, store8, write_zint
from zenlake.wire.kernels.row import FLAG_NODE_ID, FLAG_STACK
from zenlake.wire.wireexpr import FLAG_MAPPING, FLAG_NAMED

_PUSH, _PUT, _STAMPED = push.ID, put.ID, put.FLAG_TIMESTAMP
_RESPONSE, _ERR = response.ID, err.ID
_KEY_FLAGS = FLAG_NAMED | FLAG_MAPPING
_Z, _UNIT, _Z64 = FLAG_EXTENSIONS, ENC_UNIT, ENC_Z64
_NODE_ID = NODE_ID.header & IDENTITY_MASK

# Indices into what group_kernel found, an int64 array.
STOP, GROUPS, PLAIN, STAMPLESS = range(4)
FOUND_SIZE = 4


@njit(cache=True, inline="always")
def _same_key(buf, a, b):
    """Return whether two rows have the same key."""
    if a["scope"] != b["scope"] or a["mapping"] != b["mapping"]:
        return False
    length = a["suffix_len"]
    if length != b["suffix_len"]:
        return False
    x = a["suffix"]
    y = b["suffix"]
    for i in range(length):  # noqa: SIM110 (Numba does not compile any())
        if load8(buf, x + i) != load8(buf, y + i):
            return False
    return True


@njit(cache=True, inline="always")
def _hash(buf, row, seed):
    """Return a hash of a row's key, which a sender that does not know `seed` cannot foresee."""
    number = np.uint64(row["scope"]) << np.uint64(1) | np.uint64(row["mapping"])
    value = mix(seed ^ number)
    start = row["suffix"]
    for i in range(row["suffix_len"]):
        value = mix(value ^ np.uint64(load8(buf, start + i)))
    return value


@njit(cache=True)
def group_kernel(
    data, rows, kind, first, base, seed, slots, codes, firsts, keys, starts, ends, found
):
    """Number the keys of the messages from `first` on that are of one `kind`, PUSH or RESPONSE.

    Ends at another message, at one with a timestamp stack, at an ERR, and at a reply to another
    request. codes[i] is the number of row
    first + i, firsts[code] the first row that has it, keys[code] its mapping and scope as one
    number, and the range of its suffix. Payload i is [starts[i], ends[i]), counted from `base`
    bytes before the data. found[PLAIN]: all messages are puts with nothing beside the payload.
    """
    buf = pointer_to(data)
    mask = len(slots) - 1
    slots[:] = -1
    groups = 0
    plain = 1
    stampless = 0
    code = -1
    row = first
    while row < len(rows):
        here = rows[row]
        if here["kind"] != kind or here["flags"] & FLAG_STACK:
            break
        if kind == _RESPONSE and (
            here["body"] == _ERR or here["request_id"] != rows[first]["request_id"]
        ):
            break
        at = row - first
        if code < 0 or not _same_key(buf, here, rows[firsts[code]]):
            slot = np.int64(_hash(buf, here, seed) & np.uint64(mask))
            while True:
                code = slots[slot]
                if code < 0:
                    code = groups
                    slots[slot] = code
                    firsts[code] = row
                    keys[code, 0] = np.int64(here["mapping"]) << 16 | np.int64(here["scope"])
                    keys[code, 1] = here["suffix"]
                    keys[code, 2] = here["suffix"] + here["suffix_len"]
                    groups += 1
                    break
                if _same_key(buf, here, rows[firsts[code]]):
                    break
                slot = (slot + 1) & mask
        codes[at] = code
        starts[at] = base + here["payload"]
        ends[at] = base + here["payload"] + here["payload_len"]
        if here["body"] == _PUT and here["clock"] == 0:
            stampless = 1
        if kind != _PUSH or here["body"] != _PUT or not _is_plain(buf, here):
            plain = 0
        row += 1
    found[STOP] = row
    found[GROUPS] = groups
    found[PLAIN] = plain
    found[STAMPLESS] = stampless


@njit(cache=True, inline="always")
def _skip_zint(buf, pos):
    """Return the position after a zint."""
    for _ in range(8):
        if load8(buf, pos) < 0x80:
            return pos + 1
        pos += 1
    return pos + 1


@njit(cache=True, inline="always")
def _after_key(buf, row):
    """Return the position of a PUSH's or RESPONSE's extensions or body.

    A row has no field for it: one more would not fit two cache lines.
    """
    if row["suffix_len"] > 0:
        return np.int64(row["suffix"]) + row["suffix_len"]
    pos = np.int64(row["start"]) + 1
    if row["kind"] == _RESPONSE:  # the request id is before the key
        pos = _skip_zint(buf, pos)
    pos = _skip_zint(buf, pos)
    if load8(buf, row["start"]) & FLAG_NAMED:  # an empty suffix has its length, too
        pos = _skip_zint(buf, pos)
    return pos


@njit(cache=True, inline="always")
def _is_plain(buf, row):
    """Return whether a PUSH has no extension and holds a PUT without flags."""
    if load8(buf, row["start"]) & _Z:
        return False
    return load8(buf, _after_key(buf, row)) == _PUT


@njit(cache=True, inline="always")
def _skip_extension(buf, pos):
    """Return the position after an extension, which the scan has checked."""
    kind = load8(buf, pos) & ENC_MASK
    pos += 1
    if kind == _Z64:
        return _skip_zint(buf, pos)
    if kind == _UNIT:
        return pos
    length = np.int64(0)
    shift = 0
    while True:
        byte = load8(buf, pos)
        pos += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return pos + length


@njit(cache=True, inline="always")
def body_start(buf, row):
    """Return the position of a PUSH's PUT or DEL: after its extensions, which the scan checked."""
    pos = _after_key(buf, row)
    more = load8(buf, row["start"]) & _Z
    while more:
        more = load8(buf, pos) & _Z
        pos = _skip_extension(buf, pos)
    return pos


@njit(cache=True)
def _copy_extensions(buf, pos, out, header_at, at):
    """Copy the extensions of a PUSH from `pos` on without its NodeId; return where both ends are.

    `header_at` is the position of the written message's header: it, or the last extension that is
    written, then says that none follows.
    """
    last = header_at
    more = 1
    while more:
        header = load8(buf, pos)
        more = header & _Z
        end = _skip_extension(buf, pos)
        if header & IDENTITY_MASK != _NODE_ID:
            copy_bytes(out, at, buf, pos, end - pos)
            last = at
            at += end - pos
        pos = end
    store8(out, last, load8(out, last) & ~_Z)
    return pos, at


@njit(cache=True)
def rewrite_kernel(
    data, rows, first, codes, wanted, before, offsets, keys, key_flags, time, clock, buffer, ends
):
    """Write the rows first .. first + len(codes) whose group is wanted, each with its new key and
    without a NodeId.

    `before` is written between header and key: the new request id of a RESPONSE. With a `clock`, a
    put without a timestamp gets one: `time` plus its place in the run, counted from 1, so that it
    is the same for every destination. ends[i] is where the i-th message written ends in `buffer`.
    Returns how many were written.
    """
    buf = pointer_to(data)
    out = pointer_to(buffer)
    key_data = pointer_to(keys)
    clock_data = pointer_to(clock)
    before_data = pointer_to(before)
    at = np.int64(0)
    count = 0
    for i in range(len(codes)):
        code = codes[i]
        if not wanted[code]:
            continue
        row = rows[first + i]
        header = load8(buf, row["start"])
        header_at = at
        store8(out, at, (header & ~_KEY_FLAGS) | np.int64(key_flags[code]))
        at += 1
        copy_bytes(out, at, before_data, 0, len(before))
        at += len(before)
        length = offsets[code + 1] - offsets[code]
        copy_bytes(out, at, key_data, offsets[code], length)
        at += length
        pos = _after_key(buf, row)
        if row["flags"] & FLAG_NODE_ID:
            pos, at = _copy_extensions(buf, pos, out, header_at, at)
        if len(clock) and row["body"] == _PUT and row["clock"] == 0:
            body = max(pos, body_start(buf, row))
            copy_bytes(out, at, buf, pos, body - pos)
            at += body - pos
            store8(out, at, load8(buf, body) | _STAMPED)
            at = write_zint(out, at + 1, time + np.uint64(i + 1))
            copy_bytes(out, at, clock_data, 0, len(clock))
            at += len(clock)
            pos = body + 1
        rest = np.int64(row["end"]) - pos
        copy_bytes(out, at, buf, pos, rest)
        at += rest
        ends[count] = at
        count += 1
    return count


@njit(cache=True, nogil=True)
def copy_kernel(data, rows, first, stop, indices, out):
    """Copy the messages rows[first + i] for each i of `indices`, one after another.

    Returns how many bytes were written. Ends at a number outside the run, or without room.
    """
    source, target = pointer_to(data), pointer_to(out)
    at = 0
    for i in range(len(indices)):
        number = first + indices[i]
        if number < first or number >= stop:
            break
        start = np.int64(rows[number]["start"])
        length = np.int64(rows[number]["end"]) - start
        if start < 0 or length < 0 or start + length > len(data) or at + length > len(out):
            break
        copy_bytes(target, at, source, start, length)
        at += length
    return at
