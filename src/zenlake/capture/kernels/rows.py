"""The compiled half of rows.py: fields of the scan's rows, gathered into Arrow's layout.

Knows arrays only. A field that is bytes is two of a row's words, where it starts and how long it
is; `base` says where in the buffer the row's own bytes begin. Every place is checked before.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment,attr-defined,call-arg,operator"

import numpy as np
from numba import njit

from zenlake.wire.kernels.memory import copy64, copy_bytes, load8, place_of, store8

_SMALL = 64  # copied at once, whatever the length: what is too much is overwritten by the next


@njit(cache=True, nogil=True)
def measure(words, field, valid, offsets):
    """Offsets of a column of bytes; the last one is how many there are."""
    total = np.int64(0)
    offsets[0] = 0
    for i in range(len(words)):
        if valid[i]:
            total += max(0, np.int64(words[i, field + 1]))
        offsets[i + 1] = total
    return total


@njit(cache=True, nogil=True)
def gather(words, field, base, valid, data, offsets, out):
    """The bytes that `measure` has counted; False, and nothing more, if a row lies."""
    source = place_of(data)
    target = place_of(out)
    for i in range(len(words)):
        if not valid[i]:
            continue
        at = np.int64(offsets[i])
        length = np.int64(offsets[i + 1]) - at
        start = base[i] + words[i, field]
        if start < 0 or start + length > len(data) or at + length > len(out):
            return False
        if length <= _SMALL and start + _SMALL <= len(data) and at + _SMALL <= len(out):
            copy64(target, at, source, start)
        else:
            copy_bytes(target, at, source, start, length)
    return True


@njit(cache=True, nogil=True)
def measure_keys(words, field, prefix_of, prefix_ends, offsets):
    """Offsets of full keys: a prefix and the suffix in `field`; no prefix (-1), no key."""
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
    source = place_of(data)
    front = place_of(prefixes)
    target = place_of(out)
    for i in range(len(words)):
        prefix = prefix_of[i]
        if prefix < 0:
            continue
        at = np.int64(offsets[i])
        start = np.int64(prefix_ends[prefix])
        length = np.int64(prefix_ends[prefix + 1]) - start
        if at + length > len(out):
            return False
        if length <= _SMALL and start + _SMALL <= len(prefixes) and at + _SMALL <= len(out):
            copy64(target, at, front, start)
        else:
            copy_bytes(target, at, front, start, length)
        at += length
        length = np.int64(offsets[i + 1]) - at
        start = base[i] + words[i, field]
        if length == 0:
            continue
        if length < 0 or start < 0 or start + length > len(data) or at + length > len(out):
            return False
        if length <= _SMALL and start + _SMALL <= len(data) and at + _SMALL <= len(out):
            copy64(target, at, source, start)
        else:
            copy_bytes(target, at, source, start, length)
    return True


@njit(cache=True)
def _digits(data, start, length):
    """How many hexadecimal digits a little-endian number has."""
    for i in range(length - 1, -1, -1):
        byte = load8(data, start + i)
        if byte:
            return 2 * i + (2 if byte > 0x0F else 1)
    return 0


@njit(cache=True, nogil=True)
def measure_ids(words, field, base, data, offsets):
    """Offsets of Zenoh ids as text; a row without one has 0 in `field`. -1 if a row lies."""
    source = place_of(data)
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
    source = place_of(data)
    target = place_of(out)
    for i in range(len(words)):
        at = np.int64(offsets[i])
        digits = np.int64(offsets[i + 1]) - at
        start = base[i] + words[i, field]
        for k in range(digits):
            place = digits - 1 - k
            byte = load8(source, start + (place >> 1))
            digit = byte >> 4 if place & 1 else byte & 0x0F
            store8(target, at + k, digit + (48 if digit < 10 else 87))
