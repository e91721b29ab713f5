"""Querier: many queries on one key expression with the same options.

Knows those options. Does not know what becomes of a query: `get.py` does.
"""

from functools import partial
from types import GenericAlias
from typing import ClassVar, TypeVar, Unpack, final, overload

from zenlake.api.arguments import IntoKeyExpr, key_of
from zenlake.api.discovery.matching import MatchWatch, SessionInterests, WatchedEntity
from zenlake.api.handlers import CallbackAnd, Handler, IntoCallback, IntoChannel
from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.query.get import SessionQueries
from zenlake.api.query.options import QuerierGetOptions, QueryOptions
from zenlake.api.values.encoding import IntoEncoding
from zenlake.api.values.enums import ReplyKeyExpr
from zenlake.api.values.ids import SourceInfo
from zenlake.api.values.instrumentation import TimestampInstrumentation
from zenlake.api.values.reply import Reply
from zenlake.api.values.selector import IntoParameters, Parameters
from zenlake.api.values.zbytes import IntoZBytes
from zenlake.wire import entity, enums

H = TypeVar("H")


@final
class Querier(WatchedEntity):
    """Sends queries on one key expression; made by `Session.declare_querier`."""

    __class_getitem__: ClassVar[object] = classmethod(GenericAlias)
    _what = "querier"
    _given_by = "session.declare_querier"

    def __init__(
        self,
        interests: SessionInterests,
        queries: SessionQueries,
        key_expr: IntoKeyExpr,
        options: QueryOptions,
    ) -> None:
        exchange = interests.exchange
        key = key_of(key_expr)
        self._options = options
        complete = options.target is enums.WireQueryTarget.ALL_COMPLETE
        self._key_expr = key
        self._queries = queries
        self._id = entity.WireEntityId(exchange.zid, exchange.next_id())
        self._watch = interests.watch(
            "queryables",
            key,
            complete=complete,
            local=partial(queries.queryables.matches, key, complete),
            destination=options.destination,
        )
        super().__init__(exchange, partial(_end, queries, self._watch))

    @property
    def accept_replies(self) -> ReplyKeyExpr:
        """Whether replies may be on keys that the key expression does not match."""
        self._check()
        return ReplyKeyExpr.ANY if self._options.any_key else ReplyKeyExpr.MATCHING_QUERY

    @overload
    def get(
        self, /, handler: IntoChannel[Reply] = None, **options: Unpack[QuerierGetOptions]
    ) -> Handler[Reply]: ...
    @overload
    def get(self, /, handler: CallbackAnd[Reply, H], **options: Unpack[QuerierGetOptions]) -> H: ...
    @overload
    def get(
        self, /, handler: IntoCallback[Reply], **options: Unpack[QuerierGetOptions]
    ) -> None: ...
    def get(
        self,
        /,
        handler: object = None,
        *,
        parameters: IntoParameters | None = None,
        payload: IntoZBytes | None = None,
        encoding: IntoEncoding | None = None,
        attachment: IntoZBytes | None = None,
        source_info: SourceInfo | None = None,
        cancellation_token: CancellationToken | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
    ) -> object:
        """Send a query; return a reader of the replies, or None with a callback."""
        self._check()
        return self._queries.ask(
            self._key_expr,
            "" if parameters is None else str(Parameters(parameters)),
            self._options,
            handler,
            payload=payload,
            encoding=encoding,
            attachment=attachment,
            source_info=source_info,
            cancellation_token=cancellation_token,
            timestamp_instrumentation=timestamp_instrumentation,
            owner=self._watch,
        )


def _end(queries: SessionQueries, watch: MatchWatch) -> None:
    queries.cancel_of(watch)
    watch.close()
