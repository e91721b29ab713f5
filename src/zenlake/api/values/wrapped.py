"""Base classes of API values: comparison, hash, order, copy, pickle; most wrap a wire value.

Knows which classes a user cannot construct. Does not know what any value means.
"""

from collections.abc import Callable
from functools import total_ordering
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, cast

W = TypeVar("W")
T = TypeVar("T")
P = ParamSpec("P")


def materialize_inherited(kind: type, *names: str) -> None:
    """Copy inherited attributes into `kind` itself, for readers of a class that list only its own
    names.
    """
    for name in names:
        if name not in vars(kind):
            setattr(kind, name, getattr_static(kind, name))


class Unconstructed(type):
    """Class of the objects that a user is given but cannot construct: `make` constructs them."""

    _given_by = ""
    "Call that gives a user such an object; empty where they are only received."

    if not TYPE_CHECKING:  # Checkers refuse arguments themselves, as with eclipse-zenoh's stubs.

        def __call__(cls, *_args: object, **_kwargs: object) -> object:
            remedy = f": use {cls._given_by}" if cls._given_by else ""
            raise TypeError(f"No constructor defined for {cls.__name__}{remedy}")


def make(kind: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Construct an object of an `Unconstructed` class."""
    made: T = type.__call__(cast(type, kind), *args, **kwargs)
    return made


@total_ordering
class Value:
    """Base of values that compare by `_key()` within their class, and equal no other class."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        materialize_inherited(cls, "__eq__", "__hash__", "__str__")

    def _key(self) -> Any:
        """Return the data that equality and order compare."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return bool(self._key() == other._key()) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __lt__(self, other: Self) -> bool:
        return bool(self._key() < other._key()) if type(other) is type(self) else NotImplemented

    if TYPE_CHECKING:  # `total_ordering` adds them.

        def __le__(self, other: Self) -> bool: ...
        def __gt__(self, other: Self) -> bool: ...
        def __ge__(self, other: Self) -> bool: ...


class Wrapped(Value, Generic[W]):
    """Value that wraps an object of the codec: `X.of(wire)` and `x.wire` convert without a copy."""

    __slots__ = ("wire",)

    wire: W

    if not TYPE_CHECKING:

        def __new__(cls, *_args: object, **_kwargs: object) -> Self:
            raise TypeError(f"No constructor defined for {cls.__name__}")

    @classmethod
    def of(cls, wire: W) -> Self:
        """Wrap `wire`, which is trusted and must never change."""
        self = object.__new__(cls)
        self.wire = wire
        return self

    def _key(self) -> Any:
        return self.wire

    def __reduce__(self) -> tuple[Callable[[W], Self], tuple[W]]:
        return type(self).of, (self.wire,)

    def __str__(self) -> str:
        return str(self.wire)

    def __repr__(self) -> str:
        return str(self)
