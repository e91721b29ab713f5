"""Members of a class that forward to the object that it has as `_entity`.

Knows their names, signatures and docstrings. Does not know what they do.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])
Value = TypeVar("Value", covariant=True)


class Attribute(Protocol[Value]):
    """Attribute of an object, by the type of its value."""

    def __get__(self, instance: object, owner: type | None = None, /) -> Value: ...


def forward_property(of: Callable[[Any], Value] | property) -> Attribute[Value]:
    """Return a property that reads the property `of` of `_entity`.

    Pyright does not know the type of a property's value: the caller declares an Attribute of it.
    """
    known = cast(property, of)
    read = attrgetter(f"_entity.{cast(Any, known.fget).__name__}")
    return cast(Attribute[Value], property(read, doc=known.__doc__))


def forward_method(of: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[object, P], R]:
    """Return a method that calls the method `of` of `_entity`."""

    @wraps(of)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return of(self._entity, *args, **kwargs)

    return call


def shown_as(method: Callable[..., object]) -> Callable[[F], F]:
    """Show `help` and `inspect` the parameters of `method` for `**options`."""

    def show(function: F) -> F:
        own = inspect.signature(function)
        shown = inspect.signature(method).replace(return_annotation=own.return_annotation)
        function.__signature__ = shown  # type: ignore[attr-defined]
        return function

    return show


def signature_of(
    method: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., R]], Callable[Concatenate[object, P], R]]:
    """Show type checkers, too, the parameters of `method`, which is not overloaded."""
    return shown_as(method)
