"""Source numbers: which are missing, by the run, as one sample after another would tell."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.log_recording import HALF, WRAP, Name, Numbered, by_hand, put
from zenlake.log.write import source_gaps as sources
from zenlake.log.write.source_gaps import SourceGap, SourceTracker
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.scan import Scanner

NAMES: list[Name] = [
    (b"\x01", 0),
    (b"\x01", 1),
    (b"\x01\x02", 1),
    (b"\xff" * 16, 0),
    (b"\xff" * 15, 0xFFFF_FFFF),
]


def scanned(sources: SourceTracker, pushes: list[Push]) -> list[SourceGap]:
    w = ByteWriter()
    for push in pushes:
        NETWORK.write(w, push)
    data = memoryview(bytes(w.out))
    ((rows, consumed, error),) = Scanner().bare(data, reliable=True)
    assert consumed == len(data)
    assert error is None
    return list(sources.gaps(rows, data))


def pushes_of(numbered: Iterable[Numbered]) -> list[Push]:
    return [put("a/b", b"x", each and (*each[0], each[1])) for each in numbered]


def singly(sources: SourceTracker, pushes: list[Push]) -> list[SourceGap]:
    found = []
    for row, push in enumerate(pushes):
        if push.body.source_info is not None:
            found += [gap._replace(row=row) for gap in sources.gap(push.body.source_info)]
    return found


@st.composite
def frames(draw: st.DrawFn) -> list[list[Numbered]]:
    """Sources that go on, skip, repeat, come late and wrap, interleaved, in frames."""
    at = {name: draw(st.sampled_from([0, 7, WRAP - 3, HALF])) for name in NAMES}
    some: list[list[Numbered]] = []
    steps = st.sampled_from([1, 1, 1, 1, 2, 5, 0, -1, -4, HALF - 1, HALF, HALF + 1, 1000])
    for _ in range(draw(st.integers(1, 4))):
        frame: list[Numbered] = []
        for _ in range(draw(st.integers(1, 12))):
            name = draw(st.sampled_from([None, *NAMES]))
            if name is None:
                frame.append(None)
                continue
            sn = (at[name] + draw(steps)) % WRAP
            if 0 < (sn - at[name]) % WRAP < HALF:
                at[name] = sn
            frame.append((name, sn))
        some.append(frame)
    return some


@given(frames(), st.lists(st.booleans(), min_size=4, max_size=4))
def test_gaps_are_those_of_one_sample_after_another(
    some: list[list[Numbered]], by_scan: list[bool]
) -> None:
    told, last = SourceTracker(), dict[Name, int]()
    for frame, scan in zip(some, by_scan, strict=False):
        pushes = pushes_of(frame)
        found = scanned(told, pushes) if scan else singly(told, pushes)
        assert found == by_hand(last, frame)


def one(*sns: int) -> list[Numbered]:
    return [(NAMES[0], sn) for sn in sns]


@pytest.mark.parametrize(
    ("numbered", "missing"),
    [
        (one(5, 6, 7), []),
        (one(0, 1, 5), [(2, 4, 3)]),
        (one(WRAP - 2, WRAP - 1, 0, 1), []),
        (one(WRAP - 2, 1), [(WRAP - 1, 0, 2)]),
        (one(3, 3, 3, 4), []),
        (one(3, 5, 4, 6), [(4, 4, 1)]),
        (one(9, 2, 3, 10), []),
    ],
    ids=["on", "skips", "wraps", "skips over the wrap", "repeats", "late", "starts again"],
)
def test_first_last_and_how_many(
    numbered: list[Numbered], missing: list[tuple[int, int, int]]
) -> None:
    for read in (scanned, singly):
        found = read(SourceTracker(), pushes_of(numbered))
        assert [(gap.first, gap.last, gap.missing) for gap in found] == missing


def test_sources_are_told_apart_by_id_and_entity() -> None:
    told = SourceTracker()
    scanned(told, pushes_of([(name, number) for number, name in enumerate(NAMES)]))
    found = scanned(told, pushes_of([(name, number + 2) for number, name in enumerate(NAMES)]))
    assert [(gap.id, gap.entity) for gap in found] == NAMES
    assert [gap.row for gap in found] == [0, 1, 2, 3, 4]
    assert {gap.missing for gap in found} == {1}


def test_the_source_that_was_seen_first_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_SOURCES", 2)
    told = SourceTracker()
    first, second, third = NAMES[:3]
    assert scanned(told, pushes_of([(first, 1), (second, 1), (third, 1)])) == []
    assert told.forgotten == 1
    assert scanned(told, pushes_of([(third, 3)]))[0].missing == 1
    assert scanned(told, pushes_of([(first, 9)])) == []
    assert told.forgotten == 2
