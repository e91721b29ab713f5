"""Topology: the open faces, and between which of them messages pass.

Knows the policy of each face and the links in the link states of peers. Does not know keys.
"""

from collections import Counter
from collections.abc import Iterator

from zenlake.errors import DecodeError
from zenlake.routing.face import Face, Kind
from zenlake.routing.policy import (
    GROUPS,
    LOCAL,
    Region,
    Within,
    policy_for,
    policy_for_member,
)
from zenlake.transport.drop_reason import DropReason
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.linkstate import LinkState, read_link_states
from zenlake.wire.oam import LINK_STATE, NetworkOam
from zenlake.wire.zenohid import WireZenohId

MAX_LINK_STATE_BYTES = 1 << 20  # Bytes of one list of link states.
MAX_PSIDS = 10_000  # Node numbers kept for one face.

Pairs = list[tuple[Face, Face]]


class Topology:
    """The faces of one node."""

    def __init__(self, zid: WireZenohId, whatami: WireWhatAmI) -> None:
        self.zid = zid
        self.whatami = whatami
        self.local = Face(zid, whatami, LOCAL, is_local=True)
        self.faces: dict[Face, None] = {self.local: None}
        self.pushed: dict[Region, dict[Face, None]] = {}
        "Faces that get every declaration without an interest, by region."
        self.groups: dict[Face, dict[Face, None]] = {}
        "Multicast groups, each with its members."
        self.upstream: dict[Face, None] = {}
        "Faces that interests are sent on to."
        self.eager: dict[Face, None] = {}
        "Faces that may get data that they have not declared: see `Face.is_unsettled`."
        self.counters: Counter[DropReason] = Counter()
        "Messages ignored or refused, by reason."
        self.version = 0
        "Changes whenever `Routing.destinations` may answer differently."
        self.routers: Counter[WireZenohId] = Counter()
        "Routers that this router has links to, with the number of links."

    def add(self, zid: WireZenohId, whatami: WireWhatAmI, keys_in_full: bool) -> tuple[Face, Pairs]:
        """Add a face; return it and the pairs of faces between which passing changed."""
        return self._add(
            Face(zid, whatami, policy_for(self.whatami, whatami), keys_in_full=keys_in_full)
        )

    def add_group(self) -> Face:
        """Add a multicast group: data goes to it as a whole, and comes from its members."""
        face, _ = self._add(Face(self.zid, self.whatami, GROUPS[self.whatami], keys_in_full=True))
        return face

    def add_member(self, zid: WireZenohId, whatami: WireWhatAmI, group: Face) -> Face:
        """Add a member of a multicast group."""
        face, _ = self._add(Face(zid, whatami, policy_for_member(self.whatami)))
        self.groups[group][face] = None
        self.reroute(face)
        return face

    def _add(self, face: Face) -> tuple[Face, Pairs]:
        policy = face.policy
        before = self._passing_of_peers() if policy.keyed else {}
        self.faces[face] = None
        if policy.pushes:
            self.pushed.setdefault(policy.region, {})[face] = None
        if policy.takes_all:
            self.groups[face] = {}
        if policy.upstream:
            self.upstream[face] = None
        if policy.upstream or policy.initial:
            self.eager[face] = None
        if policy.keyed:
            self.routers[face.zid] += 1
        self.reroute(face)
        return face, self._changed(before)

    def remove(self, face: Face) -> Pairs:
        """Remove a face; return the pairs of faces between which passing changed."""
        face.is_open = False
        before = self._passing_of_peers() if face.policy.keyed else {}
        pushed = self.pushed.get(face.policy.region, {})
        self.groups.pop(face, None)
        members = self.groups.values() if face.policy.only_sends else ()
        for faces in (self.faces, pushed, self.upstream, self.eager, *members):
            faces.pop(face, None)
        if face.policy.keyed:
            self.routers -= Counter([face.zid])
        self.reroute(face)
        return self._changed(before)

    def reroute(self, face: Face) -> None:
        """Note that `face` is new or gone, or changed what it subscribes to."""
        if not face.policy.only_sends or self._is_linked(face):
            self.version += 1

    def _is_linked(self, member: Face) -> bool:
        """Return whether a member of a group has a link too: `groups_for` heeds that."""
        return any(not face.policy.multicast and face.zid == member.zid for face in self.faces)

    def _passing_of_peers(self) -> dict[tuple[Face, Face], bool]:
        """Return whether messages pass, for each pair that a link to a router may affect."""
        peers = [face for face in self.faces if face.gateways]
        return {(peer, other): self.passes(peer, other) for peer in peers for other in self.faces}

    def _changed(self, before: dict[tuple[Face, Face], bool]) -> Pairs:
        return [
            pair
            for pair, passed in before.items()
            if pair[1] in self.faces and self.passes(*pair) != passed
        ]

    def end_initial(self, face: Face) -> None:
        """Note the D_FINAL(0) of a face: from now on it gets only what it declared."""
        face.initial_done = True
        self.eager.pop(face, None)
        self.version += 1

    def passes(self, source: Face, target: Face) -> bool:
        """Return whether messages pass from `source` to `target`; symmetric."""
        if source is target or not (self._serves(source) and self._serves(target)):
            return False
        if source.policy.region is not target.policy.region:
            return True
        within = source.policy.within
        if within is not target.policy.within:
            return False  # A multicast group and unicast peers.
        return within is Within.ALWAYS or (
            within is Within.UNLINKED
            and _are_unlinked(source, target)
            and self._is_greatest(source, target)
        )

    def pushed_from(self, source: Face) -> Iterator[Face]:
        """Yield the faces that get the declarations of `source` without an interest."""
        for region, faces in self.pushed.items():
            if region is not source.policy.region or source.policy.within is not Within.NEVER:
                yield from faces

    def _serves(self, face: Face) -> bool:
        """Return whether this node forwards messages from and to a peer.

        Of several routers with links to the peer and to each other, only the greatest zid does.
        """
        if not face.gateways:
            return True
        return self.zid == max((face.gateways & self.routers.keys()) | {self.zid})

    def _is_greatest(self, a: Face, b: Face) -> bool:
        """Return whether this router has the greatest zid of the routers that both peers have."""
        return self.zid == max((a.gateways & b.gateways) | {self.zid})

    def eager_for(self, source: Face, kind: Kind, key: str) -> Iterator[Face]:
        """Yield the faces that get `key` undeclared, because they are unsettled for it."""
        for face in self.eager:
            if face.is_unsettled(kind, key) and self.passes(source, face):
                yield face

    def groups_for(self, source: Face) -> Iterator[Face]:
        """Yield the multicast groups that get the data of `source`, declared or not.

        Groups that `source` is a member of are left out: it sent them its data itself.
        """
        if not source.policy.multicast and self._serves(source):
            for group, members in self.groups.items():
                if not any(member.zid == source.zid for member in members):
                    yield group

    def on_oam(self, face: Face, oam: NetworkOam) -> Pairs:
        """Apply link states of a neighbour; return the pairs between which passing changed."""
        body = oam.body
        if oam.id != LINK_STATE or face.policy.within is not Within.UNLINKED:
            return []  # Of no use to routing; discovery reads it too.
        if not isinstance(body, bytes) or len(body) > MAX_LINK_STATE_BYTES:
            self.counters[DropReason.LINK_STATE_REFUSED] += 1
            return []
        try:
            states = read_link_states(body)
        except DecodeError:
            self.counters[DropReason.LINK_STATE_INVALID] += 1
            return []
        before = {(face, other): self.passes(face, other) for other in self.faces}
        for state in self._bind(face, states):
            self._apply(face, state, states)
        changed = self._changed(before)
        if changed:
            self.version += 1
        return changed

    def _bind(self, face: Face, states: list[LinkState]) -> Iterator[LinkState]:
        """Bind all node numbers to zids, then yield the states of the face itself."""
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

    def _apply(self, face: Face, own: LinkState, states: list[LinkState]) -> None:
        """Store the links and gateways that a face lists in its own state."""
        named = {face.psids[s.psid] for s in states if s.gateway and s.psid in face.psids}
        if own.sn > face.links_sn:
            face.links_sn = own.sn
            face.links = frozenset(face.psids[p] for p in own.links if p in face.psids)
        face.gateways = (face.gateways | named) & (face.links or frozenset())


def _are_unlinked(a: Face, b: Face) -> bool:
    """Return whether one of two peers sent its links, and neither lists the other."""
    if a.links is None and b.links is None:
        return False
    return b.zid not in (a.links or ()) and a.zid not in (b.links or ())
