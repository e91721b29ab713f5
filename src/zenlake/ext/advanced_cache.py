"""Cache of an advanced publisher: its last samples, and the replies made of them.

Knows the parameters `_sn`, `_max` and `_time`. Does not know why a subscriber asks.
"""

import logging
import threading
from collections import deque
from contextlib import suppress
from dataclasses import replace
from time import time_ns

from zenlake.api.query.query import Query, reply_with
from zenlake.api.values.selector import Parameters
from zenlake.errors import MessageTooLarge, ZError
from zenlake.ext.advanced_order import HALF, U32
from zenlake.keyexpr import KeyExpr
from zenlake.quantities import TimeRange, time_range
from zenlake.wire.delete import Del
from zenlake.wire.put import Put

log = logging.getLogger("zenlake.ext")

MOST_SAMPLES = 1 << 30  # Upper bound on the samples of a cache, whatever is configured.

Body = Put | Del


class Cache:
    """Last `most` samples on `key`. Replies have the QoS of the query."""

    def __init__(self, key: KeyExpr, most: int, express: bool | None = None) -> None:
        if most < 1:
            raise ZError("max_samples must not be zero: a cache keeps at least one sample")
        self._key = key
        self._express = express
        self._kept: deque[Body] = deque(maxlen=min(most, MOST_SAMPLES))
        self._lock = threading.Lock()

    def keep(self, body: Body) -> None:
        """Keep a sample; a payload in shared memory is copied, as subscribers give that back."""
        if type(body) is Put and type(body.payload) is not bytes:  # A view, never slices.
            body = replace(body, payload=bytes(body.payload))  # type: ignore[arg-type]
        with self._lock:
            self._kept.append(body)

    def take_back(self) -> None:
        """Remove the last sample: it was not published after all."""
        with self._lock:
            self._kept.pop()

    def answer(self, query: Query) -> None:
        """Reply with the samples that the query's parameters ask for, oldest first."""
        with query:
            with self._lock:
                kept = list(self._kept)
            try:
                for body in select(kept, query.parameters, time_ns()):
                    with suppress(MessageTooLarge):  # The subscriber gets an ERR in its place.
                        reply_with(query, self._key, body, self._express)
            # The query accepts replies on its own key only, or the session has ended.
            except ZError as error:
                log.info("%s is not answered from the cache of %s: %s", query, self._key, error)


def select(kept: list[Body], parameters: Parameters, now: int) -> list[Body]:
    """Return the samples that the parameters ask for. An unreadable parameter is ignored."""
    first, last = numbers(parameters.get("_sn") or "..")
    found = [body for body in kept if _is_numbered_within(body, first, last)]
    times = _times(parameters.get("_time"), now)
    if times is not None:
        found = [body for body in found if _is_within(body, times)]
    most = _number(parameters.get("_max") or "")
    return found if most is None else found[max(0, len(found) - most) :]


def numbers(text: str) -> tuple[int | None, int | None]:
    """Return the sequence numbers that `_sn` asks for, both included; None: no bound.

    >>> numbers("3..7"), numbers("3.."), numbers("..7"), numbers("3"), numbers("..")
    ((3, 7), (3, None), (None, 7), (3, 3), (None, None))
    """
    start, dots, end = text.partition("..")
    first = _number(start)
    return first, _number(end) if dots else first


def _number(text: str) -> int | None:
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None
    return None if number is None or number > U32 else number


def _is_numbered_within(body: Body, first: int | None, last: int | None) -> bool:
    """Return whether the number is in range; numbers wrap: less than half the circle ahead is
    later.
    """
    if first is None and last is None:
        return True
    if body.source_info is None:
        return False
    number = body.source_info.sn
    return (first is None or (number - first) & U32 <= HALF) and (
        last is None or (last - number) & U32 <= HALF
    )


def _times(text: str | None, now: int) -> TimeRange | None:
    try:
        return None if text is None else time_range(text, now)
    except ZError as error:
        log.info("a query for history is answered whatever its age: %s", error)
        return None


def _is_within(body: Body, times: TimeRange) -> bool:
    return body.timestamp is None or times.holds(body.timestamp.time)
