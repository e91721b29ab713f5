"""Samples as a line for people, and as an object for programs.

Knows how an encoding decides the form of a payload. Does not know where samples come from.
"""

import json as jsonlib
from typing import TYPE_CHECKING, Any, NamedTuple

import zenlake
from zenlake.quantities import counted

if TYPE_CHECKING:
    from rich.text import Text

MAX_LINES = 50  # Lines of one payload that people are shown.
MAX_LINE_CHARACTERS = 500
MAX_HEX_BYTES = 64
ONE_LINE_CHARACTERS = 60  # Longest payload that is printed beside its key, not below it.
DEEP = 200  # Brackets in a JSON text above which it is encoded again to test its depth.

JSON_TYPES = {"application/json", "text/json"}
JSON_SUFFIX = "+json"
BINARY_FAMILIES = ("image/", "audio/", "video/")
BINARY_TYPES = {
    "zenoh/serialized",
    "application/octet-stream",
    "application/cdr",
    "application/cbor",
    "application/python-serialized-object",
    "application/protobuf",
    "application/java-serialized-object",
    "application/mp4",
}
KIND_STYLES = {"PUT": "green", "DELETE": "red", "ERR": "bold red"}


class PayloadView(NamedTuple):
    """A payload as a JSON value; `form` is json, text or hex."""

    form: str
    value: Any


def view_payload(data: bytes, encoding: str) -> PayloadView:
    """Return a payload as JSON or text if its encoding and its bytes allow it, else as hex.

    >>> view_payload(b'{"x": 1}', "application/json")
    PayloadView(form='json', value={'x': 1})
    >>> view_payload(b"hello", "zenoh/bytes"), view_payload(b"hello", "image/png").value
    (PayloadView(form='text', value='hello'), '68656c6c6f')
    """
    kind = encoding.partition(";")[0]
    if kind in JSON_TYPES or kind.endswith(JSON_SUFFIX):
        try:
            return PayloadView("json", _json(data))
        except (ValueError, RecursionError):
            pass  # The payload is not what its encoding says: treat it as any other bytes.
    if kind not in BINARY_TYPES and not kind.startswith(BINARY_FAMILIES):
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return PayloadView("hex", data.hex())
        if all(c.isprintable() or c in "\t\r\n" for c in text):
            return PayloadView("text", text)
    return PayloadView("hex", data.hex())


def _json(data: bytes) -> Any:
    value = jsonlib.loads(data, parse_constant=_no_constant)
    if data.count(b"[") + data.count(b"{") > DEEP:
        jsonlib.dumps(value)
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def format_payload(data: bytes, encoding: str) -> list[str]:
    """Return a payload as at most MAX_LINES lines that are safe on a terminal."""
    form, value = view_payload(data, encoding)
    if form == "hex":
        cut = "..." if len(data) > MAX_HEX_BYTES else ""
        return [f"0x{data[:MAX_HEX_BYTES].hex()}{cut}" if data else ""]
    text = value if form == "text" else _format_json(value)
    found = [_visible(line) for line in text.splitlines()] or [""]
    left_out = len(found) - MAX_LINES
    return [*found[:MAX_LINES], f"... {counted(left_out, 'more line')}"] if left_out > 0 else found


def _format_json(value: Any) -> str:
    short = jsonlib.dumps(value, ensure_ascii=False)
    if len(short) <= ONE_LINE_CHARACTERS:
        return short
    return jsonlib.dumps(value, ensure_ascii=False, indent=2)


def _visible(line: str) -> str:
    cut = "..." if len(line) > MAX_LINE_CHARACTERS else ""
    head = line[:MAX_LINE_CHARACTERS]
    return "".join(c if c.isprintable() else _escaped(c) for c in head) + cut


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def member_name(member: Any) -> str:
    """Return the name of an enumeration's member."""
    return str(member).rpartition(".")[2]


def describe_payload(payload: "zenlake.ZBytes", encoding: str) -> dict[str, Any]:
    """Return the fields of a payload in --json: value, form and size."""
    data = bytes(payload)
    form, value = view_payload(data, encoding)
    return {"value": value, "form": form, "size": len(data)}


def describe_sample(sample: "zenlake.Sample") -> dict[str, Any]:
    """Return the fields of a sample in --json."""
    encoding = str(sample.encoding)
    attachment, source = sample.attachment, sample.source_info
    return {
        "key": str(sample.key_expr),
        "kind": member_name(sample.kind),
        **describe_payload(sample.payload, encoding),
        "encoding": encoding,
        "timestamp": _time(sample.timestamp),
        "priority": member_name(sample.priority),
        "congestion_control": member_name(sample.congestion_control),
        "express": sample.express,
        "attachment": None if attachment is None else describe_payload(attachment, ""),
        "source": None if source is None else format_entity(source.source_id),
        "source_sn": None if source is None else source.source_sn,
    }


def _time(timestamp: "zenlake.Timestamp | None") -> str | None:
    return None if timestamp is None else str(timestamp.to_string_rfc3339_lossy())


def format_entity(global_id: "zenlake.EntityGlobalId | None") -> str | None:
    """Return ZID/EID."""
    return None if global_id is None else f"{global_id.zid}/{global_id.eid}"


def format_sample(sample: "zenlake.Sample") -> "Text":
    """Return a line: kind, key, payload, and dimmed its encoding, size, time and attachment."""
    from zenlake.cli.render.text import escape

    encoding, size = str(sample.encoding), len(sample.payload)
    kind = member_name(sample.kind)
    notes = [escape(encoding), counted(size, "byte")] if kind == "PUT" else []
    if sample.timestamp is not None:
        notes.append(str(_time(sample.timestamp)).partition("/")[0])
    if sample.attachment is not None:
        attached = bytes(sample.attachment)
        notes.append("attachment " + format_payload(attached, "")[0])
    return format_line(kind, str(sample.key_expr), bytes(sample.payload), encoding, notes)


def format_line(kind: str, key: str, data: bytes, encoding: str, notes: list[str]) -> "Text":
    """Return the line of a sample or query; a long payload follows on lines of its own."""
    from rich.text import Text

    from zenlake.cli.render.text import escape

    lines = format_payload(data, encoding)
    beside = len(lines) == 1 and len(lines[0]) <= ONE_LINE_CHARACTERS
    text = Text.assemble((kind, KIND_STYLES.get(kind, "yellow")), "  ", (escape(key), "cyan"))
    if beside and lines[0]:
        text.append(f"  {lines[0]}")
    if notes:
        text.append(f"  ({', '.join(notes)})", "dim")
    if not beside:
        text.append("".join(f"\n  {line}" for line in lines))
    return text
