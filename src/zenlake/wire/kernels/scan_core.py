"""Fields of messages, compiled: what scan_network.py and scan_transport.py are made of.

Each reader takes the position of a field and the end of its batch, and returns the position after
the field, or -1 with reason and offset in `state`. Knows extensions, which both layers share, and
no message. Every index into the buffer is checked here: Numba does not check.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from zenlake.errors import Reason
from zenlake.wire import (
    close,
    declare,
    delete,
    err,
    fragment,
    frame,
    init,
    interest,
    join,
    keepalive,
    oam,
    push,
    put,
    query,
    reply,
    request,
    response,
    response_final,
)
from zenlake.wire import open as open_
from zenlake.wire.extensions import (
    ENC_MASK,
    ENC_UNIT,
    ENC_Z64,
    ENC_ZBUF,
    FLAG_EXTENSIONS,
    IDENTITY_MASK,
    MANDATORY,
    ExtensionKind,
    ExtensionTable,
)
from zenlake.wire.extensions import FLAG_MORE as FLAG_MORE_EXTENSIONS
from zenlake.wire.extensions import MAX_EXTENSIONS as _MAX_EXTENSIONS
from zenlake.wire.kernels.memory import load8, load64
from zenlake.wire.kernels.row import (
    FLAG_DROP,
    FLAG_FIRST,
    FLAG_NODE_ID,
    FLAG_STACK,
    FLAG_TIMEOUT,
    LANE_RELIABLE,
)
from zenlake.wire.wireexpr import FLAG_MAPPING, FLAG_NAMED

# Extension tables of all messages; X_* below are their numbers.
_TABLES: tuple[ExtensionTable, ...] = (
    push.EXTENSIONS,
    put.EXTENSIONS,
    delete.EXTENSIONS,
    frame.EXTENSIONS,
    request.EXTENSIONS,
    query.EXTENSIONS,
    response.EXTENSIONS,
    reply.EXTENSIONS,
    err.EXTENSIONS,
    response_final.EXTENSIONS,
    declare.EXTENSIONS,
    declare.NO_EXTENSIONS,
    declare.QUERYABLE_EXTENSIONS,
    declare.UNDECLARE_EXTENSIONS,
    interest.EXTENSIONS,
    oam.NETWORK_EXTENSIONS,
    oam.TRANSPORT_EXTENSIONS,
    fragment.EXTENSIONS,
    close.EXTENSIONS,
    keepalive.EXTENSIONS,
    init.EXTENSIONS,
    open_.EXTENSIONS,
    join.EXTENSIONS,
)
(
    X_PUSH,
    X_PUT,
    X_DEL,
    X_FRAME,
    X_REQUEST,
    X_QUERY,
    X_RESPONSE,
    X_REPLY,
    X_ERR,
    X_RESPONSE_FINAL,
    X_DECLARE,
    X_NONE,
    X_QUERYABLE,
    X_UNDECLARE,
    X_INTEREST,
    X_NETWORK_OAM,
    X_TRANSPORT_OAM,
    X_FRAGMENT,
    X_CLOSE,
    X_KEEP_ALIVE,
    X_INIT,
    X_OPEN,
    X_JOIN,
) = range(len(_TABLES))


def _kinds() -> npt.NDArray[np.uint8]:
    """Return, for each table, the ExtensionKind of every header without its Z bit; 0 = unknown."""
    kinds = np.zeros((len(_TABLES), 128), np.uint8)
    for number, table in enumerate(_TABLES):
        for row in table.rows:
            kinds[number, row.header] = row.kind
    return kinds


KINDS = _kinds().reshape(-1)

U8, U16, U32 = 0xFF, 0xFFFF, 0xFFFF_FFFF
_HIGH_BITS = np.uint64(0x8080_8080_8080_8080)
_MAX_TS_ENTRIES = 255
_MAX_ZID = 16
_MAX_REGION_NAME = 32
_LANES = 8


@njit(cache=True)
def refuse(state, reason, offset):
    """Note why the scan ends, and at which byte."""
    state["reason"] = reason
    state["offset"] = offset
    return -1


@njit(cache=True)
def read_zint(buf, pos, end):
    """Read a zint: (next position, its 64 bits as int64); -1 if the bytes end first."""
    if pos >= end:
        return -1, np.int64(0)
    byte = load8(buf, pos)
    pos += 1
    if byte < 0x80:
        return pos, byte
    value = byte & 0x7F
    for group in range(1, 8):
        if pos >= end:
            return -1, np.int64(0)
        byte = load8(buf, pos)
        pos += 1
        value |= (byte & 0x7F) << (7 * group)
        if byte < 0x80:
            return pos, value
    if pos >= end:
        return -1, np.int64(0)
    return pos + 1, value | (load8(buf, pos) << 56)


@njit(cache=True)
def read_bounded(buf, pos, end, bound, state):
    """Read a zint of at most `bound`: (next position or -1, value)."""
    after, value = read_zint(buf, pos, end)
    if after < 0:
        return refuse(state, Reason.CUT_SHORT, pos), value
    if value < 0 or value > bound:
        return refuse(state, Reason.TOO_LARGE, pos), value
    return after, value


@njit(cache=True)
def read_block(buf, pos, end, bound, state):
    """Read a length and as many bytes: (first byte or -1, length)."""
    start, length = read_bounded(buf, pos, end, bound, state)
    if start >= 0 and start + length > end:
        return refuse(state, Reason.CUT_SHORT, pos), length
    return start, length


@njit(cache=True, inline="always")
def is_ascii(buf, start, stop):
    """Return whether no byte has its high bit set."""
    if stop - start < 8:
        for i in range(start, stop):  # noqa: SIM110 (Numba does not compile any())
            if load8(buf, i) >= 0x80:
                return False
        return True
    last = stop - 8
    high = load64(buf, last)  # may overlap the loop's last word
    for i in range(start, last, 8):
        high |= load64(buf, i)
    return high & _HIGH_BITS == 0


@njit(cache=True)
def is_utf8(buf, start, stop):
    """Return whether the bytes are well-formed UTF-8, as CPython's strict decoder judges."""
    if is_ascii(buf, start, stop):
        return True
    i = start
    while i < stop:
        lead = load8(buf, i)
        if lead < 0x80:
            i += 1
            continue
        low, top = 0x80, 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                top = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                top = 0x8F
        else:
            return False
        if i + more >= stop:
            return False
        second = load8(buf, i + 1)
        if second < low or second > top:
            return False
        for k in range(2, more + 1):
            if load8(buf, i + k) & 0xC0 != 0x80:
                return False
        i += more + 1
    return True


@njit(cache=True)
def read_text(buf, pos, end, bound, state):
    """Read a block that must be UTF-8: (first byte or -1, length)."""
    start, length = read_block(buf, pos, end, bound, state)
    if start >= 0 and not is_utf8(buf, start, start + length):
        return refuse(state, Reason.BAD_UTF8, pos), length
    return start, length


@njit(cache=True)
def _is_zero(buf, start, stop):
    """Return whether an id of at most 16 bytes is all zeros."""
    if stop - start >= 8:
        return load64(buf, start) | load64(buf, stop - 8) == 0
    for i in range(start, stop):  # noqa: SIM110 (Numba does not compile any())
        if load8(buf, i):
            return False
    return True


@njit(cache=True)
def read_packed_id(buf, pos, end, state):
    """Read a byte with a length in bits 7:4 and the id after it: (first byte or -1, length)."""
    if pos >= end:
        return refuse(state, Reason.CUT_SHORT, pos), np.int64(0)
    length = (load8(buf, pos) >> 4) + 1
    start = pos + 1
    if start + length > end:
        return refuse(state, Reason.CUT_SHORT, start), length
    if _is_zero(buf, start, start + length):
        return refuse(state, Reason.BAD_ZENOH_ID, pos), length
    return start, length


@njit(cache=True)
def read_timestamp(buf, pos, end, state):
    """Read a timestamp, which ends with its id: (first byte of the id or -1, length, time)."""
    at, time = read_zint(buf, pos, end)
    if at < 0:
        return refuse(state, Reason.CUT_SHORT, pos), np.int64(0), time
    start, length = read_zint(buf, at, end)
    if start < 0:
        return refuse(state, Reason.CUT_SHORT, at), length, time
    if length < 1 or length > _MAX_ZID:
        return refuse(state, Reason.BAD_ZENOH_ID, at), length, time
    if start + length > end:
        return refuse(state, Reason.CUT_SHORT, start), length, time
    if _is_zero(buf, start, start + length):
        return refuse(state, Reason.BAD_ZENOH_ID, at), length, time
    return start, length, time


@njit(cache=True)
def read_encoding(buf, pos, end, row, state):
    """Read an encoding: its number, and the schema if bit 0 says so."""
    after, value = read_bounded(buf, pos, end, U32, state)
    if after < 0:
        return after
    number = value >> 1
    if number > U16:
        return refuse(state, Reason.TOO_LARGE, pos)
    row["encoding"] = number
    row["schema"] = 0
    row["schema_len"] = 0
    if value & 1:
        start, length = read_block(buf, after, end, U8, state)
        if start < 0:
            return start
        row["schema"] = start
        row["schema_len"] = length
        after = start + length
    return after


@njit(cache=True)
def read_key(buf, pos, end, flags, row, state):
    """Read a WireExpr; `flags` has N in bit 5 and M in bit 6."""
    pos, scope = read_bounded(buf, pos, end, U16, state)
    if pos < 0:
        return pos
    row["scope"] = scope
    row["mapping"] = 1 if flags & FLAG_MAPPING else 0
    if flags & FLAG_NAMED:
        start, length = read_text(buf, pos, end, U16, state)
        if start < 0:
            return start
        row["suffix"] = start
        row["suffix_len"] = length
        pos = start + length
    return pos


@njit(cache=True)
def read_payload(buf, pos, end, row, state):
    """Read a length and the payload."""
    start, length = read_block(buf, pos, end, U32, state)
    if start < 0:
        return start
    row["payload"] = start
    row["payload_len"] = length
    return start + length


@njit(cache=True)
def _read_ts_stack(buf, pos, end, state):
    if pos >= end:
        return refuse(state, Reason.CUT_SHORT, pos)
    if load8(buf, pos) == 0:
        return refuse(state, Reason.BAD_VALUE, pos)
    pos, count = read_bounded(buf, pos + 1, end, _MAX_TS_ENTRIES, state)
    if pos < 0:
        return pos
    for _ in range(count):
        if pos >= end:
            return refuse(state, Reason.CUT_SHORT, pos)
        start, length = read_block(buf, pos + 1, end, U32, state)
        if start < 0:
            return start
        pos = start + length
    return pos


@njit(cache=True)
def _read_wire_expr(buf, pos, end, state):
    if pos >= end:
        return refuse(state, Reason.CUT_SHORT, pos)
    flags = load8(buf, pos)
    pos, _scope = read_bounded(buf, pos + 1, end, U16, state)
    if pos < 0 or not flags & 0x01:
        return pos
    if not is_utf8(buf, pos, end):
        return refuse(state, Reason.BAD_UTF8, pos)
    return end


@njit(cache=True)
def _read_region_name(buf, pos, end, state):
    if end - pos < 1 or end - pos > _MAX_REGION_NAME:
        return refuse(state, Reason.BAD_VALUE, pos)
    if not is_utf8(buf, pos, end):
        return refuse(state, Reason.BAD_UTF8, pos)
    return end


@njit(cache=True)
def _read_content(buf, pos, end, kind, row, state):
    """Read the content of a known ZBuf extension, which must end at `end`."""
    if kind == ExtensionKind.ATTACHMENT:
        row["attachment"] = pos
        row["attachment_len"] = end - pos
        return end
    if kind == ExtensionKind.SOURCE_INFO or kind == ExtensionKind.ENTITY:
        start, length = read_packed_id(buf, pos, end, state)
        if start < 0:
            return start
        pos, eid = read_bounded(buf, start + length, end, U32, state)
        if pos < 0:
            return pos
        if kind == ExtensionKind.ENTITY:
            row["responder"] = start
            row["responder_len"] = length
            row["responder_eid"] = eid
        else:
            pos, sn = read_bounded(buf, pos, end, U32, state)
            if pos < 0:
                return pos
            row["source"] = start
            row["source_len"] = length
            row["source_eid"] = eid
            row["source_sn"] = sn
    elif kind == ExtensionKind.QUERY_BODY:
        pos = read_encoding(buf, pos, end, row, state)
        if pos < 0:
            return pos
        row["payload"] = pos
        row["payload_len"] = end - pos
        return end
    elif kind == ExtensionKind.TIMESTAMP:
        start, length, _time = read_timestamp(buf, pos, end, state)
        if start < 0:
            return start
        pos = start + length
    elif kind == ExtensionKind.TS_STACK:
        row["flags"] |= FLAG_STACK
        pos = _read_ts_stack(buf, pos, end, state)
    elif kind == ExtensionKind.WIRE_EXPR:
        pos = _read_wire_expr(buf, pos, end, state)
    elif kind == ExtensionKind.LANE_SNS:
        for _ in range(2 * _LANES):
            pos, _sn = read_bounded(buf, pos, end, U32, state)
            if pos < 0:
                return pos
    elif kind == ExtensionKind.REGION_NAME:
        pos = _read_region_name(buf, pos, end, state)
    else:  # the scan does not look into any other kind
        return end
    if 0 <= pos < end:
        return refuse(state, Reason.TRAILING_BYTES, pos)
    return pos


@njit(cache=True, inline="always")
def _note_z64(at, value, kind, row, state):
    """Note an extension that is one integer; `at` is the integer's position."""
    if kind == ExtensionKind.QOS:
        row["qos"] = value & 0x3F
    elif kind == ExtensionKind.LANE:
        state["lane"] = (state["lane"] & LANE_RELIABLE) | (value & 0x07)
    elif kind == ExtensionKind.NODE_ID:
        if value < 0 or value > U16:
            return refuse(state, Reason.TOO_LARGE, at)
        if value:
            row["flags"] |= FLAG_NODE_ID
    elif kind == ExtensionKind.TARGET:
        if value < 0 or value > 2:
            return refuse(state, Reason.BAD_VALUE, at)
        row["target"] = value
    elif kind == ExtensionKind.BUDGET:
        if value < 0 or value > U32:
            return refuse(state, Reason.TOO_LARGE, at)
        row["budget"] = value
    elif kind == ExtensionKind.TIMEOUT:
        row["timeout_ms"] = np.uint64(value)
        row["flags"] |= FLAG_TIMEOUT
    return 0


@njit(cache=True, inline="always")
def read_extensions(buf, pos, end, header, kinds, table, row, state):
    """Read the extensions that the `header` of a message announces, if any.

    `table` is the number of the message's table; a position of -1 is handed on.
    """
    if pos < 0 or not header & FLAG_EXTENSIONS:
        return pos
    return _read_chain(buf, pos, end, kinds, table, row, state)


@njit(cache=True)
def _read_chain(buf, pos, end, kinds, table, row, state):
    for _ in range(_MAX_EXTENSIONS):
        header_at = pos
        if pos >= end:
            return refuse(state, Reason.CUT_SHORT, pos)
        header = load8(buf, pos)
        pos += 1
        kind = load8(kinds, table * 128 + (header & IDENTITY_MASK))
        encoding = header & ENC_MASK
        if kind == ExtensionKind.UNKNOWN:
            if encoding == ENC_MASK:
                return refuse(state, Reason.EXTENSION_ENCODING, header_at)
            if header & MANDATORY:
                return refuse(state, Reason.MANDATORY_EXTENSION, header_at)
        if encoding == ENC_UNIT:
            if kind == ExtensionKind.SHM_MARK:
                return refuse(state, Reason.SHARED_MEMORY, header_at)
            if kind == ExtensionKind.FIRST:
                row["flags"] |= FLAG_FIRST
            elif kind == ExtensionKind.DROP:
                row["flags"] |= FLAG_DROP
        elif encoding == ENC_Z64:
            at = pos
            pos, value = read_zint(buf, at, end)
            if pos < 0:
                return refuse(state, Reason.CUT_SHORT, at)
            if _note_z64(at, value, kind, row, state) < 0:
                return -1
        else:
            start, length = read_block(buf, pos, end, U32, state)
            if start < 0:
                return start
            pos = start + length
            known = kind != ExtensionKind.UNKNOWN
            if known and _read_content(buf, start, pos, kind, row, state) < 0:
                return -1
        if not header & FLAG_MORE_EXTENSIONS:
            return pos
    return refuse(state, Reason.TOO_MANY_EXTENSIONS, pos)


@njit(cache=True)
def read_oam(buf, pos, end, header, row, kinds, table, state):
    """Read an OAM message of either layer; `table` is the number of its extension table."""
    pos, _id = read_bounded(buf, pos, end, U16, state)
    if pos < 0:
        return pos
    pos = read_extensions(buf, pos, end, header, kinds, table, row, state)
    if pos < 0:
        return pos
    encoding = header & ENC_MASK
    if encoding == ENC_MASK:
        return refuse(state, Reason.EXTENSION_ENCODING, pos)
    if encoding == ENC_Z64:
        after, _value = read_zint(buf, pos, end)
        if after < 0:
            return refuse(state, Reason.CUT_SHORT, pos)
        return after
    if encoding == ENC_ZBUF:
        return read_payload(buf, pos, end, row, state)
    return pos
