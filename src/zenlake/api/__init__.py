"""The session API: the names of `eclipse-zenoh`, and what its users ask for besides.

Everything here is also in `zenlake` itself. Does not know asyncio (`zenlake.aio`).
"""

from zenlake.api.arrow import ArrowBatches
from zenlake.api.cancellation import CancellationToken
from zenlake.api.config import Config
from zenlake.api.encoding import Encoding
from zenlake.api.enums import (
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
from zenlake.api.handlers import Handler
from zenlake.api.ids import EntityGlobalId, SourceInfo, ZenohId
from zenlake.api.info import (
    Link,
    LinkEvent,
    LinkEventsListener,
    SessionInfo,
    Transport,
    TransportEvent,
    TransportEventsListener,
)
from zenlake.api.instrumentation import (
    TimestampContext,
    TimestampInstrumentation,
    TimestampInstrumentationBuilder,
    TimestampStack,
    TimestampStackRecord,
)
from zenlake.api.liveliness import Liveliness, LivelinessToken
from zenlake.api.logs import init_log_from_env_or, try_init_log_from_env
from zenlake.api.matching import MatchingListener, MatchingStatus
from zenlake.api.publisher import Publisher
from zenlake.api.querier import Querier
from zenlake.api.queries import QueryConsolidation
from zenlake.api.query import Query
from zenlake.api.queryable import Queryable
from zenlake.api.reply import Reply, ReplyError
from zenlake.api.sample import Sample
from zenlake.api.scouting import Hello, Scout, scout
from zenlake.api.selector import Parameters, Selector
from zenlake.api.session import Session, open  # noqa: A004  # the API's name
from zenlake.api.stats import Stats
from zenlake.api.subscriber import Subscriber
from zenlake.api.timestamps import NTP64, Timestamp, TimestampId
from zenlake.api.zbytes import ZBytes
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
