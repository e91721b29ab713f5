"""Puts with a pointer into shared memory, many at a time: found, and written with their payloads.

Knows the usual form of such a PUSH: no extension but QoS, a PUT without attachment, one pointer.
The first message of another form ends the search, and the object codec reads it. Does not touch
shared memory: pointers.py copies the payloads to the places that are left for them.
"""

import numpy as np
from numba import njit

from zenlake.shm.headers import HEADERS
from zenlake.wire import push, put
from zenlake.wire.cursor import U16, U32
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.extensions import FLAG_EXTENSIONS, QOS
from zenlake.wire.kernels.memory import copy_bytes, load8, pointer_to, store8, write_zint
from zenlake.wire.kernels.scan_core import read_zint
from zenlake.wire.qos import DEFAULT
from zenlake.wire.wireexpr import FLAG_NAMED

_ID_MASK, _Z, _NAMED = ID_MASK, FLAG_EXTENSIONS, FLAG_NAMED
_PUSH, _PUT, _STAMPED, _ENCODED = push.ID, put.ID, put.FLAG_TIMESTAMP, put.FLAG_ENCODING
_QOS, _DEFAULT_QOS = QOS.header, int(DEFAULT)
_SHM, _POINTER = put.SHM.header, put.SHM_SLICE
_HEADERS, _U16, _U32 = HEADERS, U16, U32
LENGTH_BYTES = 5  # Bytes of the longest payload length: 32 bits.

SHARED = np.dtype(
    [
        ("start", "i8"),  # first byte of the message
        ("body", "i8"),  # header of the PUT
        ("mark", "i8"),  # the extension that says that the payload is shared
        ("qos", "i8"),
        ("size", "i8"),  # bytes of the payload
        ("table", "i8"),
        ("index", "i8"),
        ("generation", "i8"),
        ("payload", "i8"),  # where the payload belongs in the written messages
    ]
)


@njit(cache=True)
def _skip_block(buf, pos, end):
    """Return the position after a length and as many bytes; -1: the bytes end first."""
    at, length = read_zint(buf, pos, end)
    if at < 0 or length < 0 or at + length > end:
        return -1
    return at + length


@njit(cache=True)
def _find_one(buf, pos, end, row):
    """Read one message of the usual form into `row`; return its end, or -1: it has another."""
    header = load8(buf, pos)
    if header & _ID_MASK != _PUSH:
        return -1
    row["start"] = pos
    at, _ = read_zint(buf, pos + 1, end)
    if at >= 0 and header & _NAMED:
        at = _skip_block(buf, at, end)
    row["qos"] = _DEFAULT_QOS
    if at >= 0 and header & _Z:
        if at >= end or load8(buf, at) != _QOS:
            return -1
        at, row["qos"] = read_zint(buf, at + 1, end)
    if at < 0 or at >= end:
        return -1
    row["body"] = at
    header = load8(buf, at)
    if header & _ID_MASK != _PUT or not header & _Z:
        return -1
    at += 1
    if header & _STAMPED:
        at, _ = read_zint(buf, at, end)
        if at >= 0:
            at = _skip_block(buf, at, end)
    if at >= 0 and header & _ENCODED:
        at, encoding = read_zint(buf, at, end)
        if at >= 0 and encoding & 1:
            at = _skip_block(buf, at, end)
    if at < 0 or at + 3 >= end or load8(buf, at) != _SHM:
        return -1
    row["mark"] = at
    if load8(buf, at + 1) != 1 or load8(buf, at + 2) != _POINTER:
        return -1
    stop = _skip_block(buf, at + 3, end)
    if stop < 0:
        return -1
    at, _ = read_zint(buf, at + 3, end)
    at, row["size"] = read_zint(buf, at, stop)
    if at >= 0:
        at, row["table"] = read_zint(buf, at, stop)
    if at >= 0:
        at, row["index"] = read_zint(buf, at, stop)
    if at >= 0:
        at, row["generation"] = read_zint(buf, at, stop)
    if at != stop or row["size"] < 1 or not 0 <= row["index"] < _HEADERS:
        return -1
    return stop if 0 <= row["table"] <= _U16 and 0 <= row["generation"] <= _U32 else -1


@njit(cache=True)
def find_kernel(data, pos, end, rows):
    """Find messages from `pos` on; return how many, and where they end."""
    buf = pointer_to(data)
    count = 0
    while pos < end and count < len(rows):
        row = rows[count]
        stop = _find_one(buf, pos, end, row)
        if stop < 0:
            break
        count += 1
        pos = stop
    return count, pos


@njit(cache=True)
def write_kernel(data, rows, sizes, out):
    """Write each message without its mark, and leave room for a payload of sizes[i] bytes; return
    the end."""
    buf, to = pointer_to(data), pointer_to(out)
    at = np.int64(0)
    for i in range(len(rows)):
        row = rows[i]
        start = row["start"]
        length = row["mark"] - start
        copy_bytes(to, at, buf, start, length)
        body = at + row["body"] - start
        store8(to, body, load8(to, body) & ~_Z)
        at = write_zint(to, at + length, np.uint64(sizes[i]))
        row["payload"] = at
        at += sizes[i]
    return at
