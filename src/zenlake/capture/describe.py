"""A message of the object codec as one line of text: every field that is not its default.

Knows how messages nest. The text may have any character that a peer sent.
"""

from dataclasses import fields, is_dataclass
from enum import Enum, Flag
from typing import Any

from zenlake.wire.batch import SCOUTING, TRANSPORT
from zenlake.wire.declare import DECLARATIONS
from zenlake.wire.enums import CloseReason
from zenlake.wire.network import NETWORK
from zenlake.wire.qos import QoS
from zenlake.wire.timestamp import WireTimestamp

MAX_BYTES_SHOWN = 32
MAX_CHARACTERS = 4096
_ALWAYS = {"mode", "reason", "whatami", "what"}
_NAMES = {
    row.type: row.name
    for table in (TRANSPORT, SCOUTING, NETWORK, DECLARATIONS)
    for row in table.by_type.values()
}


def describe(message: object) -> str:
    """
    >>> from zenlake.wire.close import Close
    >>> describe(Close())
    'reason=GENERIC'
    """
    text = " ".join(_facts(message))
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def _facts(message: Any) -> list[str]:
    found = []
    for field in fields(message):
        value = getattr(message, field.name)
        if field.name == "body" and type(value) in _NAMES:
            found += [_NAMES[type(value)], *_facts(value)]
        elif value is True:
            found.append(field.name)
        elif field.name == "reason" and value in CloseReason.__members__.values():
            found.append(f"reason={CloseReason(value).name}")
        elif field.name in _ALWAYS or value != field.default:
            found.append(f"{field.name}={_text(value)}")
    return [fact for fact in found if fact]


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
