"""Entity: base of the objects that a session declares.

Knows the end of their life: `undeclare`, the end of a `with` block, the last reference; and the
error afterwards. Does not know what they do.
"""

import sys
from collections.abc import Callable
from typing import ClassVar, Self

from zenlake.api.exchange_protocol import ExchangeLike
from zenlake.api.gc_finalize import finalize_safely
from zenlake.api.values.ids import EntityGlobalId
from zenlake.api.values.wrapped import Unconstructed, materialize_inherited
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.wire.entity import WireEntityId

SPECIAL_METHODS = {"__enter__", "__exit__", "__iter__", "__class_getitem__"}
"Special methods that each entity class lists as its own."


class Entity(metaclass=Unconstructed):
    """Base of publisher, subscriber, querier, queryable, token and listener."""

    _what: ClassVar[str] = "entity"
    "Noun for the entity in errors."
    _undeclared = True  # Instances start with `__init__`; a half-made one counts as undeclared.

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        inherited = {name for base in cls.__mro__ for name in vars(base)}
        public = {name for name in inherited if not name.startswith("_")}
        materialize_inherited(cls, *public, *inherited & SPECIAL_METHODS)

    def __init__(
        self, exchange: ExchangeLike | None, end: Callable[[], None], background: bool = False
    ) -> None:
        self._exchange = exchange
        "Exchange whose I/O thread ends what the garbage collector drops; None: any thread does."
        self._end = end
        "Function that undeclares. It does not refer to this object, which would never be dropped."
        self._background = background
        "Whether the entity outlives this object."
        self._undeclared = False

    def undeclare(self, /) -> None:
        """Undeclare this entity; what it has received can still be read from its handler."""
        self._check()
        self._undeclared = True
        self._end()

    def _check(self) -> None:
        if self._undeclared:
            raise ZError(f"Undeclared {self._what}")

    def __enter__(self, /) -> Self:
        self._check()
        return self

    def __exit__(self, /, *_args: object, **_kwargs: object) -> None:
        self.undeclare()

    def __del__(self) -> None:
        if self._undeclared or self._background or sys.is_finalizing():
            return
        if self._exchange is None:
            self._end()
        else:
            finalize_safely(self._exchange, self._end)


class KeyedEntity(Entity):
    """Base of publisher, subscriber, querier and queryable."""

    _id: WireEntityId
    _key_expr: KeyExpr

    @property
    def id(self) -> EntityGlobalId:
        """Global entity id, unique in the whole system."""
        self._check()
        return EntityGlobalId.of(self._id)

    @property
    def key_expr(self) -> KeyExpr:
        """Key expression it was declared on."""
        self._check()
        return self._key_expr

    def __repr__(self) -> str:
        self._check()
        return f"{type(self).__name__}({self._key_expr!r})"
