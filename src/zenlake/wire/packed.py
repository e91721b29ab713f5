"""Encoded messages, packed into framed batches.

Knows one lane and its sequence numbers. Knows of the messages only where each ends.
"""

from bisect import bisect_right
from typing import Any

from zenlake.wire import frame
from zenlake.wire.enums import WirePriority
from zenlake.wire.extensions import FLAG_EXTENSIONS, LANE
from zenlake.wire.framing import Framing

_MORE, _SEVEN_BITS = 0x80, 0x7F  # Bits of a zint, here of a sequence number.


class PackedMessages:
    """Source of framed batches, from the messages [first, stop) of `data`; i ends at ends[i].

    `batch_size` is as negotiated, which counts the length prefix; every message has to fit a batch.
    On a link without QoS lanes `priority` is None, and the FRAMEs name no lane.
    """

    def __init__(
        self,
        data: memoryview,
        ends: Any,
        first: int,
        stop: int,
        reliable: bool,
        priority: WirePriority | None,
        batch_size: int,
        sn_mask: int,
    ) -> None:
        self.row = first
        "Index of the next message to write."
        self._data = data
        self._ends = ends
        self._stop = stop
        self._limit = batch_size - Framing.STREAM
        self._mask = sn_mask
        named = priority is not None and priority is not WirePriority.DATA
        self._header = (
            frame.ID | (frame.FLAG_RELIABLE if reliable else 0) | (FLAG_EXTENSIONS if named else 0)
        )
        self._lane = bytes((LANE.header, priority)) if named and priority is not None else b""

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
