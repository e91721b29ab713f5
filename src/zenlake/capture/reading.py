"""Read a capture: window by window of the file, stream by stream, to record batches.

Knows the order of the work and what is skipped. The work itself stands in the files it drives.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from zenlake.capture.conversation import Conversation, Decoder
from zenlake.capture.datagrams import Datagrams
from zenlake.capture.packets import MAX_STREAMS, CaptureFile, Packets
from zenlake.capture.report import Report, Stream
from zenlake.capture.rows import RowCollector

if TYPE_CHECKING:
    from zenlake.columnar.record_batch import RecordBatch

PORTS = (7447, 7446)
MAX_ROWS = 50_000

_UNSEEN, _UNDECIDED, _NO, _YES = range(4)


def streams(path: str | Path, ports: Collection[int] = PORTS) -> list[Stream]:
    """Return the streams of a capture, without decoding it. Values are small and can be pickled."""
    file = CaptureFile(path)
    for _ in file.windows():
        pass
    return [file.stream(number, ports) for number in range(file.stream_count)]


def read(
    path: str | Path,
    streams: Collection[int] | None = None,
    columns: Sequence[str] | None = None,
    ports: Collection[int] = PORTS,
    max_rows: int = MAX_ROWS,
) -> "Reading":
    """Read the Zenoh messages of a capture as record batches, in the order of the file's packets.

    `streams` are numbers as the function of that name gives them, None = all; `columns` are names
    of CAPTURE, None = all; on `ports` Zenoh is expected however a stream starts.
    """
    return Reading(CaptureFile(path), streams, columns, ports, max_rows)


class Reading(Iterator["RecordBatch"]):
    """An iterator of record batches; `report` is complete when it has ended."""

    def __init__(
        self,
        file: CaptureFile,
        streams: Collection[int] | None = None,
        columns: Sequence[str] | None = None,
        ports: Collection[int] = PORTS,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self.report = Report()
        self._file = file
        self._streams = None if streams is None else frozenset(streams)
        self._ports = frozenset(ports)
        self._table = RowCollector(columns, max_rows, self.report)
        self.schema: pa.Schema = self._table.schema
        self._decoder = Decoder(file.data, self._table, self.report)
        self._datagrams = Datagrams(self.report)
        self._known = np.zeros(MAX_STREAMS, np.uint8)
        self._conversations: dict[int, Conversation] = {}
        self._batches = self._all()

    def __next__(self) -> "RecordBatch":
        return next(self._batches)

    def _all(self) -> "Iterator[RecordBatch]":
        for window in self._file.windows():
            for conversation, packets in self._of_streams(self._datagrams.join(window)):
                for _ in conversation.read(packets):
                    if self._table.full:
                        yield from self._table.flush()
            yield from self._table.flush()
        for conversation in self._conversations.values():
            for _ in conversation.finish():
                if self._table.full:
                    yield from self._table.flush()
        yield from self._table.flush()
        self._datagrams.finish()
        self._file.tell(self.report)
        seen = self._known[: self._file.stream_count]
        self.report.pass_over("streams that are not Zenoh", int((seen <= _NO).sum()))

    def _of_streams(
        self, window: Packets
    ) -> Iterator[tuple[Conversation, tuple[Packets, Packets]]]:
        """Yield the packets of each stream that is read, by side; streams as they appear."""
        numbers = window["stream"]
        present, first = np.unique(numbers, return_index=True)
        for number in present[np.argsort(first)].tolist():
            if self._known[number] <= _UNDECIDED:
                self._known[number] = self._decide(number)
        window = window[self._known[numbers] != _NO]
        code = window["stream"].astype(np.int64) * 2 + window["side"]
        order = np.argsort(code, kind="stable")
        code = code[order]
        for number in present[np.argsort(first)].tolist():
            if self._known[number] != _NO:
                low, mid, high = np.searchsorted(code, [2 * number, 2 * number + 1, 2 * number + 2])
                sides = window[order[low:mid]], window[order[mid:high]]
                yield self._conversation(number), sides

    def _decide(self, number: int) -> int:
        if self._streams is not None and number not in self._streams:
            return _NO
        found = self._file.is_zenoh(number, self._ports)
        return _UNDECIDED if found is None else _YES if found else _NO

    def _conversation(self, number: int) -> Conversation:
        if number not in self._conversations:
            self._conversations[number] = Conversation(
                self._decoder, number, self._file.protocol(number), self._file.ends(number)
            )
        return self._conversations[number]
