"""The compiled half of scan.py: one row of numbers for every message of a buffer.

A second reader of the same bytes as the object codec, held to it by tests: same messages, same
bounds, same refusals at the same offsets. Data messages (PUSH, REQUEST, RESPONSE) are complete in
their row; every other message has its kind and where it stands, for the object codec to read.
Knows no keys (only scope and suffix), no lanes' order, no sockets. Releases the GIL.

Every index into the buffer is checked here: Numba does not check. Numbers that this file takes
from others are compiled in and cached by this file's date: touch it when Kind or Reason change.
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
from zenlake.wire.dispatch import ID_MASK
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
from zenlake.wire.kernels.memory import load8, load64, place_of
from zenlake.wire.network import FIRST_ID as _FIRST_NETWORK_ID
from zenlake.wire.wireexpr import FLAG_MAPPING, FLAG_NAMED

ROW = np.dtype(
    [
        ("kind", "u1"),  # the message's id: 0x19..0x1f network, 0x00..0x07 transport
        ("body", "u1"),  # PUT 1, DEL 2, QUERY 3, ERR 5; a REPLY is a RESPONSE with PUT or DEL
        ("qos", "u1"),  # the message's QoS byte, 5 if absent
        ("lane", "u1"),  # the FRAME's priority in bits 2:0, reliable in bit 3
        ("mapping", "u1"),  # 1: the scope is the sender's
        ("consolidation", "u1"),
        ("target", "u1"),
        ("flags", "u1"),  # see FLAG_*
        ("start", "i4"),  # the message's bytes
        ("end", "i4"),
        ("batch", "i4"),  # which batch of the buffer, from 0
        ("sn", "u4"),
        ("scope", "u2"),
        ("encoding", "u2"),
        ("suffix", "i4"),  # a field's first byte; 0 = the field is absent, as all below
        ("suffix_len", "i4"),
        ("payload", "i4"),
        ("payload_len", "i4"),
        ("schema", "i4"),
        ("schema_len", "i4"),
        ("time", "u8"),
        ("clock", "i4"),  # the timestamp's id
        ("clock_len", "i4"),
        ("source", "i4"),  # the source's id
        ("source_len", "i4"),
        ("source_eid", "u4"),
        ("source_sn", "u4"),
        ("attachment", "i4"),
        ("attachment_len", "i4"),
        ("request_id", "u4"),
        ("budget", "u4"),  # 0 = none
        ("parameters", "i4"),
        ("parameters_len", "i4"),
        ("responder", "i4"),  # the responder's id
        ("responder_len", "i4"),
        ("responder_eid", "u4"),
        ("timeout_ms", "u8"),  # meaningful with FLAG_TIMEOUT
    ]
)
ROW_WORDS = ROW.itemsize // 8
assert ROW.itemsize % 8 == 0

FLAG_FIRST, FLAG_MORE, FLAG_DROP = 0x01, 0x02, 0x04  # of a FRAGMENT
FLAG_TIMEOUT = 0x08  # of a REQUEST
FLAG_STACK = 0x10  # there is a timestamp stack, for the object codec to read
LOW_LATENCY, BARE = 1, 2  # modes of a scan
LANE_RELIABLE = 0x08
DEFAULT_LANE = LANE_RELIABLE | 5

# Extension tables, by the number under which the kernel finds them.
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
    _X_PUSH,
    _X_PUT,
    _X_DEL,
    _X_FRAME,
    _X_REQUEST,
    _X_QUERY,
    _X_RESPONSE,
    _X_REPLY,
    _X_ERR,
    _X_RESPONSE_FINAL,
    _X_DECLARE,
    _X_NONE,
    _X_QUERYABLE,
    _X_UNDECLARE,
    _X_INTEREST,
    _X_NETWORK_OAM,
    _X_TRANSPORT_OAM,
    _X_FRAGMENT,
    _X_CLOSE,
    _X_KEEP_ALIVE,
    _X_INIT,
    _X_OPEN,
    _X_JOIN,
) = range(len(_TABLES))


def _kinds() -> npt.NDArray[np.uint8]:
    """For each table, the Kind of every extension header without its Z bit; 0 = unknown."""
    kinds = np.zeros((len(_TABLES), 128), np.uint8)
    for number, table in enumerate(_TABLES):
        for row in table.rows:
            kinds[number, row.header] = row.kind
    return kinds


KINDS = _kinds().reshape(-1)

_U8, _U16, _U32 = 0xFF, 0xFFFF, 0xFFFF_FFFF
_Z, _M, _N, _ID_MASK = FLAG_EXTENSIONS, FLAG_MAPPING, FLAG_NAMED, ID_MASK
_INTEREST_MODE = 0x03 << interest.MODE_SHIFT
_HIGH_BITS = np.uint64(0x8080_8080_8080_8080)
_MAX_TS_ENTRIES = 255
_MAX_ZID = 16
_MAX_REGION_NAME = 32
_LANES = 8

_CUT_SHORT = int(Reason.CUT_SHORT)
_TOO_LARGE = int(Reason.TOO_LARGE)
_BAD_UTF8 = int(Reason.BAD_UTF8)
_UNKNOWN_ID = int(Reason.UNKNOWN_ID)
_MANDATORY_EXTENSION = int(Reason.MANDATORY_EXTENSION)
_EXTENSION_ENCODING = int(Reason.EXTENSION_ENCODING)
_TOO_MANY_EXTENSIONS = int(Reason.TOO_MANY_EXTENSIONS)
_BAD_ZENOH_ID = int(Reason.BAD_ZENOH_ID)
_BAD_VALUE = int(Reason.BAD_VALUE)
_TRAILING_BYTES = int(Reason.TRAILING_BYTES)
_SHARED_MEMORY = int(Reason.SHARED_MEMORY)

_K_UNKNOWN = int(ExtensionKind.UNKNOWN)
_K_SHM_MARK = int(ExtensionKind.SHM_MARK)
_K_QOS = int(ExtensionKind.QOS)
_K_LANE = int(ExtensionKind.LANE)
_K_NODE_ID = int(ExtensionKind.NODE_ID)
_K_TARGET = int(ExtensionKind.TARGET)
_K_BUDGET = int(ExtensionKind.BUDGET)
_K_TIMESTAMP = int(ExtensionKind.TIMESTAMP)
_K_ENTITY = int(ExtensionKind.ENTITY)
_K_SOURCE_INFO = int(ExtensionKind.SOURCE_INFO)
_K_TS_STACK = int(ExtensionKind.TS_STACK)
_K_WIRE_EXPR = int(ExtensionKind.WIRE_EXPR)
_K_QUERY_BODY = int(ExtensionKind.QUERY_BODY)
_K_LANE_SNS = int(ExtensionKind.LANE_SNS)
_K_REGION_NAME = int(ExtensionKind.REGION_NAME)
_K_ATTACHMENT = int(ExtensionKind.ATTACHMENT)
_K_TIMEOUT = int(ExtensionKind.TIMEOUT)
_K_FIRST = int(ExtensionKind.FIRST)
_K_DROP = int(ExtensionKind.DROP)

# What the kernel remembers between two calls on one buffer.
STATE = np.dtype(
    [
        ("pos", "i8"),  # everything before it is done with
        ("batch_end", "i8"),
        ("batch", "i8"),
        ("in_frame", "i8"),
        ("lane", "i8"),
        ("sn", "i8"),
        ("reason", "i8"),  # why it ended, 0 = it did not
        ("offset", "i8"),  # of the field that was refused
    ]
)


@njit(cache=True)
def _fail(state, reason, offset):
    state["reason"] = reason
    state["offset"] = offset
    return -1


@njit(cache=True)
def _zint(buf, pos, end):
    """(next position, the 64 bits as int64); the position is -1 if the bytes end first."""
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
def _bounded(buf, pos, end, bound, state):
    """A zint of at most `bound`: (next position or -1, value)."""
    after, value = _zint(buf, pos, end)
    if after < 0:
        return _fail(state, _CUT_SHORT, pos), value
    if value < 0 or value > bound:
        return _fail(state, _TOO_LARGE, pos), value
    return after, value


@njit(cache=True)
def _block(buf, pos, end, bound, state):
    """A length and that many bytes: (first byte or -1, length); the block ends at their sum."""
    start, length = _bounded(buf, pos, end, bound, state)
    if start >= 0 and start + length > end:
        return _fail(state, _CUT_SHORT, pos), length
    return start, length


@njit(cache=True, inline="always")
def _is_ascii(buf, start, stop):
    if stop - start < 8:
        for i in range(start, stop):  # noqa: SIM110 (compiled: a loop it is)
            if load8(buf, i) >= 0x80:
                return False
        return True
    last = stop - 8
    high = load64(buf, last)  # may overlap what the loop reads
    for i in range(start, last, 8):
        high |= load64(buf, i)
    return high & _HIGH_BITS == 0


@njit(cache=True)
def _is_utf8(buf, start, stop):
    if _is_ascii(buf, start, stop):
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
def _text(buf, pos, end, bound, state):
    start, length = _block(buf, pos, end, bound, state)
    if start >= 0 and not _is_utf8(buf, start, start + length):
        return _fail(state, _BAD_UTF8, pos), length
    return start, length


@njit(cache=True)
def _is_zero(buf, start, stop):
    """Whether an id, of at most 16 bytes, is all zeros."""
    if stop - start >= 8:
        return load64(buf, start) | load64(buf, stop - 8) == 0
    for i in range(start, stop):  # noqa: SIM110 (compiled: a loop it is)
        if load8(buf, i):
            return False
    return True


@njit(cache=True)
def _packed_id(buf, pos, end, state):
    """The byte with a length in bits 7:4 and the id behind it: (first byte or -1, length)."""
    if pos >= end:
        return _fail(state, _CUT_SHORT, pos), np.int64(0)
    length = (load8(buf, pos) >> 4) + 1
    start = pos + 1
    if start + length > end:
        return _fail(state, _CUT_SHORT, start), length
    if _is_zero(buf, start, start + length):
        return _fail(state, _BAD_ZENOH_ID, pos), length
    return start, length


@njit(cache=True)
def _timestamp(buf, pos, end, state):
    """(first byte of the id or -1, its length, time); the field ends with the id."""
    at, time = _zint(buf, pos, end)
    if at < 0:
        return _fail(state, _CUT_SHORT, pos), np.int64(0), time
    start, length = _zint(buf, at, end)
    if start < 0:
        return _fail(state, _CUT_SHORT, at), length, time
    if length < 1 or length > _MAX_ZID:
        return _fail(state, _BAD_ZENOH_ID, at), length, time
    if start + length > end:
        return _fail(state, _CUT_SHORT, start), length, time
    if _is_zero(buf, start, start + length):
        return _fail(state, _BAD_ZENOH_ID, at), length, time
    return start, length, time


@njit(cache=True)
def _encoding(buf, pos, end, row, state):
    after, value = _bounded(buf, pos, end, _U32, state)
    if after < 0:
        return after
    number = value >> 1
    if number > _U16:
        return _fail(state, _TOO_LARGE, pos)
    row["encoding"] = number
    row["schema"] = 0
    row["schema_len"] = 0
    if value & 1:
        start, length = _block(buf, after, end, _U8, state)
        if start < 0:
            return start
        row["schema"] = start
        row["schema_len"] = length
        after = start + length
    return after


@njit(cache=True)
def _key(buf, pos, end, flags, row, state):
    """WireExpr; `flags` has N in bit 5 and M in bit 6."""
    pos, scope = _bounded(buf, pos, end, _U16, state)
    if pos < 0:
        return pos
    row["scope"] = scope
    row["mapping"] = 1 if flags & _M else 0
    if flags & _N:
        start, length = _text(buf, pos, end, _U16, state)
        if start < 0:
            return start
        row["suffix"] = start
        row["suffix_len"] = length
        pos = start + length
    return pos


@njit(cache=True)
def _ts_stack(buf, pos, end, state):
    if pos >= end:
        return _fail(state, _CUT_SHORT, pos)
    if load8(buf, pos) == 0:
        return _fail(state, _BAD_VALUE, pos)
    pos, count = _bounded(buf, pos + 1, end, _MAX_TS_ENTRIES, state)
    if pos < 0:
        return pos
    for _ in range(count):
        if pos >= end:
            return _fail(state, _CUT_SHORT, pos)
        start, length = _block(buf, pos + 1, end, _U32, state)
        if start < 0:
            return start
        pos = start + length
    return pos


@njit(cache=True)
def _wire_expr_ext(buf, pos, end, state):
    if pos >= end:
        return _fail(state, _CUT_SHORT, pos)
    flags = load8(buf, pos)
    pos, _scope = _bounded(buf, pos + 1, end, _U16, state)
    if pos < 0 or not flags & 0x01:
        return pos
    if not _is_utf8(buf, pos, end):
        return _fail(state, _BAD_UTF8, pos)
    return end


@njit(cache=True)
def _region_name(buf, pos, end, state):
    if end - pos < 1 or end - pos > _MAX_REGION_NAME:
        return _fail(state, _BAD_VALUE, pos)
    if not _is_utf8(buf, pos, end):
        return _fail(state, _BAD_UTF8, pos)
    return end


@njit(cache=True)
def _extension_body(buf, pos, end, kind, row, state):
    """The content of a ZBuf extension that a table names; it must end at `end`."""
    if kind == _K_ATTACHMENT:
        row["attachment"] = pos
        row["attachment_len"] = end - pos
        return end
    if kind == _K_SOURCE_INFO or kind == _K_ENTITY:  # noqa: SIM109 (Numba compiles this to less)
        start, length = _packed_id(buf, pos, end, state)
        if start < 0:
            return start
        pos, eid = _bounded(buf, start + length, end, _U32, state)
        if pos < 0:
            return pos
        if kind == _K_ENTITY:
            row["responder"] = start
            row["responder_len"] = length
            row["responder_eid"] = eid
        else:
            pos, sn = _bounded(buf, pos, end, _U32, state)
            if pos < 0:
                return pos
            row["source"] = start
            row["source_len"] = length
            row["source_eid"] = eid
            row["source_sn"] = sn
    elif kind == _K_QUERY_BODY:
        pos = _encoding(buf, pos, end, row, state)
        if pos < 0:
            return pos
        row["payload"] = pos
        row["payload_len"] = end - pos
        return end
    elif kind == _K_TIMESTAMP:
        start, length, _time = _timestamp(buf, pos, end, state)
        if start < 0:
            return start
        pos = start + length
    elif kind == _K_TS_STACK:
        pos = _ts_stack(buf, pos, end, state)
    elif kind == _K_WIRE_EXPR:
        pos = _wire_expr_ext(buf, pos, end, state)
    elif kind == _K_LANE_SNS:
        for _ in range(2 * _LANES):
            pos, _sn = _bounded(buf, pos, end, _U32, state)
            if pos < 0:
                return pos
    elif kind == _K_REGION_NAME:
        pos = _region_name(buf, pos, end, state)
    else:  # bytes that nobody here looks into
        return end
    if 0 <= pos < end:
        return _fail(state, _TRAILING_BYTES, pos)
    return pos


@njit(cache=True)
def _extensions(buf, pos, end, kinds, table, row, state):
    """A chain of extensions of the message whose table has this number."""
    for _ in range(_MAX_EXTENSIONS):
        header_at = pos
        if pos >= end:
            return _fail(state, _CUT_SHORT, pos)
        header = load8(buf, pos)
        pos += 1
        kind = load8(kinds, table * 128 + (header & IDENTITY_MASK))
        encoding = header & ENC_MASK
        if kind == _K_UNKNOWN:
            if encoding == ENC_MASK:
                return _fail(state, _EXTENSION_ENCODING, header_at)
            if header & MANDATORY:
                return _fail(state, _MANDATORY_EXTENSION, header_at)
        if encoding == ENC_UNIT:
            if kind == _K_SHM_MARK:
                return _fail(state, _SHARED_MEMORY, header_at)
            if kind == _K_FIRST:
                row["flags"] |= FLAG_FIRST
            elif kind == _K_DROP:
                row["flags"] |= FLAG_DROP
        elif encoding == ENC_Z64:
            at = pos
            pos, value = _zint(buf, at, end)
            if pos < 0:
                return _fail(state, _CUT_SHORT, at)
            if kind == _K_QOS:
                row["qos"] = value & 0x3F
            elif kind == _K_LANE:
                state["lane"] = (state["lane"] & LANE_RELIABLE) | (value & 0x07)
            elif kind == _K_NODE_ID:
                if value < 0 or value > _U16:
                    return _fail(state, _TOO_LARGE, at)
            elif kind == _K_TARGET:
                if value < 0 or value > 2:
                    return _fail(state, _BAD_VALUE, at)
                row["target"] = value
            elif kind == _K_BUDGET:
                if value < 0 or value > _U32:
                    return _fail(state, _TOO_LARGE, at)
                row["budget"] = value
            elif kind == _K_TIMEOUT:
                row["timeout_ms"] = np.uint64(value)
                row["flags"] |= FLAG_TIMEOUT
        else:
            start, length = _block(buf, pos, end, _U32, state)
            if start < 0:
                return start
            pos = start + length
            if kind == _K_TS_STACK:
                row["flags"] |= FLAG_STACK
            if kind != _K_UNKNOWN and _extension_body(buf, start, pos, kind, row, state) < 0:
                return -1
        if not header & FLAG_MORE_EXTENSIONS:
            return pos
    return _fail(state, _TOO_MANY_EXTENSIONS, pos)


@njit(cache=True)
def _stamp(buf, pos, end, row, state):
    """The timestamp of a PUT or DEL."""
    start, length, time = _timestamp(buf, pos, end, state)
    if start < 0:
        return start
    row["time"] = np.uint64(time)
    row["clock"] = start
    row["clock_len"] = length
    return start + length


@njit(cache=True)
def _payload(buf, pos, end, row, state):
    start, length = _block(buf, pos, end, _U32, state)
    if start < 0:
        return start
    row["payload"] = start
    row["payload_len"] = length
    return start + length


@njit(cache=True)
def _put(buf, pos, end, header, row, kinds, state):
    if header & put.FLAG_TIMESTAMP:
        pos = _stamp(buf, pos, end, row, state)
        if pos < 0:
            return pos
    if header & put.FLAG_ENCODING:
        pos = _encoding(buf, pos, end, row, state)
        if pos < 0:
            return pos
    if header & _Z:
        pos = _extensions(buf, pos, end, kinds, _X_PUT, row, state)
        if pos < 0:
            return pos
    return _payload(buf, pos, end, row, state)


@njit(cache=True)
def _del(buf, pos, end, header, row, kinds, state):
    if header & delete.FLAG_TIMESTAMP:
        pos = _stamp(buf, pos, end, row, state)
        if pos < 0:
            return pos
    if header & _Z:
        pos = _extensions(buf, pos, end, kinds, _X_DEL, row, state)
    return pos


@njit(cache=True)
def _push_body(buf, pos, end, row, kinds, state):
    """PUT or DEL, header byte included."""
    if pos >= end:
        return _fail(state, _CUT_SHORT, pos)
    header = load8(buf, pos)
    number = header & _ID_MASK
    row["body"] = number
    if number == put.ID:
        return _put(buf, pos + 1, end, header, row, kinds, state)
    if number == delete.ID:
        return _del(buf, pos + 1, end, header, row, kinds, state)
    return _fail(state, _UNKNOWN_ID, pos)


@njit(cache=True)
def _push(buf, pos, end, header, row, kinds, state):
    pos = _key(buf, pos, end, header, row, state)
    if pos < 0:
        return pos
    if header & _Z:
        pos = _extensions(buf, pos, end, kinds, _X_PUSH, row, state)
        if pos < 0:
            return pos
    return _push_body(buf, pos, end, row, kinds, state)


@njit(cache=True)
def _consolidation(buf, pos, end, row, state):
    after, value = _zint(buf, pos, end)
    if after < 0:
        return _fail(state, _CUT_SHORT, pos)
    row["consolidation"] = value if 0 <= value <= 3 else 0
    return after


@njit(cache=True)
def _request_id(buf, pos, end, row, state):
    pos, number = _bounded(buf, pos, end, _U32, state)
    if pos >= 0:
        row["request_id"] = number
    return pos


@njit(cache=True)
def _request(buf, pos, end, header, row, kinds, state):
    pos = _request_id(buf, pos, end, row, state)
    if pos < 0:
        return pos
    pos = _key(buf, pos, end, header, row, state)
    if pos < 0:
        return pos
    if header & _Z:
        pos = _extensions(buf, pos, end, kinds, _X_REQUEST, row, state)
        if pos < 0:
            return pos
    if pos >= end:
        return _fail(state, _CUT_SHORT, pos)
    header = load8(buf, pos)
    if header & _ID_MASK != query.ID:
        return _fail(state, _UNKNOWN_ID, pos)
    pos += 1
    row["body"] = query.ID
    if header & query.FLAG_CONSOLIDATION:
        pos = _consolidation(buf, pos, end, row, state)
        if pos < 0:
            return pos
    if header & query.FLAG_PARAMETERS:
        start, length = _text(buf, pos, end, _U32, state)
        if start < 0:
            return start
        row["parameters"] = start
        row["parameters_len"] = length
        pos = start + length
    if header & _Z:
        pos = _extensions(buf, pos, end, kinds, _X_QUERY, row, state)
    return pos


@njit(cache=True)
def _err(buf, pos, end, header, row, kinds, state):
    if header & err.FLAG_ENCODING:
        pos = _encoding(buf, pos, end, row, state)
        if pos < 0:
            return pos
    if header & _Z:
        pos = _extensions(buf, pos, end, kinds, _X_ERR, row, state)
        if pos < 0:
            return pos
    return _payload(buf, pos, end, row, state)


@njit(cache=True)
def _response(buf, pos, end, header, row, kinds, state):
    pos = _request_id(buf, pos, end, row, state)
    if pos < 0:
        return pos
    pos = _key(buf, pos, end, header, row, state)
    if pos < 0:
        return pos
    if header & _Z:
        pos = _extensions(buf, pos, end, kinds, _X_RESPONSE, row, state)
        if pos < 0:
            return pos
    if pos >= end:
        return _fail(state, _CUT_SHORT, pos)
    header = load8(buf, pos)
    number = header & _ID_MASK
    if number == err.ID:
        row["body"] = err.ID
        return _err(buf, pos + 1, end, header, row, kinds, state)
    if number != reply.ID:
        return _fail(state, _UNKNOWN_ID, pos)
    pos += 1
    if header & reply.FLAG_CONSOLIDATION:
        pos = _consolidation(buf, pos, end, row, state)
        if pos < 0:
            return pos
    if header & _Z:
        pos = _extensions(buf, pos, end, kinds, _X_REPLY, row, state)
        if pos < 0:
            return pos
    return _push_body(buf, pos, end, row, kinds, state)


@njit(cache=True)
def _declare(buf, pos, end, header, row, kinds, state):
    if header & declare.FLAG_INTEREST:
        pos, _interest_id = _bounded(buf, pos, end, _U32, state)
        if pos < 0:
            return pos
    if header & _Z:
        pos = _extensions(buf, pos, end, kinds, _X_DECLARE, row, state)
        if pos < 0:
            return pos
    if pos >= end:
        return _fail(state, _CUT_SHORT, pos)
    header = load8(buf, pos)
    number = header & _ID_MASK
    if number > declare.U_TOKEN and number != declare.D_FINAL:
        return _fail(state, _UNKNOWN_ID, pos)
    row["body"] = number
    pos += 1
    table = _X_NONE
    if number != declare.D_FINAL:
        pos, _id = _bounded(buf, pos, end, _U16 if number <= declare.U_KEYEXPR else _U32, state)
        if pos < 0:
            return pos
        if number & 1:  # undeclarations are odd
            if number != declare.U_KEYEXPR:
                table = _X_UNDECLARE
        else:
            pos = _key(
                buf, pos, end, header & _N if number == declare.D_KEYEXPR else header, row, state
            )
            if pos < 0:
                return pos
            if number == declare.D_QUERYABLE:
                table = _X_QUERYABLE
    if header & _Z:
        pos = _extensions(buf, pos, end, kinds, table, row, state)
    return pos


@njit(cache=True)
def _interest(buf, pos, end, header, row, kinds, state):
    pos, _id = _bounded(buf, pos, end, _U32, state)
    if pos < 0:
        return pos
    if header & _INTEREST_MODE:
        if pos >= end:
            return _fail(state, _CUT_SHORT, pos)
        options = load8(buf, pos)
        pos += 1
        if options & interest.OPTION_RESTRICTED:
            pos = _key(buf, pos, end, options, row, state)
            if pos < 0:
                return pos
    if header & _Z:
        pos = _extensions(buf, pos, end, kinds, _X_INTEREST, row, state)
    return pos


@njit(cache=True)
def _oam(buf, pos, end, header, row, kinds, table, state):
    pos, _id = _bounded(buf, pos, end, _U16, state)
    if pos < 0:
        return pos
    if header & _Z:
        pos = _extensions(buf, pos, end, kinds, table, row, state)
        if pos < 0:
            return pos
    encoding = header & ENC_MASK
    if encoding == ENC_MASK:
        return _fail(state, _EXTENSION_ENCODING, pos)
    if encoding == ENC_Z64:
        after, _value = _zint(buf, pos, end)
        if after < 0:
            return _fail(state, _CUT_SHORT, pos)
        return after
    if encoding == ENC_ZBUF:
        return _payload(buf, pos, end, row, state)
    return pos


@njit(cache=True)
def _network(buf, pos, end, header, row, kinds, state):
    """What follows a network message's header byte: the position after it or -1."""
    number = header & _ID_MASK
    if number == push.ID:
        return _push(buf, pos, end, header, row, kinds, state)
    if number == request.ID:
        return _request(buf, pos, end, header, row, kinds, state)
    if number == response.ID:
        return _response(buf, pos, end, header, row, kinds, state)
    if number == response_final.ID:
        pos = _request_id(buf, pos, end, row, state)
        if pos >= 0 and header & _Z:
            pos = _extensions(buf, pos, end, kinds, _X_RESPONSE_FINAL, row, state)
        return pos
    if number == declare.ID:
        return _declare(buf, pos, end, header, row, kinds, state)
    if number == interest.ID:
        return _interest(buf, pos, end, header, row, kinds, state)
    return _oam(buf, pos, end, header, row, kinds, _X_NETWORK_OAM, state)


@njit(cache=True)
def _identity(buf, pos, end, state):
    """The packed byte with a role and an id, of INIT and JOIN."""
    start, length = _packed_id(buf, pos, end, state)
    if start < 0:
        return start
    if load8(buf, pos) & 0x03 == 0x03:
        return _fail(state, _BAD_VALUE, pos)
    return start + length


@njit(cache=True)
def _size(buf, pos, end, state):
    """Resolution and batch size, of INIT and JOIN."""
    if pos >= end:
        return _fail(state, _CUT_SHORT, pos)
    if pos + 3 > end:
        return _fail(state, _CUT_SHORT, pos + 1)
    return pos + 3


@njit(cache=True)
def _init_or_join(buf, pos, end, header, state):
    """Version, identity, size: what INIT and JOIN start with."""
    if pos >= end:
        return _fail(state, _CUT_SHORT, pos)
    pos = _identity(buf, pos + 1, end, state)
    if pos >= 0 and header & init.FLAG_SIZE:
        pos = _size(buf, pos, end, state)
    return pos


@njit(cache=True)
def _lease(buf, pos, end, state):
    after, _value = _zint(buf, pos, end)
    if after < 0:
        return _fail(state, _CUT_SHORT, pos)
    return after


@njit(cache=True)
def _transport(buf, pos, end, header, row, kinds, state):
    """What follows a transport message's header byte, FRAME aside."""
    number = header & _ID_MASK
    table = _X_KEEP_ALIVE
    reliable = number != fragment.ID or header & fragment.FLAG_RELIABLE
    state["lane"] = DEFAULT_LANE if reliable else DEFAULT_LANE ^ LANE_RELIABLE
    if number == oam.TRANSPORT_ID:
        return _oam(buf, pos, end, header, row, kinds, _X_TRANSPORT_OAM, state)
    if number == init.ID:
        table = _X_INIT
        pos = _init_or_join(buf, pos, end, header, state)
        if pos >= 0 and header & init.FLAG_ACK:
            start, length = _block(buf, pos, end, _U16, state)
            pos = start + length if start >= 0 else -1
    elif number == open_.ID:
        table = _X_OPEN
        pos = _lease(buf, pos, end, state)
        if pos >= 0:
            pos, _sn = _bounded(buf, pos, end, _U32, state)
        if pos >= 0 and not header & open_.FLAG_ACK:
            start, length = _block(buf, pos, end, _U32, state)
            pos = start + length if start >= 0 else -1
    elif number == close.ID:
        table = _X_CLOSE
        if pos >= end:
            return _fail(state, _CUT_SHORT, pos)
        pos += 1
    elif number == fragment.ID:
        table = _X_FRAGMENT
        pos, sn = _bounded(buf, pos, end, _U32, state)
        if pos >= 0:
            row["sn"] = sn
    elif number == join.ID:
        table = _X_JOIN
        pos = _init_or_join(buf, pos, end, header, state)
        if pos >= 0:
            pos = _lease(buf, pos, end, state)
        if pos >= 0:
            pos, _sn = _bounded(buf, pos, end, _U32, state)
        if pos >= 0:
            pos, _sn = _bounded(buf, pos, end, _U32, state)
    if pos >= 0 and header & _Z:
        pos = _extensions(buf, pos, end, kinds, table, row, state)
    if pos >= 0 and number == fragment.ID:
        row["payload"] = pos
        row["payload_len"] = end - pos
        if header & fragment.FLAG_MORE:
            row["flags"] |= FLAG_MORE
        pos = end
    return pos


@njit(cache=True)
def _frame_header(buf, pos, end, header, row, kinds, state):
    """Lane and sequence number into `state`, where the messages of the FRAME take them from."""
    pos, sn = _bounded(buf, pos, end, _U32, state)
    if pos < 0:
        return pos
    state["sn"] = sn
    state["lane"] = DEFAULT_LANE if header & frame.FLAG_RELIABLE else DEFAULT_LANE ^ LANE_RELIABLE
    if header & _Z:
        pos = _extensions(buf, pos, end, kinds, _X_FRAME, row, state)
    return pos


@njit(cache=True)
def _next_batch(buf, pos, end, framing, limit, state):
    """Steps into the next whole batch; False if there is none yet, or its length is a lie."""
    if framing == 0:
        if pos >= end or state["batch"] >= 0:
            return False
        state["batch_end"] = end
    else:
        if pos + framing > end:
            return False
        length = np.int64(0)
        for i in range(framing):
            length |= load8(buf, pos + i) << (8 * i)
        if length > limit:
            _fail(state, _TOO_LARGE, pos)
            return False
        if pos + framing + length > end:
            return False
        pos += framing
        state["batch_end"] = pos + length
    state["pos"] = pos
    state["batch"] += 1
    state["in_frame"] = 0
    return True


@njit(cache=True, inline="always")
def _short_zint(buf, pos, end):
    """A zint of one or two bytes: (next position, value); -1 if it is longer or cut."""
    if pos >= end:
        return -1, np.int64(0)
    byte = load8(buf, pos)
    if byte < 0x80:
        return pos + 1, byte
    if pos + 1 >= end:
        return -1, np.int64(0)
    second = load8(buf, pos + 1)
    if second < 0x80:
        return pos + 2, (byte & 0x7F) | (second << 7)
    return -1, np.int64(0)


@njit(cache=True, inline="always")
def _plain_push(buf, pos, end, header, row):
    """The short way for what nearly all traffic is: a PUSH without extensions that holds a PUT
    without flags. It never refuses; it declines with -1, and the long way decides."""
    pos, scope = _short_zint(buf, pos, end)
    if pos < 0:
        return -1
    suffix = np.int64(0)
    suffix_len = np.int64(0)
    if header & _N:
        suffix, suffix_len = _short_zint(buf, pos, end)
        if suffix < 0:
            return -1
        pos = suffix + suffix_len
        if pos > end or not _is_ascii(buf, suffix, pos):
            return -1
    if pos >= end or load8(buf, pos) != put.ID:
        return -1
    payload, payload_len = _short_zint(buf, pos + 1, end)
    if payload < 0 or payload + payload_len > end:
        return -1
    row["scope"] = scope
    row["mapping"] = 1 if header & _M else 0
    row["suffix"] = suffix
    row["suffix_len"] = suffix_len
    row["body"] = put.ID
    row["payload"] = payload
    row["payload_len"] = payload_len
    return payload + payload_len


@njit(cache=True, nogil=True)
def scan_kernel(data, framing, mode, limit, kind_table, rows, words, states):
    """Fill `rows` from where `state` says; the number of rows filled.

    Ends when the whole batches end, when `rows` is full, or at bad bytes (state["reason"] is set;
    state["pos"] is then the first byte of the message that failed). `words` is `rows` seen as
    64-bit words, to clear a row at once. `mode`: 0 as framed, LOW_LATENCY (network messages also
    outside a FRAME), BARE (network messages alone; ends before anything else).
    """
    end = len(data)
    buf = place_of(data)
    kinds = place_of(kind_table)
    state = states[0]
    capacity = len(rows)
    count = 0
    pos = state["pos"]
    batch_end = state["batch_end"]
    batch = state["batch"]
    in_frame = state["in_frame"] != 0
    lane = state["lane"]
    sn = state["sn"]
    while True:
        if pos >= batch_end:
            if not _next_batch(buf, pos, end, framing, limit, state):
                break
            pos = state["pos"]
            batch_end = state["batch_end"]
            batch = state["batch"]
            in_frame = False
            continue
        if count >= capacity:
            break
        header = load8(buf, pos)
        number = header & _ID_MASK
        if mode == BARE and number < _FIRST_NETWORK_ID:
            break
        row = rows[count]
        for i in range(ROW_WORDS):
            words[count, i] = 0
        row["qos"] = 5
        after = -1
        if number >= _FIRST_NETWORK_ID and (in_frame or mode != 0):
            if header & (_Z | _ID_MASK) == push.ID:
                after = _plain_push(buf, pos + 1, batch_end, header, row)
            if after < 0:
                after = _network(buf, pos + 1, batch_end, header, row, kinds, state)
            row["lane"] = lane if in_frame or mode == BARE else DEFAULT_LANE
            row["sn"] = sn if in_frame else 0
        elif number == frame.ID:
            after = _frame_header(buf, pos + 1, batch_end, header, row, kinds, state)
            if after < 0:
                break
            in_frame = True
            lane = state["lane"]
            sn = state["sn"]
            pos = after
            continue
        elif number <= join.ID:
            in_frame = False
            after = _transport(buf, pos + 1, batch_end, header, row, kinds, state)
            row["lane"] = state["lane"]
        else:
            _fail(state, _UNKNOWN_ID, pos)
        if after < 0:
            break
        row["kind"] = number
        row["start"] = pos
        row["end"] = after
        row["batch"] = batch
        count += 1
        pos = after
    state["pos"] = pos
    state["in_frame"] = in_frame
    state["lane"] = lane
    state["sn"] = sn
    return count


@njit(cache=True)
def scan_held_kernel(data, framing, mode, limit, kind_table, rows, words, states):
    """The same without releasing the GIL: for so little that taking it back would cost more."""
    return scan_kernel(data, framing, mode, limit, kind_table, rows, words, states)
