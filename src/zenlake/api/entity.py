"""Entity: base of the objects that a session declares.

Knows the end of their life: `undeclare`, the end of a `with` block, the error afterwards. Does not
know what they do.
"""

from typing import ClassVar, Self

from zenlake.api.values.wrapped import Unconstructed, materialize_inherited
from zenlake.errors import ZError


class Entity(metaclass=Unconstructed):
    """Base of publisher, subscriber, querier, queryable, token and listener."""

    _what: ClassVar[str] = "entity"
    "Noun for the entity in errors."
    _undeclared = True  # Instances start with `__init__`; a half-made one counts as undeclared.

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        materialize_inherited(cls, "__enter__", "__exit__")

    def undeclare(self) -> None:
        """Undeclare this entity."""
        raise NotImplementedError

    def _check(self) -> None:
        if self._undeclared:
            raise ZError(f"Undeclared {self._what}")

    def __enter__(self, /) -> Self:
        self._check()
        return self

    def __exit__(self, /, *_args: object, **_kwargs: object) -> None:
        self.undeclare()
