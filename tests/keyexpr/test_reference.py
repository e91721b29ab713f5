"""The other implementation is the judge: agreement with eclipse-zenoh, which is written in Rust.

Only its pure functions are called; no session is opened. Where this package differs on purpose,
a test below says so by name.
"""

import re
from itertools import product
from random import Random

import pytest
import zenoh

from tests.support.keyexpr_cases import random_pair
from zenlake.errors import InvalidKeyExpr
from zenlake.keyexpr import (
    MAX_KEY_BYTES,
    KeyExpr,
    canonize,
    includes,
    intersects,
    is_canonical,
    relation,
)

PAIRS = 60_000

DOLLAR_STARS_AFTER_A_CHARACTER = re.compile(r"(?:[^/*]|(?<!\$)\*)\$\*\$\*")
"""Here the autocanonize of 1.10.2 steps over bytes: it panics, or leaves `$*$*` in the text."""


def reference_canonize(text: str) -> str | None:
    try:
        return str(zenoh.KeyExpr.autocanonize(text))
    except zenoh.ZError:
        return None


def our_canonize(text: str) -> str | None:
    try:
        return canonize(text)
    except InvalidKeyExpr:
        return None


def reference_accepts(text: str) -> bool:
    try:
        zenoh.KeyExpr(text)
    except zenoh.ZError:
        return False
    return True


def level_name(level: object) -> str:
    return str(level).rpartition(".")[2]


@pytest.mark.slow
def test_relations_of_random_pairs_agree() -> None:
    random = Random(8)
    counts = [0, 0, 0, 0]
    for _ in range(PAIRS):
        a, b = random_pair(random)
        reference = zenoh.KeyExpr(a)
        assert intersects(a, b) is reference.intersects(b), (a, b)
        assert includes(a, b) is reference.includes(b), (a, b)
        level = relation(a, b)
        assert level.name == level_name(reference.relation_to(b)), (a, b)
        counts[level] += 1
    assert min(counts) > PAIRS // 200, "the pairs do not show every relation"


@pytest.mark.slow
def test_validity_and_canonical_form_of_every_short_text_agree() -> None:
    for length in range(6):
        for characters in product("a/*$@#?", repeat=length):
            text = "".join(characters)
            assert is_canonical(text) is reference_accepts(text), text
            if not DOLLAR_STARS_AFTER_A_CHARACTER.search(text):
                assert our_canonize(text) == reference_canonize(text), text


@pytest.mark.parametrize(
    ("key", "other"), [("a", "b"), ("a", "b/**"), ("a/**", "**"), ("a/**", "*"), ("a", "/b")]
)
def test_join_and_concat_agree(key: str, other: str) -> None:
    for method in ("join", "concat"):
        try:
            expected = str(getattr(zenoh.KeyExpr(key), method)(other))
        except zenoh.ZError:
            with pytest.raises(InvalidKeyExpr):
                getattr(KeyExpr(key), method)(other)
        else:
            assert getattr(KeyExpr(key), method)(other) == expected


def test_division_agrees() -> None:
    reference = zenoh.KeyExpr("a/**") / "*"  # type: ignore[operator]  # its stubs lack it
    assert KeyExpr("a/**") / "*" == str(reference) == "a/*/**"


def test_difference_division_by_an_invalid_text_names_the_fault() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        zenoh.KeyExpr("a") / "/b"  # type: ignore[operator]
    with pytest.raises(InvalidKeyExpr, match="empty chunk"):
        KeyExpr("a") / "/b"


def test_difference_autocanonize_of_repeated_dollar_stars() -> None:
    with pytest.raises(BaseException, match="out of range") as panic:
        zenoh.KeyExpr.autocanonize("a$*$*")
    assert type(panic.value).__name__ == "PanicException"
    assert canonize("a$*$*") == "a$*"
    with pytest.raises(zenoh.ZError):
        zenoh.KeyExpr.autocanonize("a$*$*$*$*$*bc")
    assert canonize("a$*$*$*$*$*bc") == "a$*bc"


@pytest.mark.parametrize("b", ["**/a", "**/a/**", "**/a$*"])
def test_both_are_cautious_about_double_wild_on_the_right(b: str) -> None:
    """`*/**` is any key of one chunk or more, so it does hold all of these."""
    assert includes("*/**", b) is zenoh.KeyExpr("*/**").includes(b) is False


def test_difference_length_is_limited_to_what_the_wire_can_carry() -> None:
    text = "a" * (MAX_KEY_BYTES + 1)
    assert reference_accepts(text)
    assert not is_canonical(text)


def test_difference_a_key_expression_is_a_text_and_taken_as_one() -> None:
    with pytest.raises(TypeError):
        zenoh.KeyExpr("a").join(zenoh.KeyExpr("b"))  # type: ignore[arg-type]
    assert KeyExpr("a").join(KeyExpr("b")) == "a/b"
    assert KeyExpr(KeyExpr("a")) == "a"
