"""Name, bodies, fields, key and payload of any message, for display.

Knows how messages nest, from the codec's own tables. Texts may have any character that a peer sent.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum, Flag
from typing import Any

from zenlake.wire.batch import SCOUTING, TRANSPORT, Message
from zenlake.wire.declare import DECLARATIONS
from zenlake.wire.enums import CloseReason
from zenlake.wire.linkstate import LinkState, read_link_states
from zenlake.wire.network import NETWORK
from zenlake.wire.oam import LINK_STATE, NetworkOam
from zenlake.wire.push import PUSH_BODIES
from zenlake.wire.put import Slice
from zenlake.wire.qos import QoS
from zenlake.wire.querybody import QueryBody
from zenlake.wire.request import REQUEST_BODIES
from zenlake.wire.response import RESPONSE_BODIES
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr

_TABLES = (
    TRANSPORT,
    SCOUTING,
    NETWORK,
    PUSH_BODIES,
    REQUEST_BODIES,
    RESPONSE_BODIES,
    DECLARATIONS,
)
NAMES: dict[type, str] = {row.type: row.name for table in _TABLES for row in table.by_type.values()}

ALWAYS_SHOWN = {"mode", "reason"}  # Fields of INTEREST and CLOSE that are shown by default too.
MAX_BYTES_SHOWN = 32
MAX_CHARACTERS = 4096

Payload = bytes | tuple[Slice, ...]


def layers(message: object) -> Iterator[object]:
    """Yield the message, its body, the body of that, and the value in a query."""
    layer: object = message
    while type(layer) in NAMES or isinstance(layer, QueryBody):
        yield layer
        layer = getattr(layer, "body", None)


def name_of(message: object) -> str:
    """Return all names from the outside in: RESPONSE/REPLY/PUT."""
    return "/".join(NAMES[type(layer)] for layer in layers(message) if type(layer) in NAMES)


def key_of(message: object) -> WireExpr | None:
    """Return the key expression of a network message."""
    for layer in layers(message):
        key = getattr(layer, "key", None)
        if isinstance(key, WireExpr):
            return key
    return None


def payload_of(message: object) -> Payload | None:
    """Return the payload of a PUT, an ERR, a query or a FRAGMENT."""
    for layer in layers(message):
        payload: Payload | None = getattr(layer, "payload", None)
        if payload is not None:
            return payload
    return None


def payload_bytes(payload: Payload | None) -> int:
    if isinstance(payload, tuple):
        return sum(len(piece.data) for piece in payload)
    return len(payload or b"")


def link_states_of(message: Message) -> list[LinkState]:
    """Return the link states of an OAM; DecodeError, at an offset in its body, if it has others."""
    if not isinstance(message, NetworkOam) or message.id != LINK_STATE:
        return []
    return read_link_states(message.body) if isinstance(message.body, bytes) else []


def shown_fields(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of every field that is not at its default, and of ALWAYS_SHOWN."""
    for field in fields(layer):
        value = getattr(layer, field.name)
        if isinstance(field.default, CloseReason) and value in CloseReason.__members__.values():
            value = CloseReason(value)
        if value != field.default or field.name in ALWAYS_SHOWN:
            yield field.name, value


def describe(message: object) -> str:
    """Return the fields of a message in one line.

    >>> from zenlake.wire.close import Close
    >>> describe(Close())
    'reason=GENERIC'
    """
    text = " ".join(_facts(message))
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def _facts(message: object) -> Iterator[str]:
    for name, value in shown_fields(message):
        if name == "body" and type(value) in DECLARATIONS.by_type:
            yield DECLARATIONS.by_type[type(value)].name
            yield from _facts(value)
        else:
            yield name if value is True else f"{name}={_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, QoS):
        return f"{value.priority.name},{value.congestion_control.name}" + ",EXPRESS" * value.express
    if isinstance(value, bytes):
        more = "..." if len(value) > MAX_BYTES_SHOWN else ""
        return f"0x{value[:MAX_BYTES_SHOWN].hex()}{more}({len(value)})"
    if isinstance(value, Flag):
        return "|".join(member.name or "" for member in type(value) if member in value) or "0"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, WireTimestamp):
        return value.rfc3339()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(item) for item in value)}]"
    if is_dataclass(value) and type(value).__str__ is object.__str__:
        return f"({' '.join(_facts(value))})"
    return str(value)
