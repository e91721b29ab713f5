"""Samples, as a line for people and as an object for programs.

Knows how a payload is shown by its encoding. Does not know where samples come from.
"""

import json as jsonlib
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import zenlake

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

MAX_LINES = 50  # of one payload, for people
MAX_LINE_CHARACTERS = 500
MAX_HEX_BYTES = 64
MAX_WIDTH = 1 << 20  # Characters of a table, to see how wide it would be.
ONE_LINE_CHARACTERS = 60  # what stands beside the key, not below it
DEEP = 200  # brackets in a JSON text from which on its depth is tried out first

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


class Shown(NamedTuple):
    """A payload in what JSON knows: `form` is json, text or hex."""

    form: str
    value: Any


def shown(data: bytes, encoding: str) -> Shown:
    """By its encoding; and text that is not, as hexadecimal.

    >>> shown(b'{"x": 1}', "application/json")
    Shown(form='json', value={'x': 1})
    >>> shown(b"hello", "zenoh/bytes"), shown(b"hello", "image/png").value
    (Shown(form='text', value='hello'), '68656c6c6f')
    """
    kind = encoding.partition(";")[0]
    if kind in JSON_TYPES or kind.endswith(JSON_SUFFIX):
        try:
            return Shown("json", _json(data))
        except (ValueError, RecursionError):
            pass  # not what its encoding says: shown as it is
    if kind not in BINARY_TYPES and not kind.startswith(BINARY_FAMILIES):
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return Shown("hex", data.hex())
        if all(c.isprintable() or c in "\t\r\n" for c in text):
            return Shown("text", text)
    return Shown("hex", data.hex())


def _json(data: bytes) -> Any:
    value = jsonlib.loads(data, parse_constant=_no_constant)
    if data.count(b"[") + data.count(b"{") > DEEP:
        jsonlib.dumps(value)
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def pretty(data: bytes, encoding: str) -> list[str]:
    """Lines that are safe on a terminal and not too many."""
    form, value = shown(data, encoding)
    if form == "hex":
        cut = "..." if len(data) > MAX_HEX_BYTES else ""
        return [f"0x{data[:MAX_HEX_BYTES].hex()}{cut}" if data else ""]
    text = value if form == "text" else _pretty_json(value)
    found = [_visible(line) for line in text.splitlines()] or [""]
    left_out = len(found) - MAX_LINES
    return [*found[:MAX_LINES], f"... {left_out} more lines"] if left_out > 0 else found


def _pretty_json(value: Any) -> str:
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


def size_text(size: int) -> str:
    return f"{size} {'byte' if size == 1 else 'bytes'}"


def word(member: Any) -> str:
    """The name of an enumeration's member."""
    return str(member).rpartition(".")[2]


def content(payload: "zenlake.ZBytes", encoding: str) -> dict[str, Any]:
    """A payload's part of an object: value, form and size."""
    data = bytes(payload)
    form, value = shown(data, encoding)
    return {"value": value, "form": form, "size": len(data)}


def sample_object(sample: "zenlake.Sample") -> dict[str, Any]:
    encoding = str(sample.encoding)
    attachment, source = sample.attachment, sample.source_info
    return {
        "key": str(sample.key_expr),
        "kind": word(sample.kind),
        **content(sample.payload, encoding),
        "encoding": encoding,
        "timestamp": _time(sample.timestamp),
        "priority": word(sample.priority),
        "congestion_control": word(sample.congestion_control),
        "express": sample.express,
        "attachment": None if attachment is None else content(attachment, ""),
        "source": None if source is None else entity(source.source_id),
        "source_sn": None if source is None else source.source_sn,
    }


def _time(timestamp: "zenlake.Timestamp | None") -> str | None:
    return None if timestamp is None else str(timestamp.to_string_rfc3339_lossy())


def entity(global_id: "zenlake.EntityGlobalId | None") -> str | None:
    """ZID/EID."""
    return None if global_id is None else f"{global_id.zid}/{global_id.eid}"


def sample_text(sample: "zenlake.Sample") -> "Text":
    """Kind, key, payload, and what else there is to say, dimmed."""
    from zenlake.cli.render.text import escape

    encoding, size = str(sample.encoding), len(sample.payload)
    kind = word(sample.kind)
    said = [escape(encoding), size_text(size)] if kind == "PUT" else []
    if sample.timestamp is not None:
        said.append(str(_time(sample.timestamp)).partition("/")[0])
    if sample.attachment is not None:
        attached = bytes(sample.attachment)
        said.append("attachment " + pretty(attached, "")[0])
    return line_text(kind, str(sample.key_expr), bytes(sample.payload), encoding, said)


def line_text(kind: str, key: str, data: bytes, encoding: str, said: list[str]) -> "Text":
    from rich.text import Text

    from zenlake.cli.render.text import escape

    lines = pretty(data, encoding)
    beside = len(lines) == 1 and len(lines[0]) <= ONE_LINE_CHARACTERS
    text = Text.assemble((kind, KIND_STYLES.get(kind, "yellow")), "  ", (escape(key), "cyan"))
    if beside and lines[0]:
        text.append(f"  {lines[0]}")
    if said:
        text.append(f"  ({', '.join(said)})", "dim")
    if not beside:
        text.append("".join(f"\n  {line}" for line in lines))
    return text


def print_object(fields: dict[str, Any]) -> None:
    """One line of JSON, there at once for whoever reads it."""
    # JSON leaves DEL as it is, the one control character that ASCII text can then still hold.
    sys.stdout.write(jsonlib.dumps(fields).replace("\x7f", "\\u007f") + "\n")
    sys.stdout.flush()


def print_text(text: "Text | str") -> None:
    """A line for people; a terminal may wrap it, a file gets it whole."""
    console().print(text, soft_wrap=True)


def print_table(table: "Table") -> None:
    """Print a table; if it is wider than the terminal, one block of `name: value` per row."""
    from rich.text import Text

    to = console()
    if to.measure(table, options=to.options.update(max_width=MAX_WIDTH)).maximum <= to.width:
        to.print(table)
        return
    if table.title:
        to.print(table.title, style="italic")
    for row in zip(*(column.cells for column in table.columns), strict=True):
        for column, cell in zip(table.columns, row, strict=True):
            text = cell.plain if isinstance(cell, Text) else str(cell)
            if text:
                lines = text.replace("\n", "\n  ")
                print_text(Text.assemble((f"{column.header}: ", "dim"), lines))
        print_text("")


@cache
def console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, markup=False)
