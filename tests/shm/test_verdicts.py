"""Verdicts: a payload is read as it was sent, or not at all; a sender that ends loses none."""

import fcntl
import os
from collections.abc import Callable, Iterator

import pytest

from tests.support.shared_memory import filled, give_back, small_arena
from zenlake.api.values.zbytes import ZBytes
from zenlake.shm import holds
from zenlake.shm.arena import Arena, SharedBuffer
from zenlake.shm.foreign import ForeignMemory, read_pointer
from zenlake.shm.segment import ShmError

DATA = bytes(range(250)) * 20
OTHER = b"other" * 1000


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = small_arena(1 << 14)
    yield arena
    arena.close()


def shared(arena: Arena, data: bytes = DATA) -> SharedBuffer:
    return filled(arena, data)


def received(memory: ForeignMemory, buffer: SharedBuffer) -> ZBytes:
    return ZBytes.of(memory.view(read_pointer(buffer.pointer(len(DATA)))))


def is_valid(payload: ZBytes) -> bool:
    found = payload.as_shm()
    assert found is not None
    return found.is_valid()


def unmap(arena: Arena) -> None:
    """Give the lock up, as an owner of eclipse-zenoh does: the file is left to its readers."""
    fcntl.flock(arena.segment._fd, fcntl.LOCK_UN)


def remove(arena: Arena) -> None:
    arena.segment.close()


ENDS: dict[str, Callable[[Arena], None]] = {"unmaps": unmap, "removes": remove}
READERS = {"one reader": 0, "two readers": 1, "three readers": 2}


@pytest.mark.parametrize("others", READERS)
@pytest.mark.parametrize("end", ENDS)
def test_a_payload_outlives_an_owner_that_drops_it_and_ends(
    arena: Arena, memory: ForeignMemory, end: str, others: str
) -> None:
    buffer = shared(arena)
    payload = received(memory, buffer)
    more = [ForeignMemory() for _ in range(READERS[others])]
    for other in more:
        other.segment(arena.segment.number)
    buffer.header.next_generation()
    ENDS[end](arena)
    assert payload.to_bytes() == DATA
    assert is_valid(payload)
    buffer.header.next_generation()  # The header may be used again, the memory is not.
    assert payload.to_bytes() == DATA
    for other in more:
        other.drop_unheld()


def test_a_payload_outlives_the_mapping_by_its_reader(arena: Arena, memory: ForeignMemory) -> None:
    buffer = shared(arena)
    payload = received(memory, buffer)
    buffer.header.next_generation()
    arena.segment.close()
    memory._segments.pop(arena.segment.number).close()
    assert payload.to_bytes() == DATA


def test_a_reader_waits_for_an_owner_that_is_ending(
    arena: Arena, memory: ForeignMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = shared(arena)
    payload = received(memory, buffer)
    buffer.header.next_generation()
    monkeypatch.setattr(holds, "LEAVE_SECONDS", float("inf"))
    monkeypatch.setattr("zenlake.shm.holds.time.sleep", lambda _: unmap(arena))
    assert not is_valid(payload)
    assert payload.to_bytes() == DATA
    assert is_valid(payload)


@pytest.mark.parametrize("others", READERS)
def test_a_payload_that_a_living_owner_drops_is_gone_for_good(
    arena: Arena, memory: ForeignMemory, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = shared(arena)
    payload = received(memory, buffer)
    more = [ForeignMemory() for _ in range(READERS[others])]
    for other in more:
        other.segment(arena.segment.number)
    buffer.header.next_generation()
    monkeypatch.setattr(holds, "LEAVE_SECONDS", 0)
    with pytest.raises(ShmError, match="used the shared memory again: it deallocated"):
        payload.to_bytes()
    unmap(arena)
    assert not is_valid(payload)
    with pytest.raises(ShmError, match="is gone"):
        payload.to_bytes()
    for other in more:
        other.drop_unheld()


def test_a_payload_that_was_only_marked_is_right_once_its_owner_has_ended(
    arena: Arena, memory: ForeignMemory
) -> None:
    buffer = shared(arena)
    lost, kept = received(memory, buffer), None
    arena.native.add(buffer.header_address, 1)
    kept = received(memory, buffer)
    buffer.header.invalidate()
    with pytest.raises(ShmError, match=r"did not confirm within 0\.1 s"):
        lost.to_bytes()
    unmap(arena)
    assert kept.to_bytes() == DATA
    with pytest.raises(ShmError, match="is gone"):
        lost.to_bytes()


@pytest.mark.parametrize("refill", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_a_payload_that_was_taken_back_is_gone_though_its_owner_has_ended(
    arena: Arena, memory: ForeignMemory, end: str, refill: bool
) -> None:
    """Its memory may have other bytes: the owner took it to use it again."""
    buffer = shared(arena)
    payload = received(memory, buffer)
    assert arena.reclaim(limit=1)
    if refill:
        again = arena.take(len(DATA))
        assert again is not None
        assert again.offset == buffer.offset
        again.fill(OTHER)
    ENDS[end](arena)
    assert not is_valid(payload)
    with pytest.raises(ShmError, match="is gone"):
        payload.to_bytes()
    if refill:
        give_back(buffer)


def test_a_payload_whose_header_tells_of_another_place_is_gone(
    arena: Arena, memory: ForeignMemory
) -> None:
    """Another buffer has the header now: nothing is known of this one."""
    buffer = shared(arena)
    payload = received(memory, buffer)
    buffer.header.next_generation()
    buffer.header.describe(arena.segment.number, buffer.offset + 64, 64)
    unmap(arena)
    with pytest.raises(ShmError, match="is gone"):
        payload.to_bytes()


def test_a_copy_is_right_if_the_owner_ends_meanwhile(
    arena: Arena, memory: ForeignMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ending:
        def __getitem__(self, at: slice) -> bytes:
            found = mapped[at]
            buffer.header.next_generation()
            unmap(arena)
            return found

    buffer = shared(arena)
    segment = memory.segment(arena.segment.number)
    mapped = segment.map
    with monkeypatch.context() as patch:
        patch.setattr(segment, "map", Ending())
        assert memory.copy(read_pointer(buffer.pointer(len(DATA)))) == DATA


def test_the_parent_of_a_fork_does_not_lose_its_lock_to_a_question_of_the_child(
    arena: Arena, memory: ForeignMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = shared(arena)
    segment = memory.segment(arena.segment.number)
    received(memory, buffer)
    unmap(arena)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        assert not segment.is_left()
    assert segment.is_left()
