"""Relations between two key expressions: intersection, inclusion, level.

Pure functions on canonical text; what is canonical is known to canon.py, sets of many
expressions to tree.py. Nothing recurses and nothing backtracks: a peer chooses both sides.

Two facts carry the whole module. A chunk that begins with `@` is verbatim, it is matched by the
identical chunk alone, so two expressions must have the same verbatim chunks in the same order
and can be compared run by run between them. And when both sides have a wildcard that stretches
(`**` in a run, `$*` in a chunk), only their fixed ends can be in conflict: whatever stands
between two wildcards of one side is swallowed by a wildcard of the other.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, IntEnum
from itertools import groupby

from zenlake.keyexpr.canon import DOUBLE_WILD

Covers = Callable[[str, str], bool]
"""A relation between two chunks, neither of which is `**` on the left."""


class SetIntersectionLevel(IntEnum):
    """Relation of one set of keys to another; a higher level implies the lower ones.

    >>> level = SetIntersectionLevel.EQUALS
    >>> level, level >= SetIntersectionLevel.INCLUDES
    (SetIntersectionLevel.EQUALS, True)
    """

    DISJOINT = 0
    INTERSECTS = 1
    INCLUDES = 2
    EQUALS = 3

    __eq__ = int.__eq__
    __hash__ = int.__hash__
    __str__ = Enum.__str__
    __repr__ = Enum.__str__
    __format__ = Enum.__format__


def relation(a: str, b: str) -> SetIntersectionLevel:
    """Return the highest level that holds for `a` with respect to `b`.

    >>> relation("a/**", "a/b").name, relation("a/b", "a/**").name
    ('INCLUDES', 'INTERSECTS')
    """
    if a == b:
        return SetIntersectionLevel.EQUALS
    if includes(a, b):
        return SetIntersectionLevel.INCLUDES
    if intersects(a, b):
        return SetIntersectionLevel.INTERSECTS
    return SetIntersectionLevel.DISJOINT


def intersects(a: str, b: str) -> bool:
    """Return whether a key matches both `a` and `b`.

    >>> intersects("robot/*/battery", "robot/7/**"), intersects("a/*", "a")
    (True, False)
    """
    if a == b:
        return True
    if "*" not in a and "*" not in b:
        return False
    return _all_runs(_runs_intersect, a, b)


def includes(a: str, b: str) -> bool:
    """Return whether every key that matches `b` matches `a`.

    A `**` of `b` is only found covered by a `**` of `a`, as in Zenoh, so True is always right
    and False may be cautious: `*/**` does hold all of `**/a`, and neither Zenoh
    (zenoh-keyexpr/src/key_expr/include.rs) nor this function says so.

    >>> includes("a/**", "a/*/c"), includes("a/*/c", "a/**"), includes("*/**", "**/a")
    (True, False, False)
    """
    if a == b:
        return True
    if "*" not in a:
        return False
    return _all_runs(_run_includes, a, b)


def chunk_intersects(x: str, y: str) -> bool:
    """Return whether two chunks intersect, neither of them `**`."""
    if x == y:
        return True
    if x[0] == "@" or y[0] == "@":
        return False
    if x == "*" or y == "*":
        return True
    if "$" not in y:
        return "$" in x and _dollar_star_covers(x, y)
    if "$" not in x:
        return _dollar_star_covers(y, x)
    x_head, y_head = x[: x.index("$*")], y[: y.index("$*")]
    if not (x_head.startswith(y_head) or y_head.startswith(x_head)):
        return False
    x_tail, y_tail = x[x.rindex("$*") + 2 :], y[y.rindex("$*") + 2 :]
    return x_tail.endswith(y_tail) or y_tail.endswith(x_tail)


def chunk_includes(x: str, y: str) -> bool:
    """Return whether chunk `x`, which is not `**`, includes chunk `y`."""
    if x == y:
        return True
    if x[0] == "@" or y[0] == "@":
        return False
    if x == "*":
        return y != DOUBLE_WILD
    return "$" in x and _dollar_star_covers(x, y)


def is_wild_chunk(chunk: str) -> bool:
    """Return whether `chunk` can match another chunk than itself."""
    return "*" in chunk and chunk[0] != "@"


class ChunkBits:
    """Sequence of chunks, each with a bit (bit 0 is the first): sets of positions are ints."""

    __slots__ = ("chunks", "where", "wild")

    def __init__(self, chunks: Sequence[str]) -> None:
        self.chunks = chunks
        self.where: dict[str, int] = {}
        """Return the positions of each distinct chunk."""
        for i, chunk in enumerate(chunks):
            self.where[chunk] = self.where.get(chunk, 0) | 1 << i
        self.wild = 0
        for chunk, positions in self.where.items():
            if is_wild_chunk(chunk):
                self.wild |= positions

    def distinct(self, positions: int) -> Iterator[tuple[str, int]]:
        """Return the distinct chunks at `positions`, each with all its positions."""
        while positions:
            first = (positions & -positions).bit_length() - 1
            chunk = self.chunks[first]
            everywhere = self.where[chunk]
            yield chunk, everywhere
            positions &= ~everywhere

    def covering(self, chunk: str, positions: int, covers: Covers) -> int:
        """Return the subset of `positions` whose chunk covers `chunk`."""
        if not is_wild_chunk(chunk):
            positions &= self.wild | self.where.get(chunk, 0)
        covering = 0
        for mine, everywhere in self.distinct(positions):
            if covers(mine, chunk):
                covering |= everywhere
        return covering & positions


def _all_runs(holds: Callable[[list[str], list[str]], bool], a: str, b: str) -> bool:
    """Return whether `holds` is true of every pair of runs between equal verbatim chunks."""
    xs, ys = a.split("/"), b.split("/")
    if "@" not in a and "@" not in b:
        return holds(xs, ys)
    x_verbatim, x_runs = _split_at_verbatim(xs)
    y_verbatim, y_runs = _split_at_verbatim(ys)
    return x_verbatim == y_verbatim and all(map(holds, x_runs, y_runs))


def _split_at_verbatim(chunks: list[str]) -> tuple[list[str], list[list[str]]]:
    verbatim: list[str] = []
    runs: list[list[str]] = [[]]
    for chunk in chunks:
        if chunk[0] == "@":
            verbatim.append(chunk)
            runs.append([])
        else:
            runs[-1].append(chunk)
    return verbatim, runs


def _runs_intersect(xs: list[str], ys: list[str]) -> bool:
    if DOUBLE_WILD not in ys:
        return _run_covers(xs, ys, chunk_intersects)
    if DOUBLE_WILD not in xs:
        return _run_covers(ys, xs, chunk_intersects)
    return _heads_meet(xs, ys) and _heads_meet(xs[::-1], ys[::-1])


def _run_includes(xs: list[str], ys: list[str]) -> bool:
    return _run_covers(xs, ys, chunk_includes)


def _heads_meet(xs: list[str], ys: list[str]) -> bool:
    """Return whether no chunks conflict before the first `**` of either."""
    for x, y in zip(xs, ys, strict=False):
        if x == DOUBLE_WILD or y == DOUBLE_WILD:
            return True
        if not chunk_intersects(x, y):
            return False
    return True


def _run_covers(pattern: list[str], word: list[str], covers: Covers) -> bool:
    """Return whether `pattern` covers all of `word`, `**` any number of its chunks.

    The parts between two `**` are laid as far left as they fit: what is left of the word for
    the next part is then as long as it can be, so no other choice has to be tried.
    """
    if DOUBLE_WILD not in pattern:
        return len(pattern) == len(word) and all(map(covers, pattern, word))
    head = pattern.index(DOUBLE_WILD)
    tail = len(pattern) - pattern[::-1].index(DOUBLE_WILD)
    end = len(word) - (len(pattern) - tail)
    if head > end:
        return False
    if not all(map(covers, pattern[:head], word)):
        return False
    if not all(map(covers, pattern[tail:], word[end:])):
        return False
    at = head
    for is_gap, part in groupby(pattern[head:tail], DOUBLE_WILD.__eq__):
        if not is_gap:
            at = _end_of_part(list(part), word, at, end, covers)
    return at <= end


def _end_of_part(part: list[str], word: list[str], at: int, end: int, covers: Covers) -> int:
    """Return where the leftmost match of `part` in word[at:end] ends; past `end` if there is none.

    The shift-and search: bit i says that part[:i + 1] covers the chunks just read.
    """
    bits = ChunkBits(part)
    last = 1 << len(part) - 1
    matched = 0
    known: dict[
        str, tuple[int, int]
    ] = {}  # chunk of word: (positions checked, positions that cover it)
    for i in range(at, end):
        reached = (matched << 1 | 1) & (last << 1) - 1
        asked, covering = known.get(word[i], (0, 0))
        covering |= bits.covering(word[i], reached & ~asked, covers)
        known[word[i]] = asked | reached, covering
        matched = reached & covering
        if matched & last:
            return i + 1
    return end + 1


def _dollar_star_covers(pattern: str, word: str) -> bool:
    """Return whether `pattern`, a chunk with `$*`, covers all of `word`.

    A `$*` of `word` counts as characters of its own, which no literal part of `pattern` has:
    only a `$*` can cover it, so the answer is inclusion when `word` is a pattern too.
    """
    head, *parts, tail = pattern.split("$*")
    at, end = len(head), len(word) - len(tail)
    if at > end or not word.startswith(head) or not word.endswith(tail):
        return False
    for part in parts:
        at = word.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
