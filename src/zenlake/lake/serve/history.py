"""History of a lake: the latest value of each key, and all samples in a range of time.

Reads tables and the tail of the log, and returns batches of rows in bounded memory. Does not know
queries or sessions.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.lake.serve.footers import BATCH_ROWS, Footer, Footers
from zenlake.lake.serve.newest import NewestPerKey
from zenlake.lake.serve.row_filter import RowFilter
from zenlake.lake.serve.row_order import (
    drop_repeats,
    regroup,
    restrict_times,
    take_last_per_key,
)
from zenlake.lake.serve.tail import COLUMNS, Offsets, Tail
from zenlake.lake.serve.time_range import EVERYTHING, HIGHEST, LOWEST, HlcRange
from zenlake.lake.tables import reduce
from zenlake.lake.tables.compaction import merge_sorted
from zenlake.lake.tables.definitions import LATEST, SAMPLES, TOMBSTONES, TableDefinition
from zenlake.lake.tables.delta import DataFile, DeltaStore
from zenlake.lake.tables.schema import HLC, SAMPLE
from zenlake.log.read.log import OffsetOutOfRange

REFRESH_SECONDS = 0.05  # Longest time that a snapshot of a table is reused without a check.
MAX_STREAMS = 64  # Upper bound on files read side by side; more make slices of time.
MAX_RESTARTS = 8  # Upper bound on restarts per answer after files were removed under it.
RUN_BYTES = 64 << 20  # Upper bound on the tail in memory per query; more is spilled to files.
MAX_HELD_BYTES = 512 << 20  # Upper bound on the bytes that `newest` selects of one key.
FEW_ROWS = 16  # Rows per key that are returned even if they exceed MAX_HELD_BYTES.

ROWS = pa.schema([*(SAMPLE.field(name) for name in COLUMNS), HLC])
"Columns of the rows that are returned."
RESTARTS = "answers that went on with newer files"
BY_TIME, BY_KEY = ("key", "hlc"), ("key",)

Groups = Mapping[str, list[int]]
"Row groups by the path of their file."
KeyPredicate = Callable[[str], bool]
"Tells whether a key is wanted."
Batches = Generator[pa.RecordBatch]
"Close the generator if you stop before it is exhausted."


class TableSnapshot(NamedTuple):
    """Files and offsets of one version of a table."""

    version: int
    files: tuple[DataFile, ...]
    offsets: Offsets
    "Next offset of each log partition that is not in the table."


NO_TABLE = TableSnapshot(-1, (), {})


class WatchedTable:
    """Table that other processes write, shared by any number of threads."""

    def __init__(self, folder: Path, table: TableDefinition) -> None:
        self._store = DeltaStore(folder, table)
        self._lock = threading.Lock()
        self._state = NO_TABLE
        self._looked = float("-inf")

    def current(self, *, within: float = REFRESH_SECONDS) -> TableSnapshot:
        """Return a snapshot of the table that is at most `within` seconds old."""
        with self._lock:
            if time.monotonic() - self._looked >= within:
                snapshot = self._store.snapshot()
                if snapshot.version != self._state.version:
                    files = (
                        replace(file, path=str(self._store.path / file.path))
                        for file in snapshot.files
                    )
                    self._state = TableSnapshot(
                        snapshot.version, tuple(files), self._store.offsets()
                    )
                self._looked = time.monotonic()
            return self._state


class History:
    """Past values of a lake, for any number of threads.

    Returned rows have the columns of ROWS.
    """

    def __init__(self, project: Project) -> None:
        self.counters: Counter[str] = Counter()
        self._samples = WatchedTable(project.table(SAMPLES.name), SAMPLES)
        self._latest = WatchedTable(project.table(LATEST.name), LATEST)
        self._tombstones = WatchedTable(project.table(TOMBSTONES.name), TOMBSTONES)
        self._tail = Tail(project.log, fold=False, counters=self.counters)
        self._newest_tail = Tail(project.log, fold=True, counters=self.counters)
        self._footers = Footers()

    def latest(self, key_expr: str, *, key_filter: KeyPredicate | None = None) -> Batches:
        """Yield the latest value of each key that was not deleted, sorted by key.

        `key_filter` may exclude further keys.
        """
        return self._with_restarts(
            _Answer(RowFilter(key_expr, EVERYTHING, key_filter), 1), self._latest_rows
        )

    def between(
        self,
        key_expr: str,
        low: int = LOWEST,
        high: int = HIGHEST,
        newest: int | None = None,
        *,
        key_filter: KeyPredicate | None = None,
    ) -> Batches:
        """Yield every put and delete with `low` <= hlc <= `high`, per key in the order of time.

        With `newest`, only that many of the newest samples per key.
        """
        answer = _Answer(RowFilter(key_expr, HlcRange(low, high), key_filter), newest)
        rows = self._all_rows if newest is None else self._newest_rows
        return self._with_restarts(answer, rows)

    def _with_restarts(
        self, answer: "_Answer", rows: Callable[["_Answer"], Iterator[pa.Table]]
    ) -> Batches:
        """Yield all rows of an answer; continue with newer files if compaction removed some."""
        for attempt in range(MAX_RESTARTS + 1):
            try:
                for table in rows(answer):
                    yield from answer.take_new(table).combine_chunks().to_batches(BATCH_ROWS)
                return
            except (FileNotFoundError, OffsetOutOfRange):
                if attempt == MAX_RESTARTS:
                    raise
                self.counters[RESTARTS] += 1
                for table in (self._samples, self._latest, self._tombstones):
                    table.current(within=0.0)

    # ---- the latest values

    def _latest_rows(self, answer: "_Answer") -> Iterator[pa.Table]:
        row_filter, state = answer.row_filter, self._latest.current()
        # Read tombstones after `latest`: a put in the tail beats each tombstone dropped since.
        tombstones = self._tombstones.current(within=0.0)
        tail = self._newest_tail.rows(state.offsets, row_filter.key_expr)
        with ExitStack() as stack:
            runs = self._sort_into_runs(map(row_filter.select, tail), BY_KEY, stack)
            # An old delete may be newer than a sample that arrived late.
            files = state.files + (tombstones.files if runs else ())
            merged = self._merge(runs, files, row_filter, EVERYTHING, BY_KEY)
            for rows in regroup(merged, BY_KEY):
                found = reduce.keep_newest(rows)
                yield found.filter(pc.equal(found.column("kind"), "put"))

    # ---- all samples

    def _all_rows(self, answer: "_Answer") -> Iterator[pa.Table]:
        row_filter, state = answer.row_filter, self._samples.current()
        tail = self._tail.rows(state.offsets, row_filter.key_expr)
        with ExitStack() as stack:
            runs = self._sort_into_runs(map(row_filter.select, tail), BY_TIME, stack)
            rest = row_filter.clip_times(HlcRange(answer.low, HIGHEST))
            files = [
                file for file in state.files if row_filter.may_contain(file.low, file.high, rest)
            ]
            for times in answer.slices(_slice_times(files, rest)):
                merged = self._merge(runs, files, row_filter, times, BY_TIME)
                yield from map(drop_repeats, regroup(merged, BY_TIME))

    # ---- the newest of each key

    def _newest_rows(self, answer: "_Answer") -> Iterator[pa.Table]:
        row_filter, state, count = answer.row_filter, self._samples.current(), answer.newest or 1
        tail = self._tail.rows(state.offsets, row_filter.key_expr)
        with ExitStack() as stack:
            runs = self._sort_into_runs(map(row_filter.select, tail), BY_TIME, stack)
            newest = NewestPerKey(count)
            for run in runs:
                keys = run.column("key").dictionary_encode()
                newest.add(row_filter.key_numbers(keys), run.column("hlc").to_numpy(), -1)
            groups = self._newest_groups(state.files, row_filter, newest)
            times = row_filter.clip_times(HlcRange(newest.lowest(), HIGHEST))
            some = [file for file in state.files if file.path in groups]
            merged = self._merge(runs, some, row_filter, times, BY_TIME, groups)
            selected = (newest.select(rows, row_filter) for rows in merged)
            for rows in regroup(_limit_key_bytes(selected, answer), BY_KEY):
                yield take_last_per_key(drop_repeats(rows), count)

    def _newest_groups(
        self, files: Sequence[DataFile], row_filter: RowFilter, newest: NewestPerKey
    ) -> Groups:
        """Find the row groups with the newest rows of each key; reads only keys and times."""
        times = row_filter.times
        places: list[tuple[str, int]] = []
        some = [file for file in files if row_filter.may_contain(file.low, file.high, times)]
        for file in sorted(some, key=_last_hlc, reverse=True):
            if row_filter.single_key is not None and newest.excludes(_last_hlc(file)):
                break
            footer = self._footers.read(file.path)
            with _open_file(file.path, footer) as opened:
                for number in _matching_groups(footer, row_filter, times):
                    rows = opened.read_row_group(number, [*BY_TIME], use_threads=False)
                    hlc = rows.column("hlc").to_numpy()
                    keys = row_filter.key_numbers(rows.column("key"))
                    keep = (keys >= 0) & (hlc >= times.low) & (hlc <= times.high)
                    newest.add(keys[keep], hlc[keep], len(places))
                    places.append((file.path, number))
        found: dict[str, list[int]] = {}
        for place in newest.places():
            path, number = places[place]
            found.setdefault(path, []).append(number)
        return found

    # ---- reading rows

    def _merge(
        self,
        runs: Iterable[pa.Table],
        files: Iterable[DataFile],
        row_filter: RowFilter,
        times: HlcRange,
        order: tuple[str, ...],
        groups: Groups | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the rows of `times` of sorted runs and of files, or of some of their row groups."""
        some = [file for file in files if row_filter.may_contain(file.low, file.high, times)]
        inputs = [iter([restrict_times(run, times)]) for run in runs]
        inputs += [
            self._read_chain(chained, row_filter, times, groups) for chained in chain_files(some)
        ]
        return inputs[0] if len(inputs) == 1 else merge_sorted(inputs, order)

    def _read_chain(
        self,
        files: Iterable[DataFile],
        row_filter: RowFilter,
        times: HlcRange,
        groups: Groups | None,
    ) -> Iterator[pa.Table]:
        """Yield the rows of files one after another; opens each file only when it is needed."""
        for file in files:
            footer = self._footers.read(file.path)
            among = None if groups is None else groups[file.path]
            matching = _matching_groups(footer, row_filter, times, among)
            if not matching:
                continue
            with _open_file(file.path, footer) as opened:
                for batch in opened.iter_batches(
                    footer.batch_rows, matching, columns=ROWS.names, use_threads=False
                ):
                    rows = row_filter.select(pa.Table.from_batches([batch]), times)
                    if rows.num_rows:
                        yield reduce.conform(rows, ROWS)

    def _sort_into_runs(
        self, tables: Iterable[pa.Table], order: tuple[str, ...], stack: ExitStack
    ) -> list[pa.Table]:
        """Return the rows as sorted runs, in memory or, beyond RUN_BYTES, in temporary files."""
        runs: list[pa.Table] = []
        waiting: list[pa.Table] = []
        size = 0
        folder: Path | None = None
        for table in tables:
            if table.num_rows:
                waiting.append(table)
                size += table.nbytes
            if size >= RUN_BYTES:
                folder = folder or Path(stack.enter_context(TemporaryDirectory(prefix="zenlake-")))
                run = reduce.sort_rows(pa.concat_tables(waiting), order)
                runs.append(_spill_run(run, folder / f"{len(runs)}.arrow", stack))
                waiting, size = [], 0
        if waiting:
            runs.append(reduce.sort_rows(pa.concat_tables(waiting), order))
        return runs


# ---- files


def _open_file(path: str, footer: Footer) -> parquet.ParquetFile:
    return parquet.ParquetFile(path, metadata=footer.metadata, read_dictionary=["key"])


def _matching_groups(
    footer: Footer, row_filter: RowFilter, times: HlcRange, among: list[int] | None = None
) -> list[int]:
    """Return the row groups, of all or `among` some, that may contain matching rows."""
    numbers = range(len(footer.low)) if among is None else among
    return [
        number
        for number in numbers
        if row_filter.may_contain(footer.low[number], footer.high[number], times)
    ]


def _last_hlc(file: DataFile) -> int:
    return int(file.high.get("hlc", HIGHEST))


def chain_files(files: Iterable[DataFile]) -> list[list[DataFile]]:
    """Group files into chains in which the keys of each file follow those of the previous one."""
    found: list[list[DataFile]] = []
    ends: list[tuple[str, int]] = []
    for file in sorted(files, key=lambda file: str(file.low.get("key", ""))):
        first, last = file.low.get("key"), file.high.get("key")
        if first is None or last is None:  # The file may contain any key.
            found.append([file])
            continue
        if ends and ends[0][0] < first:
            place = heappop(ends)[1]
            found[place].append(file)
        else:
            place = len(found)
            found.append([file])
        heappush(ends, (last, place))
    return found


def _slice_times(files: Sequence[DataFile], times: HlcRange) -> Iterator[HlcRange]:
    """Yield slices of `times` for each of which at most about MAX_STREAMS files are open."""
    low = times.low
    if len(chain_files(files)) > MAX_STREAMS:
        starts = sorted(int(file.low.get("hlc", LOWEST)) for file in files)
        for start in starts[MAX_STREAMS::MAX_STREAMS]:
            if low < start <= times.high:
                yield HlcRange(low, start - 1)
                low = start
    yield HlcRange(low, times.high)


def _spill_run(run: pa.Table, path: Path, stack: ExitStack) -> pa.Table:
    """Write a run to a file and return it memory-mapped."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, run.schema) as writer:
        writer.write_table(run, BATCH_ROWS)
    return pa.ipc.open_file(stack.enter_context(pa.memory_map(str(path)))).read_all()


# ---- rows in order


def _limit_key_bytes(tables: Iterable[pa.Table], answer: "_Answer") -> Iterator[pa.Table]:
    """Pass tables sorted by key through. ZError: the rows of one key are too large."""
    key: str | None = None
    rows = size = 0
    for table in tables:
        if table.num_rows:
            keys = table.column("key")
            if keys[-1].as_py() != key:
                key, rows, size = keys[-1].as_py(), 0, 0
            count = pc.sum(pc.equal(keys, keys[-1])).as_py()
            rows, size = rows + count, size + table.slice(table.num_rows - count).nbytes
            if rows > FEW_ROWS and size > MAX_HELD_BYTES:
                raise ZError(
                    f"_max={answer.newest} of {key} is more than {MAX_HELD_BYTES} bytes: ask for "
                    "fewer, or for all of a range of time"
                )
        yield table


@dataclass
class _Answer:
    """Progress of an answer, from which it can continue with other files."""

    row_filter: RowFilter
    newest: int | None = None
    low: int = LOWEST
    "All rows before this time were returned."
    until: int | None = None
    "End of the slice of time that is being returned."
    last: tuple[str, int] | None = None
    "Key and time of the last returned row of this slice."

    def slices(self, rest: Iterable[HlcRange]) -> Iterator[HlcRange]:
        """Yield the remaining slices, beginning with the slice that a restart interrupted."""
        pieces = list(rest)
        if self.until is not None:
            begun = HlcRange(self.low, self.until)
            later = [HlcRange(max(low, begun.high + 1), high) for low, high in pieces]
            pieces = [begun, *(times for times in later if times.low <= times.high)]
        for piece in pieces:
            self.low, self.until = piece
            yield piece
            self.low, self.until, self.last = piece.high + 1, None, None

    def take_new(self, rows: pa.Table) -> pa.Table:
        """Return the rows that were not returned before, and count them as returned."""
        if self.last is not None:
            key, hlc = self.last
            later = pc.greater(rows.column("key"), key)
            if self.newest is None:
                same = pc.equal(rows.column("key"), key)
                later = pc.or_(later, pc.and_(same, pc.greater(rows.column("hlc"), hlc)))
            rows = rows.filter(later)
        if rows.num_rows:
            self.last = (rows.column("key")[-1].as_py(), rows.column("hlc")[-1].as_py())
        return rows
