"""Entity: whatever a session declares, until it is undeclared.

Knows that it is good for nothing afterwards, and ends with a `with` block; not what it is.
"""

from typing import ClassVar, Self

from zenlake.api.values.wrapped import Unconstructed, materialize_inherited
from zenlake.errors import ZError


class Entity(metaclass=Unconstructed):
    """Publisher, subscriber, querier, queryable, token, listener."""

    _what: ClassVar[str] = "entity"
    "What it calls itself in errors."
    _undeclared = True  # until it is made

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        materialize_inherited(cls, "__enter__", "__exit__")

    def undeclare(self) -> None:
        """It is no more."""
        raise NotImplementedError

    def _check(self) -> None:
        if self._undeclared:
            raise ZError(f"Undeclared {self._what}")

    def __enter__(self, /) -> Self:
        self._check()
        return self

    def __exit__(self, /, *_args: object, **_kwargs: object) -> None:
        self.undeclare()
