"""Export: writes record batches of a log to a Parquet, Arrow or MCAP file.

Knows the three formats and how a Zenoh encoding is named in MCAP. Does not know where the record
batches come from.
"""

import json
import os
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.columnar.conform import conform, plain_schema
from zenlake.columnar.schema import SAMPLE
from zenlake.errors import ZError
from zenlake.quantities import NANOS

ROW_GROUP_ROWS = 1 << 18
ROW_GROUP_BYTES = 64 << 20  # Size in memory, before Parquet compresses it.
MCAP_CHUNK_BYTES = 4 << 20
MAX_CHANNELS = 65_535  # MCAP numbers channels with 16 bits.
MICROSECOND = 1000  # Nanoseconds of a microsecond.
U32 = (1 << 32) - 1

SCHEMA: pa.Schema = pa.schema(
    [*SAMPLE, pa.field("partition", pa.int32()), pa.field("offset", pa.int64())]
)
"Schema of a log's record batches without losses."


class Exported(NamedTuple):
    """The result of an export."""

    rows: int
    "Number of samples and loss records in the file."
    bytes: int
    "Size of the file."
    attachments_left_out: int
    "Number of attachments left out: MCAP cannot hold them."


class _Format(Protocol):
    """Writer of one file format."""

    attachments_left_out: int

    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


def export(
    batches: Iterable[pa.RecordBatch],
    file: Path | str,
    *,
    schema: pa.Schema = SCHEMA,
    overwrite: bool = False,
    on_rows: Callable[[int], None] | None = None,
) -> Exported:
    """Write all batches to `file`, in the format that its suffix names.

    The file appears when it is complete. `schema` is used if there is no batch at all; `on_rows`
    is called with the number of rows of each batch.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     export([], f"{folder}/empty.parquet").rows
    0
    """
    file = Path(file)
    make_writer = FORMATS.get(file.suffix.lower())
    if make_writer is None:
        raise ZError(f"{file}: name a file that ends with {', '.join(FORMATS)}")
    if file.exists() and not overwrite:
        raise ZError(f"{file} exists already: name another file, or allow to overwrite it")
    unfinished = file.with_name(f".{file.name}.part")
    try:
        with unfinished.open("wb") as stream:
            remaining = iter(batches)
            first = next(remaining, None)
            head = [] if first is None else [first]
            with closing(make_writer(stream, schema if first is None else first.schema)) as writer:
                rows = _write_all(writer, chain(head, remaining), on_rows)
            stream.flush()
            os.fsync(stream.fileno())
            size = stream.tell()
        unfinished.replace(file)
    except OSError as error:
        raise ZError(f"{file} cannot be written: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return Exported(rows, size, writer.attachments_left_out)


def _write_all(
    writer: "_Format",
    batches: Iterable[pa.RecordBatch],
    on_rows: Callable[[int], None] | None,
) -> int:
    """Write the batches, and return their number of rows."""
    rows = 0
    for batch in batches:
        writer.write(batch)
        rows += batch.num_rows
        if on_rows is not None:
            on_rows(batch.num_rows)
    return rows


# ---- Parquet and Arrow, without dictionaries: few readers support those within structs


class _Parquet:
    """Writer of a Parquet file, compressed with Zstandard."""

    attachments_left_out = 0

    def __init__(self, stream: Any, schema: pa.Schema) -> None:
        from pyarrow import parquet

        self._schema = plain_schema(schema)
        self._writer = parquet.ParquetWriter(stream, self._schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        batch = conform(batch, self._schema)
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._waiting), self._rows)
        self._waiting = []
        self._rows = self._bytes = 0

    def close(self) -> None:
        try:
            self._flush()
            self._writer.close()
        finally:
            self._writer.is_open = False  # Keeps its destructor from closing it again.


class _Arrow:
    """Writer of an Arrow IPC file, compressed with Zstandard."""

    attachments_left_out = 0

    def __init__(self, stream: Any, schema: pa.Schema) -> None:
        self._schema = plain_schema(schema)
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._writer = pa.ipc.new_file(stream, self._schema, options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(conform(batch, self._schema))

    def close(self) -> None:
        self._writer.close()


# ---- MCAP


class Naming(NamedTuple):
    """MCAP's names for an encoding."""

    message: str
    "Name of the message encoding."
    schema: str
    "Name of the schema encoding."
    definition: bytes = b""


_OBJECT = b'{"type": "object"}'
NAMES = {
    "application/json": Naming("json", "jsonschema", _OBJECT),
    "text/json": Naming("json", "jsonschema", _OBJECT),
    "application/protobuf": Naming("protobuf", "protobuf"),
    "application/cdr": Naming("cdr", "ros2msg"),
    "application/cbor": Naming("cbor", ""),
}
"Names by Zenoh encoding. Other encodings keep their text, and have a schema without definition."
DELETES, LOSSES = "@zenlake/deletes", "@zenlake/losses"
"Topics of JSON messages, as MCAP has neither. Zenoh reserves keys that start with @."


class _Mcap:
    """Writer of an MCAP file, with a channel for each key and encoding, and with all indexes."""

    def __init__(self, stream: Any, schema: pa.Schema) -> None:
        try:
            from mcap.writer import CompressionType, Writer
        except ImportError:
            raise ZError("MCAP needs the package mcap: pip install 'zenlake[log]'") from None
        self._writer = Writer(stream, chunk_size=MCAP_CHUNK_BYTES, compression=CompressionType.ZSTD)
        self._writer.start(profile="", library="zenlake")
        self._channels: dict[tuple[str, str, str], int] = {}
        self._schemas: dict[tuple[str, str], int] = {}
        self.attachments_left_out = 0

    def write(self, batch: pa.RecordBatch) -> None:
        columns = {name: batch.column(name) for name in batch.schema.names}
        attachment = columns["attachment"]
        self.attachments_left_out += len(attachment) - attachment.null_count
        add = self._writer.add_message
        rows = zip(
            self._channels_of(columns),
            columns["kind"].to_pylist(),
            columns["payload"].to_pylist(),
            *_times(columns),
            _sequences(columns),
            strict=True,
        )
        for row, (channel, kind, payload, log_time, publish_time, sequence) in enumerate(rows):
            if kind != "put":
                channel, payload = self._as_json(kind, columns, row)
            add(channel, log_time, payload, publish_time, sequence)

    def _channels_of(self, columns: dict[str, pa.Array]) -> list[int]:
        """Return the channel of each row, looking up each distinct key, encoding, schema once."""
        texts, codes = zip(
            *(_encode_texts(columns[n]) for n in ("key", "encoding", "schema")), strict=True
        )
        combined = (codes[0] * len(texts[1]) + codes[1]) * len(texts[2]) + codes[2]
        _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
        found = [
            self._channel(*(texts[i][codes[i][row]] for i in range(3))) for row in first.tolist()
        ]
        return np.array(found, np.int64)[inverse].tolist()  # type: ignore[no-any-return]

    def _channel(self, key: str | None, encoding: str | None, schema: str | None) -> int:
        if key is None or encoding is None:
            return 0  # A loss record: `_as_json` chooses its channel.
        named = (key, encoding, schema or "")
        channel = self._channels.get(named)
        if channel is None:
            names = NAMES.get(encoding, Naming(encoding, ""))
            number = self._schema(schema, names) if schema else 0
            text = f"{encoding};{schema}" if schema else encoding
            channel = self._register(named, names.message, number, {"zenoh_encoding": text})
        return channel

    def _schema(self, name: str, names: Naming) -> int:
        number = self._schemas.get((name, names.schema))
        if number is None:
            number = self._writer.register_schema(name, names.schema, names.definition)
            self._schemas[name, names.schema] = number
        return number

    def _register(
        self, named: tuple[str, str, str], message: str, schema: int, metadata: dict[str, str]
    ) -> int:
        if len(self._channels) == MAX_CHANNELS:
            raise ZError(
                f"there are more than {MAX_CHANNELS} keys, and MCAP can number no more channels: "
                "choose some keys, or write Parquet"
            )
        channel = self._writer.register_channel(named[0], message, schema, metadata)
        self._channels[named] = channel
        return channel

    def _as_json(self, kind: str, columns: dict[str, pa.Array], row: int) -> tuple[int, bytes]:
        """Return the channel and the JSON text of a delete or a loss record."""
        topic = DELETES if kind == "delete" else LOSSES
        named = (topic, "application/json", "")
        channel = self._channels.get(named) or self._register(named, "json", 0, {})
        content = {name: columns[name][row].as_py() for name in ("partition", "offset")}
        if kind == "delete":
            content = {"key": columns["key"][row].as_py(), **content}
        else:
            content |= columns["loss"][row].as_py()
        return channel, json.dumps(content).encode()

    def close(self) -> None:
        self._writer.finish()  # type: ignore[no-untyped-call]


def _encode_texts(column: pa.Array) -> tuple[list[str | None], npt.NDArray[np.int64]]:
    """Return the distinct texts, the last of them None, and the index of each row's text."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    texts = column.dictionary.to_pylist()
    codes = column.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False).astype(np.int64)
    return [*texts, None], codes


def _times(columns: dict[str, pa.Array]) -> tuple[list[int], list[int]]:
    """Return each row's time of reception, and its timestamp or else again the former."""
    received = columns["received_at"].cast(pa.int64()).to_numpy(zero_copy_only=False) * MICROSECOND
    stamps = columns["timestamp"]
    if stamps.null_count == len(stamps):
        return received.tolist(), received.tolist()
    ntp64 = pc.struct_field(stamps, "time").fill_null(0).to_numpy(zero_copy_only=False)
    low = np.uint64(32)
    fraction = ((ntp64 & np.uint64(U32)) * np.uint64(NANOS) + np.uint64(U32)) >> low  # rounded up
    put = (ntp64 >> low) * np.uint64(NANOS) + np.minimum(fraction, np.uint64(NANOS - 1))
    known = stamps.is_valid().to_numpy(zero_copy_only=False)
    return received.tolist(), np.where(known, put.astype(np.int64), received).tolist()


def _sequences(columns: dict[str, pa.Array]) -> list[int]:
    """Return each row's source number, or else the low 32 bits of its offset."""
    offsets = columns["offset"].to_numpy(zero_copy_only=False) & U32
    source = columns["source"]
    if source.null_count == len(source):
        return offsets.tolist()  # type: ignore[no-any-return]
    numbers = pc.struct_field(source, "sn").fill_null(0).to_numpy(zero_copy_only=False)
    known = source.is_valid().to_numpy(zero_copy_only=False)
    return np.where(known, numbers, offsets).tolist()  # type: ignore[no-any-return]


FORMATS: dict[str, Callable[[Any, pa.Schema], _Format]] = {
    ".parquet": _Parquet,
    ".arrow": _Arrow,
    ".mcap": _Mcap,
}
