"""Selector: a key expression with parameters; and Parameters.

Knows the text forms and the reserved names. `quantities.py` knows what `_time` means.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Self, final

from zenlake.api.values.wrapped import Value
from zenlake.keyexpr import KeyExpr

ANY_KEY = "_anyke"
"""Parameter whose presence allows replies on keys that the query does not match."""
TIME_RANGE = "_time"
"""Parameter that limits replies to a range of time; see `zenlake.quantities.time_range`."""

Item = tuple[str, str]


@final
class Parameters(Value):
    """Names with values, written `a=1;b=2|3;flag`; mutable.

    Equal when the text is. The hash follows the text: do not change one that is a key of a dict.

    >>> parameters = Parameters("a=1;b=2|3;flag")
    >>> parameters["a"], parameters.values("b"), parameters.get("none", "default")
    ('1', ['2', '3'], 'default')
    >>> Parameters({"x": "1", "y": "2"})
    x=1;y=2
    """

    __slots__ = ("_text",)

    def __init__(self, obj: "IntoParameters | None") -> None:
        self._text = _text_of(obj)

    def is_empty(self, /) -> bool:
        """Return whether there are no parameters."""
        return not self._text

    def get(self, /, key: str, default: str | None = None) -> str | None:
        """Return the value of the first `key`; `default` when there is none."""
        _require_text(key)
        if default is not None:
            _require_text(default)
        return next((value for name, value in self if name == key), default)

    def values(self, /, key: str) -> list[str]:
        """The value of `key`, taken apart at each `|`."""
        value = self.get(key)
        return [] if value is None else value.split("|")

    def insert(self, /, key: str, value: str) -> str | None:
        """Append `key` with `value`; return its former value."""
        _require_text(value)
        old = self.get(key)
        self._text = _join([*self._without({key}), (key, value)])
        return old

    def remove(self, /, key: str) -> str | None:
        """Remove every `key`; return the value of the first."""
        old = self.get(key)
        self._text = _join(self._without({key}))
        return old

    def extend(self, /, parameters: "IntoParameters") -> None:
        """Append all of `parameters`; they replace those with equal names."""
        if parameters is None:
            raise TypeError("parameters are text, a dict or Parameters, not None")
        new = list(Parameters(parameters))
        self._text = _join([*self._without({name for name, _ in new}), *new])

    def is_ordered(self, /) -> bool:
        """Return whether the names are sorted."""
        names = [name for name, _ in self]
        return names == sorted(names)

    def _without(self, names: set[str]) -> Iterator[Item]:
        return (item for item in self if item[0] not in names)

    def __iter__(self) -> Iterator[Item]:
        for part in self._text.split(";"):
            if part:
                name, _, value = part.partition("=")
                yield name, value

    def __getitem__(self, key: str) -> str | None:
        return self.get(key)

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __bool__(self) -> bool:
        return not self.is_empty()

    def _key(self) -> str:
        return self._text

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (self._text,)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


IntoParameters = Parameters | Mapping[str, str] | str


def _text_of(obj: IntoParameters | None) -> str:
    if obj is None:
        return ""
    if isinstance(obj, Parameters):
        return obj._text
    if isinstance(obj, Mapping):
        for name, value in obj.items():
            _require_text(name)
            _require_text(value)
        return _join(obj.items())
    _require_text(obj)
    return obj.rstrip(";=|")


def _require_text(obj: object) -> None:
    if not isinstance(obj, str):
        raise TypeError(
            f"'{type(obj).__name__}' object is not text: parameters are `a=1;b=2` or a dict of str"
        )


def _join(items: Iterable[Item]) -> str:
    return ";".join(f"{name}={value}" if value else name for name, value in items if name)


@final
class Selector(Value):
    """Subject of a query: `key/expression?parameters`; immutable.

    >>> selector = Selector("robot/*?_time=[now(-1h)..]")
    >>> selector.key_expr, selector.parameters
    (ke`robot/*`, _time=[now(-1h)..])
    >>> Selector("a", {"x": "1"}) == Selector("a?x=1")
    True
    """

    __slots__ = ("_key_expr", "_parameters")

    def __init__(self, arg: KeyExpr | str, /, parameters: IntoParameters | None = None) -> None:
        if not isinstance(arg, str):
            raise TypeError(
                f"'{type(arg).__name__}' object is not a selector: write `key?parameters`"
            )
        if parameters is None and type(arg) is not KeyExpr:
            arg, _, parameters = arg.partition("?")
        self._key_expr = KeyExpr(arg)
        self._parameters = Parameters(parameters)

    @property
    def key_expr(self) -> KeyExpr:
        """Key expression before the first `?`."""
        return self._key_expr

    @property
    def parameters(self) -> Parameters:
        """Copy of the parameters behind the first `?`."""
        return Parameters(self._parameters)

    def _key(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[type[Self], tuple[KeyExpr, str]]:
        return type(self), (self._key_expr, str(self._parameters))

    def __str__(self) -> str:
        return f"{self._key_expr}?{self._parameters}" if self._parameters else str(self._key_expr)

    def __repr__(self) -> str:
        return f'sel"{self}"'


IntoSelector = Selector | KeyExpr | str


def accepts_any_key(parameters: Parameters | str) -> bool:
    """Return whether `_anyke` is among the parameters.

    >>> accepts_any_key("a=1;_anyke"), accepts_any_key("a=_anyke")
    (True, False)
    """
    return ANY_KEY in str(parameters) and ANY_KEY in Parameters(parameters)
