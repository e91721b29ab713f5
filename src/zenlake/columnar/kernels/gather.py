"""The compiled half of read.py: rows of the scan, appended to columns.

Knows arrays only. Texts that repeat are interned: each distinct (extra, bytes) pair has a number,
found by hashing, in arrays that Python enlarges when a kernel reports them full.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from zenlake.wire import push, put, qos
from zenlake.wire.kernels.memory import copy_bytes, copy_short, load8, load64, mix, pointer_to
from zenlake.wire.kernels.row import LANE_RELIABLE

_PUSH, _PUT = push.ID, put.ID
_HALF, _NOT_ZERO = np.uint64(32), np.uint64(1) << np.uint64(63)
_PRIORITIES, _BLOCK = qos.PRIORITY_BITS, qos.BLOCK
_EXPRESS, _BLOCK_FIRST = qos.EXPRESS, qos.BLOCK_FIRST


class Interner(NamedTuple):
    """Table of distinct (extra, bytes) pairs; `used`: how many, and how many bytes they take.

    One table serves all kinds of text: the extra's top bits are the kind (*_TEXT).
    """

    slots: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int32]
    values: npt.NDArray[np.uint8]
    extras: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    used: npt.NDArray[np.int64]


KEY_TEXT, ENCODING_TEXT, CLOCK_TEXT, SOURCE_TEXT = range(4)
WHAT_SHIFT = 60


class Columns(NamedTuple):
    """Columns of a record batch; `used`: rows, payload bytes, attachment bytes.

    All start as zeros, and only other values are written: untouched pages take no memory. Hence
    `clock` and `source` are the interned number + 1, 0 = none.
    """

    key: npt.NDArray[np.int32]
    encoding: npt.NDArray[np.int32]
    clock: npt.NDArray[np.int32]
    source: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int8]
    priority: npt.NDArray[np.int8]
    congestion: npt.NDArray[np.int8]
    express: npt.NDArray[np.uint8]
    reliable: npt.NDArray[np.uint8]
    time: npt.NDArray[np.uint64]
    entity: npt.NDArray[np.uint32]
    source_sn: npt.NDArray[np.uint32]
    received_at: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    payload_offsets: npt.NDArray[np.int32]
    payload: npt.NDArray[np.uint8]
    attached: npt.NDArray[np.uint8]
    attachment_offsets: npt.NDArray[np.int32]
    attachment: npt.NDArray[np.uint8]
    used: npt.NDArray[np.int64]


# Why append_kernel stopped: the array that is full, or keys the caller has to decide about.
NOTHING_FULL, ROWS_FULL, PAYLOAD_FULL, ATTACHMENT_FULL, TEXTS_FULL, UNDECIDED = range(6)
# Parts of a sample that are copied on request; the others are always copied, being small.
WITH_PAYLOAD, WITH_ENCODING, WITH_TIMESTAMP, WITH_SOURCE, WITH_ATTACHMENT = 1, 2, 4, 8, 16
WANTED, UNWANTED = 1, 2  # Decision about a key; 0 = not decided yet.


@njit(cache=True)
def rehash(table):
    """Enter every text into new, empty slots."""
    slots, _offsets, _values, _extras, hashes, used = table
    mask = np.uint64(len(slots) - 1)
    for code in range(used[0]):
        slot = hashes[code] & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = code


@njit(cache=True, inline="always")
def _same_text(values, at, buf, start, length):
    """Compare two texts, eight bytes at a time; the last eight may overlap those before."""
    if length < 8:
        same = True
        for i in range(length):
            same &= load8(values, at + i) == load8(buf, start + i)
        return same
    last = length - 8
    for i in range(0, last, 8):
        if load64(values, at + i) != load64(buf, start + i):
            return False
    return load64(values, at + last) == load64(buf, start + last)


@njit(cache=True, inline="always")
def _hash_text(buf, start, length, extra, seed):
    """Return a hash, never 0, that a sender that does not know `seed` cannot foresee."""
    hashed = mix(seed ^ np.uint64(extra) ^ (np.uint64(length) << _HALF))
    if length >= 8:
        for i in range(0, length - 8, 8):
            hashed = mix(hashed ^ load64(buf, start + i))
        hashed = mix(hashed ^ load64(buf, start + length - 8))
    else:
        for i in range(length):
            hashed = mix(hashed ^ np.uint64(load8(buf, start + i)))
    return hashed | _NOT_ZERO


@njit(cache=True)
def _add_text(texts, limit, room, slot, hashed, extra, length):
    """Enter a text of `length` bytes; return its number, or -1 if there is no room for it."""
    slots, offsets, _values, extras, hashes, used = texts
    code, at = used[0], used[1]
    if code >= limit or 2 * (code + 1) > len(slots) or at + length > room:
        return -1
    extras[code] = extra
    hashes[code] = hashed
    offsets[code + 1] = at + length
    slots[slot] = code
    used[0] = code + 1
    used[1] = at + length
    return code


@njit(cache=True, inline="always")
def _congestion_of(bits):
    """Return the congestion control of a QoS byte, as its column counts it."""
    return 1 if bits & _BLOCK else 2 if bits & _BLOCK_FIRST else 0


@njit(cache=True, nogil=True)
def append_kernel(
    rows,
    first,
    data,
    received_at,
    row_offsets,
    key_extra,
    seed,
    text_limit,
    text_bytes,
    parts,
    decided,
    out,
    texts,
):
    """Append the samples among rows[first:]; return (next row, what was full).

    `key_extra` tells the keys of one table of declared ids from those of another. `seed` keys the
    hashes, so that no traffic can make them collide on purpose. `texts` may grow to `text_limit`
    texts of `text_bytes` bytes in all. `row_offsets` has one entry per row, or none.

    `decided` says for each text that is a key whether its samples are wanted; without entries all
    are. At an undecided key the kernel appends nothing more and interns the keys of all further
    rows, so that its caller can decide about them all at once.
    """
    # Every use of a tuple's field counts a reference up and down; a local variable does not.
    out_key = out.key
    out_encoding = out.encoding
    out_clock = out.clock
    out_source = out.source
    out_kind = out.kind
    out_priority = out.priority
    out_congestion = out.congestion
    out_express = out.express
    out_reliable = out.reliable
    out_time = out.time
    out_entity = out.entity
    out_source_sn = out.source_sn
    out_received_at = out.received_at
    out_offset = out.offset
    out_payload_offsets = out.payload_offsets
    out_payload = pointer_to(out.payload)
    payload_room = len(out.payload)
    out_attached = out.attached
    out_attachment_offsets = out.attachment_offsets
    out_attachment = pointer_to(out.attachment)
    attachment_room = len(out.attachment)
    slots, offsets, text_values, extras = texts.slots, texts.offsets, texts.values, texts.extras
    values = pointer_to(text_values)
    text_room = min(len(text_values), text_bytes)
    buf = pointer_to(data)
    mask = np.uint64(len(slots) - 1)
    codes = np.full(4, -1, np.int64)  # texts of the row before, then of this row
    plain_encoding = np.int64(-1)  # encoding of the row before, if it has no schema
    undecided = np.int64(-1)  # first row with an undecided key

    count = out.used[0]
    payload_at = out.used[1]
    attachment_at = out.used[2]
    full = NOTHING_FULL
    number = first
    while number < len(rows):
        row = rows[number]
        if row["kind"] != _PUSH:
            number += 1
            continue
        payload_len = np.int64(row["payload_len"]) if parts & WITH_PAYLOAD else 0
        attachment_len = np.int64(row["attachment_len"]) if parts & WITH_ATTACHMENT else 0
        wanted = True
        # Which text is which is decided here: a function that returns it costs a tenth.
        for what in range(4):
            if what == KEY_TEXT:
                start = np.int64(row["suffix"])
                length = np.int64(row["suffix_len"])
                extra = key_extra | (np.int64(row["mapping"]) << 16) | np.int64(row["scope"])
            elif what == ENCODING_TEXT:
                if not parts & WITH_ENCODING:
                    continue
                start = np.int64(row["schema"])
                length = np.int64(row["schema_len"])
                extra = (np.int64(row["encoding"]) << 1) | (1 if start else 0)
                if extra == plain_encoding:
                    continue  # no schema, and the encoding of the row before: nothing to compare
                plain_encoding = np.int64(-1) if start else extra
            elif what == CLOCK_TEXT:
                start = np.int64(row["clock"])
                length = np.int64(row["clock_len"])
                extra = np.int64(0)
                if not start or not parts & WITH_TIMESTAMP:
                    continue
            else:
                start = np.int64(row["source"])
                length = np.int64(row["source_len"])
                extra = np.int64(0)
                if not start or not parts & WITH_SOURCE:
                    continue
            extra |= np.int64(what) << WHAT_SHIFT
            # The first candidate is the text of the row before; then follow the hash.
            code = codes[what]
            slot = np.uint64(0)
            hashed = np.uint64(0)
            while True:
                if code >= 0:
                    at = np.int64(offsets[code])
                    if (
                        extras[code] == extra
                        and offsets[code + 1] - at == length
                        and _same_text(values, at, buf, start, length)
                    ):
                        break
                elif hashed:  # an empty slot: the text is new
                    break
                if hashed:
                    slot = (slot + np.uint64(1)) & mask
                else:
                    hashed = _hash_text(buf, start, length, extra, seed)
                    slot = hashed & mask
                code = np.int64(slots[slot])
            if code < 0:
                code = _add_text(texts, text_limit, text_room, slot, hashed, extra, length)
                if code < 0:
                    full = TEXTS_FULL
                    break
                copy_bytes(values, np.int64(offsets[code]), buf, start, length)
            codes[what] = code
            if what == KEY_TEXT:
                wanted = code >= len(decided) or decided[code] == WANTED
                if not wanted and undecided < 0 and decided[code] != UNWANTED:
                    undecided = number
                if not wanted or undecided >= 0:
                    break
                if count >= len(out_key):
                    full = ROWS_FULL
                elif payload_at + payload_len > payload_room:
                    full = PAYLOAD_FULL
                elif attachment_at + attachment_len > attachment_room:
                    full = ATTACHMENT_FULL
                if full:
                    break
        if full:
            break
        if not wanted or undecided >= 0:
            number += 1
            continue

        out_key[count] = codes[KEY_TEXT]
        if parts & WITH_ENCODING:
            out_encoding[count] = codes[ENCODING_TEXT]
        if row["clock"] and parts & WITH_TIMESTAMP:
            out_clock[count] = codes[CLOCK_TEXT] + 1
            out_time[count] = row["time"]
        if row["source"] and parts & WITH_SOURCE:
            out_source[count] = codes[SOURCE_TEXT] + 1
            out_entity[count] = row["source_eid"]
            out_source_sn[count] = row["source_sn"]
        if row["body"] != _PUT:
            out_kind[count] = 1
        bits = np.int64(row["qos"])
        out_priority[count] = bits & _PRIORITIES
        if bits & ~_PRIORITIES:
            out_congestion[count] = _congestion_of(bits)
            out_express[count] = 1 if bits & _EXPRESS else 0
        if row["lane"] & LANE_RELIABLE:
            out_reliable[count] = 1
        batch = np.int64(row["batch"])
        out_received_at[count] = received_at[batch if batch < len(received_at) else 0]
        if number < len(row_offsets):
            out_offset[count] = row_offsets[number]
        copy_short(
            out_payload,
            payload_at,
            payload_room,
            buf,
            np.int64(row["payload"]),
            len(data),
            payload_len,
        )
        payload_at += payload_len
        out_payload_offsets[count + 1] = payload_at
        if row["attachment"] and parts & WITH_ATTACHMENT:
            out_attached[count] = 1
            copy_bytes(
                out_attachment, attachment_at, buf, np.int64(row["attachment"]), attachment_len
            )
            attachment_at += attachment_len
        if attachment_at:
            out_attachment_offsets[count + 1] = attachment_at
        count += 1
        number += 1
    out.used[0] = count
    out.used[1] = payload_at
    out.used[2] = attachment_at
    if undecided >= 0:
        return undecided, UNDECIDED  # its key is interned; the next call meets what is full again
    return number, full
