"""Arguments of API calls, checked and converted: enumeration members, timeouts, keys, QoS.

Knows defaults and the errors for values of the wrong kind. Does not know the calls.
"""

import math
from functools import lru_cache
from typing import TypeVar

from zenlake.api.values.encoding import Encoding, IntoEncoding
from zenlake.api.values.enums import CongestionControl, Priority
from zenlake.api.values.wrapped import Wrapped
from zenlake.api.values.zbytes import IntoZBytes, payload_bytes
from zenlake.keyexpr import KeyExpr
from zenlake.wire import encoding as wire
from zenlake.wire.qos import QoS

T = TypeVar("T")
W = TypeVar("W")

IntoKeyExpr = KeyExpr | str

MAX_KNOWN_KEYS = 1_024  # Key expressions that `checked_key` remembers.

checked_key = lru_cache(MAX_KNOWN_KEYS)(KeyExpr)
"""Return KeyExpr(text) from a cache of the keys that were checked last."""


def member(name: str, value: T | None, default: T) -> T:
    """Return `value`, or `default` if it is None. TypeError: it is of another type.

    >>> member("priority", None, Priority.DATA)
    Priority.DATA
    """
    return default if value is None else instance(name, value, type(default))


def instance(name: str, value: object, kind: type[T]) -> T:
    """Return `value`. TypeError: it is not a `kind`."""
    if isinstance(value, kind):
        return value
    raise TypeError(
        f"argument '{name}': '{type(value).__name__}' object cannot be converted to "
        f"'{kind.__name__}'"
    )


def wire_of(name: str, value: Wrapped[W] | None, kind: type[Wrapped[W]]) -> W | None:
    """Return an optional argument as it is on the wire. TypeError: it is not a `kind`."""
    return None if value is None else instance(name, value, kind).wire


def check_timeout(timeout: float | None, default: float) -> float:
    """Return a timeout in seconds, checked.

    >>> check_timeout(None, 10.0), check_timeout(2, 10.0)
    (10.0, 2.0)
    """
    if timeout is None:
        return default
    try:
        time = math.copysign(timeout, timeout)  # copysign refuses text, which float() would take.
    except TypeError:
        raise TypeError(
            f"argument 'timeout': must be real number, not {type(timeout).__name__}"
        ) from None
    if time < 0:
        raise ValueError("negative timeout")
    if not math.isfinite(time):
        raise ValueError(f"timeout is {time}: give a number of seconds")
    return time


def key_of(key_expr: IntoKeyExpr) -> KeyExpr:
    """Return `key_expr` as a checked KeyExpr."""
    return checked_key(instance("key_expr", key_expr, str))


def encoding_of(encoding: IntoEncoding | None) -> wire.WireEncoding:
    """Return `encoding` as it is on the wire."""
    if encoding is None:
        return wire.DEFAULT
    if type(encoding) is not Encoding:
        encoding = Encoding(instance("encoding", encoding, str))
    return encoding.wire


def attachment_of(attachment: IntoZBytes | None) -> bytes | None:
    """Return `attachment` as it is on the wire."""
    return None if attachment is None else bytes(payload_bytes(attachment))


def qos_of(
    default: QoS,
    priority: Priority | None,
    congestion_control: CongestionControl | None,
    express: bool | None,
) -> QoS:
    """Return the QoS byte; an argument that is None is taken from `default`."""
    if priority is None and congestion_control is None and express is None:
        return default
    return QoS(
        default.priority if priority is None else instance("priority", priority, Priority).wire,
        default.congestion_control
        if congestion_control is None
        else instance("congestion_control", congestion_control, CongestionControl).wire,
        express=member("express", express, default.express),
    )
