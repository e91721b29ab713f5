"""Decoder of JSON: the payload is the text. The VARIANT kernel parses it (variant.py)."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from zenlake.lake.decoders.values import (
    Decode,
    Decoded,
    Undecodable,
    decode_utf8,
    decode_where,
    describe_error,
    without_reasons,
)


def decoder(home: Path) -> Decode:
    """Return the decoder of JSON payloads."""

    def decode(payloads: pa.Array, rows: pa.RecordBatch) -> Decoded:
        texts, good = decode_utf8(payloads)
        return decode_where(
            good, lambda: without_reasons(texts.filter(pa.array(good))), "the text is not UTF-8"
        )

    return decode


def explain(text: str) -> str | None:
    """Return why a text is not one JSON value; None if Python's parser takes it."""
    try:
        json.loads(
            text, parse_constant=_refuse_constant, parse_int=_skip_number, parse_float=_skip_number
        )
    except (ValueError, RecursionError, Undecodable) as error:
        return f"not JSON: {describe_error(error)}"
    return None


def _refuse_constant(name: str) -> Any:
    raise Undecodable(f"there is no {name} in JSON")


def _skip_number(digits: str) -> None:
    """Make no number of the digits: very long ones would take long."""
