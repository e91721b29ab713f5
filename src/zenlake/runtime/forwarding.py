"""Forwarding: PUSH messages and replies passed on to other sessions as bytes, with other keys.

Knows how to rewrite the key of a message and of a run. Does not know which sessions want it:
an `InboundRoute` says so.
"""

import logging
from typing import TYPE_CHECKING

from zenlake.errors import MessageTooLarge, SessionEnded
from zenlake.routing.queries import PendingQuery
from zenlake.runtime.local_delivery import Routes
from zenlake.runtime.session_face import ForwardingFace, SessionFace
from zenlake.transport.drop_reason import DropReason
from zenlake.wire.cursor import encode
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.qos import PRIORITY_BITS
from zenlake.wire.wireexpr import FLAG_MAPPING, FLAG_NAMED, SENDER, WireExpr

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from zenlake.runtime.exchange import Exchange
    from zenlake.wire.push_run import PushRun

log = logging.getLogger("zenlake.runtime")

KEY_FLAGS = FLAG_NAMED | FLAG_MAPPING  # Header flags of a PUSH that belong to its key.


class Forwarder:
    """Sends what one session of an exchange put to the other sessions that want it."""

    def __init__(self, exchange: "Exchange") -> None:
        self._dropped = exchange.dropped
        self._throttle = exchange.backpressure.throttle

    def forward_put(
        self,
        session_face: SessionFace,
        out: tuple[ForwardingFace, ...],
        header: int,
        tail: bytes,
        qos: int,
        reliable: bool,
    ) -> None:
        """Forward one PUSH: its `header` with another key's flags, that key, then `tail`."""
        for other, _, flags, key in out:
            head = bytes((header & ~KEY_FLAGS | flags,))
            self._send(session_face, other, head + key + tail, qos, reliable)

    def forward_push(
        self, session_face: SessionFace, out: tuple[ForwardingFace, ...], push: Push, reliable: bool
    ) -> None:
        """Encode a decoded PUSH for every session of `out`; its key and NodeId are overwritten."""
        push.node_id = 0  # The one received is the sender's number for a node.
        for other, wire, _, _ in out:
            push.key = wire
            self._send(session_face, other, encode(NETWORK.write, push), push.qos, reliable)

    def forward_run(
        self,
        session_face: SessionFace,
        reliable: bool,
        run: "PushRun",
        routes: Routes,
        stamps: tuple[int, bytes],
    ) -> None:
        """Forward a run to each session that wants some of its keys.

        The run is rewritten once for all sessions that know the keys by the same ids.
        """
        keys: dict[SessionFace, list[WireExpr | None]] = {}
        for code, route in enumerate(routes):
            for other, wire, _, _ in route.out if route is not None else ():
                keys.setdefault(other, [None] * len(routes))[code] = wire
        if not keys:
            return
        from zenlake.wire.push_run import rewrite

        written = {}
        for other, wires in keys.items():
            name = tuple(wires)
            if name not in written:
                qos = run.rows["qos"][run.first : run.stop]
                if None in wires:
                    qos = qos[run.select_rows([wire is not None for wire in wires])]
                written[name] = (*rewrite(run, wires, *stamps), qos)
            self._send_run(session_face, other, *written[name], reliable)

    def forward_replies(
        self, session_face: SessionFace, run: "PushRun", query: PendingQuery, keys: list[str]
    ) -> bool:
        """Forward a run of replies to the session that sent `query`; False: it is gone, or replies
        have another QoS than the query, or one is too large, and each has to be routed."""
        import numpy as np

        from zenlake.wire.push_run import rewrite

        other: SessionFace | None = query.face.link
        qos = run.rows["qos"][run.first : run.stop]
        if other is None or (qos != int(query.qos)).any():
            return False
        data, ends = rewrite(run, [WireExpr(0, key, SENDER) for key in keys], request_id=query.id)
        try:
            other.session.check_size(int(np.diff(ends, prepend=0).max()))
        except MessageTooLarge:
            return False
        self._send_run(session_face, other, data, ends, qos, True)
        return True

    def _send_run(
        self,
        session_face: SessionFace,
        other: SessionFace,
        data: memoryview,
        ends: "npt.NDArray[np.int64]",
        qos: "npt.NDArray[np.uint8]",
        reliable: bool,
    ) -> None:
        """Send each message on the lane that its own QoS names: the link that it was received from
        may have no lanes."""
        lanes = qos & PRIORITY_BITS
        if not len(ends):
            return
        if (lanes == lanes[0]).all():
            try:
                other.session.send_run(data, ends, qos, reliable, int(lanes[0]))
            except SessionEnded:
                self._dropped[DropReason.SESSION_CLOSED] += len(ends)
            self._throttle(session_face, other)
            return
        start = 0
        for end, level in zip(ends.tolist(), qos.tolist(), strict=True):
            self._send(session_face, other, bytes(data[start:end]), level, reliable)
            start = end

    def _send(
        self,
        session_face: SessionFace,
        other: SessionFace,
        message: bytes,
        qos: int,
        reliable: bool,
    ) -> None:
        try:
            other.session.send_encoded(message, qos, reliable)
            self._throttle(session_face, other)
        except SessionEnded:
            self._dropped[DropReason.SESSION_CLOSED] += 1
        except MessageTooLarge as error:
            if other.session.post_shared(message, reliable):
                return
            self._dropped[DropReason.MESSAGE_TOO_LARGE] += 1
            other.session.warn_too_large(error)
