"""CBOR: one item a payload, read row by row.

Knows what its tags become in JSON: bytes are base64, an unknown tag is an object of tag and value.
"""

from io import BytesIO
from pathlib import Path
from typing import Any

import cbor2
import pyarrow as pa

from zenlake.lake.decoders.values import MAX_DEPTH, Decode, Decoded, Undecodable, by_row
from zenlake.quantities import counted


def decoder(home: Path) -> Decode:
    """Takes no arguments."""

    def decode(payloads: pa.Array, rows: pa.RecordBatch) -> Decoded:
        return by_row(payloads, read, _other)

    return decode


def read(data: bytes) -> Any:
    """The item; Undecodable: there is none, or something behind it."""
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
"A regular expression and a mail stay texts: nothing is compiled or parsed."


def _other(value: Any) -> Any:
    if isinstance(value, cbor2.CBORTag):
        return {"tag": value.tag, "value": value.value}
    if isinstance(value, cbor2.CBORSimpleValue):
        return {"simple": value.value}
    if value is cbor2.undefined:
        return None
    if isinstance(value, cbor2.frozendict):
        return dict(value)
    return str(value)  # of an address, and whatever else has a text
