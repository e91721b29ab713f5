"""The session API: the names of `eclipse-zenoh`, and zenlake's additions to them.

`zenlake` exports every name of this package. Does not know asyncio (`zenlake.aio`).
"""

from zenlake.api.config.config import Config
from zenlake.api.config.logging_env import init_log_from_env_or, try_init_log_from_env
from zenlake.api.discovery.info import (
    Link,
    LinkEvent,
    LinkEventsListener,
    SessionInfo,
    Transport,
    TransportEvent,
    TransportEventsListener,
)
from zenlake.api.discovery.liveliness import Liveliness, LivelinessToken
from zenlake.api.discovery.matching import MatchingListener, MatchingStatus
from zenlake.api.discovery.scouting import Hello, Scout, scout
from zenlake.api.discovery.stats import Stats
from zenlake.api.handlers import Handler
from zenlake.api.pubsub.arrow import ArrowBatches
from zenlake.api.pubsub.publisher import Publisher
from zenlake.api.pubsub.subscriber import Subscriber
from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.query.options import QueryConsolidation
from zenlake.api.query.querier import Querier
from zenlake.api.query.query import Query
from zenlake.api.query.queryable import Queryable
from zenlake.api.session import Session, open  # noqa: A004  # the API's name
from zenlake.api.values.encoding import Encoding
from zenlake.api.values.enums import (
    CongestionControl,
    ConsolidationMode,
    InterceptionPoint,
    Locality,
    Priority,
    QueryTarget,
    Reliability,
    ReplyKeyExpr,
    SampleKind,
    WhatAmI,
    WhatAmIMatcher,
)
from zenlake.api.values.ids import EntityGlobalId, SourceInfo, ZenohId
from zenlake.api.values.instrumentation import (
    TimestampContext,
    TimestampInstrumentation,
    TimestampInstrumentationBuilder,
    TimestampStack,
    TimestampStackRecord,
)
from zenlake.api.values.reply import Reply, ReplyError
from zenlake.api.values.sample import Sample
from zenlake.api.values.selector import Parameters, Selector
from zenlake.api.values.timestamps import NTP64, Timestamp, TimestampId
from zenlake.api.values.zbytes import ZBytes
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr, SetIntersectionLevel

__all__ = [
    "NTP64",
    "ArrowBatches",
    "CancellationToken",
    "Config",
    "CongestionControl",
    "ConsolidationMode",
    "Encoding",
    "EntityGlobalId",
    "Handler",
    "Hello",
    "InterceptionPoint",
    "KeyExpr",
    "Link",
    "LinkEvent",
    "LinkEventsListener",
    "Liveliness",
    "LivelinessToken",
    "Locality",
    "MatchingListener",
    "MatchingStatus",
    "Parameters",
    "Priority",
    "Publisher",
    "Querier",
    "Query",
    "QueryConsolidation",
    "QueryTarget",
    "Queryable",
    "Reliability",
    "Reply",
    "ReplyError",
    "ReplyKeyExpr",
    "Sample",
    "SampleKind",
    "Scout",
    "Selector",
    "Session",
    "SessionInfo",
    "SetIntersectionLevel",
    "SourceInfo",
    "Stats",
    "Subscriber",
    "Timestamp",
    "TimestampContext",
    "TimestampId",
    "TimestampInstrumentation",
    "TimestampInstrumentationBuilder",
    "TimestampStack",
    "TimestampStackRecord",
    "Transport",
    "TransportEvent",
    "TransportEventsListener",
    "WhatAmI",
    "WhatAmIMatcher",
    "ZBytes",
    "ZError",
    "ZenohId",
    "init_log_from_env_or",
    "open",
    "scout",
    "try_init_log_from_env",
]
