"""Pointers into the memory of other processes: what leads elsewhere is refused."""

import gc
import secrets
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.shared_memory import filled, mapped_segments, small_arena
from tests.support.waiting import until
from zenlake.shm import foreign as foreign_module
from zenlake.shm import segment as segment_module
from zenlake.shm.arena import Arena, SharedBuffer
from zenlake.shm.foreign import ForeignMemory, Pointer, read_pointer
from zenlake.shm.headers import DESCRIPTION, DESCRIPTION_AT, HEADER, HEADERS
from zenlake.shm.segment import Segment, ShmError
from zenlake.wire.cursor import ByteWriter, encode

DATA = bytes(range(250)) * 20


def zint(value: int) -> bytes:
    return encode(ByteWriter.zint, "number", value)


def shared(arena: Arena, data: bytes = DATA) -> SharedBuffer:
    return filled(arena, data)


def pointer_to(buffer: SharedBuffer, size: int = len(DATA)) -> Pointer:
    return read_pointer(buffer.pointer(size))


Read = Callable[[ForeignMemory, Pointer], object]
READS: list[Read] = [ForeignMemory.copy, ForeignMemory.view]


def test_a_payload_is_copied_and_given_back(arena: Arena, memory: ForeignMemory) -> None:
    buffer = shared(arena)
    assert memory.copy(pointer_to(buffer)) == DATA
    assert buffer.header.references == 0


def test_a_view_is_given_back_with_its_last_slice(arena: Arena, memory: ForeignMemory) -> None:
    buffer = shared(arena)
    view = memory.view(pointer_to(buffer))
    part = view[100:200]
    assert view == DATA
    assert view.readonly
    assert buffer.header.references == 1
    assert memory.holds.count == 1
    view.release()
    assert part == DATA[100:200]
    assert buffer.header.references == 1
    part.release()
    del view, part
    assert buffer.header.references == 0
    assert memory.holds.count == 0


# ---- pointers


@pytest.mark.parametrize(
    "data",
    [b"", b"\x05", b"\x05\x01\x01", b"\xff" * 30, zint(5) + zint(1 << 16) + b"\x00\x00", bytes(5)],
)
def test_a_pointer_that_is_not_one_is_refused(data: bytes) -> None:
    with pytest.raises(ShmError, match="a pointer into shared memory"):
        read_pointer(data)


@pytest.mark.parametrize(("size", "header"), [(0, 0), (1, HEADERS), (1, 65_535)])
def test_numbers_out_of_range_are_refused(size: int, header: int) -> None:
    with pytest.raises(ShmError, match="is not valid"):
        read_pointer(zint(size) + zint(1) + zint(header) + zint(0))


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p, b: p._replace(size=b.capacity + 1), "leads outside"),
        (lambda p, b: p._replace(size=1 << 62), "leads outside"),
        (lambda p, b: p._replace(generation=p.generation + 1), "has been used again"),
        (lambda p, b: p._replace(table=b.arena.segment.number & 0xFFFF), "No such file"),
        (lambda p, b: p._replace(header=p.header + 1), "segment|leads outside"),
    ],
)
def test_a_pointer_that_leads_elsewhere_is_refused(
    arena: Arena,
    memory: ForeignMemory,
    read: Read,
    change: Callable[[Pointer, SharedBuffer], Pointer],
    why: str,
) -> None:
    buffer = shared(arena)
    with pytest.raises(ShmError, match=why):
        read(memory, change(pointer_to(buffer), buffer))
    assert memory.copy(pointer_to(buffer)) == DATA


@pytest.mark.parametrize("read", READS)
def test_a_buffer_that_was_taken_back_is_not_read(
    arena: Arena, memory: ForeignMemory, read: Read
) -> None:
    buffer = shared(arena)
    buffer.header.invalidate()
    with pytest.raises(ShmError, match="was taken back by its owner"):
        read(memory, pointer_to(buffer))
    assert buffer.header.references == 0
    assert memory.holds.count == 0


def test_a_payload_above_the_limit_is_not_copied(
    arena: Arena, memory: ForeignMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = shared(arena)
    with pytest.raises(ShmError, match="5000 bytes in shared memory is not copied"):
        memory.copy(pointer_to(buffer), limit=4999)
    assert buffer.header.references == 0
    buffer.fill(DATA)
    assert memory.copy(pointer_to(buffer), limit=5000) == DATA


class Exhausted:
    """Memory that cannot be copied."""

    def __getitem__(self, at: object) -> bytes:
        raise MemoryError


def test_a_payload_that_no_memory_is_left_for_is_given_back(
    arena: Arena, memory: ForeignMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = shared(arena)
    monkeypatch.setattr(memory.segment(arena.segment.number), "map", Exhausted())
    with pytest.raises(ShmError, match="if memory is short"):
        memory.copy(pointer_to(buffer))
    assert buffer.header.references == 0


# ---- headers


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("description", "why"),
    [
        ((1, None, None, None), "of protocol 1"),
        ((0, 1, None, None), "segment 1: No such file"),
        ((0, None, 1 << 16, None), "leads outside"),
        ((0, None, 0xFFFF_FFFF, 1 << 63), "leads outside"),
        ((0, None, (1 << 16) - 100, 1 << 40), "leads outside"),
        ((0, None, None, 10), "leads outside"),
    ],
)
def test_a_header_that_leads_elsewhere_is_refused(
    arena: Arena,
    memory: ForeignMemory,
    read: Read,
    description: tuple[int | None, ...],
    why: str,
) -> None:
    buffer = shared(arena)
    table, index = buffer.header.table, buffer.header.index
    true = table.description(index)
    wrong = [now if new is None else new for now, new in zip(true, description, strict=True)]
    at = index * HEADER.size + DESCRIPTION_AT
    DESCRIPTION.pack_into(table.segment.map, at, *wrong)
    with pytest.raises(ShmError, match=why):
        read(memory, pointer_to(buffer))
    DESCRIPTION.pack_into(table.segment.map, at, *true)
    assert memory.copy(pointer_to(buffer)) == DATA


def test_a_table_of_another_size_is_refused(memory: ForeignMemory) -> None:
    segment = Segment.create(4096, 16)
    with pytest.raises(ShmError, match="has 4096 bytes instead of 1310720"):
        memory.copy(Pointer(1, segment.number, 0, 0))
    segment.close()


@given(st.binary(min_size=32, max_size=32), st.integers(1, 1 << 33), st.integers(0, 3))
def test_no_header_and_no_pointer_makes_a_read_outside(
    header: bytes, size: int, generation: int
) -> None:
    """The segment number stays true, so that the other fields are looked at."""
    arena, memory = small_arena(1 << 12), ForeignMemory()
    try:
        buffer = shared(arena, b"x" * 100)
        at = buffer.header.index * HEADER.size
        table = buffer.header.table
        table.segment.map[at : at + HEADER.size] = header
        struct.pack_into("<II", table.segment.map, at + 12, 0, arena.segment.number)
        pointer = Pointer(size, table.number, buffer.header.index, generation)
        for read in READS:
            try:
                found = read(memory, pointer)
            except ShmError:
                continue
            assert isinstance(found, bytes | memoryview)
            assert len(found) == size <= arena.segment.size
    finally:
        memory.drop_unheld()
        arena.close()


# ---- what stays mapped


def test_segments_that_their_owner_has_ended_are_not_kept(memory: ForeignMemory) -> None:
    """An owner that makes and ends arenas must not fill the memory of its readers."""
    before = mapped_segments()
    for _ in range(20):
        arena = small_arena(1 << 12)
        number = arena.segment.number
        assert memory.copy(pointer_to(shared(arena, b"x" * 100), 100)) == b"x" * 100
        assert number in memory._segments
        arena.close()
        del arena
        gc.collect()
        assert len(memory._segments) <= 2
    data = {number for number in mapped_segments() - before if number >> 16}
    assert len(data) <= 2
    memory.drop_unheld()
    assert memory._segments == {}


def test_headers_that_their_owner_has_ended_are_not_kept(memory: ForeignMemory) -> None:
    """Processes that come and go behind a router must not fill the memory of its clients."""
    before, views = mapped_segments(), []
    for turn in range(20):
        arena = small_arena(1 << 12)
        table = arena._headers
        pointer = pointer_to(shared(arena, b"x" * 100), 100)
        if turn % 5:
            assert memory.copy(pointer) == b"x" * 100
        else:
            views.append(memory.view(pointer))
        arena.close()
        for own in table._tables:
            own.close()
        del arena, table, own
        gc.collect()
        assert len(memory._tables) <= 2
    assert [bytes(view) for view in views] == [b"x" * 100] * 4
    until(lambda: len(mapped_segments() - before), lambda number: number <= 2 * (len(views) + 2))
    views.clear()
    gc.collect()
    memory.drop_unheld()
    until(lambda: mapped_segments() - before, lambda left: not left)


def test_segments_of_other_sessions_are_not_kept_for_a_held_buffer(memory: ForeignMemory) -> None:
    """A third process maps them, too: nothing says that their owner has ended them."""
    before, held = mapped_segments(), small_arena(1 << 12)
    view = memory.view(pointer_to(shared(held, b"kept"), 4))
    others = [small_arena(1 << 12) for _ in range(5)]
    for other in others:
        memory.copy(pointer_to(shared(other, b"x" * 100), 100))
    memory.drop_unheld()
    assert len(memory._tables) == 1
    assert memory._segments == {}
    assert bytes(view) == b"kept"
    for arena in (held, *others):
        arena.close()
        for table in arena._headers._tables:
            table.close()
    del arena, other, others, held, table, view
    gc.collect()
    memory.drop_unheld()
    until(lambda: mapped_segments() - before, lambda left: not left)


def test_segments_of_a_process_that_has_ended_go_with_the_last_view(memory: ForeignMemory) -> None:
    """Whether or not a session follows."""
    before, arena = mapped_segments(), small_arena(1 << 12)
    views = [memory.view(pointer_to(shared(arena, b"kept"), 4)) for _ in range(2)]
    (table,) = arena._headers._tables
    arena.close()
    table.close()
    del arena, table
    memory.drop_unheld()
    views.pop()
    gc.collect()
    assert bytes(views[0]) == b"kept"
    views.clear()
    gc.collect()
    until(lambda: mapped_segments() - before, lambda left: not left)


def test_there_is_a_limit_to_processes_with_held_buffers(
    memory: ForeignMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not they have ended."""
    monkeypatch.setattr(foreign_module, "MAX_TABLES", 2)
    kept: list[memoryview] = []

    def keep() -> None:
        arena = small_arena(1 << 12)
        try:
            kept.append(memory.view(pointer_to(shared(arena, b"kept"), 4)))
        finally:
            arena.close()
            for table in arena._headers._tables:
                table.close()
            memory.drop_ended()

    keep()
    keep()
    with pytest.raises(ShmError, match="shared memory of 2 processes is in use"):
        keep()
    assert [bytes(view) for view in kept] == [b"kept"] * 2
    kept.pop()
    keep()
    assert bytes(kept[1]) == b"kept"


def test_a_number_that_is_used_again_is_of_another_process(
    memory: ForeignMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of headers have 16 bits: they meet again."""
    monkeypatch.setattr(secrets, "randbits", lambda bits: 7 if bits == 16 else 8)
    kept: list[memoryview] = []
    for content in (b"first", b"later"):
        arena = small_arena(1 << 12)
        kept.append(memory.view(pointer_to(shared(arena, content), 5)))
        arena.close()
        for table in arena._headers._tables:
            table.close()
        memory.drop_ended()
    assert [bytes(view) for view in kept] == [b"first", b"later"]


def test_a_segment_leaves_the_file_of_another_one_with_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda bits: 9)
    old = Segment.create(64, 32)
    reader = Segment.open(9)
    old.close()
    del old
    new = Segment.create(64, 32)
    reader.close()
    assert segment_module._path(9).exists()
    new.close()
    assert not segment_module._path(9).exists()


def test_there_is_a_limit_to_mapped_segments(
    memory: ForeignMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_module, "MAX_DATA_SEGMENTS", 2)
    arenas = [small_arena(1 << 12) for _ in range(3)]
    pointers = [pointer_to(shared(arena, b"x" * 100), 100) for arena in arenas]
    for pointer in pointers[:2]:
        memory.copy(pointer)
    with pytest.raises(ShmError, match="2 shared memory segments are in use"):
        memory.copy(pointers[2])
    assert memory.copy(pointers[0]) == b"x" * 100
    for arena in arenas:
        arena.close()
