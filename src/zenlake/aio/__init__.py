"""zenlake for asyncio: the names of `zenlake`; calls that may wait are awaited.

>>> import asyncio, zenlake
>>> config = zenlake.Config()
>>> config.insert_json5("listen/endpoints", "[]")
>>> config.insert_json5("scouting/multicast/enabled", "false")
>>> async def main():
...     async with await zenlake.aio.open(config) as session:
...         async with await session.declare_subscriber("robot/*") as subscriber:
...             await session.put("robot/7", "here")
...             async for sample in subscriber:
...                 return str(sample.key_expr), str(sample.payload)
>>> asyncio.run(main())
('robot/7', 'here')

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
from zenlake.api.query.cancellation import CancellationToken

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
