"""Face: one neighbour, or the local session, and all that is known between it and this node.

Knows key ids of both directions and how a key is written shortest. Does not decide who gets what.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from zenlake.keyexpr import MAX_KEY_BYTES, is_canonical
from zenlake.keytable import KeyTable, number_of
from zenlake.routing.policy import Policy
from zenlake.wire import qos
from zenlake.wire.cursor import U16, U32
from zenlake.wire.declare import Declare, DeclareKeyExpr
from zenlake.wire.enums import InterestOptions, Mapping, WireWhatAmI
from zenlake.wire.extensions import QueryableInfo
from zenlake.wire.network import NetworkMessage
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

if TYPE_CHECKING:
    from zenlake.routing.declarations import FaceInterest, PendingInterest, SentInterest
    from zenlake.routing.queries import PendingQuery

MAX_KEY_IDS = 8192  # that one side declares to the other
MAX_KEY_ID_BYTES = 8 << 20  # of the keys that a neighbour's ids stand for
MAX_KEY_TEXTS = 4096  # resolved keys that are kept at hand
LONG_KEY = 1024  # longer ones are not kept at hand, and get no id from here
CHUNK_BYTES = 384  # that a chunk takes in a tree of keys, about
MAX_WEIGHT = 256 << 20  # bytes that all a neighbour declared and wishes may take
FIRST_SCOPE = 1

Kind = InterestOptions
"SUBSCRIBERS, QUERYABLES or TOKENS: one of them, not several."


class DeclarationSlot(NamedTuple):
    """What a face may have been told of: one declaration of its own id."""

    kind: Kind
    key: str
    aggregate: bool


@dataclass(slots=True)
class SentDeclaration:
    id: int
    info: QueryableInfo


class Face:
    """One neighbour, or the local session. Two faces are the same if they are one object."""

    __slots__ = (
        "_next_id",
        "_next_scope",
        "_our_scopes",
        "_texts",
        "_texts_version",
        "_their_bytes",
        "_their_ids",
        "_their_scopes",
        "asked",
        "declared",
        "first",
        "gateways",
        "initial_done",
        "is_local",
        "is_open",
        "keys",
        "link",
        "links",
        "links_sn",
        "pending",
        "policy",
        "psids",
        "queries",
        "requests",
        "settled",
        "told",
        "weight",
        "whatami",
        "wishes",
        "zid",
    )

    def __init__(
        self, zid: WireZenohId, whatami: WireWhatAmI, policy: Policy, *, is_local: bool = False
    ) -> None:
        self.zid = zid
        self.whatami = whatami
        self.is_local = is_local
        self.link: Any = None
        "The owner's handle; routing never looks at it."
        self.policy = policy
        self.is_open = True
        self.keys = KeyTable()
        "What scopes in messages from the neighbour stand for; its version dates written keys too."
        self._their_scopes: dict[str, int] = {}
        self._their_ids = 0
        self._their_bytes = 0
        self._our_scopes: dict[str, int] = {}
        self._next_scope = FIRST_SCOPE
        self._texts: dict[WireExpr, str | None] = {}
        self._texts_version = self.keys.version
        self._next_id = 0
        self.declared: dict[tuple[Kind, Hashable], str] = {}
        "What the neighbour declared: the key of each id."
        self.weight = 0
        "About how many bytes that takes, and its wishes."
        self.told: dict[DeclarationSlot, SentDeclaration] = {}
        "What the neighbour was told."
        self.wishes: dict[int, FaceInterest] = {}
        "The neighbour's interests in what is to come."
        self.pending: dict[int, PendingInterest] = {}
        "Those of its interests that have not had their D_FINAL."
        self.asked: dict[int, SentInterest] = {}
        "Interests sent to the neighbour."
        self.settled: Counter[tuple[Kind, str]] = Counter()
        "Keys of which the neighbour has said all that it has."
        self.initial_done = not policy.initial
        "False: the neighbour still owes D_FINAL(0)."
        self.first: list[PendingInterest] = []
        "What waits for that D_FINAL(0)."
        self.queries: dict[int, PendingQuery] = {}
        "Queries from the neighbour, by its request id."
        self.requests: dict[int, PendingQuery] = {}
        "Queries to the neighbour, by our request id."
        self.psids: dict[int, WireZenohId] = {}
        self.links: frozenset[WireZenohId] | None = None
        "The nodes that it has links to, as far as it told; None: it told nothing."
        self.gateways: frozenset[WireZenohId] = frozenset()
        self.links_sn = -1

    def __repr__(self) -> str:
        return f"Face({'local ' if self.is_local else ''}{self.whatami.name} {self.zid})"

    def new_id(self) -> int:
        """An id for a declaration, interest or request to this face; 0 is never one."""
        self._next_id = self._next_id % U32 + 1
        return self._next_id

    def unsettled(self, kind: Kind, key: str) -> bool:
        """Whether `key` goes to this face although nobody there is known to want it."""
        if self.policy.upstream:
            return (kind, key) not in self.settled
        return not self.initial_done

    def text(self, key: WireExpr) -> str | None:
        """A received key in full; None if its scope is unknown or it is no key expression."""
        if not key.scope and self.is_local:
            return key.suffix if is_canonical(key.suffix) else None
        if self._texts_version != self.keys.version or len(self._texts) >= MAX_KEY_TEXTS:
            self._texts.clear()
            self._texts_version = self.keys.version
        elif key in self._texts:
            return self._texts[key]
        text = self.keys.text(key)
        if text is not None and not is_canonical(text):
            text = None
        if len(key.suffix) <= LONG_KEY:
            self._texts[WireExpr(key.scope, key.suffix, key.mapping)] = text
        return text

    def learn(self, scope: int, key: WireExpr) -> bool:
        """The neighbour declared an id; False: too many, or not what an id may stand for."""
        text = self.keys.text(key)
        if text is None:
            return False
        size, new = len(text.encode()), self.keys.prefix(number_of(Mapping.SENDER, scope)) is None
        if (
            size > MAX_KEY_BYTES
            or (new and self._their_ids >= MAX_KEY_IDS)
            or (new and self._their_bytes + size > MAX_KEY_ID_BYTES)
            or not self.keys.declare(Mapping.SENDER, scope, text)
        ):
            return False
        self._their_ids += new
        self._their_bytes += size * new
        self._their_scopes[text] = scope
        return True

    def unlearn(self, scope: int) -> bool:
        """The neighbour took an id back; False: it had not declared it."""
        prefix = self.keys.prefix(number_of(Mapping.SENDER, scope))
        if not scope or prefix is None:
            return False
        self.keys.undeclare(Mapping.SENDER, scope)
        self._their_ids -= 1
        self._their_bytes -= len(prefix)
        if self._their_scopes.get(prefix.decode()) == scope:
            del self._their_scopes[prefix.decode()]
        return True

    def write(
        self, key: str, may_declare: Callable[[str], bool] | None = None
    ) -> tuple[WireExpr, Declare | None]:
        """The shortest way to write `key` to this face, and the D_KEYEXPR to send before.

        `may_declare` says of a prefix without wildcards whether an id may be made for it.
        """
        if self.is_local:
            return WireExpr(0, key, Mapping.SENDER), None
        prefix = plain_prefix(key)
        short = 0 < len(prefix) <= LONG_KEY
        if may_declare is not None and short and self._find(prefix) is None:
            scope = self._free_scope()
            if scope is not None and may_declare(prefix):
                return self._introduce(scope, prefix, key[len(prefix) :])
        end = len(key)
        while end > 0:
            found = self._find(key[:end])
            if found is not None:
                scope, mapping = found
                return WireExpr(scope, key[end:], mapping), None
            end = key.rfind("/", 0, end)
        return WireExpr(0, key, Mapping.SENDER), None

    def _find(self, text: str) -> tuple[int, Mapping] | None:
        if (scope := self._their_scopes.get(text)) is not None:
            return scope, Mapping.RECEIVER
        if (scope := self._our_scopes.get(text)) is not None:
            return scope, Mapping.SENDER
        return None

    def _free_scope(self) -> int | None:
        """The next id that neither side uses; None: there have been enough."""
        if len(self._our_scopes) >= MAX_KEY_IDS:
            return None
        while any(self.keys.prefix(number_of(m, self._next_scope)) is not None for m in Mapping):
            self._next_scope += 1
        return self._next_scope if self._next_scope <= U16 else None

    def _introduce(self, scope: int, prefix: str, suffix: str) -> tuple[WireExpr, Declare]:
        self.keys.declare(Mapping.RECEIVER, scope, prefix)
        self._our_scopes[prefix] = scope
        body = DeclareKeyExpr(scope, WireExpr(0, prefix))
        return WireExpr(scope, suffix, Mapping.SENDER), Declare(body, qos=qos.DECLARE)


Out = list[tuple[Face, NetworkMessage]]
"What to send, in this order."


def weight_of(key: str | None) -> int:
    """About how many bytes it takes to hold `key` in a tree: a chunk may be one letter."""
    return 0 if key is None else len(key) + CHUNK_BYTES * (key.count("/") + 1)


def plain_prefix(key: str) -> str:
    """The chunks of `key` before the first wildcard.

    >>> plain_prefix("demo/a/**"), plain_prefix("a/b"), plain_prefix("*/b")
    ('demo/a', 'a/b', '')
    """
    wild = key.find("*")
    return key if wild < 0 else key[: max(0, key.rfind("/", 0, wild))]
