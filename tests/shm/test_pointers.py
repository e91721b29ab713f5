"""Puts with pointers, one or many at once: what the kernel finds is what the object codec reads."""

import ctypes
import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies as s
from tests.support.shared_memory import give_back, small_arena
from tests.support.waiting import until
from zenlake.api.values.zbytes import ZBytes, payload_bytes
from zenlake.shm import holds, pointers
from zenlake.shm.arena import Arena, SharedBuffer
from zenlake.shm.foreign import ForeignMemory
from zenlake.shm.pointers import MAX_COPIED_BYTES, MAX_MESSAGES, PointerReader, SharedPuts
from zenlake.shm.segment import ShmError
from zenlake.wire.cursor import ByteReader, encode
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.put import SHM_SLICE, Put, Slice
from zenlake.wire.qos import QoS
from zenlake.wire.wireexpr import WireExpr

pytestmark = pytest.mark.kernel

KEY = WireExpr(0, "shm/many")
SIZE = 100


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    arena = small_arena(1 << 20)
    yield arena
    arena.close()


@pytest.fixture(scope="module")
def memory() -> Iterator[ForeignMemory]:
    memory = ForeignMemory()
    yield memory
    memory.drop_unheld()


def payload(number: int, size: int = SIZE) -> bytes:
    return number.to_bytes(4, "little") + bytes([number & 0xFF]) * (size - 4)


def shared(arena: Arena, number: int, size: int = SIZE) -> SharedBuffer:
    buffer = arena.take(size) or arena.take_or_collect(size)
    assert buffer is not None
    buffer.fill(payload(number, size))
    return buffer


def with_pointer(push: Push, buffer: SharedBuffer, size: int = SIZE) -> bytes:
    """Encode `push`, a put, with a pointer for its payload."""
    assert isinstance(push.body, Put)
    slices = (Slice(SHM_SLICE, buffer.pointer(size)),)
    return encode(NETWORK.write, replace(push, body=replace(push.body, payload=slices, shm=True)))


def read(
    memory: ForeignMemory, data: bytes, pos: int = 0, counters: tuple[int, ...] = ()
) -> SharedPuts | None:
    return PointerReader(memory).read(data, pos, len(data), counters)


def decoded(data: bytes) -> list[Push]:
    r = ByteReader(data)
    found = []
    while r.pos < len(data):
        push: Push = NETWORK.read(r)
        found.append(push)
    return found


def copied(puts: SharedPuts) -> list[Push]:
    return [push for part in puts.copy() for push in decoded(part.data)]


usual = st.builds(
    Push,
    s.keys,
    st.builds(Put, st.just(b""), s.maybe(s.timestamps), s.encodings),
    qos=s.qos,
)


@given(st.lists(usual, min_size=1, max_size=20), s.pushes, st.booleans())
def test_the_kernel_reads_what_the_codec_reads(
    arena: Arena, memory: ForeignMemory, pushes: list[Push], other: Push, follows: bool
) -> None:
    buffers = [shared(arena, number) for number in range(len(pushes))]
    data = b"".join(map(with_pointer, pushes, buffers))
    end = len(data)
    if follows:  # Any other message ends the search.
        data += encode(NETWORK.write, other)
    puts = read(memory, data)
    assert puts is not None
    assert (puts.end, puts.lost, len(puts.rows)) == (end, 0, len(pushes))
    assert decoded(puts.heads()) == pushes
    held = puts.hold()
    assert [bytes(held.payload(n)) for n in range(len(pushes))] == [
        payload(n) for n in range(len(pushes))
    ]
    assert held.mean_size == SIZE
    del held
    gc.collect()
    assert [buffer.header.references for buffer in buffers] == [0] * len(buffers)
    assert memory.holds.count == 0


@given(usual, st.booleans())
def test_one_put_is_what_the_codec_reads(
    arena: Arena, memory: ForeignMemory, push: Push, follows: bool
) -> None:
    buffer = shared(arena, 0)
    data = with_pointer(push, buffer)
    put = PointerReader(memory).read_one(data + data * follows, 0, len(data) * (1 + follows), ())
    assert put is not None
    assert (put.end, decoded(put.head)) == (len(data), [push])
    held = put.hold()
    assert held is not None
    assert (held.mean_size, bytes(held.payload(0))) == (SIZE, payload(0))
    assert memory.holds.count == 1
    del held
    gc.collect()
    assert (buffer.header.references, memory.holds.count) == (0, 0)


def test_one_payload_that_was_taken_back_is_given_up(arena: Arena, memory: ForeignMemory) -> None:
    counter, push = ctypes.c_uint32(2), Push(KEY, Put(b""))
    taken, used_again = shared(arena, 0), shared(arena, 1)
    puts = [
        PointerReader(memory).read_one(data, 0, len(data), (ctypes.addressof(counter),) * 8)
        for data in (with_pointer(push, taken), with_pointer(push, used_again))
    ]
    taken.header.invalidate()
    used_again.header.next_generation()
    assert [put and put.hold() for put in puts] == [None, None]
    assert (taken.header.references, used_again.header.references) == (0, 1)  # One is another's.
    assert (counter.value, memory.holds.count) == (0, 0)
    give_back(used_again)


@given(st.lists(usual, min_size=1, max_size=20))
def test_copies_are_the_messages_with_their_payloads(
    arena: Arena, memory: ForeignMemory, pushes: list[Push]
) -> None:
    buffers = [shared(arena, number) for number in range(len(pushes))]
    puts = read(memory, b"".join(map(with_pointer, pushes, buffers)))
    assert puts is not None
    expected = []
    for number, push in enumerate(pushes):
        assert isinstance(push.body, Put)
        expected.append(replace(push, body=replace(push.body, payload=payload(number))))
    assert copied(puts) == expected
    assert [buffer.header.references for buffer in buffers] == [0] * len(buffers)


@given(st.binary(max_size=200), st.integers(0, 10))
def test_any_bytes_are_read_within_their_bounds(
    memory: ForeignMemory, data: bytes, pos: int
) -> None:
    for start in (b"", bytes.fromhex("5d0281120101")):
        puts = read(memory, start + data, min(pos, len(start + data)))
        assert puts is None or puts.end <= len(start + data)


@given(st.data())
def test_changed_bytes_lead_nowhere_else(
    arena: Arena, memory: ForeignMemory, data: st.DataObject
) -> None:
    buffers = [shared(arena, number) for number in range(3)]
    sent = bytearray(b"".join(with_pointer(Push(KEY, Put()), buffer) for buffer in buffers))
    for _ in range(data.draw(st.integers(1, 3))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    puts = read(memory, bytes(sent))
    held = None if puts is None else puts.hold()
    if held is not None and puts is not None:
        for number in range(len(puts.rows)):
            assert len(held.payload(number)) <= buffers[0].arena.size
    del held
    for buffer in buffers:
        arena.native.add(buffer.header_address, -buffer.header.references)


def test_what_was_taken_back_is_left_out_and_counted(arena: Arena, memory: ForeignMemory) -> None:
    buffers = [shared(arena, number) for number in range(5)]
    data = b"".join(with_pointer(Push(KEY, Put()), buffer) for buffer in buffers)
    buffers[1].header.invalidate()
    buffers[3].header.next_generation()
    puts = read(memory, data)
    assert puts is not None
    assert (puts.lost, puts.end) == (2, len(data))
    bodies = [push.body for push in copied(puts)]
    assert bodies == [Put(payload(number)) for number in (0, 2, 4)]
    # A buffer that is used again has other references than the message's.
    assert [buffer.header.references for buffer in buffers] == [0, 0, 0, 1, 0]
    arena.native.add(buffers[3].header_address, -1)


def test_what_is_taken_back_during_the_copy_is_left_out(
    arena: Arena, memory: ForeignMemory
) -> None:
    buffers = [shared(arena, number) for number in range(3)]
    puts = read(memory, b"".join(with_pointer(Push(KEY, Put()), buffer) for buffer in buffers))
    assert puts is not None
    buffers[1].header.invalidate()
    (part,) = puts.copy()
    assert part.lost == 1
    assert [push.body for push in decoded(part.data)] == [Put(payload(0)), Put(payload(2))]


def test_a_view_outlives_the_other_payloads(arena: Arena, memory: ForeignMemory) -> None:
    buffers = [shared(arena, number) for number in range(3)]
    puts = read(memory, b"".join(with_pointer(Push(KEY, Put()), buffer) for buffer in buffers))
    assert puts is not None
    held = puts.hold()
    view = held.payload(1)
    assert buffers[1].header.references == 2
    del held
    assert [buffer.header.references for buffer in buffers] == [0, 1, 0]
    assert view.readonly
    assert bytes(view) == payload(1)
    del view
    assert buffers[1].header.references == memory.holds.count == 0


def test_a_payload_that_is_looked_at_too_late_costs_no_reference(
    arena: Arena, memory: ForeignMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = shared(arena, 1)
    puts = read(memory, with_pointer(Push(KEY, Put()), buffer))
    assert puts is not None
    held = puts.hold()
    buffer.header.next_generation()  # The owner uses it for something else, with one reference.
    monkeypatch.setattr(holds, "LEAVE_SECONDS", 0)
    found = ZBytes.of(held.payload(0))
    shared_memory = found.as_shm()
    assert shared_memory is not None
    assert not shared_memory.is_valid()
    for read_it in (ZBytes.to_bytes, ZBytes.to_string, bytes, hash):
        with pytest.raises(ShmError, match=r"used the shared memory again.*ZENLAKE_SHM_COPY=1"):
            read_it(found)
    with pytest.raises(ShmError, match="used the shared memory again"):
        bytes(shared_memory)
    with pytest.raises(ShmError, match="used the shared memory again"):
        payload_bytes(found)
    del held, found, shared_memory, read_it
    assert buffer.header.references == 1
    assert memory.holds.count == 0
    arena.native.add(buffer.header_address, -1)


@pytest.mark.parametrize("sizes", [(SIZE, 5000, SIZE, 6000), (5000,), (SIZE, SIZE)])
def test_payloads_above_the_limit_are_not_copied(
    arena: Arena, memory: ForeignMemory, sizes: tuple[int, ...]
) -> None:
    buffers = [shared(arena, number, size) for number, size in enumerate(sizes)]
    puts = read(memory, b"".join(map(with_pointer, [Push(KEY, Put())] * 4, buffers, sizes)))
    assert puts is not None
    parts = list(puts._replace(limit=SIZE).copy())
    small = [number for number, size in enumerate(sizes) if size == SIZE]
    assert sum(part.lost for part in parts) == len(sizes) - len(small)
    bodies = [push.body for part in parts for push in decoded(part.data)]
    assert bodies == [Put(payload(number)) for number in small]
    assert not any(buffer.header.references for buffer in buffers)


def test_payloads_that_no_memory_is_left_for_are_not_copied(
    arena: Arena, memory: ForeignMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    buffers = [shared(arena, number) for number in range(3)]
    puts = read(memory, b"".join(with_pointer(Push(KEY, Put()), buffer) for buffer in buffers))
    assert puts is not None
    monkeypatch.setattr(pointers, "_bytes_of_size", fail)
    assert [tuple(part) for part in puts.copy()] == [(b"", 3)]
    assert not any(buffer.header.references for buffer in buffers)


def test_all_references_are_given_back_when_the_process_ends(
    arena: Arena, memory: ForeignMemory
) -> None:
    ending = ForeignMemory()
    buffers = [shared(arena, number) for number in range(4)]
    data = b"".join(with_pointer(Push(KEY, Put()), buffer) for buffer in buffers)
    puts = read(ending, data)
    assert puts is not None
    held = puts.hold()
    view = held.payload(1)
    buffers[2].header.next_generation()
    ending.holds.end()
    assert [buffer.header.references for buffer in buffers] == [0, 0, 1, 0]
    del held, view, puts
    gc.collect()
    assert [buffer.header.references for buffer in buffers] == [0, 0, 1, 0]
    arena.native.add(buffers[2].header_address, -1)
    until(lambda: ending.holds._thread, lambda thread: thread is None)
    ending.drop_unheld()


def test_segments_come_and_go_while_others_are_held(arena: Arena, memory: ForeignMemory) -> None:
    """The thread that confirms ends with the last hold, and may start again without the first."""
    other = small_arena(1 << 16)
    first = shared(other, 1)
    for _ in range(3):
        for buffer in (first, shared(arena, 2)):
            buffer.fill(payload(3))
            puts = read(memory, with_pointer(Push(KEY, Put()), buffer))
            assert puts is not None
            held = puts.hold()
            del held
        until(lambda: memory.holds._thread is None)
        table = memory._tables.pop(first.header.table.number)
        assert memory.holds.retire(table)
        del table
        gc.collect()
    other.close()


def test_one_buffer_in_many_messages_is_held_as_often(arena: Arena, memory: ForeignMemory) -> None:
    buffer = shared(arena, 7)
    arena.native.add(buffer.header_address, 9)
    puts = read(memory, with_pointer(Push(KEY, Put()), buffer) * 10)
    assert puts is not None
    held = puts.hold()
    assert memory.holds.count == 10
    assert bytes(held.payload(9)) == payload(7)
    del held
    assert buffer.header.references == memory.holds.count == 0


def test_pointers_into_other_segments_are_read_next(arena: Arena, memory: ForeignMemory) -> None:
    other = small_arena(1 << 16)
    try:
        buffers = [shared(a, n) for n, a in enumerate((arena, arena, other, other, arena))]
        data = b"".join(with_pointer(Push(KEY, Put()), buffer) for buffer in buffers)
        pos, parts = 0, []
        while pos < len(data):
            puts = read(memory, data, pos)
            assert puts is not None
            parts.append([push.body for push in copied(puts)])
            pos = puts.end
        assert [len(part) for part in parts] == [2, 2, 1]
        assert [body for part in parts for body in part] == [Put(payload(n)) for n in range(5)]
    finally:
        memory.drop_unheld()
        other.close()


@pytest.mark.parametrize("views", [True, False], ids=["held", "copied"])
def test_each_priority_has_its_counter(arena: Arena, memory: ForeignMemory, views: bool) -> None:
    """They fall when the payloads are held or copied: until then their sender confirms them."""
    words = [shared(arena, 0, 64) for _ in range(8)]
    for word in words:
        arena.native.add(word.address, 1000)

    def counts() -> list[int]:
        return [int.from_bytes(view(word), "little") for word in words]

    before = counts()
    priorities = [5, 5, 2, 7, 5]
    buffers = [shared(arena, number) for number in range(len(priorities))]
    data = b"".join(
        with_pointer(Push(KEY, Put(), QoS.from_byte(priority)), buffer)
        for priority, buffer in zip(priorities, buffers, strict=True)
    )
    puts = read(memory, data, counters=tuple(word.address for word in words))
    assert puts is not None
    assert counts() == before
    held = puts.hold() if views else list(puts.copy())
    taken = [a - b for a, b in zip(before, counts(), strict=True)]
    assert taken == [0, 0, 1, 0, 0, 3, 0, 1]
    del held


def view(buffer: SharedBuffer) -> bytes:
    """Return the first word of a buffer."""
    return buffer.arena.segment.map[buffer.offset : buffer.offset + 4]


@pytest.mark.slow
def test_more_than_are_held_or_copied_together(memory: ForeignMemory) -> None:
    size = 4096
    arena = small_arena((MAX_MESSAGES + 10) * size)
    try:
        count = MAX_MESSAGES + 5
        buffers = [shared(arena, number, size) for number in range(count)]
        data = b"".join(with_pointer(Push(KEY, Put()), buffer, size) for buffer in buffers)
        first = read(memory, data)
        assert first is not None
        assert len(first.rows) == MAX_MESSAGES
        end, found, parts = first.end, [], 0
        for part in first.copy():
            assert len(part.data) < 2 * MAX_COPIED_BYTES
            parts += 1
            found += decoded(part.data)
        assert parts == -(-MAX_MESSAGES * size // MAX_COPIED_BYTES)
        rest = read(memory, data, end)
        assert rest is not None
        assert rest.end == len(data)
        found += copied(rest)
        assert [push.body for push in found] == [Put(payload(n, size)) for n in range(count)]
    finally:
        memory.drop_unheld()
        arena.close()
