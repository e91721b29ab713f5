"""Rows of the scan to record batches.

Knows how rows become columns and how scopes become keys. Does not know where bytes come from: live
subscribers and recordings append here.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.columnar.kernels import gather as kernel
from zenlake.columnar.kernels.gather import Columns, Interner
from zenlake.columnar.schema import (
    CONGESTION_CONTROLS,
    KINDS,
    REPEATING,
    SAMPLE,
    SOURCE,
    TIMESTAMP,
    select_fields,
)
from zenlake.keyexpr import is_canonical
from zenlake.keytable import KeyTable
from zenlake.wire.encoding import type_and_schema
from zenlake.wire.framing import Framing
from zenlake.wire.kernels.row import ROW
from zenlake.wire.scan import Rows, Scanner, read_only_array

MAX_ROWS = 65_536
MAX_BYTES = 16 << 20
FIRST_BYTES = 64 << 10  # Initial room of a column of bytes, which doubles as needed.
FIRST_VALUES = 64
LIMIT = 1 << 29  # Arrow's offsets have 31 bits, which prefixes and suffixes together must fit.
MAX_TEXT_BYTES = 0xFFFF  # Bytes of the longest text of a sample, a suffix.
FEWEST_NEW_TEXTS = 64  # Texts accepted per call, however long their prefixes are.

MAX_DECISIONS = 1 << 16  # Keys whose decision is remembered from one batch to the next.

_EXTRA_SHIFT = 24  # Bits of a scope, and of the whole byte of a row's mapping.
_TEXT_PARTS = {
    "payload": kernel.WITH_PAYLOAD,
    "encoding": kernel.WITH_ENCODING,
    "schema": kernel.WITH_ENCODING,
    "timestamp": kernel.WITH_TIMESTAMP,
    "source": kernel.WITH_SOURCE,
    "attachment": kernel.WITH_ATTACHMENT,
}
OFFSET = pa.field("offset", pa.int64(), nullable=False)


class KeySource(Protocol):
    """Meaning of declared ids: a KeyTable, or the keys of a log."""

    @property
    def version(self) -> int: ...
    @property
    def longest(self) -> int: ...
    def prefix(self, number: int, /) -> bytes | None: ...


def _interner(values: int = FIRST_VALUES, size: int = FIRST_BYTES) -> Interner:
    return Interner(
        np.full(4 * values, -1, np.int32),
        np.zeros(2 * values + 1, np.int32),
        np.empty(size, np.uint8),
        np.empty(2 * values, np.int64),
        np.empty(2 * values, np.uint64),
        np.zeros(2, np.int64),
    )


def _enlarge(table: Interner) -> Interner:
    """Return a copy with twice the room, and at least for one more text of any length."""
    values, size = len(table.extras), 2 * len(table.values) + FIRST_BYTES
    bigger = _interner(values, size)
    count, used = int(table.used[0]), int(table.used[1])
    bigger.offsets[: count + 1] = table.offsets[: count + 1]
    bigger.extras[:count] = table.extras[:count]
    bigger.hashes[:count] = table.hashes[:count]
    bigger.values[:used] = table.values[:used]
    bigger.used[:] = table.used
    kernel.rehash(bigger)
    return bigger


def _columns(rows: int, payload: int, attachment: int) -> Columns:
    return Columns(
        key=np.zeros(rows, np.int32),
        encoding=np.zeros(rows, np.int32),
        clock=np.zeros(rows, np.int32),
        source=np.zeros(rows, np.int32),
        kind=np.zeros(rows, np.int8),
        priority=np.zeros(rows, np.int8),
        congestion=np.zeros(rows, np.int8),
        express=np.zeros(rows, np.uint8),
        reliable=np.zeros(rows, np.uint8),
        time=np.zeros(rows, np.uint64),
        entity=np.zeros(rows, np.uint32),
        source_sn=np.zeros(rows, np.uint32),
        received_at=np.zeros(rows, np.int64),
        offset=np.zeros(rows, np.int64),
        payload_offsets=np.zeros(rows + 1, np.int32),
        payload=np.empty(payload, np.uint8),
        attached=np.zeros(rows, np.uint8),
        attachment_offsets=np.zeros(rows + 1, np.int32),
        attachment=np.empty(attachment, np.uint8),
        used=np.zeros(3, np.int64),
    )


class SampleBatcher:
    """Builder of record batches from the samples among rows.

    `append` accepts samples up to `max_rows`, and up to `max_bytes` each of payloads, attachments
    and distinct texts; a batch may consist of one larger payload. `finish` returns the batch and
    starts the next. Bytes are copied: the buffer that the rows point into may be reused after
    `append`.

    Only `columns` are built, by default all of SAMPLE; `offset` may be among them. `wanted`
    selects samples by key, and is called once per key.
    """

    def __init__(
        self,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        *,
        columns: Sequence[str] | None = None,
        wanted: Callable[[str], bool] | None = None,
    ) -> None:
        if not 1 <= max_rows <= LIMIT or not 1 <= max_bytes <= LIMIT:
            raise ValueError(f"a batch holds 1 to {LIMIT} rows and bytes")
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.unresolved = 0
        "Samples left out because the id in their key is not declared."
        self.invalid = 0
        "Samples left out because their key is not a valid key expression."
        self.schema = SAMPLE
        if columns is not None:
            self.schema = pa.schema(select_fields([*SAMPLE, OFFSET], columns))
        self._parts = 0
        for name in self.schema.names:
            self._parts |= _TEXT_PARTS.get(name, 0)
        self._wanted = wanted
        self._decisions: dict[bytes, bool] = {}
        self._seed = np.uint64(secrets.randbits(64))
        self._text_bytes = max(max_bytes, 3 * MAX_TEXT_BYTES)  # room for the texts of one sample
        self._nothing: dict[pa.DataType, pa.Array] = {}
        "For each type, nulls for a whole batch: most columns of most batches are null."
        self._expected_bytes = FIRST_BYTES
        "Initial room for payloads: the bytes of the batch before."
        self._start()

    def _start(self) -> None:
        payload = min(self._expected_bytes, self.max_bytes)
        self._columns = _columns(self.max_rows, payload, min(FIRST_BYTES, self.max_bytes))
        self._forget_texts()

    def _forget_texts(self) -> None:
        self._texts = _interner()
        self._decided = np.zeros(len(self._texts.extras) if self._wanted else 0, np.int8)
        self._prefixes: list[bytes] = []
        self._prefix_of: list[npt.NDArray[np.int32]] = []
        self._key_bytes = 0
        "Bytes of the prefixes of all distinct keys, each in full."
        self._named = 0

    def __len__(self) -> int:
        return int(self._columns.used[0])

    def append(
        self,
        rows: Rows,
        data: bytes | memoryview,
        keys: KeySource,
        received_at: int | npt.NDArray[np.int64] | None = None,
        first: int = 0,
        *,
        checked: bool = False,
        offsets: npt.NDArray[np.int64] | None = None,
    ) -> int:
        """Append the samples among rows[first:] and return the next row to append.

        If that is less than len(rows), the batch is full: `finish` it and go on from there.
        `received_at` is in nanoseconds since the epoch, one for all or one for each batch.
        `offsets`: one for each row. `checked`: the rows are known to be those of `data`, and
        there is one time at most, or one for each batch.
        """
        buf = read_only_array(data)
        times = _NO_TIMES if received_at is None else np.atleast_1d(received_at) // 1000
        if not checked:
            if len(rows) and rows["end"].max() > len(buf):
                raise ValueError("these rows were scanned from another, longer buffer")
            if len(times) != 1 and len(rows) and rows["batch"].max() >= len(times):
                raise ValueError(f"{len(times)} times are not one for each batch")
            if offsets is not None and len(offsets) != len(rows):
                raise ValueError(f"{len(offsets)} offsets are not one for each of {len(rows)} rows")
        numbers = _NO_OFFSETS if offsets is None else offsets
        extra = keys.version << _EXTRA_SHIFT
        while True:
            first, full = kernel.append_kernel(
                rows,
                first,
                buf,
                times,
                numbers,
                extra,
                self._seed,
                self._text_limit(keys),
                self._text_bytes,
                self._parts,
                self._decided,
                self._columns,
                self._texts,
            )
            self._name_new_keys(keys)
            if full == kernel.NOTHING_FULL or not self._make_room(full, rows, first):
                break
        return first

    def _text_limit(self, keys: KeySource) -> int:
        """Return how many texts may be interned before the keys' full length is checked again.

        A prefix may have 64 KiB, and a thousand short suffixes may follow it.
        """
        room = (self.max_bytes - self._key_bytes) // (keys.longest + 1)
        return int(self._texts.used[0]) + max(room, FEWEST_NEW_TEXTS)

    def _make_room(self, full: int, rows: Rows, number: int) -> bool:
        """Enlarge the array that was full; False if the batch may not grow any more."""
        if full == kernel.ROWS_FULL:
            return False
        if full == kernel.UNDECIDED:
            return True  # _name_new_keys has decided meanwhile
        if full == kernel.TEXTS_FULL:
            return self._make_text_room()
        name = "payload" if full == kernel.PAYLOAD_FULL else "attachment"
        used = int(self._columns.used[full - kernel.PAYLOAD_FULL + 1])
        needed = used + int(rows[number][f"{name}_len"])
        if needed > self.max_bytes and len(self):
            return False
        columns = self._columns
        old = columns.payload if full == kernel.PAYLOAD_FULL else columns.attachment
        bigger = np.empty(max(needed, min(2 * len(old), self.max_bytes)), np.uint8)
        bigger[:used] = old[:used]
        if full == kernel.PAYLOAD_FULL:
            self._columns = columns._replace(payload=bigger)
        else:
            self._columns = columns._replace(attachment=bigger)
        return True

    def _make_text_room(self) -> bool:
        used = int(self._texts.used[1]) + MAX_TEXT_BYTES
        if self._key_bytes > self.max_bytes or used > self._text_bytes:
            if len(self):
                return False
            if self._wanted:  # all texts are keys of samples that are not wanted
                self._forget_texts()
                return True
        if used > len(self._texts.values) or _is_crowded(self._texts):
            self._texts = _enlarge(self._texts)
            if self._wanted:
                more = np.zeros(len(self._texts.extras) - len(self._decided), np.int8)
                self._decided = np.concatenate((self._decided, more))
        return True

    def _name_new_keys(self, keys: KeySource) -> None:
        """Note the prefixes of newly interned keys, before their ids change meaning."""
        count = int(self._texts.used[0])
        if count == self._named:
            return
        extras = self._texts.extras[self._named : count]
        numbers = extras & ((1 << _EXTRA_SHIFT) - 1)
        numbers[extras >> kernel.WHAT_SHIFT != kernel.KEY_TEXT] = 0  # no prefix, as of a full key
        distinct, inverse = np.unique(numbers, return_inverse=True)
        places = np.empty(len(distinct), np.int32)
        for i, number in enumerate(distinct.tolist()):
            prefix = keys.prefix(number)
            places[i] = NONE if prefix is None else len(self._prefixes)
            if prefix is not None:
                self._prefixes.append(prefix)
        self._prefix_of.append(places[inverse])
        lengths = np.array([len(keys.prefix(number) or b"") for number in distinct.tolist()])
        self._key_bytes += int(lengths[inverse].sum())
        if self._wanted:
            self._decide(
                self._wanted, np.flatnonzero(extras >> kernel.WHAT_SHIFT == 0), places[inverse]
            )
        self._named = count

    def _decide(
        self,
        wanted: Callable[[str], bool],
        new: npt.NDArray[np.int64],
        places: npt.NDArray[np.int32],
    ) -> None:
        """Decide about the keys among the new texts; invalid keys are wanted, to be counted."""
        if len(self._decisions) > MAX_DECISIONS:
            self._decisions.clear()
        for number in new.tolist():
            place = int(places[number])
            code = self._named + number
            key = self._prefixes[place] + self._text(code) if place >= 0 else b""
            chosen = self._decisions.get(key)
            if chosen is None:
                text = key.decode(errors="replace")
                chosen = self._decisions[key] = not is_canonical(text) or wanted(text)
            self._decided[code] = kernel.WANTED if chosen else kernel.UNWANTED

    def finish(self) -> pa.RecordBatch:
        """Return the batch so far, possibly empty, and start the next."""
        try:
            return self._build()
        finally:
            self._expected_bytes = max(FIRST_BYTES, int(self._columns.used[1]))
            self._start()

    def _build(self) -> pa.RecordBatch:
        c, n = self._columns, len(self)
        what = self._texts.extras[: int(self._texts.used[0])] >> kernel.WHAT_SHIFT
        texts = {number: np.flatnonzero(what == number) for number in range(4)}
        if self._wanted:
            chosen = self._decided[texts[kernel.KEY_TEXT]] == kernel.WANTED
            texts[kernel.KEY_TEXT] = texts[kernel.KEY_TEXT][chosen]
        keys, good = self._keys(c.key[:n], texts[kernel.KEY_TEXT])
        built: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: keys,
            "kind": lambda: _dictionary(c.kind[:n], pa.array(KINDS)),
            "payload": lambda: self._binary(c.payload_offsets, c.payload, c.kind[:n] == 0),
            "encoding": lambda: self._encodings(c.encoding[:n], texts[kernel.ENCODING_TEXT], 0),
            "schema": lambda: self._encodings(c.encoding[:n], texts[kernel.ENCODING_TEXT], 1),
            "timestamp": lambda: self._struct(
                TIMESTAMP, texts[kernel.CLOCK_TEXT], c.clock[:n], time=c.time[:n]
            ),
            "source": lambda: self._struct(
                SOURCE,
                texts[kernel.SOURCE_TEXT],
                c.source[:n],
                entity=c.entity[:n],
                sn=c.source_sn[:n],
            ),
            "attachment": lambda: self._binary(c.attachment_offsets, c.attachment, c.attached[:n]),
            "priority": lambda: pa.array(c.priority[:n]),
            "congestion_control": lambda: _dictionary(
                c.congestion[:n], pa.array(CONGESTION_CONTROLS)
            ),
            "express": lambda: _booleans(c.express[:n]),
            "reliable": lambda: _booleans(c.reliable[:n]),
            "received_at": lambda: _times(c.received_at[:n]),
            "offset": lambda: pa.array(c.offset[:n]),
        }
        arrays = [built[name]() for name in self.schema.names]
        if arrays:
            batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        else:  # A selection of no column keeps the number of rows.
            batch = pa.record_batch({"row": pa.nulls(n)}).select([])
        return batch if good is None else batch.filter(pa.array(good))

    def _keys(
        self, codes: npt.NDArray[np.int32], numbers: npt.NDArray[np.int64]
    ) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
        """Return the key column if it is wanted, and which rows have a valid key (None: all).

        Counts the other rows.
        """
        texts = self._texts
        count = int(texts.used[0])
        prefix_of = np.concatenate([*self._prefix_of, np.empty(0, np.int32)])
        unknown = prefix_of < 0
        prefix_of = np.where(unknown, len(self._prefixes), prefix_of)[numbers]
        prefixes = pa.array([*self._prefixes, b""], pa.binary())  # the last is of undeclared ids
        buffers = [None, pa.py_buffer(texts.offsets), pa.py_buffer(texts.values)]
        spelled = pa.Array.from_buffers(pa.binary(), count, buffers).take(pa.array(numbers))
        if any(self._prefixes):
            spelled = pc.binary_join_element_wise(prefixes.take(pa.array(prefix_of)), spelled, b"")
        # Two ids may stand for one key: a dictionary must not have it twice.
        distinct = spelled.cast(pa.string()).dictionary_encode()
        places = np.zeros(count, np.int32)
        places[numbers] = distinct.indices.to_numpy(zero_copy_only=False)
        bad = _bad_keys(distinct.dictionary)[places] & ~unknown if len(numbers) else unknown
        self.unresolved += int(unknown[codes].sum()) if unknown.any() else 0
        self.invalid += int(bad[codes].sum()) if bad.any() else 0
        good = ~(unknown | bad)
        column = None
        if "key" in self.schema.names:
            column = _dictionary(places[codes], distinct.dictionary)
        return column, None if good.all() else good[codes]

    def _encodings(
        self, codes: npt.NDArray[np.int32], numbers: npt.NDArray[np.int64], part: int
    ) -> pa.Array:
        """Return the types (part 0) or schemas (1); a custom encoding has both in its schema."""
        texts = _TextNumbering()
        text_of = np.zeros(int(self._texts.used[0]), np.int32)
        for number in numbers.tolist():
            extra = int(self._texts.extras[number]) & ((1 << kernel.WHAT_SHIFT) - 1)
            raw = self._text(number) if extra & 1 else None
            text = type_and_schema(extra >> 1, raw)[part]
            text_of[number] = NONE if text is None else texts[text]
        if not texts:
            return self._nulls(len(codes), REPEATING)
        found = text_of[codes]
        return _dictionary(found, texts.array(), found >= 0)

    def _struct(
        self,
        kind: pa.DataType,
        numbers: npt.NDArray[np.int64],
        codes: npt.NDArray[np.int32],
        **columns: Any,
    ) -> pa.Array:
        """Return a struct of a Zenoh id (code - 1) and `columns`; null where the code is 0."""
        if not len(numbers):
            return self._nulls(len(codes), kind)
        texts = _TextNumbering()
        id_of = np.zeros(
            int(self._texts.used[0]) + 1, np.int32
        )  # the fields under a null are not nullable
        for number in numbers.tolist():
            id_of[number + 1] = texts[f"{int.from_bytes(self._text(number), 'little'):x}"]
        children = {"id": _dictionary(id_of[codes], texts.array())}
        children |= {field: pa.array(values) for field, values in columns.items()}
        return pa.Array.from_buffers(
            kind, len(codes), [_bitmap(codes)], children=[children[field.name] for field in kind]
        )

    def _binary(
        self,
        offsets: npt.NDArray[np.int32],
        data: npt.NDArray[np.uint8],
        valid: npt.NDArray[Any],
    ) -> pa.Array:
        n = len(valid)
        if not valid.any():
            return self._nulls(n, pa.binary())
        return pa.Array.from_buffers(
            pa.binary(), n, [_bitmap(valid), pa.py_buffer(offsets[: n + 1]), pa.py_buffer(data)]
        )

    def _nulls(self, n: int, kind: pa.DataType) -> pa.Array:
        if kind not in self._nothing:
            self._nothing[kind] = pa.nulls(self.max_rows, kind)
        return self._nothing[kind].slice(0, n)

    def _text(self, number: int) -> bytes:
        start, end = self._texts.offsets[number : number + 2].tolist()
        return self._texts.values[start:end].tobytes()


def _is_crowded(table: Interner) -> bool:
    return 2 * (int(table.used[0]) + 1) > len(table.slots)


# Keys that need a closer look; nearly none matches.
_SUSPECT = r"^$|^/|/$|//|[*$#?]"


def _bad_keys(keys: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which of the texts are not key expressions in canonical form."""
    suspect = pc.match_substring_regex(keys, _SUSPECT).to_numpy(zero_copy_only=False).copy()
    for number in np.flatnonzero(suspect).tolist():
        suspect[number] = not is_canonical(keys[number].as_py())
    bad: npt.NDArray[np.bool_] = suspect
    return bad


class _TextNumbering(dict[str, int]):
    """Numbers of texts, from 0 in the order of their first lookup."""

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        return number

    def array(self) -> pa.Array:
        return pa.array(list(self), pa.string())


NONE = -1
NO_TIME = np.iinfo(np.int64).min
_NO_TIMES = np.array([NO_TIME])
_NO_OFFSETS = np.zeros(0, np.int64)


def _bitmap(valid: npt.NDArray[Any]) -> pa.Buffer | None:
    """Return Arrow's validity: one bit per value; None if all are true."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid != 0, bitorder="little"))


def _booleans(values: npt.NDArray[np.uint8]) -> pa.Array:
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])


def _dictionary(
    codes: npt.NDArray[Any], values: pa.Array, valid: npt.NDArray[np.bool_] | None = None
) -> pa.DictionaryArray:
    kind = pa.int8() if codes.dtype == np.int8 else pa.int32()
    bits = None if valid is None else _bitmap(valid)
    indices = pa.Array.from_buffers(kind, len(codes), [bits, pa.py_buffer(codes)])
    return pa.DictionaryArray.from_arrays(indices, values, safe=False)


def _times(micros: npt.NDArray[np.int64]) -> pa.Array:
    valid = _bitmap(micros != NO_TIME)
    return pa.Array.from_buffers(
        pa.timestamp("us", "UTC"), len(micros), [valid, pa.py_buffer(micros)]
    )


_loaded = False


def load() -> None:
    """Compile the kernel that appends rows, or load it from its cache; once per process.

    For a thread that may wait: compiling takes seconds.
    """
    global _loaded
    if not _loaded:
        SampleBatcher(1).append(np.zeros(0, ROW), b"", KeyTable(), 0)
        _loaded = True


def record_batches(
    data: bytes,
    keys: KeyTable,
    framing: Framing = Framing.STREAM,
    *,
    received_at: int | None = None,
    batcher: SampleBatcher | None = None,
    scanner: Scanner | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the samples of a buffer of framed batches, as record batches in the schema SAMPLE.

    Raises DecodeError after the last good batch if bytes do not decode.
    """
    if batcher is None:
        batcher = SampleBatcher()
    error = None
    for part in (scanner or Scanner()).chunks(data, framing):
        first, error = 0, part.error
        while (first := batcher.append(part.rows, data, keys, received_at, first)) < len(part.rows):
            yield batcher.finish()
    if len(batcher):
        yield batcher.finish()
    if error is not None:
        raise error
