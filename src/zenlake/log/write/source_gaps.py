"""Source gaps: missing numbers among samples that their publishers numbered.

Knows the last number of each source. Does not know links, lanes or blocks.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zenlake.wire.entity import WireSourceInfo
from zenlake.wire.scan import Rows, read_only_array
from zenlake.wire.zenohid import MAX_BYTES

MAX_SOURCES = 65_536  # Sources remembered; beyond that the one seen first is forgotten.
_WRAP = 1 << 32
_HALF = _WRAP >> 1


class SourceGap(NamedTuple):
    """Consecutive numbers of a source that were not received."""

    row: int
    "The row that the gap is before."
    id: bytes
    entity: int
    first: int
    missing: int

    @property
    def last(self) -> int:
        return (self.first + self.missing - 1) % _WRAP


class SourceTracker:
    """The last number of each known source. A late number (not above the last) closes no gap."""

    def __init__(self) -> None:
        self._last: dict[bytes, int] = {}
        "Last number by id and entity."
        self.forgotten = 0
        "Sources dropped because of MAX_SOURCES."

    def gaps(self, rows: Rows, data: memoryview) -> Iterator[SourceGap]:
        """Yield the gaps between the samples of a scan of `data`, in the order of its rows."""
        numbered = np.flatnonzero(rows["source"])
        if not len(numbered):
            return
        sns = rows["source_sn"][numbered].astype(np.int64)
        names = _names(rows[numbered], data)
        distinct, which, counts = np.unique(names, return_inverse=True, return_counts=True)
        in_order = np.argsort(which, kind="stable")
        found: list[SourceGap] = []
        for name, mine in zip(distinct, np.split(in_order, np.cumsum(counts)[:-1]), strict=True):
            found += self._advance(name.tobytes(), sns[mine], numbered[mine])
        yield from sorted(found)

    def gap(self, source: WireSourceInfo) -> Iterator[SourceGap]:
        """Yield the gap before one sample, if there is one."""
        raw = source.id.zid.raw.ljust(MAX_BYTES, b"\0")
        name = raw + source.id.eid.to_bytes(4, "little")
        return self._advance(name, np.array([source.sn], np.int64), np.zeros(1, np.int64))

    def _advance(
        self, name: bytes, sns: npt.NDArray[np.int64], places: npt.NDArray[np.int64]
    ) -> Iterator[SourceGap]:
        """Yield the gaps in the numbers `sns` of one source, which are in rows `places`."""
        last = self._last.get(name)
        if last is None:
            if len(self._last) >= MAX_SOURCES:
                del self._last[next(iter(self._last))]
                self.forgotten += 1
            last = int(sns[0]) - 1
        steps = np.diff(sns, prepend=last) % _WRAP
        if (steps == 1).all():  # The usual case: no gap.
            self._last[name] = int(sns[-1])
            return
        for sn, place in zip(sns.tolist(), places.tolist(), strict=True):
            step = (sn - last) % _WRAP
            if not 0 < step < _HALF:
                continue
            if step > 1:
                entity = int.from_bytes(name[MAX_BYTES:], "little")
                zid = name[:MAX_BYTES].rstrip(b"\0")
                yield SourceGap(place, zid, entity, (last + 1) % _WRAP, step - 1)
            last = sn
        self._last[name] = last


def _names(rows: Rows, data: memoryview) -> npt.NDArray[np.void]:
    """Return the source of each row as one value: id, padded with zeros, and entity."""
    buf = read_only_array(data)
    places = rows["source"][:, None] + np.arange(MAX_BYTES)
    names = np.zeros((len(rows), MAX_BYTES + 4), np.uint8)
    inside = np.arange(MAX_BYTES) < rows["source_len"][:, None]
    names[:, :MAX_BYTES] = np.where(inside, buf[np.minimum(places, len(buf) - 1)], 0)
    names[:, MAX_BYTES:] = rows["source_eid"].astype("<u4").view(np.uint8).reshape(-1, 4)
    return np.ascontiguousarray(names).view(f"V{MAX_BYTES + 4}").ravel()
