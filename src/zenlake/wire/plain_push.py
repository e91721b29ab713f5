"""The plain PUSH by hand: most traffic, read and written without an object.

Plain is a PUSH with a short key, no extension but QoS, and a PUT without flags. Knows the layout of
push.py, put.py and wireexpr.py, held to them by tests. Any other message is left to the codec.
"""

from typing import Any

from zenlake.wire.cursor import encode
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.encoding import DEFAULT as DEFAULT_ENCODING
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.extensions import FLAG_EXTENSIONS, QOS
from zenlake.wire.network import NETWORK
from zenlake.wire.push import ID as PUSH
from zenlake.wire.push import Push
from zenlake.wire.put import ID as PUT
from zenlake.wire.put import Put
from zenlake.wire.qos import DEFAULT as DEFAULT_QOS
from zenlake.wire.qos import QoS
from zenlake.wire.wireexpr import FLAG_MAPPING, FLAG_NAMED, WireExpr

PlainPutFields = tuple[Any, int, int, int, int, int]
"""Fields of a plain put: name of its key, end of the key, start of the PUT, QoS byte, start and end
of the payload. The name is `mapping << 16 | scope`, or that and the suffix as bytes."""

_ONE_BYTE = 0x80  # A zint below it has one byte; in any other byte it says that more follow.
_LENGTH_SHIFT = 21  # Place of the last group of bits of a length below 2^28.


def read_plain_push(data: bytes, pos: int, end: int) -> PlainPutFields | None:
    """Return the fields of the message at `pos`; None if it is not plain, or not whole."""
    header = data[pos]
    if header & ID_MASK != PUSH:
        return None
    try:
        if data[pos + 1] >= _ONE_BYTE:
            return None
        name: Any = data[pos + 1] | (header & FLAG_MAPPING) << 10
        at = pos + 2
        if header & FLAG_NAMED:
            size = data[at]
            if size >= _ONE_BYTE:
                return None
            name = (name, data[at + 1 : at + 1 + size])
            at += 1 + size
        after_key, qos = at, int(DEFAULT_QOS)
        if header & FLAG_EXTENSIONS:
            if data[at] != QOS.header or data[at + 1] >= _ONE_BYTE:
                return None
            qos = data[at + 1]
            at += 2
        if data[at] != PUT:
            return None
        size, start = data[at + 1], at + 2
        if size >= _ONE_BYTE:
            size, shift, byte = size - _ONE_BYTE, 0, _ONE_BYTE
            while byte >= _ONE_BYTE:
                if shift == _LENGTH_SHIFT:
                    return None
                shift += 7
                byte = data[start]
                size |= (byte & ~_ONE_BYTE) << shift
                start += 1
    except IndexError:
        return None
    if start + size > end:
        return None
    return name, after_key, at, qos, start, start + size


def write_plain_head(
    key: WireExpr, encoding: WireEncoding = DEFAULT_ENCODING, qos: QoS = DEFAULT_QOS
) -> bytes:
    """Return a put up to the length of its payload, which length and payload complete."""
    put = Push(key, Put(encoding=encoding), qos)
    return encode(NETWORK.write, put)[:-1]  # without the length of the empty payload
