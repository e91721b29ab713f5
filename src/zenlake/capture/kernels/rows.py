"""The compiled half of rows.py: fields of the scan's rows, gathered into Arrow's layout.

Knows arrays only. A field of bytes is two of a row's words, its start and its length; `base` says
where in the buffer the row's own bytes begin. Every position is checked before it is read.
"""

# mypy: disable-error-code="assignment,attr-defined,call-arg,operator"

import numpy as np
from numba import njit

from zenlake.wire.kernels.memory import copy_short, load8, pointer_to, store8


@njit(cache=True, nogil=True)
def measure(words, field, valid, offsets):
    """Write the offsets of a column of bytes; return how many bytes it has."""
    total = np.int64(0)
    offsets[0] = 0
    for i in range(len(words)):
        if valid[i]:
            total += max(0, np.int64(words[i, field + 1]))
        offsets[i + 1] = total
    return total


@njit(cache=True, nogil=True)
def gather(words, field, base, valid, data, offsets, out):
    """Copy the bytes that `measure` counted; stop and return False at a wrong position."""
    source = pointer_to(data)
    target = pointer_to(out)
    for i in range(len(words)):
        if not valid[i]:
            continue
        at = np.int64(offsets[i])
        length = np.int64(offsets[i + 1]) - at
        start = base[i] + words[i, field]
        if start < 0 or start + length > len(data) or at + length > len(out):
            return False
        copy_short(target, at, len(out), source, start, len(data), length)
    return True


@njit(cache=True, nogil=True)
def measure_keys(words, field, prefix_of, prefix_ends, offsets):
    """Write the offsets of full keys, prefix and suffix; return their bytes. Prefix -1: no key."""
    total = np.int64(0)
    offsets[0] = 0
    for i in range(len(words)):
        prefix = prefix_of[i]
        if prefix >= 0:
            total += prefix_ends[prefix + 1] - prefix_ends[prefix]
            total += max(0, np.int64(words[i, field + 1]))
        offsets[i + 1] = total
    return total


@njit(cache=True, nogil=True)
def gather_keys(words, field, base, prefix_of, prefix_ends, prefixes, data, offsets, out):
    """Copy the keys that `measure_keys` counted; stop and return False at a wrong position."""
    source = pointer_to(data)
    front = pointer_to(prefixes)
    target = pointer_to(out)
    for i in range(len(words)):
        prefix = prefix_of[i]
        if prefix < 0:
            continue
        at = np.int64(offsets[i])
        start = np.int64(prefix_ends[prefix])
        length = np.int64(prefix_ends[prefix + 1]) - start
        if at + length > len(out):
            return False
        copy_short(target, at, len(out), front, start, len(prefixes), length)
        at += length
        length = np.int64(offsets[i + 1]) - at
        start = base[i] + words[i, field]
        if length == 0:
            continue
        if length < 0 or start < 0 or start + length > len(data) or at + length > len(out):
            return False
        copy_short(target, at, len(out), source, start, len(data), length)
    return True


@njit(cache=True)
def _digits(data, start, length):
    """Return how many hexadecimal digits a little-endian number has."""
    for i in range(length - 1, -1, -1):
        byte = load8(data, start + i)
        if byte:
            return 2 * i + (2 if byte > 0x0F else 1)
    return 0


@njit(cache=True, nogil=True)
def measure_ids(words, field, base, data, offsets):
    """Write the offsets of Zenoh ids as text; return their bytes, or -1 at a wrong position.

    A row without an id has 0 in `field`.
    """
    source = pointer_to(data)
    total = np.int64(0)
    offsets[0] = 0
    for i in range(len(words)):
        if words[i, field]:
            start, length = base[i] + words[i, field], np.int64(words[i, field + 1])
            if start < 0 or length < 0 or start + length > len(data):
                return np.int64(-1)
            total += _digits(source, start, length)
        offsets[i + 1] = total
    return total


@njit(cache=True, nogil=True)
def gather_ids(words, field, base, data, offsets, out):
    """Write the ids that `measure_ids` counted, as hexadecimal digits."""
    source = pointer_to(data)
    target = pointer_to(out)
    for i in range(len(words)):
        at = np.int64(offsets[i])
        digits = np.int64(offsets[i + 1]) - at
        start = base[i] + words[i, field]
        for k in range(digits):
            place = digits - 1 - k
            byte = load8(source, start + (place >> 1))
            digit = byte >> 4 if place & 1 else byte & 0x0F
            store8(target, at + k, digit + (48 if digit < 10 else 87))
