"""The tree answers as a linear scan does, walks only what it must, and forgets what is removed."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.keyexpr_cases import RELATIONS, key_exprs, no_deadline
from zenlake.keyexpr import KeyExprTree, includes, intersects

Found = dict[str, tuple[int, ...]]

changes = st.lists(st.tuples(st.booleans(), key_exprs, st.integers(0, 2)), max_size=40)
"""Inserts (True) and removes (False) of a value under a key."""


def scan(model: dict[str, list[int]], asked: str, holds: Callable[[str, str], bool]) -> Found:
    return {key: tuple(values) for key, values in model.items() if holds(key, asked)}


def assert_answers_as_scan(tree: KeyExprTree[int], model: dict[str, list[int]], key: str) -> None:
    assert dict(tree.intersecting(key)) == scan(model, key, intersects)
    assert dict(tree.including(key)) == scan(model, key, includes)
    assert dict(tree.included(key)) == scan(model, key, lambda held, asked: includes(asked, held))


def is_bare(tree: KeyExprTree[int]) -> bool:
    return len(tree) == 0 and tree._root.is_empty()


def test_insert_get_remove() -> None:
    tree = KeyExprTree[int]()
    assert tree.insert("a/*", 1)
    assert tree.insert("a/*", 2)
    assert not tree.insert("a/*", 1)
    assert tree.get("a/*") == (1, 2)
    assert tree.get("a") == tree.get("a/b") == tree.get("x/y") == ()
    assert len(tree) == 1
    assert list(tree) == [("a/*", (1, 2))]
    assert tree.remove("a/*", 1)
    assert not tree.remove("a/*", 1)
    assert not tree.remove("a", 1)
    assert not tree.remove("a/*/c", 1)
    assert list(tree.intersecting("a/b")) == [("a/*", (2,))]
    assert tree.remove("a/*", 2)
    assert is_bare(tree)


def test_remove_cuts_no_branch_that_is_needed() -> None:
    tree = KeyExprTree[int]()
    for key in ("a", "a/b/c", "a/b/**"):
        tree.insert(key, 0)
    tree.remove("a/b/c", 0)
    assert sorted(key for key, _ in tree) == ["a", "a/b/**"]
    tree.remove("a", 0)
    assert [key for key, _ in tree] == ["a/b/**"]
    tree.remove("a/b/**", 0)
    assert is_bare(tree)


def test_tree_answers_as_a_linear_scan_for_every_row_of_the_table() -> None:
    held = {key: [0] for row in RELATIONS for key in row[:2]}
    tree = KeyExprTree[int]()
    for key in held:
        tree.insert(key, 0)
    for key in held:
        assert_answers_as_scan(tree, held, key)


@no_deadline
@given(changes, st.lists(key_exprs, min_size=1, max_size=5))
def test_tree_answers_as_a_linear_scan(
    changes: list[tuple[bool, str, int]], asked: list[str]
) -> None:
    tree = KeyExprTree[int]()
    model: dict[str, list[int]] = {}
    for is_insert, key, value in changes:
        held = model.get(key, [])
        if is_insert:
            assert tree.insert(key, value) is (value not in held)
            if value not in held:
                model[key] = [*held, value]
        else:
            assert tree.remove(key, value) is (value in held)
            model[key] = [other for other in held if other != value]
            if not model[key]:
                del model[key]
    assert dict(tree) == {key: tuple(values) for key, values in model.items()}
    assert len(tree) == len(model)
    for key in (*asked, *model):
        assert tree.get(key) == tuple(model.get(key, ()))
        assert_answers_as_scan(tree, model, key)
    for key, values in model.items():
        for value in values:
            assert tree.remove(key, value)
    assert is_bare(tree)


@pytest.mark.parametrize("spelling", ["robot/{}/battery", "robot/b{}/**", "**/b{}", "{}/*/battery"])
def test_work_of_a_lookup_does_not_grow_with_the_tree(spelling: str) -> None:
    visited = []
    for count in (100, 10_000):
        tree = KeyExprTree[int]()
        for number in range(count):
            tree.insert(spelling.format(number), number)
        visited.append(tree.visited("robot/b7/battery"))
    assert visited[0] == visited[1] <= 5


def test_work_of_a_lookup_is_at_most_one_visit_per_node() -> None:
    """Many `**` on both sides make many ways to match, and still one visit per branch."""
    tree = KeyExprTree[int]()
    held = "**/a/" * 40 + "b"
    tree.insert(held, 0)
    assert tree.visited("**/a/" * 40 + "c") <= 1 + len(held.split("/"))
    assert tree.visited("a/" * 400 + "b") <= 1 + len(held.split("/"))
