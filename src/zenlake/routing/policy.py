"""What a node does for each kind of neighbour: one table, the only place that knows roles.

Knows who is north and south of whom, who is told what unasked, and between which regions messages
pass. Does not know faces, keys or messages.
"""

from dataclasses import dataclass
from enum import Enum, auto

from zenlake.errors import ZError
from zenlake.wire.enums import WireWhatAmI


class Region(Enum):
    """Where a neighbour stands; messages pass between regions, and within one as `Within` says."""

    LOCAL = auto()
    NORTH = auto()
    PEERS = auto()
    CLIENTS = auto()


class Within(Enum):
    """Whether messages pass between two neighbours of one region."""

    NEVER = auto()
    "They have links of their own."
    UNLINKED = auto()
    "Unless they have, as far as they told."
    ALWAYS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How one kind of neighbour is treated."""

    region: Region
    within: Within = Within.NEVER
    pushes: bool = False
    "Declarations go to it unasked, with key ids; otherwise only as its interests ask."
    upstream: bool = False
    "Interests go on to it, and data that it has not said to be unwanted."
    initial: bool = False
    "Both begin with all they have and D_FINAL(0); until it came, the other gets everything."
    keyed: bool = False
    "Declarations are told apart by their key, not by an id."
    answers: bool = False
    "Its interests are answered."
    aggregates: bool = False
    "It may ask for one declaration instead of many."
    echoes: bool = False
    "It is told its own tokens as well."


_UPSTREAM = Policy(region=Region.NORTH, pushes=True, upstream=True)
_CLIENT = Policy(
    region=Region.CLIENTS, within=Within.ALWAYS, answers=True, aggregates=True, echoes=True
)
LOCAL = Policy(region=Region.LOCAL, answers=True, aggregates=True, echoes=True)

# (own role, the neighbour's) -> policy. Clients have no links to clients.
# Between routers: one hop, without transit, until there are link states between them.
POLICIES = {
    (WireWhatAmI.CLIENT, WireWhatAmI.ROUTER): _UPSTREAM,
    (WireWhatAmI.CLIENT, WireWhatAmI.PEER): _UPSTREAM,
    (WireWhatAmI.PEER, WireWhatAmI.ROUTER): _UPSTREAM,
    (WireWhatAmI.PEER, WireWhatAmI.PEER): Policy(
        region=Region.NORTH, pushes=True, initial=True, answers=True
    ),
    (WireWhatAmI.PEER, WireWhatAmI.CLIENT): _CLIENT,
    (WireWhatAmI.ROUTER, WireWhatAmI.ROUTER): Policy(region=Region.NORTH, pushes=True, keyed=True),
    (WireWhatAmI.ROUTER, WireWhatAmI.PEER): Policy(
        region=Region.PEERS, within=Within.UNLINKED, answers=True
    ),
    (WireWhatAmI.ROUTER, WireWhatAmI.CLIENT): _CLIENT,
}


def policy_for(own: WireWhatAmI, other: WireWhatAmI) -> Policy:
    """How a node that is `own` treats a neighbour that is `other`; ZError if they do not talk."""
    policy = POLICIES.get((own, other))
    if policy is None:
        raise ZError(
            f"a {own.name or own} does not talk to a {other.name or other}: "
            "connect both to a router or a peer"
        )
    return policy
