"""Samples to be decoded again, in pieces of bounded size: from the table `samples`, from the log.

Knows which repeats to leave out, so that a sample is there once whichever copy the tables have.
Does not decode.
"""

from collections.abc import Iterator
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.lake.decoders.messages import INPUT
from zenlake.lake.project import Project
from zenlake.lake.reprocess.extent import Extent, Mask, lookback_micros, to_micros
from zenlake.lake.tables.compaction import read_pieces
from zenlake.lake.tables.delta import DataFile, DeltaStore
from zenlake.lake.tables.reduce import as_ints, conform
from zenlake.lake.tables.retention import STATS_PRECISION
from zenlake.log.read.log import Log
from zenlake.log.read.reader import Reader
from zenlake.spark.duplicates import DuplicateFinder, SequenceHistory
from zenlake.spark.offsets import batch_end

PIECE_BYTES = 16 << 20  # Bytes of a file that are read at once; decoded they take more.
COLUMNS = [*INPUT.names, "kind"]


class SampleReader:
    """Reader of the samples of an extent, each once: the first copy that is not in `history`."""

    def __init__(self, project: Project, extent: Extent, samples: DeltaStore, log: Log | None):
        self.extent = extent
        self._samples, self._log = samples, log
        self._project = project
        self._lookback = lookback_micros(project.duplicates_within)
        self._history = SequenceHistory(project.duplicates_within)
        self.total = self._count()
        "Upper bound on the samples to read."
        self.read = 0
        "Number of samples read so far, with deletes and repeats."

    def _count(self) -> int:
        stored = sum(file.rows for file in self._files())
        logged = (end - self.extent.cuts[p] for p, end in self.extent.ends.items())
        return stored + sum(logged)

    def _files(self) -> list[DataFile]:
        """Return the files of `samples` by day, so that few days are written at once."""
        if self.extent.since is None:
            return []
        files = self._samples.current.files
        return sorted(files, key=lambda file: (file.partition.get("day") or "", file.path))

    def keep(self, rows: pa.Table) -> None:
        """Note rows of a decoded table that stay: the samples that they have are not read again."""
        late = as_ints(rows["received_at"]) >= self.extent.begin - self._lookback
        self._find_repeats(rows.filter(pa.array(late)))

    def keeps(self, file: DataFile) -> bool:
        """Tell whether `keep` has to know the rows of a file that stay."""
        high = file.high.get("received_at")
        if high is None:
            return True
        return to_micros(high + STATS_PRECISION) >= self.extent.begin - self._lookback

    def __iter__(self) -> Iterator[pa.Table]:
        """Yield puts with the columns INPUT."""
        for rows in chain(self._stored(), self._logged()):
            puts = rows.filter(pc.equal(rows["kind"], "put"))
            if puts.num_rows:
                yield conform(puts, INPUT)

    # ---- the table

    def _stored(self) -> Iterator[pa.Table]:
        for file in self._files():
            for piece in read_pieces(self._samples, file, PIECE_BYTES, COLUMNS):
                self.read += piece.num_rows
                rows = piece.filter(pa.array(self.extent.stored(piece)))
                near = self._is_near_edge(rows)
                if near.any():
                    repeats = np.zeros(rows.num_rows, np.bool_)
                    repeats[near] = self._find_repeats(rows.filter(pa.array(near)))
                    rows = rows.filter(pa.array(~repeats))
                yield rows

    def _is_near_edge(self, rows: pa.Table) -> Mask:
        """Return which rows may repeat a row that stays, or be repeated in the log behind them."""
        times = as_ints(rows["received_at"])
        near = np.full(rows.num_rows, len(self._history) > 0)
        near &= times <= self.extent.begin + self._lookback
        if self.extent.tail is not None:
            near |= times >= self.extent.tail - self._lookback
        return near

    def _find_repeats(self, rows: pa.Table) -> Mask:
        """Return which rows repeat a row of the history, and add them to it."""
        found = np.zeros(rows.num_rows, np.bool_)
        numbered = np.flatnonzero(rows["source"].is_valid().to_numpy())
        if not len(numbered):
            return found
        source = rows["source"].combine_chunks().take(pa.array(numbered))
        times = as_ints(rows["received_at"])[numbered] * 1000
        ids = source.field("id").dictionary_encode()
        entities = as_ints(source.field("entity"))
        pairs = as_ints(ids.indices) << 32 | entities
        distinct, codes = np.unique(pairs, return_inverse=True)
        texts = ids.dictionary.to_pylist()
        names = [source_name(texts[pair >> 32], pair & 0xFFFFFFFF) for pair in distinct.tolist()]
        order = np.argsort(times, kind="stable")
        repeats = self._history.find(
            names, codes[order].astype(np.int64), as_ints(source.field("sn"))[order], times[order]
        )
        found[numbered[order]] = repeats
        return found

    # ---- the log

    def _logged(self) -> Iterator[pa.Table]:
        """Yield the rows of the log in the micro-batches that a flow would make of them."""
        begin, ends = self.extent.cuts, self.extent.ends
        if self._log is None or begin == ends:
            return
        finder = DuplicateFinder(self._project.duplicates_within)
        finder.resume(self._history, begin)
        while begin != ends:
            stop = batch_end(self._log, begin, ends, self._project.max_rows, None)
            ranges = {p: (begin[p], stop[p]) for p in ends}
            repeats = finder.find(self._log, ranges)
            for partition, (low, high) in sorted(ranges.items()):
                if low == high:
                    continue
                reader = Reader(self._log, partition)
                for batch in reader.batches(low, high, columns=COLUMNS):
                    self.read += batch.num_rows
                    rows = pa.Table.from_batches([batch])
                    if partition in repeats:
                        again = np.isin(as_ints(rows["offset"]), repeats[partition])
                        rows = rows.filter(pa.array(~again))
                    yield rows
            begin = stop


def source_name(text: str, entity: int) -> bytes:
    """Return a source as the history names it: 16 bytes of id, little-endian, and 4 of entity.

    >>> source_name("a1", 2).hex()
    'a100000000000000000000000000000002000000'
    """
    return int(text, 16).to_bytes(16, "little") + entity.to_bytes(4, "little")
