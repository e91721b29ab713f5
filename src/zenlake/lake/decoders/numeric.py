"""Decoder of raw numbers: one number or a list of numbers per payload, by whole columns.

Knows widths and byte orders. Does not know counts or tags; other decoders do.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.errors import ZError
from zenlake.lake.decoders.values import (
    Decode,
    Decoded,
    bytes_of,
    decode_where,
    find_layout,
    without_reasons,
)

TYPES = {
    **{
        f"{sign}int{bits}": f"{sign or 'i'}{bits // 8}"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "float32": "f4",
    "float64": "f8",
}
ORDERS = {"little": "<", "big": ">"}
_LIST = re.compile(r"list\[(\w+)\]")


def decoder(home: Path, *, type: str, order: str = "little") -> Decode:  # noqa: A002
    """Return the decoder of a `type` such as "float32", or "list[float32]" for any number."""
    listed = _LIST.fullmatch(type)
    name = listed[1] if listed else type
    if name not in TYPES or order not in ORDERS:
        raise ZError(
            f"type {type!r} in order {order!r} is not known: types are {', '.join(TYPES)} and "
            f"lists of them, as in list[float32]; orders are {' and '.join(ORDERS)}"
        )
    kind = np.dtype(ORDERS[order] + TYPES[name])
    column: Callable[[pa.Array, Any], Decoded] = decode_lists if listed else decode_numbers
    return lambda payloads, rows: column(payloads, kind)


def decode_numbers(payloads: pa.Array, kind: "np.dtype[Any]") -> Decoded:
    """Decode one number of this kind per payload.

    >>> decode_numbers(pa.array([b"\\x01\\x00", b"\\x01"]), np.dtype("<i2"))[0].to_pylist()
    ['1', None]
    """
    good = lengths(payloads) == kind.itemsize

    def read() -> Decoded:
        return without_reasons(format_numbers(_values(payloads.filter(pa.array(good)), kind)))

    return decode_where(good, read, f"a number of this type has {kind.itemsize} bytes")


def decode_lists(payloads: pa.Array, kind: "np.dtype[Any]", skip: int = 0) -> Decoded:
    """Decode each payload after its first `skip` bytes as a list of numbers of this kind.

    >>> decode_lists(pa.array([b"\\x01\\x00\\x02\\x00", b""]), np.dtype("<i2"))[0].to_pylist()
    ['[1,2]', '[]']
    """
    sizes = lengths(payloads) - skip
    good = (sizes >= 0) & (sizes % kind.itemsize == 0)

    def read() -> Decoded:
        texts = format_numbers(_values(payloads.filter(pa.array(good)), kind, skip))
        ends = np.zeros(int(good.sum()) + 1, np.int32)
        np.cumsum(sizes[good] // kind.itemsize, out=ends[1:])
        items = pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), texts), ",")
        return without_reasons(pc.binary_join_element_wise("[", items, "]", ""))

    return decode_where(good, read, f"the length is not a multiple of {kind.itemsize} bytes")


def format_numbers(values: "npt.NDArray[Any]") -> pa.Array:
    """Return numbers as JSON; NaN and infinities as their names in quotes.

    >>> format_numbers(np.array([0.5, np.inf, np.nan])).to_pylist()
    ['0.5', '"Infinity"', '"NaN"']
    """
    with np.errstate(invalid="ignore"):  # NumPy warns of a signalling NaN.
        exact = values.astype(np.float64) if values.dtype.kind == "f" else values
    texts = pa.array(exact).cast(pa.string())
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return texts
    names = np.where(np.isnan(values), '"NaN"', np.where(values > 0, '"Infinity"', '"-Infinity"'))
    return pc.if_else(pa.array(np.isfinite(values)), texts, pa.array(names, pa.string()))


def lengths(payloads: pa.Array) -> npt.NDArray[np.int64]:
    """Return the length of each payload in bytes."""
    return find_layout(payloads)[1]


def _values(payloads: pa.Array, kind: "np.dtype[Any]", skip: int = 0) -> "npt.NDArray[Any]":
    """Return the numbers of all payloads after their first `skip` bytes, in native byte order."""
    raw = bytes_of(payloads)
    if skip and len(payloads):
        starts = find_layout(payloads)[0]
        wanted = np.ones(len(raw), np.bool_)
        for place in range(skip):
            wanted[starts - starts[0] + place] = False
        raw = raw[wanted]
    return np.frombuffer(raw.tobytes(), kind).astype(kind.newbyteorder("="))
