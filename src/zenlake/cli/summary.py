"""How much of what: counts and bytes by kind of message and by key.

Bytes are those of the messages on the wire, after decompression and without what is around a
batch. A FRAME counts its header only, so that nothing is counted twice.
"""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from zenlake.cli.direction import Entry
from zenlake.cli.messages import name_of, payload_bytes, payload_of
from zenlake.cli.report import Report
from zenlake.cli.streams import Batch
from zenlake.cli.text import escape

JOINED = " (joined)"


@dataclass(slots=True)
class Count:
    messages: int = 0
    wire_bytes: int = 0
    payload_bytes: int = 0

    def add(self, entry: Entry) -> None:
        self.messages += 1
        self.wire_bytes += entry.end - entry.start
        self.payload_bytes += payload_bytes(payload_of(entry.message))


class Summary(Report):
    def __init__(self, top: int) -> None:
        self.by_kind: dict[str, Count] = {}
        self.by_key: dict[str, Count] = {}
        self.total = Count()
        "Without the joined ones: the FRAGMENTs are counted."
        self._batches = 0
        self._top = top

    def batch(self, batch: Batch) -> None:
        self._batches += 1

    def message(self, entry: Entry) -> None:
        kind = name_of(entry.message)
        if entry.fragments:
            kind += JOINED
        else:
            self.total.add(entry)
        self.by_kind.setdefault(kind, Count()).add(entry)
        if entry.key:
            self.by_key.setdefault(entry.key, Count()).add(entry)

    def finish(self) -> bool:
        console = Console(highlight=False)
        console.print(f"{self.total.messages} messages in {self._batches} batches")
        console.print(self._kinds())
        if self.by_key:
            shown = self._top_keys()
            console.print(f"{len(shown)} of {len(self.by_key)} keys, most messages first")
            console.print(_key_table(shown))
        return True

    def _kinds(self) -> Table:
        table = Table(show_footer=True)
        table.add_column("message", footer="total", no_wrap=True)
        table.add_column("count", footer=str(self.total.messages), justify="right")
        table.add_column("bytes", footer=str(self.total.wire_bytes), justify="right")
        for kind, count in sorted(self.by_kind.items()):
            table.add_row(kind, str(count.messages), str(count.wire_bytes))
        return table

    def _top_keys(self) -> list[tuple[str, Count]]:
        ranked = sorted(self.by_key.items(), key=lambda item: (-item[1].messages, item[0]))
        return ranked[: self._top]


def _key_table(shown: list[tuple[str, Count]]) -> Table:
    table = Table()
    table.add_column("key", overflow="fold")
    for column in ("count", "bytes", "payload bytes"):
        table.add_column(column, justify="right", no_wrap=True)
    for key, count in shown:
        numbers = (count.messages, count.wire_bytes, count.payload_bytes)
        table.add_row(Text(escape(key)), *map(str, numbers))
    return table
