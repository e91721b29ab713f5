"""Decoder of JSON: checks whole columns by a pattern, and reads only doubtful rows one by one.

Knows that Spark's parser stops after the first value and would not see what follows it.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.lake.decoders.values import (
    Decode,
    Decoded,
    Undecodable,
    decode_utf8,
    decode_where,
    describe_error,
    spread,
)

SURE_DEPTH = 16  # Depth of brackets that the pattern covers; deeper texts are read by Python.

_TEXT = r'"(?:[^"\\]|\\.)*"'
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_SPACE = r"[ \t\r\n]*"


def _brackets(depth: int) -> str:
    deeper = f"|{_brackets(depth - 1)}" if depth > 1 else ""
    return rf'[{{\[](?:[^{{}}\[\]"]|{_TEXT}{deeper})*[}}\]]'


ONE_VALUE = rf"^{_SPACE}(?:{_brackets(SURE_DEPTH)}|{_TEXT}|{_NUMBER}|true|false|null){_SPACE}$"
"Matches one value, or a text that Spark will refuse; never a value with text after it."


def decoder(home: Path) -> Decode:
    """Return the decoder of JSON payloads."""

    def decode(payloads: pa.Array, rows: pa.RecordBatch) -> Decoded:
        texts, good = decode_utf8(payloads)
        return decode_where(
            good, lambda: _check_texts(texts.filter(pa.array(good))), "the text is not UTF-8"
        )

    return decode


def _check_texts(texts: pa.Array) -> Decoded:
    sure = pc.match_substring_regex(texts, ONE_VALUE)
    doubtful = ~sure.to_numpy(zero_copy_only=False)
    if not doubtful.any():
        return texts, pa.nulls(len(texts), pa.string())
    reasons = [_problem(text) for text in texts.filter(pa.array(doubtful)).to_pylist()]
    reasons_of_rows = spread(pa.array(reasons, pa.string()), np.asarray(doubtful))
    texts = pc.if_else(reasons_of_rows.is_null(), texts, pa.scalar(None, pa.string()))
    return texts, reasons_of_rows


def _problem(text: str) -> str | None:
    """Return why a text is not one JSON value; None if it is."""
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
