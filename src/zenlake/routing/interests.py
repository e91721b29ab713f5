"""Interests: INTERESTs received from a face, sent to a face, and waiting for their answers.

Knows which declarations an interest covers. Does not know who declared what: declarations.py does,
and applies the rules of `zenoh/src/net/routing/dispatcher/interests.rs`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from zenlake.keyexpr import KeyExprTree, intersects
from zenlake.routing.face import DeclarationSlot, Face, Kind, weight_of
from zenlake.routing.policy import EVERYTHING
from zenlake.wire.enums import InterestMode

PENDING_BYTES = 384  # Memory of an interest's wait for one hop: 340 measured.


@dataclass(slots=True, eq=False)
class FaceInterest:
    """An interest of a neighbour, or of the local session."""

    face: Face
    id: int
    mode: InterestMode
    options: Kind
    key: str | None
    sent: dict[Face, int] = field(default_factory=dict)
    "Upstream faces that the interest was sent on to, with its id there."

    @property
    def aggregate(self) -> bool:
        return bool(self.options & Kind.AGGREGATE)

    @property
    def weight(self) -> int:
        """Memory while it is kept, at most: each kind has a tree."""
        return weight_of(self.key, (self.options & EVERYTHING).bit_count())

    def covers(self, kind: Kind, key: str) -> bool:
        return bool(self.options & kind) and (self.key is None or intersects(self.key, key))

    def slot(self, kind: Kind, key: str) -> DeclarationSlot:
        """Return the slot under which the face is told of `key`: its own, or the aggregate's."""
        if self.aggregate and self.key is not None:
            return DeclarationSlot(kind, self.key, True)
        return DeclarationSlot(kind, key, False)


@dataclass(slots=True, eq=False)
class PendingInterest:
    """An interest that has not had its D_FINAL: some hop still owes its answers."""

    interest: FaceInterest
    when: float
    "Deadline, in seconds of the caller's clock."
    done: bool = False
    waiting: set[tuple[Face, int]] = field(default_factory=set)
    "Hops that still owe their D_FINAL, each with the id of the interest there."
    answered: set[DeclarationSlot] = field(default_factory=set)
    "Slots that were sent as answers."

    @property
    def weight(self) -> int:
        """Memory while it is pending, at most: it is in no tree."""
        return PENDING_BYTES + weight_of(self.interest.key, trees=0)

    def lacks(self, face: Face, slot: DeclarationSlot) -> bool:
        """Return whether telling `face` of `slot` is a new answer to this interest."""
        interest = self.interest
        return (
            interest.face is face
            and slot not in self.answered
            and interest.covers(slot.kind, slot.key)
            and interest.slot(slot.kind, slot.key) == slot
        )


@dataclass(slots=True, eq=False)
class SentInterest:
    """An interest that was sent on to a face."""

    interest: FaceInterest
    pending: PendingInterest | None
    "The interest whose answers the face owes; None: it owes none."
    settled: bool = False
    "Whether the face is counted in `Face.settled` for this interest."


class InterestIndex:
    """The interests in one kind of declaration, by key."""

    def __init__(self) -> None:
        self._tree: KeyExprTree[FaceInterest] = KeyExprTree()
        self._without_key: dict[FaceInterest, None] = {}

    def add(self, interest: FaceInterest) -> None:
        if interest.key is None:
            self._without_key[interest] = None
        else:
            self._tree.insert(interest.key, interest)

    def remove(self, interest: FaceInterest) -> None:
        if interest.key is None:
            self._without_key.pop(interest, None)
        else:
            self._tree.remove(interest.key, interest)

    def covering(self, key: str) -> Iterator[FaceInterest]:
        """Yield the interests whose key intersects `key`, or that have none."""
        yield from self._without_key
        for _, interests in self._tree.intersecting(key):
            yield from interests

    def __len__(self) -> int:
        return len(self._tree) + len(self._without_key)
