"""ZenohId, EntityGlobalId and SourceInfo as the API shows them.

Knows how they look; what they are on the wire is known to wire/zenohid.py and wire/entity.py.
"""

from operator import index
from typing import Self

from zenlake.api.values.wrapped import Wrapped
from zenlake.errors import ZError
from zenlake.wire import entity, zenohid
from zenlake.wire.cursor import U32

EntityId = int
SourceSn = int


class ZenohId(Wrapped[zenohid.WireZenohId]):
    """The identity of a node: shown in hexadecimal, `bytes()` of it is little-endian.

    >>> zid = ZenohId.parse("a1b2")
    >>> zid, bytes(zid)
    (a1b2, b'\\xb2\\xa1')
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """From its text: lower-case hexadecimal without a leading zero."""
        try:
            return cls.of(zenohid.WireZenohId.parse(text))
        except ValueError as error:
            raise ZError(str(error)) from None

    def __bytes__(self) -> bytes:
        return self.wire.raw

    def __hash__(self) -> int:
        return hash(self.wire.raw)


class EntityGlobalId(Wrapped[entity.WireEntityId]):
    """A publisher, subscriber, querier or queryable, within the whole system."""

    __slots__ = ()

    @property
    def zid(self) -> ZenohId:
        """The session it belongs to."""
        return ZenohId.of(self.wire.zid)

    @property
    def eid(self) -> EntityId:
        """Its number within that session."""
        return self.wire.eid

    def __repr__(self) -> str:
        return f"EntityGlobalId({self})"


class SourceInfo(Wrapped[entity.WireSourceInfo]):
    """Which entity sent a sample, and as its how-manieth."""

    __slots__ = ()

    def __new__(cls, source_id: EntityGlobalId, source_sn: SourceSn) -> Self:
        if not isinstance(source_id, EntityGlobalId):
            raise TypeError(f"source_id is an EntityGlobalId, not {type(source_id).__name__}")
        if not 0 <= index(source_sn) <= U32:
            raise OverflowError(f"source_sn is {source_sn}, which 32 bits cannot hold")
        return cls.of(entity.WireSourceInfo(source_id.wire, source_sn))

    @property
    def source_id(self) -> EntityGlobalId:
        """The entity that sent it."""
        return EntityGlobalId.of(self.wire.id)

    @property
    def source_sn(self) -> SourceSn:
        """The entity's own count of what it sent."""
        return self.wire.sn

    def __repr__(self) -> str:
        return f"SourceInfo({self})"
