"""QueryBody: the value that a query may carry.

Knows the extension body: an encoding, then payload to the end. Does not look into the payload.
"""

from dataclasses import dataclass

from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.encoding import DEFAULT, WireEncoding, read_encoding, write_encoding


@dataclass(frozen=True, slots=True)
class QueryBody:
    """
    ~   encoding    ~   always written, also the default
    ~    payload    ~   the rest of the extension; a list of slices when the query is marked shm
    """

    payload: bytes | memoryview = b""
    encoding: WireEncoding = DEFAULT


def read_query_body(r: ByteReader, field: str) -> QueryBody:
    encoding = read_encoding(r, field)
    return QueryBody(r.rest(), encoding)


def read_shared_query_body(r: ByteReader, field: str) -> QueryBody:
    """Read the body of a query that is marked shm: the slices end by themselves.

    The length before it is not theirs: Rust nodes write that of the payload that the slices point
    to, and ignore it (`ValueType` in zenoh-codec `src/zenoh/mod.rs`).
    """
    r.zint(field)
    encoding = read_encoding(r, field)
    start = r.pos
    for _ in range(r.count(field)):
        r.u8(field)
        r.block(field)
    return QueryBody(r.data[start : r.pos], encoding)


def write_query_body(w: ByteWriter, field: str, body: QueryBody) -> None:
    write_encoding(w, body.encoding, field)
    w.out += body.payload
