"""Buffers of an arena: inside the segment, never two in the same place, and back after use."""

import gc
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.shared_memory import give_back, mapped_segments, read, small_arena
from tests.support.waiting import until
from zenlake.shm import headers as headers_module
from zenlake.shm import segment as segment_module
from zenlake.shm.arena import GRAIN, MAX_BYTES, STALE_SECONDS, Arena, SharedBuffer, round_size
from zenlake.shm.headers import OwnHeaders
from zenlake.shm.segment import Segment, ShmError

KIB, MIB = 1 << 10, 1 << 20


@contextmanager
def arena_of(size: int) -> Iterator[Arena]:
    with closing(small_arena(size)) as arena:
        yield arena


def taken(arena: Arena, size: int, alignment: int = 1) -> SharedBuffer:
    """Take a buffer and give it the one reference that a reader has."""
    buffer = arena.take(size, alignment)
    assert buffer is not None
    buffer.fill(b"")
    return buffer


# ---- sizes


@given(st.integers(1, 1 << 32))
def test_a_capacity_is_at_most_an_eighth_larger(size: int) -> None:
    capacity = round_size(size)
    assert size <= capacity
    assert not capacity % GRAIN
    assert capacity - size < max(GRAIN, size / 8 + 1)
    assert round_size(capacity) == capacity


@pytest.mark.parametrize("size", [1, 64, 1000, 65_536, 100_000, 3 * MIB + 5])
def test_one_buffer_may_take_all_of_an_arena(size: int) -> None:
    with arena_of(size) as arena:
        assert arena.size - GRAIN < size <= arena.size
        assert taken(arena, size).offset == 0
        assert arena.take(1) is None
        assert arena.available < GRAIN


@pytest.mark.parametrize("size", [0, -1])
def test_an_arena_has_a_size(size: int) -> None:
    with pytest.raises((ShmError, ValueError, OSError)):
        small_arena(size)


def test_an_arena_has_offsets_of_32_bits() -> None:
    with pytest.raises(ShmError, match="the most is"):
        small_arena(MAX_BYTES)


def test_an_arena_larger_than_the_system_allows_is_refused_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    create = segment_module._create_file

    def noted(number: int) -> int | None:
        made.append(number)
        return create(number)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segment_module, "_create_file", noted)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ShmError, match="No space left on device; enlarge /dev/shm"):
        small_arena(MIB)
    assert made
    assert not segment_module._path(made[0]).exists()


def test_memory_that_cannot_be_locked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zenlake.shm.arena._lock_memory", lambda _: False)
    with pytest.raises(ShmError, match="raise `ulimit -l`"):
        small_arena(MIB)


def test_an_arena_without_room_for_headers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each put would look for room again, and no warning would say why."""
    monkeypatch.setattr(headers_module, "MAX_SEGMENTS", 0)
    before = mapped_segments()
    with pytest.raises(ShmError, match="shared buffers are in use"):
        Arena(MIB, OwnHeaders())
    gc.collect()
    assert mapped_segments() == before


@pytest.mark.parametrize("alignment", [1, 8, 64, 128, 4096])
def test_buffers_are_aligned(alignment: int) -> None:
    with arena_of(256 * KIB) as arena:
        for _ in range(4):
            taken(arena, 10)
            assert not taken(arena, 100, alignment).address % alignment


# ---- use again


def test_a_buffer_is_free_again_when_its_readers_are_done() -> None:
    with arena_of(64 * KIB) as arena:
        first = taken(arena, 60 * KIB)
        generation = first.generation
        assert arena.take_or_collect(60 * KIB) is None
        give_back(first)
        time.sleep(0.002)  # FULL_SECONDS: it was full a moment ago.
        again = arena.take_or_collect(60 * KIB)
        assert again is first
        assert again.generation == generation + 1


def test_a_pointer_has_the_generation_of_its_buffer() -> None:
    with arena_of(64 * KIB) as arena:
        buffer = taken(arena, 5000)
        first = buffer.pointer(5000)
        assert buffer.pointer(5000) == first
        assert buffer.pointer(4999) != first
        give_back(buffer)
        arena.collect()
        assert arena.take_recent(5000) is buffer
        assert buffer.pointer(5000) != first


def test_free_pieces_are_joined_for_a_larger_buffer() -> None:
    with arena_of(64 * KIB) as arena:
        pieces = [taken(arena, 4 * KIB) for _ in range(16)]
        for piece in pieces[4:8]:
            give_back(piece)
        assert arena.collect() == 4 * KIB
        assert arena.take(16 * KIB) is None
        assert arena.defragment() == 16 * KIB
        assert taken(arena, 16 * KIB).offset == pieces[4].offset


def test_fragments_that_are_not_adjacent_stay_apart() -> None:
    with arena_of(64 * KIB) as arena:
        pieces = [taken(arena, 4 * KIB) for _ in range(16)]
        for piece in pieces[::2]:
            give_back(piece)
        assert arena.collect() == arena.defragment() == 4 * KIB
        assert arena.available == 32 * KIB
        assert arena.take_or_collect(8 * KIB) is None
        for piece in pieces[1::2]:
            give_back(piece)
        until(lambda: arena.take_or_collect(64 * KIB))  # A full arena is not searched at once.


def test_all_headers_are_back_after_every_buffer_is_free() -> None:
    shared = OwnHeaders()
    arena = Arena(MIB, shared)
    try:
        for _ in range(50):
            sizes = [random.Random(7).randrange(1, 9000) for _ in range(100)]
            for buffer in [taken(arena, size) for size in sizes]:
                give_back(buffer)
            arena.collect()
            assert arena.defragment() == arena.size
            assert len(shared._free) == headers_module.HEADERS
    finally:
        arena.close()


# ---- any sequence of calls


class Model:
    """An arena beside a list of what is in use, and of its bytes."""

    def __init__(self, size: int) -> None:
        self.arena = small_arena(size)
        self.used: list[tuple[SharedBuffer, bytes]] = []

    def take(self, size: int, alignment: int) -> None:
        buffer = self.arena.take(size, alignment)
        if buffer is None:
            return
        assert buffer.capacity >= size
        assert not buffer.address % alignment
        data = random.Random(len(self.used)).randbytes(size)
        buffer.fill(data)
        self.used.append((buffer, data))

    def give_back(self, which: int) -> None:
        if self.used:
            give_back(self.used.pop(which % len(self.used))[0])

    def check(self) -> None:
        end = 0
        for buffer, data in sorted(self.used, key=lambda each: each[0].offset):
            assert end <= buffer.offset
            end = buffer.offset + buffer.capacity
            assert read(buffer, len(data)) == data
            described = buffer.header.table.description(buffer.header.index)
            assert described == (0, self.arena.segment.number, buffer.offset, buffer.capacity)
        assert end <= self.arena.size <= self.arena.segment.size
        headers = {(b.header.table.number, b.header.index) for b, _ in self.used}
        assert len(headers) == len(self.used)


STEPS = st.one_of(
    st.tuples(st.just("take"), st.integers(1, 20_000), st.sampled_from([1, 8, 64, 256])),
    st.tuples(st.just("give_back"), st.integers(0, 50)),
    st.tuples(st.sampled_from(["collect", "defragment", "reclaim"])),
)


@given(st.lists(STEPS, max_size=60))
def test_live_buffers_never_overlap(steps: list[tuple[object, ...]]) -> None:
    model = Model(64 * KIB)
    with closing(model.arena):
        for name, *arguments in steps:
            owner = model if name in ("take", "give_back") else model.arena
            getattr(owner, str(name))(*arguments)
            model.check()
        while model.used:
            model.give_back(0)
        model.arena.collect()
        model.arena.defragment()
        assert model.arena.available == model.arena.size


# ---- threads


def test_threads_that_share_an_arena_never_get_the_same_buffer() -> None:
    """Each fills its buffer and looks again, while the others collect and join free pieces."""
    wrong: list[str] = []
    with arena_of(MIB) as arena:

        def use(which: int) -> None:
            random_ = random.Random(which)
            for turn in range(1500):
                size = random_.choice([3072, 5000, 40_000, 200_000])
                buffer = arena.take_recent(size) or arena.take_or_collect(size)
                if buffer is None:
                    continue
                data = bytes((which * 16 + turn % 16,)) * size
                buffer.fill(data)
                if read(buffer, size) != data or buffer.header.references != 1:
                    wrong.append(f"thread {which}, turn {turn}: {size} bytes are of another one")
                give_back(buffer)
                if turn % 40 == which:
                    arena.defragment()

        threads = [threading.Thread(target=use, args=(which,)) for which in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_buffer_that_is_not_filled_yet_is_not_collected() -> None:
    """Another thread may put, and so collect, at any moment."""
    with arena_of(64 * KIB) as arena:
        first = arena.take(5000)
        arena.collect()
        second = arena.take(5000)
        assert first is not None
        assert second is not None
        assert first is not second
        for buffer in (first, second):
            buffer.fill(b"x" * 5000)
            give_back(buffer)
        arena.collect()
        recent = arena.take_recent(5000)
        arena.collect()
        assert arena.take_recent(5000) is not recent


# ---- readers that have crashed


class Way:
    """A delivery that the test decides on."""

    def __init__(self, delivered: bool) -> None:
        self.is_delivered = delivered

    def delivered(self, number: int) -> bool:
        return self.is_delivered


def test_a_delivered_buffer_that_no_reader_confirms_is_taken_back() -> None:
    with arena_of(64 * KIB) as arena:
        buffer = taken(arena, 5000)
        buffer.sent[Way(True)] = 1
        assert arena.reclaim(10.0) == 0
        assert arena.reclaim(10.0 + STALE_SECONDS / 2) == 0
        assert arena.reclaim(10.0 + STALE_SECONDS) == buffer.capacity
        again = arena.take_recent(5000)
        assert again is not None
        assert again.offset == buffer.offset


def stop_reader(arena: Arena, size: int) -> SharedBuffer:
    """Take back a buffer of a reader that was stopped."""
    buffer = taken(arena, size)
    for turn in range(2):
        arena.reclaim(10.0 + turn * STALE_SECONDS)
    return buffer


def test_a_reader_that_was_stopped_drops_no_reference_of_the_next_payload() -> None:
    """Readers of eclipse-zenoh give a reference back whatever the header says by then."""
    with arena_of(64 * KIB) as arena:
        stopped = stop_reader(arena, 64 * KIB)
        following = taken(arena, 64 * KIB)
        assert following.header is not stopped.header
        give_back(stopped)
        assert following.header.references == 1
        assert arena.collect() == 0
        give_back(following)
        assert arena.collect() == 64 * KIB


def test_headers_of_crashed_readers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers_module, "MAX_RETIRED", 10)
    with arena_of(64 * KIB) as arena:
        stop_reader(arena, 64 * KIB)
        free = len(arena._headers._free)
        for _ in range(100):
            stop_reader(arena, 64 * KIB)
        assert free - len(arena._headers._free) <= 10


def test_a_buffer_is_taken_back_without_another_header(monkeypatch: pytest.MonkeyPatch) -> None:
    with arena_of(64 * KIB) as arena:

        def none(_: object) -> None:
            raise ShmError("no headers")

        for owned in (False, True):
            buffer = taken(arena, 64 * KIB)
            buffer.owned = owned
            with monkeypatch.context() as patch:
                patch.setattr(OwnHeaders, "take", none)
                assert arena.reclaim(limit=1) == (0 if owned else 64 * KIB)
                assert (arena.take(64 * KIB) is None) == owned
            buffer.owned = False
            give_back(buffer)
            arena.collect()


def test_a_confirmed_buffer_is_kept() -> None:
    with arena_of(64 * KIB) as arena:
        buffer = taken(arena, 5000)
        buffer.sent[Way(True)] = 1
        word, bit = buffer.header.table.watchdog(buffer.header.index)
        for turn in range(5):
            assert arena.reclaim(10.0 + turn * STALE_SECONDS) == 0
            arena.native.set_bits(word, bit)


def test_a_buffer_on_its_way_is_kept() -> None:
    with arena_of(64 * KIB) as arena:
        buffer = taken(arena, 5000)
        buffer.sent[Way(True)] = 1
        buffer.sent[Way(False)] = 1
        for turn in range(5):
            assert arena.reclaim(10.0 + turn * STALE_SECONDS) == 0


def test_a_view_of_this_process_is_kept() -> None:
    with arena_of(64 * KIB) as arena:
        buffer = taken(arena, 5000)
        buffer.owned = True
        for turn in range(5):
            assert arena.reclaim(10.0 + turn * STALE_SECONDS) == 0


# ---- the end


def test_a_closed_arena_gives_its_headers_to_others() -> None:
    shared = OwnHeaders()
    for _ in range(3):
        arena = Arena(MIB, shared)
        used = [taken(arena, 1000) for _ in range(100)]
        for buffer in used[:50]:
            give_back(buffer)
        arena.collect()
        arena.close()
        arena.close()
        assert arena.take(1000) is None
        for buffer in used[50:]:
            give_back(buffer)
    shared.retire([])
    assert len(shared._free) == headers_module.HEADERS


def test_a_closed_arena_is_unmapped_whatever_crashed_readers_still_refer_to() -> None:
    shared = OwnHeaders()
    arena = Arena(MIB, shared)
    taken(arena, 1000)
    number = arena.segment.number
    arena.close()
    del arena
    gc.collect()
    assert number not in mapped_segments()


def test_headers_with_readers_are_reused_only_when_all_are_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(headers_module, "MAX_SEGMENTS", 1)
    shared = OwnHeaders()
    arena = Arena(MIB, shared)
    old = taken(arena, 1000)
    arena.close()
    generation = old.header.generation
    taken_headers = [shared.take() for _ in range(headers_module.HEADERS - 1)]
    assert old.header not in taken_headers
    assert shared.take() is old.header
    assert old.header.generation == generation + 1
    with pytest.raises(ShmError, match="shared buffers are in use"):
        shared.take()


def test_an_arena_without_headers_loses_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with arena_of(64 * KIB) as arena:
        whole = taken(arena, 64 * KIB)
        give_back(whole)
        arena.collect()

        def none(_: object) -> None:
            raise ShmError("no headers")

        with monkeypatch.context() as patch:
            patch.setattr(OwnHeaders, "take", none)
            with pytest.raises(ShmError):
                arena.take(1000)
        assert arena.available == arena.size
        assert taken(arena, 64 * KIB).offset == 0


def test_segments_are_closed_with_the_last_object(monkeypatch: pytest.MonkeyPatch) -> None:
    segment = Segment.create(64, 32)
    path = segment_module._path(segment.number)
    assert path.exists()
    del segment
    assert not path.exists()
