"""Face: one neighbour, or the local session, with everything exchanged between it and this node.

Knows the key ids of both directions and writes a key in its shortest form. Does not decide which
face gets a message. Rust: `zenoh/src/net/routing/dispatcher/face.rs`.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from zenlake.caching import LONG_KEY, BoundedCache
from zenlake.errors import NeighbourLimit
from zenlake.keyexpr import MAX_KEY_BYTES, is_canonical
from zenlake.keytable import KeyTable, number_of
from zenlake.routing.policy import Policy
from zenlake.wire import qos
from zenlake.wire.cursor import U16, U32
from zenlake.wire.declare import Declare, DeclareKeyExpr
from zenlake.wire.enums import CloseReason, InterestOptions, Mapping, WireWhatAmI
from zenlake.wire.extensions import QueryableInfo
from zenlake.wire.network import NetworkMessage
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

if TYPE_CHECKING:
    from zenlake.routing.interests import FaceInterest, PendingInterest, SentInterest
    from zenlake.routing.queries import PendingQuery

MAX_KEY_IDS = U16  # Key ids that a neighbour may declare: a scope has 16 bits.
MAX_OWN_KEY_IDS = 4096
"""Key ids declared to a neighbour. A Rust node takes no id that the other side uses, never gives
one back, and hangs once all 65,535 are used (`get_next_local_id` in dispatcher/face.rs)."""
MAX_KEY_ID_BYTES = 32 << 20  # Bytes of all keys of a neighbour's ids: 512 for each of them.
MAX_KEY_TEXTS = 4096  # Resolved keys in the cache of one face.
ENTRY_BYTES = 768  # Memory of a declaration or interest without its key: at most 700 measured.
CHUNK_BYTES = 480  # Memory of a node in a tree of keys: 440 measured, 470 if not ASCII.
CHARACTER_BYTES = 4  # Memory of a character in a text that is not ASCII, at most (PEP 393).
MAX_WEIGHT = 1 << 30
"""Memory for the declarations and interests of a neighbour, at most: their keys share chunks.
65,535 publishers and as many tokens on keys of 8 chunks and 100 letters, without a chunk in common,
weigh 0.9 GB."""
SHOWN_CHARACTERS = 100  # Of a key in an error text.
FIRST_SCOPE = 1  # Key ids start at 1; 0 stands for no id.

Kind = InterestOptions
"Exactly one of SUBSCRIBERS, QUERYABLES, TOKENS and KEYEXPRS."


class DeclarationSlot(NamedTuple):
    """Key of one declaration to a face: an entity's key, or the key of an aggregate interest."""

    kind: Kind
    key: str
    aggregate: bool


@dataclass(slots=True)
class SentDeclaration:
    """Declaration that was sent to a face."""

    id: int
    info: QueryableInfo


class Face:
    """One neighbour, or the local session; compared by identity."""

    __slots__ = (
        "_next_id",
        "_next_scope",
        "_our_scopes",
        "_texts",
        "_their_bytes",
        "_their_scopes",
        "awaiting_initial",
        "declared",
        "exceeded",
        "gateways",
        "initial_done",
        "interests",
        "is_local",
        "is_open",
        "keys",
        "keys_in_full",
        "link",
        "links",
        "links_sn",
        "pending_interests",
        "policy",
        "psids",
        "queries",
        "refused",
        "requests",
        "sent_declarations",
        "sent_interests",
        "settled",
        "weight",
        "whatami",
        "zid",
    )

    def __init__(
        self,
        zid: WireZenohId,
        whatami: WireWhatAmI,
        policy: Policy,
        *,
        is_local: bool = False,
        keys_in_full: bool = False,
    ) -> None:
        self.zid = zid
        self.whatami = whatami
        self.is_local = is_local
        self.keys_in_full = is_local or keys_in_full
        """Whether keys are written without ids: a link that loses messages, or lets one overtake
        another, may lose the declaration of an id, and all messages with that id would be lost too.
        """
        self.link: Any = None
        "Handle of the owner, opaque to routing."
        self.policy = policy
        self.is_open = True
        self.keys = KeyTable()
        "Keys of the ids in messages from the neighbour; `version` changes with written keys too."
        self._their_scopes: dict[str, int] = {}
        self._their_bytes = 0
        self._our_scopes: dict[str, int] = {}
        self._next_scope = FIRST_SCOPE
        self._texts = BoundedCache[WireExpr, str | None](MAX_KEY_TEXTS)
        self._next_id = 0
        self.declared: dict[tuple[Kind, Hashable], str] = {}
        "The key of each entity that the neighbour declared, by kind and id."
        self.weight = 0
        "Memory of the neighbour's declarations and interests, at most."
        self.exceeded: NeighbourLimit | None = None
        "Limit that the neighbour exceeded; the owner has to close its session."
        self.refused: str | None = None
        "Declaration or put of the neighbour that was refused; the owner has to report it."
        self.sent_declarations: dict[DeclarationSlot, SentDeclaration] = {}
        "Declarations to the neighbour that were not undeclared."
        self.interests: dict[int, FaceInterest] = {}
        "The neighbour's interests in future declarations, by id."
        self.pending_interests: dict[int, PendingInterest] = {}
        "The neighbour's interests that have not had their D_FINAL, by id."
        self.sent_interests: dict[int, SentInterest] = {}
        "Interests sent to the neighbour, by id."
        self.settled: Counter[tuple[Kind, str]] = Counter()
        "Keys for which the neighbour has declared everything it has, with the number of interests."
        self.initial_done = not policy.initial
        "Whether the neighbour has sent D_FINAL(0), or need not."
        self.awaiting_initial: list[PendingInterest] = []
        "Pending interests that wait for that D_FINAL(0)."
        self.queries: dict[int, PendingQuery] = {}
        "Queries from the neighbour, by its request id."
        self.requests: dict[int, PendingQuery] = {}
        "Queries to the neighbour, by our request id."
        self.psids: dict[int, WireZenohId] = {}
        "The neighbour's numbers for nodes in its link states."
        self.links: frozenset[WireZenohId] | None = None
        "Nodes that the neighbour's link state lists; None: it sent none."
        self.gateways: frozenset[WireZenohId] = frozenset()
        "Routers that the neighbour has links to, by its link states."
        self.links_sn = -1
        "Sequence number of the newest link state of the neighbour."

    def __repr__(self) -> str:
        return f"Face({'local ' if self.is_local else ''}{self.whatami.name} {self.zid})"

    def new_id(self) -> int:
        """Return a new id, never 0, for a declaration, interest or request to this face."""
        self._next_id = self._next_id % U32 + 1
        return self._next_id

    def is_unsettled(self, kind: Kind, key: str) -> bool:
        """Return whether the face must get `key` without a declaration: it has not declared all."""
        if self.policy.upstream:
            return (kind, key) not in self.settled
        return not self.initial_done

    def text(self, key: WireExpr) -> str | None:
        """Return a received key in full; None: its id is unknown, or it is not a valid key."""
        if not key.scope and self.is_local:
            return key.suffix if is_canonical(key.suffix) else None
        if self._texts.version != self.keys.version:
            self._texts.renew(self.keys.version)
        if key in self._texts:
            return self._texts[key]
        text = self.keys.text(key)
        if text is not None and not is_canonical(text):
            text = None
        cached = WireExpr(key.scope, key.suffix, key.mapping)
        return self._texts.keep(cached, text, len(key.suffix))

    def learn(self, scope: int, key: WireExpr) -> bool:
        """Store a key id of the neighbour; return False if it is beyond the limits or not valid."""
        text = self.keys.text(key)
        if not scope:  # A Rust node takes 0 once its other ids are used up.
            self.exceed(
                f"{MAX_KEY_IDS:,} key ids",
                "it declares id 0, which no key can have; open another session for more keys",
            )
        if text is None or not scope:
            return False
        before = self.keys.prefix(number_of(Mapping.SENDER, scope))
        size, new = len(text.encode()), before is None
        if before is not None and before != text.encode():
            self.exceed(
                "one key per key id",
                f"it declares id {scope} for {text[:SHOWN_CHARACTERS]}, which stands for "
                f"{before.decode()[:SHOWN_CHARACTERS]}; undeclare the id first",
            )
            return False
        if new and self._their_bytes + size > MAX_KEY_ID_BYTES:
            self.exceed(
                f"{MAX_KEY_ID_BYTES:,} bytes of keys with an id",
                "declare shorter keys, or spread them over several sessions",
            )
            return False
        if size > MAX_KEY_BYTES or not self.keys.declare(Mapping.SENDER, scope, text):
            return False
        self._their_bytes += size * new
        self._their_scopes[text] = scope
        return True

    def exceed(self, limit: str, remedy: str) -> None:
        """Note that the neighbour exceeded `limit`, so that its session is closed."""
        self.exceeded = self.exceeded or NeighbourLimit(
            f"the limit for one neighbour is {limit}: {remedy}", CloseReason.UNSUPPORTED
        )

    def refuse(self, what: str, key: WireExpr) -> None:
        """Note that `what`, which names `key`, was refused, so that it is reported."""
        name = str(key)[:SHOWN_CHARACTERS]
        self.refused = f"{what} on {name}: its key id is not declared, or the key is not valid"

    def unlearn(self, scope: int) -> bool:
        """Remove a key id of the neighbour; return False if it had not declared it."""
        prefix = self.keys.prefix(number_of(Mapping.SENDER, scope))
        if not scope or prefix is None:
            return False
        self.keys.undeclare(Mapping.SENDER, scope)
        self._their_bytes -= len(prefix)
        if self._their_scopes.get(prefix.decode()) == scope:
            del self._their_scopes[prefix.decode()]
        return True

    def write(
        self, key: str, may_declare: Callable[[str], bool] | None = None
    ) -> tuple[WireExpr, Declare | None]:
        """Return `key` in its shortest form for this face, and the D_KEYEXPR to send before it.

        A new id is made for a prefix without wildcards if `may_declare(prefix)`.
        """
        if self.keys_in_full:
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
        """Return the next id that neither side uses; None: those for this side are used up."""
        if len(self._our_scopes) >= MAX_OWN_KEY_IDS:
            return None
        while self._next_scope <= MAX_KEY_IDS:
            if all(self.keys.prefix(number_of(m, self._next_scope)) is None for m in Mapping):
                return self._next_scope
            self._next_scope += 1
        return None

    def _introduce(self, scope: int, prefix: str, suffix: str) -> tuple[WireExpr, Declare]:
        """Bind `scope` to `prefix`, and return the written key and its D_KEYEXPR."""
        self.keys.declare(Mapping.RECEIVER, scope, prefix)
        self._our_scopes[prefix] = scope
        body = DeclareKeyExpr(scope, WireExpr(0, prefix))
        return WireExpr(scope, suffix, Mapping.SENDER), Declare(body, qos=qos.DECLARE)


Out = list[tuple[Face, NetworkMessage]]
"Messages to send, in this order, each with its face."


def weight_of(key: str | None, trees: int = 1) -> int:
    """Return the memory of a declaration or interest on `key`, at most; None: on all keys.

    Each of its `trees` has a node and a text for each chunk.
    """
    if key is None:
        return ENTRY_BYTES
    text = len(key) if key.isascii() else CHARACTER_BYTES * len(key)
    return ENTRY_BYTES + text + trees * (text + CHUNK_BYTES * (key.count("/") + 1))


def plain_prefix(key: str) -> str:
    """Return the chunks of `key` before the first wildcard.

    >>> plain_prefix("demo/a/**"), plain_prefix("a/b"), plain_prefix("*/b")
    ('demo/a', 'a/b', '')
    """
    wild = key.find("*")
    return key if wild < 0 else key[: max(0, key.rfind("/", 0, wild))]
