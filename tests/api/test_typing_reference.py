"""Type checkers infer from zenlake what they infer from the stubs of `eclipse-zenoh`.

One program, checked by mypy --strict and by pyright in strict mode, under both libraries.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import zenoh

from tests.support.type_checkers import Findings, bare, check

pytestmark = [pytest.mark.process, pytest.mark.slow]

LIBRARIES = ("zenoh", "zenlake")
CHECKERS = ("mypy", "pyright")

OPENING = """\
import queue
from array import array
from datetime import datetime
from pathlib import Path
from typing import TypeVar, reveal_type

import numpy
import {library} as zenoh
from {library}.handlers import Callback, DefaultHandler, FifoChannel, RingChannel

T = TypeVar("T")


def given(kind: type[T]) -> T:
    raise NotImplementedError


def on_sample(sample: zenoh.Sample) -> None: ...
def on_query(query: zenoh.Query) -> None: ...
def on_reply(reply: zenoh.Reply) -> None: ...
def on_hello(hello: zenoh.Hello) -> None: ...
def on_status(status: zenoh.MatchingStatus) -> None: ...
def on_transport(event: zenoh.TransportEvent) -> None: ...
def on_link(event: zenoh.LinkEvent) -> None: ...
def on_miss(miss: zenoh.ext.Miss) -> None: ...
def on_end() -> None: ...


config = zenoh.Config()
session = zenoh.open(config)
info = session.info
liveliness = session.liveliness()
publisher = session.declare_publisher("a")
querier = session.declare_querier("a")
token = zenoh.CancellationToken()
key = zenoh.KeyExpr("a")
stamp = session.new_timestamp()
subscriber = session.declare_subscriber("a")
queryable = session.declare_queryable("a")
silent = session.declare_subscriber("a", on_sample)
matching = publisher.declare_matching_listener()
scout = zenoh.scout()
replies = session.get("a")
samples: queue.Queue[zenoh.Sample] = queue.Queue()
statuses: list[zenoh.MatchingStatus] = []
fifo: FifoChannel[zenoh.Sample] = FifoChannel(3)
advanced = zenoh.ext.declare_advanced_publisher(session, "a")
history = zenoh.ext.declare_advanced_subscriber(session, "a")
misses = history.sample_miss_listener()
payload = zenoh.ZBytes(b"")
"""

EXPRESSIONS = """
zenoh.open(config)
zenoh.open(config, timestamp_callback=lambda context: bytes(str(context.zid), "ascii"))
zenoh.Config.from_file(Path("a"))
zenoh.Config.from_file("a")
zenoh.Config.from_json5("a")
zenoh.Config.from_env()
config.get_json("mode")
config.insert_json5("mode", "'peer'")
session.__enter__()
session.put("a", b"")
session.put(key, "a", encoding="text/plain", priority=zenoh.Priority.DATA, express=True)
session.put("a", memoryview(b""))
session.put("a", array("b"))
session.put("a", numpy.zeros(3))
session.put("a", payload, attachment=bytearray(2), timestamp=stamp)
session.put("a", "b", congestion_control=zenoh.CongestionControl.BLOCK)
session.put("a", "b", allowed_destination=zenoh.Locality.REMOTE)
session.put("a", "b", encoding=zenoh.Encoding.TEXT_PLAIN)
session.delete("a")
session.declare_keyexpr("a")
session.undeclare(key)
session.declare_publisher("a", encoding="a/b", reliability=zenoh.Reliability.RELIABLE)
session.declare_subscriber("a")
session.declare_subscriber("a", None)
session.declare_subscriber("a", DefaultHandler())
session.declare_subscriber("a", FifoChannel(3))
session.declare_subscriber("a", RingChannel(3))
session.declare_subscriber("a", fifo)
session.declare_subscriber("a", on_sample)
session.declare_subscriber("a", lambda sample: print(sample.payload))
session.declare_subscriber("a", Callback(on_sample))
session.declare_subscriber("a", Callback(on_sample, on_end, indirect=False))
session.declare_subscriber("a", (on_sample, samples))
session.declare_subscriber("a", (samples.put, samples))
session.declare_subscriber("a", (Callback(on_sample), 5))
session.declare_subscriber(key, handler=on_sample, allowed_origin=zenoh.Locality.ANY)
session.declare_subscriber("a").handler
session.declare_subscriber("a", on_sample).handler
session.declare_subscriber("a", (on_sample, samples)).handler
session.declare_subscriber("a", (on_sample, samples)).handler.get()
subscriber.recv()
subscriber.recv
subscriber.try_recv()
subscriber.handler.recv()
subscriber.handler.try_recv()
iter(subscriber)
next(iter(subscriber))
[sample.payload for sample in subscriber]
subscriber.recv().priority.value
[kind.value for kind in zenoh.SampleKind]
subscriber.undeclare()
subscriber.__enter__()
silent.undeclare()
session.declare_queryable("a")
session.declare_queryable("a", complete=True)
session.declare_queryable("a", RingChannel(1))
session.declare_queryable("a", on_query)
session.declare_queryable("a", (on_query, samples), allowed_origin=zenoh.Locality.REMOTE)
session.declare_queryable("a", lambda query: query.reply(query.key_expr, "b"))
queryable.recv()
queryable.try_recv()
queryable.handler
[query.payload for query in queryable]
session.get("a")
session.get(key)
session.get(zenoh.Selector("a", {"b": "c"}))
session.get("a", DefaultHandler(), timeout=1)
session.get("a", FifoChannel(3), target=zenoh.QueryTarget.ALL)
session.get("a", on_reply, consolidation=zenoh.ConsolidationMode.NONE)
session.get("a", lambda reply: reply.ok)
session.get("a", Callback(on_reply), cancellation_token=token)
session.get("a", (on_reply, samples), payload="b", attachment=b"")
[reply.ok for reply in session.get("a")]
session.get("a").recv()
session.get("a").try_recv()
replies.recv().result
replies.recv().err
session.declare_querier("a", timeout=1.5, accept_replies=zenoh.ReplyKeyExpr.ANY)
querier.get()
querier.get(RingChannel(1), parameters="a=b")
querier.get(on_reply, payload=b"")
querier.get((on_reply, samples), parameters={"a": "b"})
liveliness.declare_token("a")
liveliness.declare_token("a").__enter__()
liveliness.get("a")
liveliness.get("a", FifoChannel(1))
liveliness.get("a", on_reply, timeout=2)
liveliness.get("a", (on_reply, samples), cancellation_token=token)
liveliness.declare_subscriber("a")
liveliness.declare_subscriber("a", FifoChannel(1))
liveliness.declare_subscriber("a", on_sample, history=True)
liveliness.declare_subscriber("a", (on_sample, samples))
publisher.put(b"")
publisher.put("a", encoding="a/b", attachment="c")
publisher.delete()
publisher.undeclare()
publisher.declare_matching_listener()
publisher.declare_matching_listener(RingChannel(1))
publisher.declare_matching_listener(on_status)
publisher.declare_matching_listener((on_status, statuses))
querier.declare_matching_listener()
querier.declare_matching_listener(on_status)
matching.recv()
matching.try_recv()
matching.handler
[status.matching for status in matching]
info.declare_transport_events_listener()
info.declare_transport_events_listener(on_transport, history=True)
info.declare_transport_events_listener((on_transport, samples))
info.declare_transport_events_listener().recv()
info.declare_link_events_listener()
info.declare_link_events_listener(on_link)
info.declare_link_events_listener((on_link, samples))
info.declare_link_events_listener().try_recv()
[event.link for event in info.declare_link_events_listener()]
zenoh.scout()
zenoh.scout(what="peer|router", config=config)
zenoh.scout(RingChannel(1), zenoh.WhatAmIMatcher("peer"))
zenoh.scout(on_hello)
zenoh.scout((on_hello, samples))
scout.recv()
scout.try_recv()
scout.stop()
[hello.locators for hello in scout]
zenoh.KeyExpr("a").join("b")
zenoh.KeyExpr("a").concat("b")
zenoh.KeyExpr.autocanonize("a")
key.includes(key)
key.intersects("a")
key.relation_to("a")
zenoh.Encoding("a/b")
zenoh.Encoding("a/b").with_schema("c")
zenoh.Encoding.APPLICATION_JSON
zenoh.Encoding.ZENOH_BYTES == "a"
zenoh.Selector("a")
zenoh.Selector(key, "a=b")
zenoh.Parameters("a=b")
zenoh.Parameters({"a": "b"}).get("a")
zenoh.Parameters("a=b")["a"]
zenoh.Parameters("a=b").values("a")
"a" in zenoh.Parameters("a=b")
zenoh.Parameters("a=b").extend({"a": "b"})
zenoh.QueryConsolidation(zenoh.ConsolidationMode.LATEST)
zenoh.SourceInfo(session.id, 5)
zenoh.Timestamp(datetime.now(), b"a")
zenoh.Timestamp(zenoh.NTP64(1, 2), zenoh.TimestampId(b"a"))
zenoh.Timestamp.parse_rfc3339("a")
zenoh.NTP64.parse_rfc3339("a")
stamp.get_diff_duration(stamp)
stamp == stamp
stamp >= stamp
zenoh.WhatAmIMatcher("peer").router().peer()
zenoh.WhatAmIMatcher.empty()
zenoh.WhatAmIMatcher("peer").matches(zenoh.WhatAmI.PEER)
zenoh.TimestampInstrumentationBuilder().set_send(True).build()
zenoh.ZBytes("a").to_bytes()
zenoh.ZBytes(bytearray(1)).to_string()
bytes(payload)
len(payload)
payload == b""
zenoh.init_log_from_env_or("error")
zenoh.try_init_log_from_env()
Callback(on_sample)
Callback(on_sample).callback
Callback(on_sample).drop
FifoChannel[zenoh.Sample](3)
zenoh.ext.z_serialize([1, 2])
zenoh.ext.z_deserialize(int, payload)
zenoh.ext.z_deserialize(list[str], payload)
zenoh.ext.z_deserialize(tuple[int, zenoh.ext.Float32], payload)
zenoh.ext.z_deserialize(dict[str, list[zenoh.ext.UInt8]], payload)
zenoh.ext.Int8(5)
zenoh.ext.declare_advanced_publisher(session, "a", cache=zenoh.ext.CacheConfig(5))
zenoh.ext.declare_advanced_subscriber(session, "a", history=zenoh.ext.HistoryConfig(max_age=2))
zenoh.ext.declare_advanced_subscriber(session, "a", RingChannel(1))
zenoh.ext.declare_advanced_subscriber(session, "a", on_sample)
zenoh.ext.declare_advanced_subscriber(session, "a", (on_sample, samples))
zenoh.ext.declare_advanced_subscriber(session, "a", lambda sample: sample.payload)
zenoh.ext.MissDetectionConfig(heartbeat=1.5, sporadic_heartbeat=None)
zenoh.ext.RecoveryConfig(periodic_queries=None, heartbeat=True)
advanced.put("a", attachment="b")
advanced.delete()
history.recv()
history.try_recv()
history.handler
[sample.key_expr for sample in history]
history.sample_miss_listener()
history.sample_miss_listener(on_miss)
history.sample_miss_listener((on_miss, samples))
history.detect_publishers()
history.detect_publishers(on_sample, history=True)
history.detect_publishers((on_sample, samples))
misses.recv()
misses.try_recv()
[miss.nb for miss in misses]
zenoh.shm.AllocAlignment.ALIGN_4_BYTE
zenoh.shm.AllocAlignment(2).align_size(5)
zenoh.shm.ShmProvider.default_backend(1024)
zenoh.shm.ShmProvider.default_backend(1024).alloc(10)
zenoh.shm.ShmProvider.default_backend(1024).available
zenoh.shm.ShmProvider.default_backend(1024).garbage_collect()
zenoh.ZBytes(zenoh.shm.ShmProvider.default_backend(1024).alloc(10))
session.put("a", zenoh.shm.ShmProvider.default_backend(1024).alloc(10))
payload.as_shm()
""".strip().splitlines()


def stub_members() -> Iterator[str]:
    """Yield expressions for every property, enumeration member and plain call of the stubs."""
    for path in sorted(Path(zenoh.__file__).parent.glob("*.pyi")):
        module = "zenoh" if path.stem == "__init__" else f"zenoh.{path.stem}"
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not any(
                "Generic" in ast.unparse(base) for base in node.bases
            ):
                yield from _members_of(f"{module}.{node.name}", node)


def _members_of(name: str, node: ast.ClassDef) -> Iterator[str]:
    for member in node.body:
        if isinstance(member, ast.Assign):
            yield f"{name}.{ast.unparse(member.targets[0])}"
        if not isinstance(member, ast.FunctionDef) or member.name.startswith("__"):
            continue
        decorators = [ast.unparse(each) for each in member.decorator_list]
        if "property" in decorators:
            yield f"given({name}).{member.name}"
        elif len(member.args.args) == 1 and not {"overload", "classmethod"} & set(decorators):
            yield f"given({name}).{member.name}()"


def stub_classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes of the stubs that are no enumerations, with their full names."""
    for path in sorted(Path(zenoh.__file__).parent.glob("*.pyi")):
        module = "zenoh" if path.stem == "__init__" else f"zenoh.{path.stem}"
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and "Enum" not in map(ast.unparse, node.bases):
                yield f"{module}.{node.name}", node


def stub_calls() -> Iterator[str]:
    """Yield a call, with an argument, of every class that has no constructor in the stubs."""
    for name, node in stub_classes():
        members = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        if "__new__" not in members and name not in NOT_FINAL:
            yield f"{name}(on_end)"


def stub_subclasses() -> Iterator[str]:
    """Yield a subclass of every class that is final in the stubs."""
    for number, (name, node) in enumerate(stub_classes()):
        if "final" in map(ast.unparse, node.decorator_list) and name not in NOT_FINAL:
            yield f"class Own{number}({name}): ..."


def says_as_much(theirs: str, ours: str) -> bool:
    """Say whether `ours` is `theirs`, or has a type in each place where `theirs` has none."""
    places = re.split(r"\b(?:Any|Unknown)\b", bare(theirs))
    pattern = ".+".join(re.escape(place) for place in places)
    return re.fullmatch(pattern, bare(ours)) is not None and UNKNOWN.search(ours) is None


# Classes that have subclasses of their own here.
NOT_FINAL = {"zenoh.ZError", "zenoh.KeyExpr", "zenoh.ext.ZDeserializeError"}
UNKNOWN = re.compile(r"\b(Any|Unknown)\b")
REVEALED = [*EXPRESSIONS, *stub_members()]

# Types of zenlake where the stubs say something else than their library does.
STUBS_ARE_WRONG = {
    # `@overload` is missing at the last variant, which mypy takes for the only one.
    "zenoh.scout(on_hello)": "Scout[None]",
    "zenoh.scout((on_hello, samples))": "Scout[Queue[Sample]]",
    # The type variable of the method is that of its class.
    "history.sample_miss_listener((on_miss, samples))": "SampleMissListener[Queue[Sample]]",
    "history.detect_publishers((on_sample, samples))": "Subscriber[Queue[Sample]]",
    # The library returns an object whose `matching` is the bool.
    "given(zenoh.Publisher).matching_status": "MatchingStatus",
    "given(zenoh.Querier).matching_status": "MatchingStatus",
}
# A property in the stubs, a method in the library.
METHODS = {"given(zenoh.QueryConsolidation).mode": r"(def )?\(\) -> ConsolidationMode"}

REFUSED = """
session.put("a")
session.put(5, b"")
session.put("a", b"", encoding=5)
session.put("a", b"", priority=2)
session.put("a", b"", unknown=1)
session.undeclare(5)
session.declare_publisher("a", reliability=True)
session.declare_subscriber("a", 5)
session.declare_subscriber("a", on_end)
session.declare_subscriber("a", on_reply)
session.declare_subscriber("a", (on_query, samples))
session.declare_subscriber("a", FifoChannel[zenoh.Query](3))
session.declare_subscriber("a", FifoChannel("3"))
session.declare_subscriber("a", on_sample).recv()
session.declare_subscriber("a", (on_sample, samples)).recv()
session.declare_subscriber("a", Callback(on_reply))
subscriber.handler.nothing
subscriber.recv()[0]
len(subscriber.recv())
[*subscriber.recv()]
[sample for sample in silent]
session.declare_queryable("a", on_sample)
session.declare_queryable("a", complete="yes")
queryable.recv().ok
session.get("a", timeout="1")
session.get("a", on_sample)
session.get("a", on_reply, unknown=1)
session.get("a", target=zenoh.Priority.DATA)
session.get("a").recv().payload
replies.recv().ok.payload
querier.get(parameters=5)
querier.get(timeout=1)
querier.get(on_sample)
liveliness.declare_subscriber("a", history="yes")
liveliness.get("a", on_sample)
publisher.declare_matching_listener(on_sample)
info.declare_link_events_listener(on_transport)
zenoh.scout(what=5)
zenoh.scout(on_sample)
zenoh.open("a")
zenoh.Config.from_json5(5)
zenoh.KeyExpr(5)
zenoh.Encoding(5)
zenoh.nothing
zenoh.ext.z_deserialize(int, b"")
zenoh.ext.declare_advanced_subscriber(session, "a", 5)
zenoh.ext.HistoryConfig(max_age="2")
zenoh.ext.RecoveryConfig(periodic_queries=None, heartbeat=False)
history.sample_miss_listener(on_sample)
zenoh.ZBytes(5)
payload.nothing
zenoh.shm.ShmProvider.default_backend(8).alloc(1).__setitem__(0, b"a")
zenoh.shm.ShmProvider.default_backend(8).alloc(1).__setitem__(slice(1), 5)
""".strip().splitlines()
REFUSED += stub_calls()
SUBCLASSES = [*stub_subclasses()]

# Payloads are of any type in the stubs; the library refuses these when they are sent.
REFUSED_HERE = """
session.put("a", 5)
session.put("a", None)
session.put("a", [1])
session.put("a", b"", attachment=5)
publisher.put(1.5)
publisher.put(b"", attachment=5)
session.get("a", payload=5)
querier.get(payload=5)
queryable.recv().reply("a", 5)
queryable.recv().reply_err({})
advanced.put(5)
""".strip().splitlines()

# Every branch is taken: checkers know which members are left, and need no return at the end.
COMPLETE = """\
from typing import assert_never

import {library} as zenoh


def of_kind(kind: zenoh.SampleKind) -> int:
    if kind == zenoh.SampleKind.PUT:
        return 1
    elif kind == zenoh.SampleKind.DELETE:
        return 2


def of_role(role: zenoh.WhatAmI) -> int:
    if role == zenoh.WhatAmI.ROUTER:
        return 1
    elif role == zenoh.WhatAmI.PEER or role is zenoh.WhatAmI.CLIENT:
        return 2
    else:
        assert_never(role)


def of_reliability(reliability: zenoh.Reliability) -> int:
    match reliability:
        case zenoh.Reliability.BEST_EFFORT:
            return 1
        case zenoh.Reliability.RELIABLE:
            return 2


def of_source(info: zenoh.SourceInfo) -> "tuple[zenoh.EntityId, zenoh.SourceSn]":
    return info.source_id.eid, info.source_sn
"""


def program(library: str, lines: Iterable[str]) -> str:
    """Return a program that shows the type of each line."""
    shown = "".join(f"reveal_type({line})\n" for line in lines)
    return OPENING.format(library=library) + shown


FIRST = OPENING.count("\n") + 1  # Line of the first `reveal_type`.


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Findings]]:
    programs = {f"right_{library}": program(library, REVEALED) for library in LIBRARIES}
    for library in LIBRARIES:
        programs[f"wrong_{library}"] = program(library, [*REFUSED, *REFUSED_HERE])
        own = "\n".join(SUBCLASSES)
        programs[f"own_{library}"] = f"import {library} as zenoh\n{own}\n"
        programs[f"complete_{library}"] = COMPLETE.format(library=library)
    return check(programs, tmp_path_factory.mktemp("typed"))


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_program_gets_the_types_of_the_stubs(
    found: dict[str, dict[str, Findings]], checker: str
) -> None:
    theirs, ours = (found[checker][f"right_{library}"].revealed for library in LIBRARIES)
    different: list[str] = []
    for at, line in enumerate(REVEALED, FIRST):
        wanted, shown = theirs.get(at, "Any"), ours[at]  # mypy shows no type of an untyped call.
        if line in STUBS_ARE_WRONG:
            fits = bare(shown) == STUBS_ARE_WRONG[line]
        elif line in METHODS:
            fits = re.fullmatch(METHODS[line], bare(shown)) is not None
        else:
            fits = says_as_much(wanted, shown)
        if not fits:
            different.append(f"{line}: {shown}, not {wanted}")
    assert different == []
    assert len(REVEALED) > 350


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_right_program_has_no_errors(found: dict[str, dict[str, Findings]], checker: str) -> None:
    assert found[checker]["right_zenlake"].errors == {}


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_checkers_know_which_members_are_left(
    found: dict[str, dict[str, Findings]], checker: str, library: str
) -> None:
    assert found[checker][f"complete_{library}"].errors == {}


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_wrong_program_is_refused(
    found: dict[str, dict[str, Findings]], checker: str, library: str
) -> None:
    findings = found[checker][f"wrong_{library}"]
    expected = [*REFUSED, *(REFUSED_HERE if library == "zenlake" else ())]
    lines = enumerate([*REFUSED, *REFUSED_HERE], FIRST)
    assert [line for at, line in lines if findings.refuses(at)] == expected


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_subclasses_of_final_classes_are_refused(
    found: dict[str, dict[str, Findings]], checker: str, library: str
) -> None:
    findings = found[checker][f"own_{library}"]
    assert [line for at, line in enumerate(SUBCLASSES, 2) if findings.refuses(at)] == SUBCLASSES
    assert len(SUBCLASSES) > 60
