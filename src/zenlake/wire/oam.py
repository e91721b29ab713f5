"""OAM: operation, administration and management, on the transport and on the network.

Knows the envelope. Does not know what an id means; link states (id 1) are read by linkstate.py.
"""

from dataclasses import dataclass

from zenlake.errors import DecodeError, Reason
from zenlake.wire import qos
from zenlake.wire.cursor import U16, ByteReader, ByteWriter
from zenlake.wire.enums import WirePriority
from zenlake.wire.extensions import (
    ENC_MASK,
    ENC_UNIT,
    ENC_Z64,
    ENC_ZBUF,
    LANE,
    QOS,
    TIMESTAMP,
    ExtensionTable,
    Unknown,
)
from zenlake.wire.qos import QoS
from zenlake.wire.timestamp import WireTimestamp

TRANSPORT_ID = 0x00
NETWORK_ID = 0x1F
LINK_STATE = 1

TRANSPORT_EXTENSIONS = ExtensionTable("OAM", LANE)
NETWORK_EXTENSIONS = ExtensionTable("OAM", QOS, TIMESTAMP)


@dataclass(slots=True)
class TransportOam:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|ENC|   0x00  |   ENC: how the body is written, as in an extension   Z: extensions
    +-+---+---------+
    %   id : z16    %
    ~ [extensions]  ~   if Z: the lane's priority
    ~     body      ~   nothing, z64 or <u32> bytes
    +---------------+
    """

    id: int
    body: int | bytes | None = None
    priority: WirePriority = WirePriority.DATA
    extensions: tuple[Unknown, ...] = ()


@dataclass(slots=True)
class NetworkOam:
    """As TransportOam with id 0x1f; extensions QoS and Timestamp."""

    id: int
    body: int | bytes | None = None
    qos: QoS = qos.DEFAULT
    timestamp: WireTimestamp | None = None
    extensions: tuple[Unknown, ...] = ()


def read_transport_oam(r: ByteReader, header: int) -> TransportOam:
    oam = TransportOam(r.zint("oam id", U16))
    TRANSPORT_EXTENSIONS.read(r, header, oam)
    oam.body = _read_body(r, header)
    return oam


def read_network_oam(r: ByteReader, header: int) -> NetworkOam:
    oam = NetworkOam(r.zint("oam id", U16))
    NETWORK_EXTENSIONS.read(r, header, oam)
    oam.body = _read_body(r, header)
    return oam


def _read_body(r: ByteReader, header: int) -> int | bytes | None:
    encoding = header & ENC_MASK
    if encoding == ENC_MASK:
        raise DecodeError(Reason.EXTENSION_ENCODING, "body", r.pos)
    if encoding == ENC_UNIT:
        return None
    return r.zint("body") if encoding == ENC_Z64 else r.block("body")


def write_transport_oam(w: ByteWriter, oam: TransportOam) -> None:
    _write(w, TRANSPORT_ID, oam, TRANSPORT_EXTENSIONS)


def write_network_oam(w: ByteWriter, oam: NetworkOam) -> None:
    _write(w, NETWORK_ID, oam, NETWORK_EXTENSIONS)


def _write(
    w: ByteWriter, number: int, oam: TransportOam | NetworkOam, table: ExtensionTable
) -> None:
    start = len(w.out)
    body = oam.body
    encoding = ENC_UNIT if body is None else ENC_Z64 if isinstance(body, int) else ENC_ZBUF
    w.out.append(number | encoding)
    w.zint("oam id", oam.id, U16)
    table.write(w, oam, start)
    if isinstance(body, int):
        w.zint("body", body)
    elif body is not None:
        w.block("body", body)
