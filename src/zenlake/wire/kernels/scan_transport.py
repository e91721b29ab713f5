"""Transport messages, compiled: FRAME, FRAGMENT, and what opens, keeps and closes a link.

Reads what follows a header byte. A FRAGMENT is complete in its row; of the others a row says only
where they stand, and the object codec reads them. Does not look into the messages of a FRAME.
"""

from numba import njit

from zenlake.errors import Reason
from zenlake.wire import close, fragment, frame, init, join, oam
from zenlake.wire import open as open_
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.kernels.memory import load8
from zenlake.wire.kernels.row import DEFAULT_LANE, FLAG_MORE, LANE_RELIABLE
from zenlake.wire.kernels.scan_core import (
    U16,
    U32,
    X_CLOSE,
    X_FRAGMENT,
    X_FRAME,
    X_INIT,
    X_JOIN,
    X_KEEP_ALIVE,
    X_OPEN,
    X_TRANSPORT_OAM,
    read_block,
    read_bounded,
    read_extensions,
    read_oam,
    read_packed_id,
    read_zint,
    refuse,
)


@njit(cache=True)
def _read_identity(buf, pos, end, state):
    """Read the byte with role and length, and the id, of INIT and JOIN."""
    start, length = read_packed_id(buf, pos, end, state)
    if start < 0:
        return start
    if load8(buf, pos) & 0x03 == 0x03:
        return refuse(state, Reason.BAD_VALUE, pos)
    return start + length


@njit(cache=True)
def _skip_size(buf, pos, end, state):
    """Return the position after resolution and batch size, of INIT and JOIN."""
    if pos >= end:
        return refuse(state, Reason.CUT_SHORT, pos)
    if pos + 3 > end:
        return refuse(state, Reason.CUT_SHORT, pos + 1)
    return pos + 3


@njit(cache=True)
def _read_init_or_join(buf, pos, end, header, state):
    """Read version, identity and size, with which INIT and JOIN start."""
    if pos >= end:
        return refuse(state, Reason.CUT_SHORT, pos)
    pos = _read_identity(buf, pos + 1, end, state)
    if pos >= 0 and header & init.FLAG_SIZE:
        pos = _skip_size(buf, pos, end, state)
    return pos


@njit(cache=True)
def _read_lease(buf, pos, end, state):
    after, _value = read_zint(buf, pos, end)
    if after < 0:
        return refuse(state, Reason.CUT_SHORT, pos)
    return after


@njit(cache=True)
def _skip_block(buf, pos, end, bound, state):
    """Return the position after a length and as many bytes."""
    start, length = read_block(buf, pos, end, bound, state)
    return start + length if start >= 0 else -1


@njit(cache=True)
def _skip_bounded(buf, pos, end, state):
    """Return the position after a zint of at most 32 bits."""
    pos, _value = read_bounded(buf, pos, end, U32, state)
    return pos


@njit(cache=True)
def _read_init(buf, pos, end, header, state):
    pos = _read_init_or_join(buf, pos, end, header, state)
    if pos >= 0 and header & init.FLAG_ACK:
        pos = _skip_block(buf, pos, end, U16, state)  # cookie
    return pos


@njit(cache=True)
def _read_open(buf, pos, end, header, state):
    pos = _read_lease(buf, pos, end, state)
    if pos >= 0:
        pos = _skip_bounded(buf, pos, end, state)  # initial sequence number
    if pos >= 0 and not header & open_.FLAG_ACK:
        pos = _skip_block(buf, pos, end, U32, state)  # cookie
    return pos


@njit(cache=True)
def _read_join(buf, pos, end, header, state):
    pos = _read_init_or_join(buf, pos, end, header, state)
    if pos >= 0:
        pos = _read_lease(buf, pos, end, state)
    for _ in range(2):  # next sequence numbers: reliable, best effort
        if pos >= 0:
            pos = _skip_bounded(buf, pos, end, state)
    return pos


@njit(cache=True)
def _read_fragment(buf, pos, end, header, row, kinds, state):
    pos, sn = read_bounded(buf, pos, end, U32, state)
    if pos < 0:
        return pos
    row["sn"] = sn
    pos = read_extensions(buf, pos, end, header, kinds, X_FRAGMENT, row, state)
    if pos < 0:
        return pos
    row["payload"] = pos
    row["payload_len"] = end - pos
    if header & fragment.FLAG_MORE:
        row["flags"] |= FLAG_MORE
    return end


@njit(cache=True)
def read_transport(buf, pos, end, header, row, kinds, state):
    """Read a transport message other than FRAME from after its header byte."""
    number = header & ID_MASK
    reliable = number != fragment.ID or header & fragment.FLAG_RELIABLE
    state["lane"] = DEFAULT_LANE if reliable else DEFAULT_LANE ^ LANE_RELIABLE
    if number == oam.TRANSPORT_ID:
        return read_oam(buf, pos, end, header, row, kinds, X_TRANSPORT_OAM, state)
    if number == fragment.ID:
        return _read_fragment(buf, pos, end, header, row, kinds, state)
    table = X_KEEP_ALIVE
    if number == init.ID:
        table = X_INIT
        pos = _read_init(buf, pos, end, header, state)
    elif number == open_.ID:
        table = X_OPEN
        pos = _read_open(buf, pos, end, header, state)
    elif number == close.ID:
        table = X_CLOSE
        pos = pos + 1 if pos < end else refuse(state, Reason.CUT_SHORT, pos)
    elif number == join.ID:
        table = X_JOIN
        pos = _read_join(buf, pos, end, header, state)
    return read_extensions(buf, pos, end, header, kinds, table, row, state)


@njit(cache=True)
def read_frame_header(buf, pos, end, header, row, kinds, state):
    """Read lane and sequence number into `state`, where the FRAME's messages take them from."""
    pos, sn = read_bounded(buf, pos, end, U32, state)
    if pos < 0:
        return pos
    state["sn"] = sn
    state["lane"] = DEFAULT_LANE if header & frame.FLAG_RELIABLE else DEFAULT_LANE ^ LANE_RELIABLE
    return read_extensions(buf, pos, end, header, kinds, X_FRAME, row, state)
