"""Pointers that other nodes pass on: the memory stays until their receivers have read it."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.shared_memory import filled, give_back
from zenlake.shm import node as node_module
from zenlake.shm.arena import Arena, SharedBuffer
from zenlake.shm.node import ProcessMemory
from zenlake.shm.segment import FOLDER, Segment

SIZE = 5000
WAIT = 0.2  # Seconds in which a thread that does not wait would have ended.


class Taken:
    """A way on which every message was taken."""

    def delivered(self, number: int) -> bool:
        return True


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessMemory]:
    monkeypatch.setattr(node_module, "RELAY_SECONDS", 1e9)
    memory = ProcessMemory()
    yield memory
    for table in memory.headers._tables:
        table.close()


@pytest.fixture
def sent(memory: ProcessMemory) -> Iterator[SharedBuffer]:
    """A buffer that one receiver has mapped, and not read yet."""
    arena = memory.new_arena(1 << 16)
    buffer = filled(arena, bytes(SIZE))
    buffer.sent[Taken()] = 1
    yield buffer
    arena.close()


@contextmanager
def eclipse_node(buffer: SharedBuffer) -> Iterator[None]:
    """Lock the headers as a node of eclipse-zenoh does that maps them."""
    fd = os.open(FOLDER / f"{buffer.header.table.number}.zenoh", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(fd)


def test_a_node_waits_for_receivers_behind_eclipse_zenoh(
    memory: ProcessMemory, sent: SharedBuffer
) -> None:
    with eclipse_node(sent):
        closing = threading.Thread(target=memory.await_relays)
        closing.start()
        closing.join(WAIT)
        assert closing.is_alive()
        give_back(sent)
        closing.join()


def test_readers_of_this_package_pass_no_pointers_on(
    memory: ProcessMemory, sent: SharedBuffer
) -> None:
    reader = Segment.open(sent.header.table.number)
    memory.await_relays()
    reader.close()


def test_nothing_is_awaited_that_this_process_has_itself(
    memory: ProcessMemory, sent: SharedBuffer
) -> None:
    sent.owned = True
    with eclipse_node(sent):
        memory.await_relays()


def test_memory_of_an_ended_provider_stays_until_it_is_read(
    memory: ProcessMemory, sent: SharedBuffer
) -> None:
    arena: Arena = sent.arena
    memory.end(arena)
    memory.close_ended()
    assert arena.size
    give_back(sent)
    memory.close_ended()
    assert not arena.size
    assert not memory.ended
