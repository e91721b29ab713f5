"""Random messages: one hypothesis strategy for each, every flag and every extension."""

from typing import Any

from hypothesis import strategies as st

from zenlake.wire import declare as d
from zenlake.wire.batch import TransportMessage
from zenlake.wire.close import Close
from zenlake.wire.cursor import encode
from zenlake.wire.delete import Del
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.enums import (
    Consolidation,
    InterestMode,
    InterestOptions,
    Mapping,
    WirePriority,
    WireQueryTarget,
    WireWhatAmI,
)
from zenlake.wire.err import Err
from zenlake.wire.extensions import QueryableInfo, Unknown
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.hello import WireHello
from zenlake.wire.init import Init
from zenlake.wire.interest import Interest
from zenlake.wire.join import Join
from zenlake.wire.keepalive import KeepAlive
from zenlake.wire.linkstate import LinkState
from zenlake.wire.locator import Locator
from zenlake.wire.network import NetworkMessage
from zenlake.wire.oam import NetworkOam, TransportOam
from zenlake.wire.open import Open
from zenlake.wire.push import Push
from zenlake.wire.put import Put, Slice, write_slices
from zenlake.wire.qos import QoS
from zenlake.wire.query import WireQuery
from zenlake.wire.querybody import QueryBody
from zenlake.wire.reply import WireReply
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.scout import WireScout
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.tsstack import WireTimestampStack
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId


def zints(bits: int) -> st.SearchStrategy[int]:
    """Integers whose length on the wire varies, not only their value."""
    return st.integers(0, bits).flatmap(lambda n: st.integers(0, (1 << n) - 1))


u8, u16, u32, u64 = zints(8), zints(16), zints(32), zints(64)
some_bytes = st.binary(max_size=40)
some_text = st.text(max_size=20)

zids = st.builds(WireZenohId, st.binary(min_size=1, max_size=16).filter(any))
timestamps = st.builds(WireTimestamp, u64, zids)
encodings = st.builds(WireEncoding, u16, st.none() | st.binary(max_size=255))
qos = st.builds(QoS.from_byte, st.integers(0, 0x3F))
keys = st.builds(WireExpr, u16, some_text, st.sampled_from(Mapping))
plain_keys = st.builds(WireExpr, u16, some_text)
entities = st.builds(WireEntityId, zids, u32)
sources = st.builds(WireSourceInfo, entities, u32)
query_bodies = st.builds(QueryBody, some_bytes, encodings)
ts_stacks = st.builds(
    WireTimestampStack,
    st.integers(1, 255),
    st.lists(st.tuples(st.integers(0, 255), some_bytes), max_size=3).map(tuple),
)
locators = st.builds(
    "{}/{}{}".format,
    st.sampled_from(["tcp", "udp", "unixsock-stream"]),
    st.from_regex(r"[a-z0-9.:\[\]]{1,20}", fullmatch=True),
    st.sampled_from(["", "?rel=1", "?prio=1-3;rel=0"]),
).map(Locator)
roles = st.sampled_from([WireWhatAmI.ROUTER, WireWhatAmI.PEER, WireWhatAmI.CLIENT])
priorities = st.sampled_from(WirePriority)

# Ids that no table uses, or known ids in another encoding, never mandatory.
unknown_extensions = st.lists(
    st.one_of(
        st.builds(Unknown, st.sampled_from([0x09, 0x0E]), st.none()),
        st.builds(Unknown, st.sampled_from([0x2A, 0x2D]), u64),
        st.builds(Unknown, st.sampled_from([0x4B, 0x4C]), some_bytes),
    ),
    max_size=2,
).map(tuple)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def message(kind: type[Any], *args: Any, **fields: Any) -> st.SearchStrategy[Any]:
    return st.builds(kind, *args, extensions=unknown_extensions, **fields)


puts = message(
    Put,
    some_bytes,
    timestamp=maybe(timestamps),
    encoding=st.just(WireEncoding()) | encodings,
    source_info=maybe(sources),
    attachment=maybe(some_bytes),
)
slices = st.lists(st.builds(Slice, st.integers(0, 1), some_bytes), max_size=3).map(tuple)
shm_puts = message(Put, slices, shm=st.just(True))
dels = message(
    Del, timestamp=maybe(timestamps), source_info=maybe(sources), attachment=maybe(some_bytes)
)
push_bodies = puts | dels
queries = message(
    WireQuery,
    st.sampled_from(Consolidation),
    some_text,
    source_info=maybe(sources),
    body=maybe(query_bodies),
    attachment=maybe(some_bytes),
)
shared_bodies = st.builds(
    QueryBody, slices.map(lambda given: encode(write_slices, given)), encodings
)
shm_queries = message(WireQuery, body=shared_bodies, shm=st.just(True))
replies = message(WireReply, push_bodies, st.sampled_from(Consolidation))
errs = message(Err, some_bytes, encodings, source_info=maybe(sources))
shm_errs = message(Err, some_bytes, shm=st.just(True))

pushes = message(
    Push,
    keys,
    push_bodies,
    qos=qos,
    timestamp=maybe(timestamps),
    node_id=u16,
    ts_stack=maybe(ts_stacks),
)
requests = message(
    Request,
    u32,
    keys,
    queries,
    qos=qos,
    timestamp=maybe(timestamps),
    target=st.sampled_from(WireQueryTarget),
    budget=maybe(st.integers(1, 2**32 - 1)),
    timeout_ms=maybe(u64),
    node_id=u16,
    ts_stack=maybe(ts_stacks),
)
responses = message(
    Response,
    u32,
    keys,
    replies | errs,
    qos=qos,
    timestamp=maybe(timestamps),
    responder=maybe(entities),
    ts_stack=maybe(ts_stacks),
)
response_finals = message(ResponseFinal, u32, qos=qos, timestamp=maybe(timestamps))
interests = st.one_of(
    message(
        Interest,
        u32,
        st.sampled_from([mode for mode in InterestMode if mode]),
        st.integers(0, 15).map(InterestOptions)
        | st.integers(0, 15).map(lambda bits: InterestOptions(bits | 0x80)),
        maybe(keys),
        qos=qos,
        timestamp=maybe(timestamps),
        node_id=u16,
    ),
    message(Interest, u32, qos=qos),
)
declarations = st.one_of(
    message(d.DeclareKeyExpr, u16, plain_keys),
    message(d.UndeclareKeyExpr, u16),
    message(d.DeclareSubscriber, u32, keys),
    message(d.UndeclareSubscriber, u32, maybe(keys)),
    message(d.DeclareQueryable, u32, keys, st.builds(QueryableInfo, st.booleans(), u16)),
    message(d.UndeclareQueryable, u32, maybe(keys)),
    message(d.DeclareToken, u32, keys),
    message(d.UndeclareToken, u32, maybe(keys)),
    message(d.DeclareFinal),
)
declares = message(
    d.Declare, declarations, maybe(u32), qos=qos, timestamp=maybe(timestamps), node_id=u16
)
oam_bodies = st.one_of(st.none(), u64, some_bytes)
network_oams = message(NetworkOam, u16, oam_bodies, qos, maybe(timestamps))
network_messages: st.SearchStrategy[NetworkMessage] = st.one_of(
    pushes, requests, responses, response_finals, interests, declares, network_oams
)
data_messages: st.SearchStrategy[NetworkMessage] = st.one_of(pushes, requests, responses)

transport_oams = message(TransportOam, u16, oam_bodies, priorities)
inits = message(
    Init,
    zids,
    roles,
    u8,
    st.integers(0, 15),
    u16,
    maybe(some_bytes),
    qos=st.booleans(),
    qos_link=maybe(u64),
    shm=maybe(some_bytes),
    auth=maybe(some_bytes),
    multilink=maybe(some_bytes),
    low_latency=st.booleans(),
    compression=st.booleans(),
    patch=u64,
    region_name=maybe(st.text(min_size=1, max_size=8)),
)
leases = u64 | zints(50).map(lambda seconds: seconds * 1000)
opens = message(
    Open,
    leases,
    u32,
    maybe(some_bytes),
    qos=st.booleans(),
    shm=maybe(u64),
    shm_counters=maybe(some_bytes),
    auth=maybe(some_bytes),
    multilink=maybe(some_bytes),
    multilink_ack=st.booleans(),
    low_latency=st.booleans(),
    compression=st.booleans(),
    remote_bound=maybe(u64),
)
closes = message(Close, u8, st.booleans())
keepalives = message(KeepAlive)
frames = message(Frame, u32, st.booleans(), priorities, st.lists(network_messages, max_size=4))
fragments = message(
    Fragment,
    u32,
    some_bytes,
    st.booleans(),
    st.booleans(),
    priorities,
    first=st.booleans(),
    drop=st.booleans(),
)
joins = message(
    Join,
    zids,
    roles,
    leases,
    u32,
    u32,
    u8,
    st.integers(0, 15),
    u16,
    lane_sns=maybe(st.lists(st.tuples(u32, u32), min_size=8, max_size=8).map(tuple)),
    shm=maybe(some_bytes),
    patch=u64,
)
# A FRAGMENT takes the rest of its batch, so it can only come last.
unfragmented: st.SearchStrategy[TransportMessage] = st.one_of(
    transport_oams, inits, opens, closes, keepalives, frames, joins
)
batches = st.builds(
    lambda before, last: [*before, *last],
    st.lists(unfragmented, max_size=3),
    st.lists(fragments, max_size=1),
)

scouts = message(WireScout, st.integers(0, 7).map(WireWhatAmI), maybe(zids), u8)
hellos = message(WireHello, zids, roles, st.lists(locators, max_size=3).map(tuple), u8)

link_states = st.integers(0, 3).flatmap(
    lambda links: st.builds(
        LinkState,
        u64,
        u64,
        maybe(zids),
        maybe(roles),
        maybe(st.lists(locators, max_size=2).map(tuple)),
        st.lists(u64, min_size=links, max_size=links).map(tuple),
        maybe(st.lists(u16, min_size=links, max_size=links).map(tuple)),
        st.booleans(),
    )
)
