"""Link states: a node's view of the network around it; the body of network OAM id 1.

Knows the list's bytes. Does not build the graph or the trees.
"""

from dataclasses import dataclass

from zenlake.errors import DecodeError, EncodeError, Reason
from zenlake.wire.cursor import U16, ByteReader, ByteWriter
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.locator import Locator, read_locators, write_locators
from zenlake.wire.zenohid import WireZenohId, read_zid, write_zid

HAS_ZID, HAS_WHATAMI, HAS_LOCATORS, HAS_WEIGHTS, IS_GATEWAY = 0x01, 0x02, 0x04, 0x08, 0x10


@dataclass(slots=True)
class LinkState:
    """
    % options : z64 %   which of the fields below are there; 0x10: the node is a gateway
    %  psid : z64   %   the sender's own number for the node
    %   sn : z64    %   grows with every change
    ~    zid <z>    ~   if 0x01
    |    whatami    |   if 0x02: 1 router, 2 peer, 4 client; absent = router
    ~   locators    ~   if 0x04
    % links : z     %   a count, then that many psids (z64)
    %    weights    %   if 0x08: one z16 for each link, 0 = none set
    """

    psid: int
    sn: int
    zid: WireZenohId | None = None
    whatami: WireWhatAmI | None = None
    locators: tuple[Locator, ...] | None = None
    links: tuple[int, ...] = ()
    weights: tuple[int, ...] | None = None
    gateway: bool = False


def read_link_states(data: bytes) -> list[LinkState]:
    """Read the whole body of a link-state OAM."""
    r = ByteReader(data)
    states = [_read_link_state(r) for _ in range(r.count("link states"))]
    r.finish("link states")
    return states


def _read_link_state(r: ByteReader) -> LinkState:
    options = r.zint("options")
    state = LinkState(r.zint("psid"), r.zint("link state sn"), gateway=bool(options & IS_GATEWAY))
    if options & HAS_ZID:
        state.zid = read_zid(r, "zid")
    if options & HAS_WHATAMI:
        start = r.pos
        role = r.u8("whatami")
        if role not in (WireWhatAmI.ROUTER, WireWhatAmI.PEER, WireWhatAmI.CLIENT):
            raise DecodeError(Reason.BAD_VALUE, "whatami", start)
        state.whatami = WireWhatAmI(role)
    if options & HAS_LOCATORS:
        state.locators = read_locators(r, "locators")
    count = r.count("links")
    state.links = tuple(r.zint("links") for _ in range(count))
    if options & HAS_WEIGHTS:
        state.weights = tuple(r.zint("weights", U16) for _ in range(count))
    return state


def write_link_states(states: list[LinkState]) -> bytes:
    w = ByteWriter()
    w.zint("link states", len(states))
    for state in states:
        _write_link_state(w, state)
    return bytes(w.out)


def _write_link_state(w: ByteWriter, state: LinkState) -> None:
    if state.weights is not None and len(state.weights) != len(state.links):
        raise EncodeError(f"are {len(state.weights)} for {len(state.links)} links", "weights")
    w.zint(
        "options",
        (HAS_ZID if state.zid is not None else 0)
        | (HAS_WHATAMI if state.whatami is not None else 0)
        | (HAS_LOCATORS if state.locators is not None else 0)
        | (HAS_WEIGHTS if state.weights is not None else 0)
        | (IS_GATEWAY if state.gateway else 0),
    )
    w.zint("psid", state.psid)
    w.zint("link state sn", state.sn)
    if state.zid is not None:
        write_zid(w, "zid", state.zid)
    if state.whatami is not None:
        w.u8("whatami", state.whatami)
    if state.locators is not None:
        write_locators(w, "locators", state.locators)
    w.zint("links", len(state.links))
    for link in state.links:
        w.zint("links", link)
    for weight in state.weights or ():
        w.zint("weights", weight, U16)
