"""Print the rows of a packet capture: as lines, as JSON, or as a summary.

Knows the columns of a capture. Does not decode anything.
"""

import json
import sys
from collections import Counter
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from zenlake.capture.packets import CaptureFile
from zenlake.capture.reading import PORTS, Reading
from zenlake.cli.render.summary import Counts
from zenlake.cli.render.text import escape, preview
from zenlake.cli.render.tree import KEY_STYLE, OFFSET_STYLE, STYLES, TRANSPORT_STYLE
from zenlake.quantities import counted

ROWS = 4096  # Rows per batch that is read and printed.
SHOWN_ELSEWHERE = {
    *("packet", "packet_time", "stream", "src", "src_port", "dst", "dst_port", "protocol"),
    *("message", "body", "key", "payload", "src_zid", "dst_zid", "direction", "wire_bytes"),
    *("timestamp_ntp64", "detail"),
}
IN_DETAIL = {"priority", "congestion_control", "express"}  # Left to the column `detail`.
ONLY_WITHOUT_KEY = {"scope", "mapping", "suffix"}
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

_encode = json.JSONEncoder(separators=(",", ":")).encode


def print_capture(
    name: str, data: bytes | None, *, json: bool, summary: int, ports: list[int]
) -> Counter[str]:
    """Print the capture `name`, or its bytes `data`; return what could not be read, by reason.

    `summary` is the number of keys in a summary; 0 prints every message instead.
    """
    file = CaptureFile(name) if data is None else CaptureFile.of(name, data)
    reading = Reading(file, ports=(*PORTS, *ports), max_rows=ROWS)
    if summary:
        _print_summary(reading, summary)
    elif json:
        for row in _rows(reading):
            sys.stdout.write(_encode(to_json(row)).replace("\x7f", "\\u007f") + "\n")
        sys.stdout.flush()
    else:
        console = Console(highlight=False, soft_wrap=True)
        for row in _rows(reading):
            console.print(format_row(row))
    return reading.report.unread


def _rows(reading: Reading) -> Any:
    for batch in reading:
        for row in batch.to_pylist():
            yield {name: value for name, value in row.items() if value is not None}


def to_json(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON values: bytes are hexadecimal, times RFC 3339."""
    return {name: _to_json_value(value) for name, value in row.items()}


def _to_json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return _format_time(value) if isinstance(value, datetime) else value


def _format_time(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%S.%f}Z"


def format_row(row: dict[str, Any]) -> Text:
    """Return the line of a message."""
    name = row["message"]
    text = Text().append(f"{row['packet']} {_format_time(row['packet_time'])}", OFFSET_STYLE)
    ends = " > ".join(_format_address(row, end) for end in ("src", "dst"))
    text.append(f"  [{row['stream']}] {ends}  ")
    title = f"{name}/{row['body']}" if "body" in row else name
    text.append(title, STYLES.get(name, TRANSPORT_STYLE))
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


def _format_address(row: dict[str, Any], end: str) -> str:
    address = row[end]
    return (
        f"[{address}]:{row[f'{end}_port']}" if ":" in address else f"{address}:{row[f'{end}_port']}"
    )


def _list_facts(row: dict[str, Any]) -> list[str]:
    found = []
    for name, value in row.items():
        if name in SHOWN_ELSEWHERE or name in ONLY_WITHOUT_KEY or DEFAULTS.get(name) == value:
            continue
        if "detail" in row and name in IN_DETAIL:
            continue
        if value is True:
            found.append(name)
        elif isinstance(value, bytes):
            found.append(f"{name}={preview(value)}")
        elif isinstance(value, datetime):
            found.append(f"{name}={_format_time(value)}")
        else:
            found.append(f"{name}={'no' if value is False else escape(str(value))}")
    if "detail" in row:
        found.append(escape(row["detail"]))
    return found


def _print_summary(reading: Reading, top: int) -> None:
    counts = Counts(top)
    for row in _rows(reading):
        title = f"{row['message']}/{row['body']}" if "body" in row else row["message"]
        size = len(row.get("payload", b""))
        counts.add(title, row.get("key"), row["wire_bytes"], size, joined="fragments" in row)
    report = reading.report
    counts.print(f"{counted(report.streams, 'stream')}, {counted(report.packets, 'packet')}")
