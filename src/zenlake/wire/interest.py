"""INTEREST: a request for declarations. Knows its bytes; does not know who declared what."""

from dataclasses import dataclass

from zenlake.wire import qos
from zenlake.wire.cursor import U32, ByteReader, ByteWriter
from zenlake.wire.enums import InterestMode, InterestOptions
from zenlake.wire.extensions import NODE_ID, QOS, TIMESTAMP, ExtensionTable, Unknown
from zenlake.wire.qos import QoS
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr, flags_of, read_wireexpr, write_wireexpr

ID = 0x19
MODE_SHIFT = 5
OPTION_RESTRICTED = 0x10
_ASKED_FOR = sum(InterestOptions)

EXTENSIONS = ExtensionTable("INTEREST", QOS, TIMESTAMP, NODE_ID)


@dataclass(slots=True)
class Interest:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|Mod|   0x19  |   Mod: InterestMode   Z: extensions
    +-+---+---------+
    %   id : z32    %
    |A|M|N|R|T|Q|S|K|   if Mod is not FINAL: InterestOptions; R: a key follows, N and M as there
    ~      key      ~   if R
    ~ [extensions]  ~   if Z: QoS, Timestamp, NodeId
    +---------------+
    """

    id: int
    mode: InterestMode = InterestMode.FINAL
    options: InterestOptions = InterestOptions.NOTHING
    key: WireExpr | None = None
    "Key that the interest is restricted to; None = all keys."
    qos: QoS = qos.DEFAULT
    timestamp: WireTimestamp | None = None
    node_id: int = 0
    extensions: tuple[Unknown, ...] = ()


def read_interest(r: ByteReader, header: int) -> Interest:
    interest = Interest(r.zint("interest id", U32), InterestMode(header >> MODE_SHIFT & 0x03))
    if interest.mode:
        options = r.u8("options")
        interest.options = InterestOptions(options & _ASKED_FOR)
        if options & OPTION_RESTRICTED:
            interest.key = read_wireexpr(r, options)
    EXTENSIONS.read(r, header, interest)
    return interest


def write_interest(w: ByteWriter, interest: Interest) -> None:
    start = len(w.out)
    w.out.append(ID | interest.mode << MODE_SHIFT)
    w.zint("interest id", interest.id, U32)
    if interest.mode:
        options = interest.options & _ASKED_FOR
        if interest.key is None:
            w.out.append(options)
        else:
            w.out.append(options | OPTION_RESTRICTED | flags_of(interest.key))
            write_wireexpr(w, interest.key)
    EXTENSIONS.write(w, interest, start)
