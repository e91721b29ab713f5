"""KeyExpr, the value type: interchangeable with its text, never invalid."""

import copy
import pickle
import subprocess
import sys

import pytest
from hypothesis import given

from tests.support.keyexpr_cases import key_exprs, no_deadline
from zenlake.errors import InvalidKeyExpr
from zenlake.keyexpr import KeyExpr, SetIntersectionLevel


def test_constructor_requires_canonical_form() -> None:
    assert str(KeyExpr("a/*/**")) == "a/*/**"
    for text in ("a//b", "a/**/*", "a/$*"):
        with pytest.raises(InvalidKeyExpr):
            KeyExpr(text)


def test_constructor_refuses_what_is_no_text() -> None:
    for wrong in (3, None, b"a"):
        with pytest.raises(TypeError):
            KeyExpr(wrong)  # type: ignore[arg-type]


def test_autocanonize_repairs_and_still_refuses_errors() -> None:
    key = KeyExpr.autocanonize("a/**/*")
    assert type(key) is KeyExpr
    assert key == "a/*/**"
    with pytest.raises(InvalidKeyExpr):
        KeyExpr.autocanonize("a//b")


def test_text_forms() -> None:
    key = KeyExpr("a/b")
    assert repr(key) == "ke`a/b`"
    assert type(str(key)) is str
    assert f"{key}" == "a/b"


def test_equals_and_hashes_as_its_text() -> None:
    key = KeyExpr("a/b")
    assert key == "a/b"
    assert key != "not//valid"
    assert hash(key) == hash("a/b")
    assert {"a/b": 1}[key] == 1
    assert "a/b" in {key}


def test_sorts_as_its_text() -> None:
    assert sorted([KeyExpr("b"), KeyExpr("a/b"), KeyExpr("a")]) == ["a", "a/b", "b"]


def test_is_immutable() -> None:
    with pytest.raises(AttributeError):
        KeyExpr("a").text = "b"  # type: ignore[attr-defined]


def test_joined_keys_are_canonical_key_expressions() -> None:
    key = KeyExpr("a/**")
    for joined in (key / "**", key / KeyExpr("**"), key.join("**")):
        assert type(joined) is KeyExpr
        assert joined == "a/**"
    assert key / "*" / "c" == "a/*/**/c"
    assert KeyExpr("a").concat("b/c") == "ab/c"
    assert type(KeyExpr("a").concat("b")) is KeyExpr


def test_joining_refuses_what_makes_no_key() -> None:
    key = KeyExpr("a/**")
    for wrong in ("", "/b", "b/", "x#"):
        with pytest.raises(InvalidKeyExpr):
            key / wrong
    with pytest.raises(InvalidKeyExpr):
        key.concat("/**")
    with pytest.raises(TypeError):
        key / 3  # type: ignore[operator]
    with pytest.raises(TypeError):
        key.concat(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", ["a/b", KeyExpr("a/b")])
def test_relations_take_text_and_key_expressions(other: str) -> None:
    key = KeyExpr("a/*")
    assert key.intersects(other)
    assert key.includes(other)
    assert key.relation_to(other) is SetIntersectionLevel.INCLUDES


def test_relations_refuse_text_that_is_not_canonical() -> None:
    key = KeyExpr("a")
    for ask in (key.intersects, key.includes, key.relation_to):
        with pytest.raises(InvalidKeyExpr):
            ask("a/**/**")


def test_is_wild() -> None:
    assert [text for text in ("a", "a/*", "**", "a$*", "@a/b") if KeyExpr(text).is_wild] == [
        "a/*",
        "**",
        "a$*",
    ]


@no_deadline
@given(key_exprs)
def test_pickle_and_copy_give_the_same_value(text: str) -> None:
    key = KeyExpr(text)
    copies = [copy.copy(key), copy.deepcopy(key)]
    copies += [
        pickle.loads(pickle.dumps(key, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ]
    for other in copies:
        assert type(other) is KeyExpr
        assert other == key


@pytest.mark.process
def test_import_is_light() -> None:
    """A tool that only handles keys loads no sockets, threads, clocks or numpy."""
    heavy = {"socket", "asyncio", "threading", "random", "datetime", "numpy", "numba", "pyarrow"}
    code = f"import sys, zenlake.keyexpr; print(sorted({heavy!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
