"""Answers of one module to a fixed list of calls, as JSON.

Run as `python -m tests.support.api_behaviour zenoh`, or with `zenlake`.

Each function below is one scene between two sessions; what it yields is compared by name.
"""

# mypy: ignore-errors
# It is about two modules at once, of which one is typed by stubs that are wrong.

import gc
import importlib
import json
import sys
import threading
import warnings
from functools import partial

from tests.golden.proxy import free_port
from tests.support.waiting import until

WAIT = 30.0

z = None


def error(call, *words):
    """The kind of error, and which of `words` it says."""
    try:
        return f"no error: {plain(call())}"
    except z.ZError as problem:
        kind = "ZError"
        text = str(problem)
    except Exception as problem:  # noqa: BLE001  # which one is the question
        kind = type(problem).__name__
        text = str(problem)
    return [kind, *(word for word in words if word in text)]


def plain(value):
    """As JSON: what users look at."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)


def matched(entity):
    return until(lambda: entity.matching_status.matching)


def of_sample(sample):
    return plain(
        [
            sample.key_expr,
            bytes(sample.payload).hex(),
            sample.kind,
            sample.encoding,
            sample.timestamp is not None,
            sample.congestion_control,
            sample.priority,
            sample.express,
            None if sample.attachment is None else bytes(sample.attachment).hex(),
            None if sample.source_info is None else sample.source_info.source_sn,
            sample.timestamp_stack,
        ]
    )


def of_reply(reply):
    if reply.ok is not None:
        assert reply.err is None
        return [of_sample(reply.ok), type(reply.result).__name__, reply.replier_id is not None]
    return plain([reply.err.payload.to_string(), reply.err.encoding, type(reply.result).__name__])


def samples(a, b):
    with b.declare_subscriber("t/**") as sub:
        pub = a.declare_publisher(
            "t/a",
            encoding="text/plain",
            priority=z.Priority.DATA_HIGH,
            congestion_control=z.CongestionControl.BLOCK,
            express=True,
        )
        yield "matching", matched(pub)
        pub.put("hello", attachment=b"att")
        yield "put with everything", of_sample(sub.recv())
        pub.delete()
        yield "delete", of_sample(sub.recv())
        pub.put(
            "v",
            encoding=z.Encoding.APPLICATION_JSON,
            timestamp=a.new_timestamp(),
            source_info=z.SourceInfo(pub.id, 7),
        )
        yield "with a timestamp and a source", of_sample(sub.recv())
        a.put("t/b", b"\x01")
        yield "defaults", of_sample(sub.recv())
        a.delete("t/b", attachment="why")
        yield "delete of the session", of_sample(sub.recv())
        a.put("t/*", bytearray(b"x"))
        sample = sub.recv()
        yield "on a wildcard", of_sample(sample)
        a.put("t/c", sample.payload, encoding="my/own;kind")
        yield "a payload passed on", of_sample(sub.recv())
        yield (
            "publisher",
            plain(
                [pub.key_expr, pub.encoding, pub.congestion_control, pub.priority, pub.reliability]
            ),
        )
        plain_pub = a.declare_publisher("t/d")
        yield (
            "publisher's defaults",
            plain(
                [
                    plain_pub.encoding,
                    plain_pub.congestion_control,
                    plain_pub.priority,
                    plain_pub.reliability,
                ]
            ),
        )
        yield "one's own id", [pub.id.zid == a.zid(), pub.id.eid != plain_pub.id.eid]
        yield "no payload", error(lambda: a.put("t/b", 1), "expected bytes/str type, found 'int'")
        yield "None", error(lambda: a.put("t/b", None))
        yield "a dict attached", error(lambda: a.put("t/c", "x", attachment={"a": "b"}))
        yield "no key", error(lambda: a.put("t//b", "x"), "Invalid Key Expr `t//b`")
        yield "no enum", error(lambda: a.put("t/b", "x", priority=5))
        pub.undeclare()
        yield "put undeclared", error(lambda: pub.put("x"), "Undeclared publisher")
        yield "again", error(pub.undeclare, "Undeclared publisher")


def wrong_arguments(a, b):
    """The kind of error for each option of each call, with values that are of another type."""
    with a.declare_publisher("w") as publisher, a.declare_querier("w") as querier:
        of_puts = ("attachment", "timestamp", "source_info", "timestamp_instrumentation")
        of_qos = ("congestion_control", "priority", "express", "allowed_destination")
        of_queries = ("target", "consolidation", "accept_replies", "timeout")
        of_gets = ("payload", "encoding", "attachment", "source_info", "cancellation_token")
        tokens = a.liveliness()
        calls = (
            (partial(a.put, "w", b""), ("encoding", *of_puts, *of_qos)),
            (partial(a.delete, "w"), (*of_puts, *of_qos)),
            (partial(publisher.put, b""), ("encoding", *of_puts)),
            (publisher.delete, of_puts),
            (partial(a.declare_publisher, "w"), ("encoding", "reliability", *of_qos)),
            (partial(a.declare_subscriber, "w"), ("handler", "allowed_origin")),
            (partial(a.declare_queryable, "w"), ("handler", "complete", "allowed_origin")),
            (partial(a.declare_querier, "w"), (*of_queries, *of_qos)),
            (partial(a.get, "w"), ("handler", *of_gets, *of_queries, *of_qos)),
            (querier.get, ("handler", "parameters", *of_gets)),
            (partial(tokens.declare_subscriber, "w"), ("handler", "history")),
            (partial(tokens.get, "w"), ("handler", "timeout", "cancellation_token")),
        )
        for number, (call, options) in enumerate(calls):
            for option in options:
                found = [error(partial(call, **{option: value})) for value in (-5, [1], object())]
                yield f"call {number}, {option}", found


def channels(a, b):
    sub = b.declare_subscriber("c/**")
    mark = b.declare_subscriber("c/**")
    pub = a.declare_publisher("c/a")
    matched(pub)
    yield "empty", plain(sub.try_recv())
    for text in "123":
        pub.put(text)
    seen = [str(mark.recv().payload) for _ in "123"]
    handler = sub.handler
    first = str(sub.recv().payload)
    sub.undeclare()
    mark.undeclare()
    yield "in order", seen
    yield "a fifo keeps what was received", [first, *(str(sample.payload) for sample in handler)]
    yield "recv closed", error(handler.recv, "channel is empty and closed")
    yield "try_recv closed", error(handler.try_recv, "channel is empty and closed")
    yield "loop closed", list(handler)
    yield "undeclared", error(sub.recv, "Undeclared subscriber")
    yield "undeclared twice", error(sub.undeclare, "Undeclared subscriber")
    yield "entered undeclared", error(sub.__enter__, "Undeclared subscriber")
    yield "its key", error(lambda: sub.key_expr, "Undeclared subscriber")

    ring = b.declare_subscriber("r/**", z.handlers.RingChannel(2))
    marks = b.declare_subscriber("r/end")
    for text in "01234":
        b.put("r/a", text)
    b.put("r/end", "5")
    marks.recv()
    yield "a ring keeps the last", [str(ring.recv().payload), str(ring.try_recv().payload)]
    yield "ring empty", plain(ring.try_recv())
    handler = ring.handler
    b.put("r/a", "6")
    ring.undeclare()
    yield "a ring closed", error(handler.recv, "The ringbuffer has been deleted.")
    yield "a ring closed, tried", error(handler.try_recv, "The ringbuffer has been deleted.")
    yield "a ring closed, looped", list(handler)
    zero = b.declare_subscriber("z/**", z.handlers.RingChannel(0))
    b.put("z/a", "1")
    b.put("z/a", "2")
    yield "a ring of nothing holds one", [str(zero.try_recv().payload), plain(zero.try_recv())]
    zero.undeclare()
    marks.undeclare()


def loops(a, b):
    sub = b.declare_subscriber("l/**")
    timer = threading.Timer(0.2, sub.undeclare)
    timer.start()
    yield "undeclare ends a loop", list(sub)
    timer.join()


def callbacks(a, b):
    calls, dropped = [], []
    sub = b.declare_subscriber(
        "v/**",
        z.handlers.Callback(lambda s: calls.append(str(s.payload)), lambda: dropped.append(1)),
    )
    direct = []
    there = []
    other = b.declare_subscriber(
        "v/**",
        z.handlers.Callback(
            lambda s: there.append(threading.current_thread() is threading.main_thread()),
            lambda: direct.append(1),
            indirect=False,
        ),
    )
    pub = a.declare_publisher("v/a")
    matched(pub)
    for text in "123":
        pub.put(text)
    yield "called in order", until(lambda: len(calls) == 3 and len(there) == 3) and calls
    yield "elsewhere", there
    yield "no handler", plain(sub.handler)
    yield "nothing to receive", error(sub.recv)[0]
    sub.undeclare()
    other.undeclare()
    yield "drop once", until(lambda: dropped and direct) and [dropped, direct]

    def fails(sample):
        calls.append("failing")
        raise RuntimeError("on purpose")

    calls.clear()
    sub = b.declare_subscriber("w/**", fails)
    pub = a.declare_publisher("w/a")
    matched(pub)
    pub.put("1")
    pub.put("2")
    yield "it goes on after an error", until(lambda: len(calls) == 2)
    sub.undeclare()
    box = object()
    pair = b.declare_subscriber("w/**", (calls.append, box))
    yield "a tuple's second is the handler", pair.handler is box
    yield "which cannot recv", error(pair.recv)[0]
    pair.undeclare()
    for bad in (5, "text", [print]):
        yield (
            f"handler {bad if bad != [print] else 'list'}",
            error(lambda bad=bad: b.declare_subscriber("w/**", bad), "Invalid handler type"),
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        b.declare_subscriber("w/**", (print, print)).undeclare()
    yield (
        "a drop callback in a tuple is warned of",
        [[w.category.__name__, w.filename == __file__] for w in caught],
    )


def lifetimes(a, b):
    pub = a.declare_publisher("d/a")
    sub = b.declare_subscriber("d/**")
    yield "held", matched(pub)
    del sub
    gc.collect()
    yield "dropped", until(lambda: not pub.matching_status.matching)
    got = []
    b.declare_subscriber("d/**", got.append)
    gc.collect()
    yield "a callback stays", matched(pub)
    pub.put("x")
    yield "and is called", until(lambda: len(got) == 1)
    pair = b.declare_subscriber("e/**", (got.append, None))
    pub = a.declare_publisher("e/a")
    yield "a tuple, held", matched(pub)
    del pair
    gc.collect()
    yield "a tuple, dropped", until(lambda: not pub.matching_status.matching)
    token = b.liveliness().declare_token("alive/x")
    watch = a.liveliness().declare_subscriber("alive/**", history=True)
    yield "a token", plain(watch.recv().kind)
    del token
    gc.collect()
    yield "a token, dropped", plain(watch.recv().kind)
    watch.undeclare()


def localities(a, b):
    subs = {
        "any": a.declare_subscriber("loc/a", allowed_origin=z.Locality.ANY),
        "local": a.declare_subscriber("loc/a", allowed_origin=z.Locality.SESSION_LOCAL),
        "remote": a.declare_subscriber("loc/a", allowed_origin=z.Locality.REMOTE),
    }
    mark = a.declare_subscriber("loc/end")
    matched(b.declare_publisher("loc/a"))
    matched(b.declare_publisher("loc/end"))
    for who, name, destination in (
        (a, "own", z.Locality.ANY),
        (a, "own, to the session", z.Locality.SESSION_LOCAL),
        (a, "own, to others", z.Locality.REMOTE),
        (b, "other's", z.Locality.ANY),
        (b, "other's, to itself", z.Locality.SESSION_LOCAL),
    ):
        who.put("loc/a", "x", allowed_destination=destination)
        who.put("loc/end", "x")
        mark.recv()  # then what was put before is there too
        yield name, [kind for kind, sub in subs.items() if sub.try_recv() is not None]
    for sub in (*subs.values(), mark):
        sub.undeclare()


def keys(a, b):
    key = a.declare_keyexpr("dk/a")
    yield "declared", [str(key), key == "dk/a", isinstance(key, z.KeyExpr)]
    yield "another's", error(lambda: b.undeclare(key))
    yield "undeclared", plain(a.undeclare(key))
    yield "text", error(lambda: a.undeclare("dk/zz"))
    yield "a subscriber", plain(a.undeclare(a.declare_subscriber("dk/*")))
    yield "a number", error(lambda: a.undeclare(3))[0]


def queries(a, b):
    with a.declare_queryable("q/**") as queryable:
        querier = b.declare_querier("q/**", timeout=WAIT)
        matched(querier)
        replies = b.get(
            "q/*?arg=1",
            payload="pl",
            encoding="text/plain",
            attachment="A",
            consolidation=z.ConsolidationMode.NONE,
            timeout=WAIT,
        )
        with queryable.recv() as query:
            yield (
                "query",
                plain(
                    [
                        query.selector,
                        query.key_expr,
                        query.parameters,
                        query.payload.to_string(),
                        query.encoding,
                        query.attachment.to_string(),
                        query.accepts_replies(),
                        query.source_info,
                        query.timestamp_stack,
                    ]
                ),
            )
            yield "disjoint", error(lambda: query.reply("zz/a", "x"), "Attempted to reply on")
            query.reply("q/a", "x", encoding="text/plain", attachment="att")
            query.reply_err("bad", encoding="text/plain")
            query.reply_del("q/b", timestamp=a.new_timestamp())
            query.reply("q/c", b"z", express=True)
        yield "replies", [of_reply(reply) for reply in replies]
        yield "after the end", error(lambda: query.reply("q/a", "x"), "Dropped query")
        yield "its key", error(lambda: query.key_expr, "Dropped query")
        yield "dropped again", plain(query.drop())
        yield "nobody", [of_reply(reply) for reply in b.get("nobody/here")]
        replies = b.get("q/a", timeout=0.3)
        kept = queryable.recv()
        found = [of_reply(reply) for reply in replies]
        yield "timeout", found[0][0]
        yield "one", len(found)
        yield "a late reply is let go", plain(kept.reply("q/a", "late"))
        kept.drop()
        replies = b.get("q/a", timeout=WAIT)
        query = queryable.recv()
        query.reply("q/a", "1")
        del query
        gc.collect()
        yield "a query that nobody holds ends", len(list(replies))
        replies = b.get("q/a", timeout=WAIT, accept_replies=z.ReplyKeyExpr.ANY)
        with queryable.recv() as query:
            yield "accepts", plain([query.accepts_replies(), query.parameters])
            query.reply("other/key", "1")
        yield "any key", [str(reply.ok.key_expr) for reply in replies]
        yield "querier", plain([querier.key_expr, querier.accept_replies])
        replies = querier.get(parameters="x=1", payload="p")
        with queryable.recv() as query:
            yield "by querier", plain([query.selector, query.payload.to_string()])
        yield "nothing", list(replies)
        yield "negative timeout", error(lambda: b.get("q/a", timeout=-1), "negative timeout")
        yield "no selector", error(lambda: b.get("a//b"), "Invalid Key Expr")
        querier.undeclare()
        yield "querier undeclared", error(querier.get, "Undeclared querier")
    yield "queryable undeclared", error(queryable.recv, "Undeclared queryable")


def consolidation(a, b):
    def answer(query):
        with query:
            for key, text in (("m/a", "1"), ("m/a", "2"), ("m/b", "3"), ("m/a", "4")):
                query.reply(key, text)

    queryable = a.declare_queryable("m/*", answer)
    matched(b.declare_querier("m/*"))
    for mode in ("AUTO", "NONE", "MONOTONIC", "LATEST"):
        chosen = getattr(z.ConsolidationMode, mode)
        texts = [str(reply.ok.payload) for reply in b.get("m/*", consolidation=chosen)]
        yield mode, sorted(texts) if mode in ("AUTO", "LATEST") else texts
    texts = [str(reply.ok.payload) for reply in b.get("m/*?_time=[now(-1h)..]")]
    yield "AUTO with a time", texts
    chosen = z.QueryConsolidation(z.ConsolidationMode.NONE)
    yield "as an object", len(list(b.get("m/*", consolidation=chosen)))
    yield "its own", len(list(a.get("m/*")))
    yield "others only", len(list(a.get("m/*", allowed_destination=z.Locality.REMOTE)))
    queryable.undeclare()
    queryables = [
        a.declare_queryable("n/a", lambda q, t=text: (q.reply("n/a", t), q.drop())) for text in "12"
    ]
    matched(b.declare_querier("n/a"))
    for target in ("BEST_MATCHING", "ALL", "ALL_COMPLETE"):
        replies = b.get(
            "n/a",
            target=getattr(z.QueryTarget, target),
            consolidation=z.ConsolidationMode.NONE,
        )
        yield f"two of one session, {target}", sorted(str(reply.ok.payload) for reply in replies)
    for queryable in queryables:
        queryable.undeclare()


def cancelling(a, b):
    queryable = a.declare_queryable("ca/**")
    matched(b.declare_querier("ca/**"))
    token = z.CancellationToken()
    yield "at first", token.is_cancelled
    replies = b.get("ca/a", cancellation_token=token, timeout=WAIT)
    kept = queryable.recv()
    token.cancel()
    yield "then", token.is_cancelled
    yield "recv", error(replies.recv, "channel is empty and closed")
    yield "loop", list(replies)
    yield "a late reply", plain(kept.reply("ca/a", "x"))
    kept.drop()
    dropped = []
    handler = z.handlers.Callback(print, lambda: dropped.append(1))
    yield (
        "one that was cancelled before",
        error(lambda: b.get("ca/a", handler, cancellation_token=token), "Query was cancelled"),
    )
    yield "drop", until(lambda: dropped)
    queryable.undeclare()


def matching(a, b):
    pub = a.declare_publisher("ma/a")
    yield "at first", pub.matching_status.matching
    listener = pub.declare_matching_listener()
    yield "nothing is said", plain(listener.try_recv())
    sub = b.declare_subscriber("ma/**")
    yield "one comes", listener.recv().matching
    second = b.declare_subscriber("ma/a")
    sub.undeclare()
    second.undeclare()
    yield "the last goes", listener.recv().matching
    yield "no more", plain(listener.try_recv())
    sub = b.declare_subscriber("ma/**")
    matched(pub)
    yield "there already", pub.declare_matching_listener().recv().matching
    handler = listener.handler
    listener.undeclare()
    yield "undeclared", error(listener.recv, "Undeclared matching listener")
    pub.undeclare()
    sub.undeclare()
    del handler


def liveliness(a, b):
    watch = b.liveliness().declare_subscriber("lv/**")
    pub = a.declare_publisher("lv/ready")
    token = a.liveliness().declare_token("lv/a")
    sample = watch.recv()
    yield "alive", of_sample(sample)
    found = [of_reply(reply) for reply in b.liveliness().get("lv/*")]
    yield "asked", [reply[0][:3] for reply in found]
    late = b.liveliness().declare_subscriber("lv/**", history=True)
    yield "history", of_sample(late.recv())
    none = b.liveliness().declare_subscriber("lv/**")
    token.undeclare()
    yield "gone", [of_sample(sub.recv()) for sub in (watch, late, none)]
    yield "again", error(token.undeclare, "Undeclared LivelinessToken")
    yield "nobody", list(b.liveliness().get("lv/*"))
    for entity in (watch, late, none, pub):
        entity.undeclare()


def network(a, b):
    yield "zids", [a.info.zid() == a.zid(), a.info.peers_zid() == [b.zid()], a.info.routers_zid()]
    transport = a.info.transports()[0]
    yield (
        "transport",
        plain(
            [transport.zid == b.zid(), transport.whatami, transport.is_qos, transport.is_multicast]
        ),
    )
    yield "the same", transport == a.info.transports()[0]
    link = a.info.links()[0]
    yield (
        "link",
        plain(
            [
                link.zid == b.zid(),
                link.src.startswith("tcp/127.0.0.1:"),
                link.dst.startswith("tcp/127.0.0.1:"),
                link.group,
                link.is_streamed,
                link.interfaces,
                link.auth_identifier,
                link.priorities,
                link.reliability,
            ]
        ),
    )
    yield "hash", hash(a.zid()) == hash(bytes(a.zid()))
    yield "id", [a.id.zid == a.zid(), a.id.eid]
    first, second = a.new_timestamp(), a.new_timestamp()
    yield "timestamps", [str(first.get_id()) == str(a.zid()), first < second]
    events = a.info.declare_transport_events_listener(history=True)
    links = a.info.declare_link_events_listener(history=True)
    yield "events", plain([events.recv().kind, links.recv().kind])
    events.undeclare()
    links.undeclare()
    yield "undeclared", error(events.recv)[0]


def dropping_a_session(a, b):
    session = opened({"connect/endpoints": [ENDPOINT], "listen/endpoints": []})
    sub = session.declare_subscriber("ds/**")
    pub = session.declare_publisher("ds/a")
    alive = session.liveliness()
    zid = session.zid()
    until(lambda: zid in a.info.peers_zid())
    yield "others see it", zid in a.info.peers_zid()
    del session
    gc.collect()
    yield "and then do not", until(lambda: zid not in a.info.peers_zid())
    yield "sub", error(sub.recv, "channel is empty and closed")
    yield "pub", error(lambda: pub.put("x"), "session closed")
    yield "liveliness", error(lambda: alive.declare_token("a"), "session closed")


def closing(a, b):
    events = a.info.declare_transport_events_listener()
    pub = b.declare_publisher("z/z")
    sub = b.declare_subscriber("z/*")
    yield "open", b.is_closed()
    b.close()
    yield "closed", b.is_closed()
    yield "close again", plain(b.close())
    yield "the other hears of it", plain(events.recv().kind)
    yield "put", error(lambda: b.put("a", "b"), "session closed")
    yield "publisher", error(lambda: pub.put("x"), "session closed")
    yield "recv", error(sub.recv, "channel is empty and closed")
    yield "loop", list(sub)
    yield "declare", error(lambda: b.declare_subscriber("a"), "session closed")
    yield "declare a publisher", error(lambda: b.declare_publisher("a"), "session closed")
    yield "declare a queryable", error(lambda: b.declare_queryable("a"), "session closed")
    yield "get", error(lambda: b.get("a"), "session closed")
    yield "undeclare", plain([pub.undeclare(), sub.undeclare()])
    yield "info", [b.info.zid() == b.zid(), b.info.peers_zid(), b.info.links()]
    yield "enter", b.__enter__() is not None
    yield "timestamp", b.new_timestamp() is not None
    yield "token", error(lambda: b.liveliness().declare_token("a"), "session closed")
    events.undeclare()


SCENES = (
    samples,
    wrong_arguments,
    channels,
    loops,
    callbacks,
    lifetimes,
    localities,
    keys,
    queries,
    consolidation,
    cancelling,
    matching,
    liveliness,
    network,
    dropping_a_session,
    closing,
)
ENDPOINT = ""


def opened(settings):
    config = z.Config()
    config.insert_json5("scouting/multicast/enabled", "false")
    for key, value in settings.items():
        config.insert_json5(key, json.dumps(value))
    return z.open(config)


def main(module):
    global z, ENDPOINT
    z = importlib.import_module(module)
    importlib.import_module(module + ".handlers")
    ENDPOINT = f"tcp/127.0.0.1:{free_port()}"
    a = opened({"listen/endpoints": [ENDPOINT]})
    b = opened({"connect/endpoints": [ENDPOINT], "listen/endpoints": []})
    until(lambda: a.info.peers_zid() and b.info.peers_zid())
    facts = {f"{scene.__name__}: {name}": value for scene in SCENES for name, value in scene(a, b)}
    a.close()
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
