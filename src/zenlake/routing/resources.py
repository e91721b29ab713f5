"""Resources: who declared which key, for one kind of declaration.

Knows keys, faces and what a face said of a key. Does not know who is told of it.
"""

from collections.abc import Hashable, Iterator

from zenlake.keyexpr import KeyExprTree
from zenlake.routing.face import Face
from zenlake.wire.extensions import QueryableInfo

MAX_DISTANCE = 0xFFFF
PRESENT = QueryableInfo()
"What is said of subscribers and tokens: that they are there."


def merge(a: QueryableInfo | None, b: QueryableInfo) -> QueryableInfo:
    """Two queryables seen as one: complete if one is, as near as the nearest of the better kind."""
    if a is None or (b.complete and not a.complete):
        return b
    if a.complete and not b.complete:
        return a
    return a if a.distance <= b.distance else b


def beyond(face: Face, info: QueryableInfo) -> QueryableInfo:
    """What `face` said, seen from here: one hop further, unless it is the local session."""
    if face.is_local:
        return info
    return QueryableInfo(info.complete, min(info.distance + 1, MAX_DISTANCE))


class DeclaredResources:
    """Declarations of one kind. A face may declare a key many times, with an id for each."""

    __slots__ = ("_sources", "_tree")

    def __init__(self) -> None:
        self._tree: KeyExprTree[Face] = KeyExprTree()
        self._sources: dict[str, dict[Face, dict[Hashable, QueryableInfo]]] = {}

    def __len__(self) -> int:
        """How many keys are declared."""
        return len(self._tree)

    def declare(self, face: Face, number: Hashable, key: str, info: QueryableInfo) -> None:
        """A new declaration, or another info of one that is there."""
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
        """The ids under which `face` declared exactly `key`."""
        return [*self._sources.get(key, {}).get(face, ())]

    def sources(self, key: str) -> Iterator[tuple[Face, QueryableInfo]]:
        """Who declared exactly `key`, and what each said, seen from here."""
        for face, infos in self._sources.get(key, {}).items():
            merged: QueryableInfo | None = None
            for info in infos.values():
                merged = merge(merged, info)
            if merged is not None:
                yield face, beyond(face, merged)

    def intersecting(self, key: str | None) -> list[str]:
        """The declared keys that have a key in common with `key`; None: all."""
        if key is None:
            return [*self._sources]
        return [found for found, _ in self._tree.intersecting(key)]

    def faces(self, key: str) -> Iterator[Face]:
        """Who declared something that has a key in common with `key`; some more than once."""
        for _, faces in self._tree.intersecting(key):
            yield from faces
