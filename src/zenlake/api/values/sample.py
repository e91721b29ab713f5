"""Sample: a received value, made of received bytes and decoded only where it is read.

Knows the positions of its parts in the buffer. Does not know sender or receivers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast, final

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
from zenlake.api.values.wrapped import Value
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

if TYPE_CHECKING:
    import numpy as np

    from zenlake.shm.pointers import HeldPayload, HeldPayloads

    Positions = np.ndarray[tuple[int], np.dtype[np.signedinteger[Any]]]
    _Row = object  # Programs are not to take a sample for a tuple.
else:
    _Row = tuple

PLAIN = Push(WireExpr())  # PUSH of a sample with a payload and nothing else.
SHORT = 3  # Length of a sample tuple that leaves the rest to its chunk.

Parts = tuple[bytes, int, int, Any]


@final
class Sample(Value, _Row):
    """One value, or its deletion, on one key.

    Payload and attachment are views of the received bytes, not copies: a sample keeps its whole
    receive buffer alive.
    """

    # (key, data, start, end, rest): the payload is data[start:end]; `rest` is None if there is only
    # a payload, else a PUSH, or the position of the PUSH in `data`. Or (key, chunk, number), with a
    # chunk that has these values of many samples. A tuple is made without running Python code,
    # which receiving millions of samples per second requires.
    __slots__ = ()

    if not TYPE_CHECKING:

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
        """Make a sample of a decoded message."""
        payload = body.payload if type(body) is Put else b""
        assert not isinstance(payload, tuple)
        push = Push(WireExpr(), body, QoS.from_byte(qos), ts_stack=ts_stack)
        return _new((KeyExpr.trusted(key), payload, 0, len(payload), push))

    def _parts(self: Any) -> Parts:
        """Return (data, start, end, rest)."""
        if len(self) == SHORT:
            chunk: SampleChunk | SharedChunk = self[1]
            return chunk.part(self[2])
        parts: Parts = self[1:]
        return parts

    def _push(self) -> Push:
        data, _, _, rest = self._parts()
        if rest is None:
            return PLAIN
        if type(rest) is int:
            message: Push = NETWORK.read(ByteReader(data, rest, len(data)))
            return message
        return rest  # type: ignore[no-any-return]

    if TYPE_CHECKING:

        @property
        def key_expr(self) -> KeyExpr: ...
    else:
        key_expr = property(itemgetter(0), doc="Key of the sample.")  # Runs no Python code.

    @property
    def payload(self: Any) -> ZBytes:
        """Value; empty for a delete."""
        if len(self) == SHORT:
            chunk: SampleChunk | SharedChunk = self[1]
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
        """Encoding of the payload."""
        body = self._push().body
        return Encoding.of(body.encoding) if type(body) is Put else Encoding.ZENOH_BYTES

    @property
    def timestamp(self) -> Timestamp | None:
        """Time of the put, by the clock of the node that stamped it."""
        stamp = self._push().body.timestamp
        return None if stamp is None else Timestamp.of(stamp)

    @property
    def priority(self) -> Priority:
        """Priority it was sent with."""
        return QOS_PRIORITY[self._push().qos]

    @property
    def congestion_control(self) -> CongestionControl:
        """Congestion control it was sent with."""
        return QOS_CONGESTION_CONTROL[self._push().qos]

    @property
    def express(self) -> bool:
        """Whether it was sent at once, without waiting for a fuller batch."""
        return QOS_EXPRESS[self._push().qos]

    @property
    def source_info(self) -> SourceInfo | None:
        """Entity that sent it, and its sequence number."""
        info = self._push().body.source_info
        return None if info is None else SourceInfo.of(info)

    @property
    def attachment(self) -> ZBytes | None:
        """Data that the sender attached to the payload."""
        attached = self._push().body.attachment
        return None if attached is None else ZBytes.of(attached)

    @property
    def timestamp_stack(self) -> TimestampStack | None:
        """Points and times recorded on its path, if the sender asked for them."""
        stack = self._push().ts_stack
        return None if stack is None else TimestampStack.of(stack)

    def _key(self) -> tuple[Any, ...]:
        """Return the values that equality and order compare; of one key the earlier is less."""
        push = self._push()
        body = push.body
        return (
            str(self.key_expr),
            _comparable(body.timestamp),
            type(body) is Del,
            bytes(self.payload),
            str(self.encoding),
            _comparable(body.source_info),
            _comparable(body.attachment),
            int(push.qos),
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((str(self.key_expr), bytes(self.payload)))

    def __reduce__(self) -> tuple[Callable[..., "Sample"], tuple[Any, ...]]:
        push = self._push()
        body = push.body
        if type(body) is Put:
            body = replace(body, payload=bytes(self.payload))
        return _restore, (str(self.key_expr), body, int(push.qos), push.ts_stack)

    def __repr__(self) -> str:
        kind = self.kind.name
        return f"Sample({kind} {str(self.key_expr)!r} {self.payload!r} {self.encoding})"


def _comparable(value: object) -> tuple[object, ...]:
    """Return a tuple that compares, with None as the least value."""
    return () if value is None else (value,)


push_of = Sample._push
"""Return the PUSH that a sample was received in, or PLAIN if it has a payload only."""

_new: Callable[[Iterable[Any]], Sample] = partial(tuple.__new__, cast(Any, Sample))


@dataclass(slots=True, eq=False)
class SampleChunk:
    """Samples that were received together; positions become Python integers on first use."""

    _data: bytes
    _starts: "Positions"
    _ends: "Positions"
    _rests: Sequence[int] | None
    _read: tuple[memoryview, list[int], list[int]] | None = None

    def _places(self) -> tuple[memoryview, list[int], list[int]]:
        """Convert the positions; two threads may both do it, with equal results."""
        self._read = memoryview(self._data), self._starts.tolist(), self._ends.tolist()
        return self._read

    def payload(self, number: int) -> ZBytes:
        view, starts, ends = self._read or self._places()
        return ZBytes.of(view[starts[number] : ends[number]])

    def part(self, number: int) -> Parts:
        _, starts, ends = self._read or self._places()
        rest = None if self._rests is None else self._rests[number]
        return self._data, starts[number], ends[number], rest


@dataclass(slots=True, eq=False)
class SharedChunk:
    """Samples that were received together, with payloads in shared memory."""

    _data: bytes
    "The messages without their payloads."
    _payloads: "HeldPayload | HeldPayloads"
    _numbers: Sequence[int]
    _rests: Sequence[int | Push | None] | None

    def payload(self, number: int) -> ZBytes:
        return ZBytes.of(self._payloads.payload(self._numbers[number]))

    def part(self, number: int) -> Parts:
        return self._data, 0, 0, None if self._rests is None else self._rests[number]


def _restore(key: str, body: Put | Del, qos: int, stack: WireStack | None) -> Sample:
    return Sample.of(key, body, qos, ts_stack=stack)


def samples_of(
    keys: Iterable[KeyExpr], chunk: SampleChunk | SharedChunk, count: int
) -> Iterator[Sample]:
    """Yield the samples of a chunk lazily, at the speed of `zip`."""
    return map(_new, zip(keys, repeat(chunk), range(count), strict=False))


def samples(
    keys: Iterable[KeyExpr],
    data: Iterable[bytes],
    starts: Iterable[int],
    ends: Iterable[int],
    rests: Iterable[Any],
) -> Iterator[Sample]:
    """Yield samples lazily, at the speed of `zip`."""
    return map(_new, zip(keys, data, starts, ends, rests, strict=False))
