"""The recorded conversations, one function each; its docstring is the vector's first comment.

Knows zenoh's Python API; knows nothing of sockets and files. Add one by writing a function
under `@scenario`.
"""

# mypy: allow-untyped-calls
# zenoh's stubs leave close() and undeclare() without a return type.

import itertools
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import zenoh
import zenoh.ext

from tests.golden.nodes import (
    A_ID,
    B_ID,
    BY_HAND,
    COMPRESSION,
    LOW_LATENCY,
    QOS_OFF,
    Settings,
    Stage,
    config,
)
from tests.golden.proxy import LOOPBACK, free_port, group_sender
from tests.support.waiting import until

Scenario = Callable[[Stage], None]
SCENARIOS: dict[str, Scenario] = {}

ENCODINGS = [
    getattr(zenoh.Encoding, name) for name in sorted(vars(zenoh.Encoding)) if name[0].isupper()
]
PRIORITIES = [
    zenoh.Priority.REAL_TIME,
    zenoh.Priority.INTERACTIVE_HIGH,
    zenoh.Priority.INTERACTIVE_LOW,
    zenoh.Priority.DATA_HIGH,
    zenoh.Priority.DATA,
    zenoh.Priority.DATA_LOW,
    zenoh.Priority.BACKGROUND,
]
CONGESTION = [
    zenoh.CongestionControl.DROP,
    zenoh.CongestionControl.BLOCK,
    zenoh.CongestionControl.BLOCK_FIRST,
]
RELIABILITY = [zenoh.Reliability.BEST_EFFORT, zenoh.Reliability.RELIABLE]
STAMP = zenoh.Timestamp(zenoh.NTP64(1_700_000_000, 500_000_000), bytes.fromhex("c1c2c3"))
SEED = 1042
QUERY_TIMEOUT = 2.0
GAP = 0.012
"""Seconds of silence between messages that shall travel in batches of their own."""


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def answer(query: zenoh.Query) -> None:
    """A queryable that answers as the parameter `r` of the query asks."""
    with query:
        kind = query.parameters.get("r", "put")
        key = query.key_expr
        if kind == "put":
            query.reply(key, "value")
        elif kind == "delete":
            query.reply_del(key)
        elif kind == "error":
            query.reply_err("no such thing", encoding=zenoh.Encoding.TEXT_PLAIN)
        elif kind == "error-plain":
            query.reply_err(b"\x00\x01")
        elif kind == "several":
            for index in range(4):
                query.reply(str(key).replace("*", str(index)), f"value {index}")
        elif kind == "full":
            query.reply(
                key,
                '{"a": 1}',
                encoding=zenoh.Encoding.APPLICATION_JSON.with_schema("s1"),
                attachment="note",
                timestamp=STAMP,
                express=True,
            )
        elif kind == "full-delete":
            query.reply_del(key, attachment="note", timestamp=STAMP)
        elif kind == "empty":
            query.reply(key, b"")


def ask(session: zenoh.Session, selector: str, **options: Any) -> list[zenoh.Reply]:
    return list(session.get(selector, timeout=QUERY_TIMEOUT, **options))


def talk(stage: Stage, a: zenoh.Session, b: zenoh.Session) -> None:
    """Some of everything, both ways: samples, a publisher, queries, a querier, liveliness."""
    for me, other, name in ((a, b, "a"), (b, a, "b")):
        sub = other.declare_subscriber(f"demo/{name}/**")
        stage.settle()
        me.put(f"demo/{name}/x", "hello")
        me.delete(f"demo/{name}/x")
        pub = me.declare_publisher(f"demo/{name}/pub", encoding=zenoh.Encoding.TEXT_PLAIN)
        stage.settle()
        pub.put("from a publisher")
        stage.settle()
        queryable = other.declare_queryable(f"demo/{name}/q", answer, complete=True)
        stage.settle()
        ask(me, f"demo/{name}/q")
        querier = me.declare_querier(f"demo/{name}/q", timeout=QUERY_TIMEOUT)
        stage.settle()
        list(querier.get(parameters="r=several"))
        token = other.liveliness().declare_token(f"demo/{name}/token")
        stage.settle()
        list(me.liveliness().get(f"demo/{name}/**", timeout=QUERY_TIMEOUT))
        watcher = me.liveliness().declare_subscriber(f"demo/{name}/**", history=True)
        stage.settle()
        for thing in (token, watcher, querier, queryable, pub, sub):
            thing.undeclare()
            stage.settle()


@scenario
def encodings(stage: Stage) -> None:
    """Every predefined encoding, without and with a schema, and encodings of other names."""
    a, b = stage.pair()
    sub = b.declare_subscriber("demo/**")
    for encoding in ENCODINGS:
        a.put("demo/e", "v", encoding=encoding)
    stage.settle(GAP)
    for encoding in ENCODINGS:
        a.put("demo/e", "v", encoding=encoding.with_schema("s"))
    stage.settle(GAP)
    for text in ("foo/bar", "zenoh/bytes;x", "text/plain;utf-8;more", "é/ü", "x" * 255, ";only"):
        a.put("demo/e", "v", encoding=text)
    stage.settle()
    sub.undeclare()
    a.close()


@scenario
def qos_priorities(stage: Stage) -> None:
    """Puts of every priority, congestion control and express flag, each in its own batch."""
    a, _ = stage.pair()
    for priority, control, express in itertools.product(PRIORITIES, CONGESTION, (False, True)):
        a.put("k", "v", priority=priority, congestion_control=control, express=express)
        stage.settle(GAP)
    for priority, control in itertools.product(PRIORITIES, CONGESTION):
        a.delete("k", priority=priority, congestion_control=control)
    stage.settle()
    a.close()


@scenario
def qos_reliability(stage: Stage) -> None:
    """Publishers, best effort and reliable, of every priority, congestion control and express."""
    a, b = stage.pair()
    sub = b.declare_subscriber("k/**")
    for index, (reliability, priority) in enumerate(itertools.product(RELIABILITY, PRIORITIES)):
        pub = a.declare_publisher(
            f"k/{index % 3}",
            reliability=reliability,
            priority=priority,
            congestion_control=CONGESTION[index % 3],
            express=index % 2 == 0,
        )
        stage.settle(GAP)
        pub.put("v")
        pub.put("w")
        stage.settle(GAP)
        pub.delete()
        pub.undeclare()
        stage.settle(GAP)
    sub.undeclare()
    stage.settle()


@scenario
def qos_mixed_burst(stage: Stage) -> None:
    """Messages of all priorities at once, so that one batch may hold several frames."""
    a, b = stage.pair()
    pubs = [
        a.declare_publisher(f"k/{index}", priority=priority, reliability=reliability)
        for index, priority in enumerate(PRIORITIES)
        for reliability in RELIABILITY
    ]
    sub = b.declare_subscriber("k/**")
    stage.settle()
    for index in range(6):
        for pub in pubs:
            pub.put(bytes([index]))
    stage.settle()
    sub.undeclare()


@scenario
def sample_fields(stage: Stage) -> None:
    """Attachments, timestamps, source infos, deletes with each, and all of them together."""
    a, b = stage.pair()
    sub = b.declare_subscriber("demo/**")
    pub = a.declare_publisher("demo/p")
    stage.settle()
    info = zenoh.SourceInfo(pub.id, 300)
    fields: Settings = {"attachment": "note", "timestamp": STAMP, "source_info": info}
    for size in range(len(fields) + 1):
        for names in itertools.combinations(fields, size):
            chosen = {name: fields[name] for name in names}
            a.put("demo/x", "v", **chosen)  # type: ignore[arg-type]
            a.put("demo/x", "v", encoding="text/plain;utf-8", **chosen)  # type: ignore[arg-type]
            a.delete("demo/x", **chosen)  # type: ignore[arg-type]
            pub.put("v", **chosen)  # type: ignore[arg-type]
            pub.delete(**chosen)  # type: ignore[arg-type]
            stage.settle(GAP)
    a.put("demo/x", "v", timestamp=a.new_timestamp())
    a.put("demo/x", b"", attachment=b"")
    a.put("demo/x", b"", attachment=bytes(200))
    a.put("demo/x", "v", timestamp=zenoh.Timestamp(zenoh.NTP64(0, 0), bytes([1])))
    a.put(
        "demo/x", "v", timestamp=zenoh.Timestamp(zenoh.NTP64(2**32 - 1, 999_999_999), b"\xff" * 16)
    )
    a.put("demo/x", "v", source_info=zenoh.SourceInfo(pub.id, 2**32 - 1))
    stage.settle()
    sub.undeclare()


@scenario
def payload_sizes(stage: Stage) -> None:
    """Payloads of 0 to 300 bytes, and some about each length at which a varint grows."""
    a, _ = stage.pair()
    for size in [*range(18), 31, 63, 64, 126, 127, 128, 129, 200, 254, 255, 256, 257, 300]:
        a.put("demo/size", bytes(index % 251 for index in range(size)))
        stage.settle(GAP)
    a.put("demo/size", bytes(16384))
    stage.settle(GAP)
    a.close()


@scenario
def keys(stage: Stage) -> None:
    """Keys in full, long, in other scripts, wild, and by ids of the sender and of the receiver."""
    a, b = stage.pair()
    for key in (
        "k",
        "ключ/é/日本語/🦀",
        "a b/c",
        "@v/x",
        "w/*",
        "w/**",
        "w/a$*b/*",
        "k/" + "y" * 125,
    ):
        a.put(key, "v")
    stage.settle(GAP)
    a.put("long/" + "z" * 300 + "/" + "é" * 40, "v")
    stage.settle(GAP)
    declared = a.declare_keyexpr("decl/a")
    a.put(declared, "by id")
    a.put(declared.join("more"), "by id and suffix")
    a.delete(declared)
    stage.settle()
    subs = [a.declare_subscriber(key) for key in ("sub/a/**", "sub/b", "日本/**", "*/only/wild")]
    stage.settle()
    for key in ("sub/a/x", "sub/a/y/z", "sub/a", "sub/b", "日本/東京", "x/only/wild"):
        b.put(key, "to a subscription")
        stage.settle(GAP)
    pubs = [b.declare_publisher(key) for key in ("sub/a/p", "sub/b")]
    for pub in pubs:
        pub.put("from a publisher to a subscription")
    stage.settle()
    a.undeclare(declared)
    for sub in subs:
        sub.undeclare()
    stage.settle()


@scenario
def key_ids_many(stage: Stage) -> None:
    """More than 127 declared keys and subscribers, so that their ids take two bytes."""
    a, b = stage.pair()
    subs = [a.declare_subscriber(f"s/{index}/**") for index in range(140)]
    stage.settle()
    b.put("s/139/x", "v")
    b.put("s/0/x", "v")
    stage.settle()
    for sub in subs[::20]:
        sub.undeclare()
    stage.settle()
    a.close()


@scenario
def queries(stage: Stage) -> None:
    """Queries of every target and consolidation, with parameters, bodies and attachments."""
    a, b = stage.pair()
    queryable = b.declare_queryable("demo/q", answer, complete=True)
    other = b.declare_queryable("demo/other/**", answer)
    stage.settle()
    targets = (
        zenoh.QueryTarget.BEST_MATCHING,
        zenoh.QueryTarget.ALL,
        zenoh.QueryTarget.ALL_COMPLETE,
    )
    modes = (
        zenoh.ConsolidationMode.AUTO,
        zenoh.ConsolidationMode.NONE,
        zenoh.ConsolidationMode.MONOTONIC,
        zenoh.ConsolidationMode.LATEST,
    )
    for target, mode in itertools.product(targets, modes):
        ask(a, "demo/q", target=target, consolidation=mode)
    ask(a, "demo/q?a=1;b=2|3;flag;é=ü")
    ask(a, "demo/q?_time=[now(-1h)..]")
    ask(a, "demo/other/*", accept_replies=zenoh.ReplyKeyExpr.ANY)
    ask(a, "demo/q", payload="body")
    ask(a, "demo/q", payload=b"", encoding=zenoh.Encoding.TEXT_PLAIN)
    ask(a, "demo/q", payload="{}", encoding=zenoh.Encoding.APPLICATION_JSON.with_schema("s1"))
    ask(a, "demo/q", attachment="note")
    ask(a, "demo/q?p=1", payload="body", encoding="own/encoding", attachment="note")
    pub = a.declare_publisher("demo/p")
    ask(a, "demo/q", source_info=zenoh.SourceInfo(pub.id, 7))
    ask(a, "demo/q?" + "p" * 200, payload=bytes(200), source_info=zenoh.SourceInfo(pub.id, 8))
    for index, priority in enumerate(PRIORITIES):
        ask(a, "demo/q", priority=priority, express=index % 2 == 0)
    for control in CONGESTION:
        ask(a, "demo/q", congestion_control=control)
    for timeout in (0.001, 0.2, 30.0):
        list(a.get("demo/q", timeout=timeout))
    list(a.get("demo/q"))
    stage.settle()
    queryable.undeclare()
    other.undeclare()


@scenario
def replies(stage: Stage) -> None:
    """Replies of every kind from either side: put, delete, error, several, none, all fields."""
    a, b = stage.pair()
    kinds = ("put", "delete", "error", "error-plain", "several", "full", "full-delete", "empty")
    for me, other, complete in ((a, b, False), (b, a, True)):
        queryable = other.declare_queryable("demo/**", answer, complete=complete)
        stage.settle()
        for kind in (*kinds, "none"):
            everything = zenoh.ConsolidationMode.NONE
            ask(me, f"demo/q/*?r={kind}", consolidation=everything)
        ask(me, "demo/q/1?r=full", target=zenoh.QueryTarget.ALL)
        queryable.undeclare()
        stage.settle()
    ask(a, "demo/nobody")
    held: list[zenoh.Query] = []
    silent = b.declare_queryable(
        "demo/silent", zenoh.handlers.Callback(held.append, indirect=False)
    )
    stage.settle()
    list(a.get("demo/silent", timeout=0.2))
    stage.settle(0.4)  # the router gives up too, with an error reply of its own
    for query in held:
        query.drop()
    stage.settle()
    silent.undeclare()


@scenario
def queriers(stage: Stage) -> None:
    """Queriers of each target, queryables complete and not, matching before and after."""
    a, b = stage.pair()
    targets = (
        zenoh.QueryTarget.BEST_MATCHING,
        zenoh.QueryTarget.ALL,
        zenoh.QueryTarget.ALL_COMPLETE,
    )
    everyone = [
        a.declare_querier(f"demo/q{index}/**", target=target, timeout=QUERY_TIMEOUT)
        for index, target in enumerate(targets)
    ]
    stage.settle()
    for complete in (False, True):
        queryable = b.declare_queryable("demo/**", answer, complete=complete)
        stage.settle()
        for querier in everyone:
            list(querier.get(parameters="r=put", payload="body", attachment="note"))
        queryable.undeclare()
        stage.settle()
    for querier in everyone:
        list(querier.get())
        querier.undeclare()
    stage.settle()


@scenario
def liveliness(stage: Stage) -> None:
    """Tokens, subscribers with and without history, gets, and tokens lost with their link."""
    a, b = stage.pair()
    mine = a.liveliness().declare_token("live/a")
    early = b.liveliness().declare_token("live/b/1")
    stage.settle()
    old = a.liveliness().declare_subscriber("live/**", history=True)
    stage.settle()
    new = a.liveliness().declare_subscriber("live/b/*", history=False)
    stage.settle()
    late = b.liveliness().declare_token("live/b/2")
    stage.settle()
    list(a.liveliness().get("live/**", timeout=QUERY_TIMEOUT))
    list(a.liveliness().get("live/b/1", timeout=QUERY_TIMEOUT))
    list(a.liveliness().get("live/nobody", timeout=QUERY_TIMEOUT))
    list(b.liveliness().get("live/**", timeout=QUERY_TIMEOUT))
    watcher = b.liveliness().declare_subscriber("live/**", history=True)
    stage.settle()
    for thing in (early, new, late, mine, old, watcher):
        thing.undeclare()
        stage.settle()
    last = a.liveliness().declare_token("live/last")
    stage.settle()
    a.close()
    del last


@scenario
def interests(stage: Stage) -> None:
    """Interests of publishers, queriers and liveliness, answered now and later, undeclared."""
    a, b = stage.pair()
    first = b.declare_subscriber("i/sub/**")
    second = b.declare_queryable("i/qbl/**", answer, complete=True)
    third = b.liveliness().declare_token("i/token/1")
    stage.settle()
    pub = a.declare_publisher("i/sub/x")
    wild = a.declare_publisher("i/*/y")
    querier = a.declare_querier("i/qbl/x")
    watcher = a.liveliness().declare_subscriber("i/token/**", history=True)
    lonely = a.declare_publisher("alone")
    stage.settle()
    exact = b.declare_subscriber("i/sub/x")
    late = b.declare_subscriber("alone")
    more = b.declare_queryable("i/qbl/x", answer)
    token = b.liveliness().declare_token("i/token/2")
    stage.settle()
    for thing in (exact, late, more, token, first, second, third):
        thing.undeclare()
        stage.settle()
    for mine in (pub, wild, querier, watcher, lonely):
        mine.undeclare()
        stage.settle()
    a.close()


@scenario
def client_router(stage: Stage) -> None:
    """A client and a router with default settings: samples, queries and liveliness both ways."""
    a, b = stage.pair()
    talk(stage, a, b)
    a.close()


@scenario
def client_peer(stage: Stage) -> None:
    """A client of a peer with default settings: samples, queries and liveliness both ways."""
    a, b = stage.pair("client", "peer")
    talk(stage, a, b)
    b.close()
    stage.settle()


@scenario
def peer_router(stage: Stage) -> None:
    """A peer and a router with default settings: samples, queries and liveliness both ways."""
    a, b = stage.pair("peer", "router")
    talk(stage, a, b)
    a.close()


@scenario
def peer_peer(stage: Stage) -> None:
    """Two peers with default settings: samples, queries and liveliness both ways."""
    a, b = stage.pair("peer", "peer")
    talk(stage, a, b)
    a.close()


@scenario
def peer_peer_declared(stage: Stage) -> None:
    """A peer that meets a peer which has subscribers, queryables and tokens already."""
    b, port = stage.listen("peer")
    kept = [
        b.declare_subscriber("demo/s/**"),
        b.declare_queryable("demo/q", answer, complete=True),
        b.liveliness().declare_token("demo/t"),
    ]
    proxy = stage.tap(port)
    a = stage.dial(proxy.port, "peer")
    stage.settle(0.2)
    a.put("demo/s/x", "v")
    ask(a, "demo/q")
    stage.settle()
    a.close()
    del kept


@scenario
def peer_gossip(stage: Stage) -> None:
    """Three peers: A dials B, then C dials B, and gossip tells A of C and C of A."""
    stage.who.append("C is a peer with id c1 that dials B on a link that is not recorded")
    _, port = stage.listen("peer")
    proxy = stage.tap(port)
    a = stage.dial(proxy.port, "peer")
    stage.settle(0.2)
    c = stage.dial(port, "peer", "c1")
    stage.settle(0.3)
    sub = c.declare_subscriber("demo/**")
    stage.settle(0.2)
    a.put("demo/x", "v")
    sub.undeclare()
    stage.settle()
    c.close()
    stage.settle(0.3)


@scenario
def router_dials_peer(stage: Stage) -> None:
    """A router that dials a peer which has declared one of everything already."""
    stage.who.append(f"A is a router with id {A_ID}, B is a peer with id {B_ID}")
    b, port = stage.listen("peer")
    kept = one_of_each(b)
    proxy = stage.tap(port)
    a = stage.dial(proxy.port, "router")
    stage.settle(0.3)
    a.close()
    stage.settle()
    del kept


@scenario
def client_replays(stage: Stage) -> None:
    """A client that has lost its first router declares one of everything again to the next."""
    stage.who.append(f"A is a client with id {A_ID}, B is the second router, with id {B_ID}")
    first, first_port = stage.listen("router", "b0")
    _, second_port = stage.listen("router")
    proxy = stage.tap(second_port)
    ports = (first_port, proxy.port)
    a = stage.node(
        "client",
        A_ID,
        {
            "connect/endpoints": [f"tcp/{LOOPBACK}:{port}" for port in ports],
            "connect/retry": {"period_init_ms": 100, "period_max_ms": 100},
        },
    )
    kept = one_of_each(a)
    time.sleep(0.2)
    first.close()
    stage.tape.wait(lambda batches: len(batches) > 4)
    stage.settle(0.3)
    a.close()
    stage.settle()
    del kept


def one_of_each(session: zenoh.Session) -> list[object]:
    """Every kind of thing that a session declares; they live as long as the list."""
    return [
        session.declare_subscriber("r/s/**"),
        session.declare_queryable("r/q", answer),
        session.declare_publisher("r/p"),
        session.declare_querier("r/qr"),
        session.liveliness().declare_token("r/t"),
        session.liveliness().declare_subscriber("r/**", history=True),
    ]


@scenario
def router_router(stage: Stage) -> None:
    """Two routers with a client behind each: declarations, samples and queries travel both ways."""
    b, b_port = stage.listen("router")
    proxy = stage.tap(b_port)
    a_port = free_port()
    settings: Settings = {"listen/endpoints": [f"tcp/{LOOPBACK}:{a_port}"]}
    stage.who.append(f"A is a router with id {A_ID}, B is a router with id {B_ID}")
    stage.who.append("behind A is a client with id ca, behind B a client with id cb")
    a = stage.dial(proxy.port, "router", A_ID, settings)
    stage.settle(0.3)
    left = stage.dial(a_port, "client", "ca")
    right = stage.dial(b_port, "client", "cb")
    stage.settle(0.2)
    talk(stage, left, right)
    talk(stage, a, b)
    left.close()
    stage.settle(0.2)
    a.close()
    stage.settle()


@scenario
def router_line(stage: Stage) -> None:
    """Three routers in a line: what the third declares and sends carries its node id on A to B."""
    stage.who.append(f"A is a router with id {A_ID}, B is a router with id {B_ID}")
    stage.who.append("C is a router with id c1c2 behind B; clients ca behind A and cc behind C")
    _, b_port = stage.listen("router")
    proxy = stage.tap(b_port)
    a_port, c_port = free_port(), free_port()
    stage.dial(proxy.port, "router", A_ID, {"listen/endpoints": [f"tcp/{LOOPBACK}:{a_port}"]})
    c = stage.dial(b_port, "router", "c1c2", {"listen/endpoints": [f"tcp/{LOOPBACK}:{c_port}"]})
    stage.settle(0.4)
    left = stage.dial(a_port, "client", "ca")
    right = stage.dial(c_port, "client", "cc")
    stage.settle(0.2)
    talk(stage, left, right)
    right.close()
    stage.settle(0.2)
    c.close()
    stage.settle(0.4)


@scenario
def router_weights(stage: Stage) -> None:
    """Two routers that give weights to their links, so that link states carry them."""
    weights: Settings = {"routing/router/linkstate/transport_weights": []}
    a_weights = [{"dst_zid": B_ID, "weight": 300}]
    b_weights = [{"dst_zid": A_ID, "weight": 7}]
    key = next(iter(weights))
    a, _ = stage.pair("router", "router", a_settings={key: a_weights}, b_settings={key: b_weights})
    stage.settle(0.4)
    a.close()
    stage.settle()


SMALL_BATCH: Settings = {"transport/link/tx/batch_size": 512}
NOISE = random.Random(SEED).randbytes(3000)
LARGE = bytes(70_000)
TEXT = b"all work and no play makes jack a dull boy. " * 60


def fragmented(stage: Stage, a: zenoh.Session, b: zenoh.Session) -> None:
    """Messages of several batches both ways, of both reliabilities, and a large query."""
    blocking = zenoh.CongestionControl.BLOCK
    sub = b.declare_subscriber("f/**")
    back = a.declare_subscriber("g/**")
    stage.settle()
    for index, reliability in enumerate(RELIABILITY):
        pub = a.declare_publisher(
            f"f/{index}", reliability=reliability, congestion_control=blocking
        )
        stage.settle()
        pub.put(NOISE[:1200])
        stage.settle(GAP)
        pub.put("small", attachment="note")
        pub.put(TEXT[:1500], encoding=zenoh.Encoding.TEXT_PLAIN, attachment=NOISE[:600])
        stage.settle(GAP)
        pub.undeclare()
        stage.settle()
    for priority in (zenoh.Priority.REAL_TIME, zenoh.Priority.BACKGROUND):
        b.put("g/x", NOISE[:1100], priority=priority, congestion_control=blocking)
        stage.settle(GAP)
    for size in range(440, 530, 10):
        a.put("f/edge", NOISE[:size], congestion_control=blocking)
        stage.settle(GAP)
    queryable = b.declare_queryable(
        "f/q", lambda query: query.reply("f/q", TEXT[:1200], attachment="note")
    )
    stage.settle()
    ask(a, "f/q", payload=NOISE[:900])
    queryable.undeclare()
    sub.undeclare()
    back.undeclare()
    stage.settle()


@scenario
def fragments(stage: Stage) -> None:
    """Messages larger than a batch of 512 bytes, with QoS lanes, in both directions."""
    a, b = stage.pair(settings=SMALL_BATCH)
    fragmented(stage, a, b)
    a.close()


@scenario
def fragments_no_qos(stage: Stage) -> None:
    """Messages larger than a batch of 512 bytes, without QoS lanes, in both directions."""
    a, b = stage.pair(settings={**SMALL_BATCH, **QOS_OFF})
    fragmented(stage, a, b)
    a.close()


@scenario
def fragments_8bit(stage: Stage) -> None:
    """Batches of 128 bytes and 8-bit sequence numbers, which wrap within a message."""
    a, _ = stage.pair(
        settings={
            "transport/link/tx/batch_size": 128,
            "transport/link/tx/sequence_number_resolution": "8bit",
        }
    )
    for index in range(33):
        a.put("f", NOISE[: 400 + index], congestion_control=zenoh.CongestionControl.BLOCK)
        stage.settle(GAP)
    a.close()


@scenario
def fragments_dropped(stage: Stage) -> None:
    """A message given up halfway because the reader is slow: an empty batch takes its place."""
    stage.who.append(f"A is a client with id {A_ID}, B is a router with id {B_ID}")
    _, port = stage.listen(settings=SMALL_BATCH)
    proxy = stage.tap(port, buffer=2048)
    keys: Settings = {
        **SMALL_BATCH,
        "connect/endpoints": [f"tcp/{LOOPBACK}:{proxy.port}#so_sndbuf=2048"],
    }
    a = stage.node("client", A_ID, keys)
    stage.settle()
    proxy.pause()
    time.sleep(0.2)
    for _ in range(3):
        a.put("f", NOISE * 12, congestion_control=zenoh.CongestionControl.DROP)
    proxy.resume()
    stage.settle(0.2)
    a.put("f", "after", congestion_control=zenoh.CongestionControl.BLOCK)
    stage.settle()
    a.close()


@scenario
def compression(stage: Stage) -> None:
    """Compression on both sides: payloads that shrink, payloads that do not, and declarations."""
    stage.compression = True
    a, b = stage.pair(settings=COMPRESSION)
    talk(stage, a, b)
    for payload in (b"x", b"x" * 100, TEXT, NOISE[:50], NOISE, NOISE[:300] + bytes(2000), LARGE):
        a.put("c/x", payload, encoding=zenoh.Encoding.TEXT_PLAIN)
        stage.settle(GAP)
    a.close()


@scenario
def compression_fragments(stage: Stage) -> None:
    """Compressed batches of 512 bytes with fragments in them."""
    stage.compression = True
    a, b = stage.pair(settings={**COMPRESSION, **SMALL_BATCH})
    fragmented(stage, a, b)
    a.close()


@scenario
def compression_one_side(stage: Stage) -> None:
    """Only A offers compression, so nothing is compressed."""
    a, _ = stage.pair(a_settings=COMPRESSION)
    a.put("c/x", TEXT)
    stage.settle()
    a.close()


@scenario
def low_latency(stage: Stage) -> None:
    """Low latency on both sides: bare messages behind 4-byte lengths after the handshake."""
    a, b = stage.pair(settings={**LOW_LATENCY, "transport/link/tx/lease": 1000}, wide=True)
    talk(stage, a, b)
    a.put("l/x", NOISE)
    time.sleep(0.6)
    a.close()


@scenario
def low_latency_peers(stage: Stage) -> None:
    """Two peers with low latency: link states and declarations without frames."""
    a, b = stage.pair("peer", "peer", settings=LOW_LATENCY, wide=True)
    sub = b.declare_subscriber("demo/**")
    stage.settle()
    a.put("demo/x", "v", priority=zenoh.Priority.REAL_TIME, attachment="note")
    stage.settle()
    sub.undeclare()
    a.close()


@scenario
def qos_off(stage: Stage) -> None:
    """No QoS lanes: samples of all priorities share the frames."""
    a, b = stage.pair(settings=QOS_OFF)
    for priority in PRIORITIES:
        a.put("k", "v", priority=priority)
    talk(stage, a, b)
    a.close()


@scenario
def qos_off_one_side(stage: Stage) -> None:
    """A offers QoS lanes, B does not."""
    a, _ = stage.pair(b_settings=QOS_OFF)
    for priority in PRIORITIES:
        a.put("k", "v", priority=priority)
    stage.settle()
    a.close()


def counted(stage: Stage, resolution: str, count: int, a_id: str = A_ID) -> None:
    key = "transport/link/tx/sequence_number_resolution"
    a, _ = stage.pair(settings={key: resolution}, a_id=a_id)
    for index in range(count):
        a.put("k", index.to_bytes(2, "big"), express=True)
        if index % 8 == 7:
            stage.settle(GAP)
    stage.settle()
    a.close()


# A session's first sequence number is a hash of both ids. These ids of A were searched for: with
# B_ID they start 20 and 35 numbers before the wrap.
WRAPS_16BIT = "a1006246"
WRAPS_32BIT = "a1098580"


@scenario
def resolution_8bit(stage: Stage) -> None:
    """Sequence numbers of 8 bits, enough frames to wrap twice past 0x7f."""
    counted(stage, "8bit", 300)


@scenario
def resolution_16bit(stage: Stage) -> None:
    """Sequence numbers of 16 bits, which wrap past 0x3fff."""
    counted(stage, "16bit", 40, WRAPS_16BIT)


@scenario
def resolution_32bit(stage: Stage) -> None:
    """Sequence numbers of 32 bits, the default, which wrap past 0x0fffffff."""
    counted(stage, "32bit", 60, WRAPS_32BIT)


@scenario
def resolution_negotiated(stage: Stage) -> None:
    """A offers 32 bits and large batches, B answers 8 bits and batches of 1024 bytes."""
    a, _ = stage.pair(
        b_settings={
            "transport/link/tx/sequence_number_resolution": "8bit",
            "transport/link/tx/batch_size": 1024,
        }
    )
    a.put("k", NOISE[:1500])
    stage.settle()
    a.close()


USER = "transport/auth/usrpwd/user"
PASSWORD = "transport/auth/usrpwd/password"
DICTIONARY = "transport/auth/usrpwd/dictionary_file"


def authenticated(stage: Stage, a_settings: Settings) -> None:
    with tempfile.TemporaryDirectory() as folder:
        users = Path(folder) / "users"
        users.write_text("user:password\nother:secret\n", encoding="ascii")
        b_settings: Settings = {USER: "other", PASSWORD: "secret", DICTIONARY: str(users)}
        stage.who.append(f"A is a client with id {A_ID}, B is a router with id {B_ID}")
        stage.who.append("B knows user:password and other:secret")
        stage.who.extend(f"A {key} = {value}" for key, value in a_settings.items())
        _, port = stage.listen(settings=b_settings)
        proxy = stage.tap(port)
        try:
            a = stage.dial(proxy.port, settings={**a_settings, "connect/timeout_ms": 0})
        except zenoh.ZError:
            stage.who.append("A was refused")
            stage.settle(0.2)
            return
        a.put("k", "v")
        stage.settle()
        a.close()


@scenario
def auth_accepted(stage: Stage) -> None:
    """A user and password that B knows."""
    authenticated(stage, {USER: "user", PASSWORD: "password"})


@scenario
def auth_wrong_password(stage: Stage) -> None:
    """A user that B knows with another password: refused."""
    authenticated(stage, {USER: "user", PASSWORD: "passw0rd"})


@scenario
def auth_missing(stage: Stage) -> None:
    """No user and password where B asks for them: refused."""
    authenticated(stage, {})


@scenario
def auth_pubkey(stage: Stage) -> None:
    """Public keys of 1024 bits, made by openssl for the occasion."""
    with tempfile.TemporaryDirectory() as folder:
        settings: list[Settings] = []
        for name in "ab":
            private, public = Path(folder) / f"{name}.pem", Path(folder) / f"{name}.pub"
            commands = (
                ["openssl", "genrsa", "-traditional", "-out", str(private), "1024"],
                ["openssl", "rsa", "-in", str(private), "-RSAPublicKey_out", "-out", str(public)],
            )
            for command in commands:
                subprocess.run(command, check=True, capture_output=True, timeout=20)
            prefix = "transport/auth/pubkey"
            settings.append(
                {
                    f"{prefix}/public_key_file": str(public),
                    f"{prefix}/private_key_file": str(private),
                }
            )
        stage.who.append(f"A is a client with id {A_ID}, B is a router with id {B_ID}")
        _, port = stage.listen(settings=settings[1])
        proxy = stage.tap(port)
        try:
            a = stage.dial(proxy.port, settings={**settings[0], "connect/timeout_ms": 0})
        except zenoh.ZError:
            stage.who.append("A was refused: B has no way to be told A's key")
            stage.settle(0.2)
            return
        a.put("k", "v")
        stage.settle()
        a.close()


@scenario
def init_multilink(stage: Stage) -> None:
    """Both sides allow two links for a session, so INIT and OPEN carry the multi-link extension."""
    a, _ = stage.pair(settings={"transport/unicast/max_links": 2})
    a.put("k", "v")
    stage.settle()
    a.close()


@scenario
def init_region(stage: Stage) -> None:
    """Nodes with a region name."""
    a, _ = stage.pair(a_settings={"region_name": "left"}, b_settings={"region_name": "right"})
    a.put("k", "v")
    stage.settle()
    a.close()


@scenario
def init_gateway(stage: Stage) -> None:
    """A router whose gateway is set by hand, so that its OPEN says where it places the other."""
    south = [{"filters": [{"modes": ["router"]}]}]
    a, _ = stage.pair("router", "router", b_settings={"gateway": {"south": south}})
    a.put("k", "v")
    stage.settle(0.3)
    a.close()


@scenario
def init_qos_link(stage: Stage) -> None:
    """Endpoints that name the priorities and the reliability of the link."""
    stage.who.append(f"A is a client with id {A_ID}, B is a router with id {B_ID}")
    port = free_port()
    endpoint = f"tcp/{LOOPBACK}:{port}?prio=1-7;rel=1"
    stage.node("router", B_ID, {"listen/endpoints": [endpoint]})
    proxy = stage.tap(port)
    endpoint = f"tcp/{LOOPBACK}:{proxy.port}?prio=2-6;rel=1"
    a = stage.node("client", A_ID, {"connect/endpoints": [endpoint]})
    a.put("k", "v")
    stage.settle()
    a.close()


@scenario
def init_ids(stage: Stage) -> None:
    """Ids of one byte and of sixteen, a lease in milliseconds and small batches."""
    stage.who.append("A is a client with id a, lease 2500 ms; B is a router with an id of 16 bytes")
    _, port = stage.listen()
    proxy = stage.tap(port)
    settings: Settings = {"transport/link/tx/lease": 2500, "transport/link/tx/batch_size": 100}
    a = stage.dial(proxy.port, "client", "a", settings)
    a.put("k", "v")
    stage.settle()
    a.close()


def scouting(port: int, mode: str, zid: str, listen: list[str]) -> zenoh.Config:
    return config(
        mode,
        zid,
        {
            "scouting/multicast/enabled": True,
            "scouting/multicast/address": f"{GROUP}:{port}",
            "scouting/multicast/interface": "lo",
            "scouting/multicast/ttl": 0,
            "listen/endpoints": listen,
        },
    )


GROUP = "224.0.0.224"


@scenario
def scouting_multicast(stage: Stage) -> None:
    """SCOUT datagrams of nodes and of scout(), and the HELLO answers of nodes of every role."""
    port = free_port(socket.SOCK_DGRAM)
    stage.who = [
        f"scout: sent to {GROUP} on the loopback interface, by zenoh or by a plain socket",
        "hello: what came back to the plain socket",
    ]
    stage.group_tap(GROUP, port)
    nodes = (
        ("router", "b1", [f"tcp/{LOOPBACK}:0"]),
        ("router", B_ID, [f"tcp/{LOOPBACK}:0", f"udp/{LOOPBACK}:0"]),
        ("peer", A_ID, [f"tcp/{LOOPBACK}:0"]),
    )
    sessions = []
    for mode, zid, listen in nodes:
        sessions.append(zenoh.open(scouting(port, mode, zid, listen)))
        with group_sender() as asker:
            for what in (1, 2, 4, 7):
                asker.sendto(bytes([1, 9, what]), (GROUP, port))
            asker.sendto(bytes([1, 9, 0x3F, 1, 2, 3, 4]), (GROUP, port))
            hear(stage, asker)
        sessions.pop().close()
    for roles in ("router", "peer", "client", "router|peer", "router|peer|client"):
        scout = zenoh.scout(what=roles, config=scouting(port, "client", "c5", []))
        stage.settle(0.15)
        scout.stop()


def hear(stage: Stage, asker: socket.socket) -> None:
    """Note the answers that come to a socket until they end."""
    asker.settimeout(0.2)
    try:
        while True:
            stage.tape.add("hello", asker.recv(2048))
    except TimeoutError:
        return


TALK_GROUP = "224.0.0.225"


def joined(stage: Stage, settings: Settings, large: bytes) -> None:
    """Two peers in a group: JOINs, declarations, samples, a large one and CLOSE."""
    port = free_port(socket.SOCK_DGRAM)
    stage.who = [
        f"A and B are peers with ids {A_ID} and {B_ID} in {TALK_GROUP} on the loopback interface",
        *(f"set: {key} = {value}" for key, value in settings.items()),
    ]
    stage.group_tap(TALK_GROUP, port)
    endpoint = f"udp/{TALK_GROUP}:{port}#iface=lo;ttl=0"
    keys: Settings = {
        "listen/endpoints": [endpoint],
        "transport/multicast/join_interval": 300,
        **settings,
    }
    a = stage.node("peer", A_ID, keys)
    b = stage.node("peer", B_ID, keys)
    sub = b.declare_subscriber("m/**")
    queryable = b.declare_queryable("m/q", answer)
    token = b.liveliness().declare_token("m/t")
    time.sleep(0.7)
    for priority in PRIORITIES:
        a.put("m/x", "v", priority=priority, attachment="note")
        stage.settle(GAP)
    for reliability in RELIABILITY:
        pub = a.declare_publisher("m/p", reliability=reliability)
        pub.put(large)
        stage.settle(GAP)
        pub.undeclare()
    list(a.get("m/q", timeout=0.2))
    for thing in (token, queryable, sub):
        thing.undeclare()
        stage.settle(GAP)
    a.close()
    stage.settle(GAP)
    b.close()
    stage.settle()


@scenario
def multicast(stage: Stage) -> None:
    """The multicast transport: JOIN, declarations, samples and CLOSE."""
    joined(stage, {}, NOISE[:1500])


@scenario
def multicast_qos(stage: Stage) -> None:
    """The multicast transport with QoS lanes, whose JOIN lists a sequence number for each."""
    settings: Settings = {
        "transport/multicast/qos/enabled": True,
        "transport/link/tx/lease": 2500,
        "transport/link/tx/batch_size": 1024,
    }
    joined(stage, settings, NOISE[:1500])


@scenario
def multicast_compression(stage: Stage) -> None:
    """The multicast transport with compression, and fragments of a message of 70000 zeros."""
    stage.compression = True
    joined(
        stage,
        {
            "transport/multicast/compression/enabled": True,
            "transport/link/tx/sequence_number_resolution": "16bit",
        },
        LARGE,
    )


@scenario
def udp(stage: Stage) -> None:
    """A client and a router over UDP: one datagram is one batch."""
    stage.who.append(f"A is a client with id {A_ID}, B is a router with id {B_ID}")
    port = free_port(socket.SOCK_DGRAM)
    b = stage.node("router", B_ID, {**SMALL_BATCH, "listen/endpoints": [f"udp/{LOOPBACK}:{port}"]})
    proxy = stage.udp_tap(port)
    endpoint = f"udp/{LOOPBACK}:{proxy.port}"
    a = stage.node("client", A_ID, {**SMALL_BATCH, "connect/endpoints": [endpoint]})
    talk(stage, a, b)
    a.put("u/x", NOISE[:1000])
    stage.settle()
    a.close()
    stage.settle()


@scenario
def advanced(stage: Stage) -> None:
    """Advanced publishers and subscribers: cache, history, recovery, detection and heartbeats."""
    a, b = stage.pair(settings={"timestamping/enabled": True})
    pub = zenoh.ext.declare_advanced_publisher(
        a,
        "adv/x",
        cache=zenoh.ext.CacheConfig(max_samples=5),
        sample_miss_detection=zenoh.ext.MissDetectionConfig(
            heartbeat=0.15, sporadic_heartbeat=None
        ),
        publisher_detection=True,
    )
    for index in range(4):
        pub.put(f"sample {index}")
    stage.settle()
    sub = zenoh.ext.declare_advanced_subscriber(
        b,
        "adv/x",
        history=zenoh.ext.HistoryConfig(detect_late_publishers=True, max_samples=3, max_age=60.0),
        recovery=zenoh.ext.RecoveryConfig(periodic_queries=None, heartbeat=True),
        subscriber_detection=True,
    )
    time.sleep(0.4)
    pub.put("live", attachment="note")
    pub.delete()
    time.sleep(0.3)
    sub.undeclare()
    pub.undeclare()
    stage.settle()
    late = zenoh.ext.declare_advanced_subscriber(
        a, "adv/y", history=zenoh.ext.HistoryConfig(), subscriber_detection=True
    )
    # The stub says seconds, the module takes a timedelta.
    period: Any = timedelta(seconds=0.15)
    periodic = zenoh.ext.declare_advanced_subscriber(
        a, "adv/z", recovery=zenoh.ext.RecoveryConfig(periodic_queries=period, heartbeat=None)
    )
    other = zenoh.ext.declare_advanced_publisher(
        b,
        "adv/z",
        cache=zenoh.ext.CacheConfig(max_samples=2),
        sample_miss_detection=zenoh.ext.MissDetectionConfig(heartbeat=None, sporadic_heartbeat=0.1),
    )
    other.put("one")
    other.put("two")
    time.sleep(0.4)
    for thing in (late, periodic, other):
        thing.undeclare()
    stage.settle()
    a.close()


@scenario
def timestamp_stack(stage: Stage) -> None:
    """Timestamp stacks, new in 1.10: puts, deletes, queries and replies that gather stamps."""
    a, b = stage.pair()
    sub = b.declare_subscriber("t/**")
    queryable = b.declare_queryable("t/q", answer)
    pub = a.declare_publisher("t/p")
    back = a.declare_subscriber("u/**")
    stage.settle()
    for flags in filter(any, itertools.product((False, True), repeat=3)):
        builder = zenoh.TimestampInstrumentationBuilder()
        builder = builder.set_send(flags[0]).set_route(flags[1]).set_receive(flags[2])
        stack = builder.build()
        a.put("t/x", "v", timestamp_instrumentation=stack)
        a.delete("t/x", timestamp_instrumentation=stack)
        pub.put("v", attachment="note", timestamp_instrumentation=stack)
        b.put("u/x", "v", timestamp_instrumentation=stack)
        stage.settle(GAP)
        for kind in ("full", "error", "delete"):
            ask(a, f"t/q?r={kind}", timestamp_instrumentation=stack)
        stage.settle(GAP)
    for thing in (sub, queryable, pub, back):
        thing.undeclare()
    stage.settle()


@scenario
def keep_alive(stage: Stage) -> None:
    """A lease of one second: both sides say that they live, and then A closes."""
    a, _ = stage.pair(settings={"transport/link/tx/lease": 1000})
    time.sleep(0.7)
    a.put("k", "v")
    time.sleep(0.7)
    a.close()


@scenario
def close_by_acceptor(stage: Stage) -> None:
    """The router closes."""
    _, b = stage.pair()
    b.close()
    stage.settle()


def init_syn(zid: str, version: int = 9, role: int = 2, tail: str = "") -> bytes:
    number = bytes.fromhex(zid)[::-1]
    head = bytes([0x81 if tail else 0x01, version, (len(number) - 1) << 4 | role])
    return head + number + bytes.fromhex(tail)


def exchange(sock: socket.socket, batch: bytes) -> bytes:
    """Send one batch and read the next one; nothing if the other side has gone."""
    sock.sendall(len(batch).to_bytes(2, "little") + batch)
    head = sock.recv(2, socket.MSG_WAITALL)
    return sock.recv(int.from_bytes(head, "little"), socket.MSG_WAITALL) if head else b""


def open_syn(init_ack: bytes) -> bytes:
    """An OPEN that returns the cookie of an INIT: lease 10 s, sequence number 0."""
    at = 3 + (init_ack[2] >> 4) + 1
    if init_ack[0] & 0x40:
        at += 3
    size = init_ack[at]
    return bytes([0x42, 10, 0]) + init_ack[at : at + 1 + size]


def by_hand(stage: Stage, *batches: str) -> None:
    """Send hand-written batches to a router and record how it ends."""
    stage.origin = BY_HAND
    stage.who.append(f"A says it is a client, B is a router with id {B_ID}")
    _, port = stage.listen()
    sock = stage.raw(stage.tap(port).port)
    for batch in batches:
        exchange(sock, bytes.fromhex(batch))
    stage.settle(0.2)


@scenario
def close_version(stage: Stage) -> None:
    """An INIT of version 8 is answered with CLOSE."""
    by_hand(stage, init_syn(A_ID, version=8).hex())


@scenario
def close_role(stage: Stage) -> None:
    """An INIT with the unused role 3 is answered with CLOSE."""
    by_hand(stage, init_syn(A_ID, role=3).hex())


@scenario
def close_mandatory(stage: Stage) -> None:
    """An INIT with a mandatory extension that nobody knows is answered with CLOSE."""
    by_hand(stage, init_syn(A_ID, tail="1e").hex())


@scenario
def close_cookie(stage: Stage) -> None:
    """An OPEN with a cookie that B never gave is answered with CLOSE."""
    by_hand(stage, init_syn(A_ID).hex(), "420a000401020304")


@scenario
def close_self(stage: Stage) -> None:
    """An opener with the acceptor's own id is answered with CLOSE after OPEN."""
    stage.origin = BY_HAND
    stage.who.append(f"A says it is a client with B's id, B is a router with id {B_ID}")
    _, port = stage.listen()
    sock = stage.raw(stage.tap(port).port)
    exchange(sock, open_syn(exchange(sock, init_syn(B_ID))))
    stage.settle(0.2)


@scenario
def close_max_links(stage: Stage) -> None:
    """A second client with an id that has a session already is answered with CLOSE after OPEN."""
    stage.who.append(f"A is a client with id {A_ID}, B is a router with id {B_ID}")
    _, port = stage.listen()
    stage.dial(port)
    proxy = stage.tap(port)
    try:
        stage.dial(proxy.port, settings={"connect/timeout_ms": 0})
    except zenoh.ZError:
        stage.who.append("A was refused")
    stage.settle(0.2)


@scenario
def minimal_client(stage: Stage) -> None:
    """The least a client can say: INIT and OPEN without extensions, two frames, session CLOSE."""
    stage.origin = BY_HAND
    stage.who.append(f"A says it is a client with id {A_ID}, B is a router with id {B_ID}")
    b, port = stage.listen()
    sub = b.declare_subscriber("k/**")
    sock = stage.raw(stage.tap(port).port)
    exchange(sock, open_syn(exchange(sock, init_syn(A_ID))))
    for text in (
        "2500" + "7d00036b2f61010176",
        "0500" + "3d00036b2f61010177" + "04" + "2501",
        "2300",
    ):
        batch = bytes.fromhex(text)
        sock.sendall(len(batch).to_bytes(2, "little") + batch)
    until(lambda: sub.try_recv() is not None)
    stage.settle(0.2)
    sub.undeclare()


@scenario
def admin_space(stage: Stage) -> None:
    """A query on the router's admin space, answered with JSON."""
    a, _ = stage.pair(b_settings={"adminspace/enabled": True})
    ask(a, "@/*/router")
    a.close()
