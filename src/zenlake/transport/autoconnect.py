"""Autoconnect: which of the nodes that it discovers a node connects to.

Knows roles, zids and the default for each way of discovery (zenoh-config scouting.*.autoconnect).
Does not know which nodes are connected already.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from zenlake.wire.enums import WHATAMI_CODES, WireWhatAmI
from zenlake.wire.zenohid import WireZenohId

FoundBy = Literal["multicast", "gossip"]

NO_ROLE = WireWhatAmI(0)
ANY_ROLE = WireWhatAmI.ROUTER | WireWhatAmI.PEER | WireWhatAmI.CLIENT


class Strategy(Enum):
    """Which of two nodes that discover each other connects."""

    ALWAYS = "always"
    "Both connect; the second link is refused."
    GREATER_ZID = "greater-zid"
    "The node with the greater zid connects."


def strategy_for_all(strategy: Strategy) -> dict[WireWhatAmI, Strategy]:
    return dict.fromkeys(WHATAMI_CODES, strategy)


@dataclass(frozen=True)
class Autoconnect:
    """Rules for connecting to a discovered node."""

    roles: Mapping[WireWhatAmI, WireWhatAmI]
    "Own role -> the roles to connect to."
    strategies: Mapping[WireWhatAmI, Strategy] = field(
        default_factory=lambda: strategy_for_all(Strategy.ALWAYS)
    )
    "Role of the other node -> strategy; ALWAYS where it is missing."

    def wants(
        self, own: WireZenohId, own_role: WireWhatAmI, peer: WireZenohId, peer_role: WireWhatAmI
    ) -> bool:
        """Return whether node `own` is to connect to node `peer`."""
        if own == peer or not self.roles.get(own_role, NO_ROLE) & peer_role:
            return False
        greater_connects = self.strategies.get(peer_role) is Strategy.GREATER_ZID
        return own > peer or not greater_connects


DEFAULTS: dict[FoundBy, Autoconnect] = {
    "multicast": Autoconnect(
        {WireWhatAmI.ROUTER: NO_ROLE, WireWhatAmI.PEER: ANY_ROLE, WireWhatAmI.CLIENT: ANY_ROLE}
    ),
    "gossip": Autoconnect(
        {WireWhatAmI.ROUTER: NO_ROLE, WireWhatAmI.PEER: ANY_ROLE, WireWhatAmI.CLIENT: ANY_ROLE}
    ),
}
