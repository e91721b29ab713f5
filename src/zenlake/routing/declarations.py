"""Declarations: which face has which subscriber, queryable or token, and what each face is sent.

Knows the tables and applies the interests of faces (interests.py) to them. Does not route data or
queries.
"""

from collections.abc import Hashable, Iterable

from zenlake.keyexpr import includes
from zenlake.routing.face import (
    MAX_WEIGHT,
    SHOWN_CHARACTERS,
    DeclarationSlot,
    Face,
    Kind,
    Out,
    SentDeclaration,
    weight_of,
)
from zenlake.routing.interests import FaceInterest, InterestIndex, PendingInterest, SentInterest
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

# MAX_WEIGHT allows fewer: 850,000 declarations on short keys.
MAX_DECLARATIONS = 1 << 20  # Subscribers, queryables and tokens of one neighbour.
MAX_INTERESTS = 1 << 20  # Interests of one neighbour, pending ones included.
MAX_ANSWERS = 1 << 20  # Different keys that one interest is answered with.
INTEREST_SECONDS = 10.0  # Time for upstream's D_FINAL (zenoh-config routing.interests.timeout).
INITIAL_INTEREST = 0  # Id in the D_FINAL that ends the initial declarations of two peers.
NO_ID = 0  # Id of a declaration that will not be undeclared.
ADVICE = "undeclare what is not needed, or spread it over several sessions"

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
_UNDECLARE: dict[Kind, type[EntityGone]] = {
    SUBSCRIBERS: UndeclareSubscriber,
    QUERYABLES: UndeclareQueryable,
    TOKENS: UndeclareToken,
}
_NAMES = {SUBSCRIBERS: "subscriber", QUERYABLES: "queryable", TOKENS: "token"}
_UNDECLARED: dict[type, Kind] = {body: kind for kind, body in _UNDECLARE.items()}


class DeclarationTables:
    """Declarations and interests of all faces of one node.

    Every method appends the messages to be sent to its argument `out`.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.resources = {kind: DeclaredResources() for kind in KINDS}
        self.timers: Timers[PendingInterest] = Timers()
        self._interests = {kind: InterestIndex() for kind in (KEYEXPRS, *KINDS)}

    # ---- faces

    def open(self, face: Face, out: Out) -> None:
        """Append the first messages for a new face: interests, declarations, D_FINAL(0)."""
        if face.policy.upstream:
            for other in self.topology.faces:
                if self.topology.passes(other, face):
                    for interest in other.interests.values():
                        self._send_interest(face, interest, InterestMode.CURRENT_FUTURE, None, out)
        if face.policy.pushes:
            for kind in KINDS:
                keys = self.resources[kind].intersecting(None) if face.policy.pushes & kind else ()
                for key in keys:
                    self._update(face, DeclarationSlot(kind, key, False), True, None, out)
        if face.policy.initial:
            out.append((face, _declare(DeclareFinal(), INITIAL_INTEREST)))

    def declare_again(self, face: Face, slots: Iterable[DeclarationSlot], out: Out) -> None:
        """Append those declarations that `face` was sent and that were not undeclared."""
        for slot in slots:
            sent = face.sent_declarations.get(slot)
            if sent is not None:
                self._send_declare(face, slot, sent.id, sent.info, None, out)

    def close(self, face: Face, out: Out) -> None:
        """Remove everything that belongs to `face`, which the topology no longer has."""
        for pending in [*face.pending_interests.values()]:
            self._drop_pending(pending)
        for interest in [*face.interests.values()]:
            self._remove_interest(interest, out)
        for number, sent in [*face.sent_interests.items()]:
            self._on_hop_done(sent.pending, (face, number), out)
            sent.interest.sent.pop(face, None)
        for pending in [*face.awaiting_initial]:
            self._on_hop_done(pending, (face, INITIAL_INTEREST), out)
        declared = face.declared
        face.declared = {}
        for (kind, entity), key in declared.items():
            self.resources[kind].undeclare(face, entity, key)
        for kind, key in dict.fromkeys((kind, key) for (kind, _), key in declared.items()):
            self._propagate(kind, key, face, False, None, out)
        face.sent_declarations.clear()
        face.sent_interests.clear()
        face.settled.clear()
        face.awaiting_initial.clear()

    def on_passing_changed(self, pairs: Pairs, out: Out) -> None:
        """Reconcile the declarations of faces whose messages now pass, or no longer, each way."""
        for face, other in pairs:
            for source, target in ((face, other), (other, face)):
                passes = self.topology.passes(source, target)
                for kind, key in dict.fromkeys((k, key) for (k, _), key in source.declared.items()):
                    self._propagate_to(target, kind, key, passes, out)

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
                face.refuse(f"key id {body.id}", body.key)
                self._count(DropReason.KEY_ID_REFUSED)
        elif isinstance(body, UndeclareKeyExpr) and not face.unlearn(body.id):
            self._count(DropReason.KEY_ID_UNKNOWN)

    def _on_entity(self, face: Face, declare: Declare, body: Entity, out: Out) -> None:
        """Handle a declaration by the mode of the interest that it answers.

        An answer to a CURRENT interest is passed on once and not kept; any other declaration is
        kept until it is undeclared.
        """
        kind = _DECLARED[type(body)]
        key = face.text(body.key)
        sent = face.sent_interests.get(declare.interest_id) if declare.interest_id else None
        if key is None:
            face.refuse(f"{_NAMES[kind]} {body.id}", body.key)
            self._count(DropReason.DECLARATION_UNKNOWN_KEY)
        elif sent is None and declare.interest_id and face.policy.upstream:
            self._count(DropReason.DECLARATION_LATE)
        elif sent is not None and sent.interest.mode is CURRENT:
            if sent.pending is not None:
                self._answer_once(face, sent.pending, kind, key, out)
        elif face.policy.multicast and kind is not SUBSCRIBERS:
            self._count(DropReason.DECLARATION_IN_GROUP)
        elif self._keep(face, _number(face, declare, body.id, key), key, body):
            self._propagate(kind, key, face, True, sent.pending if sent else None, out)
            for pending in face.awaiting_initial:
                if pending.interest.covers(kind, key):
                    self._answer_once(face, pending, kind, key, out)

    def _keep(self, face: Face, number: Hashable, key: str, body: Entity) -> bool:
        """Add a declaration to the tables within their limits; return whether they changed."""
        kind = _DECLARED[type(body)]
        known = face.declared.get((kind, number))
        if known is None and self._is_too_much(
            face,
            len(face.declared),
            MAX_DECLARATIONS,
            "subscribers, queryables and tokens",
            weight_of(key),
        ):
            self._count(DropReason.DECLARATION_LIMIT)
            return False
        if known is not None and known != key:
            if number != NO_ID:  # Rust answers interests with it, and some answers come late.
                face.exceed(
                    f"one key per {_NAMES[kind]} id",
                    f"it declares {_NAMES[kind]} {number} on {key[:SHOWN_CHARACTERS]}, which it "
                    f"has on {known[:SHOWN_CHARACTERS]}; undeclare it first",
                )
            self._count(DropReason.DECLARATION_ID_IN_USE)
            return False
        if known is not None and kind is SUBSCRIBERS:
            return False  # Repeated for another interest: a subscriber has nothing that changes.
        if known is None:
            face.weight += weight_of(key)
        face.declared[kind, number] = key
        info = body.info if isinstance(body, DeclareQueryable) else PRESENT
        self.resources[kind].declare(face, number, key, info)
        if kind is SUBSCRIBERS:
            self.topology.reroute(face)
        return True

    def _on_entity_gone(self, face: Face, declare: Declare, body: EntityGone, out: Out) -> None:
        kind = _UNDECLARED[type(body)]
        named = None if body.key is None or body.key == WireExpr() else face.text(body.key)
        number = _number(face, declare, body.id, named)
        key = face.declared.pop((kind, number), None)
        if key is not None:
            self._remove(face, kind, number, key, out)
        elif kind is TOKENS and named is not None:
            # The token was declared as an answer to a CURRENT interest, so it is in no table.
            self._propagate(kind, named, face, False, None, out)
        else:
            self._count(DropReason.DECLARATION_UNKNOWN)

    def _remove(self, face: Face, kind: Kind, number: Hashable, key: str, out: Out) -> None:
        face.weight -= weight_of(key)
        self.resources[kind].undeclare(face, number, key)
        if kind is SUBSCRIBERS:
            self.topology.reroute(face)
        self._propagate(kind, key, face, False, None, out)

    def _is_too_much(self, face: Face, count: int, limit: int, entries: str, weight: int) -> bool:
        """Return whether one more of the `entries` exceeds the limits of a neighbour; its session
        is closed then."""
        if face.is_local:
            return False
        if count >= limit:
            face.exceed(f"{limit:,} {entries}", ADVICE)
        elif face.weight + weight > MAX_WEIGHT:
            face.exceed(f"{MAX_WEIGHT:,} bytes of declarations and interests", ADVICE)
        return face.exceeded is not None

    def _on_final(self, face: Face, number: int | None, out: Out) -> None:
        if number == INITIAL_INTEREST and not face.initial_done:
            self.topology.end_initial(face)
            for pending in [*face.awaiting_initial]:
                self._on_hop_done(pending, (face, INITIAL_INTEREST), out)
            face.awaiting_initial.clear()
            return
        sent = face.sent_interests.get(number) if number is not None else None
        if sent is None or number is None:
            self._count(DropReason.DECLARE_FINAL_UNEXPECTED)
            return
        if sent.interest.mode is CURRENT:
            del face.sent_interests[number]
        elif not sent.settled:
            self._settle(face, sent)
        self._on_hop_done(sent.pending, (face, number), out)
        sent.pending = None

    # ---- interests

    def on_interest(self, face: Face, message: Interest, now: float, out: Out) -> None:
        """Replace the face's interest of the same id; FINAL only removes it."""
        if message.id in face.pending_interests:
            self._drop_pending(face.pending_interests[message.id])
        if message.id in face.interests:
            self._remove_interest(face.interests[message.id], out)
        if message.mode is not InterestMode.FINAL:
            self._admit_interest(face, message, now, out)

    def _admit_interest(self, face: Face, message: Interest, now: float, out: Out) -> None:
        """Add an interest, unless the face's role or limits forbid it."""
        key = None if message.key is None else face.text(message.key)
        held = len(face.interests) + len(face.pending_interests)
        if not face.policy.answers:
            self._count(DropReason.INTEREST_REFUSED)
        elif message.key is not None and key is None:
            face.refuse(f"interest {message.id}", message.key)
            self._count(DropReason.INTEREST_UNKNOWN_KEY)
        else:
            options = message.options
            if not face.policy.aggregates or options & TOKENS or key is None:
                options &= ~Kind.AGGREGATE
            mode = InterestMode(message.mode)
            interest = FaceInterest(face, message.id, mode, options, key)
            if self._is_too_much(face, held, MAX_INTERESTS, "interests", interest.weight):
                self._count(DropReason.INTEREST_LIMIT)
            else:
                self._add_interest(interest, now, out)

    def _add_interest(self, interest: FaceInterest, now: float, out: Out) -> None:
        """Answer an interest from the tables, keep it, and send it upstream."""
        face, pending = interest.face, None
        if interest.mode is not FUTURE:
            pending = PendingInterest(interest, now + INTEREST_SECONDS)
            self._answer_from_tables(pending, out)
        if interest.mode is not CURRENT:
            face.interests[interest.id] = interest
            face.weight += interest.weight
            for kind, index in self._interests.items():
                if interest.options & kind:
                    index.add(interest)
        for upstream in self.topology.upstream:
            if self.topology.passes(face, upstream):
                self._send_interest(upstream, interest, interest.mode, pending, out)
        if pending is None:
            return
        if interest.mode is CURRENT and interest.options & TOKENS:
            self._wait_for_initial(pending)
        if pending.waiting:
            face.pending_interests[interest.id] = pending
            face.weight += pending.weight
            self.timers.add(pending)
        else:
            out.append((face, _declare(DeclareFinal(), interest.id)))

    def _wait_for_initial(self, pending: PendingInterest) -> None:
        """Wait for the D_FINAL(0) of faces that still send their initial declarations.

        Those declarations answer the interest without a message to the face.
        """
        for face in self.topology.eager:
            if not face.initial_done and self.topology.passes(pending.interest.face, face):
                face.awaiting_initial.append(pending)
                pending.waiting.add((face, INITIAL_INTEREST))

    def _answer_from_tables(self, pending: PendingInterest, out: Out) -> None:
        """Send every declaration that is known here and that the interest covers."""
        interest = pending.interest
        for kind in KINDS:
            if not interest.options & kind:
                continue
            if interest.aggregate and interest.key is not None:
                self._answer_slot(pending, DeclarationSlot(kind, interest.key, True), out)
            else:
                for key in self.resources[kind].intersecting(interest.key):
                    self._answer_slot(pending, DeclarationSlot(kind, key, False), out)

    def _answer_slot(self, pending: PendingInterest, slot: DeclarationSlot, out: Out) -> None:
        interest = pending.interest
        info = self._info_for(interest.face, slot)
        if info is None:
            return
        number = NO_ID
        if interest.mode is not CURRENT:
            sent = interest.face.sent_declarations.get(slot)
            number = interest.face.new_id() if sent is None else sent.id
            interest.face.sent_declarations[slot] = SentDeclaration(number, info)
        pending.answered.add(slot)
        self._send_declare(interest.face, slot, number, info, interest.id, out)

    def _answer_once(
        self, source: Face, pending: PendingInterest, kind: Kind, key: str, out: Out
    ) -> None:
        """Answer a CURRENT interest once with a declaration of `source`; no undeclare follows."""
        slot = DeclarationSlot(kind, key, False)
        if slot in pending.answered:
            return
        if len(pending.answered) >= MAX_ANSWERS:
            self._count(DropReason.INTEREST_ANSWER_LIMIT)
            source.exceed(f"{MAX_ANSWERS:,} answers to one interest", "ask for fewer keys at once")
            return
        pending.answered.add(slot)
        self._send_declare(pending.interest.face, slot, NO_ID, PRESENT, pending.interest.id, out)

    def _send_interest(
        self,
        face: Face,
        interest: FaceInterest,
        mode: InterestMode,
        pending: PendingInterest | None,
        out: Out,
    ) -> None:
        """Send an interest on to an upstream face; a CURRENT one asks for tokens alone."""
        options = interest.options & (KEYEXPRS | TOKENS) if mode is CURRENT else interest.options
        if not options & ALL_KINDS:
            return
        number = face.new_id()
        sent = face.sent_interests[number] = SentInterest(interest, pending)
        if pending is not None:
            pending.waiting.add((face, number))
        if mode is not CURRENT:
            interest.sent[face] = number
        if mode is FUTURE:
            self._settle(face, sent)
        key = None if interest.key is None else self._write_key(face, interest.key, out)
        out.append((face, Interest(number, mode, options, key, qos=qos.DECLARE)))

    def _settle(self, face: Face, sent: SentInterest) -> None:
        sent.settled = True
        self._add_settled(face, sent.interest, 1)

    def _add_settled(self, face: Face, interest: FaceInterest, step: int) -> None:
        for kind in (SUBSCRIBERS, QUERYABLES):
            if interest.options & kind and interest.key is not None:
                face.settled[kind, interest.key] += step
                if not face.settled[kind, interest.key]:
                    del face.settled[kind, interest.key]
        self.topology.version += 1

    def _on_hop_done(
        self, pending: PendingInterest | None, hop: tuple[Face, int], out: Out
    ) -> None:
        """Note that a hop has sent all its answers, or is gone; the last one causes the D_FINAL."""
        if pending is None or pending.done:
            return
        pending.waiting.discard(hop)
        if not pending.waiting:
            self._drop_pending(pending)
            out.append((pending.interest.face, _declare(DeclareFinal(), pending.interest.id)))

    def _drop_pending(self, pending: PendingInterest) -> None:
        self.timers.finish(pending)
        face = pending.interest.face
        if face.pending_interests.pop(pending.interest.id, None) is not None:
            face.weight -= pending.weight
        for hop, number in pending.waiting:
            sent = hop.sent_interests.get(number)
            if number == INITIAL_INTEREST:
                hop.awaiting_initial = [
                    other for other in hop.awaiting_initial if other is not pending
                ]
            elif sent is not None and pending.interest.mode is CURRENT:
                del hop.sent_interests[number]
            elif sent is not None:
                sent.pending = None

    def _remove_interest(self, interest: FaceInterest, out: Out) -> None:
        """End an interest here and upstream, and take back what was declared for it alone."""
        face = interest.face
        if face.interests.pop(interest.id, None) is not None:
            face.weight -= interest.weight
        for kind, index in self._interests.items():
            if interest.options & kind:
                index.remove(interest)
        for upstream, number in interest.sent.items():
            if upstream.sent_interests.pop(number).settled:
                self._add_settled(upstream, interest, -1)
            out.append((upstream, Interest(number, InterestMode.FINAL, qos=qos.DECLARE)))
        for kind in KINDS:
            if interest.options & kind:
                self._undeclare_unwanted(interest, kind, out)
                for upstream in interest.sent:
                    self._forget_upstream(upstream, interest, kind, out)

    def _undeclare_unwanted(self, interest: FaceInterest, kind: Kind, out: Out) -> None:
        """Undeclare to the face what no other interest of it covers."""
        face = interest.face
        if interest.aggregate and interest.key is not None:
            slots = [DeclarationSlot(kind, interest.key, True)]
        else:
            keys = self.resources[kind].intersecting(interest.key)
            slots = [DeclarationSlot(kind, key, False) for key in keys]
        for slot in slots:
            if slot in face.sent_declarations and not self._is_told(face, slot):
                sent = face.sent_declarations.pop(slot)
                if face.is_open:
                    self._send_undeclare(face, slot, sent.id, face.is_local, out)

    def _forget_upstream(
        self, upstream: Face, interest: FaceInterest, kind: Kind, out: Out
    ) -> None:
        """Remove what `upstream` declared for this interest alone: it will send no undeclare."""
        resources = self.resources[kind]
        for key in resources.intersecting(interest.key):
            if not any(upstream in other.sent for other in self._interests[kind].covering(key)):
                for number in resources.numbers(upstream, key):
                    del upstream.declared[kind, number]
                    self._remove(upstream, kind, number, key, out)

    def on_time(self, now: float, out: Out) -> None:
        for pending in self.timers.due(now):
            if not pending.done:
                self._count(DropReason.INTEREST_TIMEOUT)
                self._drop_pending(pending)
                out.append((pending.interest.face, _declare(DeclareFinal(), pending.interest.id)))

    # ---- declarations to faces

    def may_declare_key(self, face: Face, prefix: str) -> bool:
        """Return whether a key id for `prefix` may be declared to `face`."""
        return bool(face.policy.pushes & KEYEXPRS) or any(
            interest.face is face for interest in self._interests[KEYEXPRS].covering(prefix)
        )

    def _is_told(self, face: Face, slot: DeclarationSlot) -> bool:
        """Return whether `face` is to be told of changes of `slot`."""
        if face.policy.pushes & slot.kind and not slot.aggregate:
            return True
        return any(
            interest.face is face and interest.slot(slot.kind, slot.key) == slot
            for interest in self._interests[slot.kind].covering(slot.key)
        )

    def _propagate(
        self,
        kind: Kind,
        key: str,
        source: Face,
        new: bool,
        answering: PendingInterest | None,
        out: Out,
    ) -> None:
        """Update every face concerned: `source` declared `key` (`new`), or undeclared it."""
        slots: dict[tuple[Face, DeclarationSlot], None] = {
            (face, DeclarationSlot(kind, key, False)): None
            for face in self.topology.pushed_from(source)
            if face.policy.pushes & kind
        }
        for interest in self._interests[kind].covering(key):
            slots[interest.face, interest.slot(kind, key)] = None
        for face, slot in slots:
            if self._is_visible(source, face, kind):
                self._update(face, slot, new, answering, out)

    def _propagate_to(self, face: Face, kind: Kind, key: str, new: bool, out: Out) -> None:
        """Update `face` alone: messages of the source now pass to it (`new`), or no longer."""
        slots: dict[DeclarationSlot, None] = (
            {DeclarationSlot(kind, key, False): None} if face.policy.pushes & kind else {}
        )
        for interest in self._interests[kind].covering(key):
            if interest.face is face:
                slots[interest.slot(kind, key)] = None
        for slot in slots:
            if new or slot in face.sent_declarations:
                self._update(face, slot, new, None, out)

    def _is_visible(self, source: Face, face: Face, kind: Kind) -> bool:
        """Return whether `face` is to know what `source` declares."""
        if source is face:
            return kind is TOKENS and face.policy.echoes
        return self.topology.passes(source, face)

    def _info_for(self, face: Face, slot: DeclarationSlot) -> QueryableInfo | None:
        """Return what `face` is to know of a slot; None: nothing is declared there."""
        if slot.aggregate:
            return self._aggregate_info(face, slot)
        merged: QueryableInfo | None = None
        for source, info in self.resources[slot.kind].sources(slot.key):
            if self._is_visible(source, face, slot.kind):
                if slot.kind is not QUERYABLES:
                    return PRESENT
                merged = merge(merged, info)
        return merged

    def _aggregate_info(self, face: Face, slot: DeclarationSlot) -> QueryableInfo | None:
        merged: QueryableInfo | None = None
        for key in self.resources[slot.kind].intersecting(slot.key):
            info = self._info_for(face, DeclarationSlot(slot.kind, key, False))
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
        """Reconcile what was declared to `face` with the current tables.

                       declared to `face`             not declared to `face`
            in tables  declare again if info changed  declare if `new` or an aggregate
            not there  undeclare                      undeclare a token by key, unless `new`

        The face may know such a token as an answer to a CURRENT interest. A slot that the pending
        interest `answering` lacks is sent as its answer.
        """
        info, sent = self._info_for(face, slot), face.sent_declarations.get(slot)
        if info is not None and answering is not None and answering.lacks(face, slot):
            self._answer_slot(answering, slot, out)
        elif info is None:
            if sent is not None:
                del face.sent_declarations[slot]
                self._send_undeclare(face, slot, sent.id, face.is_local, out)
            elif slot.kind is TOKENS and not new and not face.policy.pushes & TOKENS:
                self._send_undeclare(face, slot, NO_ID, True, out)
        elif sent is None:
            if new or slot.aggregate:
                number = NO_ID if face.policy.keyed else face.new_id()
                face.sent_declarations[slot] = SentDeclaration(number, info)
                self._send_declare(face, slot, number, info, None, out)
        elif sent.info != info:
            sent.info = info
            self._send_declare(face, slot, sent.id, info, None, out)

    def _send_declare(
        self,
        face: Face,
        slot: DeclarationSlot,
        number: int,
        info: QueryableInfo,
        interest_id: int | None,
        out: Out,
    ) -> None:
        key = self._write_key(face, slot.key, out)
        body: Declaration
        if slot.kind is QUERYABLES:
            body = DeclareQueryable(number, key, info)
        else:
            body = (DeclareSubscriber if slot.kind is SUBSCRIBERS else DeclareToken)(number, key)
        out.append((face, _declare(body, interest_id)))

    def _send_undeclare(
        self, face: Face, slot: DeclarationSlot, number: int, named: bool, out: Out
    ) -> None:
        named = named or face.policy.keyed
        key = face.write(slot.key)[0] if named else None
        out.append((face, _declare(_UNDECLARE[slot.kind](number, key), None)))

    def _write_key(self, face: Face, key: str, out: Out) -> WireExpr:
        written, first = face.write(key, lambda prefix: self.may_declare_key(face, prefix))
        if first is not None:
            out.append((face, first))
        return written

    def _count(self, reason: DropReason) -> None:
        self.topology.counters[reason] += 1

    def size(self) -> dict[str, int]:
        """Return the number of entries in each table."""
        return {
            **{f"{kind.name} keys": len(table) for kind, table in self.resources.items()},
            **{f"{kind.name} interests": len(table) for kind, table in self._interests.items()},
        }


def _number(face: Face, declare: Declare, number: int, key: str | None) -> Hashable:
    """Return what identifies a declaration of `face`: its key and source, or its id.

    Rust gives every subscriber that it declares to a multicast group the id 0.
    """
    if face.policy.keyed or (face.policy.multicast and number == NO_ID):
        return key, declare.node_id
    return number


def _declare(body: Declaration, interest_id: int | None) -> Declare:
    return Declare(body, interest_id, qos.DECLARE)
