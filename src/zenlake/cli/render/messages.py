"""Decoded messages as JSON lines, the check that they encode to the bytes read, and bad bytes.

In JSON, bytes are hexadecimal text, a Zenoh id is its text, an enumeration its name, a set of flags
a list of names, QoS its three parts; any other value with fields is an object of them. Timestamps
and encodings have a readable `text` besides their fields.
"""

import json
import sys
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum, Flag
from typing import Any

from zenlake.capture.message_fields import link_states_of, name_of
from zenlake.capture.offline import BadBytes, Buffer, Entry, OfflineReading
from zenlake.errors import DecodeError, EncodeError
from zenlake.quantities import counted
from zenlake.wire.batch import SCOUTING, TRANSPORT
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.frame import Frame
from zenlake.wire.network import NETWORK
from zenlake.wire.put import Slice
from zenlake.wire.qos import QoS
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.zenohid import WireZenohId

DUMP_WIDTH = 16  # Bytes in a line of a hexdump.
DUMP_LINES_AROUND = 2

_WRITERS = {kind: table for table in (TRANSPORT, SCOUTING, NETWORK) for kind in table.by_type}
_encode = json.JSONEncoder(separators=(",", ":")).encode


def print_json(reading: OfflineReading, *, verify: bool) -> bool:
    """Print one object per message; `verify` adds whether it encodes to the bytes read.

    Returns False if a message does not.
    """
    different = 0
    for entry in reading:
        if isinstance(entry, Entry):
            shown = _describe_message(entry)
            if verify:
                read, written = _read_and_written(entry)
                shown["verified"] = read == written
                if read != written:
                    shown["written"] = written
                    different += 1
            write_json(shown)
    if reading.bad is not None:
        write_json({"error": _describe_error(reading.bad)})
    sys.stdout.flush()
    return not different


def write_json(value: dict[str, Any]) -> None:
    # JSON leaves DEL as it is, the one control character that ASCII text can then still hold.
    sys.stdout.write(_encode(value).replace("\x7f", "\\u007f") + "\n")


def _describe_message(entry: Entry) -> dict[str, Any]:
    shown = {**_place(entry.buffer, entry.start, entry.end), "batch": entry.batch.number}
    if entry.fragments:
        shown["fragments"] = entry.fragments
    if entry.frame is not None:
        shown["frame"] = to_json(entry.frame)
    shown["message"] = name_of(entry.message)
    if entry.key is not None:
        shown["key"] = entry.key
    shown["fields"] = to_json(entry.message)
    try:
        states = link_states_of(entry.message)
    except DecodeError as error:
        shown["link_states_error"] = str(error)
    else:
        if states:
            shown["link_states"] = to_json(states)
    return shown


def _describe_error(bad: BadBytes) -> dict[str, Any]:
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


def to_json(value: Any) -> Any:
    """Return `value` as a JSON value."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return format_utc(value)
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
    elif isinstance(value, Frame):
        del shown["messages"]  # They have lines of their own.
    return shown


def format_utc(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%S.%f}Z"


# ---- encoding again


def print_verification(reading: OfflineReading) -> bool:
    """Print the messages that encode differently; return False if there are any."""
    same = different = 0
    for entry in reading:
        if isinstance(entry, Entry):
            read, written = _read_and_written(entry)
            if read == written:
                same += 1
                continue
            different += 1
            where = f"{name_of(entry.message)} at {entry.buffer.where(entry.start)}"
            sys.stdout.write(f"{where} differs\n  read    {read}\n  written {written}\n")
    sys.stdout.write(f"{counted(same, 'message')} re-encoded byte for byte\n")
    if different:
        sys.stdout.write(f"{counted(different, 'message')} re-encoded differently\n")
    sys.stdout.flush()
    return not different


def _read_and_written(entry: Entry) -> tuple[str, str]:
    """Return a message as it was read and encoded again, in hexadecimal, or why it cannot be."""
    read = entry.buffer.data[entry.start : entry.end].hex()
    w = ByteWriter()
    try:
        _WRITERS[type(entry.message)].write(w, entry.message)
    except EncodeError as error:
        return read, f"nothing: {error}"
    return read, w.out.hex()


# ---- bad bytes


def explain(name: str, bad: BadBytes) -> str:
    """Return what is wrong with the input `name`, and a hexdump of the bytes around it."""
    error, buffer = bad
    field = f"{error.message.replace('.', '/')}: {error.field}" if error.message else error.field
    where = buffer.where(error.offset)
    return (
        f"zenlake: {name}: bad bytes at offset {where}: {field}: {error.reason.text}\n"
        f"{_hexdump(buffer.data, error.offset)}"
    )


def _hexdump(data: bytes, pos: int) -> str:
    """Return a few lines of bytes with `pos` marked; it may be just after the last byte."""
    marked, column = divmod(pos, DUMP_WIDTH)
    lines = []
    for row in range(max(0, marked - DUMP_LINES_AROUND), marked + DUMP_LINES_AROUND + 1):
        offset = row * DUMP_WIDTH
        chunk = data[offset : offset + DUMP_WIDTH]
        if chunk:
            text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in chunk)
            lines.append(f"{offset:08x}  {chunk.hex(' '):<{3 * DUMP_WIDTH}} {text}")
        if row == marked:
            lines.append(" " * (10 + 3 * column) + "^^")
    return "\n".join(lines)
