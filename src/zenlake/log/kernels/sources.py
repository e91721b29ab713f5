"""Source numbers of the scan's rows, compiled: which source numbered a sample, and its number.

Knows arrays only. A source (id and entity) gets a code from 0 on, found by hashing in a table that
Python enlarges when the kernel reports it full. The interner of columnar/ would find sources by
their bytes; this table compares an id as two words.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from zenlake.wire.kernels.memory import load8, load64, mix, pointer_to

ID_BYTES = 16  # Bytes of the longest id.


class SourceTable(NamedTuple):
    """Table of distinct sources: the halves of the id, padded with zeros, and the entity."""

    slots: npt.NDArray[np.int32]
    "Codes by hash, -1 = empty; twice as many slots as sources, a power of two."
    low: npt.NDArray[np.uint64]
    high: npt.NDArray[np.uint64]
    entity: npt.NDArray[np.uint32]
    used: npt.NDArray[np.int64]
    "One number: how many sources there are."


def source_table(room: int) -> SourceTable:
    """Return an empty table; `room` is a power of two."""
    return SourceTable(
        np.full(2 * room, -1, np.int32),
        np.zeros(room, np.uint64),
        np.zeros(room, np.uint64),
        np.zeros(room, np.uint32),
        np.zeros(1, np.int64),
    )


@njit(cache=True, inline="always")
def _half(buf, start, length):
    """Return up to eight bytes as a little-endian number."""
    if length >= 8:
        return load64(buf, start)
    word = np.uint64(0)
    for i in range(length):
        word |= np.uint64(load8(buf, start + i)) << np.uint64(8 * i)
    return word


@njit(cache=True, nogil=True)
def sources_kernel(rows, first, data, seed, table, places, codes, numbers):
    """Write index, source and number of the rows from `first` on that have a source.

    Returns the next row, less than len(rows) if the table is full, and how many were found.
    """
    slots, low, high, entity, used = table
    buf = pointer_to(data)
    size = len(data)
    mask = np.uint64(len(slots) - 1)
    count = 0
    code = np.int64(-1)
    number = first
    while number < len(rows):
        start = np.int64(rows[number]["source"])
        length = np.int64(rows[number]["source_len"])
        if start <= 0 or not 0 < length <= ID_BYTES or start + length > size:
            number += 1
            continue
        low_half = _half(buf, start, length)
        high_half = _half(buf, start + 8, length - 8) if length > 8 else np.uint64(0)
        eid = rows[number]["source_eid"]
        # The first candidate is the source of the row before.
        if code < 0 or low[code] != low_half or high[code] != high_half or entity[code] != eid:
            hashed = mix(mix(mix(seed ^ low_half) ^ high_half) ^ np.uint64(eid))
            slot = hashed & mask
            code = np.int64(slots[slot])
            while code >= 0 and (
                low[code] != low_half or high[code] != high_half or entity[code] != eid
            ):
                slot = (slot + np.uint64(1)) & mask
                code = np.int64(slots[slot])
            if code < 0:
                code = used[0]
                if code >= len(low):
                    break
                low[code] = low_half
                high[code] = high_half
                entity[code] = eid
                slots[slot] = code
                used[0] = code + 1
        places[count] = number
        codes[count] = code
        numbers[count] = rows[number]["source_sn"]
        count += 1
        number += 1
    return number, count


@njit(cache=True)
def rehash(table, seed):
    """Enter every source into new, empty slots."""
    slots, low, high, entity, used = table
    mask = np.uint64(len(slots) - 1)
    for code in range(used[0]):
        hashed = mix(mix(mix(seed ^ low[code]) ^ high[code]) ^ np.uint64(entity[code]))
        slot = hashed & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = code
