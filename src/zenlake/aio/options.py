"""Keyword arguments that the asyncio API passes to the session API, by method.

Knows their names and types; the session API knows their meanings and defaults.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

from zenlake.api.query.options import IntoConsolidation, QueryContent
from zenlake.api.values.encoding import IntoEncoding
from zenlake.api.values.enums import (
    CongestionControl,
    Locality,
    Priority,
    QueryTarget,
    Reliability,
    ReplyKeyExpr,
)
from zenlake.api.values.ids import SourceInfo
from zenlake.api.values.instrumentation import TimestampInstrumentation
from zenlake.api.values.selector import IntoParameters
from zenlake.api.values.timestamps import Timestamp
from zenlake.api.values.zbytes import IntoZBytes

F = TypeVar("F", bound=Callable[..., Any])


def signature_of(method: Callable[..., Any]) -> Callable[[F], F]:
    """Show `help` and `inspect` the parameters of `method` in place of `**options`."""

    def show(function: F) -> F:
        own = inspect.signature(function)
        shown = inspect.signature(method).replace(return_annotation=own.return_annotation)
        function.__signature__ = shown  # type: ignore[attr-defined]
        return function

    return show


class QosOptions(TypedDict, total=False):
    """Quality of service of a message."""

    congestion_control: CongestionControl | None
    priority: Priority | None
    express: bool | None


class PublisherDeleteOptions(TypedDict, total=False):
    """Options of `Publisher.delete`."""

    attachment: IntoZBytes | None
    timestamp: Timestamp | None
    timestamp_instrumentation: TimestampInstrumentation | None
    source_info: SourceInfo | None


class PublisherPutOptions(PublisherDeleteOptions, total=False):
    """Options of `Publisher.put`."""

    encoding: IntoEncoding | None


class DeleteOptions(QosOptions, PublisherDeleteOptions, total=False):
    """Options of `Session.delete`."""

    allowed_destination: Locality | None


class PutOptions(DeleteOptions, total=False):
    """Options of `Session.put`."""

    encoding: IntoEncoding | None


class ReplyDelOptions(QosOptions, total=False):
    """Options of `Query.reply_del`."""

    attachment: IntoZBytes | None
    timestamp: Timestamp | None


class ReplyOptions(ReplyDelOptions, total=False):
    """Options of `Query.reply`."""

    encoding: IntoEncoding | None


class PublisherOptions(QosOptions, total=False):
    """Options of `Session.declare_publisher`."""

    encoding: IntoEncoding | None
    reliability: Reliability | None
    allowed_destination: Locality | None


class QuerierOptions(QosOptions, total=False):
    """Options of `Session.declare_querier`."""

    target: QueryTarget | None
    consolidation: IntoConsolidation | None
    accept_replies: ReplyKeyExpr | None
    timeout: float | None
    allowed_destination: Locality | None


class QuerierGetOptions(QueryContent, total=False):
    """Options of `Querier.get`."""

    parameters: IntoParameters | None


class GetOptions(QuerierOptions, QueryContent, total=False):
    """Options of `Session.get`."""
