"""Resources: which faces declared which keys, for one kind of declaration.

Knows keys, faces and the QueryableInfo of each declaration. Does not know which faces are told.
"""

from collections.abc import Hashable, Iterator

from zenlake.keyexpr import KeyExprTree
from zenlake.routing.face import Face
from zenlake.wire.extensions import QueryableInfo

MAX_DISTANCE = 0xFFFF  # Largest distance that the u16 of QueryableInfo holds.
PRESENT = QueryableInfo()
"Info of subscribers and tokens, which have none of their own."


def merge(a: QueryableInfo | None, b: QueryableInfo) -> QueryableInfo:
    """Return the info of two queryables as one: the nearest complete one, else the nearest."""
    if a is None or (b.complete and not a.complete):
        return b
    if a.complete and not b.complete:
        return a
    return a if a.distance <= b.distance else b


def add_hop(face: Face, info: QueryableInfo) -> QueryableInfo:
    """Return the info that `face` declared, one hop further unless it is the local session."""
    if face.is_local:
        return info
    return QueryableInfo(info.complete, min(info.distance + 1, MAX_DISTANCE))


class DeclaredResources:
    """Declarations of one kind. A face may declare a key several times, each with its own id."""

    __slots__ = ("_sources", "_tree")

    def __init__(self) -> None:
        self._tree: KeyExprTree[Face] = KeyExprTree()
        self._sources: dict[str, dict[Face, dict[Hashable, QueryableInfo]]] = {}

    def __len__(self) -> int:
        """Return the number of declared keys."""
        return len(self._tree)

    def declare(self, face: Face, number: Hashable, key: str, info: QueryableInfo) -> None:
        """Add a declaration, or replace the info of an existing one."""
        self._sources.setdefault(key, {}).setdefault(face, {})[number] = info
        self._tree.insert(key, face)

    def undeclare(self, face: Face, number: Hashable, key: str) -> None:
        sources = self._sources[key]
        del sources[face][number]
        if sources[face]:
            return
        del sources[face]
        self._tree.remove(key, face)
        if not sources:
            del self._sources[key]

    def numbers(self, face: Face, key: str) -> list[Hashable]:
        """Return the ids under which `face` declared exactly `key`."""
        return [*self._sources.get(key, {}).get(face, ())]

    def sources(self, key: str) -> Iterator[tuple[Face, QueryableInfo]]:
        """Yield the faces that declared exactly `key`, each with its info, one hop further."""
        for face, infos in self._sources.get(key, {}).items():
            merged: QueryableInfo | None = None
            for info in infos.values():
                merged = merge(merged, info)
            if merged is not None:
                yield face, add_hop(face, merged)

    def intersecting(self, key: str | None) -> list[str]:
        """Return the declared keys that intersect `key`; None: all."""
        if key is None:
            return [*self._sources]
        return [found for found, _ in self._tree.intersecting(key)]

    def faces(self, key: str) -> Iterator[Face]:
        """Yield the faces that declared a key intersecting `key`, some several times."""
        for _, faces in self._tree.intersecting(key):
            yield from faces
