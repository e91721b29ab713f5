"""Declarations and interests: who has what, who wants to know, and what each face is told.

Knows subscribers, queryables, tokens and the interests in them. Does not move data or queries.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from zenlake.keyexpr import KeyExprTree, includes, intersects
from zenlake.routing.face import (
    MAX_WEIGHT,
    DeclarationSlot,
    Face,
    Kind,
    Out,
    SentDeclaration,
    weight_of,
)
from zenlake.routing.resources import PRESENT, DeclaredResources, merge
from zenlake.routing.timers import Timers
from zenlake.routing.topology import Pairs, Topology
from zenlake.transport.drop_reason import DropReason
from zenlake.wire import qos
from zenlake.wire.declare import (
    Declaration,
    Declare,
    DeclareFinal,
    DeclareKeyExpr,
    DeclareQueryable,
    DeclareSubscriber,
    DeclareToken,
    UndeclareKeyExpr,
    UndeclareQueryable,
    UndeclareSubscriber,
    UndeclareToken,
)
from zenlake.wire.enums import InterestMode
from zenlake.wire.extensions import QueryableInfo
from zenlake.wire.interest import Interest
from zenlake.wire.wireexpr import WireExpr

MAX_DECLARATIONS = 100_000  # of one neighbour: subscribers, queryables and tokens
MAX_INTERESTS = 10_000  # of one neighbour, those that wait for an answer included
MAX_ANSWERS = 100_000  # different keys that one interest is answered with
INTEREST_SECONDS = 10.0  # how long upstream has to say all it has
INITIAL_INTEREST = 0
NO_ID = 0

KEYEXPRS, SUBSCRIBERS, QUERYABLES, TOKENS = (
    Kind.KEYEXPRS,
    Kind.SUBSCRIBERS,
    Kind.QUERYABLES,
    Kind.TOKENS,
)
KINDS = (SUBSCRIBERS, QUERYABLES, TOKENS)
ALL_KINDS = SUBSCRIBERS | QUERYABLES | TOKENS
CURRENT, FUTURE = InterestMode.CURRENT, InterestMode.FUTURE

Entity = DeclareSubscriber | DeclareQueryable | DeclareToken
EntityGone = UndeclareSubscriber | UndeclareQueryable | UndeclareToken
_DECLARED: dict[type, Kind] = {
    DeclareSubscriber: SUBSCRIBERS,
    DeclareQueryable: QUERYABLES,
    DeclareToken: TOKENS,
}
_UNDECLARED: dict[type, Kind] = {
    UndeclareSubscriber: SUBSCRIBERS,
    UndeclareQueryable: QUERYABLES,
    UndeclareToken: TOKENS,
}
_UNDECLARE: dict[Kind, type[EntityGone]] = {
    SUBSCRIBERS: UndeclareSubscriber,
    QUERYABLES: UndeclareQueryable,
    TOKENS: UndeclareToken,
}


@dataclass(slots=True, eq=False)
class FaceInterest:
    """An interest of a neighbour, or of the local session."""

    face: Face
    id: int
    mode: InterestMode
    options: Kind
    key: str | None
    asked: dict[Face, int] = field(default_factory=dict)
    "Under which ids it went upstream."

    @property
    def aggregate(self) -> bool:
        return bool(self.options & Kind.AGGREGATE)

    def covers(self, kind: Kind, key: str) -> bool:
        return bool(self.options & kind) and (self.key is None or intersects(self.key, key))


@dataclass(slots=True, eq=False)
class PendingInterest:
    """A wish that has not had its D_FINAL: some upstream has not said all."""

    wish: FaceInterest
    when: float
    done: bool = False
    waiting: set[tuple[Face, int]] = field(default_factory=set)
    answered: set[DeclarationSlot] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class SentInterest:
    """An interest that was sent to a face."""

    wish: FaceInterest
    pending: PendingInterest | None
    settled: bool = False


class InterestIndex:
    """The wishes for one kind, by key."""

    def __init__(self) -> None:
        self._tree: KeyExprTree[FaceInterest] = KeyExprTree()
        self._everything: dict[FaceInterest, None] = {}

    def add(self, wish: FaceInterest) -> None:
        if wish.key is None:
            self._everything[wish] = None
        else:
            self._tree.insert(wish.key, wish)

    def remove(self, wish: FaceInterest) -> None:
        if wish.key is None:
            self._everything.pop(wish, None)
        else:
            self._tree.remove(wish.key, wish)

    def covering(self, key: str) -> Iterator[FaceInterest]:
        yield from self._everything
        for _, wishes in self._tree.intersecting(key):
            yield from wishes

    def __len__(self) -> int:
        return len(self._tree) + len(self._everything)


class DeclarationTables:
    """The tables of one node. What is to be sent is appended to `out`."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.resources = {kind: DeclaredResources() for kind in KINDS}
        self.timers: Timers[PendingInterest] = Timers()
        self._wishes = {kind: InterestIndex() for kind in (KEYEXPRS, *KINDS)}

    # ---- faces

    def open(self, face: Face, out: Out) -> None:
        """What a new face is told first."""
        if face.policy.upstream:
            for other in self.topology.faces:
                if self.topology.passes(other, face):
                    for wish in other.wishes.values():
                        self._ask(face, wish, InterestMode.CURRENT_FUTURE, None, out)
        if face.policy.pushes:
            for kind in KINDS:
                for key in self.resources[kind].intersecting(None):
                    self._update(face, DeclarationSlot(kind, key, False), True, None, out)
        if face.policy.initial:
            out.append((face, _declare(DeclareFinal(), INITIAL_INTEREST)))

    def close(self, face: Face, out: Out) -> None:
        """The face is no longer among the open ones: nothing of it stays."""
        for pending in [*face.pending.values()]:
            self._drop_pending(pending)
        for wish in [*face.wishes.values()]:
            self._drop_wish(wish, out)
        for number, asked in [*face.asked.items()]:
            self._answered(asked.pending, (face, number), out)
            asked.wish.asked.pop(face, None)
        for pending in [*face.first]:
            self._answered(pending, (face, INITIAL_INTEREST), out)
        declared = face.declared
        face.declared = {}
        for (kind, entity), key in declared.items():
            self.resources[kind].undeclare(face, entity, key)
        for kind, key in dict.fromkeys((kind, key) for (kind, _), key in declared.items()):
            self._tell_all(kind, key, face, False, None, out)
        face.told.clear()
        face.asked.clear()
        face.settled.clear()
        face.first.clear()

    def passing_changed(self, pairs: Pairs, out: Out) -> None:
        """Messages now pass, or no longer pass, between these."""
        for face, other in pairs:
            for source, target in ((face, other), (other, face)):
                passes = self.topology.passes(source, target)
                for kind, key in dict.fromkeys((k, key) for (k, _), key in source.declared.items()):
                    self._tell(target, kind, key, passes, out)

    # ---- declarations

    def on_declare(self, face: Face, declare: Declare, now: float, out: Out) -> None:
        body = declare.body
        if isinstance(body, Entity):
            self._on_entity(face, declare, body, out)
        elif isinstance(body, EntityGone):
            self._on_entity_gone(face, declare, body, out)
        elif isinstance(body, DeclareFinal):
            self._on_final(face, declare.interest_id, out)
        elif isinstance(body, DeclareKeyExpr):
            if not face.learn(body.id, body.key):
                self._count(DropReason.KEY_ID_REFUSED)
        elif isinstance(body, UndeclareKeyExpr) and not face.unlearn(body.id):
            self._count(DropReason.KEY_ID_UNKNOWN)

    def _on_entity(self, face: Face, declare: Declare, body: Entity, out: Out) -> None:
        kind = _DECLARED[type(body)]
        key = face.text(body.key)
        if key is None:
            self._count(DropReason.DECLARATION_UNKNOWN_KEY)
            return
        asked = face.asked.get(declare.interest_id) if declare.interest_id else None
        if asked is None and declare.interest_id and face.policy.upstream:
            self._count(DropReason.DECLARATION_LATE)
            return
        pending = asked.pending if asked is not None else None
        if asked is not None and asked.wish.mode is CURRENT:
            if pending is not None:
                self._answer_once(pending, kind, key, out)
            return
        number = (key, declare.node_id) if face.policy.keyed else body.id
        known = face.declared.get((kind, number))
        if known is None and self._is_too_much(face, len(face.declared), MAX_DECLARATIONS, key):
            self._count(DropReason.DECLARATION_LIMIT)
            return
        if known not in (None, key):
            self._count(DropReason.DECLARATION_ID_IN_USE)
            return
        if known is not None and kind is SUBSCRIBERS:
            return  # said again, for another interest: whoever it was has been told what is known
        if known is None:
            face.weight += weight_of(key)
        face.declared[kind, number] = key
        info = body.info if isinstance(body, DeclareQueryable) else PRESENT
        self.resources[kind].declare(face, number, key, info)
        if kind is SUBSCRIBERS:
            self.topology.version += 1
        self._tell_all(kind, key, face, True, pending, out)
        for waiting in face.first:
            if waiting.wish.covers(kind, key):
                self._answer_once(waiting, kind, key, out)

    def _on_entity_gone(self, face: Face, declare: Declare, body: EntityGone, out: Out) -> None:
        kind = _UNDECLARED[type(body)]
        named = None if body.key is None or body.key == WireExpr() else face.text(body.key)
        number = (named, declare.node_id) if face.policy.keyed else body.id
        key = face.declared.pop((kind, number), None)
        if key is not None:
            self._remove(face, kind, number, key, out)
        elif kind is TOKENS and named is not None:
            # A token that was there before this node asked for those to come.
            self._tell_all(kind, named, face, False, None, out)
        else:
            self._count(DropReason.DECLARATION_UNKNOWN)

    def _remove(self, face: Face, kind: Kind, number: Hashable, key: str, out: Out) -> None:
        face.weight -= weight_of(key)
        self.resources[kind].undeclare(face, number, key)
        if kind is SUBSCRIBERS:
            self.topology.version += 1
        self._tell_all(kind, key, face, False, None, out)

    def _is_too_much(self, face: Face, count: int, limit: int, key: str | None) -> bool:
        """Whether a neighbour that has `count` of something may have no other, on `key`."""
        return not face.is_local and (count >= limit or face.weight + weight_of(key) > MAX_WEIGHT)

    def _on_final(self, face: Face, number: int | None, out: Out) -> None:
        if number == INITIAL_INTEREST and not face.initial_done:
            self.topology.initial_done(face)
            for pending in [*face.first]:
                self._answered(pending, (face, INITIAL_INTEREST), out)
            face.first.clear()
            return
        asked = face.asked.get(number) if number is not None else None
        if asked is None or number is None:
            self._count(DropReason.DECLARE_FINAL_UNEXPECTED)
            return
        if asked.wish.mode is CURRENT:
            del face.asked[number]
        elif not asked.settled:
            self._settle(face, asked)
        self._answered(asked.pending, (face, number), out)
        asked.pending = None

    # ---- interests

    def on_interest(self, face: Face, interest: Interest, now: float, out: Out) -> None:
        if interest.id in face.pending:
            self._drop_pending(face.pending[interest.id])
        if interest.id in face.wishes:
            self._drop_wish(face.wishes[interest.id], out)
        if interest.mode is not InterestMode.FINAL:
            self._on_wish(face, interest, now, out)

    def _on_wish(self, face: Face, interest: Interest, now: float, out: Out) -> None:
        key = None if interest.key is None else face.text(interest.key)
        held = len(face.wishes) + len(face.pending)
        too_many = self._is_too_much(face, held, MAX_INTERESTS, key)
        if not face.policy.answers:
            self._count(DropReason.INTEREST_REFUSED)
        elif interest.key is not None and key is None:
            self._count(DropReason.INTEREST_UNKNOWN_KEY)
        elif too_many:
            self._count(DropReason.INTEREST_LIMIT)
        else:
            options = interest.options
            if not face.policy.aggregates or options & TOKENS or key is None:
                options &= ~Kind.AGGREGATE
            wish = FaceInterest(face, interest.id, InterestMode(interest.mode), options, key)
            self._take_wish(wish, now, out)

    def _take_wish(self, wish: FaceInterest, now: float, out: Out) -> None:
        face, pending = wish.face, None
        if wish.mode is not FUTURE:
            pending = PendingInterest(wish, now + INTEREST_SECONDS)
            self._answer(pending, out)
        if wish.mode is not CURRENT:
            face.wishes[wish.id] = wish
            face.weight += weight_of(wish.key)
            for kind, wishes in self._wishes.items():
                if wish.options & kind:
                    wishes.add(wish)
        for upstream in self.topology.upstream:
            if self.topology.passes(face, upstream):
                self._ask(upstream, wish, wish.mode, pending, out)
        if pending is None:
            return
        if wish.mode is CURRENT and wish.options & TOKENS:
            self._wait_for_initial(pending)
        if pending.waiting:
            face.pending[wish.id] = pending
            self.timers.add(pending)
        else:
            out.append((face, _declare(DeclareFinal(), wish.id)))

    def _wait_for_initial(self, pending: PendingInterest) -> None:
        """Those who have not said all they have yet need not be asked for it."""
        for face in self.topology.eager:
            if not face.initial_done and self.topology.passes(pending.wish.face, face):
                face.first.append(pending)
                pending.waiting.add((face, INITIAL_INTEREST))

    def _answer(self, pending: PendingInterest, out: Out) -> None:
        """With all that is known here."""
        wish = pending.wish
        for kind in KINDS:
            if not wish.options & kind:
                continue
            if wish.aggregate and wish.key is not None:
                self._answer_one(pending, DeclarationSlot(kind, wish.key, True), out)
            else:
                for key in self.resources[kind].intersecting(wish.key):
                    self._answer_one(pending, DeclarationSlot(kind, key, False), out)

    def _answer_one(self, pending: PendingInterest, slot: DeclarationSlot, out: Out) -> None:
        wish = pending.wish
        info = self._seen(wish.face, slot)
        if info is None:
            return
        number = NO_ID
        if wish.mode is not CURRENT:
            told = wish.face.told.get(slot)
            number = wish.face.new_id() if told is None else told.id
            wish.face.told[slot] = SentDeclaration(number, info)
        pending.answered.add(slot)
        self._say(wish.face, slot, number, info, wish.id, out)

    def _answer_once(self, pending: PendingInterest, kind: Kind, key: str, out: Out) -> None:
        """With what somebody says to have now, and will not be said to be gone."""
        slot = DeclarationSlot(kind, key, False)
        if slot in pending.answered:
            return
        if len(pending.answered) >= MAX_ANSWERS:
            self._count(DropReason.INTEREST_ANSWER_LIMIT)
            return
        pending.answered.add(slot)
        self._say(pending.wish.face, slot, NO_ID, PRESENT, pending.wish.id, out)

    def _ask(
        self,
        face: Face,
        wish: FaceInterest,
        mode: InterestMode,
        pending: PendingInterest | None,
        out: Out,
    ) -> None:
        """Send a wish upstream. What is there now can be asked for tokens only."""
        options = wish.options & (KEYEXPRS | TOKENS) if mode is CURRENT else wish.options
        if not options & ALL_KINDS:
            return
        number = face.new_id()
        asked = face.asked[number] = SentInterest(wish, pending)
        if pending is not None:
            pending.waiting.add((face, number))
        if mode is not CURRENT:
            wish.asked[face] = number
        if mode is FUTURE:
            self._settle(face, asked)
        key = None if wish.key is None else self._wire(face, wish.key, out)
        out.append((face, Interest(number, mode, options, key, qos=qos.DECLARE)))

    def _settle(self, face: Face, asked: SentInterest) -> None:
        asked.settled = True
        self._count_settled(face, asked.wish, 1)

    def _count_settled(self, face: Face, wish: FaceInterest, step: int) -> None:
        for kind in (SUBSCRIBERS, QUERYABLES):
            if wish.options & kind and wish.key is not None:
                face.settled[kind, wish.key] += step
                if not face.settled[kind, wish.key]:
                    del face.settled[kind, wish.key]
        self.topology.version += 1

    def _answered(self, pending: PendingInterest | None, hop: tuple[Face, int], out: Out) -> None:
        """One of those that a wish waits for has said all, or is gone."""
        if pending is None or pending.done:
            return
        pending.waiting.discard(hop)
        if not pending.waiting:
            self._drop_pending(pending)
            out.append((pending.wish.face, _declare(DeclareFinal(), pending.wish.id)))

    def _drop_pending(self, pending: PendingInterest) -> None:
        self.timers.finish(pending)
        pending.wish.face.pending.pop(pending.wish.id, None)
        for face, number in pending.waiting:
            asked = face.asked.get(number)
            if number == INITIAL_INTEREST:
                face.first = [other for other in face.first if other is not pending]
            elif asked is not None and pending.wish.mode is CURRENT:
                del face.asked[number]
            elif asked is not None:
                asked.pending = None

    def _drop_wish(self, wish: FaceInterest, out: Out) -> None:
        """It ends: upstream is told, and what it alone made known to the face is forgotten."""
        face = wish.face
        if face.wishes.pop(wish.id, None) is not None:
            face.weight -= weight_of(wish.key)
        for kind, wishes in self._wishes.items():
            if wish.options & kind:
                wishes.remove(wish)
        for upstream, number in wish.asked.items():
            if upstream.asked.pop(number).settled:
                self._count_settled(upstream, wish, -1)
            out.append((upstream, Interest(number, InterestMode.FINAL, qos=qos.DECLARE)))
        for kind in KINDS:
            if wish.options & kind:
                self._untell(wish, kind, out)
                for upstream in wish.asked:
                    self._unlearn(upstream, wish, kind, out)

    def _untell(self, wish: FaceInterest, kind: Kind, out: Out) -> None:
        """What the face was told and will not hear of any more is taken back."""
        face = wish.face
        if wish.aggregate and wish.key is not None:
            slots = [DeclarationSlot(kind, wish.key, True)]
        else:
            keys = self.resources[kind].intersecting(wish.key)
            slots = [DeclarationSlot(kind, key, False) for key in keys]
        for slot in slots:
            if slot in face.told and not self._listens(face, slot):
                told = face.told.pop(slot)
                if face.is_open:
                    self._say_gone(face, slot, told.id, face.is_local, out)

    def _unlearn(self, upstream: Face, wish: FaceInterest, kind: Kind, out: Out) -> None:
        """What upstream declared for this wish alone: it will not say when that is gone."""
        resources = self.resources[kind]
        for key in resources.intersecting(wish.key):
            if not any(upstream in other.asked for other in self._wishes[kind].covering(key)):
                for number in resources.numbers(upstream, key):
                    del upstream.declared[kind, number]
                    self._remove(upstream, kind, number, key, out)

    def on_time(self, now: float, out: Out) -> None:
        for pending in self.timers.due(now):
            if not pending.done:
                self._count(DropReason.INTEREST_TIMEOUT)
                self._drop_pending(pending)
                out.append((pending.wish.face, _declare(DeclareFinal(), pending.wish.id)))

    # ---- telling

    def names_keys(self, face: Face, prefix: str) -> bool:
        """Whether ids may be declared to `face` for `prefix`."""
        return face.policy.pushes or any(
            wish.face is face for wish in self._wishes[KEYEXPRS].covering(prefix)
        )

    def _listens(self, face: Face, slot: DeclarationSlot) -> bool:
        """Whether `face` hears of what happens to a slot."""
        if face.policy.pushes and not slot.aggregate:
            return True
        return any(
            wish.face is face and _slot(wish, slot.kind, slot.key) == slot
            for wish in self._wishes[slot.kind].covering(slot.key)
        )

    def _tell_all(
        self,
        kind: Kind,
        key: str,
        source: Face,
        new: bool,
        answering: PendingInterest | None,
        out: Out,
    ) -> None:
        """`source` declared `key` (`new`), or no longer does: tell whom it concerns."""
        slots: dict[tuple[Face, DeclarationSlot], None] = {
            (face, DeclarationSlot(kind, key, False)): None
            for face in self.topology.pushed_from(source)
        }
        for wish in self._wishes[kind].covering(key):
            slots[wish.face, _slot(wish, kind, key)] = None
        for face, slot in slots:
            if self._shown(source, face, kind):
                self._update(face, slot, new, answering, out)

    def _tell(self, face: Face, kind: Kind, key: str, new: bool, out: Out) -> None:
        """The same for one face, that could not see the source, or cannot any more."""
        slots: dict[DeclarationSlot, None] = (
            {DeclarationSlot(kind, key, False): None} if face.policy.pushes else {}
        )
        for wish in self._wishes[kind].covering(key):
            if wish.face is face:
                slots[_slot(wish, kind, key)] = None
        for slot in slots:
            if new or slot in face.told:
                self._update(face, slot, new, None, out)

    def _shown(self, source: Face, face: Face, kind: Kind) -> bool:
        """Whether what `source` declares is shown to `face`."""
        if source is face:
            return kind is TOKENS and face.policy.echoes
        return self.topology.passes(source, face)

    def _seen(self, face: Face, slot: DeclarationSlot) -> QueryableInfo | None:
        """What `face` is to know of a key; None: there is nothing."""
        if slot.aggregate:
            return self._seen_together(face, slot)
        merged: QueryableInfo | None = None
        for source, info in self.resources[slot.kind].sources(slot.key):
            if self._shown(source, face, slot.kind):
                if slot.kind is not QUERYABLES:
                    return PRESENT
                merged = merge(merged, info)
        return merged

    def _seen_together(self, face: Face, slot: DeclarationSlot) -> QueryableInfo | None:
        merged: QueryableInfo | None = None
        for key in self.resources[slot.kind].intersecting(slot.key):
            info = self._seen(face, DeclarationSlot(slot.kind, key, False))
            if info is not None:
                if slot.kind is not QUERYABLES:
                    return PRESENT
                complete = info.complete and includes(key, slot.key)
                merged = merge(merged, QueryableInfo(complete, info.distance))
        return merged

    def _update(
        self,
        face: Face,
        slot: DeclarationSlot,
        new: bool,
        answering: PendingInterest | None,
        out: Out,
    ) -> None:
        """Bring what `face` was told in line with what it is to know."""
        info, told = self._seen(face, slot), face.told.get(slot)
        if info is not None and answering is not None and _answers(answering, face, slot):
            self._answer_one(answering, slot, out)
        elif info is None and told is not None:
            del face.told[slot]
            self._say_gone(face, slot, told.id, face.is_local, out)
        elif info is None and slot.kind is TOKENS and not new and not face.policy.pushes:
            self._say_gone(face, slot, NO_ID, True, out)  # it may know it from elsewhere
        elif info is not None and told is None and (new or slot.aggregate):
            number = NO_ID if face.policy.keyed else face.new_id()
            face.told[slot] = SentDeclaration(number, info)
            self._say(face, slot, number, info, None, out)
        elif info is not None and told is not None and told.info != info:
            told.info = info
            self._say(face, slot, told.id, info, None, out)

    def _say(
        self,
        face: Face,
        slot: DeclarationSlot,
        number: int,
        info: QueryableInfo,
        interest: int | None,
        out: Out,
    ) -> None:
        key = self._wire(face, slot.key, out)
        body: Declaration
        if slot.kind is QUERYABLES:
            body = DeclareQueryable(number, key, info)
        else:
            body = (DeclareSubscriber if slot.kind is SUBSCRIBERS else DeclareToken)(number, key)
        out.append((face, _declare(body, interest)))

    def _say_gone(
        self, face: Face, slot: DeclarationSlot, number: int, named: bool, out: Out
    ) -> None:
        named = named or face.policy.keyed
        key = face.write(slot.key)[0] if named else None
        out.append((face, _declare(_UNDECLARE[slot.kind](number, key), None)))

    def _wire(self, face: Face, key: str, out: Out) -> WireExpr:
        written, first = face.write(key, lambda prefix: self.names_keys(face, prefix))
        if first is not None:
            out.append((face, first))
        return written

    def _count(self, reason: DropReason) -> None:
        self.topology.counters[reason] += 1

    def size(self) -> dict[str, int]:
        """How much is held, for diagnostics and tests."""
        return {
            **{f"{kind.name} keys": len(table) for kind, table in self.resources.items()},
            **{f"{kind.name} wishes": len(table) for kind, table in self._wishes.items()},
        }


def _slot(wish: FaceInterest, kind: Kind, key: str) -> DeclarationSlot:
    """Under which slot the face that wishes is told of `key`."""
    if wish.aggregate and wish.key is not None:
        return DeclarationSlot(kind, wish.key, True)
    return DeclarationSlot(kind, key, False)


def _answers(pending: PendingInterest, face: Face, slot: DeclarationSlot) -> bool:
    """Whether telling `face` of a slot is a new answer to the wish that waits."""
    wish = pending.wish
    return (
        wish.face is face
        and slot not in pending.answered
        and wish.covers(slot.kind, slot.key)
        and _slot(wish, slot.kind, slot.key) == slot
    )


def _declare(body: Declaration, interest: int | None) -> Declare:
    return Declare(body, interest, qos.DECLARE)
