"""Intersection and inclusion: the table of known cases, brute force, and laws of sets."""

from collections.abc import Iterator
from itertools import combinations_with_replacement, product

import pytest
from hypothesis import given

from tests.support.keyexpr_cases import RELATIONS, key_exprs, no_deadline
from zenlake.keyexpr import (
    SetIntersectionLevel,
    canonize,
    includes,
    intersects,
    is_canonical,
    relation,
)

PLAIN = ["a", "b", "x", "ab", "ax", "xa"]
"""Concrete chunks, enough to tell any two of WILD apart and to find what they share."""

WILD = {
    "a": {"a"},
    "*": set(PLAIN),
    "a$*": {"a", "ab", "ax"},
    "$*b": {"b", "ab"},
    "$*a$*": {"a", "ab", "ax", "xa"},
    "@a": {"@a"},
    "$*": set(PLAIN),
    "a$*$*": {"a", "ab", "ax"},
}
"""Keys that a chunk stands for; the last two are not canonical."""

LONGEST = 4
"""Chunks of a concrete key: `b/b/**` and `**/a/a` have none shorter than 4 in common."""


def concrete_keys(chunks: list[str], room: int = LONGEST) -> Iterator[tuple[str, ...]]:
    """Every concrete key, of at most `room` chunks, that the expression stands for."""
    if not chunks:
        yield ()
    elif chunks[0] == "**":
        for length in range(room + 1):
            for rest in concrete_keys(chunks[1:], room - length):
                for swallowed in product(PLAIN, repeat=length):
                    yield (*swallowed, *rest)
    elif room:
        for rest in concrete_keys(chunks[1:], room - 1):
            for first in WILD[chunks[0]]:
                yield (first, *rest)


def every_expression_of_up_to_three_chunks() -> dict[str, set[tuple[str, ...]]]:
    texts = (
        "/".join(chunks) for count in (1, 2, 3) for chunks in product([*WILD, "**"], repeat=count)
    )
    return {text: set(concrete_keys(text.split("/"))) for text in texts if is_canonical(text)}


@pytest.mark.parametrize(("a", "b", "meet", "a_holds_b", "b_holds_a"), RELATIONS)
def test_table_of_tricky_cases(
    a: str, b: str, meet: bool, a_holds_b: bool, b_holds_a: bool
) -> None:
    assert intersects(a, b) is meet
    assert intersects(b, a) is meet
    assert includes(a, b) is a_holds_b
    assert includes(b, a) is b_holds_a


def test_intersects_is_exact_and_includes_is_sound_on_every_small_pair() -> None:
    sets = every_expression_of_up_to_three_chunks()
    pairs = 0
    for a, b in combinations_with_replacement(sets, 2):
        pairs += 1
        assert intersects(a, b) is not sets[a].isdisjoint(sets[b]), (a, b)
        for x, y in ((a, b), (b, a)):
            subset = sets[y] <= sets[x]
            if "**" in y:
                assert subset or not includes(x, y), (x, y)
            else:
                assert includes(x, y) is subset, (x, y)
    assert pairs > 20_000


@pytest.mark.parametrize(
    ("a", "b", "level"),
    [
        ("a/b", "a/c", SetIntersectionLevel.DISJOINT),
        ("a/*", "*/b", SetIntersectionLevel.INTERSECTS),
        ("a/b", "a/*", SetIntersectionLevel.INTERSECTS),
        ("a/*", "a/b", SetIntersectionLevel.INCLUDES),
        ("a/*", "a/*", SetIntersectionLevel.EQUALS),
    ],
)
def test_relation_is_the_highest_level_that_holds(
    a: str, b: str, level: SetIntersectionLevel
) -> None:
    assert relation(a, b) is level


def test_levels_have_the_numbers_and_the_order_of_zenoh() -> None:
    assert [(level.name, level.value) for level in SetIntersectionLevel] == [
        ("DISJOINT", 0),
        ("INTERSECTS", 1),
        ("INCLUDES", 2),
        ("EQUALS", 3),
    ]


def test_text_is_compared_without_normalisation() -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    assert not intersects(composed, decomposed)
    assert intersects("e$*", decomposed)
    assert not intersects("e$*", composed)


@no_deadline
@given(key_exprs, key_exprs)
def test_intersects_is_symmetric_and_follows_from_includes(a: str, b: str) -> None:
    assert intersects(a, b) is intersects(b, a)
    if includes(a, b):
        assert intersects(a, b)
    if a != b:
        assert not (includes(a, b) and includes(b, a))


@no_deadline
@given(key_exprs)
def test_every_expression_relates_to_itself(a: str) -> None:
    assert intersects(a, a)
    assert includes(a, a)
    assert relation(a, a) is SetIntersectionLevel.EQUALS


@no_deadline
@given(key_exprs, key_exprs, key_exprs)
def test_includes_is_transitive_and_keeps_intersections(a: str, b: str, c: str) -> None:
    if includes(a, b) and includes(b, c):
        assert includes(a, c)
    if includes(a, b) and intersects(b, c):
        assert intersects(a, c)


def test_canonize_keeps_the_set_of_keys() -> None:
    for chunks in product([*WILD, "**"], repeat=3):
        canonical = canonize("/".join(chunks)).split("/")
        assert set(concrete_keys(canonical)) == set(concrete_keys(list(chunks))), chunks
