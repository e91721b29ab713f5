"""Runs: the PUSH messages of a FRAME grouped by their key, and a run written for another link.

From the scan's rows; one Python step for each distinct key, none for each message. Does not know
who wants what. The compiled part is runs_kernel.py.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zenlake.wire.cursor import ByteWriter
from zenlake.wire.kernels import push_run as kernel
from zenlake.wire.scan import CHUNK_ROWS, Rows, readable
from zenlake.wire.wireexpr import WireExpr, flags_of, write_wireexpr

STAMP_BYTES = 9 + 17  # the longest time and clock id


class PushRun(NamedTuple):
    """PUSH messages that stand together."""

    data: memoryview
    "What the rows were scanned from,"
    base: int
    "and where it starts in the buffer that `starts` and `ends` count from."
    rows: Rows
    first: int
    stop: int
    "rows[first:stop]; overwritten by the next scan."
    groups: int
    codes: npt.NDArray[np.int32]
    "The key's number of each."
    keys: list[tuple[int, bytes]]
    "By number: mapping and scope as one (see keytable.number_of), and the suffix."
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    "Where the payloads stand."
    plain: bool
    "Whether all are puts with nothing beside the payload."
    stampless: bool
    "Whether there is a put without a timestamp."

    def __len__(self) -> int:
        return self.stop - self.first

    def places(self, rows: npt.NDArray[np.int64] | None) -> list[int] | None:
        """Where messages start, counted as `starts` is; None if nothing stands beside payloads."""
        if self.plain:
            return None
        places = self.rows["start"][self.first : self.stop].astype(np.int64) + self.base
        found: list[int] = (places if rows is None else places[rows]).tolist()
        return found

    def chosen(self, wanted: list[bool]) -> npt.NDArray[np.int64]:
        """Which of the messages have a key whose number is wanted, counted from `first`."""
        return np.flatnonzero(np.array(wanted)[self.codes])


class KeyGrouper:
    """Groups one scan after another in the same arrays. `seed`: 64 bits that nobody can guess."""

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

    def run(self, data: memoryview, base: int, rows: Rows, first: int) -> PushRun:
        """The PUSH messages from rows[first] on; none if that is another message."""
        found = self._found
        kernel.group_kernel(
            readable(data),
            rows,
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


def chosen_bytes(run: PushRun, chosen: npt.NDArray[np.int64]) -> memoryview:
    """The messages that `chosen` names, counted from `first`, one after another as they are."""
    size = int(run.rows[run.stop - 1]["end"]) - int(run.rows[run.first]["start"])
    out = np.empty(size, np.uint8)
    used = kernel.copy_kernel(readable(run.data), run.rows, run.first, run.stop, chosen, out)
    return out.data[:used]


class RewrittenRun(NamedTuple):
    data: memoryview
    ends: npt.NDArray[np.int64]
    "Where each message ends in it."


def rewrite(
    run: PushRun, keys: list[WireExpr | None], time: int = 0, clock: bytes = b""
) -> RewrittenRun:
    """The messages of `run` whose key's number has an entry in `keys`, with that key instead.

    With a `clock` (an encoded id) a put without a timestamp gets `time` plus its place in the run,
    counted from 1: the same, whoever it is written for.
    """
    encoded: list[bytes] = []
    flags = np.zeros(len(keys), np.uint8)
    wanted = np.zeros(len(keys), np.uint8)
    for code, key in enumerate(keys):
        if key is None:
            encoded.append(b"")
            continue
        w = ByteWriter()
        write_wireexpr(w, key)
        encoded.append(bytes(w.out))
        flags[code] = flags_of(key)
        wanted[code] = 1
    offsets = np.zeros(len(keys) + 1, np.int64)
    np.cumsum([len(entry) for entry in encoded], out=offsets[1:])
    longest = max(map(len, encoded), default=0)
    size = int(run.rows[run.stop - 1]["end"]) - int(run.rows[run.first]["start"])
    out = np.empty(size + len(run) * (longest + (STAMP_BYTES if clock else 0)), np.uint8)
    ends = np.empty(len(run), np.int64)
    count = kernel.rewrite_kernel(
        readable(run.data),
        run.rows,
        run.first,
        run.codes,
        wanted,
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
