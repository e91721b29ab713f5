"""FRAME: whole network messages that share one lane and one sequence number.

Knows the header and how the messages inside end. Does not know whether the number is in order.
"""

from dataclasses import dataclass, field

from zenlake.errors import EncodeError
from zenlake.wire.cursor import U32, ByteReader, ByteWriter
from zenlake.wire.enums import WirePriority
from zenlake.wire.extensions import FLAG_EXTENSIONS, LANE, ExtensionTable, Unknown
from zenlake.wire.framing import MAX_BATCH_BYTES, Framing
from zenlake.wire.network import NETWORK, NetworkMessage

ID = 0x05
FLAG_RELIABLE = 0x20

DEFAULT_SN_MASK = 0x0FFF_FFFF

EXTENSIONS = ExtensionTable("FRAME", LANE)


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """Lane that messages are sent on, as the link was negotiated."""

    reliable: bool = True
    priority: WirePriority | None = None
    "None on a link without QoS lanes, where a FRAME must not name one."
    batch_size: int = MAX_BATCH_BYTES
    "Negotiated batch size; includes the length prefix on a stream link."
    sn_mask: int = DEFAULT_SN_MASK

    def __post_init__(self) -> None:
        if not Framing.STREAM < self.batch_size <= MAX_BATCH_BYTES:
            raise EncodeError(f"is {self.batch_size}, outside 3 to {MAX_BATCH_BYTES}", "batch size")

    @property
    def max_batch(self) -> int:
        return self.batch_size - Framing.STREAM


@dataclass(slots=True)
class Frame:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|X|R|   0x05  |   R: reliable lane   Z: extensions
    +-+-+-+---------+
    %   sn : z32    %
    ~ [extensions]  ~   if Z: the lane's priority
    ~   messages    ~   up to the first id that is not a network message's
    +---------------+
    """

    sn: int
    reliable: bool = True
    priority: WirePriority = WirePriority.DATA
    messages: list[NetworkMessage] = field(default_factory=list)
    extensions: tuple[Unknown, ...] = ()


def read_frame(r: ByteReader, header: int) -> Frame:
    """Read the header only: the cursor is left at the first message (batch.py walks them)."""
    frame = Frame(r.zint("sn", U32), bool(header & FLAG_RELIABLE))
    EXTENSIONS.read(r, header, frame)
    return frame


def write_frame(w: ByteWriter, frame: Frame) -> None:
    start = len(w.out)
    w.out.append(ID | (FLAG_RELIABLE if frame.reliable else 0))
    w.zint("sn", frame.sn, U32)
    EXTENSIONS.write(w, frame, start)
    for message in frame.messages:
        NETWORK.write(w, message)


def header_parts(priority: WirePriority | None, reliable: bool) -> tuple[int, bytes]:
    """Return the first byte of a FRAME, and the bytes after its sequence number.

    Those name the lane; the lane DATA, and a link without lanes (None), have no name.
    """
    header = ID | (FLAG_RELIABLE if reliable else 0)
    if priority is None or priority is WirePriority.DATA:
        return header, b""
    return header | FLAG_EXTENSIONS, bytes((LANE.header, priority))
