"""What z_serialize of any Zenoh binding writes: the bytes name no type, so the schema does.

Knows the small grammar of types: `list[float64]`, `dict[str, int32]`, `tuple[str, bool]`.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.errors import ZError
from zenlake.ext import serialization as ext
from zenlake.lake.decoders import numeric
from zenlake.lake.decoders.values import (
    Decode,
    Decoded,
    Undecodable,
    by_row,
    failed,
    reason_of,
    spread,
)
from zenlake.quantities import counted

MAX_TYPE_DEPTH = 16
MAX_TYPE_LENGTH = 1024
MAX_COUNT_BYTES = 4  # of a list that is decoded by the column: 2**28 items, more than fit

NAMES: dict[str, Any] = {
    **{name.__name__.lower(): name for name in (*ext.CODES, *ext.WIDE)},
    "str": str,
    "string": str,
    "bytes": bytes,
}
NUMBERS: dict[Any, np.dtype[Any]] = {
    kind: np.dtype(f"<{code}") for kind, code in ext.CODES.items() if kind is not bool
}
"Those that are decoded by the column."
COLLECTIONS: dict[str, tuple[Any, int | None]] = {
    "list": (list, 1),
    "set": (set, 1),
    "dict": (dict, 2),
    "map": (dict, 2),
    "tuple": (tuple, None),
}
_TOKEN = re.compile(r"\s*([A-Za-z0-9_]+|[\[\],])")


def decoder(home: Path, *, type: str | None = None) -> Decode:  # noqa: A002
    """`type`: of payloads whose schema names none."""
    if type is not None:
        parse(type)

    def decode(payloads: pa.Array, rows: pa.RecordBatch) -> Decoded:
        named = rows.column("schema")[0].as_py() or type
        if named is None:
            return failed(len(payloads), NO_TYPE)
        try:
            parsed = parse(named)
        except ZError as error:
            return failed(len(payloads), reason_of(error))
        if parsed in NUMBERS:
            return numeric.numbers(payloads, NUMBERS[parsed])
        if get_origin(parsed) is list and get_args(parsed)[0] in NUMBERS:
            return _lists(payloads, parsed)
        return by_row(payloads, lambda data: read(parsed, data))

    return decode


NO_TYPE = (
    "nothing says the type: publish with a schema, as in zenoh/serialized;list[float64], "
    'or give `type` in [[decoders]] with use = "serialized"'
)


def read(parsed: Any, data: bytes) -> Any:
    """The value of a type of `parse`; Undecodable: it is not all of the bytes."""
    reader, _ = ext._reader(parsed, ext.MAX_DEPTH)
    try:
        value, end = reader(data, 0)
    except TypeError:  # a key or an item of a set that is a collection itself
        raise Undecodable(
            f"{parsed}: keys and items of sets are numbers, texts or tuples"
        ) from None
    if end != len(data):
        raise Undecodable(f"{counted(len(data) - end, 'byte')} left over: the type is another one")
    return value


def _lists(payloads: pa.Array, parsed: Any) -> Decoded:
    """Lists of numbers: by the column what is as long as its count says, else row by row."""
    kind = NUMBERS[get_args(parsed)[0]]
    before, counts = _counts(payloads)
    before[before + counts * kind.itemsize != numeric.lengths(payloads)] = 0
    texts, reasons = pa.nulls(len(payloads), pa.string()), pa.nulls(len(payloads), pa.string())
    for size in np.unique(before).tolist():
        here = before == size
        some = payloads.filter(pa.array(here))
        if size:
            made, told = numeric.lists(some, kind, size)
        else:
            made, told = by_row(some, lambda data: read(parsed, data))
        texts = pc.coalesce(texts, spread(made, here))
        reasons = pc.coalesce(reasons, spread(told, here))
    return texts, reasons


def _counts(payloads: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The bytes of the LEB128 count that each begins with, and the count; 0: none of 1 to 4."""
    starts, lengths, data = numeric.laid_out(payloads)
    size, count = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    reading = np.ones(len(starts), np.bool_)
    for place in range(MAX_COUNT_BYTES):
        reading &= lengths > place
        byte = data[starts[reading] + place].astype(np.int64)
        count[reading] |= (byte & 0x7F) << 7 * place
        last = np.flatnonzero(reading)[byte < 0x80]
        size[last] = place + 1
        reading[last] = False
    return size, count


@lru_cache(maxsize=256)
def parse(text: str) -> Any:
    """The type that a text names. ZError: it names none.

    >>> parse("dict[str, list[float32]]")
    dict[str, list[zenlake.ext.serialization.Float32]]
    >>> parse("list[float")
    Traceback (most recent call last):
    zenlake.errors.ZError: 'list[float' is no type: it ends too early
    """
    shown = repr(text[:80])
    if len(text) > MAX_TYPE_LENGTH:
        raise ZError(f"{shown}... is no type: it is too long")
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != "".join(text.split()):
        raise ZError(f"{shown} is no type: write one as in dict[str, list[float64]]")
    try:
        made, rest = _parsed(tokens, 0, MAX_TYPE_DEPTH)
    except IndexError:
        raise ZError(f"{shown} is no type: it ends too early") from None
    except ValueError as error:
        raise ZError(f"{shown} is no type: {error}") from None
    if rest != len(tokens):
        raise ZError(f"{shown} is no type: {tokens[rest]!r} is too much")
    return made


def _parsed(tokens: list[str], at: int, depth: int) -> tuple[Any, int]:
    name = tokens[at].lower()
    if name in NAMES:
        return NAMES[name], at + 1
    if name not in COLLECTIONS:
        raise ValueError(f"there is no {name!r}: there are {', '.join((*NAMES, *COLLECTIONS))}")
    kind, count = COLLECTIONS[name]
    if depth == 0:
        raise ValueError(f"it is nested deeper than {MAX_TYPE_DEPTH}")
    if tokens[at + 1] != "[":
        raise ValueError(f"say of what, as in {name}[...]")
    parts: list[Any] = []
    at += 1
    while tokens[at] != "]":
        part, at = _parsed(tokens, at + 1, depth - 1)
        parts.append(part)
        if tokens[at] not in ("]", ","):
            raise ValueError(f"{tokens[at]!r} stands where a comma or ] should")
    if count is not None and len(parts) != count:
        raise ValueError(f"{name} takes {count} types, not {len(parts)}")
    return kind[tuple(parts) if count != 1 else parts[0]], at + 1
