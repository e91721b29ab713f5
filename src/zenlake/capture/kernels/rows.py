"""The compiled half of rows.py: fields of the scan's rows, gathered into Arrow's layout.

Knows arrays only. A field of bytes is two of a row's words, its start and its length; `base` says
where in the buffer the row's own bytes begin. Every position is checked before it is read.
"""

# mypy: disable-error-code="assignment,attr-defined,call-arg,operator"

import numpy as np
from numba import njit

from zenlake.wire.kernels.memory import copy_short, pointer_to


@njit(cache=True, nogil=True)
def measure(words, field, prefix_of, prefix_ends, offsets):
    """Write the offsets of a column of bytes, each after a prefix; return how many bytes it has.

    A row whose prefix is -1 has none.
    """
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
def gather(words, field, base, prefix_of, prefix_ends, prefixes, data, offsets, out):
    """Copy the bytes that `measure` counted; stop and return False at a wrong position."""
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
