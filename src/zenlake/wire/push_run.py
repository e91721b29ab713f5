"""Runs: the PUSH messages of a FRAME, or the replies to one request, grouped by key.

Works on the scan's rows, with one Python step per distinct key and none per message; writes a run
for another link, too. Does not know subscribers. The compiled part is kernels/push_run.py.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zenlake.wire import push
from zenlake.wire.cursor import U32, ByteWriter, encode
from zenlake.wire.kernels import push_run as kernel
from zenlake.wire.scan import CHUNK_ROWS, Rows, read_only_array
from zenlake.wire.wireexpr import WireExpr, flags_of, write_wireexpr

STAMP_BYTES = 9 + 17  # Bytes of the longest time and clock id.


class PushRun(NamedTuple):
    """Consecutive PUSH messages, or replies to one request, grouped by key."""

    data: memoryview
    "Bytes that the rows were scanned from."
    base: int
    "Position of `data` in the buffer that `starts` and `ends` refer to."
    rows: Rows
    first: int
    stop: int
    "The run is rows[first:stop]; the next scan overwrites them."
    groups: int
    codes: npt.NDArray[np.int32]
    "Number of each message's key."
    keys: list[tuple[int, bytes]]
    "By key number: mapping and scope as one number (keytable.number_of), and the suffix."
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    "Payload i is [starts[i], ends[i]) of the buffer."
    plain: bool
    "True if all are puts with nothing beside the payload."
    stampless: bool
    "True if at least one put has no timestamp."

    def __len__(self) -> int:
        return self.stop - self.first

    def message_starts(self, rows: npt.NDArray[np.int64] | None) -> list[int] | None:
        """Return where messages start in the buffer; None if all are plain."""
        if self.plain:
            return None
        starts = self.rows["start"][self.first : self.stop].astype(np.int64) + self.base
        found: list[int] = (starts if rows is None else starts[rows]).tolist()
        return found

    def select_rows(self, wanted: list[bool]) -> npt.NDArray[np.int64]:
        """Return the messages whose key is wanted, as indices from `first`."""
        return np.flatnonzero(np.array(wanted)[self.codes])


class KeyGrouper:
    """Groups one scan after another in the same arrays.

    `seed` is 64 bits of chance, so that no sender can make keys collide.
    """

    __slots__ = ("_codes", "_ends", "_firsts", "_found", "_keys", "_seed", "_slots", "_starts")

    def __init__(self, seed: int, capacity: int = CHUNK_ROWS) -> None:
        self._slots = np.empty(1 << (2 * capacity - 1).bit_length(), np.int32)
        self._codes = np.empty(capacity, np.int32)
        self._firsts = np.empty(capacity, np.int32)
        self._keys = np.empty((capacity, 3), np.int64)
        self._starts = np.empty(capacity, np.int64)
        self._ends = np.empty(capacity, np.int64)
        self._found = np.empty(kernel.FOUND_SIZE, np.int64)
        self._seed = np.uint64(seed)

    def run(
        self, data: memoryview, base: int, rows: Rows, first: int, kind: int = push.ID
    ) -> PushRun:
        """Group the PUSH messages, or those of another `kind`, from rows[first] on; an empty run if
        that is another message."""
        found = self._found
        kernel.group_kernel(
            read_only_array(data),
            rows,
            kind,
            first,
            base,
            self._seed,
            self._slots,
            self._codes,
            self._firsts,
            self._keys,
            self._starts,
            self._ends,
            found,
        )
        stop, groups, plain, stampless = found.tolist()
        n = stop - first
        return PushRun(
            data,
            base,
            rows,
            first,
            stop,
            groups,
            self._codes[:n],
            [
                (number, bytes(data[start:end]) if start < end else b"")
                for number, start, end in self._keys[:groups].tolist()
            ],
            self._starts[:n],
            self._ends[:n],
            bool(plain),
            bool(stampless),
        )


def copy_messages(run: PushRun, rows: npt.NDArray[np.int64]) -> memoryview:
    """Copy the messages at `rows`, indices from `first`, one after another."""
    size = int(run.rows[run.stop - 1]["end"]) - int(run.rows[run.first]["start"])
    out = np.empty(size, np.uint8)
    used = kernel.copy_kernel(read_only_array(run.data), run.rows, run.first, run.stop, rows, out)
    return out.data[:used]


class RewrittenRun(NamedTuple):
    """Encoded messages with their new keys."""

    data: memoryview
    ends: npt.NDArray[np.int64]
    "Position in `data` where each message ends."


def rewrite(
    run: PushRun,
    keys: Sequence[WireExpr | None],
    time: int = 0,
    clock: bytes = b"",
    request_id: int | None = None,
) -> RewrittenRun:
    """Write the messages of `run` whose key number has an entry in `keys`, with that key instead.

    Replies get the `request_id`. With a `clock` (an encoded id), a put without a timestamp gets
    `time` plus its place in the run, counted from 1, so that it is the same for every destination.
    """
    encoded: list[bytes] = []
    flags = np.zeros(len(keys), np.uint8)
    wanted = np.zeros(len(keys), np.uint8)
    for code, key in enumerate(keys):
        if key is None:
            encoded.append(b"")
            continue
        encoded.append(encode(write_wireexpr, key))
        flags[code] = flags_of(key)
        wanted[code] = 1
    offsets = np.zeros(len(keys) + 1, np.int64)
    np.cumsum([len(entry) for entry in encoded], out=offsets[1:])
    before = b"" if request_id is None else encode(ByteWriter.zint, "request id", request_id, U32)
    longest = max(map(len, encoded), default=0) + len(before)
    size = int(run.rows[run.stop - 1]["end"]) - int(run.rows[run.first]["start"])
    out = np.empty(size + len(run) * (longest + (STAMP_BYTES if clock else 0)), np.uint8)
    ends = np.empty(len(run), np.int64)
    count = kernel.rewrite_kernel(
        read_only_array(run.data),
        run.rows,
        run.first,
        run.codes,
        wanted,
        np.frombuffer(bytearray(before), np.uint8),
        offsets,
        np.frombuffer(bytearray().join(encoded), np.uint8),
        flags,
        np.uint64(time),
        np.frombuffer(bytearray(clock), np.uint8),
        out,
        ends,
    )
    last = int(ends[count - 1]) if count else 0
    return RewrittenRun(out.data[:last], ends[:count])
