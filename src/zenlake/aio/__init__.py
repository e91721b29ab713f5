"""zenlake for asyncio: the same names as `zenlake`, and what may wait is awaited.

    async with await zenlake.aio.open(zenlake.Config()) as session:
        async with await session.declare_subscriber("a/**") as subscriber:
            await session.put("a/b", "hello")
            async for sample in subscriber:
                ...

Values (samples, key expressions, enums, configurations) are those of `zenlake` itself.
"""

from zenlake.aio.handler import Handler, IntoHandler, Receiver
from zenlake.aio.pubsub import MatchingListener, Publisher, Subscriber
from zenlake.aio.query import (
    Liveliness,
    LivelinessToken,
    Querier,
    Query,
    Queryable,
    Replies,
)
from zenlake.aio.session import (
    LinkEventsListener,
    Scout,
    Session,
    SessionInfo,
    TransportEventsListener,
    open,  # noqa: A004 - as in the session API
    scout,
)
from zenlake.api.cancellation import CancellationToken

__all__ = [
    "CancellationToken",
    "Handler",
    "IntoHandler",
    "LinkEventsListener",
    "Liveliness",
    "LivelinessToken",
    "MatchingListener",
    "Publisher",
    "Querier",
    "Query",
    "Queryable",
    "Receiver",
    "Replies",
    "Scout",
    "Session",
    "SessionInfo",
    "Subscriber",
    "TransportEventsListener",
    "open",
    "scout",
]
