"""Golden vectors as plain batches: what is left when framing and compression are taken off."""

from collections.abc import Iterator
from typing import NamedTuple

from tests.golden.vectors import HANDSHAKE_BATCHES, Vector, load_all
from zenlake.wire.framing import uncompress

SCOUTING_SENDERS = ("scout", "hello")


class PlainBatch(NamedTuple):
    name: str
    "vector/sender/number"
    data: bytes
    low_latency: bool
    "Network messages stand in it without a FRAME."
    scouting: bool


def plain_batches() -> Iterator[PlainBatch]:
    """Every batch and datagram of every vector."""
    for vector in load_all():
        yield from _of_vector(vector)


def _of_vector(vector: Vector) -> Iterator[PlainBatch]:
    for sender in vector.senders():
        for number, data in enumerate(vector.of(sender)):
            open_session = vector.framing == "datagram" or number >= HANDSHAKE_BATCHES
            if vector.framing == "datagram" and vector.name == "udp":
                open_session = number >= HANDSHAKE_BATCHES
            plain = uncompress(data) if vector.compression and open_session else data
            yield PlainBatch(
                f"{vector.name}/{sender}/{number}",
                plain,
                vector.framing == "stream32" and open_session,
                sender in SCOUTING_SENDERS,
            )
