"""The tables `messages` and `messages_failed`, made again by the decoders that lake.toml has now.

Knows which files a commit replaces and counts the changes. Works beside a running lake: one commit
per table, and the rows that a flow appends meanwhile stay.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from zenlake.columnar.conform import conform
from zenlake.errors import ZError
from zenlake.lake.decoders import Decoders
from zenlake.lake.decoders.messages import OUTPUT, MessageDecoder, encode_rules
from zenlake.lake.project import Project
from zenlake.lake.reprocess.extent import (
    Candidates,
    Extent,
    SourceName,
    find_candidates,
    find_checkpoint,
    flow_ends,
    oldest_kept,
    plan_extent,
)
from zenlake.lake.reprocess.sources import PIECE_BYTES, SampleReader
from zenlake.lake.tables import maintenance
from zenlake.lake.tables.commit import MAX_REPEATS
from zenlake.lake.tables.compaction import discard_files, read_pieces
from zenlake.lake.tables.definitions import DECODED, MESSAGES, MESSAGES_FAILED, SAMPLES, TABLES
from zenlake.lake.tables.delta import (
    OFFSET_APP,
    AddedFile,
    CommitConflict,
    DataFile,
    DeltaStore,
    StoreError,
)
from zenlake.lake.tables.projections import TableWriter
from zenlake.quantities import counted

WAIT_SECONDS = 60.0  # Longest wait for maintenance by another process.
MAX_REASONS = 1000  # Upper bound on the reasons that are counted by themselves.
OTHER_REASONS = "other reasons"
STAGING = "reprocess"  # Name of the staging folder; appended tables stage nothing.

_PLACE = ["key", "partition", "offset", "received_at", "decoder"]

Progress = Callable[[int, int], object]


# ---- results


class TableChange(NamedTuple):
    """Rows of a table that are made again, and rows that stay."""

    before: int = 0
    "Rows that were there for the samples that are decoded again."
    after: int = 0
    "Rows that these samples give now."
    older: int = 0
    "Rows of samples that the source no longer has; they stay."
    newer: int = 0
    "Rows that the flow appended while the reprocessing began; they stay."


@dataclass
class Counts:
    """Rows by their decoder and table, and failures by their reason."""

    decoders: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, table: str, rows: pa.Table) -> None:
        for name, count in count_values(rows["decoder"]):
            self.decoders[name or "", table] += count
        if table == MESSAGES_FAILED.name:
            for reason, count in count_values(rows["reason"]):
                known = reason in self.reasons or len(self.reasons) < MAX_REASONS
                self.reasons[reason or "" if known else OTHER_REASONS] += count

    def rows(self, table: str) -> int:
        return sum(count for (_, name), count in self.decoders.items() if name == table)


class ReprocessResult(NamedTuple):
    """Result of a reprocessing, or of its dry run."""

    source: SourceName
    tables: dict[str, TableChange]
    before: Counts
    after: Counts
    samples: int
    "Puts that were decoded, or have no decoder."


def count_values(column: pa.ChunkedArray) -> Iterator[tuple[Any, int]]:
    """Yield the distinct values of a column and how often each is there.

    >>> list(count_values(pa.chunked_array([["a", "b", "a"]])))
    [('a', 2), ('b', 1)]
    """
    for pair in pc.value_counts(column):
        yield pair["values"].as_py(), pair["counts"].as_py()


# ---- reprocessing


def check_table(name: str) -> None:
    """Raise ZError unless a table can be decoded again."""
    if name == MESSAGES_FAILED.name:
        raise ZError("messages_failed is made together with messages: name that")
    if name != MESSAGES.name:
        kind = "not decoded" if name in TABLES else "a table of your own, or there is none"
        raise ZError(
            f"{name}: only messages is decoded again by lake.toml; this table is {kind}: "
            f"`zenlake lake reset` makes the tables of a flow again from the log"
        )


def reprocess(
    project: Project,
    source: SourceName | None = None,
    *,
    dry_run: bool = False,
    wait: float = WAIT_SECONDS,
    on_source: Callable[[Candidates, SourceName], object] = lambda found, source: None,
    on_progress: Progress = lambda done, total: None,
) -> ReprocessResult:
    """Make `messages` and `messages_failed` again by the present [[decoders]].

    `source` is "samples", "log", or None for the one that goes back further. A dry run counts and
    writes nothing. ZError: a rule cannot work, or the source lacks samples; nothing is changed.
    """
    Decoders(project.decoders, project.home).check()
    with maintenance.maintaining_alone(project, wait):
        checkpoint = find_checkpoint(project)  # Before the snapshots: see flow_ends.
        stores = _open_decoded(project)
        samples = DeltaStore(project.table(SAMPLES.name), SAMPLES)
        found = find_candidates(project, samples, checkpoint)
        ends = flow_ends(checkpoint, list(stores.values()), found.log)
        if not any(ends.values()):
            raise ZError(
                "the flow `messages` has taken no sample yet: `zenlake lake run` decodes them all "
                "by the present rules"
            )
        chosen = source or found.choose()
        on_source(found, chosen)
        oldest = oldest_kept(project, [samples, *stores.values()])
        extent = plan_extent(project, found, chosen, ends, oldest)
        reader = SampleReader(project, extent, samples, found.log)
        return _Reprocessing(project, reader, stores, on_progress).run(dry_run)


def _open_decoded(project: Project) -> dict[str, DeltaStore]:
    """Open the tables that the flow writes: the existing ones, or both if there is none."""
    stores = {name: DeltaStore(project.table(name), TABLES[name]) for name in DECODED}
    present = {name: store for name, store in stores.items() if store.snapshot().version >= 0}
    return present or stores


class _Reprocessing:
    """One run: looks at the old rows, decodes samples, and replaces files."""

    def __init__(
        self,
        project: Project,
        reader: SampleReader,
        stores: Mapping[str, DeltaStore],
        on_progress: Progress,
    ) -> None:
        self._decoder = MessageDecoder.load(encode_rules(project.decoders), str(project.home))
        self._reader, self._stores = reader, stores
        self._extent: Extent = reader.extent
        self._on_progress = on_progress
        self._changes = dict.fromkeys(stores, TableChange())
        self._before, self._after = Counts(), Counts()
        self._removed: dict[str, list[DataFile]] = {name: [] for name in stores}
        self._split: dict[str, list[DataFile]] = {name: [] for name in stores}
        "Files of which a part of the rows stays."
        self._missing: dict[str, Counter[str]] = {name: Counter() for name in stores}
        "By table and key: rows that are replaced, minus samples that were read."
        self._samples = 0

    def run(self, dry_run: bool) -> ReprocessResult:
        for name, store in self._stores.items():
            for file in store.current.files:
                self._look_at(name, file)
        if dry_run:
            for _ in self._decoded():
                pass
        else:
            self._replace()
        tables = {
            name: change._replace(after=self._after.rows(name))
            for name, change in self._changes.items()
        }
        return ReprocessResult(
            self._extent.source, tables, self._before, self._after, self._samples
        )

    # ---- the old rows

    def _look_at(self, name: str, file: DataFile) -> None:
        """Count the old rows of a file, and note whether a commit replaces it."""
        store, change = self._stores[name], self._changes[name]
        columns = [*_PLACE, *["reason"] * (name == MESSAGES_FAILED.name)]
        covered = older = count = 0
        with closing(read_pieces(store, file, PIECE_BYTES, columns)) as pieces:
            for rows in pieces:
                mask = self._extent.covers(rows)
                replaced = rows.filter(pa.array(mask))
                self._before.add(name, replaced)
                self._missing[name].update(dict(count_values(replaced["key"])))
                count += rows.num_rows
                covered += replaced.num_rows
                older += int((self._extent.is_older(rows) & ~mask).sum())
        if covered:
            (self._removed if covered == count else self._split)[name].append(file)
        if older and self._reader.keeps(file):
            self._keep_rows(store, file)
        self._changes[name] = change._replace(
            before=change.before + covered,
            older=change.older + older,
            newer=change.newer + count - covered - older,
        )

    def _keep_rows(self, store: DeltaStore, file: DataFile) -> None:
        columns = ["partition", "offset", "received_at", "source"]
        with closing(read_pieces(store, file, PIECE_BYTES, columns)) as pieces:
            for rows in pieces:
                stays = self._extent.is_older(rows) & ~self._extent.covers(rows)
                self._reader.keep(rows.filter(pa.array(stays)))

    # ---- the new rows

    def _decoded(self) -> Iterator[pa.Table]:
        """Yield the decoded rows of all samples, and check at the end that none was missing."""
        for samples in self._reader:
            keys = dict(count_values(samples["key"]))
            for missing in self._missing.values():
                missing.subtract(keys)
            self._samples += samples.num_rows
            decoded = self._decoder.decode(samples)
            names = decoded.select(["decoder", "reason"])
            for name in self._stores:
                select = pc.is_valid if name == MESSAGES_FAILED.name else pc.is_null
                self._after.add(name, names.filter(select(names["reason"])))
            yield decoded
            self._on_progress(self._reader.read, self._reader.total)
        self._check_complete()

    def _check_complete(self) -> None:
        """Raise ZError if rows would be replaced whose samples the source does not have.

        By table, because a sample is in both after a kill between their commits.
        """
        for name, counts in self._missing.items():
            missing = {key: count for key, count in counts.items() if count > 0}
            if missing:
                key, count = next(iter(missing.items()))
                source = self._extent.source
                other = "log" if source == "samples" else "samples"
                raise ZError(
                    f"{source} lacks {counted(sum(missing.values()), 'sample')} of {name} "
                    f"({count:,} of key {key!r}): nothing was changed. Does a flow leave samples "
                    f"out? Use --from {other}, or `zenlake lake reset`"
                )

    def _replace(self) -> None:
        """Write the new rows, and the old rows that share a file with replaced ones; commit."""
        writer = TableWriter(self._stores, STAGING)
        rest: dict[str, list[AddedFile]] = {name: [] for name in self._stores}
        try:
            for decoded in self._decoded():
                for batch in decoded.to_batches():
                    writer.add(conform(batch, OUTPUT))
            written = writer.finish().added
            for name, store in self._stores.items():
                for file in self._split[name]:
                    rest[name].append(self._write_rest(store, file))
            self._commit({name: [*written.get(name, ()), *rest[name]] for name in rest})
        except BaseException:
            for name, store in self._stores.items():
                discard_files(store, [*writer.output.added.get(name, ()), *rest[name]])
            raise

    def _write_rest(self, store: DeltaStore, file: DataFile) -> AddedFile:
        """Write the rows of a file that stay to a file of their own."""
        partition = next(iter(file.partition.values()), None)
        with (
            closing(read_pieces(store, file, PIECE_BYTES)) as pieces,
            store.writer(partition) as rest,
        ):
            for rows in pieces:
                rest.write(rows.filter(pa.array(~self._extent.covers(rows))))
        return rest.added

    def _commit(self, added: Mapping[str, list[AddedFile]]) -> None:
        """Replace the files of each table in one commit.

        `messages` is first: a kill in between leaves samples in both tables rather than in none.
        """
        removed = {name: [*self._removed[name], *self._split[name]] for name in self._stores}
        for name, store in self._stores.items():  # Before the first commit: all, or none.
            present = {file.path for file in store.snapshot().files}
            if any(file.path not in present for file in removed[name]):
                raise _conflict(store)
        ends = self._extent.ends
        is_new = {name: not store.offsets() for name, store in self._stores.items()}
        for name, store in self._stores.items():
            if not is_new[name]:
                _record_ends(store, ends)
        for name, store in self._stores.items():
            if added[name] or removed[name] or is_new[name]:
                try:
                    transactions = _offsets_as_transactions(ends) if is_new[name] else None
                    store.commit(added[name], removed[name], transactions)
                except CommitConflict:
                    raise _conflict(store) from None


def _record_ends(store: DeltaStore, ends: Mapping[int, int]) -> None:
    """Record the offsets up to which rows are made again, so that no flow makes them once more.

    A table may have recorded less: without rows the query of the built-in tables records offsets
    once per minute. Comes before the rows: a kill in between leaves the old rows, and is repaired
    by the next reprocessing.
    """
    for _ in range(MAX_REPEATS):
        store.snapshot()
        present = store.offsets()
        later = {number: end for number, end in ends.items() if end > present.get(number, 0)}
        if not later:
            return
        with suppress(CommitConflict):
            store.commit(transactions=_offsets_as_transactions(later))
            return
    raise _conflict(store)


def _offsets_as_transactions(ends: Mapping[int, int]) -> dict[str, int]:
    return {f"{OFFSET_APP}{number}": end for number, end in ends.items()}


def _conflict(store: DeltaStore) -> StoreError:
    return StoreError(
        f"{store.path}: another process changed it meanwhile, so its rows were not replaced: "
        "start again"
    )
