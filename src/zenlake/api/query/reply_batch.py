"""Replies from record batches: many rows become replies to one query.

Knows queries and the schema of `columnar/`. Runs no Python per reply, but for a query of the same
session. Importing it loads Arrow, NumPy and Numba.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import pyarrow as pa

from zenlake.api.query.query import PendingRequest, Query, request_of, responder_of
from zenlake.columnar.write import push_columns
from zenlake.errors import SessionEnded
from zenlake.runtime.inbound import stamp_route
from zenlake.wire.cursor import ByteReader
from zenlake.wire.emit import Emitter, response_envelope
from zenlake.wire.kernels.emit import PushColumns
from zenlake.wire.network import NETWORK
from zenlake.wire.reply import WireReply
from zenlake.wire.response import Response

if TYPE_CHECKING:
    from zenlake.runtime.exchange import Exchange

ROOM_SECONDS = 0.05  # Longest wait for room on the link before the query is looked at again.


class BatchAnswer(NamedTuple):
    """Outcome of a batch of replies."""

    rows: int
    "Rows that were answered with: all, unless the query ended first."
    too_large: int
    "Rows among them that are too large for the link: an ERR was sent in place of each."


def reply_batch(query: Query, rows: pa.RecordBatch, wanted: Callable[[], bool]) -> BatchAnswer:
    """Reply with each row, with the QoS of the query, until the query ends or `wanted` returns
    False. Waits for room on the link of the session that asked."""
    asked = request_of(query)
    columns = push_columns(rows)
    like = asked.response("", WireReply(), asked.request.qos, responder_of(query))
    if asked.is_remote:
        return _send(asked, columns, like, wanted)
    return _answer_here(asked, columns, like, wanted)


def _send(
    asked: PendingRequest, columns: PushColumns, like: Response, wanted: Callable[[], bool]
) -> BatchAnswer:
    exchange = cast("Exchange", asked.exchange)
    path = exchange.reply_path(asked.request.id)
    if path is None:
        return BatchAnswer(0, 0)
    try:
        replies = path.emitter(columns, cast(Response, stamp_route(like, exchange.local)))
    except SessionEnded:
        return BatchAnswer(0, 0)
    while not replies.done and not asked.ended and path.is_open and wanted():
        if not exchange.send_replies(path, replies):
            path.wait_for_room(ROOM_SECONDS)
    return BatchAnswer(replies.row, path.refused)


def _answer_here(
    asked: PendingRequest, columns: PushColumns, like: Response, wanted: Callable[[], bool]
) -> BatchAnswer:
    """Answer a query of the same session: its replies are read from their bytes."""
    replies = Emitter(columns, None, response_envelope(like))
    for message in replies.messages():
        if asked.ended or not wanted():
            return BatchAnswer(replies.row - 1, 0)
        reply: Response = NETWORK.read(ByteReader(message))
        assert reply.responder is not None
        asked.answer(reply.key.suffix, reply.body, reply.qos, reply.responder)
    return BatchAnswer(replies.row, 0)
