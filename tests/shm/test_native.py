"""Atomic operations keep every change, whichever processes and threads make them."""

import ctypes
import os
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.processes import call_command, python_environment
from tests.support.shared_memory import BITS, COUNTED, change
from tests.support.waiting import until
from zenlake.shm import native
from zenlake.shm.native import INVALIDATED, REUSED, VALID
from zenlake.shm.segment import Segment

PROCESSES = 4
ROUNDS = 50_000
SECONDS = 120.0


def fork(*arguments: int) -> int:
    """Call `change` in a child made by fork; return its id."""
    child = os.fork()
    if not child:
        try:
            change(*arguments)
        except BaseException:  # noqa: BLE001  # It must not go on with the tests.
            os._exit(1)
        os._exit(0)
    return child


@pytest.fixture
def words() -> Iterator[tuple[int, ctypes.Array[ctypes.c_uint64]]]:
    """Number and content of a segment of two words."""
    segment = Segment.create(64, 32)
    yield segment.number, (ctypes.c_uint64 * 2).from_address(segment.address)
    segment.close()


def check(words: ctypes.Array[ctypes.c_uint64]) -> None:
    assert words[COUNTED // 8] == PROCESSES * ROUNDS
    assert words[BITS // 8] == sum(1 << which * 16 for which in range(PROCESSES))


@pytest.mark.process
@pytest.mark.slow
def test_changes_of_forked_processes_are_all_kept(words: Any) -> None:
    native.load()
    number, content = words
    children = [fork(number, which * 16, ROUNDS) for which in range(PROCESSES)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * PROCESSES
    check(content)


@pytest.mark.process
@pytest.mark.slow
def test_changes_of_other_programs_are_all_kept(words: Any) -> None:
    number, content = words
    children = [
        subprocess.Popen(
            call_command("tests.support.shared_memory", "change", number, which * 16, ROUNDS),
            env=python_environment(),
        )
        for which in range(PROCESSES)
    ]
    assert [child.wait(SECONDS) for child in children] == [0] * PROCESSES
    check(content)


def test_changes_of_several_threads_are_all_kept() -> None:
    functions = native.load()
    word = ctypes.c_uint64()

    def add() -> None:
        for _ in range(ROUNDS // 10):
            functions.add(ctypes.addressof(word), 3)

    threads = [threading.Thread(target=add) for _ in range(PROCESSES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert word.value == PROCESSES * (ROUNDS // 10) * 3


def test_each_function_returns_the_value_before() -> None:
    functions = native.load()
    word = ctypes.c_uint64(5)
    at = ctypes.addressof(word)
    assert functions.add(at, -5) == 5
    assert functions.add(at, -1) == 0
    assert functions.add(at, 1) == 0xFFFF_FFFF
    assert functions.set_bits(at, 1 << 63 | 1) == 0
    assert functions.clear_bits(at, 1) == 1 << 63 | 1
    assert word.value == 1 << 63


def test_the_loop_that_confirms_lingers_for_some_rounds_unless_it_is_stopped() -> None:
    confirm = native.load().confirm
    bits, watchdogs = (ctypes.c_uint64 * 2)(0, 1 << 3), (ctypes.c_uint64 * 2)()
    table = (ctypes.c_int64 * 3)(-1, ctypes.addressof(watchdogs), ctypes.addressof(bits))
    confirm(ctypes.addressof(table), 2, 0, 5)
    assert watchdogs[1] == 0
    table[0] = 1
    thread = threading.Thread(target=confirm, args=(ctypes.addressof(table), 2, 1000, 1 << 30))
    thread.start()
    until(lambda: watchdogs[1] == 1 << 3)
    bits[1] = watchdogs[1] = 0
    bits[0] = 1  # A bit that comes while the loop lingers.
    until(lambda: watchdogs[0] == 1)
    table[0] = -1
    thread.join()
    table[0], bits[0] = 1, 0
    confirm(ctypes.addressof(table), 2, 0, 5)  # Ends by itself.


@pytest.mark.parametrize(
    ("generation", "invalidated", "verdict"),
    [(7, 0, VALID), (7, 1, INVALIDATED), (8, 0, REUSED), (8, 1, REUSED)],
)
def test_a_reader_gives_its_reference_back_unless_the_buffer_is_reused(
    generation: int, invalidated: int, verdict: int
) -> None:
    functions = native.load()
    header = (ctypes.c_uint32 * 8)(3, invalidated, generation)
    watchdog = ctypes.c_uint64()
    at = ctypes.addressof(header)
    assert functions.hold(at, 7, ctypes.addressof(watchdog), 1 << 40) == verdict
    assert watchdog.value == 1 << 40
    assert functions.finish(at, 7) == verdict
    assert header[0] == (3 if verdict == REUSED else 2)
