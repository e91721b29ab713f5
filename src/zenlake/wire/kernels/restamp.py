"""Messages copied with other timestamps; all else stays as it is.

Knows rows and bytes that the scan has checked. Does not know clocks: the time is an argument.
"""

import numpy as np
from numba import njit

from zenlake.wire import push
from zenlake.wire.kernels.memory import copy_bytes, pointer_to, write_zint
from zenlake.wire.kernels.push_run import body_start

_PUSH = push.ID


@njit(cache=True, nogil=True)
def restamp_kernel(data, rows, time, clock, buffer):
    """Write all rows into `buffer`; return how many bytes, or -1 if they may not fit.

    A PUSH that has a timestamp gets another: `time` plus its place among the rows, counted from 1,
    and `clock`, an encoded id.
    """
    buf = pointer_to(data)
    out = pointer_to(buffer)
    clock_data = pointer_to(clock)
    most = len(buffer)
    at = np.int64(0)
    for i in range(len(rows)):
        row = rows[i]
        pos = np.int64(row["start"])
        end = np.int64(row["end"])
        if at + end - pos + 9 + len(clock) > most:
            return -1
        if row["kind"] == _PUSH and row["clock"] > 0:
            stamp = np.int64(body_start(buf, row)) + 1
            copy_bytes(out, at, buf, pos, stamp - pos)
            at = write_zint(out, at + stamp - pos, time + np.uint64(i + 1))
            copy_bytes(out, at, clock_data, 0, len(clock))
            at += len(clock)
            pos = np.int64(row["clock"]) + row["clock_len"]
        copy_bytes(out, at, buf, pos, end - pos)
        at += end - pos
    return at
