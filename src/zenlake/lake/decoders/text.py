"""Decoder of text: UTF-8 by whole columns, other charsets row by row.

Knows the accepted charsets, and that a schema may name one.
"""

import codecs
import re
from pathlib import Path

import pyarrow as pa

from zenlake.errors import ZError
from zenlake.lake.decoders.values import (
    Decode,
    Decoded,
    decode_rows,
    decode_utf8,
    decode_where,
    fail_all,
    quote_json,
    without_reasons,
)

CHARSETS = re.compile(
    r"ascii|utf-8|utf-(16|32)(-[bl]e)?|iso8859-\d+|cp125\d|koi8-[ru]|gb2312|gbk|gb18030|big5"
    r"|shift_jis|euc_jp|euc_kr"
)
"Python's names of the accepted charsets; its other codecs are not used for texts in messages."
PREFIX = "charset="


def decoder(home: Path, *, charset: str | None = None) -> Decode:
    """Return the decoder of texts in `charset`, by default that of the schema or UTF-8."""
    if charset is not None and find_charset(charset) is None:
        raise ZError(f"charset {charset!r} is not known: write utf-8, latin-1, utf-16 ...")

    def decode(payloads: pa.Array, rows: pa.RecordBatch) -> Decoded:
        schema = rows.column("schema")[0].as_py() or ""
        name = find_charset(charset or schema.removeprefix(PREFIX).strip(' "'))
        if name is None and schema.startswith(PREFIX):
            return fail_all(len(payloads), f"{schema[:60]} is not known")
        if name in (None, "utf-8", "ascii"):
            return _utf8(payloads)
        return decode_rows(payloads, lambda data: data.decode(name or "utf-8"))

    return decode


def find_charset(charset: str) -> str | None:
    """Return Python's name of an accepted charset; None for any other text.

    >>> [find_charset(text) for text in ("latin-1", "UTF8", "hex", "fleet.Pose")]
    ['iso8859-1', 'utf-8', None, None]
    """
    try:
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):
        return None
    return name if CHARSETS.fullmatch(name) else None


def _utf8(payloads: pa.Array) -> Decoded:
    texts, good = decode_utf8(payloads)
    return decode_where(
        good,
        lambda: without_reasons(quote_json(texts.filter(pa.array(good)))),
        "the text is not UTF-8",
    )
