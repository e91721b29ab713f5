"""RESPONSE_FINAL: no more answers to a REQUEST on this link."""

from dataclasses import dataclass

from zenlake.wire import qos
from zenlake.wire.cursor import U32, ByteReader, ByteWriter
from zenlake.wire.extensions import QOS, TIMESTAMP, ExtensionTable, Unknown
from zenlake.wire.qos import QoS
from zenlake.wire.timestamp import WireTimestamp

ID = 0x1A

EXTENSIONS = ExtensionTable("RESPONSE_FINAL", QOS, TIMESTAMP)


@dataclass(slots=True)
class ResponseFinal:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|X|X|   0x1a  |   Z: extensions
    +-+-+-+---------+
    % request : z32 %
    ~ [extensions]  ~   if Z: QoS, Timestamp
    +---------------+
    """

    request_id: int
    qos: QoS = qos.DEFAULT
    timestamp: WireTimestamp | None = None
    extensions: tuple[Unknown, ...] = ()


def read_response_final(r: ByteReader, header: int) -> ResponseFinal:
    final = ResponseFinal(r.zint("request id", U32))
    EXTENSIONS.read(r, header, final)
    return final


def write_response_final(w: ByteWriter, final: ResponseFinal) -> None:
    start = len(w.out)
    w.out.append(ID)
    w.zint("request id", final.request_id, U32)
    EXTENSIONS.write(w, final, start)
