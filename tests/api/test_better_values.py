"""Values of a session can be compared, hashed, sorted, copied and pickled; payloads are views."""

import copy
import pickle
from typing import Any

import pytest

import zenlake
from tests.support.session_pairs import configured, listening, opened, pair, publisher_for
from tests.support.waiting import until
from zenlake.api.values.wrapped import make
from zenlake.runtime import kernel_loader


def received() -> dict[str, Any]:
    """One of each that comes from a network, as far as a network is needed."""
    with pair() as (listener, dialler):
        sub = dialler.declare_subscriber("a/**")
        publisher = publisher_for(listener, "a/b")
        publisher.put("plain")
        plain = sub.recv()
        publisher.put(
            "all",
            encoding="text/plain;x",
            attachment=b"att",
            timestamp=listener.new_timestamp(),
            source_info=zenlake.SourceInfo(publisher.id, 7),
        )
        full = sub.recv()
        publisher.delete(attachment=b"why")
        delete = sub.recv()
        instrumentation = zenlake.TimestampInstrumentationBuilder().set_send(True).build()
        publisher.put("stamped", timestamp_instrumentation=instrumentation)
        stamped = sub.recv()
        dialler.put("a/local", memoryview(b"local"))
        local = sub.recv()

        def answer(query: zenlake.Query) -> None:
            with query:
                query.reply("q", "yes")
                query.reply_err("no")

        queryable = listener.declare_queryable("q", answer)
        until(lambda: dialler.declare_querier("q").matching_status.matching)
        replies = list(dialler.get("q", consolidation=zenlake.ConsolidationMode.NONE))
        queryable.undeclare()
        return {
            "sample": plain,
            "sample with everything": full,
            "delete": delete,
            "sample with a stack": stamped,
            "sample of one's own": local,
            "reply": replies[0],
            "error": replies[1],
            "reply's error": replies[1].err,
            "reply's sample": replies[0].ok,
            "transport": listener.info.transports()[0],
            "link": listener.info.links()[0],
            "zid": listener.zid(),
            "id": publisher.id,
            "stats": listener.stats(),
            "matching": publisher.matching_status,
        }


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    values = received()
    values["config"] = configured(mode="client")
    values["instrumentation"] = values["sample with a stack"].timestamp_stack
    return values


NAMES = (
    "sample",
    "sample with everything",
    "delete",
    "sample with a stack",
    "sample of one's own",
    "reply",
    "error",
    "reply's error",
    "reply's sample",
    "transport",
    "link",
    "zid",
    "id",
    "stats",
    "matching",
    "config",
    "instrumentation",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_value_is_equal_after_pickle(values: dict[str, Any], name: str, protocol: int) -> None:
    value = values[name]
    back = pickle.loads(pickle.dumps(value, protocol))
    assert type(back) is type(value)
    assert back == value
    assert (back != value) is False
    assert repr(back) == repr(value)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_equals_its_copies(values: dict[str, Any], name: str) -> None:
    value = values[name]
    assert copy.copy(value) == value
    assert copy.deepcopy(value) == value


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("stats", "config")])
def test_equal_values_hash_alike(values: dict[str, Any], name: str) -> None:
    value = values[name]
    back = pickle.loads(pickle.dumps(value))
    assert hash(back) == hash(value)
    assert {value, back} == {value}


def test_a_sample_keeps_all_it_has_when_pickled(values: dict[str, Any]) -> None:
    for name in NAMES:
        sample = values[name]
        if isinstance(sample, zenlake.Sample):
            back = pickle.loads(pickle.dumps(sample))
            for member in (
                "key_expr",
                "payload",
                "kind",
                "encoding",
                "timestamp",
                "congestion_control",
                "priority",
                "express",
                "attachment",
                "source_info",
                "timestamp_stack",
            ):
                assert getattr(back, member) == getattr(sample, member), (name, member)


def test_different_samples_differ(values: dict[str, Any]) -> None:
    samples = [value for value in values.values() if isinstance(value, zenlake.Sample)]
    assert len(samples) == 6
    assert len(set(samples)) == 6
    assert values["sample"] != "sample"
    assert values["reply"] != values["error"]


def test_samples_sort_by_key_then_time() -> None:
    with opened(timestamping__enabled=True) as session:
        sub = session.declare_subscriber("s/**")
        for key, text in (("s/b", "1"), ("s/a", "2"), ("s/b", "3"), ("s/a", "4")):
            session.put(key, text)
        session.delete("s/b", attachment="x")
        samples = [sub.recv() for _ in range(5)]
    ordered = sorted(samples)
    assert [(str(s.key_expr), str(s.payload)) for s in ordered] == [
        ("s/a", "2"),
        ("s/a", "4"),
        ("s/b", "1"),
        ("s/b", "3"),
        ("s/b", ""),
    ]
    assert ordered[0] < ordered[1]
    assert ordered[0] <= ordered[0]
    assert ordered[1] > ordered[0]
    assert ordered[1] >= ordered[1]


def test_samples_without_a_time_sort_too(values: dict[str, Any]) -> None:
    samples = [value for value in values.values() if isinstance(value, zenlake.Sample)]
    turned = list(reversed(samples))
    assert sorted(samples) == sorted(turned)


def test_configurations_compare_by_what_they_say() -> None:
    assert configured(mode="client") == configured(mode="client")
    assert configured(mode="client") != configured(mode="peer")


def test_a_payload_is_a_view_of_what_was_received() -> None:
    with pair() as (listener, dialler):
        sub = dialler.declare_subscriber("z")
        publisher = publisher_for(listener, "z")
        for size in (10, 1_000, 50_000):
            publisher.put(bytes(size))
            payload = sub.recv().payload
            view = payload.view
            assert view.readonly
            assert view.nbytes == size
            assert isinstance(view.obj, bytes)
            assert len(view.obj) > size  # the whole batch
            assert payload.view.obj is view.obj
        publisher.put(bytes(1_000_000))  # in fragments: put together once
        payload = sub.recv().payload
        assert payload.view.nbytes == 1_000_000
        assert payload.view.obj is payload.view.obj


def test_samples_of_one_batch_share_it() -> None:
    kernel_loader.load()
    with pair() as (listener, dialler):
        sub = dialler.declare_subscriber("z", zenlake.handlers.FifoChannel(1000))
        publisher = publisher_for(listener, "z", congestion_control=zenlake.CongestionControl.BLOCK)
        for number in range(500):
            publisher.put(number.to_bytes(8, "little"))
        payloads = [sub.recv().payload for _ in range(500)]
        assert [int.from_bytes(bytes(p), "little") for p in payloads] == list(range(500))
        assert len({id(payload.view.obj) for payload in payloads}) < 500


def test_what_is_put_to_oneself_does_not_change_later() -> None:
    with opened() as session:
        sub = session.declare_subscriber("a")
        data = bytearray(b"before")
        session.put("a", memoryview(data))
        data[:] = b"after!"
        assert sub.recv().payload == b"before"


def test_any_buffer_can_be_put() -> None:
    numpy = pytest.importorskip("numpy")
    with pair() as (listener, dialler):
        sub = dialler.declare_subscriber("n")
        publisher = publisher_for(listener, "n")
        array = numpy.arange(100_000, dtype=numpy.float64)
        publisher.put(array)
        back = numpy.frombuffer(sub.recv().payload.view, dtype=numpy.float64)
        assert (back == array).all()
        with pytest.raises(TypeError, match="contiguous"):
            publisher.put(array[::2])


def test_a_hello_is_a_value() -> None:
    session, _ = listening()
    with session:
        zid = session.zid()
    hello = make(zenlake.Hello, whatami=zenlake.WhatAmI.PEER, zid=zid, _locators=("tcp/a:1",))
    assert pickle.loads(pickle.dumps(hello)) == hello
    assert hash(copy.copy(hello)) == hash(hello)
    assert hello.locators == ["tcp/a:1"]
