"""Print the rows of a packet capture: as lines, as JSON, or as a summary.

Knows the columns of a capture. Does not decode anything.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from zenlake.capture.packets import CaptureFile
from zenlake.capture.reading import PORTS, Reading
from zenlake.cli.render.messages import format_utc, to_json, write_json
from zenlake.cli.render.text import escape, preview
from zenlake.cli.render.tree import (
    KEY_STYLE,
    OFFSET_STYLE,
    STYLES,
    TRANSPORT_STYLE,
    MessageCounts,
)
from zenlake.quantities import counted

ROWS = 4096  # Rows per batch that is read and printed.
SHOWN_ELSEWHERE = {
    *("packet", "packet_time", "stream", "src", "src_port", "dst", "dst_port", "protocol"),
    *("message", "body", "key", "payload", "src_zid", "dst_zid", "direction", "wire_bytes"),
    *("timestamp_ntp64", "detail", "scope", "mapping", "suffix"),
}
IN_DETAIL = {"priority", "congestion_control", "express"}  # Left to the column `detail`.
DEFAULTS = {
    "encoding": "zenoh/bytes",
    "congestion_control": "drop",
    "express": False,
    "reliable": True,
    "first": False,
    "more": False,
    "drop": False,
    "target": "best_matching",
    "consolidation": "auto",
}
"Values that are not printed."


def print_capture(
    name: str, data: bytes | None, *, json: bool, summary: int, ports: list[int]
) -> Counter[str]:
    """Print the capture `name`, or its bytes `data`; return what could not be read, by reason.

    `summary` is the number of keys in a summary; 0 prints every message instead.
    """
    reading = Reading(CaptureFile(name, data), ports=(*PORTS, *ports), max_rows=ROWS)
    if summary:
        _print_summary(reading, summary)
    elif json:
        for row in _rows(reading):
            write_json(to_json(row))
        sys.stdout.flush()
    else:
        console = Console(highlight=False, soft_wrap=True)
        for row in _rows(reading):
            console.print(_format_row(row))
    return reading.report.unread


def _rows(reading: Reading) -> Iterator[dict[str, Any]]:
    for batch in reading:
        for row in batch.to_pylist():
            yield {name: value for name, value in row.items() if value is not None}


def _title(row: dict[str, Any]) -> str:
    return f"{row['message']}/{row['body']}" if "body" in row else row["message"]


def _format_row(row: dict[str, Any]) -> Text:
    """Return the line of a message."""
    name = row["message"]
    text = Text().append(f"{row['packet']} {format_utc(row['packet_time'])}", OFFSET_STYLE)
    ends = " > ".join(_format_address(row[end], row[f"{end}_port"]) for end in ("src", "dst"))
    text.append(f"  [{row['stream']}] {ends}  ")
    text.append(_title(row), STYLES.get(name, TRANSPORT_STYLE))
    key = row.get("key")
    if key is None and "scope" in row:
        key = f"{row.get('mapping', 'sender')}#{row['scope']}{row['suffix']}"
    if key is not None:
        text.append("  ").append(escape(key), KEY_STYLE)
    if "payload" in row and name != "OAM":
        text.append(f"  {preview(row['payload'])}")
    for fact in _list_facts(row):
        text.append(f"  {fact}")
    return text


def _format_address(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _list_facts(row: dict[str, Any]) -> Iterator[str]:
    for name, value in row.items():
        if name in SHOWN_ELSEWHERE or DEFAULTS.get(name) == value:
            continue
        if "detail" in row and name in IN_DETAIL:
            continue
        if value is True:
            yield name
        elif isinstance(value, bytes):
            yield f"{name}={preview(value)}"
        elif isinstance(value, datetime):
            yield f"{name}={format_utc(value)}"
        else:
            yield f"{name}={'no' if value is False else escape(str(value))}"
    if "detail" in row:
        yield escape(row["detail"])


def _print_summary(reading: Reading, top: int) -> None:
    counts = MessageCounts()
    for row in _rows(reading):
        size = len(row.get("payload", b""))
        joined = "fragments" in row
        counts.add(_title(row), row.get("key"), row["wire_bytes"], size, joined=joined)
    report = reading.report
    counts.print(f"{counted(report.streams, 'stream')}, {counted(report.packets, 'packet')}", top)
