"""Decoded messages for people: a tree, with a line per batch and its messages below it, or counts.

Knows the terminal. Does not decode anything.
"""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from zenlake.capture.message_fields import (
    layers,
    link_states_of,
    name_of,
    payload_bytes,
    payload_of,
)
from zenlake.capture.offline import Entry, OfflineBatch, OfflineReading
from zenlake.cli.printing import print_table, print_text
from zenlake.cli.render.text import escape, format_value, list_facts
from zenlake.errors import DecodeError
from zenlake.quantities import counted

SHOWN_ELSEWHERE = frozenset({"key", "payload", "messages"})
WITHOUT_BODY = SHOWN_ELSEWHERE | {"body"}

STYLES = {
    "PUSH": "bold green",
    "REQUEST": "bold magenta",
    "RESPONSE": "bold magenta",
    "RESPONSE_FINAL": "bold magenta",
    "DECLARE": "bold blue",
    "INTEREST": "bold blue",
    "OAM": "bold blue",
}
TRANSPORT_STYLE = "bold"
BATCH_STYLE, KEY_STYLE, OFFSET_STYLE, GUIDE_STYLE = "bold cyan", "yellow", "dim", "dim"


def print_tree(reading: OfflineReading) -> None:
    """Print the tree batch by batch: guides depend on the lines below them."""
    console = Console(highlight=False, soft_wrap=True)
    lines: list[tuple[int, Text]] = []
    for item in reading:
        if isinstance(item, OfflineBatch):
            _print_lines(console, lines)
            lines = [(0, _batch_line(item))]
        else:
            depth = 2 if item.frame is not None or item.fragments else 1
            below = _link_state_lines(item)
            lines.append((depth, _message_line(item, body_below=bool(below))))
            lines += [(depth + 1, line) for line in below]
    _print_lines(console, lines)


def _print_lines(console: Console, lines: list[tuple[int, Text]]) -> None:
    """Print the lines of a tree, given as (depth, text), with the guides that connect them."""
    drawn: list[Text] = []
    continued: set[int] = set()  # Depths at which a line follows below.
    for depth, text in reversed(lines):
        guide = "".join("│  " if level in continued else "   " for level in range(1, depth))
        if depth:
            guide += "├─ " if depth in continued else "└─ "
        drawn.append(Text().append(guide, GUIDE_STYLE).append_text(text))
        continued = {level for level in continued if level < depth} | {depth}
    if drawn:
        console.print(Text("\n").join(drawn[::-1]))


def _batch_line(batch: OfflineBatch) -> Text:
    size = batch.end - batch.start
    line = Text().append(f"batch {batch.number}", BATCH_STYLE)
    line.append(f"  offset {batch.offset}  {counted(size, 'byte')}")
    if batch.buffer.made:
        line.append(f"  {batch.buffer.end} {batch.buffer.made}")
    if batch.buffer.start == batch.buffer.end:
        line.append("  empty")
    return line


def _message_line(entry: Entry, *, body_below: bool) -> Text:
    message = entry.message
    name = name_of(message)
    line = Text().append(name, STYLES.get(name.partition("/")[0], TRANSPORT_STYLE))
    if entry.key:
        line.append("  ").append(escape(entry.key), KEY_STYLE)
    payload = payload_of(message)
    if payload is not None:
        line.append(f"  {format_value(payload)}")
    for fact in _message_facts(entry, body_below=body_below):
        line.append(f"  {fact}")
    where = entry.buffer.where(entry.start)
    return line.append(f"  @{where}", OFFSET_STYLE)


def _message_facts(entry: Entry, *, body_below: bool) -> Iterator[str]:
    *outer, innermost = layers(entry.message)
    for layer in outer:
        yield from list_facts(layer, WITHOUT_BODY)
    yield from list_facts(innermost, WITHOUT_BODY if body_below else SHOWN_ELSEWHERE)
    if entry.fragments:
        yield f"joined from {counted(entry.fragments, 'fragment')}, {counted(entry.end, 'byte')}"


def _link_state_lines(entry: Entry) -> list[Text]:
    try:
        states = link_states_of(entry.message)
    except DecodeError as error:
        body = format_value(getattr(entry.message, "body", b""))
        return [Text(f"not link states ({error}): {body}")]
    return [Text("node  " + "  ".join(list_facts(state))) for state in states]


# ---- counts


class MessageCounts:
    """Messages, their bytes and the bytes of their payloads, by kind of message and by key.

    Bytes are counted after decompression and without the framing of a batch. A FRAME counts its
    header only, so that nothing is counted twice; for the same reason the total has the FRAGMENTs
    of a joined message, and not the message.
    """

    def __init__(self) -> None:
        self._total = [0, 0, 0]
        self._by_kind: dict[str, list[int]] = {}
        self._by_key: dict[str, list[int]] = {}

    def add(
        self, kind: str, key: str | None, wire_bytes: int, payload_bytes: int, *, joined: bool
    ) -> None:
        by_kind = self._by_kind.setdefault(f"{kind} (joined)" if joined else kind, [0, 0, 0])
        counts = [by_kind] if joined else [by_kind, self._total]
        if key:
            counts.append(self._by_key.setdefault(key, [0, 0, 0]))
        for count in counts:
            count[0] += 1
            count[1] += wire_bytes
            count[2] += payload_bytes

    def print(self, places: str, top: int) -> None:
        """Print tables, of `top` keys; `places` says where the messages were: "3 batches"."""
        messages, wire_bytes, _ = self._total
        print_text(f"{counted(messages, 'message')} in {places}")
        table = Table(show_footer=True)
        table.add_column("message", footer="total", no_wrap=True)
        table.add_column("count", footer=str(messages), justify="right")
        table.add_column("bytes", footer=str(wire_bytes), justify="right")
        for kind, count in sorted(self._by_kind.items()):
            table.add_row(kind, str(count[0]), str(count[1]))
        print_table(table)
        if self._by_key:
            ranked = sorted(self._by_key.items(), key=lambda item: (-item[1][0], item[0]))[:top]
            keys = counted(len(self._by_key), "key")
            print_text(f"{len(ranked):,} of {keys}, most messages first")
            table = Table()
            table.add_column("key", overflow="fold")
            for column in ("count", "bytes", "payload bytes"):
                table.add_column(column, justify="right", no_wrap=True)
            for key, count in ranked:
                table.add_row(Text(escape(key)), *map(str, count))
            print_table(table)


def print_summary(reading: OfflineReading, top: int) -> None:
    """Print counts instead of messages, and at most `top` keys."""
    counts = MessageCounts()
    batches = 0
    for item in reading:
        if isinstance(item, OfflineBatch):
            batches += 1
        else:
            size = payload_bytes(payload_of(item.message))
            wire_bytes, joined = item.end - item.start, bool(item.fragments)
            counts.add(name_of(item.message), item.key, wire_bytes, size, joined=joined)
    counts.print(counted(batches, "batch"), top)
