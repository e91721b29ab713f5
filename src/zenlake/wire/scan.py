"""The scan: a buffer of framed batches to one row of numbers for every message.

A second reader of the same bytes as the object codec, and some hundred times faster: delivery,
routing, recording and Arrow work from its rows. Knows no keys (only scope and suffix) and no
order of lanes. The compiled part is kernels/scan.py; importing this module loads NumPy and Numba.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zenlake.errors import DecodeError, Reason
from zenlake.wire.batch import walk
from zenlake.wire.cursor import ByteReader
from zenlake.wire.framing import MAX_BATCH_BYTES, Framing
from zenlake.wire.kernels import row
from zenlake.wire.kernels import scan as kernel
from zenlake.wire.kernels.row import DEFAULT_LANE, LANE_RELIABLE, ROW, ROW_WORDS, STATE
from zenlake.wire.kernels.scan_core import KINDS
from zenlake.wire.network import is_network

MAX_SCAN_BYTES = 0x7FFF_FFFF  # Rows hold positions as int32.
CHUNK_ROWS = 4096  # Rows per chunk: 512 KiB, which stay in the second-level cache.

Rows = npt.NDArray[np.void]


class Scan(NamedTuple):
    """Rows of one chunk, and where and why it ended."""

    rows: Rows
    "One row of dtype ROW per message."
    consumed: int
    "Bytes done with; an unfinished batch, bad bytes, or nothing follows them."
    error: DecodeError | None
    "The refusal at which the scan ended, or None if it read all whole batches."


def read_only_array(data: bytes | memoryview) -> npt.NDArray[np.uint8]:
    """Return a buffer as a read-only array, for which the kernels need one compiled form only."""
    buf = np.frombuffer(data, np.uint8)
    buf.flags.writeable = False
    return buf


def _first_state(reliable: bool) -> npt.NDArray[np.void]:
    state = np.zeros(1, STATE)
    state["batch"] = -1
    state["lane"] = DEFAULT_LANE if reliable else DEFAULT_LANE ^ LANE_RELIABLE
    return state


_FIRST_STATE = (_first_state(False), _first_state(True))


class Scanner:
    """Scanner that reuses its rows from one buffer to the next."""

    __slots__ = ("_rows", "_state", "_words")

    def __init__(self, capacity: int = CHUNK_ROWS) -> None:
        if capacity < 1:
            raise ValueError(f"a scan needs room for one row at least, not {capacity}")
        self._rows: Rows = np.zeros(capacity, ROW)
        self._words = self._rows.view(np.uint64).reshape(capacity, ROW_WORDS)
        self._state = np.zeros(1, STATE)

    def chunks(
        self,
        data: bytes,
        framing: Framing = Framing.STREAM,
        *,
        low_latency: bool | None = None,
        limit: int = MAX_BATCH_BYTES,
    ) -> Iterator[Scan]:
        """Yield the messages of `data`, at most `capacity` at a time.

        The next chunk overwrites the rows. `low_latency` (network messages without a FRAME)
        defaults to what the framing says.
        """
        if low_latency is None:
            low_latency = framing is Framing.LOW_LATENCY
        mode = row.LOW_LATENCY if low_latency else 0
        buf = read_only_array(data)
        if len(buf) > MAX_SCAN_BYTES:
            raise ValueError(f"a scan takes at most {MAX_SCAN_BYTES} bytes, not {len(buf)}")
        state = self._state[0]
        self._state[:] = _FIRST_STATE[True]
        while True:
            count = kernel.scan_kernel(
                buf, int(framing), mode, limit, KINDS, self._rows, self._words, self._state
            )
            error = self._explain(data, low_latency) if state["reason"] else None
            yield Scan(self._rows[:count], int(state["pos"]), error)
            if error or count < len(self._rows):
                return

    def bare(self, data: bytes | memoryview, *, reliable: bool = True) -> Iterator[Scan]:
        """Yield the network messages of `data`, which has no FRAME; end at any other message."""
        buf = read_only_array(data)
        state, rows = self._state, self._rows
        state[:] = _FIRST_STATE[reliable]
        while True:
            count = kernel.scan_held_kernel(
                buf, 0, row.BARE, MAX_SCAN_BYTES, KINDS, rows, self._words, state
            )
            error = self._explain(data, True) if state["reason"][0] else None
            yield Scan(rows[:count], int(state["pos"][0]), error)
            if error or count < len(rows):
                return

    def last_refusal(self) -> tuple[Reason, int]:
        """Return why and at which offset the kernel ended the last scan."""
        return Reason(int(self._state[0]["reason"])), int(self._state[0]["offset"])

    def _explain(self, data: bytes | memoryview, low_latency: bool) -> DecodeError:
        """Return the object codec's error for the bytes that the kernel refused."""
        state = self._state[0]
        pos, end = int(state["pos"]), int(state["batch_end"])
        if pos < end:
            r = ByteReader(bytes(data), pos, end)
            in_frame = bool(state["in_frame"]) and is_network(r.data[pos])
            try:
                for _ in walk(r, low_latency=low_latency or in_frame):
                    break
            except DecodeError as error:
                return error.within("FRAME") if in_frame else error
        reason, offset = self.last_refusal()
        return DecodeError(reason, "batch length", offset)


def scan(
    data: bytes,
    framing: Framing = Framing.STREAM,
    *,
    low_latency: bool | None = None,
    limit: int = MAX_BATCH_BYTES,
) -> Scan:
    """Scan all messages of `data` into newly allocated rows.

    >>> found = scan(bytes.fromhex("0900") + bytes.fromhex("2505 5d02 0103 616263"))
    >>> found.rows["payload_len"].tolist(), found.consumed
    ([3], 11)
    """
    chunks: list[Rows] = []
    for part in Scanner().chunks(data, framing, low_latency=low_latency, limit=limit):
        chunks.append(part.rows.copy())
    rows = np.concatenate(chunks) if len(chunks) > 1 else chunks[0]
    return Scan(rows, part.consumed, part.error)
