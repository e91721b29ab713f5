"""The order of samples, without a network: what is given out when, and what is missing."""

import random

import pytest

from zenlake.api.values.ids import EntityGlobalId
from zenlake.api.values.sample import Sample
from zenlake.api.values.wrapped import make
from zenlake.ext import advanced_order
from zenlake.ext.advanced_config import Miss
from zenlake.ext.advanced_order import RETENTION, U32, OrderedSource, SampleOrder
from zenlake.wire import entity
from zenlake.wire.put import Put
from zenlake.wire.qos import DEFAULT
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.zenohid import WireZenohId

ME = entity.WireEntityId(WireZenohId(b"\x01"), 7)
YOU = entity.WireEntityId(WireZenohId(b"\x02"), 7)
NAME = "1/7"


def numbered(sn: int, source: entity.WireEntityId = ME) -> Sample:
    info = entity.WireSourceInfo(source, sn & U32)
    return Sample.of("a", Put(str(sn).encode(), source_info=info), DEFAULT)


def stamped(time: int, clock: bytes = b"\x01") -> Sample:
    stamp = WireTimestamp(time, WireZenohId(clock))
    return Sample.of("a", Put(str(time).encode(), timestamp=stamp), DEFAULT)


def given(order: SampleOrder) -> list[int]:
    """Return the numbers that were given out since the last call."""
    ready, order.ready = order.ready, []
    return [int(sample.payload.to_string()) for sample in ready]


def take(order: SampleOrder, *samples: Sample, now: float = 0.0) -> OrderedSource:
    for sample in samples:
        source = order.take(sample, now)
    assert source is not None
    return source


def test_what_comes_in_order_is_given_out_at_once() -> None:
    order = SampleOrder(None, recovers=True)
    take(order, numbered(5), numbered(6), numbered(7))
    assert given(order) == [5, 6, 7]
    assert order.missed == []


def test_without_number_and_timestamp_nothing_is_held() -> None:
    order = SampleOrder(None, recovers=True)
    order.history = 1
    assert order.take(Sample.of("a", Put(b"1"), DEFAULT), 0.0) is None
    assert given(order) == [1]


def test_what_comes_again_is_not_given_out_again() -> None:
    order = SampleOrder(None, recovers=True)
    take(order, numbered(5), numbered(6), numbered(5), numbered(6))
    assert given(order) == [5, 6]
    assert order.late == 2


def test_without_recovery_a_gap_is_told_and_passed() -> None:
    order = SampleOrder(None, recovers=False)
    take(order, numbered(0), numbered(4))
    assert given(order) == [0, 4]
    assert order.missed == [make(Miss, EntityGlobalId.of(ME), 3)]


def test_with_recovery_what_is_behind_a_gap_waits_for_it() -> None:
    order = SampleOrder(None, recovers=True)
    source = take(order, numbered(0), numbered(3), numbered(2))
    assert given(order) == [0]
    assert order.has_gap(source)
    take(order, numbered(1))
    assert given(order) == [1, 2, 3]
    assert not order.has_gap(source)
    assert order.missed == []


def test_what_a_query_did_not_bring_is_missing() -> None:
    order = SampleOrder(None, recovers=True)
    source = take(order, numbered(0), numbered(3), numbered(6))
    source.asked, source.queries = 6, 1
    order.flush(source)
    assert given(order) == [0]
    take(order, numbered(4))
    source.queries = 0
    order.flush(source)
    assert given(order) == [3, 4, 6]
    assert [miss.nb for miss in order.missed] == [2, 1]
    assert not order.has_gap(source)


def test_a_gap_that_opened_after_the_query_is_asked_for_by_another() -> None:
    order = SampleOrder(None, recovers=True)
    source = take(order, numbered(0), numbered(2))
    source.asked, source.queries = 2, 1
    take(order, numbered(1), numbered(5))
    source.queries = 0
    order.flush(source)
    assert given(order) == [0, 1, 2]
    assert order.has_gap(source)
    assert order.missed == []


def test_order_is_kept_past_the_wrap_of_numbers() -> None:
    order = SampleOrder(None, recovers=True)
    source = take(order, numbered(U32 - 1), numbered(U32 + 3), numbered(U32 + 1))
    assert given(order) == [U32 - 1]
    assert source.next is not None
    assert advanced_order.number_range(source.next) == f"_sn={U32}.."
    take(order, numbered(U32), numbered(U32 + 2))
    assert given(order) == [U32, U32 + 1, U32 + 2, U32 + 3]
    take(order, numbered(U32))
    assert (given(order), order.late) == ([], 1)


def test_while_history_is_asked_for_what_is_live_waits() -> None:
    order = SampleOrder(None, recovers=False)
    order.history = 1
    source = take(order, numbered(4), numbered(2), numbered(3))
    assert given(order) == []
    order.history = 0
    order.flush(source)
    assert given(order) == [2, 3, 4]


def test_no_more_is_held_than_was_asked_for() -> None:
    order = SampleOrder(3, recovers=False)
    order.history = 1
    take(order, numbered(4), numbered(2))
    assert given(order) == []
    take(order, numbered(3))
    assert given(order) == [2, 3, 4]


def test_one_sample_of_history_is_never_held() -> None:
    order = SampleOrder(1, recovers=False)
    order.history = 1
    take(order, numbered(4), numbered(3), numbered(5))
    assert given(order) == [4, 5]


def test_the_history_of_a_late_publisher_comes_before_what_is_live() -> None:
    order = SampleOrder(None, recovers=False)
    source = order.source(NAME, 0.0)
    source.queries = 1
    take(order, numbered(3), numbered(1), numbered(2))
    assert given(order) == []
    source.queries = 0
    order.flush(source)
    assert given(order) == [1, 2, 3]


def test_timestamps_order_what_has_no_number() -> None:
    order = SampleOrder(None, recovers=True)
    order.history = 1
    first = take(order, stamped(30), stamped(10), stamped(10), stamped(20))
    other = take(order, stamped(5, clock=b"\x02"))
    assert given(order) == []
    order.history = 0
    order.flush(first)
    order.flush(other)
    assert given(order) == [10, 20, 30, 5]
    take(order, stamped(25), stamped(31))
    assert given(order) == [31]
    assert order.missed == []
    assert not order.has_gap(first)


def test_each_source_has_numbers_of_its_own() -> None:
    order = SampleOrder(None, recovers=True)
    take(order, numbered(5), numbered(100, YOU), numbered(6), numbered(101, YOU))
    assert given(order) == [5, 100, 6, 101]


def test_too_many_behind_a_gap_give_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advanced_order, "PENDING_SAMPLES", 4)
    order = SampleOrder(None, recovers=True)
    source = take(order, numbered(0))
    source.queries = 1
    take(order, *(numbered(sn) for sn in range(10, 16)))
    assert given(order) == [0, 10, 11, 12, 13, 14, 15]
    assert order.missed == [make(Miss, EntityGlobalId.of(ME), 9)]
    assert order.given_up == 1


def test_too_many_sources_forget_the_one_silent_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advanced_order, "SOURCES", 3)
    order = SampleOrder(None, recovers=True)
    for name in ("1/1", "1/2", "1/3"):
        order.source(name, 0.0)
    order.source("1/1", 1.0)
    order.source("1/4", 2.0)
    assert list(order.sources) == ["1/3", "1/1", "1/4"]
    assert order.forgotten == 1


def test_a_forgotten_source_gives_out_what_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advanced_order, "SOURCES", 1)
    order = SampleOrder(None, recovers=True)
    take(order, numbered(0), numbered(2))
    order.source("2/2", 0.0)
    assert given(order) == [0, 2]
    assert [miss.nb for miss in order.missed] == [1]


def test_silence_forgets_who_is_not_known_to_live() -> None:
    order = SampleOrder(None, recovers=True)
    order.source("1/1", 0.0)
    order.source("1/2", 0.0).alive = True
    order.source("1/3", RETENTION + 1)
    assert list(order.sources) == ["1/2", "1/3"]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_arrival_is_put_in_order(seed: int) -> None:
    """Each arrival in a window, some twice, some never; queries end now and then."""
    chance = random.Random(seed)
    start = chance.choice([0, 5, U32 - 50])
    numbers = [start + i for i in range(200)]
    lost = set(chance.sample(numbers[1:], 10))
    arrivals = [n for n in numbers[1:] if n not in lost]
    arrivals += chance.sample(arrivals, 20)
    arrivals.sort(key=lambda n: n + chance.uniform(0, 8))
    order = SampleOrder(None, recovers=True)
    source = take(order, numbered(start))
    for n in arrivals:
        take(order, numbered(n))
        if order.has_gap(source):
            source.asked, source.queries = max(source.pending), 1
    source.queries = 0
    source.asked = max(source.pending, default=source.last)
    order.flush(source)
    seen = given(order)
    assert seen == sorted(set(seen))
    assert set(seen) | lost == set(numbers)
    lost_behind = {n for n in lost if n > seen[-1]}
    assert sum(miss.nb for miss in order.missed) == len(lost - lost_behind)
