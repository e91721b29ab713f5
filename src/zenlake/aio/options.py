"""Keyword arguments that the asyncio API hands on to the session API, by method.

Knows their names and types; what they do, and their defaults, the session API knows.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.query.get import IntoConsolidation
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
    """How a message travels."""

    congestion_control: CongestionControl | None
    priority: Priority | None
    express: bool | None


class PublisherDeleteOptions(TypedDict, total=False):
    """`Publisher.delete`."""

    attachment: IntoZBytes | None
    timestamp: Timestamp | None
    timestamp_instrumentation: TimestampInstrumentation | None
    source_info: SourceInfo | None


class PublisherPutOptions(PublisherDeleteOptions, total=False):
    """`Publisher.put`."""

    encoding: IntoEncoding | None


class DeleteOptions(QosOptions, PublisherDeleteOptions, total=False):
    """`Session.delete`."""

    allowed_destination: Locality | None


class PutOptions(DeleteOptions, total=False):
    """`Session.put`."""

    encoding: IntoEncoding | None


class ReplyDelOptions(QosOptions, total=False):
    """`Query.reply_del`."""

    attachment: IntoZBytes | None
    timestamp: Timestamp | None


class ReplyOptions(ReplyDelOptions, total=False):
    """`Query.reply`."""

    encoding: IntoEncoding | None


class PublisherOptions(QosOptions, total=False):
    """`Session.declare_publisher`."""

    encoding: IntoEncoding | None
    reliability: Reliability | None
    allowed_destination: Locality | None


class QuerierOptions(QosOptions, total=False):
    """`Session.declare_querier`."""

    target: QueryTarget | None
    consolidation: IntoConsolidation | None
    accept_replies: ReplyKeyExpr | None
    timeout: float | None
    allowed_destination: Locality | None


class QuestionOptions(TypedDict, total=False):
    """What is sent with one query, and how it can be ended."""

    payload: IntoZBytes | None
    encoding: IntoEncoding | None
    attachment: IntoZBytes | None
    source_info: SourceInfo | None
    cancellation_token: CancellationToken | None
    timestamp_instrumentation: TimestampInstrumentation | None


class QuerierGetOptions(QuestionOptions, total=False):
    """`Querier.get`."""

    parameters: IntoParameters | None


class GetOptions(QuerierOptions, QuestionOptions, total=False):
    """`Session.get`."""
