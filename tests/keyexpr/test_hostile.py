"""Keys that a hostile peer would send: no recursion, no exponential or runaway case.

No test here looks at a clock: what backtracks would not end within the 60 s limit of any.
"""

import gc
import tracemalloc

import pytest

from zenlake.keyexpr import KeyExpr, KeyExprTree, canonize, includes, intersects, relation, validate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

MANY_CHUNKS = "/".join(["a"] * 32_767)
"""65,533 bytes: no key has more chunks."""

DOUBLE_WILD_40 = "**/aaaaaaaaaaaaaaaaaaaaa/" * 40
DOUBLE_WILD_170 = "**/" + "a/**/" * 170
DOLLAR_STAR = "$*a" * 340
DISTINCT_DOLLAR_STAR = "/".join(f"$*{i:03}$*" for i in range(110))

KIBIBYTE_PAIRS = [
    (DOUBLE_WILD_40 + "b", "aaaaaaaaaaaaaaaaaaaaa/" * 46 + "c", False),
    (DOUBLE_WILD_40 + "b", "aaaaaaaaaaaaaaaaaaaaa/" * 46 + "b", True),
    (DOUBLE_WILD_40 + "b", DOUBLE_WILD_40 + "c", False),
    (DOUBLE_WILD_170 + "b", "a/" * 500 + "c", False),
    (DOUBLE_WILD_170 + "b/**/b", "a/" * 500 + "b", False),
    ("**/" + "*/" * 250 + "b/**", "a/" * 500 + "a", False),
    ("**/" + "a/" * 250 + "b/**", "a/" * 500 + "a", False),
    (DOLLAR_STAR + "b", "a" * 1_000 + "c", False),
    (DOLLAR_STAR + "$*b$*", "a" * 1_020, False),
    (DOLLAR_STAR + "b", "a$*" * 340 + "b", True),
    ("**/" + "$*a/" * 200 + "x$*/**", "aa/" * 300 + "a", False),
    ("**/" + DISTINCT_DOLLAR_STAR + "/**", "**/" + DISTINCT_DOLLAR_STAR + "/**", True),
    ("**/@a/" * 100 + "b", "**/@a/" * 100 + "c", False),
    ("**/@a/**/a/" * 80 + "b", "@a/a/a/" * 80 + "b", True),
]


@pytest.mark.parametrize(("a", "b", "meet"), KIBIBYTE_PAIRS)
def test_patterns_of_a_kibibyte(a: str, b: str, meet: bool) -> None:
    assert intersects(a, b) is meet
    assert intersects(b, a) is meet
    assert includes(a, b) <= meet
    assert includes(b, a) <= meet


@pytest.mark.parametrize(
    ("a", "b", "meet"),
    [
        ("**/a/" * 13_000 + "b", "a/" * 32_000 + "c", False),
        ("**/a/" * 13_000 + "b", "a/" * 32_000 + "b", True),
        ("**/a/" * 13_000 + "b", "**/a/" * 13_000 + "c", False),
        ("**/" + "*/" * 16_000 + "b/**", "a/" * 32_000 + "a", False),
        ("$*a" * 21_000 + "b", "a" * 65_000 + "c", False),
        ("$*a" * 21_000 + "$*b$*", "a" * 65_000, False),
        ("$*" + "a" * 30_000 + "b$*", "a" * 65_000, False),
        ("a$*" * 10 + "b", "a" * 65_000 + "b", True),
    ],
)
def test_patterns_of_64_kibibytes(a: str, b: str, meet: bool) -> None:
    assert intersects(a, b) is meet
    assert intersects(b, a) is meet
    assert includes(a, b) <= meet


def test_key_of_32767_chunks_is_handled_like_any_other() -> None:
    key = KeyExpr(MANY_CHUNKS)
    wild = MANY_CHUNKS.replace("a", "*")
    validate(wild)
    assert canonize("**/" * 32_767 + "a") == "**/a"
    assert canonize("**/" + wild[2:]) == wild[2:] + "/**"
    assert key.intersects(wild)
    assert includes(wild, key)
    assert includes("a/**", key)
    assert relation(key, wild) == 1
    assert not intersects(wild + "/*", key)


def test_tree_finds_a_key_of_32767_chunks() -> None:
    tree = KeyExprTree[int]()
    tree.insert(MANY_CHUNKS, 1)
    tree.insert("a/**", 2)
    both = {MANY_CHUNKS: (1,), "a/**": (2,)}
    assert dict(tree.intersecting(MANY_CHUNKS)) == both
    assert dict(tree.including(MANY_CHUNKS)) == both
    assert dict(tree.included("**")) == both


def test_tree_frees_a_key_of_32767_chunks() -> None:
    tree = KeyExprTree[int]()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tree.insert(MANY_CHUNKS, 1)
        held, _ = tracemalloc.get_traced_memory()
        tree.remove(MANY_CHUNKS, 1)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < (held - before) / 100


def test_tree_with_a_deep_branch_can_be_dropped_as_a_whole() -> None:
    tree = KeyExprTree[int]()
    tree.insert(MANY_CHUNKS, 1)
    del tree
    gc.collect()


@pytest.mark.parametrize(("a", "b", "meet"), KIBIBYTE_PAIRS)
def test_tree_lookups_with_patterns_of_a_kibibyte(a: str, b: str, meet: bool) -> None:
    tree = KeyExprTree[int]()
    tree.insert(a, 0)
    for branch in range(20):
        tree.insert(f"**/a/**/{branch}/" + a, 1)
    assert (a in dict(tree.intersecting(b))) is meet
    assert (a in dict(tree.including(b))) is includes(a, b)
    assert (a in dict(tree.included(b))) is includes(b, a)
