"""Autoconnect: which nodes that were found a node dials by itself.

Knows roles, ids and the two tables of defaults. Does not know who is connected already.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from zenlake.wire.enums import WHATAMI_CODES, WireWhatAmI
from zenlake.wire.zenohid import WireZenohId

FoundBy = Literal["multicast", "gossip"]

NOBODY = WireWhatAmI(0)
ANYBODY = WireWhatAmI.ROUTER | WireWhatAmI.PEER | WireWhatAmI.CLIENT


class Strategy(Enum):
    """Which side of two that find each other dials."""

    ALWAYS = "always"
    "Both; the second link is refused."
    GREATER_ZID = "greater-zid"
    "The one with the greater id."


def strategy_for_all(strategy: Strategy) -> dict[WireWhatAmI, Strategy]:
    return dict.fromkeys(WHATAMI_CODES, strategy)


@dataclass(frozen=True)
class Autoconnect:
    """Whom to dial."""

    dials: Mapping[WireWhatAmI, WireWhatAmI]
    "Own role -> the roles to dial."
    strategies: Mapping[WireWhatAmI, Strategy] = field(
        default_factory=lambda: strategy_for_all(Strategy.ALWAYS)
    )
    "The other's role -> strategy; ALWAYS where it says nothing."

    def wants(
        self, own: WireZenohId, own_role: WireWhatAmI, peer: WireZenohId, peer_role: WireWhatAmI
    ) -> bool:
        """Whether node `own` is to dial node `peer`."""
        if own == peer or not self.dials.get(own_role, NOBODY) & peer_role:
            return False
        greater_dials = self.strategies.get(peer_role) is Strategy.GREATER_ZID
        return own > peer or not greater_dials


DEFAULTS: dict[FoundBy, Autoconnect] = {
    "multicast": Autoconnect(
        {WireWhatAmI.ROUTER: NOBODY, WireWhatAmI.PEER: ANYBODY, WireWhatAmI.CLIENT: ANYBODY}
    ),
    "gossip": Autoconnect(
        {WireWhatAmI.ROUTER: NOBODY, WireWhatAmI.PEER: ANYBODY, WireWhatAmI.CLIENT: ANYBODY}
    ),
}
