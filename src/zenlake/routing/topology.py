"""Topology: the open faces, and between which of them messages pass.

Knows the policy of each face and the links that peers tell of. Does not know keys.
"""

from collections import Counter
from collections.abc import Iterator

from zenlake.errors import DecodeError
from zenlake.routing.face import Face, Kind
from zenlake.routing.policy import LOCAL, Region, Within, policy_for
from zenlake.transport.drop_reason import DropReason
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.linkstate import LinkState, read_link_states
from zenlake.wire.oam import LINK_STATE, NetworkOam
from zenlake.wire.zenohid import WireZenohId

MAX_LINK_STATE_BYTES = 1 << 20
MAX_PSIDS = 10_000  # nodes that one face may give a number

Pairs = list[tuple[Face, Face]]


class Topology:
    """The faces of one node."""

    def __init__(self, zid: WireZenohId, whatami: WireWhatAmI) -> None:
        self.zid = zid
        self.whatami = whatami
        self.local = Face(zid, whatami, LOCAL, is_local=True)
        self.faces: dict[Face, None] = {self.local: None}
        self.pushed: dict[Region, dict[Face, None]] = {}
        "Faces that are told every declaration that passes to them, by where they stand."
        self.upstream: dict[Face, None] = {}
        "Faces that interests go on to."
        self.eager: dict[Face, None] = {}
        "Faces that may get what nobody there is known to want."
        self.counters: Counter[DropReason] = Counter()
        "What was ignored or refused, by reason."
        self.version = 0
        self.routers: Counter[WireZenohId] = Counter()
        "Those that this node, a router too, has links to."

    def add(self, zid: WireZenohId, whatami: WireWhatAmI) -> tuple[Face, Pairs]:
        """A new face, and the others whose messages pass each other differently now."""
        face = Face(zid, whatami, policy_for(self.whatami, whatami))
        policy = face.policy
        before = self._passing_of_peers() if policy.keyed else {}
        self.faces[face] = None
        if policy.pushes:
            self.pushed.setdefault(policy.region, {})[face] = None
        if policy.upstream:
            self.upstream[face] = None
        if policy.upstream or policy.initial:
            self.eager[face] = None
        if policy.keyed:
            self.routers[zid] += 1
        self.version += 1
        return face, self._changed(before)

    def remove(self, face: Face) -> Pairs:
        face.is_open = False
        before = self._passing_of_peers() if face.policy.keyed else {}
        pushed = self.pushed.get(face.policy.region, {})
        for faces in (self.faces, pushed, self.upstream, self.eager):
            faces.pop(face, None)
        if face.policy.keyed:
            self.routers -= Counter([face.zid])
        self.version += 1
        return self._changed(before)

    def _passing_of_peers(self) -> dict[tuple[Face, Face], bool]:
        """What a link to a router may change."""
        peers = [face for face in self.faces if face.gateways]
        return {(peer, other): self.passes(peer, other) for peer in peers for other in self.faces}

    def _changed(self, before: dict[tuple[Face, Face], bool]) -> Pairs:
        return [
            pair
            for pair, passed in before.items()
            if pair[1] in self.faces and self.passes(*pair) != passed
        ]

    def initial_done(self, face: Face) -> None:
        """D_FINAL(0) came: from now on the face gets what it declared."""
        face.initial_done = True
        self.eager.pop(face, None)
        self.version += 1

    def passes(self, source: Face, target: Face) -> bool:
        """Whether what comes from `source` may go to `target`; the same the other way round."""
        if source is target or not (self._serves(source) and self._serves(target)):
            return False
        if source.policy.region is not target.policy.region:
            return True
        within = source.policy.within
        return within is Within.ALWAYS or (
            within is Within.UNLINKED and _unlinked(source, target) and self._first(source, target)
        )

    def pushed_from(self, source: Face) -> Iterator[Face]:
        """Faces that may be told, unasked, what `source` declares."""
        for region, faces in self.pushed.items():
            if region is not source.policy.region or source.policy.within is not Within.NEVER:
                yield from faces

    def _serves(self, face: Face) -> bool:
        """Whether it falls to this node to pass on what a peer says and what it is to hear.

        Of several routers that it has, and that have links to each other, only the greatest does.
        """
        if not face.gateways:
            return True
        return self.zid == max((face.gateways & self.routers.keys()) | {self.zid})

    def _first(self, a: Face, b: Face) -> bool:
        """The same for two peers and the routers that both have."""
        return self.zid == max((a.gateways & b.gateways) | {self.zid})

    def eager_for(self, source: Face, kind: Kind, key: str) -> Iterator[Face]:
        """Faces that `key` goes to although nobody there may want it: they have not said so."""
        for face in self.eager:
            if face.unsettled(kind, key) and self.passes(source, face):
                yield face

    def on_oam(self, face: Face, oam: NetworkOam) -> Pairs:
        """A neighbour tells its links: those whose messages pass each other differently now."""
        body = oam.body
        if oam.id != LINK_STATE or face.policy.within is not Within.UNLINKED:
            return []  # of no use here: those who find nodes read it too
        if not isinstance(body, bytes) or len(body) > MAX_LINK_STATE_BYTES:
            self.counters[DropReason.LINK_STATE_REFUSED] += 1
            return []
        try:
            states = read_link_states(body)
        except DecodeError:
            self.counters[DropReason.LINK_STATE_INVALID] += 1
            return []
        before = {(face, other): self.passes(face, other) for other in self.faces}
        for state in self._bound(face, states):
            self._take(face, state, states)
        changed = self._changed(before)
        if changed:
            self.version += 1
        return changed

    def _bound(self, face: Face, states: list[LinkState]) -> Iterator[LinkState]:
        """The states of the face itself; all numbers are bound to ids before."""
        for state in states:
            if state.zid is None:
                continue
            if state.psid in face.psids or len(face.psids) < MAX_PSIDS:
                face.psids[state.psid] = state.zid
            else:
                self.counters[DropReason.LINK_STATE_NODE_LIMIT] += 1
        for state in states:
            if face.psids.get(state.psid) == face.zid:
                yield state

    def _take(self, face: Face, own: LinkState, states: list[LinkState]) -> None:
        named = {face.psids[s.psid] for s in states if s.gateway and s.psid in face.psids}
        if own.sn > face.links_sn:
            face.links_sn = own.sn
            face.links = frozenset(face.psids[p] for p in own.links if p in face.psids)
        face.gateways = (face.gateways | named) & (face.links or frozenset())


def _unlinked(a: Face, b: Face) -> bool:
    """Whether one of two peers told its links, and neither told of the other."""
    if a.links is None and b.links is None:
        return False
    return b.zid not in (a.links or ()) and a.zid not in (b.links or ())
