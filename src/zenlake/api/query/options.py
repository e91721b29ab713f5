"""Options of queries: consolidation, what all gets of a querier share, what each get adds.

Knows names, defaults and checks. Does not know what is sent.
"""

from typing import Self, TypedDict, final

from zenlake.api.arguments import check_timeout, member, qos_of
from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.values.encoding import IntoEncoding
from zenlake.api.values.enums import (
    CongestionControl,
    ConsolidationMode,
    Locality,
    Priority,
    QueryTarget,
    ReplyKeyExpr,
)
from zenlake.api.values.ids import SourceInfo
from zenlake.api.values.instrumentation import TimestampInstrumentation
from zenlake.api.values.selector import IntoParameters
from zenlake.api.values.wrapped import Value
from zenlake.api.values.zbytes import IntoZBytes
from zenlake.wire import qos as wire_qos
from zenlake.wire.qos import QoS


@final
class QueryConsolidation(Value):
    """ConsolidationMode in the form of other Zenoh bindings.

    >>> QueryConsolidation(ConsolidationMode.LATEST).mode()
    ConsolidationMode.LATEST
    """

    __slots__ = ("_mode",)

    AUTO: "QueryConsolidation"
    DEFAULT: "QueryConsolidation"

    def __init__(self, mode: ConsolidationMode | None) -> None:
        self._mode = member("mode", mode, ConsolidationMode.DEFAULT)

    def mode(self, /) -> ConsolidationMode:
        """Return the mode."""
        return self._mode

    def _key(self) -> ConsolidationMode:
        return self._mode

    def __reduce__(self) -> tuple[type[Self], tuple[ConsolidationMode]]:
        return type(self), (self._mode,)

    def __repr__(self) -> str:
        return f"QueryConsolidation({self._mode})"


QueryConsolidation.AUTO = QueryConsolidation.DEFAULT = QueryConsolidation(ConsolidationMode.AUTO)

IntoConsolidation = ConsolidationMode | QueryConsolidation


class QueryOptions:
    """Checked options of a get; all gets of a querier share one object."""

    __slots__ = ("any_key", "consolidation", "destination", "qos", "target", "timeout")

    def __init__(
        self,
        default_timeout: float,
        target: QueryTarget | None = None,
        consolidation: IntoConsolidation | None = None,
        accept_replies: ReplyKeyExpr | None = None,
        timeout: float | None = None,
        congestion_control: CongestionControl | None = None,
        priority: Priority | None = None,
        express: bool | None = None,
        allowed_destination: Locality | None = None,
    ) -> None:
        mode = (
            consolidation.mode() if isinstance(consolidation, QueryConsolidation) else consolidation
        )
        self.consolidation = member("consolidation", mode, ConsolidationMode.DEFAULT).wire
        self.target = member("target", target, QueryTarget.DEFAULT).wire
        accept = member("accept_replies", accept_replies, ReplyKeyExpr.DEFAULT)
        self.any_key = accept is ReplyKeyExpr.ANY
        self.timeout = check_timeout(timeout, default_timeout)
        self.qos: QoS = qos_of(wire_qos.REQUEST, priority, congestion_control, express)
        self.destination = member("allowed_destination", allowed_destination, Locality.DEFAULT)


class QueryData(TypedDict, total=False):
    """Data that one query carries."""

    payload: IntoZBytes | None
    encoding: IntoEncoding | None
    attachment: IntoZBytes | None
    source_info: SourceInfo | None


class SendOptions(QueryData, total=False):
    """Keyword arguments of every get."""

    cancellation_token: CancellationToken | None
    timestamp_instrumentation: TimestampInstrumentation | None


class GetOptions(SendOptions, total=False):
    """Keyword arguments of `Session.get`."""

    target: QueryTarget | None
    consolidation: IntoConsolidation | None
    accept_replies: ReplyKeyExpr | None
    timeout: float | None
    congestion_control: CongestionControl | None
    priority: Priority | None
    express: bool | None
    allowed_destination: Locality | None


class QuerierGetOptions(SendOptions, total=False):
    """Keyword arguments of `Querier.get`."""

    parameters: IntoParameters | None
