"""Missing samples are in the log: where, when and exactly how many; and no received one is."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zenlake
from tests.support.fault_proxy import FaultProxy
from tests.support.log_recording import (
    SN_MASK,
    WRAP,
    Lanes,
    Lost,
    by_hand,
    lost,
    put,
    recording,
    walked,
)
from tests.support.session_pairs import dialling, listening, publisher_for
from tests.support.waiting import until
from zenlake.log.read.reader import Reader
from zenlake.log.write.recorder import Recorder
from zenlake.wire.close import Close
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.enums import CloseReason, WirePriority
from zenlake.wire.fragment import Fragment
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.slow

ZID = b"\x21\x43\x65\x87"
RELIABLE = 0x08


def said(found: list[Lost]) -> list[tuple[Any, ...]]:
    return [(each.kind, each.offset, each.lane, each.first, each.missing) for each in found]


def several(name: str, count: int = 20) -> list[Push]:
    """Enough of them for a frame that is scanned."""
    return [put("rec/a", f"{name} {number} ".encode() * 5) for number in range(count)]


def heard(recorder: Recorder, send: Callable[[], None], before: int) -> bool:
    """Whether more than so many have come, after another one is sent."""
    send()
    return recorder.stats().received > before


# ---- lanes


@pytest.mark.parametrize("qos", [True, False], ids=["lanes", "no lanes"])
@pytest.mark.parametrize("reliable", [True, False], ids=["reliable", "best effort"])
@pytest.mark.parametrize("many", [1, 20], ids=["single", "scanned"])
def test_numbers_that_a_lane_skips(tmp_path: Path, qos: bool, reliable: bool, many: int) -> None:
    priority = WirePriority.DATA_HIGH if qos else WirePriority.DATA
    lane = int(priority) | (RELIABLE if reliable else 0)
    before = time.time_ns()
    with recording(tmp_path / "log") as (recorder, port):
        with Lanes(port, WireZenohId(ZID), qos=qos, first=100) as link:
            for sn in (100, 101, 105, 106, 107, 109, 5000):
                link.frame(sn, *several(str(sn), many), reliable=reliable, priority=priority)
            link.frame(5000, *several("again"), reliable=reliable, priority=priority)
            link.frame(4000, *several("late"), reliable=reliable, priority=priority)
            link.frame(5001, *several("5001", many), reliable=reliable, priority=priority)
            until(lambda: recorder.stats().received == 8 * many)
        stats = recorder.stats()
        assert (stats.gaps, stats.lost) == (3, 3 + 1 + 4890)
    found = lost(tmp_path / "log")
    assert said(found) == [
        ("lane", 2 * many, lane, 102, 3),
        ("lane", 5 * many, lane, 108, 1),
        ("lane", 6 * many, lane, 110, 4890),
    ]
    assert [each.last for each in found] == [104, 108, 4999]
    assert {each.id for each in found} == {ZID}
    assert all(before <= each.time <= time.time_ns() for each in found)
    there = walked(tmp_path / "log")
    firsts = [int(each.payload.split()[0]) for each in there[::many]]
    assert firsts == [100, 101, 105, 106, 107, 109, 5000, 5001]
    assert {each.reliable for each in there} == {reliable}
    assert {each.link for each in there} == {ZID}


def test_lanes_count_by_themselves(tmp_path: Path) -> None:
    with (
        recording(tmp_path / "log") as (recorder, port),
        Lanes(port, WireZenohId(ZID), first=0) as link,
    ):
        one, two = WirePriority.REAL_TIME, WirePriority.BACKGROUND
        link.frame(0, put("rec/a", b"0"), priority=one)
        link.frame(0, put("rec/a", b"1"), priority=two, reliable=False)
        link.frame(2, put("rec/a", b"2"), priority=two, reliable=False)
        link.frame(1, put("rec/a", b"3"), priority=one)
        link.frame(3, put("rec/a", b"4"), priority=one)
        link.frame(1, put("rec/a", b"5"), priority=two, reliable=True)
        until(lambda: recorder.stats().received == 6)
    assert said(lost(tmp_path / "log")) == [
        ("lane", 2, int(two), 1, 1),
        ("lane", 4, int(one) | RELIABLE, 2, 1),
        ("lane", 5, int(two) | RELIABLE, 0, 1),
    ]


def test_a_gap_over_the_end_of_the_numbers(tmp_path: Path) -> None:
    with (
        recording(tmp_path / "log") as (recorder, port),
        Lanes(port, WireZenohId(ZID), first=SN_MASK - 2) as link,
    ):
        link.frame(SN_MASK - 2, put("rec/a", b"0"))
        link.frame(3, put("rec/a", b"1"))
        link.frame(4, put("rec/a", b"2"))
        until(lambda: recorder.stats().received == 3)
    (found,) = lost(tmp_path / "log")
    assert (found.offset, found.first, found.last, found.missing) == (1, SN_MASK - 1, 2, 5)


def test_a_fragment_that_is_missing(tmp_path: Path) -> None:
    w = ByteWriter()
    NETWORK.write(w, put("rec/a", b"x" * 100_000))
    whole = bytes(w.out)
    with (
        recording(tmp_path / "log") as (recorder, port),
        Lanes(port, WireZenohId(ZID), qos=False) as link,
    ):
        cuts = [whole[start : start + 40_000] for start in range(0, len(whole), 40_000)]
        for sn, piece in enumerate(cuts):
            more = sn < len(cuts) - 1
            link.send_batch([Fragment(sn, piece, more=more, first=sn == 0)])
        link.send_batch([Fragment(3, cuts[0], more=True, first=True)])
        link.send_batch([Fragment(5, cuts[2], more=False)])
        link.frame(6, put("rec/a", b"after"))
        until(lambda: recorder.stats().received == 2)
    assert [len(each.payload) for each in walked(tmp_path / "log")] == [100_000, 5]
    assert said(lost(tmp_path / "log")) == [("lane", 1, int(WirePriority.DATA) | RELIABLE, 4, 1)]


# ---- sources


def test_numbers_that_sources_skip(tmp_path: Path) -> None:
    """Several sources in one frame, and one sample at a time."""
    one, two = (b"\x01" * 16, 3), (b"\x02", 0xFFFF_FFFF)
    frames = [
        [(one, 0), (two, WRAP - 3), (one, 1), (two, WRAP - 1), (one, 4)] * 1,
        [(two, 1)],
        [(one, 4), (one, 3), (one, 6)],
        [(one, number) for number in range(7, 60)] + [(two, 2), (one, 70), (two, 1002)],
        [(two, 1004)],
    ]
    with recording(tmp_path / "log") as (recorder, port):
        with Lanes(port, WireZenohId(ZID), qos=False) as link:
            for sn, frame in enumerate(frames):
                link.frame(
                    sn, *(put("rec/a", b"x" * 40, (*name, number)) for name, number in frame)
                )
            until(lambda: recorder.stats().received == sum(map(len, frames)))
        expected = by_hand({}, [each for frame in frames for each in frame])
        assert recorder.stats().lost == sum(gap.missing for gap in expected)
    found = lost(tmp_path / "log")
    assert [
        (each.kind, each.offset, each.id, each.entity, each.first, each.last, each.missing)
        for each in found
    ] == [
        ("source", gap.row, gap.id, gap.entity, gap.first, gap.last, gap.missing)
        for gap in expected
    ]
    assert [gap.missing for gap in expected] == [1, 2, 1, 1, 10, 999, 1]


def test_sources_of_real_publishers(tmp_path: Path) -> None:
    """Two that number what they put; one of them skips. Who does not number misses nothing."""
    with recording(tmp_path / "log") as (recorder, port), dialling(port) as session:
        skips, goes_on, plain = (
            publisher_for(
                session, f"rec/{name}", congestion_control=zenlake.CongestionControl.BLOCK
            )
            for name in "abc"
        )
        for number in range(300):
            if number not in (7, 100, 101, 102):
                skips.put(b"x", source_info=zenlake.SourceInfo(skips.id, number))
            goes_on.put(b"x", source_info=zenlake.SourceInfo(goes_on.id, number))
            plain.put(b"x")
        until(lambda: recorder.stats().received == 896)
        entity = skips.id.eid
    assert [(e.kind, e.entity, e.first, e.missing) for e in lost(tmp_path / "log")] == [
        ("source", entity, 7, 1),
        ("source", entity, 100, 3),
    ]


# ---- links


def test_a_link_that_is_cut(tmp_path: Path) -> None:
    session, port = listening()
    with (
        session,
        FaultProxy(port) as proxy,
        Recorder(tmp_path / "log", "rec/**", session=session) as recorder,
        dialling(proxy.port) as other,
    ):
        publisher = publisher_for(other, "rec/a")
        publisher.put(b"before")
        until(lambda: recorder.stats().received == 1)
        proxy.reset()
        until(lambda: recorder.stats().gaps == 1)
        until(lambda: heard(recorder, lambda: publisher.put(b"after"), 1))
        zid = other._core.exchange.zid.raw
        assert recorder.durable(30).offset >= 2
        assert recorder.stats().lost == 0, "the number is unknown"
        assert recorder.stats().gaps == 1
    (found,) = lost(tmp_path / "log")
    assert (found.kind, found.offset, found.id) == ("link", 1, zid)
    assert (found.first, found.last, found.missing) == (0, 0, -1)
    assert [each.payload for each in walked(tmp_path / "log")][:2] == [b"before", b"after"]


def test_a_goodbye_loses_nothing(tmp_path: Path) -> None:
    with recording(tmp_path / "log") as (recorder, port):
        with dialling(port) as session:
            publisher_for(session, "rec/a").put(b"x")
            until(lambda: recorder.stats().received == 1)
        until(lambda: not recorder.session.info.peers_zid())
        assert recorder.stats().gaps == 0
    assert lost(tmp_path / "log") == []


def test_a_router_that_says_goodbye_leaves_others_unheard(tmp_path: Path) -> None:
    """It is not the publishers that have ended."""
    with recording(tmp_path / "log") as (recorder, port):
        with dialling(port, mode="router") as router:
            until(lambda: heard(recorder, lambda: router.put("rec/a", b"x"), 0))
        until(lambda: recorder.stats().gaps == 1)
    (found,) = lost(tmp_path / "log")
    assert found.kind == "link"


def test_a_link_that_brought_nothing_yet_may_lose_something_too(tmp_path: Path) -> None:
    with recording(tmp_path / "log") as (recorder, port):
        link = Lanes(port, WireZenohId(ZID))
        link.frame(0, put("other", b"x"))
        until(lambda: recorder.session.info.peers_zid() or recorder.session.stats())
        link.abandon()
        with Lanes(port, WireZenohId(b"\x77")) as other:
            other.frame(0, put("rec/a", b"x"))
            until(lambda: recorder.stats().received == 1)
        until(lambda: recorder.sink.losses == {"link": 1})


def test_a_loss_with_no_sample_after_it_is_there_too(tmp_path: Path) -> None:
    with recording(tmp_path / "log") as (recorder, port):
        link = Lanes(port, WireZenohId(ZID))
        link.frame(0, put("rec/a", b"x"))
        link.frame(5, put("other", b"nobody records it"))
        until(lambda: recorder.stats().gaps == 1)
        link.abandon()
        until(lambda: recorder.stats().gaps == 2)
    assert [(each.kind, each.offset) for each in lost(tmp_path / "log")] == [
        ("lane", 1),
        ("link", 1),
    ]
    told = [
        row["loss"]
        for batch in Reader(tmp_path / "log").batches(losses=True)
        for row in batch.to_pylist()
        if row["kind"] == "loss"
    ]
    assert [each["kind"] for each in told] == ["lane", "link"]
    assert [each["count"] for each in told] == [4, None]


def test_only_a_goodbye_is_one(tmp_path: Path) -> None:
    """Not a link that breaks, nor a peer that has given this one up."""
    with recording(tmp_path / "log") as (recorder, port):
        kind, cut, gave_up = (Lanes(port, WireZenohId(bytes((zid,)))) for zid in (0x31, 0x32, 0x33))
        for link in (kind, cut, gave_up):
            link.frame(0, put("rec/a", b"x"))
        until(lambda: recorder.stats().received == 3)
        kind.close()
        gave_up.send_batch([Close(CloseReason.EXPIRED, session=True)])
        until(lambda: recorder.stats().gaps == 1)
        gave_up.abandon()
        cut.abandon()
        until(lambda: recorder.stats().gaps == 2)
    found = lost(tmp_path / "log")
    assert [(each.kind, each.id) for each in found] == [("link", b"\x33"), ("link", b"\x32")]
