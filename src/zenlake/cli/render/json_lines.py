"""Decoded messages as JSON: one object per line.

Bytes are hexadecimal text, a Zenoh id is its text, an enumeration its name, a set of flags a list
of names, QoS its three parts; any other value with fields is an object of them. Timestamps and
encodings have a readable `text` besides their fields.
"""

import json
import sys
from dataclasses import fields, is_dataclass
from enum import Enum, Flag
from typing import Any

from zenlake.capture.message_fields import link_states_of, name_of
from zenlake.capture.offline_buffer import BadBytes, Buffer
from zenlake.capture.offline_session import Entry
from zenlake.cli.render.report import DecodeReport
from zenlake.cli.render.verify import rewrite
from zenlake.errors import DecodeError
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.frame import Frame
from zenlake.wire.put import Slice
from zenlake.wire.qos import QoS
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.zenohid import WireZenohId

_encode = json.JSONEncoder(separators=(",", ":")).encode


class JsonLines(DecodeReport):
    """Report of one object per message; `verify` adds whether it encodes to the bytes read."""

    def __init__(self, *, verify: bool = False) -> None:
        self._verify = verify
        self._different = 0

    def message(self, entry: Entry) -> None:
        shown = describe_message(entry)
        if self._verify:
            shown["verified"] = (written := rewrite(entry)) == entry.buffer.data[
                entry.start : entry.end
            ].hex()
            if not shown["verified"]:
                shown["written"] = written
                self._different += 1
        _print(shown)

    def bad_bytes(self, bad: BadBytes) -> None:
        _print({"error": describe_error(bad)})

    def finish(self) -> bool:
        sys.stdout.flush()
        return not self._different


def _print(value: dict[str, Any]) -> None:
    # JSON leaves DEL as it is, the one control character that ASCII text can then still hold.
    sys.stdout.write(_encode(value).replace("\x7f", "\\u007f") + "\n")


def describe_message(entry: Entry) -> dict[str, Any]:
    """Return the object of a message."""
    shown = {**_place(entry.buffer, entry.start, entry.end), "batch": entry.batch.number}
    if entry.fragments:
        shown["fragments"] = entry.fragments
    if entry.frame is not None:
        shown["frame"] = _header(entry.frame)
    shown["message"] = name_of(entry.message)
    if entry.key is not None:
        shown["key"] = entry.key
    shown["fields"] = (
        _header(entry.message) if isinstance(entry.message, Frame) else to_json(entry.message)
    )
    shown |= _link_states(entry)
    return shown


def describe_error(bad: BadBytes) -> dict[str, Any]:
    """Return the object of a decoding error."""
    error = bad.error
    return {
        **_place(bad.buffer, error.offset, error.offset),
        "message": error.message.replace(".", "/"),
        "field": error.field,
        "reason": error.reason.name,
        "text": error.reason.text,
    }


def _place(buffer: Buffer, start: int, end: int) -> dict[str, Any]:
    """Return offsets in the input; for joined or decompressed bytes, also offsets in those."""
    offset, input_end = buffer.input_span(start, end)
    place: dict[str, Any] = {"offset": offset, "end": input_end}
    if buffer.made:
        place[buffer.made] = [start, end]
    return place


def _header(frame: Frame) -> Any:
    """Return a FRAME without its messages, which have lines of their own."""
    header = to_json(frame)
    del header["messages"]
    return header


def _link_states(entry: Entry) -> dict[str, Any]:
    try:
        states = link_states_of(entry.message)
    except DecodeError as error:
        return {"link_states_error": str(error)}
    return {"link_states": to_json(states)} if states else {}


def to_json(value: Any) -> Any:
    """Return `value` as a JSON value."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, WireZenohId):
        return str(value)
    if isinstance(value, QoS):
        names = ("priority", "congestion_control", "express")
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Flag):
        return [member.name for member in type(value) if member in value]
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Slice):
        return to_json(value._asdict())
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    if is_dataclass(value):
        return _fields(value)
    return value


def _fields(value: Any) -> dict[str, Any]:
    shown = {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, WireEncoding):
        shown["text"] = str(value)
    elif isinstance(value, WireTimestamp):
        shown["text"] = value.rfc3339()
    return shown
