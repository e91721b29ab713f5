"""Advanced publishers and subscribers at work, ours against the reference's, both ways."""

import gc
import json
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import zenoh
import zenoh.ext

import zenlake.ext
from tests.support.waiting import until
from zenlake.api.config.config import Config
from zenlake.api.handlers import FifoChannel
from zenlake.api.session import open as zenlake_open
from zenlake.errors import ZError
from zenlake.runtime import kernel_loader

pytestmark = pytest.mark.slow

SOON = 30.0  # Seconds; an event that has not happened by then does not happen.
BEAT = 0.05


class Side(NamedTuple):
    session: Any
    ext: Any
    ours: bool


def free_endpoint() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp/127.0.0.1:{probe.getsockname()[1]}"


def open_side(ours: bool, **settings: Any) -> Side:
    config: Any = Config() if ours else zenoh.Config()
    settings = {
        "mode": "peer",
        "listen/endpoints": [],
        "connect/endpoints": [],
        "scouting/multicast/enabled": False,
        "timestamping/enabled": {"peer": True},
    } | settings
    for key, value in settings.items():
        config.insert_json5(key, json.dumps(value))
    session = zenlake_open(config) if ours else zenoh.open(config)
    return Side(session, zenlake.ext if ours else zenoh.ext, ours)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    kernel_loader.load()  # by a thread that no single test is to be blamed for


WHO = {"ours-theirs": (True, False), "theirs-ours": (False, True), "ours-ours": (True, True)}


@pytest.fixture(params=WHO)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Side, Side]]:
    """The side that publishes, and the side that subscribes, connected."""
    publishes, subscribes = WHO[request.param]
    yield from connected(publishes, subscribes)


@pytest.fixture
def ours() -> Iterator[tuple[Side, Side]]:
    yield from connected(True, True)


def connected(publishes: bool, subscribes: bool) -> Iterator[tuple[Side, Side]]:
    endpoint = free_endpoint()
    with ExitStack() as stack:
        near = open_side(publishes, **{"listen/endpoints": [endpoint]})
        stack.callback(near.session.close)
        far = open_side(subscribes, **{"connect/endpoints": [endpoint]})
        stack.callback(far.session.close)
        until(lambda: near.session.info.peers_zid() and far.session.info.peers_zid())
        yield near, far


def publisher(side: Side, key: str, cache: Any = 100, **options: Any) -> Any:
    ext = side.ext
    options = {
        "cache": ext.CacheConfig(cache) if isinstance(cache, int) else cache,
        "sample_miss_detection": ext.MissDetectionConfig(heartbeat=BEAT),
        "publisher_detection": True,
    } | options
    return ext.declare_advanced_publisher(side.session, key, **options)


def subscriber(side: Side, key: str, handler: Any = None, **options: Any) -> Any:
    return side.ext.declare_advanced_subscriber(side.session, key, handler, **options)


def recovering(side: Side, key: str, **options: Any) -> Any:
    recovery = side.ext.RecoveryConfig(heartbeat=True)
    return subscriber(side, key, recovery=recovery, **options)


def received(receiver: Any, count: int) -> list[str]:
    """The payloads of the next `count` samples, and that there are no more."""
    found: list[str] = []

    def enough() -> bool:
        while (sample := receiver.try_recv()) is not None:
            found.append(sample.payload.to_string())
        return len(found) >= count

    until(enough)
    return found


def seen_by(side: Side, publishing: Any, key: str) -> None:
    """Wait until what is published on `key` goes to `side`."""
    inner = publishing.session.declare_publisher(key)
    until(lambda: inner.matching_status.matching)
    inner.undeclare()


def all_has_passed(near: Side, far: Side) -> None:
    """Wait until whatever `near` sent has reached `far`."""
    with far.session.declare_subscriber("barrier") as barrier:
        seen_by(far, near, "barrier")
        near.session.put("barrier", "x")
        barrier.recv()


def numbers(values: Iterable[int]) -> list[str]:
    return [str(value) for value in values]


def lose_at_sender(monkeypatch: pytest.MonkeyPatch, publishing: Any, lost: set[str]) -> None:
    """Lose samples that our publisher publishes and keeps, before they are sent."""
    send = publishing._route.send

    class Losing:
        encoding = publishing._route.encoding

        def send(self, body: Any, instrumentation: Any) -> None:
            if bytes(body.payload).decode() not in lost:
                send(body, instrumentation)

    monkeypatch.setattr(publishing, "_route", Losing())


def lose_at_receiver(monkeypatch: pytest.MonkeyPatch, subscribing: Any, lost: set[str]) -> None:
    """Lose live samples that reached our subscriber, before it looks at them."""
    intake = subscribing._intake
    take = intake._on_samples
    monkeypatch.setattr(
        intake,
        "_on_samples",
        lambda samples: take(
            [sample for sample in samples if sample.payload.to_string() not in lost]
        ),
    )


def lose(
    monkeypatch: pytest.MonkeyPatch, near: Side, publishing: Any, subscribing: Any, lost: set[str]
) -> None:
    if near.ours:
        lose_at_sender(monkeypatch, publishing, lost)
    else:
        lose_at_receiver(monkeypatch, subscribing, lost)


# History ------------------------------------------------------------------------------------------


def test_history_is_what_the_cache_keeps(pair: tuple[Side, Side]) -> None:
    near, far = pair
    with publisher(near, "adv/history", cache=5) as p:
        for i in range(8):
            p.put(str(i))
        all_has_passed(near, far)
        with subscriber(far, "adv/*", history=far.ext.HistoryConfig()) as s:
            assert received(s, 5) == numbers(range(3, 8))
            p.put("live")
            assert received(s, 1) == ["live"]


def test_history_of_the_last_samples_only(pair: tuple[Side, Side]) -> None:
    near, far = pair
    with publisher(near, "adv/some") as p:
        for i in range(8):
            p.put(str(i))
        all_has_passed(near, far)
        with subscriber(far, "adv/*", history=far.ext.HistoryConfig(max_samples=2)) as s:
            assert received(s, 2) == ["6", "7"]
            p.put("8")
            assert received(s, 1) == ["8"]


def test_history_no_older_than(pair: tuple[Side, Side]) -> None:
    near, far = pair
    now = near.session.new_timestamp()
    old = type(now)(datetime.now(UTC) - timedelta(hours=1), now.get_id())
    with publisher(near, "adv/age") as p:
        p.put("old", timestamp=old)
        p.put("new")
        all_has_passed(near, far)
        with subscriber(far, "adv/*", history=far.ext.HistoryConfig(max_age=600)) as s:
            assert received(s, 1) == ["new"]


def test_history_by_timestamps_alone(pair: tuple[Side, Side]) -> None:
    near, far = pair
    with publisher(near, "adv/stamps", sample_miss_detection=None) as p:
        for i in range(5):
            p.put(str(i))
        all_has_passed(near, far)
        with subscriber(far, "adv/*", history=far.ext.HistoryConfig()) as s:
            assert received(s, 5) == numbers(range(5))
            p.put("5")
            assert received(s, 1) == ["5"]


def test_without_history_there_is_none(pair: tuple[Side, Side]) -> None:
    near, far = pair
    with publisher(near, "adv/none", publisher_detection=False) as p:
        p.put("before")
        all_has_passed(near, far)
        with subscriber(far, "adv/none") as s:
            seen_by(far, near, "adv/none")
            p.put("after")
            assert received(s, 1) == ["after"]


def test_what_is_kept_comes_as_it_was_published(pair: tuple[Side, Side]) -> None:
    near, far = pair
    cache = near.ext.CacheConfig(3, replies_config=near.ext.RepliesConfig(express=True))
    stamp = near.session.new_timestamp()
    with publisher(near, "adv/as/is", cache=cache, encoding="text/plain") as p:
        p.put(b"\x00\x01", encoding="text/csv;x", attachment=b"beside", timestamp=stamp)
        p.put("plain")
        p.delete(attachment="gone")
        all_has_passed(near, far)
        with subscriber(far, "adv/as/*", history=far.ext.HistoryConfig()) as s:
            first, second, third = (s.recv() for _ in range(3))
        assert bytes(first.payload) == b"\x00\x01"
        assert str(first.encoding) == "text/csv;x"
        assert bytes(first.attachment) == b"beside"
        assert str(first.timestamp) == str(stamp)
        assert str(first.key_expr) == "adv/as/is"
        assert [sample.source_info.source_sn for sample in (first, second, third)] == [0, 1, 2]
        assert first.source_info.source_id.eid == p.id.eid
        assert str(first.source_info.source_id.zid) == str(p.id.zid)
        assert str(second.encoding) == "text/plain"
        # The cache of the reference gives a delete out as an empty put.
        assert str(third.kind) == ("SampleKind.DELETE" if near.ours else "SampleKind.PUT")
        assert bytes(third.attachment) == b"gone"


def _enums(side: Side) -> ModuleType:
    import zenlake.api.values.enums

    return zenlake.api.values.enums if side.ours else zenoh


@pytest.mark.parametrize("who", WHO)
def test_the_history_of_a_publisher_that_comes_later(who: str) -> None:
    publishes, subscribes = WHO[who]
    endpoint = free_endpoint()
    retry = {"period_init_ms": 50, "period_max_ms": 100, "period_increase_factor": 1}
    with ExitStack() as stack:
        far = open_side(
            subscribes,
            **{"connect/endpoints": [endpoint], "connect/retry": retry},
        )
        stack.callback(far.session.close)
        history = far.ext.HistoryConfig(detect_late_publishers=True)
        s = stack.enter_context(subscriber(far, "adv/**", history=history))
        near = open_side(publishes, **{"listen/endpoints": [endpoint]})
        stack.callback(near.session.close)
        p = stack.enter_context(publisher(near, "adv/late"))
        for i in range(5):
            p.put(str(i))
        assert received(s, 5) == numbers(range(5))


# Recovery -----------------------------------------------------------------------------------------


def test_what_is_lost_is_recovered(
    pair: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = pair
    with publisher(near, "adv/lost") as p, recovering(far, "adv/*") as s:
        seen_by(far, near, "adv/lost")
        lose(monkeypatch, near, p, s, {"3", "4", "7", "9"})
        for first, end in ((0, 6), (6, 9), (9, 10)):
            for i in range(first, end):
                p.put(str(i))
            assert received(s, end - first) == numbers(range(first, end))


@pytest.mark.parametrize("who", ["theirs-ours", "ours-ours"])
def test_gaps_that_open_while_others_are_being_filled(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference gives these up when its first query ends; ours asks again."""
    lost = {str(i) for i in range(1, 2000) if i % 7 == 0}
    for near, far in connected(*WHO[who]):
        with (
            publisher(near, "adv/gaps", cache=5000) as p,
            recovering(far, "adv/*", handler=FifoChannel(5000)) as s,
            s.sample_miss_listener() as misses,
        ):
            seen_by(far, near, "adv/gaps")
            lose(monkeypatch, near, p, s, lost)
            for i in range(2000):
                p.put(str(i))
            assert received(s, 2000) == numbers(range(2000))
            assert misses.try_recv() is None


def test_the_last_sample_is_recovered_by_a_sporadic_heartbeat(
    pair: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = pair
    detection = near.ext.MissDetectionConfig(sporadic_heartbeat=BEAT)
    with (
        publisher(near, "adv/sporadic", sample_miss_detection=detection) as p,
        recovering(far, "adv/*") as s,
    ):
        seen_by(far, near, "adv/sporadic")
        lose(monkeypatch, near, p, s, {"1"})
        p.put("0")
        assert received(s, 1) == ["0"]
        p.put("1")
        assert received(s, 1) == ["1"]


def test_the_last_sample_is_recovered_by_asking_periodically(
    pair: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = pair
    detection = near.ext.MissDetectionConfig()
    recovery = far.ext.RecoveryConfig(periodic_queries=timedelta(seconds=BEAT))
    with (
        publisher(near, "adv/asking", sample_miss_detection=detection) as p,
        subscriber(far, "adv/*", recovery=recovery) as s,
    ):
        seen_by(far, near, "adv/asking")
        lose(monkeypatch, near, p, s, {"1", "2"})
        p.put("0")
        assert received(s, 1) == ["0"]
        p.put("1")
        p.put("2")
        assert received(s, 2) == ["1", "2"]


def test_what_cannot_be_recovered_is_told(
    pair: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = pair
    detection = near.ext.MissDetectionConfig()
    with (
        publisher(near, "adv/gone", cache=1, sample_miss_detection=detection) as p,
        recovering(far, "adv/*") as s,
        s.sample_miss_listener() as misses,
    ):
        seen_by(far, near, "adv/gone")
        lose(monkeypatch, near, p, s, {"2", "3", "4"})
        for i in range(6):
            p.put(str(i))
        assert received(s, 3) == ["0", "1", "5"]
        miss = misses.recv()
        assert miss.nb == 3
        assert (str(miss.source.zid), miss.source.eid) == (str(p.id.zid), p.id.eid)
        assert misses.try_recv() is None


def test_without_recovery_every_miss_is_told(
    pair: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = pair
    with publisher(near, "adv/miss", cache=None) as p, subscriber(far, "adv/*") as s:
        told: list[int] = []
        listener = s.sample_miss_listener(lambda miss: told.append(miss.nb))
        seen_by(far, near, "adv/miss")
        lose(monkeypatch, near, p, s, {"1", "2", "4"})
        for i in range(6):
            p.put(str(i))
        assert received(s, 3) == ["0", "3", "5"]
        until(lambda: len(told) == 2)
        assert told == [2, 1]
        listener.undeclare()


# Detection ----------------------------------------------------------------------------------------


def test_publishers_are_detected(pair: tuple[Side, Side]) -> None:
    near, far = pair
    with subscriber(far, "adv/**") as s, s.detect_publishers() as live:
        p = publisher(near, "adv/seen")
        came = live.recv()
        assert str(came.kind) == "SampleKind.PUT"
        assert str(came.key_expr) == f"adv/seen/@adv/pub/{p.id.zid}/{p.id.eid}/_"
        with s.detect_publishers(history=True) as present:
            assert str(present.recv().key_expr) == str(came.key_expr)
        p.undeclare()
        went = live.recv()
        assert str(went.kind) == "SampleKind.DELETE"
        assert str(went.key_expr) == str(came.key_expr)


def test_a_publisher_that_is_not_numbered_says_so_in_its_token(pair: tuple[Side, Side]) -> None:
    near, far = pair
    with (
        subscriber(far, "adv/**") as s,
        publisher(near, "adv/clock", sample_miss_detection=None) as p,
        s.detect_publishers(history=True) as present,
    ):
        assert str(present.recv().key_expr) == f"adv/clock/@adv/pub/{p.id.zid}/uhlc/_"


def test_subscribers_are_detected(pair: tuple[Side, Side]) -> None:
    near, far = pair
    tokens = near.session.liveliness().declare_subscriber("adv/**/@adv/sub/**", history=True)
    s = subscriber(far, "adv/x/**", subscriber_detection=True)
    came = tokens.recv()
    assert str(came.key_expr) == f"adv/x/**/@adv/sub/{s.id.zid}/{s.id.eid}/_"
    s.undeclare()
    assert str(tokens.recv().kind) == "SampleKind.DELETE"
    tokens.undeclare()


def test_others_see_nothing_of_all_this(pair: tuple[Side, Side]) -> None:
    near, far = pair
    with (
        far.session.declare_subscriber("**") as plain,
        publisher(near, "adv/hidden") as p,
        recovering(far, "adv/*", history=far.ext.HistoryConfig()) as s,
    ):
        seen_by(far, near, "adv/hidden")
        p.put("1")
        assert received(s, 1) == ["1"]
        assert received(plain, 1) == ["1"]


# What ours holds besides --------------------------------------------------------------------------


def test_undeclared_is_said_as_the_reference_says_it(pair: tuple[Side, Side]) -> None:
    near, far = pair
    p, s = publisher(near, "adv/end"), subscriber(far, "adv/end")
    misses = s.sample_miss_listener()
    p.undeclare()
    s.undeclare()
    error = (ZError, zenoh.ZError)
    for call in (lambda: p.put("x"), p.delete, p.undeclare, lambda: p.key_expr, lambda: p.id):
        with pytest.raises(error, match="Undeclared publisher"):
            call()
    for call in (s.recv, s.try_recv, s.undeclare, s.sample_miss_listener, s.detect_publishers):
        with pytest.raises(error, match="Undeclared subscriber"):
            call()
    with pytest.raises(error, match="channel is empty and closed"):
        misses.try_recv()
    misses.undeclare()
    with pytest.raises(error, match="Undeclared sample-miss listener"):
        misses.undeclare()


def test_who_wants_replies_on_its_own_key_gets_none_from_a_cache(pair: tuple[Side, Side]) -> None:
    near, far = pair
    with publisher(near, "adv/own/key") as p:
        p.put("0")
        until(lambda: list(far.session.get("adv/own/key/@adv/**?_anyke")))
        assert list(far.session.get("adv/own/key/@adv/**")) == []


def test_the_end_of_the_session_ends_them(pair: tuple[Side, Side]) -> None:
    near, far = pair
    p = publisher(near, "adv/close")
    s = recovering(far, "adv/close", history=far.ext.HistoryConfig())
    misses = s.sample_miss_listener()
    far.session.close()
    assert list(s) == []
    assert list(misses) == []
    near.session.close()
    with pytest.raises((ZError, zenoh.ZError), match="session closed"):
        p.put("x")
    p.undeclare()
    s.undeclare()


def test_refused_as_by_the_reference(pair: tuple[Side, Side]) -> None:
    near, far = pair
    ext, error = far.ext, (ZError, zenoh.ZError)
    with pytest.raises(error, match="max_samples must not be zero"):
        subscriber(far, "adv/x", history=ext.HistoryConfig(max_samples=0))
    with pytest.raises(error, match="max_age must not be zero"):
        subscriber(far, "adv/x", history=ext.HistoryConfig(max_age=0))
    with pytest.raises(error, match="Invalid Key Expr"):
        subscriber(far, "adv//x")
    with pytest.raises(ValueError, match="Invalid handler type int"):
        subscriber(far, "adv/x", 3)
    with pytest.raises(error, match="max_samples must not be zero"):
        publisher(near, "adv/x", cache=0)
    with pytest.raises(error, match="Invalid Key Expr"):
        publisher(near, "adv//x")
    with publisher(near, "adv/x") as p, pytest.raises(TypeError, match="expected bytes/str type"):
        p.put(object())


@pytest.mark.parametrize("ours_or_theirs", [True, False])
def test_a_cache_needs_numbers_or_timestamps(ours_or_theirs: bool) -> None:
    side = open_side(ours_or_theirs, **{"timestamping/enabled": {"peer": False}})
    with (
        side.session,
        pytest.raises((ZError, zenoh.ZError), match="Cannot create AdvancedPublisher adv/x"),
    ):
        publisher(side, "adv/x", sample_miss_detection=None)


def test_a_value_that_was_refused_leaves_no_gap(ours: tuple[Side, Side]) -> None:
    near, far = ours
    with publisher(near, "adv/gap") as p, subscriber(far, "adv/gap") as s:
        seen_by(far, near, "adv/gap")
        p.put("0")
        with pytest.raises(TypeError):
            p.put("1", encoding="text/plain", timestamp="yesterday")
        with pytest.raises(TypeError):
            p.put(object())
        p.put("1")
        numbers = [s.recv().source_info.source_sn for _ in range(2)]
        assert numbers == [0, 1]


def test_what_is_kept_does_not_change_with_what_was_given(ours: tuple[Side, Side]) -> None:
    near, far = ours
    data = bytearray(b"before")
    with publisher(near, "adv/own") as p:
        p.put(memoryview(data))
        data[:] = b"after!"
        all_has_passed(near, far)
        with subscriber(far, "adv/own", history=far.ext.HistoryConfig()) as s:
            assert received(s, 1) == ["before"]


def test_several_threads_publish_without_a_gap(ours: tuple[Side, Side]) -> None:
    near, far = ours
    with (
        publisher(near, "adv/many", congestion_control=_enums(near).CongestionControl.BLOCK) as p,
        subscriber(far, "adv/many", FifoChannel(10_000)) as s,
        s.sample_miss_listener() as misses,
    ):
        seen_by(far, near, "adv/many")
        threads = [
            threading.Thread(target=lambda: [p.put("x") for _ in range(300)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [s.recv().source_info.source_sn for _ in range(1200)] == list(range(1200))
        assert misses.try_recv() is None


def test_a_slow_reader_makes_the_publisher_wait(ours: tuple[Side, Side]) -> None:
    near, far = ours
    block = _enums(near).CongestionControl.BLOCK
    with (
        publisher(near, "adv/slow", cache=None, congestion_control=block) as p,
        subscriber(far, "adv/slow", FifoChannel(4)) as s,
    ):
        seen_by(far, near, "adv/slow")
        done = threading.Event()

        def publish() -> None:
            for i in range(3000):
                p.put(f"{i}".ljust(1000))
            done.set()

        thread = threading.Thread(target=publish)
        thread.start()
        got = [int(s.recv().payload.to_string()) for _ in range(3000)]
        assert got == list(range(3000))
        assert done.wait(SOON)
        thread.join()


def test_a_queue_that_was_full_is_filled_again_by_asking_periodically(
    ours: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = ours
    recovery = far.ext.RecoveryConfig(periodic_queries=BEAT)
    with (
        publisher(near, "adv/full") as p,
        subscriber(far, "adv/full", FifoChannel(2), recovery=recovery) as s,
    ):
        seen_by(far, near, "adv/full")
        lose(monkeypatch, near, p, s, {"4"})
        for i in range(5):
            p.put(str(i))
        until(lambda: s._intake.skipped > 0)
        assert received(s, 5) == numbers(range(5))


def test_a_callback_goes_on_when_nobody_holds_the_subscriber(ours: tuple[Side, Side]) -> None:
    near, far = ours
    got: list[str] = []
    subscriber(
        far,
        "adv/back",
        lambda sample: got.append(sample.payload.to_string()),
        recovery=far.ext.RecoveryConfig(heartbeat=True),
        history=far.ext.HistoryConfig(detect_late_publishers=True),
    )
    gc.collect()
    with publisher(near, "adv/back") as p:
        for i in range(3):
            p.put(str(i))
        until(lambda: got == ["0", "1", "2"])


def test_a_queue_that_nobody_holds_is_undeclared(ours: tuple[Side, Side]) -> None:
    near, far = ours
    s = recovering(far, "adv/drop", subscriber_detection=True)
    seen_by(far, near, "adv/drop")
    with near.session.declare_publisher("adv/drop") as plain:
        del s
        gc.collect()
        until(lambda: not plain.matching_status.matching)
    assert [r.ok for r in near.session.liveliness().get("adv/**/@adv/**") if r.ok] == []


def test_a_publisher_that_nobody_holds_is_undeclared(ours: tuple[Side, Side]) -> None:
    near, far = ours
    with subscriber(far, "adv/drop") as s, s.detect_publishers() as live:
        p = publisher(near, "adv/drop")
        assert str(live.recv().kind) == "SampleKind.PUT"
        del p
        gc.collect()
        assert str(live.recv().kind) == "SampleKind.DELETE"


def test_a_subscriber_of_the_same_session_gets_its_history(ours: tuple[Side, Side]) -> None:
    near, _ = ours
    with publisher(near, "adv/self") as p:
        p.put("0")
        with recovering(near, "adv/self", history=near.ext.HistoryConfig()) as s:
            assert received(s, 1) == ["0"]
            p.put("1")
            assert received(s, 1) == ["1"]


def test_a_direct_callback_may_undeclare_its_subscriber(ours: tuple[Side, Side]) -> None:
    from zenlake.api.handlers import Callback

    near, far = ours
    got: list[str] = []

    def once(sample: Any) -> None:
        got.append(sample.payload.to_string())
        s.undeclare()

    s = recovering(far, "adv/once", handler=Callback(once, indirect=False))
    seen_by(far, near, "adv/once")
    with publisher(near, "adv/once") as p:
        p.put("0")
        until(lambda: got == ["0"])
        p.put("1")
    until(lambda: s._undeclared)
    assert got == ["0"]
