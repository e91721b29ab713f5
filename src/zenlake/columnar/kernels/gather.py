"""The compiled half of read.py: rows of the scan, appended to columns.

Knows arrays only. Texts that repeat are interned: a number for each distinct (extra, bytes) pair,
found by hashing, kept in arrays that Python enlarges when this says they are full.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from zenlake.wire import delete, push, put, qos, response
from zenlake.wire.kernels.memory import copy64, copy_bytes, load8, load64, mixed, place_of
from zenlake.wire.kernels.scan import LANE_RELIABLE

_PUSH, _RESPONSE = push.ID, response.ID
_PUT, _DEL = put.ID, delete.ID
_HALF = np.uint64(32)
_BLOCK, _EXPRESS, _BLOCK_FIRST = qos.BLOCK, qos.EXPRESS, qos.BLOCK_FIRST
_RELIABLE = LANE_RELIABLE


class Interner(NamedTuple):
    """Distinct (extra, bytes) pairs; `used` holds how many there are and how many bytes they take.

    One table serves all kinds of text: the extra's top bits say what the text is (see *_TEXT).
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
    """What a record batch is made of; `used`: rows, payload bytes, attachment bytes.

    All start as zeros, and only what is not zero is written: memory that nobody touches costs
    nothing. Hence `clock` and `source` are the interned number + 1, 0 = none.
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


# What was full when the kernel stopped, or that somebody has to say which new keys are wanted.
NOTHING_FULL, ROWS_FULL, PAYLOAD_FULL, ATTACHMENT_FULL, TEXTS_FULL, UNDECIDED = range(6)
# What of a sample is copied; all else is so little that it always is.
WITH_PAYLOAD, WITH_ENCODING, WITH_TIMESTAMP, WITH_SOURCE, WITH_ATTACHMENT = 1, 2, 4, 8, 16
WANTED, UNWANTED = 1, 2  # a key; 0: not yet decided


@njit(cache=True)
def rehash(table):
    """Put every value into the (new, empty) slots again."""
    slots, _offsets, _values, _extras, hashes, used = table
    mask = np.uint64(len(slots) - 1)
    for code in range(used[0]):
        slot = hashes[code] & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = code


@njit(cache=True, nogil=True)
def append_kernel(
    rows,
    first,
    replies,
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
    """Append the samples among rows[first:]; (next row, what was full).

    `key_extra` tells the keys of one table of declared ids from those of another; `seed` makes
    hashes that nobody outside can foresee, so that no traffic can make them collide. There are to
    be at most `text_limit` texts, of `text_bytes` bytes. `row_offsets`: one for each row, or none.

    `decided` says for each text, if it is a key, whether its samples are wanted; without entries
    all are. At a key that nobody decided about, the keys of all further rows are interned too, so
    that one question does for them all; nothing is appended from there on.
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
    out_payload = place_of(out.payload)
    payload_room = len(out.payload)
    out_attached = out.attached
    out_attachment_offsets = out.attachment_offsets
    out_attachment = place_of(out.attachment)
    attachment_room = len(out.attachment)
    slots, offsets, text_values, extras, hashes, used = texts
    values = place_of(text_values)
    text_room = min(len(text_values), text_bytes)
    buf = place_of(data)
    mask = np.uint64(len(slots) - 1)
    codes = np.full(4, -1, np.int64)  # of the row before, and then of this one
    plain_encoding = np.int64(-1)
    undecided = np.int64(-1)  # the first row whose key is

    count = out.used[0]
    payload_at = out.used[1]
    attachment_at = out.used[2]
    capacity = len(out_key)
    full = NOTHING_FULL
    number = first
    while number < len(rows):
        row = rows[number]
        kind = row["kind"]
        body = row["body"]
        if not (kind == _PUSH or (replies and kind == _RESPONSE and body <= _DEL)):
            number += 1
            continue
        payload_len = np.int64(row["payload_len"]) if parts & WITH_PAYLOAD else 0
        attachment_len = np.int64(row["attachment_len"]) if parts & WITH_ATTACHMENT else 0
        unwanted = False
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
                if extra == plain_encoding and not start:
                    continue  # no schema, and the type of the row before: nothing to compare
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
            # The first candidate is the row before, which mostly has the same text; then hash.
            code = codes[what]
            slot = np.uint64(0)
            hashed = np.uint64(0)
            while True:
                if code >= 0:
                    at = np.int64(offsets[code])
                    if extras[code] == extra and offsets[code + 1] - at == length:
                        same = True
                        if length >= 8:
                            last = length - 8
                            for i in range(0, last, 8):
                                if load64(values, at + i) != load64(buf, start + i):
                                    same = False
                                    break
                            same &= load64(values, at + last) == load64(buf, start + last)
                        else:
                            for i in range(length):
                                same &= load8(values, at + i) == load8(buf, start + i)
                        if same:
                            break
                elif hashed:  # an empty slot: the text is new
                    code = used[0]
                    at = used[1]
                    if code >= text_limit or 2 * (code + 1) > len(slots) or at + length > text_room:
                        full = TEXTS_FULL
                        break
                    copy_bytes(values, at, buf, start, length)
                    extras[code] = extra
                    hashes[code] = hashed
                    offsets[code + 1] = at + length
                    slots[slot] = code
                    used[0] = code + 1
                    used[1] = at + length
                    break
                if hashed:
                    slot = (slot + np.uint64(1)) & mask
                else:
                    # Eight bytes at a time; the last eight may overlap those before.
                    hashed = mixed(seed ^ np.uint64(extra) ^ (np.uint64(length) << _HALF))
                    if length >= 8:
                        for i in range(0, length - 8, 8):
                            hashed = mixed(hashed ^ load64(buf, start + i))
                        hashed = mixed(hashed ^ load64(buf, start + length - 8))
                    else:
                        for i in range(length):
                            hashed = mixed(hashed ^ np.uint64(load8(buf, start + i)))
                    hashed |= np.uint64(1) << np.uint64(63)  # never zero: zero is "not yet"
                    slot = hashed & mask
                code = np.int64(slots[slot])
            codes[what] = code
            if what == KEY_TEXT and not full:
                if code < len(decided) and decided[code] != WANTED:
                    unwanted = True
                    if undecided < 0 and decided[code] != UNWANTED:
                        undecided = number
                elif count >= capacity:
                    full = ROWS_FULL
                elif payload_at + payload_len > payload_room:
                    full = PAYLOAD_FULL
                elif attachment_at + attachment_len > attachment_room:
                    full = ATTACHMENT_FULL
            if full or unwanted or undecided >= 0:
                break
        if undecided >= 0 and full != TEXTS_FULL:
            full = NOTHING_FULL  # nothing is appended any more, so nothing can be full
            number += 1
            continue
        if full:
            break
        if unwanted:
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
        if body != _PUT:
            out_kind[count] = 1
        bits = np.int64(row["qos"])
        out_priority[count] = bits & 0x07
        if bits & (_BLOCK | _BLOCK_FIRST | _EXPRESS):
            out_congestion[count] = 1 if bits & _BLOCK else 2 if bits & _BLOCK_FIRST else 0
            out_express[count] = 1 if bits & _EXPRESS else 0
        if row["lane"] & _RELIABLE:
            out_reliable[count] = 1
        batch = np.int64(row["batch"])
        out_received_at[count] = received_at[batch if batch < len(received_at) else 0]
        if number < len(row_offsets):
            out_offset[count] = row_offsets[number]
        start = np.int64(row["payload"])
        if payload_len <= 64 and start + 64 <= len(data) and payload_at + 64 <= payload_room:
            copy64(out_payload, payload_at, buf, start)  # the next row overwrites what is too much
        else:
            copy_bytes(out_payload, payload_at, buf, start, payload_len)
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
        return undecided, UNDECIDED  # its key is interned: what is full can wait for a row's turn
    return number, full


@njit(cache=True)
def join_kernel(prefix_of, prefix_offsets, prefixes, suffix_offsets, suffixes, offsets, joined):
    """Concatenate a prefix and a suffix for each value, into Arrow's string layout."""
    prefix_place = place_of(prefixes)
    suffix_place = place_of(suffixes)
    out = place_of(joined)
    at = np.int64(0)
    for i in range(len(prefix_of)):
        prefix = prefix_of[i]
        start = np.int64(prefix_offsets[prefix])
        length = prefix_offsets[prefix + 1] - start
        copy_bytes(out, at, prefix_place, start, length)
        at += length
        start = np.int64(suffix_offsets[i])
        length = suffix_offsets[i + 1] - start
        copy_bytes(out, at, suffix_place, start, length)
        at += length
        offsets[i + 1] = at


@njit(cache=True, nogil=True)
def spell_kernel(codes, ends, values, offsets, out):
    """The text of each code (below 0: none) one after another, into Arrow's string layout.

    `ends` are those of the texts, with a 0 before the first; False if something does not fit.
    """
    source = place_of(values)
    target = place_of(out)
    room = len(out)
    at = np.int64(0)
    for i in range(len(codes)):
        code = codes[i]
        if code >= 0:
            if code + 1 >= len(ends):
                return False
            start = np.int64(ends[code])
            length = np.int64(ends[code + 1]) - start
            if length < 0 or start < 0 or start + length > len(values) or at + length > room:
                return False
            if length <= 64 and start + 64 <= len(values) and at + 64 <= room:
                copy64(target, at, source, start)  # the next text overwrites what is too much
            else:
                copy_bytes(target, at, source, start, length)
            at += length
        offsets[i + 1] = at
    return True
