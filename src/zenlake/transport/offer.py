"""Offer and agreement: what a node proposes in a handshake, and the result for a session.

Knows names, defaults and ranges. Does not know the messages that carry them (establishment.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from zenlake.transport.link_qos import LinkQos
from zenlake.transport.rsa_key import KeyNumbers
from zenlake.wire.enums import WHATAMI_CODES, WireWhatAmI
from zenlake.wire.extensions import REGION_NAME_BYTES
from zenlake.wire.framing import MAX_BATCH_BYTES
from zenlake.wire.init import DEFAULT_RESOLUTION
from zenlake.wire.zenohid import WireZenohId

MIN_BATCH_SIZE = 32  # Room for the header of a fragment and a few bytes of payload.
MIN_LEASE, MAX_LEASE = 0.1, 600.0  # Seconds; a peer's lease outside is taken as the nearer one.
KEEP_ALIVES = 4  # KEEP_ALIVEs per lease (zenoh-config transport.link.tx.keep_alive).
PATCH = 1  # Patch level 1: fragments carry the markers First and Drop.

SN_MASKS = (0x7F, 0x3FFF, 0x0FFF_FFFF, 0xFFFF_FFFF)
"Masks of sequence numbers by resolution: 8, 16, 32 and 64 bits use 7, 14, 28 and 32."


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Values that a node sends in INIT and OPEN, and the most it accepts from a peer."""

    zid: WireZenohId
    whatami: WireWhatAmI
    resolution: int = DEFAULT_RESOLUTION
    "Sequence numbers in bits 1:0, request ids in bits 3:2; 0 to 3 = 8 to 64 bits."
    batch_size: int = MAX_BATCH_BYTES
    lease_ms: int = 10_000
    qos: bool = True
    low_latency: bool = False
    compression: bool = False
    patch: int = PATCH
    region_name: str | None = None
    remote_bound: int | None = None

    def __post_init__(self) -> None:
        if self.whatami not in WHATAMI_CODES:
            raise ValueError(f"whatami is {self.whatami!r}, not one role")
        if self.qos and self.low_latency:
            raise ValueError("low latency has no lanes: offer qos or low_latency, not both")
        if not 0 <= self.resolution <= 0x0F:
            raise ValueError(f"resolution {self.resolution:#x} is not two fields of two bits")
        if not MIN_BATCH_SIZE <= self.batch_size <= MAX_BATCH_BYTES:
            raise ValueError(
                f"batch_size is {self.batch_size}, outside {MIN_BATCH_SIZE} to {MAX_BATCH_BYTES}"
            )
        if not MIN_LEASE <= self.lease_ms / 1000 <= MAX_LEASE:
            raise ValueError(f"lease_ms is {self.lease_ms}, outside 100 to 600000")
        if not 0 <= self.patch <= PATCH:
            raise ValueError(f"patch is {self.patch}, outside 0 to {PATCH}")
        if self.remote_bound not in (None, 0, 1):
            raise ValueError(f"remote_bound is {self.remote_bound}, not 0 (north) or 1 (south)")

        name = self.region_name
        if name is not None and len(name.encode()) not in REGION_NAME_BYTES:
            raise ValueError(f"region_name is {name!r}, not 1 to 32 bytes of UTF-8")

    def lower(self, resolution: int) -> int:
        """Return the lesser of two resolutions, field by field."""
        mine = self.resolution
        return min(mine & 0x03, resolution & 0x03) | min(mine & 0x0C, resolution & 0x0C)


SHARED_BY_LINKS = (
    "zid",
    "whatami",
    "resolution",
    "initial_sn",
    "peer_initial_sn",
    "qos",
    "multilink",
    "low_latency",
    "patch",
    "region_name",
    "remote_bound",
    "identities",
)
"Parameters of a session that are equal on all its links (TransportConfigUnicast of Rust)."


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Negotiated parameters of one session, seen from one side."""

    zid: WireZenohId
    "Zid of the peer."
    whatami: WireWhatAmI
    "Role of the peer."
    resolution: int
    batch_size: int
    qos: bool
    low_latency: bool
    compression: bool
    patch: int
    lease: float
    "Seconds of this node's lease; after a quarter without a batch it sends KEEP_ALIVE."
    peer_lease: float
    "Seconds of the peer's lease; after that long without a byte the session ends."
    initial_sn: int
    peer_initial_sn: int
    link_qos: LinkQos = field(default_factory=LinkQos)
    "Priorities and reliability that the link is meant for."
    multilink: KeyNumbers | None = None
    "Key of the peer's further links; None: the session has one link."
    region_name: str | None = None
    "Region name of the peer."
    remote_bound: int | None = None
    "Region in which the peer places this node: 0 north, 1 south."
    identities: Mapping[str, str] = field(default_factory=dict)
    "Proved identities of the peer, by the authenticator's name."
    shm: bool = False
    "Whether payloads may be pointers into shared memory."

    @property
    def sn_mask(self) -> int:
        return SN_MASKS[self.resolution & 0x03]

    def differs(self, other: "Agreement") -> str | None:
        """Return the name of a parameter that all links of a session share and that differs; None:
        both may be links of one session."""
        for name in SHARED_BY_LINKS:
            if getattr(self, name) != getattr(other, name):
                return name
        return None


def clamp_lease(lease_ms: int) -> float:
    """Return a peer's lease in seconds, limited to MIN_LEASE and MAX_LEASE."""
    return min(max(lease_ms / 1000, MIN_LEASE), MAX_LEASE)
