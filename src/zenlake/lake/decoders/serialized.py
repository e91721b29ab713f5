"""Decoder of z_serialize payloads of any Zenoh binding; the schema names their type.

Knows the grammar of types: `list[float64]`, `dict[str, int32]`, `tuple[str, bool]`.
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
    decode_rows,
    describe_error,
    fail_all,
    find_layout,
    spread,
)
from zenlake.quantities import counted

MAX_TYPE_DEPTH = 16
MAX_TYPE_LENGTH = 1024
MAX_COUNT_BYTES = 4  # Count bytes of a list decoded by column: up to 2**28 items, more than fit.

NAMES: dict[str, Any] = {
    **{name.__name__.lower(): name for name in (*ext.CODES, *ext.WIDE)},
    "str": str,
    "string": str,
    "bytes": bytes,
}
NUMBERS: dict[Any, np.dtype[Any]] = {
    kind: np.dtype(f"<{code}") for kind, code in ext.CODES.items() if kind is not bool
}
"NumPy types of the numbers that are decoded by whole columns."
COLLECTIONS: dict[str, tuple[Any, int | None]] = {
    "list": (list, 1),
    "set": (set, 1),
    "dict": (dict, 2),
    "map": (dict, 2),
    "tuple": (tuple, None),
}
_TOKEN = re.compile(r"\s*([A-Za-z0-9_]+|[\[\],])")


def decoder(home: Path, *, type: str | None = None) -> Decode:  # noqa: A002
    """Return the decoder; `type` is the type of payloads without a schema."""
    if type is not None:
        parse_type(type)

    def decode(payloads: pa.Array, rows: pa.RecordBatch) -> Decoded:
        named = rows.column("schema")[0].as_py() or type
        if named is None:
            return fail_all(len(payloads), NO_TYPE)
        try:
            parsed = parse_type(named)
        except ZError as error:
            return fail_all(len(payloads), describe_error(error))
        if parsed in NUMBERS:
            return numeric.decode_numbers(payloads, NUMBERS[parsed])
        if get_origin(parsed) is list and get_args(parsed)[0] in NUMBERS:
            return _lists(payloads, parsed)
        return decode_rows(payloads, lambda data: read(parsed, data))

    return decode


NO_TYPE = (
    "nothing says the type: publish with a schema, as in zenoh/serialized;list[float64], "
    'or give `type` in [[decoders]] with use = "serialized"'
)


def read(parsed: Any, data: bytes) -> Any:
    """Decode a value of a type of `parse_type`. Undecodable: the bytes are not one value."""
    reader, _ = ext.find_reader(parsed, ext.MAX_DEPTH)
    try:
        value, end = reader(data, 0)
    except TypeError:  # A key, or an item of a set, is an unhashable collection.
        raise Undecodable(
            f"{parsed}: keys and items of sets are numbers, texts or tuples"
        ) from None
    if end != len(data):
        raise Undecodable(f"{counted(len(data) - end, 'byte')} left over: the type is another one")
    return value


def _lists(payloads: pa.Array, parsed: Any) -> Decoded:
    """Decode lists of numbers by column, and rows with a wrong length one by one."""
    kind = NUMBERS[get_args(parsed)[0]]
    before, counts = _counts(payloads)
    before[before + counts * kind.itemsize != numeric.lengths(payloads)] = 0
    texts, reasons = pa.nulls(len(payloads), pa.string()), pa.nulls(len(payloads), pa.string())
    for size in np.unique(before).tolist():
        here = before == size
        some = payloads.filter(pa.array(here))
        if size:
            outcome = numeric.decode_lists(some, kind, size)
        else:
            outcome = decode_rows(some, lambda data: read(parsed, data))
        texts = pc.coalesce(texts, spread(outcome[0], here))
        reasons = pc.coalesce(reasons, spread(outcome[1], here))
    return texts, reasons


def _counts(payloads: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the size and the value of the LEB128 count of each payload; size 0 if not 1 to 4."""
    starts, lengths, data = find_layout(payloads)
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
def parse_type(text: str) -> Any:
    """Return the type that a text names. ZError: it is not a valid type.

    >>> parse_type("dict[str, list[float32]]")
    dict[str, list[zenlake.ext.serialization.Float32]]
    >>> parse_type("list[float")
    Traceback (most recent call last):
    zenlake.errors.ZError: 'list[float' is not a valid type: it ends too early
    """
    shown = repr(text[:80])
    if len(text) > MAX_TYPE_LENGTH:
        raise ZError(f"{shown}... is not a valid type: it is too long")
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != "".join(text.split()):
        raise ZError(f"{shown} is not a valid type: write one as in dict[str, list[float64]]")
    try:
        made, rest = _parse_tokens(tokens, 0, MAX_TYPE_DEPTH)
    except IndexError:
        raise ZError(f"{shown} is not a valid type: it ends too early") from None
    except ValueError as error:
        raise ZError(f"{shown} is not a valid type: {error}") from None
    if rest != len(tokens):
        raise ZError(f"{shown} is not a valid type: {tokens[rest]!r} is left over")
    return made


def _parse_tokens(tokens: list[str], at: int, depth: int) -> tuple[Any, int]:
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
        part, at = _parse_tokens(tokens, at + 1, depth - 1)
        parts.append(part)
        if tokens[at] not in ("]", ","):
            raise ValueError(f"{tokens[at]!r} stands where a comma or ] should")
    if count is not None and len(parts) != count:
        raise ValueError(f"{name} takes {count} types, not {len(parts)}")
    return kind[tuple(parts) if count != 1 else parts[0]], at + 1
