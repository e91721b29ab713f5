"""Decoder of CBOR: one item per payload, row by row.

Knows the JSON form of tags: bytes are base64, an unknown tag is an object of tag and value.
"""

from io import BytesIO
from pathlib import Path
from typing import Any

import cbor2
import pyarrow as pa

from zenlake.lake.decoders.values import MAX_DEPTH, Decode, Decoded, Undecodable, decode_rows
from zenlake.quantities import counted


def decoder(home: Path) -> Decode:
    """Return the decoder of CBOR payloads."""

    def decode(payloads: pa.Array, rows: pa.RecordBatch) -> Decoded:
        return decode_rows(payloads, read, _other)

    return decode


def read(data: bytes) -> Any:
    """Return the item. Undecodable: there is no valid item, or bytes follow it."""
    stream = BytesIO(data)
    reading = cbor2.CBORDecoder(
        stream, max_depth=MAX_DEPTH, allow_duplicate_keys=False, semantic_decoders=_TAGS
    )
    try:
        value = reading.decode()
    except cbor2.CBORDecodeError as error:
        raise Undecodable(f"not CBOR: {error}") from None
    if stream.tell() != len(data):
        raise Undecodable(
            f"not one CBOR item: {counted(len(data) - stream.tell(), 'byte')} after it"
        )
    return value


def _as_written(value: Any, immutable: bool) -> Any:
    return value


_TAGS: dict[int, Any] = {35: _as_written, 36: _as_written}
"Regular expressions and MIME messages stay texts: nothing is compiled or parsed."


def _other(value: Any) -> Any:
    if isinstance(value, cbor2.CBORTag):
        return {"tag": value.tag, "value": value.value}
    if isinstance(value, cbor2.CBORSimpleValue):
        return {"simple": value.value}
    if value is cbor2.undefined:
        return None
    if isinstance(value, cbor2.frozendict):
        return dict(value)
    return str(value)  # An address, or another type with a text form.
