"""The compiled half of read.py: rows of the scan, appended to columns.

Knows arrays only. Texts that repeat are interned: a number for each distinct (extra, bytes) pair,
found by hashing, kept in arrays that Python enlarges when this says they are full.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from zenlake.wire.memory_kernel import copy_bytes, load64

_PUSH, _RESPONSE = 0x1D, 0x1B
_PUT, _DEL = 0x01, 0x02
_BLOCK, _EXPRESS, _BLOCK_FIRST, _RELIABLE = 0x08, 0x10, 0x20, 0x08
_MIX, _FOLD = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)


class Interner(NamedTuple):
    """Distinct values; `used` holds how many there are and how many bytes they take."""

    slots: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]
    extras: npt.NDArray[np.int64]
    used: npt.NDArray[np.int64]


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
    payload_offsets: npt.NDArray[np.int32]
    payload: npt.NDArray[np.uint8]
    attached: npt.NDArray[np.uint8]
    attachment_offsets: npt.NDArray[np.int32]
    attachment: npt.NDArray[np.uint8]
    used: npt.NDArray[np.int64]


# What was full when the kernel stopped.
NOTHING_FULL, ROWS_FULL, PAYLOAD_FULL, ATTACHMENT_FULL = 0, 1, 2, 3
KEYS_FULL, ENCODINGS_FULL, CLOCKS_FULL, SOURCES_FULL = 4, 5, 6, 7


@njit(cache=True, inline="always")
def _hash(data, start, length, extra):
    """Eight bytes at a time; the last step overlaps the one before."""
    value = (np.uint64(extra) ^ np.uint64(length)) * _MIX
    if length >= 8:
        last = length - 8
        i = 0
        while i < last:
            value = (value ^ load64(data, start + i)) * _MIX
            value ^= value >> _FOLD
            i += 8
        value = (value ^ load64(data, start + last)) * _MIX
    else:
        for i in range(length):
            value = (value ^ np.uint64(data[start + i])) * _MIX
    return value ^ (value >> _FOLD)


@njit(cache=True, inline="always")
def _is(table, code, data, start, length, extra):
    """Whether value number `code` is this one."""
    at = np.int64(table.offsets[code])
    if table.extras[code] != extra or table.offsets[code + 1] - at != length:
        return False
    if length >= 8:
        last = length - 8
        i = 0
        while i < last:
            if load64(table.data, at + i) != load64(data, start + i):
                return False
            i += 8
        return load64(table.data, at + last) == load64(data, start + last)
    for i in range(length):  # noqa: SIM110 (compiled: a loop is what it should be)
        if table.data[at + i] != data[start + i]:
            return False
    return True


@njit(cache=True, inline="always")
def _intern(table, data, start, length, extra):
    """The number of a value, new or not; -1 if the table is full."""
    mask = np.uint64(len(table.slots) - 1)
    slot = _hash(data, start, length, extra) & mask
    code = table.slots[slot]
    while code >= 0:
        if _is(table, code, data, start, length, extra):
            return code
        slot = (slot + np.uint64(1)) & mask
        code = table.slots[slot]
    count = table.used[0]
    at = table.used[1]
    if 2 * (count + 1) > len(table.slots) or at + length > len(table.data):
        return np.int32(-1)
    copy_bytes(table.data, at, data, start, length)
    table.extras[count] = extra
    table.offsets[count + 1] = at + length
    table.slots[slot] = count
    table.used[0] = count + 1
    table.used[1] = at + length
    return np.int32(count)


@njit(cache=True)
def rehash(table):
    """Put every value into the (new, empty) slots again."""
    mask = np.uint64(len(table.slots) - 1)
    for code in range(table.used[0]):
        at = table.offsets[code]
        length = table.offsets[code + 1] - at
        slot = _hash(table.data, at, length, table.extras[code]) & mask
        while table.slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table.slots[slot] = code


@njit(cache=True, nogil=True)
def append_kernel(
    rows, first, replies, buf, received_at, key_extra, out, keys, encodings, clocks, sources
):
    """Append the samples among rows[first:]; (next row, what was full).

    `key_extra` tells the keys of one table of declared ids from those of another.
    """
    count = out.used[0]
    payload_at = out.used[1]
    attachment_at = out.used[2]
    capacity = len(out.key)
    key = np.int32(-1)
    encoding = np.int32(-1)
    clock = np.int32(-1)
    source = np.int32(-1)
    full = NOTHING_FULL
    number = first
    while number < len(rows):
        row = rows[number]
        kind = row["kind"]
        body = row["body"]
        if not (kind == _PUSH or (replies and kind == _RESPONSE and body <= _DEL)):
            number += 1
            continue
        if count >= capacity:
            full = ROWS_FULL
            break
        payload_len = np.int64(row["payload_len"])
        if payload_at + payload_len > len(out.payload):
            full = PAYLOAD_FULL
            break
        attachment_len = np.int64(row["attachment_len"])
        if attachment_at + attachment_len > len(out.attachment):
            full = ATTACHMENT_FULL
            break

        # Most samples have the key, encoding and source of the one before: compare, then hash.
        extra = key_extra | (np.int64(row["mapping"]) << 16) | np.int64(row["scope"])
        start = np.int64(row["suffix"])
        length = np.int64(row["suffix_len"])
        if key < 0 or not _is(keys, key, buf, start, length, extra):
            key = _intern(keys, buf, start, length, extra)
            if key < 0:
                full = KEYS_FULL
                break
        start = np.int64(row["schema"])
        length = np.int64(row["schema_len"])
        extra = (np.int64(row["encoding"]) << 1) | (1 if start else 0)
        if encoding < 0 or not _is(encodings, encoding, buf, start, length, extra):
            encoding = _intern(encodings, buf, start, length, extra)
            if encoding < 0:
                full = ENCODINGS_FULL
                break
        start = np.int64(row["clock"])
        if start:
            length = np.int64(row["clock_len"])
            if clock < 0 or not _is(clocks, clock, buf, start, length, 0):
                clock = _intern(clocks, buf, start, length, 0)
                if clock < 0:
                    full = CLOCKS_FULL
                    break
            out.clock[count] = clock + 1
            out.time[count] = row["time"]
        start = np.int64(row["source"])
        if start:
            length = np.int64(row["source_len"])
            if source < 0 or not _is(sources, source, buf, start, length, 0):
                source = _intern(sources, buf, start, length, 0)
                if source < 0:
                    full = SOURCES_FULL
                    break
            out.source[count] = source + 1
            out.entity[count] = row["source_eid"]
            out.source_sn[count] = row["source_sn"]

        out.key[count] = key
        if encoding:
            out.encoding[count] = encoding
        if body != _PUT:
            out.kind[count] = 1
        qos = np.int64(row["qos"])
        out.priority[count] = qos & 0x07
        if qos & (_BLOCK | _BLOCK_FIRST | _EXPRESS):
            out.congestion[count] = 1 if qos & _BLOCK else 2 if qos & _BLOCK_FIRST else 0
            out.express[count] = 1 if qos & _EXPRESS else 0
        if row["lane"] & _RELIABLE:
            out.reliable[count] = 1
        batch = np.int64(row["batch"])
        out.received_at[count] = received_at[batch if batch < len(received_at) else 0]
        copy_bytes(out.payload, payload_at, buf, np.int64(row["payload"]), payload_len)
        payload_at += payload_len
        out.payload_offsets[count + 1] = payload_at
        if row["attachment"]:
            out.attached[count] = 1
            copy_bytes(
                out.attachment, attachment_at, buf, np.int64(row["attachment"]), attachment_len
            )
            attachment_at += attachment_len
        if attachment_at:
            out.attachment_offsets[count + 1] = attachment_at
        count += 1
        number += 1
    out.used[0] = count
    out.used[1] = payload_at
    out.used[2] = attachment_at
    return number, full


@njit(cache=True)
def join_kernel(prefix_of, prefix_offsets, prefixes, suffix_offsets, suffixes, offsets, out):
    """Concatenate a prefix and a suffix for each value, into Arrow's string layout."""
    at = np.int64(0)
    for i in range(len(prefix_of)):
        prefix = prefix_of[i]
        start = np.int64(prefix_offsets[prefix])
        length = prefix_offsets[prefix + 1] - start
        copy_bytes(out, at, prefixes, start, length)
        at += length
        start = np.int64(suffix_offsets[i])
        length = suffix_offsets[i + 1] - start
        copy_bytes(out, at, suffixes, start, length)
        at += length
        offsets[i + 1] = at
