"""The golden vectors as `zenlake decode` gets them, and what the codec alone says is in them."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tests.golden.vectors import Vector, load_all
from tests.support.plain_batches import SCOUTING_SENDERS, PlainBatch, plain_batches
from zenlake.wire.batch import SCOUTING, TRANSPORT, LocatedMessage, walk
from zenlake.wire.cursor import ByteReader
from zenlake.wire.declare import DECLARATIONS
from zenlake.wire.network import NETWORK
from zenlake.wire.push import PUSH_BODIES
from zenlake.wire.request import REQUEST_BODIES
from zenlake.wire.response import RESPONSE_BODIES

# Written by hand so that eclipse-zenoh refuses them, as we must.
UNREADABLE = {
    "close_mandatory/A": "MANDATORY_EXTENSION",  # an extension 0x1e of INIT, marked mandatory
    "close_role/A": "BAD_VALUE",  # role 3 of 0, 1, 2
}
BODIES = (PUSH_BODIES, REQUEST_BODIES, RESPONSE_BODIES, DECLARATIONS)
NAMES = {
    row.type: row.name
    for table in (TRANSPORT, SCOUTING, NETWORK, *BODIES)
    for row in table.by_type.values()
}


class Direction(NamedTuple):
    """Bytes that one sender of one vector sent."""

    name: str
    vector: Vector
    sender: str
    data: bytes
    options: list[str]
    batches: list[PlainBatch]

    def located(self) -> Iterator[LocatedMessage]:
        for batch in self.batches:
            r = ByteReader(batch.data, shm=True)
            if batch.scouting:
                yield LocatedMessage(0, len(batch.data), SCOUTING.read(r))
            else:
                yield from walk(r, low_latency=batch.low_latency)

    def kinds(self) -> Counter[str]:
        return Counter(kind(located.message) for located in self.located())


def kind(message: object) -> str:
    name = NAMES[type(message)]
    body = getattr(message, "body", None)
    return f"{name}/{kind(body)}" if type(body) in NAMES else name


def _input(vector: Vector, sender: str) -> tuple[bytes, list[str]]:
    if vector.framing != "datagram":
        return vector.stream(sender), []
    lines = "\n".join(batch.hex() for batch in vector.of(sender)).encode()
    if sender in SCOUTING_SENDERS:
        return lines, ["--scouting"]
    # There is no INIT on multicast that would tell.
    compression = ["--compression", "yes"] if vector.compression else []
    return lines, ["--framing", "datagram", *compression]


def _directions() -> Iterator[Direction]:
    batches: dict[str, list[PlainBatch]] = {}
    for batch in plain_batches():
        batches.setdefault(batch.name.rpartition("/")[0], []).append(batch)
    for vector in load_all():
        for sender in vector.senders():
            name = f"{vector.name}/{sender}"
            data, options = _input(vector, sender)
            yield Direction(name, vector, sender, data, options, batches[name])


DIRECTIONS = {direction.name: direction for direction in _directions()}
READABLE = sorted(set(DIRECTIONS) - set(UNREADABLE))
STREAMS = [name for name in READABLE if DIRECTIONS[name].vector.framing != "datagram"]
