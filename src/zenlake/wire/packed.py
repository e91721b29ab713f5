"""Encoded messages, packed into framed batches.

Knows one lane and its sequence numbers. Knows of the messages only where each ends.
"""

from bisect import bisect_right
from typing import Any

from zenlake.wire.frame import LaneSettings, header_parts
from zenlake.wire.framing import Framing

_MORE, _SEVEN_BITS = 0x80, 0x7F  # Bits of a zint, here of a sequence number.


class PackedMessages:
    """Source of framed batches, from the messages [first, stop) of `data`; i ends at ends[i].

    Every message has to fit a batch.
    """

    def __init__(
        self,
        data: memoryview,
        ends: Any,
        first: int,
        stop: int,
        lane: LaneSettings,
    ) -> None:
        self.row = first
        "Index of the next message to write."
        self._data = data
        self._ends = ends
        self._stop = stop
        self._limit = lane.max_batch
        self._mask = lane.sn_mask
        self._header, self._lane = header_parts(lane.priority, lane.reliable)

    @property
    def done(self) -> bool:
        return self.row >= self._stop

    def next(self, sn: int, chunk_bytes: int) -> tuple[memoryview, int, int]:
        """Write about `chunk_bytes` of whole batches from the sequence number `sn` on.

        Returns the bytes, how many messages they hold, and the next sequence number.
        """
        pieces: list[bytes | memoryview] = []
        size, before = 0, self.row
        while not self.done and (not pieces or size < chunk_bytes):
            header = self._frame(sn)
            start = int(self._ends[self.row - 1]) if self.row else 0
            most = start + self._limit - len(header)
            stop = bisect_right(self._ends, most, self.row, self._stop)
            assert stop > self.row, "a message is longer than a batch"
            end = int(self._ends[stop - 1])
            length = len(header) + end - start
            pieces += (length.to_bytes(Framing.STREAM, "little"), header, self._data[start:end])
            size += Framing.STREAM + length
            self.row = stop
            sn = (sn + 1) & self._mask
        return memoryview(b"".join(pieces)), self.row - before, sn

    def _frame(self, sn: int) -> bytes:
        header = [self._header]
        while sn >= _MORE:
            header.append(sn & _SEVEN_BITS | _MORE)
            sn >>= 7
        return bytes((*header, sn)) + self._lane
