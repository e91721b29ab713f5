"""What a lake knows of the past: the latest value of each key, every sample in a range of time.

Knows the tables, their files and the log's tail, and gives rows by the batch, in bounded memory.
Does not know who asks.
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.lake.serve.row_filter import RowFilter, select_rows
from zenlake.lake.serve.tail import COLUMNS, Offsets, Tail
from zenlake.lake.serve.time_range import EVERYTHING, HIGHEST, LOWEST, HlcRange
from zenlake.lake.tables import reduce
from zenlake.lake.tables.compaction import merge_sorted
from zenlake.lake.tables.definitions import LATEST, SAMPLES, TOMBSTONES, TableDefinition
from zenlake.lake.tables.delta import DataFile, DeltaStore
from zenlake.lake.tables.schema import HLC, SAMPLE
from zenlake.log.read.log import OffsetOutOfRange

REFRESH_SECONDS = 0.05  # how old what is known of a table may be
MAX_FOOTERS = 16_384  # row groups whose statistics are kept
MAX_STREAMS = 64  # files that one question reads side by side, if time can be cut
MAX_RESTARTS = 8  # of one answer, when files go while it reads them
BATCH_ROWS = 8_192
BATCH_BYTES = 8 << 20
RUN_BYTES = 64 << 20  # of the tail in memory for one question; the rest waits in a file
MAX_TIES = 262_144  # rows of one key and time that are looked at together
MAX_NEWEST = 1 << 22  # rows that `newest` may choose,
MAX_HELD_BYTES = 512 << 20  # and of one key their bytes, if they are more than
FEW_ROWS = 16
FOLD_ROWS = 65_536

ROWS = pa.schema([*(SAMPLE.field(name) for name in COLUMNS), HLC])
"The columns of what is given out."
RESTARTS = "answers that went on with newer files"
BY_TIME, BY_KEY = ("key", "hlc"), ("key",)

_Ints = npt.NDArray[np.int64]
Groups = Mapping[str, list[int]]
"Row groups, by the path of their file."
KeyPredicate = Callable[[str], bool]
Batches = Generator[pa.RecordBatch]
"To be closed by who does not read it to its end."


class TableSnapshot(NamedTuple):
    """A table at one moment."""

    version: int
    files: tuple[DataFile, ...]
    offsets: Offsets
    "Where the log goes on behind it, by partition."


NO_TABLE = TableSnapshot(-1, (), {})


class WatchedTable:
    """A table that others write: how it is now, for any number of threads."""

    def __init__(self, folder: Path, table: TableDefinition) -> None:
        self._store = DeltaStore(folder, table)
        self._lock = threading.Lock()
        self._state = NO_TABLE
        self._looked = float("-inf")

    def now(self, *, within: float = REFRESH_SECONDS) -> TableSnapshot:
        """How it is, or was at most `within` seconds ago."""
        with self._lock:
            if time.monotonic() - self._looked >= within:
                snapshot = self._store.snapshot()
                if snapshot.version != self._state.version:
                    files = (
                        replace(one, path=str(self._store.path / one.path))
                        for one in snapshot.files
                    )
                    self._state = TableSnapshot(
                        snapshot.version, tuple(files), self._store.offsets()
                    )
                self._looked = time.monotonic()
            return self._state

    def again(self) -> None:
        """What is known is not so any more."""
        with self._lock:
            self._looked = float("-inf")


class Footer(NamedTuple):
    """What a Parquet file says of itself; bounds of each row group."""

    metadata: parquet.FileMetaData
    low: list[dict[str, Any]]
    high: list[dict[str, Any]]
    batch_rows: int


class Footers:
    """Those that were read last."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Footer] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, path: str) -> Footer:
        with self._lock:
            found = self._known.get(path)
            if found is not None:
                self._known.move_to_end(path)
                return found
        found = _parse_footer(parquet.read_metadata(path))
        with self._lock:
            self._known[path] = found
            groups = sum(len(one.low) for one in self._known.values())
            while groups > MAX_FOOTERS and len(self._known) > 1:
                groups -= len(self._known.popitem(last=False)[1].low)
        return found


def _parse_footer(metadata: parquet.FileMetaData) -> Footer:
    low, high, size = [], [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size += group.total_byte_size
        bounds: list[dict[str, Any]] = [{}, {}]
        for place in range(group.num_columns):
            column = group.column(place)
            found = column.statistics if column.path_in_schema in BY_TIME else None
            if found is not None and found.has_min_max:
                bounds[0][column.path_in_schema] = found.min
                bounds[1][column.path_in_schema] = found.max
        low.append(bounds[0])
        high.append(bounds[1])
    row = max(1, size // max(1, metadata.num_rows))
    return Footer(metadata, low, high, min(BATCH_ROWS, max(1, BATCH_BYTES // row)))


class History:
    """The past of a lake, for any number of threads.

    Rows have the columns of ROWS. A key without wildcards is looked for as it is.
    """

    def __init__(self, project: Project) -> None:
        self.counters: Counter[str] = Counter()
        self._samples = WatchedTable(project.table(SAMPLES.name), SAMPLES)
        self._latest = WatchedTable(project.table(LATEST.name), LATEST)
        self._tombstones = WatchedTable(project.table(TOMBSTONES.name), TOMBSTONES)
        self._tail = Tail(project.log, fold=False, counters=self.counters)
        self._newest_tail = Tail(project.log, fold=True, counters=self.counters)
        self._footers = Footers()

    def latest(self, key_expr: str, *, also: KeyPredicate | None = None) -> Batches:
        """The latest value of each key that is alive, by key. `also` is asked for each key."""
        return self._restarted(_Answer(RowFilter(key_expr, EVERYTHING, also), 1), self._latest_rows)

    def between(
        self,
        key_expr: str,
        low: int = LOWEST,
        high: int = HIGHEST,
        newest: int | None = None,
        *,
        also: KeyPredicate | None = None,
    ) -> Batches:
        """Every sample with `low` <= hlc <= `high`, puts and deletes, each key's in the order of
        time; of each key the `newest` so many."""
        answer = _Answer(RowFilter(key_expr, HlcRange(low, high), also), newest)
        rows = self._all_rows if newest is None else self._newest_rows
        return self._restarted(answer, rows if low <= high else _no_rows)

    def _restarted(
        self, answer: "_Answer", rows: Callable[["_Answer"], Iterator[pa.Table]]
    ) -> Batches:
        """All rows of an answer, though compaction may take its files away meanwhile."""
        for attempt in range(MAX_RESTARTS + 1):
            try:
                for table in rows(answer):
                    yield from answer.new(table).combine_chunks().to_batches(BATCH_ROWS)
                return
            except (FileNotFoundError, OffsetOutOfRange):
                if attempt == MAX_RESTARTS:
                    raise
                self.counters[RESTARTS] += 1
                for one in (self._samples, self._latest, self._tombstones):
                    one.again()

    # ---- the latest values

    def _latest_rows(self, answer: "_Answer") -> Iterator[pa.Table]:
        picking, state = answer.picking, self._latest.now()
        # In this order: a tombstone that was dropped by now was beaten by what is in the tail.
        tombstones = self._tombstones.now(within=0.0)
        tail = self._newest_tail.rows(state.offsets, picking.key_expr)
        with ExitStack() as stack:
            runs = self._runs(map(picking.pick, tail), BY_KEY, stack)
            inputs = [iter([run]) for run in runs]
            files = chain_files(state.files)
            if runs:  # what was deleted long ago is newer than what comes late
                files += chain_files(tombstones.files)
            inputs += [self._chained(one, picking, EVERYTHING) for one in files]
            for rows in _regroup(_merge_inputs(inputs, BY_KEY), BY_KEY):
                found = reduce.keep_newest(rows)
                yield found.filter(pc.equal(found.column("kind"), "put"))

    # ---- all samples

    def _all_rows(self, answer: "_Answer") -> Iterator[pa.Table]:
        picking, state = answer.picking, self._samples.now()
        tail = self._tail.rows(state.offsets, picking.key_expr)
        with ExitStack() as stack:
            runs = self._runs(map(picking.pick, tail), BY_TIME, stack)
            rest = picking.within(HlcRange(answer.low, HIGHEST))
            files = [one for one in state.files if picking.may_hold(one.low, one.high, rest)]
            for times in answer.slices(_slice_times(files, rest)):
                inputs = [iter([_restrict_times(run, times)]) for run in runs]
                some = [one for one in files if picking.may_hold(one.low, one.high, times)]
                inputs += [self._chained(one, picking, times) for one in chain_files(some)]
                yield from map(drop_repeats, _regroup(_merge_inputs(inputs, BY_TIME), BY_TIME))

    # ---- the newest of each key

    def _newest_rows(self, answer: "_Answer") -> Iterator[pa.Table]:
        picking, state, count = answer.picking, self._samples.now(), answer.newest or 1
        tail = self._tail.rows(state.offsets, picking.key_expr)
        with ExitStack() as stack:
            runs = self._runs(map(picking.pick, tail), BY_TIME, stack)
            newest = NewestPerKey(count)
            for run in runs:
                keys = run.column("key").dictionary_encode()
                newest.add(picking.key_numbers(keys), run.column("hlc").to_numpy(), -1)
            groups = self._newest_groups(state.files, picking, newest)
            times = picking.within(HlcRange(newest.lowest(), HIGHEST))
            inputs = [iter([_restrict_times(run, times)]) for run in runs]
            some = [one for one in state.files if one.path in groups]
            inputs += [self._chained(one, picking, times, groups) for one in chain_files(some)]
            chosen = (newest.chosen(rows, picking) for rows in _merge_inputs(inputs, BY_TIME))
            for rows in _regroup(_limit_key_bytes(chosen, answer), BY_KEY):
                yield take_last_per_key(drop_repeats(rows), count)

    def _newest_groups(
        self, files: Sequence[DataFile], picking: RowFilter, newest: "NewestPerKey"
    ) -> Groups:
        """The row groups with the newest rows of each key; reads keys and times only."""
        times = picking.times
        places: list[tuple[str, int]] = []
        some = [one for one in files if picking.may_hold(one.low, one.high, times)]
        for file in sorted(some, key=_last_hlc, reverse=True):
            if picking.one_key is not None and newest.passes(_last_hlc(file)):
                break
            footer = self._footers.of(file.path)
            with _open_file(file.path, footer) as opened:
                for number in _matching_groups(footer, picking, times):
                    rows = opened.read_row_group(number, [*BY_TIME], use_threads=False)
                    hlc = rows.column("hlc").to_numpy()
                    keys = picking.key_numbers(rows.column("key"))
                    keep = (keys >= 0) & (hlc >= times.low) & (hlc <= times.high)
                    newest.add(keys[keep], hlc[keep], len(places))
                    places.append((file.path, number))
        found: dict[str, list[int]] = {}
        for place in newest.places():
            path, number = places[place]
            found.setdefault(path, []).append(number)
        return found

    # ---- where rows come from

    def _chained(
        self,
        files: Iterable[DataFile],
        picking: RowFilter,
        times: HlcRange,
        groups: Groups | None = None,
    ) -> Iterator[pa.Table]:
        """Rows of files, one after another; none is opened before it is needed."""
        chosen = [one for one in files if picking.may_hold(one.low, one.high, times)]
        chosen.sort(key=lambda file: file.low.get("key") or "")
        return chain.from_iterable(
            self._file(one, picking, times, None if groups is None else groups[one.path])
            for one in chosen
        )

    def _file(
        self, file: DataFile, picking: RowFilter, times: HlcRange, groups: list[int] | None
    ) -> Iterator[pa.Table]:
        footer = self._footers.of(file.path)
        groups = _matching_groups(footer, picking, times, groups)
        if not groups:
            return
        with _open_file(file.path, footer) as opened:
            for batch in opened.iter_batches(
                footer.batch_rows, groups, columns=ROWS.names, use_threads=False
            ):
                rows = picking.pick(pa.Table.from_batches([batch]), times)
                if rows.num_rows:
                    yield reduce.conform(rows, ROWS)

    def _runs(
        self, tables: Iterable[pa.Table], order: tuple[str, ...], stack: ExitStack
    ) -> list[pa.Table]:
        """The rows in sorted runs, in memory or, if there are many, in files of their own."""
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
    footer: Footer, picking: RowFilter, times: HlcRange, among: list[int] | None = None
) -> list[int]:
    """The row groups that may have something."""
    numbers = range(len(footer.low)) if among is None else among
    return [one for one in numbers if picking.may_hold(footer.low[one], footer.high[one], times)]


def _last_hlc(file: DataFile) -> int:
    return int(file.high.get("hlc", HIGHEST))


def chain_files(files: Iterable[DataFile]) -> list[list[DataFile]]:
    """Files that can be read one after another, as the keys of each are behind those before."""
    found: list[list[DataFile]] = []
    ends: list[tuple[str, int]] = []
    for file in sorted(files, key=lambda one: str(one.low.get("key", ""))):
        first, last = file.low.get("key"), file.high.get("key")
        if first is None or last is None:  # it may have any key
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
    """`times` in pieces such that not too many files have to be open for each."""
    low = times.low
    if len(chain_files(files)) > MAX_STREAMS:
        starts = sorted(int(one.low.get("hlc", LOWEST)) for one in files)
        for start in starts[MAX_STREAMS::MAX_STREAMS]:
            if low < start <= times.high:
                yield HlcRange(low, start - 1)
                low = start
    yield HlcRange(low, times.high)


def _spill_run(run: pa.Table, path: Path, stack: ExitStack) -> pa.Table:
    """The same rows, in a file that is mapped."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, run.schema) as writer:
        writer.write_table(run, BATCH_ROWS)
    return pa.ipc.open_file(stack.enter_context(pa.memory_map(str(path)))).read_all()


# ---- rows in order


def _no_rows(_: "_Answer") -> Iterator[pa.Table]:
    return iter(())


def _merge_inputs(inputs: list[Iterator[pa.Table]], order: tuple[str, ...]) -> Iterator[pa.Table]:
    return inputs[0] if len(inputs) == 1 else merge_sorted(inputs, order)


def _restrict_times(rows: pa.Table, times: HlcRange) -> pa.Table:
    hlc = rows.column("hlc").to_numpy()
    return select_rows(rows, (hlc >= times.low) & (hlc <= times.high))


def _regroup(tables: Iterable[pa.Table], columns: tuple[str, ...]) -> Iterator[pa.Table]:
    """The same rows, cut only where one of these columns changes."""
    held: pa.Table | None = None
    for table in tables:
        if not table.num_rows:
            continue
        rows = table if held is None else pa.concat_tables([held, table])
        same = np.ones(rows.num_rows, np.bool_)
        for name in columns:
            column = rows.column(name)
            same &= pc.equal(column, column[-1]).to_numpy()
        others = np.flatnonzero(~same)
        cut = int(others[-1]) + 1 if len(others) else 0
        if not cut and rows.num_rows > MAX_TIES and "hlc" in columns:
            cut = rows.num_rows
        if cut:
            yield rows.slice(0, cut)
        held = rows.slice(cut) if cut < rows.num_rows else None
    if held is not None:
        yield held


def _limit_key_bytes(tables: Iterable[pa.Table], answer: "_Answer") -> Iterator[pa.Table]:
    """The same tables, sorted by key, as long as no key has too much."""
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


def drop_repeats(rows: pa.Table) -> pa.Table:
    """Rows sorted by key and time: those of the same time in their order, repeats left out.

    A repeat has the same key, time, clock and source; what has neither clock nor source is
    repeated if it stands at the same place of the log. The last one stays.
    """
    key, hlc = rows.column("key"), rows.column("hlc").to_numpy()
    count = rows.num_rows
    if count < 2 or not (hlc[1:] == hlc[:-1]).any():
        return rows
    same = (hlc[1:] == hlc[:-1]) & pc.equal(key.slice(1), key.slice(0, count - 1)).to_numpy()
    if not same.any():
        return rows
    ties = np.append(same, False) | np.append(False, same)
    stamp, source = rows.column("timestamp"), rows.column("source")
    clock = pc.struct_field(stamp, "id").fill_null("")
    nobody = pc.and_(stamp.is_null(), source.is_null())
    named = pa.table(
        {
            "key": key,
            "hlc": hlc,
            "clock": clock,
            "id": pc.struct_field(source, "id"),
            "entity": pc.struct_field(source, "entity"),
            "sn": pc.struct_field(source, "sn"),
            "partition": rows.column("partition"),
            "offset": rows.column("offset"),
        }
    )
    order = reduce.sort_rows(
        named.select(["key", "hlc", "clock", "partition", "offset"]).append_column(
            "row", pa.array(np.arange(count))
        ),
        ("key", "hlc", "clock", "partition", "offset"),
    )["row"].to_numpy()
    places = ("partition", "offset")
    for name in places:
        column = pc.if_else(nobody, named.column(name), None)
        named = named.set_column(named.schema.get_field_index(name), name, column)
    named = named.take(pa.array(order)).append_column("row", pa.array(np.arange(count)))
    some = named.filter(pa.array(ties[order]))
    last = some.group_by([one for one in some.column_names if one != "row"]).aggregate(
        [("row", "max")]
    )
    keep = ~ties[order]
    keep[last.column("row_max").to_numpy()] = True
    return rows.take(pa.array(order[keep]))


def take_last_per_key(rows: pa.Table, count: int) -> pa.Table:
    """Of rows sorted by key the last `count` of each."""
    if not rows.num_rows:
        return rows
    key = rows.column("key")
    last = np.append(pc.not_equal(key.slice(1), key.slice(0, len(key) - 1)).to_numpy(), True)
    ends = np.flatnonzero(last)
    left = ends[np.searchsorted(ends, np.arange(len(key)))] - np.arange(len(key))
    return select_rows(rows, left < count)


class NewestPerKey:
    """For each key the `count` highest times, and in which places rows with them are.

    >>> newest = NewestPerKey(2)
    >>> newest.add(np.array([0, 0, 0, 1]), np.array([5, 7, 7, 1]), 10)
    >>> newest.add(np.array([0, 1]), np.array([6, 2]), 11)
    >>> newest.places(), newest.floor().tolist()
    ([10, 11], [6, 1])
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._rows: list[tuple[_Ints, _Ints, _Ints]] = []
        self._size = self._folded = 0
        self._floor: _Ints = np.empty(0, np.int64)
        "The lowest of a key's highest times, as of the last fold; LOWEST: it has fewer."

    def add(self, keys: _Ints, times: _Ints, place: int) -> None:
        """Rows of a place: the numbers of their keys, and their times."""
        if not len(keys):
            return
        if len(self._floor) <= (most := int(keys.max())):
            more = np.full(most + 1 - len(self._floor), LOWEST, np.int64)
            self._floor = np.concatenate((self._floor, more))
        keep = times >= self._floor[keys]
        if len(keys) > 1 and self._count < len(keys):
            keep &= _mark_last(keys, times, self._count)
        keys, times = keys[keep], times[keep]
        if not len(keys):
            return
        self._rows.append((keys, times, np.full(len(keys), place, np.int64)))
        self._size += len(keys)
        if self._size > 2 * self._folded + FOLD_ROWS:
            self._fold()

    def _fold(self) -> None:
        if not self._rows:
            return
        keys, times, places = (
            np.concatenate([one[part] for one in self._rows]) for part in range(3)
        )
        order = np.lexsort((places, -times, keys))
        keys, times, places = keys[order], times[order], places[order]
        first = np.append(True, keys[1:] != keys[:-1])
        other = first | np.append(True, times[1:] != times[:-1])
        rank = np.cumsum(other)
        rank -= rank[np.flatnonzero(first)][np.cumsum(first) - 1]
        keep = rank < self._count
        once = other | np.append(True, places[1:] != places[:-1])
        full = keys[rank == self._count - 1]
        self._floor[full] = times[rank == self._count - 1]
        keep &= once
        self._rows = [(keys[keep], times[keep], places[keep])]
        self._size = self._folded = int(np.count_nonzero(keep))
        if self._size > MAX_NEWEST:
            raise ZError(
                f"_max={self._count} of {len(self._floor)} keys is more than {MAX_NEWEST} samples: "
                "ask for fewer keys, for fewer of each, or for all of a range of time"
            )

    def floor(self) -> _Ints:
        """For each key the time from which on its rows are among the newest."""
        self._fold()
        return self._floor

    def lowest(self) -> int:
        """The lowest time of all that are among the newest."""
        self._fold()
        return min((int(times.min()) for _, times, _ in self._rows if len(times)), default=LOWEST)

    def passes(self, end: int) -> bool:
        """Whether nothing at or before `end` can be among the newest of the first key."""
        return len(self.floor()) > 0 and int(self._floor[0]) > end

    def places(self) -> list[int]:
        """Where the newest rows are, without those places that are negative."""
        self._fold()
        found = {int(one) for _, _, places in self._rows for one in np.unique(places)}
        return sorted(one for one in found if one >= 0)

    def chosen(self, rows: pa.Table, picking: RowFilter) -> pa.Table:
        """Of some rows those that are among the newest of their key."""
        if not rows.num_rows:
            return rows
        keys = picking.key_numbers(rows.column("key").dictionary_encode())
        floor = np.append(self.floor(), LOWEST)[np.minimum(keys, len(self._floor))]
        return select_rows(rows, rows.column("hlc").to_numpy() >= floor)


def _mark_last(keys: _Ints, times: _Ints, count: int) -> npt.NDArray[np.bool_]:
    """Of rows sorted by key and time the last of each key; all, if they are not that simple."""
    ahead = keys[1:] == keys[:-1]
    if (ahead & (times[1:] <= times[:-1])).any():
        return np.ones(len(keys), np.bool_)
    ends = np.flatnonzero(np.append(~ahead, True))
    left = ends[np.searchsorted(ends, np.arange(len(keys)))] - np.arange(len(keys))
    found: npt.NDArray[np.bool_] = left < count
    return found


@dataclass
class _Answer:
    """How far an answer is, so that it can go on with other files."""

    picking: RowFilter
    newest: int | None = None
    low: int = LOWEST
    "Everything before was given out."
    until: int | None = None
    "Where the slice that is being given out ends."
    last: tuple[str, int] | None = None
    "The last key and time that were given out, of this slice."

    def slices(self, rest: Iterable[HlcRange]) -> Iterator[HlcRange]:
        """What is still to be given out, beginning with the rest of the slice that was begun."""
        pieces = list(rest)
        if self.until is not None:
            begun = HlcRange(self.low, self.until)
            later = [HlcRange(max(low, begun.high + 1), high) for low, high in pieces]
            pieces = [begun, *(one for one in later if one.low <= one.high)]
        for piece in pieces:
            self.low, self.until = piece
            yield piece
            self.low, self.until, self.last = piece.high + 1, None, None

    def new(self, rows: pa.Table) -> pa.Table:
        """Of the next rows those that were not given out; they count as given out now."""
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
