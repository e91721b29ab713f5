"""The thread that confirms buffers: it starts with the first hold, and lingers for the next."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.shared_memory import filled
from tests.support.waiting import until
from zenlake.shm import holds as holds_module
from zenlake.shm.arena import Arena, SharedBuffer
from zenlake.shm.foreign import ForeignMemory, read_pointer

DATA = b"x" * 5000


@pytest.fixture
def memory() -> Iterator[ForeignMemory]:
    memory = ForeignMemory()
    yield memory
    memory.drop_unheld()
    until(lambda: memory.holds._thread, lambda thread: thread is None)


def shared(arena: Arena) -> SharedBuffer:
    return filled(arena, DATA)


def view(memory: ForeignMemory, buffer: SharedBuffer) -> memoryview:
    return memory.view(read_pointer(buffer.pointer(len(DATA))))


def test_one_thread_confirms_payloads_that_follow_each_other(
    arena: Arena, memory: ForeignMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds_module, "LINGER_ROUNDS", 1 << 30)
    buffer = shared(arena)
    assert view(memory, buffer) == DATA  # Given back at once.
    thread = memory.holds._thread
    assert thread is not None
    for _ in range(3):
        buffer.fill(DATA)
        kept = view(memory, buffer)
        word, bit = buffer.header.table.watchdog(buffer.header.index)
        arena.native.clear_bits(word, bit)  # As the owner does every 100 ms.
        until(lambda: arena.native.set_bits(word, 0) & bit)  # noqa: B023
        del kept
        assert memory.holds.count == 0
        assert memory.holds._thread is thread
    memory.drop_unheld()  # Which stops it.


def test_the_thread_ends_when_nothing_was_held_for_a_while(
    arena: Arena, memory: ForeignMemory
) -> None:
    assert view(memory, shared(arena)) == DATA
    until(lambda: memory.holds._thread, lambda thread: thread is None)


def test_a_hold_waits_until_the_thread_runs(
    arena: Arena, memory: ForeignMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller may keep the GIL for long afterwards, and the thread needs it to start."""
    reached = threading.Event()
    monkeypatch.setattr(holds_module, "START_SECONDS", None)
    monkeypatch.setattr(holds_module, "_become_real_time", reached.set)
    kept = view(memory, shared(arena))
    assert reached.is_set()
    assert memory.holds._running.is_set()
    del kept


@pytest.mark.parametrize("refused", [False, True])
def test_the_thread_is_real_time_where_that_is_allowed(
    arena: Arena, memory: ForeignMemory, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int, int, Any]] = []

    def set_scheduler(process: int, policy: int, parameters: Any) -> None:
        asked.append((threading.current_thread().name, process, policy, parameters.sched_priority))
        if refused:
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", set_scheduler)
    buffer = shared(arena)
    kept = view(memory, buffer)
    assert asked == [(holds_module.THREAD_NAME, 0, os.SCHED_FIFO, 1)]
    word, bit = buffer.header.table.watchdog(buffer.header.index)
    arena.native.clear_bits(word, bit)
    until(lambda: arena.native.set_bits(word, 0) & bit)
    del kept
