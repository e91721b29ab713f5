"""Samples of one implementation reach the other, in either role and any topology."""

import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.support.interop_pair import (
    PATIENCE,
    REPEAT_SECONDS,
    SOME_WAYS,
    THEIRS,
    WAYS,
    Nets,
    Seen,
    Way,
    hearing,
    instrumentation,
    passage,
    settling,
    unique,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

CONSTANTS = sorted(name for name in dir(THEIRS.Encoding) if name.isupper())
CUSTOM = ("text/plain;utf-8", "application/json;schema=v1", "mine", "mine;with a schema", "a/b;")
PRIORITIES = (
    "REAL_TIME",
    "INTERACTIVE_HIGH",
    "INTERACTIVE_LOW",
    "DATA_HIGH",
    "DATA",
    "DATA_LOW",
    "BACKGROUND",
)
CONTROLS = ("DROP", "BLOCK", "BLOCK_FIRST")
RELIABILITIES = ("RELIABLE", "BEST_EFFORT")


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    with settling():
        yield


@pytest.fixture(scope="module")
def nets() -> Iterator[Nets]:
    opened = Nets()
    yield opened
    opened.close()


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest, nets: Nets) -> Way:
    return nets.way(request.param)


@pytest.fixture(scope="module", params=SOME_WAYS)
def some_way(request: pytest.FixtureRequest, nets: Nets) -> Way:
    return nets.way(request.param)


def blocking(api: Any) -> dict[str, Any]:
    """So that nothing is dropped on a busy machine."""
    return {"congestion_control": api.CongestionControl.BLOCK}


# ---- encodings


def test_every_encoding(way: Way) -> None:
    api, session = way.sender
    key = unique("encoding")
    constants = [getattr(api.Encoding, name) for name in CONSTANTS]
    assert len(constants) == 53
    sent = [
        *constants,
        *(each.with_schema("some schema") for each in constants),
        *(api.Encoding(text) for text in CUSTOM),
    ]
    with hearing(way, key) as ear:
        for encoding in sent:
            session.put(key, b"x", encoding=encoding, **blocking(api))
        heard = ear.wait(len(sent))
    assert [each.encoding for each in heard] == [str(encoding) for encoding in sent]


def test_the_encoding_of_a_publisher_and_of_one_put(way: Way) -> None:
    api, session = way.sender
    key = unique("encoding")
    with (
        hearing(way, key) as ear,
        session.declare_publisher(
            key, encoding=api.Encoding.TEXT_PLAIN, **blocking(api)
        ) as publisher,
    ):
        publisher.put("a")
        publisher.put("b", encoding="application/json;v=2")
        publisher.delete()
        heard = ear.wait(3)
    assert [each.encoding for each in heard] == [
        "text/plain",
        "application/json;v=2",
        "zenoh/bytes",
    ]


# ---- quality of service


def test_every_quality_of_service(way: Way) -> None:
    """A message that may be dropped is sent until it is heard; a heard one is as it was sent."""
    api, session = way.sender
    key = unique("qos")
    kinds = list(product(PRIORITIES, CONTROLS, (False, True), RELIABILITIES))
    publishers = {
        f"{key}/{number}": session.declare_publisher(
            f"{key}/{number}",
            priority=getattr(api.Priority, priority),
            congestion_control=getattr(api.CongestionControl, control),
            express=express,
            reliability=getattr(api.Reliability, reliability),
        )
        for number, (priority, control, express, reliability) in enumerate(kinds)
    }
    with hearing(way, f"{key}/**") as ear:
        missing = set(publishers)
        end = time.monotonic() + PATIENCE
        while missing:
            assert time.monotonic() < end, f"never heard: {missing}"
            for name in sorted(missing):
                publishers[name].put(b"x")
            again = time.monotonic() + REPEAT_SECONDS
            while missing and time.monotonic() < again:
                missing -= {each.key for each in ear.heard}
                time.sleep(0.01)
    for publisher in publishers.values():
        publisher.undeclare()
    for each in ear.heard:
        priority, control, express, _ = kinds[int(each.key.rpartition("/")[2])]
        assert each.priority == f"Priority.{priority}"
        assert each.congestion_control == f"CongestionControl.{control}"
        assert each.express is express


def test_the_quality_of_service_of_a_put_without_a_publisher(way: Way) -> None:
    api, session = way.sender
    key = unique("qos")
    with hearing(way, key) as ear:
        for priority in PRIORITIES:
            session.put(
                key, b"", priority=getattr(api.Priority, priority), express=True, **blocking(api)
            )
            ear.wait(PRIORITIES.index(priority) + 1)  # another priority may overtake
        session.delete(key, priority=api.Priority.DATA_LOW, **blocking(api))
        heard = ear.wait(len(PRIORITIES) + 1)
    assert [each.priority for each in heard] == [
        f"Priority.{name}" for name in (*PRIORITIES, "DATA_LOW")
    ]
    assert [each.express for each in heard] == [True] * 7 + [False]


# ---- what stands in a sample


def test_a_plain_put(way: Way) -> None:
    api, session = way.sender
    key = unique("plain")
    with hearing(way, key) as ear:
        session.put(key, b"value", **blocking(api))
        (heard,) = ear.wait(1)
    assert (heard.timestamp is not None) is bool(way.routers)  # a router adds it
    assert heard._replace(timestamp=None) == Seen(
        key,
        "SampleKind.PUT",
        b"value",
        "zenoh/bytes",
        "Priority.DATA",
        "CongestionControl.BLOCK",
        False,
        None,
        None,
        None,
        None,
    )


def test_puts_and_deletes_with_all_that_may_stand_beside(way: Way) -> None:
    api, session = way.sender
    key = unique("beside")
    stamp = session.new_timestamp()
    with hearing(way, key) as ear, session.declare_publisher(key, **blocking(api)) as publisher:
        source = api.SourceInfo(publisher.id, 4_000_000_000)
        beside = {"attachment": b"beside", "timestamp": stamp, "source_info": source}
        publisher.put(b"one", **beside)
        publisher.delete(**beside)
        session.put(key, b"two", **beside, **blocking(api))
        session.delete(key, **beside, **blocking(api))
        heard = ear.wait(4)
        wanted_source = (str(session.zid()), publisher.id.eid, 4_000_000_000)
    assert [(each.kind, each.payload) for each in heard] == [
        ("SampleKind.PUT", b"one"),
        ("SampleKind.DELETE", b""),
        ("SampleKind.PUT", b"two"),
        ("SampleKind.DELETE", b""),
    ]
    for each in heard:
        assert each.attachment == b"beside"
        assert each.timestamp == str(stamp)
        assert each.source == wanted_source
        assert each.stack is None


def test_a_delete_has_no_timestamp_unless_given(way: Way) -> None:
    api, session = way.sender
    key = unique("delete")
    with hearing(way, key) as ear:
        session.delete(key, **blocking(api))
        (heard,) = ear.wait(1)
    assert heard.kind == "SampleKind.DELETE"
    assert heard.timestamp is None


@pytest.mark.parametrize("attachment", [b"", b"a", b"\0" * 5000, "text"])
def test_attachments(some_way: Way, attachment: bytes | str) -> None:
    api, session = some_way.sender
    key = unique("attachment")
    with hearing(some_way, key) as ear:
        session.put(key, b"", attachment=attachment, **blocking(api))
        session.put(key, b"", **blocking(api))
        heard = ear.wait(2)
    wanted = attachment.encode() if isinstance(attachment, str) else attachment
    assert [each.attachment for each in heard] == [wanted, None]


def test_empty_payloads(way: Way) -> None:
    api, session = way.sender
    key = unique("empty")
    with hearing(way, key) as ear, session.declare_publisher(key, **blocking(api)) as publisher:
        session.put(key, b"", **blocking(api))
        publisher.put(b"")
        session.put(key, b"", encoding="text/plain", attachment=b"x", **blocking(api))
        heard = ear.wait(3)
    assert [(each.kind, each.payload) for each in heard] == [("SampleKind.PUT", b"")] * 3


def test_a_timestamping_session_stamps(some_way: Way) -> None:
    """A timestamp that a session makes is its own and grows."""
    _, session = some_way.sender
    stamps = [session.new_timestamp() for _ in range(3)]
    assert [str(stamp) for stamp in sorted(stamps)] == [str(stamp) for stamp in stamps]
    assert {str(stamp).partition("/")[2] for stamp in stamps} == {str(session.zid())}


# ---- keys


def test_wildcard_publications(way: Way) -> None:
    api, session = way.sender
    key = unique("wild")
    keys = [f"{key}/*", f"{key}/**", f"{key}/a$*", f"{key}/a/*/c", f"{key}/ab"]
    with hearing(way, f"{key}/ab", f"{key}/*") as ear:
        for each in keys:
            session.put(each, each, **blocking(api))
        heard = ear.wait(4)
    wanted = [each for each in keys if each != f"{key}/a/*/c"]
    assert [each.key for each in heard] == [each.payload.decode() for each in heard] == wanted


def test_declared_keys_and_publishers(way: Way) -> None:
    api, session = way.sender
    key = unique("declared")
    with hearing(way, f"{key}/**", f"{key}/a") as ear:
        declared = session.declare_keyexpr(f"{key}/a")
        session.put(declared, b"1", **blocking(api))
        session.put(f"{key}/a", b"2", **blocking(api))
        session.put(declared.join("b"), b"3", **blocking(api))
        with session.declare_publisher(declared, **blocking(api)) as publisher:
            publisher.put(b"4")
        session.undeclare(declared)
        session.put(f"{key}/a", b"5", **blocking(api))
        heard = ear.wait(5)
    assert [(each.key, each.payload) for each in heard] == [
        (f"{key}/a", b"1"),
        (f"{key}/a", b"2"),
        (f"{key}/a/b", b"3"),
        (f"{key}/a", b"4"),
        (f"{key}/a", b"5"),
    ]


def test_a_declared_key_of_a_subscriber(way: Way) -> None:
    key = unique("declared")
    _, receiving = way.receiver
    declared = receiving.declare_keyexpr(f"{key}/*")
    api, session = way.sender
    with hearing(way, declared, f"{key}/a") as ear:
        session.put(f"{key}/a", b"1", **blocking(api))
        ear.wait(1)
    receiving.undeclare(declared)


def test_verbatim_chunks_are_not_matched_by_wildcards(some_way: Way) -> None:
    api, session = some_way.sender
    key = unique("verbatim")
    with hearing(some_way, f"{key}/**", f"{key}/last") as ear:
        session.put(f"{key}/@hidden", b"no", **blocking(api))
        session.put(f"{key}/a/@hidden/b", b"no", **blocking(api))
        session.put(f"{key}/last", b"yes", **blocking(api))
        heard = ear.wait(1)
    assert [each.key for each in heard] == [f"{key}/last"]


def test_keys_with_odd_characters(some_way: Way) -> None:
    api, session = some_way.sender
    key = unique("odd")
    keys = [f"{key}/{each}" for each in ("a b", "ümläut", "日本", "😀", "%2F", "a=b;c", "x" * 1000)]
    with hearing(some_way, f"{key}/**", keys[0]) as ear:
        for each in keys:
            session.put(each, b"", **blocking(api))
        heard = ear.wait(len(keys))
    assert [each.key for each in heard] == keys


# ---- who hears


def test_each_of_several_subscribers_hears_once(way: Way) -> None:
    api, session = way.sender
    key = unique("several")
    with (
        hearing(way, f"{key}/*", f"{key}/a") as star,
        hearing(way, f"{key}/**", f"{key}/a") as all_below,
        hearing(way, f"{key}/a") as one,
        hearing(way, f"{key}/b") as other,
    ):
        session.put(f"{key}/a", b"1", **blocking(api))
        session.put(f"{key}/b", b"2", **blocking(api))
        assert [each.payload for each in star.wait(2)] == [b"1", b"2"]
        assert [each.payload for each in all_below.wait(2)] == [b"1", b"2"]
        assert [each.payload for each in one.wait(1)] == [b"1"]
        assert [each.payload for each in other.wait(1)] == [b"2"]


def test_after_undeclare_nothing_comes(way: Way) -> None:
    api, session = way.sender
    key = unique("undeclared")
    with hearing(way, f"{key}/on") as on:
        with hearing(way, f"{key}/off") as off:
            session.put(f"{key}/off", b"1", **blocking(api))
            off.wait(1)
        with session.declare_publisher(f"{key}/off", **blocking(api)) as publisher:
            until(lambda: publisher.matching_status.matching, lambda found: not found, PATIENCE)
            publisher.put(b"2")
        session.put(f"{key}/on", b"3", **blocking(api))
        on.wait(1)
        off.wait(1)


def test_localities(way: Way) -> None:
    """A sample for the session itself does not leave it; a remote one does not stay."""
    api, session = way.sender
    key = unique("local")
    own: list[bytes] = []
    with (
        hearing(way, key) as ear,
        session.declare_subscriber(key, lambda sample: own.append(bytes(sample.payload))),
    ):
        for name in ("SESSION_LOCAL", "REMOTE", "ANY"):
            destination = getattr(api.Locality, name)
            session.put(key, name, allowed_destination=destination, **blocking(api))
        heard = ear.wait(2)
        until(lambda: len(own), lambda found: found == 2, PATIENCE)
    assert [each.payload for each in heard] == [b"REMOTE", b"ANY"]
    assert own == [b"SESSION_LOCAL", b"ANY"]


def test_a_subscriber_that_wants_only_its_own(some_way: Way) -> None:
    api, session = some_way.sender
    key = unique("local")
    receiver = some_way.receiver
    own: list[bytes] = []
    with (
        receiver.session.declare_subscriber(
            key,
            lambda sample: own.append(bytes(sample.payload)),
            allowed_origin=receiver.api.Locality.SESSION_LOCAL,
        ),
        hearing(some_way, key) as ear,
    ):
        session.put(key, b"far", **blocking(api))
        ear.wait(1)
        receiver.session.put(key, b"near")
        ear.wait(2)
        until(lambda: len(own), bool, PATIENCE)
    assert own == [b"near"]


def test_a_burst_keeps_its_order(way: Way) -> None:
    """Many in one batch, of several kinds, with several keys."""
    api, session = way.sender
    key = unique("burst")
    many = 1000
    with hearing(way, f"{key}/*", f"{key}/0") as ear:
        publishers = [
            session.declare_publisher(f"{key}/{number}", **blocking(api)) for number in range(5)
        ]
        for number in range(many):
            publisher = publishers[number % 5]
            if number % 7 == 0:
                publisher.put(str(number), attachment=str(number))
            elif number % 11 == 0:
                publisher.put(str(number), encoding="text/plain")
            else:
                publisher.put(str(number))
        heard = ear.wait(many)
        for publisher in publishers:
            publisher.undeclare()
    for number, each in enumerate(heard):
        assert each.key == f"{key}/{number % 5}"
        assert each.payload == str(number).encode()
        assert each.attachment == (each.payload if number % 7 == 0 else None)
        plain = number % 7 and number % 11 == 0
        assert each.encoding == ("text/plain" if plain else "zenoh/bytes")


# ---- timestamps on the way


@pytest.mark.parametrize(
    "which",
    [("send",), ("route",), ("receive",), ("send", "receive"), ("send", "route", "receive")],
    ids="-".join,
)
def test_timestamp_stacks(way: Way, which: tuple[str, ...]) -> None:
    api, session = way.sender
    key = unique("stack")
    asked = instrumentation(api, *which)
    with hearing(way, key) as ear, session.declare_publisher(key, **blocking(api)) as publisher:
        session.put(key, b"1", timestamp_instrumentation=asked, **blocking(api))
        session.delete(key, timestamp_instrumentation=asked, **blocking(api))
        publisher.put(b"2", timestamp_instrumentation=asked)
        publisher.delete(timestamp_instrumentation=asked)
        publisher.put(b"3")
        heard = ear.wait(5)
    wanted = tuple(passage(way, which))
    assert [each.stack for each in heard] == [wanted] * 4 + [None]


def test_the_clocks_of_a_timestamp_stack(some_way: Way) -> None:
    """SEND is the sender's, RECEIVE the receiver's."""
    api, session = some_way.sender
    key = unique("stack")
    taken: list[Any] = []
    with some_way.receiver.session.declare_subscriber(key, taken.append):
        some_way.sender.matching(key)
        asked = instrumentation(api, "send", "receive")
        session.put(key, b"", timestamp_instrumentation=asked, **blocking(api))
        (sample,) = until(lambda: taken, bool, PATIENCE)
    records = sample.timestamp_stack.records
    owners = [str(record.timestamp()).partition("/")[2] for record in records]
    assert owners == [str(session.zid()), str(some_way.receiver.session.zid())]
