"""Recorded messages of every shape, for tests that change their bytes.

A shape is: which message, which flags and extensions, which body. Of each shape the shortest
recorded message serves, so that trying all values of all bytes stays affordable.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from tests.support.plain_batches import plain_batches
from zenlake.errors import DecodeError
from zenlake.wire.batch import walk
from zenlake.wire.cursor import ByteReader
from zenlake.wire.network import is_network

FRAME_HEADER = b"\x25\x01"
MAX_BYTES = 120  # Longest message: longer ones differ in their payload alone.
MAX_BATCH_BYTES = 1000  # Longest batch, for the same reason.


def shape_of(value: Any) -> Any:
    """The type, and the shapes of the fields that are not the default."""
    if not is_dataclass(value):
        return type(value).__name__
    return (
        type(value).__name__,
        *(
            (field.name, shape_of(getattr(value, field.name)))
            for field in fields(value)
            if getattr(value, field.name) != field.default
        ),
    )


def recorded_shapes() -> list[bytes]:
    """One batch for each shape of transport and network message that was recorded."""
    shortest: dict[Any, bytes] = {}
    for batch in plain_batches():
        if batch.scouting:
            continue
        try:
            located = list(walk(ByteReader(batch.data), low_latency=batch.low_latency))
        except DecodeError:  # hand-written to be refused
            continue
        for start, end, message, _ in located:
            data = batch.data[start:end]
            shape = shape_of(message)
            if len(data) < len(shortest.get(shape, bytes(MAX_BYTES))):
                shortest[shape] = data
    return [FRAME_HEADER + data if is_network(data[0]) else data for data in shortest.values()]


def recorded_batches() -> list[bytes]:
    """Every distinct batch that was recorded, those with long payloads aside."""
    return list(
        dict.fromkeys(
            batch.data
            for batch in plain_batches()
            if len(batch.data) <= MAX_BATCH_BYTES and not batch.scouting and not batch.low_latency
        )
    )


def single_byte_changes(data: bytes) -> Iterator[bytes]:
    """`data` with each byte replaced by each other value."""
    for at in range(len(data)):
        before, after = data[:at], data[at + 1 :]
        for value in range(256):
            if value != data[at]:
                yield before + bytes((value,)) + after
