"""Name, bodies, key and payload of any message, for display.

Knows how messages nest, from the codec's own tables.
"""

from collections.abc import Iterator

from zenlake.wire.batch import SCOUTING, TRANSPORT, Message
from zenlake.wire.declare import DECLARATIONS
from zenlake.wire.linkstate import LinkState, read_link_states
from zenlake.wire.network import NETWORK
from zenlake.wire.oam import LINK_STATE, NetworkOam
from zenlake.wire.push import PUSH_BODIES
from zenlake.wire.put import Slice
from zenlake.wire.querybody import QueryBody
from zenlake.wire.request import REQUEST_BODIES
from zenlake.wire.response import RESPONSE_BODIES
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
