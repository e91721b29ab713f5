"""Every name of `eclipse-zenoh`, and every signature, is here: asked of the installed module."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from typing import Any

import pytest
import zenoh

import zenlake

MODULES = ("", ".handlers", ".ext", ".shm")
BY_CHANCE = {  # what the reference's classes have only because of the language they are written in
    "__module__",
    "__new__",
    "__delitem__",
    "__ror__",
    "__rtruediv__",
}


def public(module: str) -> Iterator[tuple[str, Any]]:
    where = import_module("zenoh" + module)
    for name in sorted(dir(where)):
        thing = getattr(where, name)
        if not name.startswith("_") and not inspect.ismodule(thing):
            yield name, thing


NAMES = [(module, name) for module in MODULES for name, _ in public(module)]
MEMBERS = [
    (module, name, member)
    for module in MODULES
    for name, thing in public(module)
    if inspect.isclass(thing)
    for member in sorted(vars(thing).keys() - BY_CHANCE)
]


def theirs_and_ours(module: str, name: str) -> tuple[Any, Any]:
    return (
        getattr(import_module("zenoh" + module), name),
        getattr(import_module("zenlake" + module), name),
    )


def parameters(call: Callable[..., Any]) -> list[tuple[str, object, object]] | None:
    """Name, kind and default of each but self; None where the call cannot say."""
    try:
        signature = inspect.signature(call)
    except ValueError:
        return None
    return [
        (one.name, one.kind, one.default)
        for one in signature.parameters.values()
        if one.name not in ("self", "cls")
    ]


def same_default(theirs: object, ours: object) -> bool:
    """`...` is what the reference shows for a default that it cannot show."""
    return theirs is ... or theirs == ours


def assert_same_parameters(theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
    expected, found = parameters(theirs), parameters(ours)
    if expected is None:
        return
    assert found is not None
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    for one, other in zip(expected, found, strict=True):
        assert same_default(one[2], other[2]), one[0]


def test_there_is_something_to_compare() -> None:
    assert len(NAMES) > 90
    assert len(MEMBERS) > 500


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda part: part or "zenoh")
def test_every_name_is_here(module: str, name: str) -> None:
    theirs, ours = theirs_and_ours(module, name)
    assert inspect.isclass(theirs) == inspect.isclass(ours)
    assert callable(theirs) == callable(ours)
    if inspect.isroutine(theirs):
        assert_same_parameters(theirs, ours)


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda part: part or "zenoh")
def test_dir_shows_what_is_there(module: str, name: str) -> None:
    theirs, ours = theirs_and_ours(module, name)
    if inspect.isclass(theirs):
        shown = {member for member in vars(theirs) if not member.startswith("_")}
        assert shown <= set(dir(ours))


def of_a_class(thing: object) -> bool:
    return isinstance(thing, (classmethod, staticmethod)) or type(thing).__name__ in (
        "classmethod_descriptor",
        "builtin_function_or_method",
    )


@pytest.mark.parametrize(("module", "name", "member"), MEMBERS, ids=lambda part: part or "zenoh")
def test_every_member_is_here(module: str, name: str, member: str) -> None:
    theirs, ours = theirs_and_ours(module, name)
    if member == "__hash__" and theirs.__hash__ is None:
        return  # the reference cannot hash it; here everything can be
    assert hasattr(ours, member)
    one = inspect.getattr_static(theirs, member)
    other = inspect.getattr_static(ours, member)
    if member.startswith("__"):
        return  # called by the language, which does not name parameters
    if inspect.isroutine(one) or of_a_class(one):
        assert of_a_class(one) == of_a_class(other)
        assert_same_parameters(getattr(theirs, member), getattr(ours, member))
    else:
        assert not inspect.isroutine(other)
        assert of_a_class(one) == of_a_class(other)


CONSTRUCTED = sorted(
    {
        (module, name)
        for module in MODULES
        for name, thing in public(module)
        if inspect.isclass(thing) and parameters(thing) is not None
    }
)


@pytest.mark.parametrize(("module", "name"), CONSTRUCTED, ids=lambda part: part or "zenoh")
def test_constructors_take_the_same(module: str, name: str) -> None:
    theirs, ours = theirs_and_ours(module, name)
    if issubclass(ours, Enum):
        return  # called only to find a member by its name; the test of the kinds does that
    assert_same_parameters(theirs, ours)


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name, thing in public("")
        if inspect.isclass(thing) and not issubclass(thing, Exception) and parameters(thing) is None
    ),
)
def test_what_has_no_constructor_there_has_none_here(name: str) -> None:
    with pytest.raises(TypeError):
        getattr(zenoh, name)()
    with pytest.raises(TypeError):
        getattr(zenlake, name)()


def test_a_star_import_brings_the_names() -> None:
    """In a process of its own: here everything has been loaded."""
    done = subprocess.run(
        [sys.executable, "-c", "from zenlake import *; print(*globals())"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert {name for name, _ in public("")} <= set(done.stdout.split())


def test_modules_resolve_as_attributes() -> None:
    assert zenlake.handlers is import_module("zenlake.handlers")
    assert zenlake.ext is import_module("zenlake.ext")
    assert zenlake.shm is import_module("zenlake.shm")
    for name in dir(zenlake):
        assert getattr(zenlake, name) is not None or name == "__doc__", name
