"""Local delivery: samples from PUSH messages to the subscribers of the session above.

Knows which rows of a run each subscriber wants, and states what the runtime expects of the session
above (`LocalSession`). Does not know samples or handlers: api/pubsub/subscriber.py does.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple, Protocol

from zenlake.errors import SessionEnded
from zenlake.keyexpr import KeyExpr
from zenlake.keytable import KeyTable
from zenlake.runtime import kernel_loader
from zenlake.runtime.session_face import InboundRoute, LocalSubscribers, ReceivedKey, SessionFace
from zenlake.runtime.transport_session import TransportSession
from zenlake.wire.enums import WirePriority
from zenlake.wire.network import NetworkMessage
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.tsstack import WireTimestampStack

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from zenlake.shm.pointers import HeldPayload, HeldPayloads
    from zenlake.wire.push_run import PushRun
    from zenlake.wire.reply_run import ReplyRun

    Positions = tuple[int, ...] | npt.NDArray[np.int64]

Routes = Sequence[InboundRoute | None]
"Route of each key of a run, by the key's number there; None: the peer never declared its id."

RawPush = tuple[SessionFace, bool, ReceivedKey, bytes, int, int, Push | None]
"""A PUSH as received: from which session, whether on a reliable lane, its key, the message's bytes
as data[start:end], and the decoded message if it has more than a payload."""


class Backpressured(Protocol):
    """A receiver that is over its capacity."""

    def when_room(self, call: Callable[[], None]) -> None:
        """Call `call` once, as soon as the receiver has room again."""


class RunPart(NamedTuple):
    """The rows of a run that one delivery consists of."""

    run: "PushRun"
    rows: "npt.NDArray[np.int64] | None"
    "Positions within the run; None: all of it."
    keys: KeyTable
    "Meaning of the key ids in the run."
    session_face: SessionFace | None
    "Session that the run was received from; None: this node's own session."


@dataclass(slots=True)
class Delivery:
    """Samples for one set of subscribers; made once per FRAME and set."""

    keys: Iterable[KeyExpr]
    "Key of each sample."
    data: bytes
    "Buffer that holds the payloads."
    starts: "Positions"
    "Where each payload starts in `data`: an array if there is a `part`, else a tuple."
    ends: "Positions"
    "Where each payload ends in `data`."
    count: int
    "Number of samples."
    rests: Iterable[int | Push | None] = ()
    """The other fields of each sample: a decoded PUSH, where the PUSH starts in `data`, or None for
    a payload alone. Empty if there is a `part`, which tells."""
    part: RunPart | None = None
    "The rows that the samples are, if they were scanned."
    message: RawPush | None = None
    "The message as received, if the delivery is that one alone."
    payloads: "HeldPayload | HeldPayloads | None" = None
    """Payloads in shared memory, by position in the run; `data` has the messages without them, and
    `rests` the position of the only one if there is no `part`."""


class LocalSession(Protocol):
    """The session above. No method may wait: most calls are made by the I/O thread."""

    def on_message(self, message: NetworkMessage) -> None:
        """Take any message but a PUSH. Keys are full text."""

    def on_replies(self, replies: "ReplyRun") -> None:
        """Take replies that were received together."""

    def matching_subscribers(self, key: str) -> LocalSubscribers:
        """Return the local subscribers that match `key`.

        Equal sets return the identical tuple, so callers may group by `id()`.
        """

    def takes_bytes(self, subscribers: LocalSubscribers) -> bool:
        """Return whether one of `subscribers` takes the bytes of messages instead of samples."""

    def deliver(self, subscribers: LocalSubscribers, delivery: Delivery) -> Iterable[Backpressured]:
        """Hand samples to `subscribers`; return the sinks that are now over capacity."""

    def routed(self, stack: WireTimestampStack) -> WireTimestampStack:
        """Return `stack` with the current time at ROUTE, if it asks for that."""

    def opened(self, session: TransportSession) -> None: ...
    def declared(self, session: TransportSession) -> None:
        """Note that the peer has sent all of its initial declarations."""

    def closed(self, session: TransportSession, why: SessionEnded) -> None: ...
    def lost(
        self,
        session: TransportSession,
        priority: WirePriority,
        reliable: bool,
        first: int,
        missing: int,
    ) -> None:
        """Note that sequence numbers of a lane were never received."""


class LocalDelivery:
    """Delivers PUSH messages to the local session."""

    def __init__(self, local: LocalSession) -> None:
        self._local = local

    def deliver_push(
        self, subscribers: LocalSubscribers, key: KeyExpr, push: Push, message: RawPush | None
    ) -> Iterable[Backpressured]:
        """Deliver one decoded PUSH; return the sinks that are now over capacity."""
        payload = push.body.payload if type(push.body) is Put else b""
        assert not isinstance(payload, tuple)
        return self._local.deliver(
            subscribers,
            Delivery((key,), payload, (0,), (len(payload),), 1, (push,), message=message),
        )

    def deliver_run(
        self,
        data: bytes,
        run: "PushRun",
        routes: Routes,
        keys: KeyTable,
        session_face: SessionFace | None,
        payloads: "HeldPayloads | None" = None,
    ) -> list[Backpressured]:
        """Deliver the run once per distinct set of wanted keys, preserving order.

        Return the sinks that are now over capacity.
        """
        full: list[Backpressured] = []
        for subscribers, wanted in _group_by_wanted_keys(routes):
            starts, ends, rows, codes = run.starts, run.ends, None, run.codes
            if len(wanted) < run.groups:
                rows = run.select_rows([code in wanted for code in range(run.groups)])
                starts, ends, codes = starts[rows], ends[rows], codes[rows]
            names: Iterable[KeyExpr]
            first = routes[int(codes[0])]
            if run.groups == 1 and first is not None:
                names = repeat(first.key)
            else:
                known = [route.key if route else None for route in routes]
                names = map(known.__getitem__, codes.tolist())  # type: ignore[arg-type]
            part = RunPart(run, rows, keys, session_face)
            full += self._local.deliver(
                subscribers,
                Delivery(names, data, starts, ends, len(starts), part=part, payloads=payloads),
            )
        return full

    def deliver_encoded(
        self,
        data: bytes,
        matching: Callable[[str], LocalSubscribers],
        kernels: kernel_loader.Kernels | None = None,
        *,
        reliable: bool = True,
        session_face: SessionFace | None = None,
    ) -> list[Backpressured]:
        """Deliver encoded PUSH messages whose keys are full text to the subscribers `matching`
        gives; return the sinks that are now over capacity."""
        if kernels is None:
            kernel_loader.load()
            kernels = kernel_loader.make()
        assert kernels is not None
        full: list[Backpressured] = []
        view = memoryview(data)
        for rows, _, error in kernels.scanner.bare(view, reliable=reliable):
            if error is not None:
                raise error
            run = kernels.grouper.run(view, 0, rows, 0)
            routes: list[InboundRoute | None] = []
            for _, suffix in run.keys:
                key = KeyExpr.trusted(suffix.decode())
                routes.append(InboundRoute(key, matching(key), ()))
            full += self.deliver_run(data, run, routes, KeyTable(), session_face)
        return full


def _group_by_wanted_keys(routes: Routes) -> list[tuple[LocalSubscribers, set[int]]]:
    """Group the subscribers of a run by the keys they want; return each group with those keys.

    A subscriber of several keys gets them in one delivery, because a run is not sorted by key.
    """
    sets: dict[int, tuple[LocalSubscribers, set[int]]] = {}
    for code, route in enumerate(routes):
        if route is not None and route.local:
            sets.setdefault(id(route.local), (route.local, set()))[1].add(code)
    if len(sets) < 2:
        return [*sets.values()]
    codes_of: dict[object, set[int]] = {}
    for subscribers, codes in sets.values():
        for subscriber in subscribers:
            codes_of.setdefault(subscriber, set()).update(codes)
    groups: dict[frozenset[int], list[object]] = {}
    for subscriber, codes in codes_of.items():
        groups.setdefault(frozenset(codes), []).append(subscriber)
    return [(tuple(subscribers), {*codes}) for codes, subscribers in groups.items()]
