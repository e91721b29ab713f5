"""Text: each payload becomes a JSON text. Whole columns for UTF-8, row by row for the others.

Knows the charsets that are taken, and that a schema may name one.
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
"By the name that Python gives them: its other codecs are no charsets of texts on a wire."
PREFIX = "charset="


def decoder(home: Path, *, charset: str | None = None) -> Decode:
    """`charset`: of all payloads; else the schema says it, else it is UTF-8."""
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
    """The name of a charset that is taken; None for any other text.

    >>> find_charset("latin-1"), find_charset("UTF8"), find_charset("hex"), find_charset("fleet.Pose")
    ('iso8859-1', 'utf-8', None, None)
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
