"""Autoconnect: which nodes that were found a node dials by itself.

Knows roles, ids and the two tables of defaults. Does not know who is connected already.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from zenlake.wire.enums import WHATAMI_CODES, WhatAmI
from zenlake.wire.zenohid import ZenohId

FoundBy = Literal["multicast", "gossip"]

NOBODY = WhatAmI(0)
ANYBODY = WhatAmI.ROUTER | WhatAmI.PEER | WhatAmI.CLIENT


class Strategy(Enum):
    """Which side of two that find each other dials."""

    ALWAYS = "always"
    "Both; the second link is refused."
    GREATER_ZID = "greater-zid"
    "The one with the greater id."


def strategy_for_all(strategy: Strategy) -> dict[WhatAmI, Strategy]:
    return dict.fromkeys(WHATAMI_CODES, strategy)


@dataclass(frozen=True)
class Autoconnect:
    """Whom to dial."""

    dials: Mapping[WhatAmI, WhatAmI]
    "Own role -> the roles to dial."
    strategies: Mapping[WhatAmI, Strategy] = field(
        default_factory=lambda: strategy_for_all(Strategy.ALWAYS)
    )
    "The other's role -> strategy; ALWAYS where it says nothing."

    def wants(self, own: ZenohId, own_role: WhatAmI, peer: ZenohId, peer_role: WhatAmI) -> bool:
        """Whether node `own` is to dial node `peer`."""
        if own == peer or not self.dials.get(own_role, NOBODY) & peer_role:
            return False
        greater_dials = self.strategies.get(peer_role) is Strategy.GREATER_ZID
        return own > peer or not greater_dials


DEFAULTS: dict[FoundBy, Autoconnect] = {
    "multicast": Autoconnect(
        {WhatAmI.ROUTER: NOBODY, WhatAmI.PEER: ANYBODY, WhatAmI.CLIENT: ANYBODY}
    ),
    "gossip": Autoconnect({WhatAmI.ROUTER: NOBODY, WhatAmI.PEER: ANYBODY, WhatAmI.CLIENT: ANYBODY}),
}
