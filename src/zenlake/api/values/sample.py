"""Sample: what a subscriber or a query gets, made from received bytes and read only when asked.

Knows where in the buffer its parts stand. Does not know who sent it or who else has it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import Any, final

from zenlake.api.values.encoding import Encoding
from zenlake.api.values.enums import (
    QOS_CONGESTION_CONTROL,
    QOS_EXPRESS,
    QOS_PRIORITY,
    CongestionControl,
    Priority,
    SampleKind,
)
from zenlake.api.values.ids import SourceInfo
from zenlake.api.values.instrumentation import TimestampStack
from zenlake.api.values.timestamps import Timestamp
from zenlake.api.values.zbytes import ZBytes
from zenlake.keyexpr import KeyExpr
from zenlake.wire.cursor import ByteReader
from zenlake.wire.delete import Del
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.tsstack import WireTimestampStack as WireStack
from zenlake.wire.wireexpr import WireExpr

PLAIN = Push(WireExpr())  # what a sample comes in that has a payload and nothing else
SHORT = 3  # the length of a sample that leaves the rest to its chunk

Parts = tuple[bytes, int, int, Any]


@final
class Sample(tuple[Any, ...]):
    """One value, or its end, on one key.

    Payload and attachment are views of the received bytes, not copies: a sample that is kept keeps
    the buffer it came in.
    """

    # (key, data, start, end, rest): the payload is data[start:end]; `rest` is None when nothing
    # stands beside it, a PUSH, or where in `data` the PUSH starts. Or (key, chunk, number), where
    # the chunk knows the same of many. A tuple is made without a line of Python, which is what
    # receiving millions of them a second takes.
    __slots__ = ()

    def __new__(cls, *_args: object, **_kwargs: object) -> "Sample":
        raise TypeError("No constructor defined for Sample")

    @classmethod
    def of(
        cls,
        key: str,
        body: Put | Del,
        qos: int,
        reliable: bool = True,
        ts_stack: WireStack | None = None,
    ) -> "Sample":
        """From what was decoded."""
        payload = body.payload if type(body) is Put else b""
        assert not isinstance(payload, tuple)
        push = Push(WireExpr(), body, QoS.from_byte(qos), ts_stack=ts_stack)
        return _new((KeyExpr.trusted(key), payload, 0, len(payload), push))

    def _parts(self) -> Parts:
        """(data, start, end, rest)"""
        if len(self) == SHORT:
            chunk: SampleChunk = self[1]
            return chunk.part(self[2])
        return self[1:]

    def _push(self) -> Push:
        data, _, _, rest = self._parts()
        if rest is None:
            return PLAIN
        if type(rest) is int:
            message: Push = NETWORK.read(ByteReader(data, rest, len(data)))
            return message
        return rest  # type: ignore[no-any-return]

    key_expr: property = property(itemgetter(0), doc="The key it is about.")

    @property
    def payload(self) -> ZBytes:
        """The value; empty when this is a delete."""
        if len(self) == SHORT:
            chunk: SampleChunk = self[1]
            return chunk.payload(self[2])
        _, data, start, end, _ = self
        if start == 0 and end == len(data):
            return ZBytes.of(data)
        return ZBytes.of(memoryview(data)[start:end])

    @property
    def kind(self) -> SampleKind:
        """PUT or DELETE."""
        return SampleKind.PUT if type(self._push().body) is Put else SampleKind.DELETE

    @property
    def encoding(self) -> Encoding:
        """How the payload is to be read."""
        body = self._push().body
        return Encoding.of(body.encoding) if type(body) is Put else Encoding.ZENOH_BYTES

    @property
    def timestamp(self) -> Timestamp | None:
        """When it was put, by the clock of who stamped it."""
        stamp = self._push().body.timestamp
        return None if stamp is None else Timestamp.of(stamp)

    @property
    def priority(self) -> Priority:
        """The priority it was sent with."""
        return QOS_PRIORITY[self._push().qos]

    @property
    def congestion_control(self) -> CongestionControl:
        """What was to happen where there was no room for it."""
        return QOS_CONGESTION_CONTROL[self._push().qos]

    @property
    def express(self) -> bool:
        """Whether it was sent without waiting for company."""
        return QOS_EXPRESS[self._push().qos]

    @property
    def source_info(self) -> SourceInfo | None:
        """Who put it, and as its how-manieth."""
        info = self._push().body.source_info
        return None if info is None else SourceInfo.of(info)

    @property
    def attachment(self) -> ZBytes | None:
        """What the sender sent beside the payload."""
        attached = self._push().body.attachment
        return None if attached is None else ZBytes.of(attached)

    @property
    def timestamp_stack(self) -> TimestampStack | None:
        """Where and when it passed, if the sender asked for that."""
        stack = self._push().ts_stack
        return None if stack is None else TimestampStack.of(stack)

    def _value(self) -> tuple[Any, ...]:
        """What makes it this sample; of one key the earlier comes first."""
        push = self._push()
        body = push.body
        return (
            str(self[0]),
            _maybe(body.timestamp),
            type(body) is Del,
            bytes(self.payload),
            str(self.encoding),
            _maybe(body.source_info),
            _maybe(body.attachment),
            int(push.qos),
        )

    def __eq__(self, other: object) -> bool:
        return self._value() == other._value() if type(other) is Sample else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: object) -> bool:
        return self._value() < other._value() if type(other) is Sample else NotImplemented

    def __le__(self, other: object) -> bool:
        return self._value() <= other._value() if type(other) is Sample else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self._value() > other._value() if type(other) is Sample else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self._value() >= other._value() if type(other) is Sample else NotImplemented

    def __hash__(self) -> int:
        return hash((str(self[0]), bytes(self.payload)))

    def __reduce__(self) -> tuple[Callable[..., "Sample"], tuple[Any, ...]]:
        push = self._push()
        body = Put(bytes(self.payload)) if push is PLAIN else push.body
        return _restored, (str(self[0]), body, int(push.qos), push.ts_stack)

    def __repr__(self) -> str:
        kind = self.kind.name
        return f"Sample({kind} {str(self[0])!r} {self.payload!r} {self.encoding})"


def _maybe(value: object) -> tuple[object, ...]:
    """None as something that can be compared."""
    return () if value is None else (value,)


_new: Callable[[Iterable[Any]], Sample] = partial(tuple.__new__, Sample)


class SampleChunk:
    """Samples that came together. Where their parts stand is made into Python's numbers when the
    first is asked for it."""

    __slots__ = ("_data", "_ends", "_read", "_rests", "_starts")

    def __init__(self, data: bytes, starts: Any, ends: Any, rests: Sequence[int] | None) -> None:
        self._data = data
        self._starts = starts
        self._ends = ends
        self._rests = rests
        self._read: tuple[memoryview, list[int], list[int]] | None = None

    def _places(self) -> tuple[memoryview, list[int], list[int]]:
        """Twice, if two threads are the first: to the same end."""
        self._read = memoryview(self._data), self._starts.tolist(), self._ends.tolist()
        return self._read

    def payload(self, number: int) -> ZBytes:
        view, starts, ends = self._read or self._places()
        return ZBytes.of(view[starts[number] : ends[number]])

    def part(self, number: int) -> Parts:
        _, starts, ends = self._read or self._places()
        rest = None if self._rests is None else self._rests[number]
        return self._data, starts[number], ends[number], rest


def _restored(key: str, body: Put | Del, qos: int, stack: WireStack | None) -> Sample:
    return Sample.of(key, body, qos, ts_stack=stack)


def samples_of(keys: Iterable[KeyExpr], chunk: SampleChunk, count: int) -> Iterator[Sample]:
    """The samples of a chunk as they are asked for, at the speed of `zip`."""
    return map(_new, zip(keys, repeat(chunk), range(count), strict=False))


def samples(
    keys: Iterable[KeyExpr],
    data: Iterable[bytes],
    starts: Iterable[int],
    ends: Iterable[int],
    rests: Iterable[Any],
) -> Iterator[Sample]:
    """Samples as they are asked for, at the speed of `zip`."""
    return map(_new, zip(keys, data, starts, ends, rests, strict=False))
