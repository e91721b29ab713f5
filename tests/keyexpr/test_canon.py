"""Valid key expressions, their canonical forms, and the errors of invalid ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.keyexpr_cases import CANONICAL, ERRORS, NON_CANONICAL, no_deadline
from zenlake.errors import InvalidKeyExpr, ZError
from zenlake.keyexpr import MAX_KEY_BYTES, canonize, is_canonical, validate

near_key_exprs = st.text(alphabet="ab/*$@#?é", max_size=12)


@pytest.mark.parametrize("text", ERRORS)
def test_text_that_is_no_key_expression_is_refused_everywhere(text: str) -> None:
    with pytest.raises(InvalidKeyExpr):
        validate(text)
    with pytest.raises(InvalidKeyExpr):
        canonize(text)
    assert not is_canonical(text)


@pytest.mark.parametrize("text", CANONICAL)
def test_canonical_text_is_accepted_and_stays_as_it_is(text: str) -> None:
    validate(text)
    assert canonize(text) == text
    assert is_canonical(text)


@pytest.mark.parametrize(("text", "canonical"), NON_CANONICAL.items())
def test_non_canonical_text_is_refused_and_can_be_canonized(text: str, canonical: str) -> None:
    with pytest.raises(InvalidKeyExpr, match="is not canonical; write") as error:
        validate(text)
    assert repr(canonical) in str(error.value)
    assert canonize(text) == canonical
    assert not is_canonical(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ["empty chunk at index 0", "write one `/` between chunks"]),
        ("/a", ["empty chunk at index 0"]),
        ("a/", ["empty chunk at index 2"]),
        ("ab//c", ["empty chunk at index 3"]),
        ("ab/c#d", ["`#` at index 4", "leave it out"]),
        ("ab/c?d", ["`?` at index 4", "what stands before it"]),
        ("ab/c*", ["`*` at index 4", "write `$*`"]),
        ("ab/***", ["`*` at index 3", "`**` for any number of chunks"]),
        ("ab/c$d", ["`$` at index 4", "write `$*`"]),
        ("ab/c$**", ["`*` at index 6"]),
        ("a/**/*", ["`**/*` at index 2", "write 'a/*/**'"]),
        ("a/**/**/b", ["`**/**` at index 2", "write 'a/**/b'"]),
        ("ab/$*", ["`$*` at index 3", "write 'ab/*'"]),
        ("ab/c$*$*", ["`$*$*` at index 4", "write 'ab/c$*'"]),
        ("a\ud800", ["surrogate at index 1"]),
        ("é" * 32_768, ["65536 bytes", "at most 65535"]),
    ],
)
def test_error_says_what_is_wrong_where_and_what_to_write(text: str, told: list[str]) -> None:
    with pytest.raises(InvalidKeyExpr) as error:
        validate(text)
    for words in told:
        assert words in str(error.value)


def test_error_is_a_zerror_and_a_value_error() -> None:
    with pytest.raises(ZError):
        validate("")
    with pytest.raises(ValueError, match="empty chunk"):
        validate("")


def test_error_shows_hostile_text_escaped_and_cut() -> None:
    with pytest.raises(InvalidKeyExpr) as error:
        validate("\x1b[31m\r\n\u202e" + "x" * 60_000 + "#")
    assert str(error.value).isprintable()
    assert str(error.value).isascii()
    assert len(str(error.value)) < 300


def test_length_limit_counts_bytes_of_utf8() -> None:
    validate("a" * MAX_KEY_BYTES)
    validate("é" * (MAX_KEY_BYTES // 2))
    for text in ("a" * (MAX_KEY_BYTES + 1), "é" * (MAX_KEY_BYTES // 2 + 1)):
        assert not is_canonical(text)
        with pytest.raises(InvalidKeyExpr):
            canonize(text)


def test_length_limit_is_on_the_canonical_form() -> None:
    assert canonize("**/" * MAX_KEY_BYTES + "a") == "**/a"


@no_deadline
@given(near_key_exprs)
def test_canonize_gives_canonical_text_or_an_error(text: str) -> None:
    try:
        canonical = canonize(text)
    except InvalidKeyExpr:
        assert not is_canonical(text)
        return
    validate(canonical)
    assert canonize(canonical) == canonical
    assert is_canonical(text) == (canonical == text)


@no_deadline
@given(near_key_exprs)
def test_validate_agrees_with_is_canonical(text: str) -> None:
    try:
        validate(text)
    except InvalidKeyExpr:
        assert not is_canonical(text)
    else:
        assert is_canonical(text)
