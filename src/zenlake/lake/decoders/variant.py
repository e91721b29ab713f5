"""Columns of JSON texts as VARIANT: the bytes that Spark's `try_parse_json` makes of each text.

Knows Arrow and the compiled kernel. Does not know where a text comes from, or Spark.
"""

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zenlake.lake.kernels import variant as kernel
from zenlake.lake.kernels.variant import (
    HARD_WORDS,
    METADATA_GROWTH,
    PENDING,
    ROW_BYTES,
    TAKEN,
    VALUE_GROWTH,
    WORD,
    Scratch,
    VariantColumn,
)
from zenlake.lake.tables import schema

MAX_COLUMN_BYTES = 1 << 30  # Upper bound on a buffer; Arrow's offsets have 31 bits.
HARD_NUMBERS = 1 << 12  # Numbers that Python converts at once, unless one text has more.

Bools = npt.NDArray[np.bool_]


class Variants(NamedTuple):
    """Variants of some texts, and what became of each."""

    values: pa.StructArray
    "Null where the text is not one JSON value that a VARIANT takes."
    verdicts: npt.NDArray[np.uint8]
    "TAKEN, REFUSED, or TRAILING: one value with further text after it."


def to_variants(texts: pa.Array) -> Variants:
    """Return the texts (strings, UTF-8) as values of the type that the tables use."""
    encoder = _Encoder(texts)
    parts, verdicts, hard = encoder.encode(texts.is_valid().to_numpy(zero_copy_only=False), ())
    pending = verdicts == PENDING
    if pending.any():
        again, found, _ = encoder.encode(pending, [float(number) for number in hard])
        order = pa.array(np.arange(len(texts)) + len(texts) * pending)
        parts = [pa.concat_arrays(both).take(order) for both in zip(parts, again, strict=True)]
        verdicts = np.where(pending, found, verdicts)
    values = pa.StructArray.from_arrays(
        parts, fields=list(schema.VARIANT.fields), mask=pa.array(verdicts != TAKEN)
    )
    return Variants(values, verdicts)


class _Encoder:
    """The kernel, called until it has seen every row of a column."""

    def __init__(self, texts: pa.Array) -> None:
        _, offsets, data = texts.buffers()
        self._texts = np.frombuffer(data, np.uint8) if data else np.zeros(1, np.uint8)
        self._ends = np.frombuffer(offsets, np.int32)[texts.offset :][: len(texts) + 1]
        lengths = np.diff(self._ends)
        self._longest = int(lengths.max(initial=0))
        self._total = int(lengths.sum(dtype=np.int64))
        self._scratch = Scratch.sized_for(self._longest)
        self._seed = np.uint64(secrets.randbits(64))

    def encode(
        self, wanted: Bools, known: Sequence[float]
    ) -> tuple[list[pa.Array], npt.NDArray[np.uint8], list[bytes]]:
        """Return (value, metadata) as arrays, the verdicts, and the texts of hard numbers."""
        numbers = np.array(known, np.float64).view(np.uint8)
        rows = len(self._ends) - 1
        verdicts = np.zeros(rows, np.uint8)
        parts: list[tuple[pa.Array, pa.Array]] = []
        hard = np.empty(max(HARD_NUMBERS, self._longest // 3 + 2) * HARD_WORDS, np.int64)
        texts: list[bytes] = []
        at = 0
        while at < rows or not parts:
            out = self._make_column(rows - at)
            done, used, count = kernel.variant_kernel(
                self._texts,
                self._ends[at:],
                wanted[at:],
                self._seed,
                self._scratch,
                out,
                numbers,
                hard.view(np.uint8),
                verdicts[at:],
            )
            numbers = numbers[used * WORD :]
            places = hard[: count * HARD_WORDS].reshape(-1, HARD_WORDS).tolist()
            texts += [self._texts[start:end].tobytes() for start, end in places]
            parts.append(
                (
                    _binary(out.value, out.value_ends, done),
                    _binary(out.metadata, out.metadata_ends, done),
                )
            )
            at += done
        columns = [pa.concat_arrays(pieces) for pieces in zip(*parts, strict=True)]
        return columns, verdicts, texts

    def _make_column(self, rows: int) -> VariantColumn:
        """Return buffers that take most columns whole, and always the longest text."""
        row_bytes = ROW_BYTES * (rows + 1)
        value = min(2 * self._total + row_bytes, MAX_COLUMN_BYTES) + VALUE_GROWTH * self._longest
        metadata = min(self._total + row_bytes, MAX_COLUMN_BYTES) + METADATA_GROWTH * self._longest
        return VariantColumn(
            np.empty(value + ROW_BYTES, np.uint8),
            np.zeros(rows + 1, np.int32),
            np.empty(metadata + ROW_BYTES, np.uint8),
            np.zeros(rows + 1, np.int32),
        )


def _binary(data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int32], rows: int) -> pa.Array:
    used = int(ends[rows])
    buffers = [None, pa.py_buffer(ends[: rows + 1]), pa.py_buffer(data[:used])]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)
