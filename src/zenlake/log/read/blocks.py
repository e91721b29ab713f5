"""Blocks of a log read from files, and gathered into pieces that are scanned together.

Knows CRCs, compression, and how to pass over blocks by their keys. Python runs for each run of
blocks, not for each block.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from zenlake.keyexpr import is_canonical
from zenlake.log import format as layout
from zenlake.log.files import read_at
from zenlake.log.format import (
    ALL_KEYS,
    BATCH_ENTRY,
    HEADER_BYTES,
    LOSS_ENTRY,
    Block,
    BlockHeader,
    DamagedLog,
    Entries,
    crc32,
    unpack_body,
)
from zenlake.log.kernels import blocks as kernel
from zenlake.log.read.index import BlockTable, Damage, headers
from zenlake.log.read.log import Log, OffsetOutOfRange
from zenlake.log.read.log_keys import LogKeys
from zenlake.log.read.spans import SampleSpan, SpanPiece, damage_of

SPAN_BYTES = 2 << 20  # Decompressed size of blocks that are read and scanned together.
PASS_BYTES = 64 << 10  # Size from which an uncompressed block may be passed over by its keys.
LITTLE_BYTES = 2 << 10  # Largest block whose CRC the kernel computes.

KeyFilter = Callable[[str], bool]
Losses = Literal[False, True, "only"]
Part = SpanPiece | Damage | Entries
"Samples, damage, or loss records, in the order of offsets."
_Places = npt.NDArray[np.int64]
_BAD_META = "a block contradicts itself"


class BlockReader:
    """Reader of blocks from the files of one partition."""

    def __init__(self, log: Log, partition: int, wanted: KeyFilter | None, losses: Losses) -> None:
        self._log, self._partition = log, partition
        self._only_losses = losses == "only"
        self._wanted, self._losses = None if self._only_losses else wanted, losses
        self._keys = LogKeys()

    def parts(self, table: BlockTable) -> Iterator[Part]:
        """Yield the samples, loss records and damage of the blocks in a table."""
        for run in _split_runs(table):
            yield from self._read_run(run)

    def _read_run(self, run: BlockTable) -> Iterator[Part]:
        """Yield the parts of blocks that are consecutive in a file."""
        found, good, unwanted = self._load(run)
        low = 0
        for at in np.flatnonzero(~good | unwanted).tolist():
            yield from self._good_parts(found.part(low, at))
            low = at + 1
            if not good[at]:
                reason = _reason(found.data, int(found.starts[at]))
                yield damage_of(self._partition, run[at], reason)
            elif self._losses and found.heads[at]["losses"]:
                yield found.part(at, low).losses()
        yield from self._good_parts(found.part(low, len(run)))

    def _load(
        self, run: BlockTable
    ) -> tuple["_GatheredBlocks", npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Read and decompress a run. Return its blocks, which are good, and which are unwanted."""
        data = self._read(run)
        starts = run["position"] - run["position"][0]
        there = int(np.searchsorted(starts + run["length"], len(data), "right"))
        good, unwanted = np.zeros(len(run), np.bool_), np.zeros(len(run), np.bool_)
        heads = headers(data, starts[:there])
        good[:there] = _good_blocks(run[:there], heads, data, starts[:there])
        if self._wanted is not None:
            large = (heads["codec"] > 0) | (heads["raw"] >= PASS_BYTES)
            listed = (heads["flags"] & ALL_KEYS > 0) & (heads["samples"] > 0)
            for at in np.flatnonzero(good[:there] & large & listed).tolist():
                unwanted[at] = self._is_unwanted(data, int(starts[at]))
        bodies: dict[int, memoryview] = {}
        packed = good[:there] & ~unwanted[:there] & (heads["codec"] > 0)
        for at in () if self._only_losses else np.flatnonzero(packed).tolist():
            try:
                bodies[at] = _unpack(heads[at], data, int(starts[at]))
            except DamagedLog:
                good[at] = False
        return _GatheredBlocks(run, heads, data, starts, bodies), good, unwanted

    def _good_parts(self, found: "_GatheredBlocks") -> Iterator[Part]:
        """Yield the loss records and the samples of good blocks."""
        if not len(found.blocks):
            return
        if self._losses and found.heads["losses"].any():
            yield found.losses()
        if not self._only_losses:
            yield from self._pieces(found)

    def _read(self, run: BlockTable) -> npt.NDArray[np.uint8]:
        path = self._log.segment(self._partition, int(run["segment"][0]))
        size = int(run["length"].sum(dtype=np.int64))
        try:
            with path.open("rb", buffering=0) as file:
                data = read_at(file.fileno(), size, int(run["position"][0]))
        except FileNotFoundError:
            first, end = int(run["base"][0]), int(run["base"][-1]) + int(run["samples"][-1])
            raise OffsetOutOfRange(
                f"offsets {first} to {end} of partition {self._partition} were removed while they "
                f"were read: {self._log.path} starts at {self._log.first(self._partition)} now"
            ) from None
        return np.frombuffer(data, np.uint8)

    def _is_unwanted(self, data: npt.NDArray[np.uint8], start: int) -> bool:
        """Return whether none of the keys that the block lists is wanted."""
        assert self._wanted is not None
        try:
            block = _block(data, start)
            texts = [key.text.decode() for key in block.keys()]  # noqa: SIM118 (not a dict)
        except (DamagedLog, UnicodeDecodeError):
            return False
        return not any(not is_canonical(text) or self._wanted(text) for text in texts)

    def _pieces(self, found: "_GatheredBlocks") -> Iterator[SpanPiece | Damage]:
        """Gather the blocks into as few pieces as possible: usually one.

        A piece ends before a damaged block, and where the table of keys is full.
        """
        plain = found.decompress()
        while len(plain.blocks):
            if self._keys.incomplete:
                self._keys = LogKeys()
            keys = self._keys
            was_fresh = keys.is_fresh
            piece, done, ended = self._gather(plain, keys)
            if piece is not None:
                yield piece
            never_fits = not done and was_fresh and ended != kernel.DONE
            if ended == kernel.DAMAGED or never_fits:
                yield damage_of(self._partition, plain.blocks[done], _BAD_META)
                done += 1
            elif ended != kernel.DONE:
                self._keys = LogKeys()
            plain = plain.after(done)

    def _gather(self, plain: "_PlainBlocks", keys: LogKeys) -> tuple[SpanPiece | None, int, int]:
        """Gather blocks from the first on. Return them, their number, and why the kernel ended."""
        blocks, counts = plain.blocks, plain.counts
        was_fresh, is_copied = keys.is_fresh, len(blocks) > 1
        body_bytes = int((plain.body_ends - plain.bodies).sum())
        entries = np.empty(int(counts[:, kernel.BATCHES].sum()), BATCH_ENTRY)
        out = np.empty(body_bytes if is_copied else 0, np.uint8)
        ends = np.zeros((len(blocks) + 1, 2), np.int64)
        done, ended = 0, kernel.PREFIXES_FULL
        while ended == kernel.PREFIXES_FULL:
            done, ended = kernel.blocks_kernel(
                plain.data,
                plain.starts,
                plain.bodies,
                plain.body_ends,
                counts,
                done,
                keys.tables,
                is_copied,
                entries.view(np.uint8),
                out,
                ends,
            )
            keys.note_new()
            if ended == kernel.PREFIXES_FULL and not keys.enlarge(
                int(counts[done, kernel.META]), must=was_fresh and not done
            ):
                break
        if not done:
            return None, done, ended
        batches, size = ends[done].tolist()
        body_end = int(plain.body_ends[0])
        data = out.data[:size] if is_copied else plain.data.data[body_end - size : body_end]
        span = SampleSpan(int(blocks["base"][0]), entries[:batches], data, keys)
        return SpanPiece(span, self._partition, blocks[:done], ends[: done + 1]), done, ended


class _GatheredBlocks(NamedTuple):
    """Good blocks that are consecutive in a buffer, with the bodies that had to be decompressed."""

    blocks: BlockTable
    heads: npt.NDArray[np.void]
    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    bodies: dict[int, memoryview]

    def part(self, low: int, high: int) -> "_GatheredBlocks":
        some = slice(low, high)
        bodies = {at - low: body for at, body in self.bodies.items() if low <= at < high}
        return _GatheredBlocks(
            self.blocks[some], self.heads[some], self.data, self.starts[some], bodies
        )

    def losses(self) -> Entries:
        """Return the loss records of all blocks."""
        found = []
        ends = self.starts + HEADER_BYTES + self.heads["meta"]
        for at in np.flatnonzero(self.heads["losses"]).tolist():
            size = int(self.heads[at]["losses"]) * LOSS_ENTRY.itemsize
            end = int(ends[at])
            found.append(np.frombuffer(self.data[end - size : end], LOSS_ENTRY))
        return np.concatenate(found)

    def decompress(self) -> "_PlainBlocks":
        """Return the blocks with their bodies decompressed. Nothing is copied if none has to be."""
        heads = self.heads
        counts = np.stack([heads[name].astype(np.int64) for name in _COUNTS], axis=1)
        metas = heads["meta"].astype(np.int64) + HEADER_BYTES
        if not self.bodies:
            starts, ends = self.starts, self.starts + heads["length"]
            return _PlainBlocks(self.blocks, self.data, starts, starts + metas, ends, counts)
        view, parts = self.data.data, list[Any]()
        for at, (start, meta, length) in enumerate(
            zip(self.starts.tolist(), metas.tolist(), heads["length"].tolist(), strict=True)
        ):
            parts.append(view[start : start + meta])
            body = self.bodies.get(at)
            parts.append(view[start + meta : start + length] if body is None else body)
        ends = np.cumsum(metas + heads["raw"])
        starts = ends - metas - heads["raw"]
        data = np.frombuffer(b"".join(parts), np.uint8)
        return _PlainBlocks(self.blocks, data, starts, starts + metas, ends, counts)


class _PlainBlocks(NamedTuple):
    """Uncompressed blocks in one buffer: where each starts, and where its body starts and ends."""

    blocks: BlockTable
    data: npt.NDArray[np.uint8]
    starts: _Places
    bodies: _Places
    body_ends: _Places
    counts: _Places
    "A row for each block, with the columns _COUNTS."

    def after(self, done: int) -> "_PlainBlocks":
        """Return the blocks without the first `done`."""
        return _PlainBlocks(
            self.blocks[done:],
            self.data,
            self.starts[done:],
            self.bodies[done:],
            self.body_ends[done:],
            self.counts[done:],
        )


# Header fields in the order of the kernel's columns.
_COUNTS = ("links", "keys", "losses", "batches", "samples", "meta")
_MAGIC = int.from_bytes(layout.BLOCK_MAGIC, "little")


def _block(data: npt.NDArray[np.uint8], start: int) -> Block:
    """Decode a block whose CRC has been checked."""
    return Block(BlockHeader.decode(data.data, start), data.data, start)


def _unpack(head: Any, data: npt.NDArray[np.uint8], start: int) -> memoryview:
    body = data.data[start + HEADER_BYTES + int(head["meta"]) : start + int(head["length"])]
    return unpack_body(int(head["codec"]), body, int(head["raw"]))


def _reason(data: npt.NDArray[np.uint8], start: int) -> str:
    """Return why there is no good block at `start`."""
    try:
        Block.decode(data.data, start).body()
    except DamagedLog as error:
        return str(error)
    return "a block is not the one that was here"


def _good_blocks(
    run: BlockTable,
    heads: npt.NDArray[np.void],
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Return which blocks have a correct CRC and a header that agrees with the index."""
    crcs = _crcs(data, starts, starts + run["length"])
    links, keys, losses, batches, samples, meta = (heads[name].astype(np.int64) for name in _COUNTS)
    body = heads["length"].astype(np.int64) - HEADER_BYTES - meta
    entries = links * kernel.LINK_BYTES + keys * kernel.KEY_BYTES + losses * kernel.LOSS_BYTES
    good: npt.NDArray[np.bool_] = (
        (crcs == heads["crc"])
        & (heads["length"] == run["length"])
        & (heads["base"] == run["base"].astype(np.uint64))
        & (samples == run["samples"])
        & (heads["magic"] == _MAGIC)
        & (heads["version"] == layout.VERSION)
        & (heads["codec"] < len(layout.CODECS))
        & (links <= layout.MAX_LINKS)
        & (body >= 0)
        & ((heads["codec"] > 0) | (body == heads["raw"]))
        & (heads["raw"] <= layout.MAX_BLOCK_BYTES)
        & (entries <= meta)
        & (batches * kernel.BATCH_BYTES <= heads["raw"])
    )
    return good


def _crcs(data: npt.NDArray[np.uint8], starts: _Places, ends: _Places) -> npt.NDArray[np.uint32]:
    """Compute the CRCs of blocks: of small ones in a kernel, as a call of crc32 costs more."""
    found = np.zeros(len(starts), np.uint32)
    kernel.crc_kernel(data, starts, ends, LITTLE_BYTES, kernel.CRC_TABLES, found)
    view = data.data
    for at in np.flatnonzero(ends - starts > LITTLE_BYTES).tolist():
        start, end = int(starts[at]), int(ends[at])
        crc = crc32(view[start : start + HEADER_BYTES - 4])
        found[at] = crc32(view[start + HEADER_BYTES : end], crc)
    return found


def _split_runs(table: BlockTable) -> Iterator[BlockTable]:
    """Split a table into runs of consecutive blocks, of at most SPAN_BYTES."""
    if not len(table):
        return
    before, after = table[:-1], table[1:]
    apart = (
        (before["segment"] != after["segment"])
        | (before["position"] + before["length"] != after["position"])
        | (before["base"] + before["samples"] != after["base"])
    )
    sizes = np.cumsum(np.maximum(table["raw"], table["length"]), dtype=np.int64)
    low = 0
    for stop in [*(np.flatnonzero(apart) + 1).tolist(), len(table)]:
        while low < stop:
            start = int(sizes[low - 1]) if low else 0
            high = int(np.searchsorted(sizes, start + SPAN_BYTES, "right"))
            high = min(max(high, low + 1), stop)
            yield table[low:high]
            low = high
