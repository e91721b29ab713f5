"""A tree from key expressions to values, which finds all that relate to a given one.

Knows chunks and matching, not what the values are: the routing tables put subscriptions, tokens
and queryables here, a storage its stored keys. Keys given to it are canonical; it does not check.

A lookup carries, for each branch, the set of positions of the asked key that the branch may have
reached, as bits of an int, so a branch is walked once however many `**` both sides have.
"""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from zenlake.keyexpr.canon import DOUBLE_WILD
from zenlake.keyexpr.match import (
    ChunkBits,
    Covers,
    chunk_includes,
    chunk_intersects,
    is_wild_chunk,
)

V = TypeVar("V")


class KeyExprTree(Generic[V]):
    """Values (hashable, each once per expression) by key expression.

    Looking up one concrete key costs as many steps as it has chunks, times the wildcard branches
    that match it, however many expressions are held. Branches with `$*` are tried one by one at
    each node: thousands of different `$*` chunks under one node are thousands of trials.

    The iterators read the tree as they go: change it only when they are done.

    >>> tree = KeyExprTree[str]()
    >>> tree.insert("robot/*/battery", "dashboard")
    True
    >>> tree.insert("robot/**", "recorder")
    True
    >>> sorted(tree.intersecting("robot/7/battery"))
    [('robot/**', ('recorder',)), ('robot/*/battery', ('dashboard',))]
    >>> list(tree.included("robot/*/*"))
    [('robot/*/battery', ('dashboard',))]
    """

    __slots__ = ("_len", "_root")

    def __init__(self) -> None:
        self._root = _TreeNode[V]()
        self._len = 0

    def __len__(self) -> int:
        """Return how many expressions have a value."""
        return self._len

    def __iter__(self) -> Iterator[tuple[str, tuple[V, ...]]]:
        """Yield every expression with its values, in no particular order."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            if node.values:
                yield node.key, tuple(node.values)
            stack.extend(node.plain.values())
            stack.extend(node.wild.values())

    def insert(self, key: str, value: V) -> bool:
        """Add `value` under `key`; False if it was there already."""
        node = self._root
        for chunk in key.split("/"):
            node = node.child_or_new(chunk)
        if not node.values:
            node.key = key
            self._len += 1
        elif value in node.values:
            return False
        node.values[value] = None
        return True

    def remove(self, key: str, value: V) -> bool:
        """Remove `value` from `key` and cut branches left empty; False if it was not there."""
        path = [self._root]
        chunks = key.split("/")
        for chunk in chunks:
            child = path[-1].child(chunk)
            if child is None:
                return False
            path.append(child)
        values = path[-1].values
        if value not in values:
            return False
        del values[value]
        if not values:
            self._len -= 1
        while chunks and path.pop().is_empty():
            path[-1].drop_child(chunks.pop())
        return True

    def get(self, key: str) -> tuple[V, ...]:
        """Return the values inserted under exactly this expression."""
        node = self._root
        for chunk in key.split("/"):
            child = node.child(chunk)
            if child is None:
                return ()
            node = child
        return tuple(node.values)

    def intersecting(self, key: str) -> Iterator[tuple[str, tuple[V, ...]]]:
        """Yield the expressions that have a key in common with `key`, in no particular order."""
        return self._found(_intersecting(key))

    def including(self, key: str) -> Iterator[tuple[str, tuple[V, ...]]]:
        """Yield the expressions that include `key`, in no particular order."""
        return self._found(_including(key))

    def included(self, key: str) -> Iterator[tuple[str, tuple[V, ...]]]:
        """Yield the expressions that `key` includes, in no particular order."""
        return self._found(_included(key))

    def visited(self, key: str) -> int:
        """Return how many nodes `intersecting(key)` visits, for diagnostics."""
        return sum(1 for _ in self._walk(_intersecting(key)))

    def _found(self, query: "_TreeQuery") -> Iterator[tuple[str, tuple[V, ...]]]:
        for node, here in self._walk(query):
            if node.values and here & query.end:
                yield node.key, tuple(node.values)

    def _walk(self, query: "_TreeQuery") -> Iterator[tuple["_TreeNode[V]", int]]:
        """Yield every node that can be reached, with the query's positions there."""
        stack = [(self._root, 1)]
        while stack:
            node, here = stack.pop()
            yield node, here
            for chunk, child in node.wild.items():
                if there := query.step(here, chunk):
                    stack.append((child, there))
            if here & query.scan:
                for chunk, child in node.plain.items():
                    if there := query.step(here, chunk):
                        stack.append((child, there))
            elif node.plain:
                for chunk, everywhere in query.bits.distinct(here & query.end - 1):
                    if named := node.plain.get(chunk):
                        stack.append((named, (here & everywhere) << 1))


class _TreeNode(Generic[V]):
    __slots__ = ("key", "plain", "values", "wild")

    def __init__(self) -> None:
        self.plain: dict[str, _TreeNode[V]] = {}
        """Children by a chunk that matches itself alone: a literal or a verbatim chunk."""
        self.wild: dict[str, _TreeNode[V]] = {}
        """Children by a chunk that may match others: `*`, `**`, and chunks with `$*`."""
        self.values: dict[V, None] = {}
        """Values as a set that keeps the order of insertion."""
        self.key = ""
        """Whole expression, while there are values."""

    def is_empty(self) -> bool:
        return not (self.values or self.plain or self.wild)

    def child(self, chunk: str) -> "_TreeNode[V] | None":
        return self._siblings(chunk).get(chunk)

    def child_or_new(self, chunk: str) -> "_TreeNode[V]":
        siblings = self._siblings(chunk)
        child = siblings.get(chunk)
        if child is None:
            child = siblings[chunk] = _TreeNode()
        return child

    def drop_child(self, chunk: str) -> None:
        del self._siblings(chunk)[chunk]

    def _siblings(self, chunk: str) -> "dict[str, _TreeNode[V]]":
        return self.wild if is_wild_chunk(chunk) else self.plain


class _TreeQuery:
    """State of a query: bit i is set while i of its chunks are matched.

    `gaps` are the positions where a `**` of the asked key may swallow a chunk of the tree,
    `scan` those from which a plain chunk can be matched that is not called the same.
    """

    __slots__ = ("_covers", "_double_wild", "_gaps", "bits", "end", "scan")

    def __init__(
        self,
        bits: ChunkBits,
        gaps: int,
        scan: int,
        covers: Covers,
        double_wild: Callable[[int], int],
    ) -> None:
        self.bits = bits
        self.scan = scan
        self.end = 1 << len(bits.chunks)
        self._gaps = gaps
        self._covers = covers
        self._double_wild = double_wild

    def step(self, here: int, chunk: str) -> int:
        """Return the positions after one more chunk of the tree."""
        if chunk == DOUBLE_WILD:
            return self._double_wild(here)
        there = self.bits.covering(chunk, here & self.end - 1, self._covers) << 1
        return there if chunk[0] == "@" else there | here & self._gaps


def _intersecting(key: str) -> _TreeQuery:
    bits, gaps = _split_at_double_wild(key)
    return _TreeQuery(bits, gaps, gaps | bits.wild, chunk_intersects, _swallow(bits))


def _included(key: str) -> _TreeQuery:
    bits, gaps = _split_at_double_wild(key)
    return _TreeQuery(bits, gaps, gaps | bits.wild, chunk_includes, gaps.__and__)


def _including(key: str) -> _TreeQuery:
    # Here a `**` of the query is one more chunk to be covered, and only `**` covers it.
    bits = ChunkBits(key.split("/"))
    return _TreeQuery(bits, 0, 0, lambda mine, theirs: chunk_includes(theirs, mine), _swallow(bits))


def _split_at_double_wild(key: str) -> tuple[ChunkBits, int]:
    chunks: list[str] = []
    gaps = 0
    for chunk in key.split("/"):
        if chunk == DOUBLE_WILD:
            gaps |= 1 << len(chunks)
        else:
            chunks.append(chunk)
    return ChunkBits(chunks), gaps


def _swallow(bits: ChunkBits) -> Callable[[int], int]:
    """Return the positions that a `**` of the tree reaches, over chunks that are not verbatim."""
    free = sum(where for chunk, where in bits.where.items() if chunk[0] != "@")

    def swallow(here: int) -> int:
        # The carry of the sum runs from each start through the ones of `free` and stops one
        # past them, as the bit-parallel algorithms of approximate matching do (Myers 1999).
        return (((here & free) + free) ^ free) | here

    return swallow
