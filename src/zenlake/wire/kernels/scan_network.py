"""Network messages, compiled: PUSH, REQUEST, RESPONSE and what declares them.

Reads what follows a header byte into a row; data messages are complete in it. Does not know FRAMEs
or batches. Each layout is that of the message's own file (wire/push.py, ...), held to it by tests.
"""

import numpy as np
from numba import njit

from zenlake.errors import Reason
from zenlake.wire import (
    declare,
    delete,
    err,
    interest,
    push,
    put,
    query,
    reply,
    request,
    response,
    response_final,
)
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.kernels.memory import load8
from zenlake.wire.kernels.scan_core import (
    U16,
    U32,
    X_DECLARE,
    X_DEL,
    X_ERR,
    X_INTEREST,
    X_NETWORK_OAM,
    X_NONE,
    X_PUSH,
    X_PUT,
    X_QUERY,
    X_QUERYABLE,
    X_REPLY,
    X_REQUEST,
    X_RESPONSE,
    X_RESPONSE_FINAL,
    X_UNDECLARE,
    read_bounded,
    read_encoding,
    read_extensions,
    read_key,
    read_oam,
    read_payload,
    read_text,
    read_timestamp,
    read_zint,
    refuse,
)
from zenlake.wire.wireexpr import FLAG_NAMED

_INTEREST_MODE = 0x03 << interest.MODE_SHIFT


@njit(cache=True)
def _read_stamp(buf, pos, end, row, state):
    """Read the timestamp of a PUT or DEL."""
    start, length, time = read_timestamp(buf, pos, end, state)
    if start < 0:
        return start
    row["time"] = np.uint64(time)
    row["clock"] = start
    row["clock_len"] = length
    return start + length


@njit(cache=True)
def _read_put(buf, pos, end, header, row, kinds, state):
    if header & put.FLAG_TIMESTAMP:
        pos = _read_stamp(buf, pos, end, row, state)
    if pos >= 0 and header & put.FLAG_ENCODING:
        pos = read_encoding(buf, pos, end, row, state)
    pos = read_extensions(buf, pos, end, header, kinds, X_PUT, row, state)
    if pos < 0:
        return pos
    return read_payload(buf, pos, end, row, state)


@njit(cache=True)
def _read_del(buf, pos, end, header, row, kinds, state):
    if header & delete.FLAG_TIMESTAMP:
        pos = _read_stamp(buf, pos, end, row, state)
    return read_extensions(buf, pos, end, header, kinds, X_DEL, row, state)


@njit(cache=True)
def _read_push_body(buf, pos, end, row, kinds, state):
    """Read a PUT or DEL, header byte included."""
    if pos >= end:
        return refuse(state, Reason.CUT_SHORT, pos)
    header = load8(buf, pos)
    number = header & ID_MASK
    row["body"] = number
    if number == put.ID:
        return _read_put(buf, pos + 1, end, header, row, kinds, state)
    if number == delete.ID:
        return _read_del(buf, pos + 1, end, header, row, kinds, state)
    return refuse(state, Reason.UNKNOWN_ID, pos)


@njit(cache=True)
def _read_push(buf, pos, end, header, row, kinds, state):
    pos = read_key(buf, pos, end, header, row, state)
    pos = read_extensions(buf, pos, end, header, kinds, X_PUSH, row, state)
    if pos < 0:
        return pos
    return _read_push_body(buf, pos, end, row, kinds, state)


@njit(cache=True)
def _read_consolidation(buf, pos, end, row, state):
    after, value = read_zint(buf, pos, end)
    if after < 0:
        return refuse(state, Reason.CUT_SHORT, pos)
    row["consolidation"] = value if 0 <= value <= 3 else 0
    return after


@njit(cache=True)
def _read_request_id(buf, pos, end, row, state):
    pos, number = read_bounded(buf, pos, end, U32, state)
    if pos >= 0:
        row["request_id"] = number
    return pos


@njit(cache=True)
def _read_request_head(buf, pos, end, header, row, kinds, table, state):
    """Read id, key and extensions of a REQUEST or RESPONSE; return where its body starts or -1."""
    pos = _read_request_id(buf, pos, end, row, state)
    if pos >= 0:
        pos = read_key(buf, pos, end, header, row, state)
    pos = read_extensions(buf, pos, end, header, kinds, table, row, state)
    return refuse(state, Reason.CUT_SHORT, pos) if pos >= end else pos


@njit(cache=True)
def _read_request(buf, pos, end, header, row, kinds, state):
    pos = _read_request_head(buf, pos, end, header, row, kinds, X_REQUEST, state)
    if pos < 0:
        return pos
    header = load8(buf, pos)
    if header & ID_MASK != query.ID:
        return refuse(state, Reason.UNKNOWN_ID, pos)
    pos += 1
    row["body"] = query.ID
    if header & query.FLAG_CONSOLIDATION:
        pos = _read_consolidation(buf, pos, end, row, state)
        if pos < 0:
            return pos
    if header & query.FLAG_PARAMETERS:
        start, length = read_text(buf, pos, end, U32, state)
        if start < 0:
            return start
        row["parameters"] = start
        row["parameters_len"] = length
        pos = start + length
    return read_extensions(buf, pos, end, header, kinds, X_QUERY, row, state)


@njit(cache=True)
def _read_err(buf, pos, end, header, row, kinds, state):
    if header & err.FLAG_ENCODING:
        pos = read_encoding(buf, pos, end, row, state)
    pos = read_extensions(buf, pos, end, header, kinds, X_ERR, row, state)
    if pos < 0:
        return pos
    return read_payload(buf, pos, end, row, state)


@njit(cache=True)
def _read_response(buf, pos, end, header, row, kinds, state):
    pos = _read_request_head(buf, pos, end, header, row, kinds, X_RESPONSE, state)
    if pos < 0:
        return pos
    header = load8(buf, pos)
    number = header & ID_MASK
    if number == err.ID:
        row["body"] = err.ID
        return _read_err(buf, pos + 1, end, header, row, kinds, state)
    if number != reply.ID:
        return refuse(state, Reason.UNKNOWN_ID, pos)
    pos += 1
    if header & reply.FLAG_CONSOLIDATION:
        pos = _read_consolidation(buf, pos, end, row, state)
    pos = read_extensions(buf, pos, end, header, kinds, X_REPLY, row, state)
    if pos < 0:
        return pos
    return _read_push_body(buf, pos, end, row, kinds, state)


@njit(cache=True)
def _read_declare(buf, pos, end, header, row, kinds, state):
    if header & declare.FLAG_INTEREST:
        pos, _interest_id = read_bounded(buf, pos, end, U32, state)
    pos = read_extensions(buf, pos, end, header, kinds, X_DECLARE, row, state)
    if pos < 0:
        return pos
    if pos >= end:
        return refuse(state, Reason.CUT_SHORT, pos)
    header = load8(buf, pos)
    number = header & ID_MASK
    if number > declare.U_TOKEN and number != declare.D_FINAL:
        return refuse(state, Reason.UNKNOWN_ID, pos)
    row["body"] = number
    pos += 1
    table = X_NONE
    if number != declare.D_FINAL:
        pos, _id = read_bounded(buf, pos, end, U16 if number <= declare.U_KEYEXPR else U32, state)
        if pos < 0:
            return pos
        if number & 1:  # ids of undeclarations are odd
            if number != declare.U_KEYEXPR:
                table = X_UNDECLARE
        else:
            pos = read_key(
                buf,
                pos,
                end,
                header & FLAG_NAMED if number == declare.D_KEYEXPR else header,
                row,
                state,
            )
            if pos < 0:
                return pos
            if number == declare.D_QUERYABLE:
                table = X_QUERYABLE
    return read_extensions(buf, pos, end, header, kinds, table, row, state)


@njit(cache=True)
def _read_interest(buf, pos, end, header, row, kinds, state):
    pos, _id = read_bounded(buf, pos, end, U32, state)
    if pos < 0:
        return pos
    if header & _INTEREST_MODE:
        if pos >= end:
            return refuse(state, Reason.CUT_SHORT, pos)
        options = load8(buf, pos)
        pos += 1
        if options & interest.OPTION_RESTRICTED:
            pos = read_key(buf, pos, end, options, row, state)
    return read_extensions(buf, pos, end, header, kinds, X_INTEREST, row, state)


@njit(cache=True)
def read_network(buf, pos, end, header, row, kinds, state):
    """Read a network message from after its header byte; return the position after it or -1."""
    number = header & ID_MASK
    if number == push.ID:
        return _read_push(buf, pos, end, header, row, kinds, state)
    if number == request.ID:
        return _read_request(buf, pos, end, header, row, kinds, state)
    if number == response.ID:
        return _read_response(buf, pos, end, header, row, kinds, state)
    if number == response_final.ID:
        pos = _read_request_id(buf, pos, end, row, state)
        return read_extensions(buf, pos, end, header, kinds, X_RESPONSE_FINAL, row, state)
    if number == declare.ID:
        return _read_declare(buf, pos, end, header, row, kinds, state)
    if number == interest.ID:
        return _read_interest(buf, pos, end, header, row, kinds, state)
    return read_oam(buf, pos, end, header, row, kinds, X_NETWORK_OAM, state)
