"""FRAME: whole network messages that share one lane and one sequence number.

Knows the header and how the messages inside end. Does not know whether the number is in order.
"""

from dataclasses import dataclass, field

from zenlake.wire.cursor import U32, ByteReader, ByteWriter
from zenlake.wire.enums import WirePriority
from zenlake.wire.extensions import LANE, ExtensionTable, Unknown
from zenlake.wire.network import NETWORK, NetworkMessage

ID = 0x05
FLAG_RELIABLE = 0x20

EXTENSIONS = ExtensionTable("FRAME", LANE)


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
