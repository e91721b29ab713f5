"""Decoded messages as a tree: one line per batch, its messages below it, in colour.

Knows the terminal. Does not decode anything.
"""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from zenlake.capture.message_fields import layers, link_states_of, name_of, payload_of
from zenlake.capture.offline_batches import OfflineBatch
from zenlake.capture.offline_buffer import BadBytes
from zenlake.capture.offline_session import Entry
from zenlake.cli.render.report import DecodeReport
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


class Tree(DecodeReport):
    """Report as a tree, printed batch by batch: guides depend on the lines below them."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._lines: list[tuple[int, Text]] = []

    def batch(self, batch: OfflineBatch) -> None:
        self._flush()
        self._lines.append((0, _batch_line(batch)))

    def message(self, entry: Entry) -> None:
        depth = 2 if entry.frame is not None or entry.fragments else 1
        below = _link_state_lines(entry)
        self._lines.append((depth, _message_line(entry, body_below=bool(below))))
        self._lines += [(depth + 1, line) for line in below]

    def bad_bytes(self, bad: BadBytes) -> None:
        self._flush()

    def finish(self) -> bool:
        self._flush()
        return True

    def _flush(self) -> None:
        if self._lines:
            self._console.print(Text("\n").join(draw_guides(self._lines)))
            self._lines.clear()


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


def draw_guides(lines: list[tuple[int, Text]]) -> list[Text]:
    """Return the lines of a tree, given as (depth, text), with the guides that connect them."""
    drawn: list[Text] = []
    continued: set[int] = set()  # Depths at which a line follows below.
    for depth, text in reversed(lines):
        guide = "".join("│  " if level in continued else "   " for level in range(1, depth))
        if depth:
            guide += "├─ " if depth in continued else "└─ "
        drawn.append(Text().append(guide, GUIDE_STYLE).append_text(text))
        continued = {level for level in continued if level < depth} | {depth}
    return drawn[::-1]
