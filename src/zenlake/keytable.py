"""KeyTable: which key expression each declared id of one link stands for, in both directions.

Knows what was declared and when it changed. Does not know messages or whether a key is valid.
"""

import itertools

from zenlake.wire.enums import Mapping
from zenlake.wire.wireexpr import WireExpr

_MAPPING_SHIFT = 16  # Bits of a scope.
_versions = itertools.count(1)


class KeyTable:
    """Key expressions by declared id. A scope has 16 bits, so a table is bounded.

    An id is found by the `mapping` of the messages that use it: SENDER if their sender declared it.

    >>> table = KeyTable()
    >>> table.declare(Mapping.SENDER, 3, "robot/7")
    True
    >>> table.text(WireExpr(3, "/pose", Mapping.SENDER))
    'robot/7/pose'
    >>> table.text(WireExpr(4, "/pose", Mapping.SENDER)) is None
    True
    """

    __slots__ = ("_prefixes", "longest", "version")

    def __init__(self) -> None:
        self._prefixes: dict[int, bytes] = {number_of(mapping, 0): b"" for mapping in Mapping}
        self.version = next(_versions)
        "Changes whenever the meaning of an id may have changed; unique among all tables."
        self.longest = 0
        "Upper bound on the length of a prefix, in bytes."

    def declare(self, mapping: Mapping, scope: int, key: str) -> bool:
        """Let an id stand for `key`; False, without a change, if a peer's declaration is invalid.

        Invalid are scope 0, which means no prefix, and an id that stands for another key.
        """
        number, prefix = number_of(mapping, scope), key.encode()
        if self._prefixes.get(number, prefix) != prefix or not scope:
            return False
        self._prefixes[number] = prefix
        self.longest = max(self.longest, len(prefix))
        self.version = next(_versions)
        return True

    def undeclare(self, mapping: Mapping, scope: int) -> None:
        if scope:
            self._prefixes.pop(number_of(mapping, scope), None)
            self.version = next(_versions)

    def prefix(self, number: int) -> bytes | None:
        """Return the UTF-8 text of the id `number_of(mapping, scope)`; None if it is undeclared."""
        return self._prefixes.get(number)

    def text(self, key: WireExpr) -> str | None:
        """Return `key` in full; None if its scope is not declared."""
        prefix = self._prefixes.get(number_of(key.mapping, key.scope))
        return None if prefix is None else prefix.decode() + key.suffix


def number_of(mapping: Mapping, scope: int) -> int:
    """Return mapping and scope as one number, as kernels compute it from the scan's rows."""
    return mapping << _MAPPING_SHIFT | scope
