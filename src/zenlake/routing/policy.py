"""Policy: how a node treats each kind of neighbour, as one table; the only module that knows roles.

Knows the regions, which neighbours get declarations without an interest, and between which regions
messages pass. Does not know faces, keys or messages.
Rust: `zenoh/src/net/routing/hat/{client,broker,peer,router}`.
"""

from dataclasses import dataclass
from enum import Enum, auto

from zenlake.errors import ZError
from zenlake.wire.enums import InterestOptions, WireWhatAmI

NOTHING = InterestOptions(0)
SUBSCRIBERS = InterestOptions.SUBSCRIBERS
EVERYTHING = (
    InterestOptions.KEYEXPRS | SUBSCRIBERS | InterestOptions.QUERYABLES | InterestOptions.TOKENS
)


class Region(Enum):
    """Group of neighbours: messages pass between regions, and inside one as `Within` says."""

    LOCAL = auto()
    NORTH = auto()
    PEERS = auto()
    CLIENTS = auto()


class Within(Enum):
    """Whether messages pass between two neighbours of one region."""

    NEVER = auto()
    "No: the neighbours have links to each other."
    UNLINKED = auto()
    "Only between neighbours whose link states list no link to each other."
    ALWAYS = auto()
    "Yes: such neighbours have no links to each other."


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Rules for one kind of neighbour."""

    region: Region
    within: Within = Within.NEVER
    pushes: InterestOptions = NOTHING
    "Kinds of declarations sent to it without an interest; for the others its interests decide."
    upstream: bool = False
    "Interests are sent on to it, and data on keys that no answered interest of ours covers."
    initial: bool = False
    "Both sides first send all declarations and D_FINAL(0); until then it gets all data."
    keyed: bool = False
    "Its declarations are identified by key instead of id."
    answers: bool = False
    "Its interests are answered."
    aggregates: bool = False
    "Its interests may ask for one declaration that stands for many (AGGREGATE)."
    echoes: bool = False
    "Its own tokens are declared back to it."
    takes_all: bool = False
    "All data goes to it, whether or not it is declared there: a multicast group."
    multicast: bool = False
    "A multicast group or a member of one: a member only sends, what it is sent goes to its group."

    @property
    def only_sends(self) -> bool:
        """Whether no data goes to it: it is a member of a group."""
        return self.multicast and not self.takes_all


_UPSTREAM = Policy(region=Region.NORTH, pushes=EVERYTHING, upstream=True)
_CLIENT = Policy(
    region=Region.CLIENTS, within=Within.ALWAYS, answers=True, aggregates=True, echoes=True
)
LOCAL = Policy(region=Region.LOCAL, answers=True, aggregates=True, echoes=True)

# (Own role, role of the neighbour) -> policy. Two clients have no link.
# Two routers: one hop without transit, since no link states are exchanged between them.
POLICIES = {
    (WireWhatAmI.CLIENT, WireWhatAmI.ROUTER): _UPSTREAM,
    (WireWhatAmI.CLIENT, WireWhatAmI.PEER): _UPSTREAM,
    (WireWhatAmI.PEER, WireWhatAmI.ROUTER): _UPSTREAM,
    (WireWhatAmI.PEER, WireWhatAmI.PEER): Policy(
        region=Region.NORTH, pushes=EVERYTHING, initial=True, answers=True
    ),
    (WireWhatAmI.PEER, WireWhatAmI.CLIENT): _CLIENT,
    (WireWhatAmI.ROUTER, WireWhatAmI.ROUTER): Policy(
        region=Region.NORTH, pushes=EVERYTHING, keyed=True
    ),
    (WireWhatAmI.ROUTER, WireWhatAmI.PEER): Policy(
        region=Region.PEERS, within=Within.UNLINKED, answers=True
    ),
    (WireWhatAmI.ROUTER, WireWhatAmI.CLIENT): _CLIENT,
}

# Role of this node -> policy of the groups that it has joined. A peer forwards data from a group to
# its clients alone, a router also to other routers; neither forwards it to unicast peers.
GROUPS = {
    own: Policy(region=region, pushes=SUBSCRIBERS, takes_all=True, multicast=True)
    for own, region in ((WireWhatAmI.PEER, Region.NORTH), (WireWhatAmI.ROUTER, Region.PEERS))
}


def policy_for(own: WireWhatAmI, other: WireWhatAmI) -> Policy:
    """Return the policy of a node of role `own` for a neighbour of role `other`.

    ZError: no link between such two is supported.
    """
    policy = POLICIES.get((own, other))
    if policy is None:
        raise ZError(
            f"a {own.name or own} does not talk to a {other.name or other}: "
            "connect both to a router or a peer"
        )
    return policy


def policy_for_member(own: WireWhatAmI) -> Policy:
    """Return the policy of a node of role `own` for a member of a group that it has joined."""
    return Policy(region=GROUPS[own].region, multicast=True)
