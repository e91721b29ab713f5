"""Every name of `eclipse-zenoh`, and every signature, is here: asked of the installed module."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from inspect import Parameter
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

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
    """Name, kind and default of each parameter, self included; None where the call cannot say."""
    try:
        signature = inspect.signature(call)
    except ValueError:
        return None
    return [(each.name, each.kind, each.default) for each in signature.parameters.values()]


def same_default(theirs: object, ours: object) -> bool:
    """`...` is what the reference shows for a default that it cannot show."""
    return theirs is ... or theirs == ours


def assert_same_parameters(theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
    expected, found = parameters(theirs), parameters(ours)
    if expected is None:
        return
    assert found is not None
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    for wanted, other in zip(expected, found, strict=True):
        assert same_default(wanted[2], other[2]), wanted[0]


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


class Definition(NamedTuple):
    """Function or method of the published stubs; an overloaded one has several."""

    module: str
    owner: str
    "Class that the method belongs to; empty for a function of the module."
    node: ast.FunctionDef

    def find(self, package: str) -> Any:
        """Return what `package` has under this name."""
        where = import_module(package + self.module)
        return getattr(getattr(where, self.owner) if self.owner else where, self.node.name)


def has_decorator(node: ast.FunctionDef, *names: str) -> bool:
    return any(ast.unparse(each) in names for each in node.decorator_list)


def published() -> Iterator[Definition]:
    """Yield what the stubs define by name.

    Constructors are left to the runtime, which names their parameters otherwise than the stubs do.
    Of the special methods only the two of a `with` block are ever called by name.
    """
    for path in sorted(Path(zenoh.__file__).parent.glob("*.pyi")):
        module = "" if path.stem == "__init__" else f".{path.stem}"
        bodies = [("", ast.parse(path.read_text()).body)]
        bodies += [
            (each.name, each.body) for each in bodies[0][1] if isinstance(each, ast.ClassDef)
        ]
        for owner, body in bodies:
            for node in body:
                if (
                    isinstance(node, ast.FunctionDef)
                    and (not node.name.startswith("_") or node.name in ("__enter__", "__exit__"))
                    and not has_decorator(node, "property", f"{node.name}.setter")
                ):
                    yield Definition(module, owner, node)


def written(node: ast.FunctionDef) -> Iterator[tuple[str, object, str | None]]:
    """Yield name, kind and default of each parameter in a stub; self is positional-only."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    without_default = len(positional) - len(given.defaults)
    for at, each in enumerate(positional):
        only = at < len(given.posonlyargs) or each.arg == "self"
        default = given.defaults[at - without_default] if at >= without_default else None
        if each.arg != "cls":
            yield (
                each.arg,
                Parameter.POSITIONAL_ONLY if only else Parameter.POSITIONAL_OR_KEYWORD,
                ast.unparse(default) if default else None,
            )
    if given.vararg:
        yield given.vararg.arg, Parameter.VAR_POSITIONAL, None
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield each.arg, Parameter.KEYWORD_ONLY, ast.unparse(default) if default else None
    if given.kwarg:
        yield given.kwarg.arg, Parameter.VAR_KEYWORD, None


PUBLISHED = list(published())
NUMBERS = count()


def published_name(definition: Definition) -> str:
    return f"{definition.module}.{definition.owner}.{definition.node.name}-{next(NUMBERS)}"


def test_the_stubs_are_read() -> None:
    assert len(PUBLISHED) > 150
    assert sum(has_decorator(each.node, "overload") for each in PUBLISHED) > 20


@pytest.mark.parametrize("definition", PUBLISHED, ids=published_name)
@pytest.mark.parametrize("package", ["zenoh", "zenlake"])
def test_signatures_equal_the_published_stubs(package: str, definition: Definition) -> None:
    """The reference itself holds to its stubs, which shows that the comparison is the right one."""
    found, expected = parameters(definition.find(package)), list(written(definition.node))
    assert found is not None
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    overloaded = has_decorator(definition.node, "overload")
    for (name, _, value), (_, _, shown) in zip(found, expected, strict=True):
        if shown is None:  # an overload may ask for what another one leaves out
            assert overloaded or value is Parameter.empty, name
        else:
            assert value is ... or repr(value) == shown, name


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


UNCONSTRUCTED = sorted(
    {
        (module, name)
        for module in MODULES
        for name, thing in public(module)
        if inspect.isclass(thing)
        and not issubclass(thing, Exception)
        and parameters(thing) is None
        and not issubclass(theirs_and_ours(module, name)[1], Enum)
    }
)


@pytest.mark.parametrize("keywords", [{}, {"x": 1}], ids=["no keywords", "keywords"])
@pytest.mark.parametrize("arguments", [(), ("zz",), (1, 2)], ids=len)
@pytest.mark.parametrize(("module", "name"), UNCONSTRUCTED, ids=lambda part: part or "zenoh")
def test_what_has_no_constructor_there_has_none_here(
    module: str, name: str, arguments: tuple[object, ...], keywords: dict[str, object]
) -> None:
    theirs, ours = theirs_and_ours(module, name)
    with pytest.raises(TypeError) as refused:
        theirs(*arguments, **keywords)
    with pytest.raises(TypeError, match=f"^{refused.value}"):
        ours(*arguments, **keywords)


def test_enums_cannot_be_called_without_a_member() -> None:
    for module, name in NAMES:
        theirs, ours = theirs_and_ours(module, name)
        if inspect.isclass(ours) and issubclass(ours, Enum) and parameters(theirs) is None:
            with pytest.raises(TypeError):
                theirs()
            with pytest.raises(TypeError):
                ours()  # type: ignore[call-arg]


@pytest.mark.process
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


def own_signatures() -> Iterator[tuple[str, inspect.Signature]]:
    """Yield every signature that the session API shows, with the name of what has it."""
    for module in ("zenlake", "zenlake.aio", "zenlake.ext", "zenlake.handlers", "zenlake.shm"):
        where = import_module(module)
        for name in where.__all__:
            thing = getattr(where, name)
            members = inspect.getmembers(thing) if inspect.isclass(thing) else [("", thing)]
            for member, call in members:
                call = call.fget if isinstance(call, property) else call
                own = (getattr(call, "__module__", None) or "").startswith("zenlake.")
                if own and inspect.isroutine(call) and not member.startswith("_"):
                    yield f"{module}.{name}.{member}", inspect.signature(call)


def test_signatures_have_no_any() -> None:
    found = [
        name
        for name, signature in own_signatures()
        for annotation in (
            signature.return_annotation,
            *(each.annotation for each in signature.parameters.values() if each.name != "self"),
        )
        if re.search(r"\bAny\b", str(annotation))
    ]
    assert found == []
