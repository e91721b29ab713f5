"""Establishment: the handshake of a unicast session, as one table of states for each side.

Knows INIT and OPEN, the negotiation, and the CLOSE reason of every refusal. Does not know bytes,
links or time: messages go in and come out. Rust: `io/zenoh-transport/src/unicast/establishment`.

    opener                      acceptor
      | -- INIT syn -------------> |   the opener's offer
      | <------------- INIT ack -- |   the lesser of both offers, and a cookie
      | -- OPEN syn -------------> |   the cookie, the opener's lease and first sequence number
      | <------------- OPEN ack -- |   the acceptor's lease and first sequence number
"""

import hmac
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from zenlake.errors import AuthError, SessionRefused
from zenlake.transport.auth import AcceptorAuth, Authenticator, Entropy, OpenerAuth
from zenlake.transport.link_qos import LinkQos, agree
from zenlake.transport.multilink import MultiLinkKey, MultiLinkSteps, first_sn
from zenlake.transport.offer import MIN_BATCH_SIZE, SN_MASKS, Agreement, Offer, clamp_lease
from zenlake.wire.batch import TransportMessage
from zenlake.wire.close import Close
from zenlake.wire.enums import CloseReason, WireWhatAmI
from zenlake.wire.init import VERSION, Init
from zenlake.wire.open import Open
from zenlake.wire.zenohid import WireZenohId

COOKIE_BYTES = 32
MAX_COOKIE_BYTES = 4096  # Longest cookie that is accepted from a peer; Rust sends up to 130.

Admit = Callable[[WireZenohId, WireWhatAmI], None]
"Raises SessionRefused if this node does not admit a session with that peer."


class ShmSteps(Protocol):
    """The steps of shared memory, carried out by `shm/handshake.py`. Each takes the bytes that the
    peer sent for it, or None, and returns those of the answer, or None: no shared memory.
    AuthError: the peer believes in shared memory that is not common."""

    agreed: bool
    "Whether both sides use shared memory."
    declined: str | None
    "Reason for not sharing memory; None: none is known."

    def init_syn(self) -> bytes: ...
    def init_ack(self, init_syn: bytes | None, /) -> bytes | None: ...
    def open_syn(self, init_ack: bytes | None, /) -> bytes | None: ...
    def open_ack(self, open_syn: bytes | None, /) -> bytes | None: ...
    def take_open_ack(self, open_ack: bytes | None, /) -> None: ...
    def close(self, *, lost: bool) -> None: ...


class HandshakeState(StrEnum):
    """The message that a side waits for."""

    INIT_SYN = "INIT syn"
    INIT_ACK = "INIT ack"
    OPEN_SYN = "OPEN syn"
    OPEN_ACK = "OPEN ack"
    NOTHING = "nothing"
    "The session is open, or the handshake has failed."


def kind_of(message: TransportMessage) -> str:
    """Return the name of a message in the terms of `HandshakeState`."""
    if isinstance(message, Init | Open):
        return f"{type(message).__name__.upper()} {'ack' if message.ack else 'syn'}"
    return type(message).__name__.upper()


def refuse(why: str, reason: CloseReason = CloseReason.INVALID) -> SessionRefused:
    return SessionRefused(why, reason)


class Handshake:
    """Common part of opener and acceptor: `receive` each message until `agreement` is set."""

    TABLE: ClassVar[dict[HandshakeState, Callable[..., TransportMessage | None]]]
    "The method for the message that each state waits for; any other message is refused."

    state: HandshakeState

    def __init__(
        self,
        offer: Offer,
        entropy: Entropy,
        *,
        mtu: int,
        admit: Admit | None = None,
        link_qos: LinkQos | None = None,
        multilink: MultiLinkKey | None = None,
        shm: ShmSteps | None = None,
    ) -> None:
        self.offer = offer
        self.agreement: Agreement | None = None
        self.peer: Init | None = None
        "INIT of the peer, once it was received."
        self._entropy = entropy
        self._batch_size = min(offer.batch_size, mtu)
        self._resolution = offer.resolution
        self._admit = admit or (lambda zid, whatami: None)
        self._link_qos = (link_qos or LinkQos()) if offer.qos else None
        "QoS of the link, first as this node's endpoint has it, then as agreed; None: no lanes."
        self.multilink = None if multilink is None else MultiLinkSteps(multilink, entropy)
        "None: this node takes one link per session."
        self.shm = shm
        "None: this node does not offer shared memory."

    def receive(self, message: TransportMessage) -> TransportMessage | None:
        """Return the answer to the peer's next message. SessionRefused: the handshake failed."""
        state, self.state = self.state, HandshakeState.NOTHING
        if isinstance(message, Close):
            why = f"the peer closed with reason {reason_text(message.reason)}"
            raise SessionRefused(f"{why} while {state} was expected", message.reason, by_peer=True)
        handler = self.TABLE.get(state)
        if handler is None or kind_of(message) != state:
            raise refuse(f"{kind_of(message)} came where {state} was expected")
        try:
            return handler(self, message)
        except AuthError as error:
            raise refuse(f"authentication failed: {error}", CloseReason.GENERIC) from error

    @property
    def takes_more_links(self) -> bool:
        """Whether both sides have offered several links for a session."""
        return self.multilink is not None and self.multilink.peer is not None

    def _first_sn(self, peer: WireZenohId) -> int:
        mask = SN_MASKS[self._resolution & 0x03]
        if self.multilink is not None:
            return first_sn(self.offer.zid, peer, mask)
        return int.from_bytes(self._entropy(4), "little") & mask

    def _check_init(self, init: Init) -> None:
        if init.batch_size < MIN_BATCH_SIZE:
            raise refuse(f"INIT asks for batches of {init.batch_size} bytes")
        if init.qos and init.qos_link is not None:
            raise refuse("INIT has QoS and QoSLink", CloseReason.GENERIC)
        theirs = LinkQos() if init.qos else LinkQos.decode(init.qos_link or 0)
        if theirs is None or self._link_qos is None:
            self._link_qos = None
        else:
            self._link_qos = self._agree_qos(self._link_qos, theirs)

    def _agree_qos(self, ours: LinkQos, theirs: LinkQos) -> LinkQos:
        raise NotImplementedError

    def _qos_fields(self) -> dict[str, Any]:
        """Return the fields of INIT that say whether this node has lanes, and for which of them
        its link is meant."""
        ours = self._link_qos
        value = None if ours is None else ours.encode()
        return {"qos": ours is not None and value is None, "qos_link": value}

    def _agree(self, init: Init, opening: Open, own_sn: int, identities: dict[str, str]) -> None:
        offer = self.offer
        if opening.initial_sn > SN_MASKS[self._resolution & 0x03]:
            raise refuse(f"OPEN starts at {opening.initial_sn}, beyond the agreed resolution")
        if opening.remote_bound not in (None, 0, 1):
            raise refuse(f"OPEN has remote bound {opening.remote_bound}", CloseReason.GENERIC)
        low_latency = offer.low_latency and init.low_latency
        self.agreement = Agreement(
            zid=init.zid,
            whatami=init.whatami,
            resolution=self._resolution,
            batch_size=self._batch_size,
            qos=self._link_qos is not None,
            link_qos=self._link_qos or LinkQos(),
            multilink=None if self.multilink is None else self.multilink.peer,
            low_latency=low_latency,
            compression=offer.compression and init.compression and not low_latency,
            patch=min(offer.patch, init.patch),
            lease=offer.lease_ms / 1000,
            peer_lease=clamp_lease(opening.lease_ms),
            initial_sn=own_sn,
            peer_initial_sn=opening.initial_sn,
            region_name=init.region_name,
            remote_bound=opening.remote_bound,
            identities=identities,
            shm=self.shm is not None and self.shm.agreed,
        )


class Opener(Handshake):
    """Side that connected. `expect`: the zid that the peer must have."""

    def __init__(
        self,
        offer: Offer,
        entropy: Entropy,
        *,
        mtu: int,
        authenticators: Sequence[Authenticator] = (),
        expect: WireZenohId | None = None,
        admit: Admit | None = None,
        link_qos: LinkQos | None = None,
        multilink: MultiLinkKey | None = None,
        shm: ShmSteps | None = None,
    ) -> None:
        super().__init__(
            offer,
            entropy,
            mtu=mtu,
            admit=admit,
            link_qos=link_qos,
            multilink=multilink,
            shm=shm,
        )
        self.state = HandshakeState.INIT_ACK
        self._auth = OpenerAuth(authenticators, entropy)
        self._expect = expect
        self._own_sn = 0

    def _agree_qos(self, ours: LinkQos, theirs: LinkQos) -> LinkQos:
        return agree(ours, theirs)

    def first(self) -> Init:
        """Return the INIT syn that starts the handshake."""
        offer = self.offer
        return Init(
            offer.zid,
            offer.whatami,
            resolution=offer.resolution,
            batch_size=self._batch_size,
            **self._qos_fields(),
            shm=None if self.shm is None else self.shm.init_syn(),
            auth=self._auth.init_syn(),
            multilink=None if self.multilink is None else self.multilink.init_syn(),
            low_latency=offer.low_latency,
            compression=offer.compression,
            patch=offer.patch,
            region_name=offer.region_name,
        )

    def _on_init_ack(self, init: Init) -> TransportMessage:
        assert init.cookie is not None
        self.peer = init
        self._check_init(init)
        if len(init.cookie) > MAX_COOKIE_BYTES:
            raise refuse(f"INIT ack has a cookie of {len(init.cookie)} bytes")
        if init.zid == self.offer.zid:
            raise refuse("the peer is this node itself", CloseReason.CONNECTION_TO_SELF)
        if self._expect is not None and init.zid != self._expect:
            raise refuse(f"the peer is {init.zid}, not {self._expect} as expected")
        if self.offer.lower(init.resolution) != init.resolution:
            raise refuse(f"INIT ack raises the resolution to {init.resolution:#x}")
        if init.patch > self.offer.patch:
            raise refuse(f"INIT ack raises the patch to {init.patch}", CloseReason.GENERIC)
        self._resolution = init.resolution
        self._batch_size = min(self._batch_size, init.batch_size)
        answer = self._auth.open_syn(init.auth)
        nonce = None if self.multilink is None else self.multilink.open_syn(init.multilink)
        self._admit(init.zid, init.whatami)
        shm = None if self.shm is None else self.shm.open_syn(init.shm)
        self._own_sn = self._first_sn(init.zid)
        self.state = HandshakeState.OPEN_ACK
        return Open(
            self.offer.lease_ms,
            self._own_sn,
            init.cookie,
            shm_counters=shm,
            auth=answer,
            multilink=nonce,
            remote_bound=self.offer.remote_bound,
        )

    def _on_open_ack(self, opening: Open) -> None:
        self._auth.open_ack(opening.auth)
        if self.multilink is not None:
            self.multilink.take_open_ack(opening.multilink_ack)
        if self.shm is not None:
            self.shm.take_open_ack(opening.shm_counters)
        assert self.peer is not None
        self._agree(self.peer, opening, self._own_sn, {})

    TABLE: ClassVar = {HandshakeState.INIT_ACK: _on_init_ack, HandshakeState.OPEN_ACK: _on_open_ack}


class Acceptor(Handshake):
    """Side that accepted. It keeps its own state: the cookie is compared, not decoded."""

    def __init__(
        self,
        offer: Offer,
        entropy: Entropy,
        *,
        mtu: int,
        authenticators: Sequence[Authenticator] = (),
        admit: Admit | None = None,
        link_qos: LinkQos | None = None,
        multilink: MultiLinkKey | None = None,
        shm: ShmSteps | None = None,
    ) -> None:
        super().__init__(
            offer,
            entropy,
            mtu=mtu,
            admit=admit,
            link_qos=link_qos,
            multilink=multilink,
            shm=shm,
        )
        self.state = HandshakeState.INIT_SYN
        self._auth = AcceptorAuth(authenticators, entropy)
        self._cookie = b""

    def _agree_qos(self, ours: LinkQos, theirs: LinkQos) -> LinkQos:
        return agree(theirs, ours)

    def _on_init_syn(self, init: Init) -> TransportMessage:
        offer = self.offer
        self.peer = init
        if init.version != VERSION:
            raise refuse(f"INIT has version {init.version:#x}; this is {VERSION:#x}")
        self._check_init(init)
        self._resolution = offer.lower(init.resolution)
        self._batch_size = min(self._batch_size, init.batch_size)
        auth = self._auth.init_ack(init.auth)
        multilink = None if self.multilink is None else self.multilink.init_ack(init.multilink)
        shm = None if self.shm is None else self.shm.init_ack(init.shm)
        self._cookie = self._entropy(COOKIE_BYTES)
        self.state = HandshakeState.OPEN_SYN
        return Init(
            offer.zid,
            offer.whatami,
            resolution=self._resolution,
            batch_size=self._batch_size,
            cookie=self._cookie,
            **self._qos_fields(),
            shm=shm,
            auth=auth,
            multilink=multilink,
            low_latency=offer.low_latency and init.low_latency,
            compression=offer.compression and init.compression,
            patch=min(offer.patch, init.patch),
            region_name=offer.region_name,
        )

    def _on_open_syn(self, opening: Open) -> TransportMessage:
        if not hmac.compare_digest(opening.cookie or b"", self._cookie):
            raise refuse("OPEN syn does not carry this handshake's cookie")
        auth = self._auth.open_ack(opening.auth)
        several = self.multilink is not None and self.multilink.check_open_syn(opening.multilink)
        init = self.peer
        assert init is not None
        if init.zid == self.offer.zid:
            raise refuse("the peer has this node's own id", CloseReason.CONNECTION_TO_SELF)
        if init.whatami is WireWhatAmI.CLIENT and self.offer.whatami is WireWhatAmI.CLIENT:
            raise refuse("a client cannot serve a client", CloseReason.GENERIC)
        shm = None if self.shm is None else self.shm.open_ack(opening.shm_counters)
        own_sn = self._first_sn(init.zid)
        self._agree(init, opening, own_sn, self._auth.identities)
        try:
            self._admit(init.zid, init.whatami)
        except SessionRefused:
            self.agreement = None
            raise
        return Open(
            self.offer.lease_ms,
            own_sn,
            shm_counters=shm,
            auth=auth,
            multilink_ack=several,
            remote_bound=self.offer.remote_bound,
        )

    TABLE: ClassVar = {HandshakeState.INIT_SYN: _on_init_syn, HandshakeState.OPEN_SYN: _on_open_syn}


def reason_text(reason: int) -> str:
    """Return a CLOSE reason as text, such as `2 (INVALID)`; an unknown one as its number."""
    try:
        return f"{reason} ({CloseReason(reason).name})"
    except ValueError:
        return str(reason)
