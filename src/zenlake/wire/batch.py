"""One batch: transport messages one after another, and the network messages inside a FRAME.

Knows where each message starts and ends. Does not know lanes, order or leases; framing.py cuts
batches out of a stream.
"""

from collections.abc import Iterator
from typing import NamedTuple

from zenlake.errors import DecodeError, EncodeError
from zenlake.wire import close, fragment, frame, hello, init, join, keepalive, oam, scout
from zenlake.wire import open as open_
from zenlake.wire.close import Close
from zenlake.wire.cursor import ByteReader, ByteWriter, encode
from zenlake.wire.dispatch import MessageRow, MessageTable
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.hello import WireHello
from zenlake.wire.init import Init
from zenlake.wire.join import Join
from zenlake.wire.keepalive import KeepAlive
from zenlake.wire.network import NETWORK, NetworkMessage, is_network
from zenlake.wire.oam import TransportOam
from zenlake.wire.open import Open
from zenlake.wire.scout import WireScout

TransportMessage = TransportOam | Init | Open | Close | KeepAlive | Frame | Fragment | Join
ScoutingMessage = WireScout | WireHello
Message = TransportMessage | NetworkMessage | ScoutingMessage

TRANSPORT = MessageTable(
    "transport message",
    MessageRow(
        oam.TRANSPORT_ID, "OAM", TransportOam, oam.read_transport_oam, oam.write_transport_oam
    ),
    MessageRow(init.ID, "INIT", Init, init.read_init, init.write_init),
    MessageRow(open_.ID, "OPEN", Open, open_.read_open, open_.write_open),
    MessageRow(close.ID, "CLOSE", Close, close.read_close, close.write_close),
    MessageRow(
        keepalive.ID, "KEEP_ALIVE", KeepAlive, keepalive.read_keepalive, keepalive.write_keepalive
    ),
    MessageRow(frame.ID, "FRAME", Frame, frame.read_frame, frame.write_frame),
    MessageRow(fragment.ID, "FRAGMENT", Fragment, fragment.read_fragment, fragment.write_fragment),
    MessageRow(join.ID, "JOIN", Join, join.read_join, join.write_join),
)

# Ids as of INIT and OPEN: the socket on which a datagram was received tells them apart.
SCOUTING = MessageTable(
    "scouting message",
    MessageRow(scout.ID, "SCOUT", WireScout, scout.read_scout, scout.write_scout),
    MessageRow(hello.ID, "HELLO", WireHello, hello.read_hello, hello.write_hello),
)


class LocatedMessage(NamedTuple):
    """A message and where its bytes stand."""

    start: int
    end: int
    message: Message
    frame: Frame | None = None
    "The FRAME around a network message; its own `messages` stay empty."


def walk(r: ByteReader, *, low_latency: bool = False) -> Iterator[LocatedMessage]:
    """Yield every message of the batch that `r` spans, in order; a FRAME before its messages.

    Raises DecodeError at the first message that does not decode, after all messages before it.
    """
    while r.pos < r.end:
        start = r.pos
        if low_latency and is_network(r.data[start]):
            message = NETWORK.read(r)
            yield LocatedMessage(start, r.pos, message)
            continue
        message = TRANSPORT.read(r)
        yield LocatedMessage(start, r.pos, message)
        if type(message) is Frame:
            yield from _walk_frame(r, message)


def _walk_frame(r: ByteReader, holder: Frame) -> Iterator[LocatedMessage]:
    while r.pos < r.end and is_network(r.data[r.pos]):
        start = r.pos
        try:
            message = NETWORK.read(r)
        except DecodeError as error:
            error.within("FRAME")
            raise
        yield LocatedMessage(start, r.pos, message, holder)


def read_batch(data: bytes, *, shm: bool = False) -> list[TransportMessage]:
    """Return the transport messages of a whole batch, FRAMEs filled."""
    r = ByteReader(data, shm=shm)
    messages: list[TransportMessage] = []
    while r.pos < r.end:
        message = TRANSPORT.read(r)
        messages.append(message)
        if type(message) is Frame:
            _fill_frame(r, message)
    return messages


def _fill_frame(r: ByteReader, holder: Frame) -> None:
    """Append the messages of a FRAME to it."""
    data, end, read, append = r.data, r.end, NETWORK.read, holder.messages.append
    try:
        while r.pos < end and is_network(data[r.pos]):
            append(read(r))
    except DecodeError as error:
        error.within("FRAME")
        raise


def write_batch(messages: list[TransportMessage]) -> bytes:
    w = ByteWriter()
    for message in messages[:-1]:
        if isinstance(message, Fragment):
            raise EncodeError("takes the rest of its batch: nothing can follow it", "FRAGMENT")
    for message in messages:
        TRANSPORT.write(w, message)
    return bytes(w.out)


def read_scouting(data: bytes) -> ScoutingMessage:
    """Return the only message of a scouting datagram."""
    r = ByteReader(data)
    message: ScoutingMessage = SCOUTING.read(r)
    r.finish("datagram")
    return message


def write_scouting(message: ScoutingMessage) -> bytes:
    return encode(SCOUTING.write, message)
