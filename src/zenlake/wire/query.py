"""QUERY: the question in a REQUEST. Knows its bytes; does not know the key or who answers."""

from dataclasses import dataclass

from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.entity import WireSourceInfo
from zenlake.wire.enums import Consolidation
from zenlake.wire.extensions import SOURCE_INFO, Extension, ExtensionKind, ExtensionTable, Unknown
from zenlake.wire.querybody import QueryBody

ID = 0x03
FLAG_CONSOLIDATION = 0x20
FLAG_PARAMETERS = 0x40

EXTENSIONS = ExtensionTable(
    "QUERY",
    SOURCE_INFO,
    # Not mandatory on the wire, yet the body cannot be read without shared memory.
    Extension(0x04, "shm", ExtensionKind.SHM_MARK, False),
    Extension(0x43, "body", ExtensionKind.QUERY_BODY),
    Extension(0x45, "attachment", ExtensionKind.ATTACHMENT),
)
CONSOLIDATIONS = tuple(Consolidation)


@dataclass(slots=True)
class WireQuery:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|P|C|   0x03  |   C: consolidation   P: parameters   Z: extensions
    +-+-+-+---------+
    % consolidation %   if C; z64, an unknown one counts as AUTO
    ~ params <u32>  ~   if P: text
    ~ [extensions]  ~   if Z: SourceInfo, body-is-Shm, QueryBody, Attachment
    +---------------+
    """

    consolidation: Consolidation = Consolidation.AUTO
    parameters: str = ""
    source_info: WireSourceInfo | None = None
    body: QueryBody | None = None
    attachment: bytes | None = None
    shm: bool = False
    extensions: tuple[Unknown, ...] = ()


def read_consolidation(r: ByteReader) -> Consolidation:
    value = r.zint("consolidation")
    return CONSOLIDATIONS[value] if value < len(CONSOLIDATIONS) else Consolidation.AUTO


def read_query(r: ByteReader, header: int) -> WireQuery:
    query = WireQuery()
    if header & FLAG_CONSOLIDATION:
        query.consolidation = read_consolidation(r)
    if header & FLAG_PARAMETERS:
        query.parameters = r.text("parameters")
    EXTENSIONS.read(r, header, query)
    return query


def write_query(w: ByteWriter, query: WireQuery) -> None:
    start = len(w.out)
    w.out.append(ID)
    if query.consolidation:
        w.out[start] |= FLAG_CONSOLIDATION
        w.zint("consolidation", query.consolidation)
    if query.parameters:
        w.out[start] |= FLAG_PARAMETERS
        w.text("parameters", query.parameters)
    EXTENSIONS.write(w, query, start)
