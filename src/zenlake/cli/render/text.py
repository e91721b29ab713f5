"""Wire values as text that is safe on a terminal and short enough for a line.

No text returned here holds a control character, a line break or a character that changes the
direction of writing, whatever bytes a peer sent.
"""

import codecs
from collections.abc import Callable
from enum import Enum, Flag
from typing import Any

from zenlake.capture.message_fields import shown_fields
from zenlake.errors import DecodeError
from zenlake.quantities import counted
from zenlake.wire import tsstack
from zenlake.wire.cursor import ByteReader
from zenlake.wire.extensions import IDENTITY_MASK, QueryableInfo, Unknown
from zenlake.wire.put import Slice
from zenlake.wire.qos import QoS
from zenlake.wire.timestamp import WireTimestamp, read_timestamp
from zenlake.wire.tsstack import WireTimestampStack

PREVIEW_CHARACTERS = 64
PREVIEW_HEX_BYTES = 24
MAX_CHARACTER_BYTES = 4  # Bytes of the longest character in UTF-8.


def escape(text: str) -> str:
    """Return `text` with the backslash and all that is not printable as `\\x1b` or `\\u202e`."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(
        c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode() for c in text
    )


def preview(data: bytes) -> str:
    """Return the start of `data`, as text if most of it is, else in hexadecimal; and its length."""
    text = _as_text(data[: PREVIEW_CHARACTERS * MAX_CHARACTER_BYTES], len(data))
    if text is None:
        cut = "..." if len(data) > PREVIEW_HEX_BYTES else ""
        shown = f"0x{data[:PREVIEW_HEX_BYTES].hex()}{cut}"
    else:
        shown = _quote(text, cut=len(text.encode()) < len(data))
    return f"{shown} ({counted(len(data), 'byte')})"


def _as_text(head: bytes, size: int) -> str | None:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) == size)
    except UnicodeDecodeError:
        return None
    readable = sum(c.isprintable() or c.isspace() for c in text)
    return text if 2 * readable >= len(text) else None


def _quote(text: str, *, cut: bool = False) -> str:
    cut = cut or len(text) > PREVIEW_CHARACTERS
    return f'"{escape(text[:PREVIEW_CHARACTERS])}"' + ("..." if cut else "")


def _qos(qos: QoS) -> str:
    express = ",express" if qos.express else ""
    return f"{qos.priority.name},{qos.congestion_control.name}{express}"


def _unknown(extension: Unknown) -> str:
    """Return an extension that no table names, with its value."""
    name = f"unknown extension 0x{extension.header & IDENTITY_MASK:02x}"
    value = extension.value
    return name if value is None else f"{name}={format_value(value)}"


def _stack(stack: WireTimestampStack) -> str:
    return f"{stack.conf:#x}[{', '.join(_stamp(*entry) for entry in stack.entries)}]"


def _stamp(flags: int, content: bytes) -> str:
    hops = {tsstack.SEND: "send", tsstack.ROUTE: "route", tsstack.RECEIVE: "receive"}
    hop = hops.get(flags & ~tsstack.CUSTOM_CONTENT, f"{flags:#x}")
    if not flags & tsstack.CUSTOM_CONTENT:
        try:
            return f"{hop} {read_timestamp(ByteReader(content), 'stamp').rfc3339()}"
        except DecodeError:
            pass  # Print the bytes instead.
    return f"{hop} {preview(content)}"


def _slice(piece: Slice) -> str:
    return f"{'shared memory' if piece.kind else 'raw'} {preview(piece.data)}"


def _queryable_info(info: QueryableInfo) -> str:
    return f"{'complete' if info.complete else 'incomplete'},distance {info.distance}"


_FORMATS: dict[type, Callable[[Any], str]] = {
    bytes: preview,
    str: _quote,
    QoS: _qos,
    WireTimestamp: WireTimestamp.rfc3339,
    WireTimestampStack: _stack,
    Unknown: _unknown,
    Slice: _slice,
    QueryableInfo: _queryable_info,
}


def format_value(value: Any) -> str:
    """Return the text of any field of a message."""
    known = _FORMATS.get(type(value))
    if known is not None:
        return known(value)
    if isinstance(value, Flag):
        return "|".join(member.name or "" for member in type(value) if member in value) or "0"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple):
        return f"[{', '.join(format_value(item) for item in value)}]"
    return escape(str(value))


def list_facts(layer: Any, skip: frozenset[str] = frozenset()) -> list[str]:
    """Return `field=value` for every field that is shown."""
    found = []
    for name, value in shown_fields(layer):
        if name == "extensions":
            found += [_unknown(extension) for extension in value]
        elif name not in skip:
            text = "no" if value is False else format_value(value)
            found.append(name if value is True else f"{name}={text}")
    return found
