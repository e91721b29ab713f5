"""Key expressions: the names of Zenoh, with wildcards, and how sets of them relate.

Standard library only; knows no message, session or clock. canon.py has the grammar, match.py the
relations between two expressions, tree.py many expressions at once, and here is the value type.
"""

from zenlake.errors import InvalidKeyExpr
from zenlake.keyexpr.canon import _SHOWN, MAX_KEY_BYTES, canonize, is_canonical, validate
from zenlake.keyexpr.match import SetIntersectionLevel, includes, intersects, relation
from zenlake.keyexpr.tree import KeyExprTree

__all__ = [
    "MAX_KEY_BYTES",
    "KeyExpr",
    "KeyExprTree",
    "SetIntersectionLevel",
    "canonize",
    "includes",
    "intersects",
    "is_canonical",
    "relation",
    "validate",
]


class KeyExpr(str):
    """A valid key expression in canonical form.

    It is a `str`, so that it equals, hashes, sorts, pickles and formats as its text, and goes
    wherever a text goes. Its own `join` takes the place of `str.join`.

    >>> key = KeyExpr("robot") / "*" / "battery"
    >>> key
    ke`robot/*/battery`
    >>> key.includes("robot/7/battery"), key == "robot/*/battery"
    (True, True)
    >>> KeyExpr.autocanonize("robot/**/*")
    ke`robot/*/**`
    """

    __slots__ = ()

    __eq__ = str.__eq__
    __hash__ = str.__hash__
    __str__ = str.__str__

    def __new__(cls, s: str) -> "KeyExpr":
        if type(s) is cls:
            return s
        _require_text(s)
        try:
            validate(s)
        except InvalidKeyExpr as error:
            raise _named(error, s) from None
        return str.__new__(cls, s)

    @classmethod
    def trusted(cls, text: str) -> "KeyExpr":
        """Return `text` as a KeyExpr without a check: the caller knows it to be canonical."""
        return str.__new__(cls, text)

    @classmethod
    def autocanonize(cls, key_expr: str) -> "KeyExpr":
        """Return `key_expr` in canonical form."""
        _require_text(key_expr)
        try:
            return str.__new__(cls, canonize(key_expr))
        except InvalidKeyExpr as error:
            raise _named(error, key_expr) from None

    @property
    def is_wild(self) -> bool:
        """Return whether it has a `*`, `**` or `$*`; as in Zenoh, also in a verbatim chunk."""
        return "*" in self

    def __repr__(self) -> str:
        return f"ke`{self}`"

    def __truediv__(self, other: str) -> "KeyExpr":
        """Return `self`, a `/`, and `other`, in canonical form."""
        if not isinstance(other, str):
            return NotImplemented
        return self.autocanonize(f"{self}/{other}")

    def join(self, /, other: str) -> "KeyExpr":  # type: ignore[override]  # the API of Zenoh
        """Return `self / other`."""
        return self / other

    def concat(self, /, other: str) -> "KeyExpr":
        """Return `self` followed by `other`, which must be canonical as it is.

        >>> KeyExpr("a/b").concat("$*/c")
        ke`a/b$*/c`
        """
        _require_text(other)
        return KeyExpr(f"{self}{other}")

    def intersects(self, /, other: str) -> bool:
        """Return whether a key matches both."""
        return intersects(self, KeyExpr(other))

    def includes(self, /, other: str) -> bool:
        """Return whether every key that matches `other` matches this."""
        return includes(self, KeyExpr(other))

    def relation_to(self, /, other: str) -> SetIntersectionLevel:
        """Return the highest SetIntersectionLevel of this with `other`."""
        return relation(self, KeyExpr(other))


def _require_text(obj: object) -> None:
    if not isinstance(obj, str):
        raise TypeError(f"a key expression is text, not {type(obj).__name__}")


def _named(error: InvalidKeyExpr, text: str) -> InvalidKeyExpr:
    """Return an error of canon.py in the words of eclipse-zenoh."""
    shown = ascii(text[:_SHOWN])
    problem = str(error).removeprefix(shown)
    return InvalidKeyExpr(f"Invalid Key Expr `{shown[1:-1]}`{problem}")
