"""ZenohId, EntityGlobalId and SourceInfo: the API objects.

Knows their text; `wire/zenohid.py` and `wire/entity.py` know their bytes.
"""

from operator import index
from typing import Self, final

from zenlake.api.values.wrapped import Wrapped
from zenlake.errors import ZError
from zenlake.wire import entity, zenohid
from zenlake.wire.cursor import U32

EntityId = int
SourceSn = int


@final
class ZenohId(Wrapped[zenohid.WireZenohId]):
    """Identity of a node: printed in hexadecimal, `bytes()` of it is little-endian.

    >>> zid = ZenohId.parse("a1b2")
    >>> zid, bytes(zid)
    (a1b2, b'\\xb2\\xa1')
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse lower-case hexadecimal without a leading zero."""
        try:
            return cls.of(zenohid.WireZenohId.parse(text))
        except ValueError as error:
            raise ZError(str(error)) from None

    def __bytes__(self) -> bytes:
        return self.wire.raw

    def __hash__(self) -> int:
        return hash(self.wire.raw)


@final
class EntityGlobalId(Wrapped[entity.WireEntityId]):
    """Global id of a publisher, subscriber, querier or queryable."""

    __slots__ = ()

    @property
    def zid(self) -> ZenohId:
        """Zenoh id of the entity's session."""
        return ZenohId.of(self.wire.zid)

    @property
    def eid(self) -> EntityId:
        """Number of the entity within its session."""
        return self.wire.eid

    def __repr__(self) -> str:
        return f"EntityGlobalId({self})"


@final
class SourceInfo(Wrapped[entity.WireSourceInfo]):
    """Entity that sent a sample, and the sample's sequence number."""

    __slots__ = ()

    def __new__(cls, source_id: EntityGlobalId, source_sn: SourceSn) -> Self:
        if not isinstance(source_id, EntityGlobalId):
            raise TypeError(f"source_id is an EntityGlobalId, not {type(source_id).__name__}")
        if not 0 <= index(source_sn) <= U32:
            raise OverflowError(f"source_sn is {source_sn}, which 32 bits cannot hold")
        return cls.of(entity.WireSourceInfo(source_id.wire, source_sn))

    @property
    def source_id(self) -> EntityGlobalId:
        """Entity that sent the sample."""
        return EntityGlobalId.of(self.wire.id)

    @property
    def source_sn(self) -> SourceSn:
        """Sequence number of the sample, counted by its entity."""
        return self.wire.sn

    def __repr__(self) -> str:
        return f"SourceInfo({self})"
