"""Numbers as they lie in memory: each payload one number, or as many as fit. Whole columns.

Knows widths and byte orders. Does not know counts or tags: those are other decoders.
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
from zenlake.lake.decoders.values import Decode, Decoded, decode_where, without_reasons

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
    """`type`: "float32", "int16" ..., or "list[float32]" for as many as there are."""
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
    """One number of this kind in each payload.

    >>> decode_numbers(pa.array([b"\\x01\\x00", b"\\x01"]), np.dtype("<i2"))[0].to_pylist()
    ['1', None]
    """
    good = lengths(payloads) == kind.itemsize

    def read() -> Decoded:
        return without_reasons(format_numbers(_values(payloads.filter(pa.array(good)), kind)))

    return decode_where(good, read, f"a number of this type has {kind.itemsize} bytes")


def decode_lists(payloads: pa.Array, kind: "np.dtype[Any]", skip: int = 0) -> Decoded:
    """As many numbers of this kind as there are in each payload, behind its first `skip` bytes.

    >>> decode_lists(pa.array([b"\\x01\\x00\\x02\\x00", b""]), np.dtype("<i2"))[0].to_pylist()
    ['[1,2]', '[]']
    """
    sizes = lengths(payloads) - skip
    good = (sizes >= 0) & (sizes % kind.itemsize == 0)

    def read() -> Decoded:
        texts = format_numbers(_values(payloads.filter(pa.array(good)), kind, skip))
        ends = np.zeros(int(good.sum()) + 1, np.int32)
        np.cumsum(sizes[good] // kind.itemsize, out=ends[1:])
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), texts), ",")
        return without_reasons(pc.binary_join_element_wise("[", joined, "]", ""))

    return decode_where(good, read, f"the length is no multiple of {kind.itemsize} bytes")


def format_numbers(values: "npt.NDArray[Any]") -> pa.Array:
    """Numbers as JSON has them; what is no number by its name, as a text.

    >>> format_numbers(np.array([0.5, np.inf, np.nan])).to_pylist()
    ['0.5', '"Infinity"', '"NaN"']
    """
    exact = values.astype(np.float64) if values.dtype.kind == "f" else values
    texts = pa.array(exact).cast(pa.string())
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return texts
    names = np.where(np.isnan(values), '"NaN"', np.where(values > 0, '"Infinity"', '"-Infinity"'))
    return pc.if_else(pa.array(np.isfinite(values)), texts, pa.array(names, pa.string()))


def payload_layout(
    payloads: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Where each payload starts, how long it is, and the bytes that they all lie in."""
    _, offsets, data = payloads.buffers()
    if data is None or not len(payloads):
        return (*np.zeros((2, len(payloads)), np.int64), np.zeros(0, np.uint8))
    ends = np.frombuffer(offsets, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1]
    return ends[:-1].astype(np.int64), np.diff(ends).astype(np.int64), np.frombuffer(data, np.uint8)


def lengths(payloads: pa.Array) -> npt.NDArray[np.int64]:
    """In bytes, of each."""
    return payload_layout(payloads)[1]


def _values(payloads: pa.Array, kind: "np.dtype[Any]", skip: int = 0) -> "npt.NDArray[Any]":
    """All payloads behind their first `skip` bytes, as numbers in this machine's order."""
    starts, sizes, data = payload_layout(payloads)
    if not len(starts):
        return np.zeros(0, kind.newbyteorder("="))
    raw = data[starts[0] : starts[-1] + sizes[-1]]
    wanted = np.ones(len(raw), np.bool_)
    for place in range(skip):
        wanted[starts - starts[0] + place] = False
    return np.frombuffer((raw[wanted] if skip else raw).tobytes(), kind).astype(
        kind.newbyteorder("=")
    )
