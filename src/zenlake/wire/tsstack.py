"""TimestampStack: hops that a message passed, with their times (since Zenoh 1.10).

Knows the extension body. Does not know which node stamps what; an entry's content stays bytes,
since a hop may write a format of its own.
"""

from dataclasses import dataclass

from zenlake.errors import DecodeError, EncodeError, Reason
from zenlake.wire.cursor import ByteReader, ByteWriter

SEND, ROUTE, RECEIVE = 1, 2, 4
CUSTOM_CONTENT = 0x80
MAX_ENTRIES = 255  # Limit of zenoh-protocol network/timestamp_stack.rs.


@dataclass(frozen=True, slots=True)
class WireTimestampStack:
    """
    |     conf      |   which hops should append: SEND | ROUTE | RECEIVE, never 0
    % count : z     %   at most 255 entries, each:
    |     flags     |     kind of hop; bit 7 = the content is not a Timestamp
    ~ content <z>   ~     a Timestamp's bytes
    """

    conf: int
    entries: tuple[tuple[int, bytes], ...] = ()


def read_ts_stack(r: ByteReader, field: str) -> WireTimestampStack:
    start = r.pos
    conf = r.u8(field)
    if conf == 0:
        raise DecodeError(Reason.BAD_VALUE, field, start)
    start = r.pos
    count = r.zint(field)
    if count > MAX_ENTRIES:
        raise DecodeError(Reason.TOO_LARGE, field, start)
    return WireTimestampStack(conf, tuple((r.u8(field), r.block(field)) for _ in range(count)))


def write_ts_stack(w: ByteWriter, field: str, stack: WireTimestampStack) -> None:
    if not stack.conf:
        raise EncodeError("needs at least one of SEND, ROUTE, RECEIVE", field)
    if len(stack.entries) > MAX_ENTRIES:
        raise EncodeError(f"has {len(stack.entries)} entries, more than {MAX_ENTRIES}", field)
    w.u8(field, stack.conf)
    w.zint(field, len(stack.entries))
    for flags, content in stack.entries:
        w.u8(field, flags)
        w.block(field, content)
