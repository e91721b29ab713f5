"""Memory to share, and the memory of other processes."""

import gc
from collections.abc import Iterator

import pytest

from tests.support.shared_memory import small_arena
from zenlake.shm.arena import Arena
from zenlake.shm.foreign import ForeignMemory


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = small_arena(1 << 16)
    yield arena
    arena.close()


@pytest.fixture
def memory() -> Iterator[ForeignMemory]:
    memory = ForeignMemory()
    yield memory
    gc.collect()
    memory.drop_unheld()
