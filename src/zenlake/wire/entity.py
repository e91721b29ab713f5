"""EntityGlobalId and SourceInfo: who sent something, within the whole system.

Knows the two extension bodies. Does not know what entities a node has.
"""

from dataclasses import dataclass

from zenlake.wire.cursor import U32, ByteReader, ByteWriter
from zenlake.wire.zenohid import WireZenohId, read_packed, write_packed


@dataclass(frozen=True, slots=True, order=True)
class WireEntityId:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |zid_len|X|X|X|X|
    +-------+-------+
    ~      zid      ~   1 + zid_len bytes
    %   eid : z32   %
    +---------------+
    """

    zid: WireZenohId
    eid: int

    def __str__(self) -> str:
        return f"{self.zid}/{self.eid}"


@dataclass(frozen=True, slots=True, order=True)
class WireSourceInfo:
    """An EntityGlobalId, then `sn : z32`: the entity's own count of what it sent."""

    id: WireEntityId
    sn: int

    def __str__(self) -> str:
        return f"{self.id}#{self.sn}"


def read_entity(r: ByteReader, field: str) -> WireEntityId:
    zid, _ = read_packed(r, field)
    return WireEntityId(zid, r.zint(field, U32))


def write_entity(w: ByteWriter, field: str, entity: WireEntityId) -> None:
    write_packed(w, entity.zid, 0)
    w.zint(field, entity.eid, U32)


def read_source_info(r: ByteReader, field: str) -> WireSourceInfo:
    return WireSourceInfo(read_entity(r, field), r.zint(field, U32))


def write_source_info(w: ByteWriter, field: str, source: WireSourceInfo) -> None:
    write_entity(w, field, source.id)
    w.zint(field, source.sn, U32)
