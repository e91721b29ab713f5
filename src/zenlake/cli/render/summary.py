"""Messages and bytes, counted by kind of message and by key.

Bytes are counted after decompression and without the framing of a batch. A FRAME counts its header
only, so that nothing is counted twice.
"""

from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from zenlake.capture.message_fields import name_of, payload_bytes, payload_of
from zenlake.capture.offline_batches import OfflineBatch
from zenlake.capture.offline_session import Entry
from zenlake.cli.printing import print_table, print_text
from zenlake.cli.render.report import DecodeReport
from zenlake.cli.render.text import escape
from zenlake.quantities import counted

JOINED = " (joined)"


@dataclass(slots=True)
class MessageCount:
    messages: int = 0
    wire_bytes: int = 0
    payload_bytes: int = 0

    def add(self, wire_bytes: int, payload_bytes: int) -> None:
        self.messages += 1
        self.wire_bytes += wire_bytes
        self.payload_bytes += payload_bytes


class Counts:
    """Counts by kind and by key, and their tables."""

    def __init__(self, top: int) -> None:
        self.by_kind: dict[str, MessageCount] = {}
        self.by_key: dict[str, MessageCount] = {}
        self.total = MessageCount()
        "All messages except joined ones, whose FRAGMENTs are counted."
        self._top = top

    def add(
        self, kind: str, key: str | None, wire_bytes: int, payload_bytes: int, *, joined: bool
    ) -> None:
        if joined:
            kind += JOINED
        else:
            self.total.add(wire_bytes, payload_bytes)
        self.by_kind.setdefault(kind, MessageCount()).add(wire_bytes, payload_bytes)
        if key:
            self.by_key.setdefault(key, MessageCount()).add(wire_bytes, payload_bytes)

    def print(self, places: str) -> None:
        """Print the tables; `places` says where the messages were, such as "3 batches"."""
        print_text(f"{counted(self.total.messages, 'message')} in {places}")
        print_table(self._kind_table())
        if self.by_key:
            top = self._top_keys()
            print_text(f"{len(top):,} of {counted(len(self.by_key), 'key')}, most messages first")
            print_table(_key_table(top))

    def _kind_table(self) -> Table:
        table = Table(show_footer=True)
        table.add_column("message", footer="total", no_wrap=True)
        table.add_column("count", footer=str(self.total.messages), justify="right")
        table.add_column("bytes", footer=str(self.total.wire_bytes), justify="right")
        for kind, count in sorted(self.by_kind.items()):
            table.add_row(kind, str(count.messages), str(count.wire_bytes))
        return table

    def _top_keys(self) -> list[tuple[str, MessageCount]]:
        ranked = sorted(self.by_key.items(), key=lambda item: (-item[1].messages, item[0]))
        return ranked[: self._top]


class MessageSummary(DecodeReport):
    """Report that counts messages instead of printing them."""

    def __init__(self, top: int) -> None:
        self._counts = Counts(top)
        self._batches = 0

    def batch(self, batch: OfflineBatch) -> None:
        self._batches += 1

    def message(self, entry: Entry) -> None:
        self._counts.add(
            name_of(entry.message),
            entry.key,
            entry.end - entry.start,
            payload_bytes(payload_of(entry.message)),
            joined=bool(entry.fragments),
        )

    def finish(self) -> bool:
        self._counts.print(counted(self._batches, "batch"))
        return True


def _key_table(top: list[tuple[str, MessageCount]]) -> Table:
    table = Table()
    table.add_column("key", overflow="fold")
    for column in ("count", "bytes", "payload bytes"):
        table.add_column(column, justify="right", no_wrap=True)
    for key, count in top:
        numbers = (count.messages, count.wire_bytes, count.payload_bytes)
        table.add_row(Text(escape(key)), *map(str, numbers))
    return table
