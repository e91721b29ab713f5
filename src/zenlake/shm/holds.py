"""Holds: received buffers whose memory this process still reads, confirmed every 50 ms.

The owner of a buffer clears its watchdog bit every 100 ms, and takes the memory back if no reader
has set the bit again. A compiled loop sets the bits, on a thread that needs no GIL: a long call of
Python code does not lose a buffer. The thread is real-time where the system allows that, and ends
when nothing was held for a while.

A header says when its owner gave the memory up, but not what for: an owner that ends also does so,
and then writes no other bytes there.
"""

import ctypes
import logging
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from zenlake.shm import native
from zenlake.shm.headers import HEADERS, WATCHDOG_WORDS, HeaderState, HeaderTable
from zenlake.shm.segment import Segment, ShmError
from zenlake.wire.cursor import U32

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

log = logging.getLogger("zenlake.shm")

CONFIRM_MICROSECONDS = 50_000  # Half of the interval in which Rust nodes look at the bits.
LINGER_ROUNDS = 5
"""Rounds without a held buffer after which the thread ends: payloads that follow each other within
0.25 s need no new thread."""
START_SECONDS = 1.0  # Upper bound on how long the first hold waits for the thread.
STOP = -1  # Number of tables that makes the loop return at its next round.
LEAVE_SECONDS = 1.0
"""Upper bound on a wait for an owner that has dropped a buffer and may be ending: it drops its
buffers and unmaps its segments in one go, which takes less than a millisecond."""
LEAVE_STEP = 0.001  # Seconds between two looks.
COPY_ADVICE = "Set ZENLAKE_SHM_COPY=1 to have payloads copied when they arrive"
MAX_TABLES = 1024  # Metadata segments of other processes that are mapped at once.
THREAD_NAME = "zenlake shm"


class _HeldTable:
    """The held buffers of one metadata segment."""

    def __init__(self, table: HeaderTable) -> None:
        self.table = table
        self.bits = memoryview(bytearray(8 * WATCHDOG_WORDS)).cast("Q")
        "Read by the loop while this process may write it: one bit per held buffer."
        self.counts = memoryview(bytearray(4 * HEADERS)).cast("I")
        "Holds per buffer."
        self.generations = memoryview(bytearray(4 * HEADERS)).cast("I")
        "Generation that each buffer was held with last."
        self.mixed: set[int] = set()
        "Buffers that were held with several generations at once."
        self.total = 0
        "Holds of all buffers."
        self.leaving = False
        "Whether to unmap the segment with the last hold."
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.bits))


class Holds:
    """All holds of this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # A view may be collected while it is held.
        self._tables: dict[HeaderTable, _HeldTable] = {}
        self._slots = (ctypes.c_int64 * (1 + 2 * MAX_TABLES))()
        self._retired: list[tuple[HeaderTable, _HeldTable]] = []
        "Segments to be unmapped as soon as the loop cannot be reading them."
        self._thread: threading.Thread | None = None
        self._running = threading.Event()
        "Set when the thread is about to enter the loop."
        self._pid = os.getpid()
        self.over = False
        "Whether all references were given back, as this process ends."

    def add(self, table: HeaderTable, index: int, generation: int) -> None:
        """Confirm a buffer from now on, to which this process has one more reference."""
        with self._lock:
            held = self._tables.get(table) or self._new_table(table)
            if held.counts[index] and held.generations[index] != generation:
                held.mixed.add(index)
            held.generations[index] = generation
            held.counts[index] += 1
            held.bits[index // 64] |= 1 << index % 64
            held.total += 1
            self._start()

    def add_many(
        self,
        table: HeaderTable,
        indices: "npt.NDArray[np.int64]",
        generations: "npt.NDArray[np.int64]",
    ) -> None:
        """Confirm buffers from now on, to each of which this process has one more reference; one
        may be named several times."""
        import numpy as np

        with self._lock:
            held = self._tables.get(table) or self._new_table(table)
            bits = np.frombuffer(held.bits, np.uint64)
            counts = np.frombuffer(held.counts, np.uint32)
            known = np.frombuffer(held.generations, np.uint32)
            mixed = (counts[indices] > 0) & (known[indices] != generations)
            if mixed.any():
                held.mixed.update(indices[mixed].tolist())
            known[indices] = generations
            np.add.at(counts, indices, 1)
            np.bitwise_or.at(bits, indices >> 6, np.uint64(1) << (indices & 63).astype(np.uint64))
            held.total += len(indices)
            self._start()

    def _start(self) -> None:
        """Start the thread that confirms, if it does not run."""
        if self._thread is None:
            self._running.clear()
            thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # Too many threads; the next hold tries again.
                log.exception("shared memory that is read here cannot be confirmed")
            else:
                self._thread = thread
                self._running.wait(START_SECONDS)  # A caller may keep the GIL for long.

    def remove(self, table: HeaderTable, index: int) -> None:
        """End one hold of a buffer."""
        with self._lock:
            held = self._tables.get(table)
            if held is None or self._pid != os.getpid():
                return
            held.total -= 1
            held.counts[index] -= 1
            if not held.counts[index]:
                held.bits[index // 64] &= ~(1 << index % 64)
            if held.leaving and not held.total:
                self._retire(held)

    def remove_many(self, table: HeaderTable, indices: "npt.NDArray[np.int64]") -> None:
        """End holds that `add_many` began."""
        import numpy as np

        with self._lock:
            held = self._tables.get(table)
            if held is None or self._pid != os.getpid():
                return
            held.total -= len(indices)
            counts = np.frombuffer(held.counts, np.uint32)
            np.subtract.at(counts, indices, 1)
            over = indices[counts[indices] == 0]
            kept = ~(np.uint64(1) << (over & 63).astype(np.uint64))
            np.bitwise_and.at(np.frombuffer(held.bits, np.uint64), over >> 6, kept)
            if held.leaving and not held.total:
                self._retire(held)

    def retire(self, table: HeaderTable, *, when_free: bool = False) -> bool:
        """Unmap a segment as soon as that is safe; False: a buffer of it is held. With `when_free`,
        it is unmapped with the last hold then."""
        with self._lock:
            held = self._tables.get(table)
            if held is None:
                table.close()
                return True
            if held.total:
                held.leaving = held.leaving or when_free
                return False
            self._retire(held)
            return True

    def _retire(self, held: _HeldTable) -> None:
        del self._tables[held.table]
        self._retired.append((held.table, held))
        if self._thread is None:
            self._unmap_retired()
            self._write_slots()
        else:
            self._slots[0] = STOP  # The loop returns at its next round, and starts again.

    @property
    def count(self) -> int:
        """Number of holds."""
        with self._lock:
            return sum(held.total for held in self._tables.values())

    @property
    def leaving(self) -> int:
        """Number of segments that are unmapped with their last hold."""
        with self._lock:
            return sum(held.leaving for held in self._tables.values())

    def _new_table(self, table: HeaderTable) -> _HeldTable:
        if len(self._tables) == MAX_TABLES:
            raise ShmError(f"shared memory of {MAX_TABLES} processes is in use here")
        held = self._tables[table] = _HeldTable(table)
        if not self._retired:  # Otherwise the loop is about to return, and has them written again.
            self._write_slots()
        return held

    def _write_slots(self) -> None:
        for slot, held in enumerate(self._tables.values()):
            self._slots[1 + 2 * slot] = held.table.watchdogs
            self._slots[2 + 2 * slot] = held.address
        self._slots[0] = len(self._tables)

    def end(self) -> None:
        """Give all references back: this process ends, and collects its views without this."""
        with self._lock:
            if self.over or self._pid != os.getpid():
                return
            self.over = True
            if not self.count:
                return  # Nothing is compiled at the end of a process that needs nothing of it.
            functions = native.load()
            for table, held in self._tables.items():
                for index, count in enumerate(held.counts):
                    generation = held.generations[index]
                    if count and index not in held.mixed and _is(table, index, generation):
                        functions.add(table.header(index), -count)
                held.bits[:] = memoryview(bytes(8 * WATCHDOG_WORDS)).cast("Q")

    def _run(self) -> None:
        _become_real_time()
        confirm = native.load().confirm
        address = ctypes.addressof(self._slots)
        self._running.set()
        while True:
            confirm(address, WATCHDOG_WORDS, CONFIRM_MICROSECONDS, LINGER_ROUNDS)
            with self._lock:
                self._unmap_retired()
                self._write_slots()
                if self.over or not self.count:
                    self._thread = None
                    return

    def _unmap_retired(self) -> None:
        for table, _ in self._retired:
            table.close()
        self._retired.clear()


def _is(table: HeaderTable, index: int, generation: int) -> bool:
    return table.state(index).generation == generation


def _become_real_time() -> None:
    """Run this thread before all that are not real-time, as Rust nodes do; where that is refused,
    it stays as it is."""
    with suppress(OSError, AttributeError):
        lowest = os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO))
        os.sched_setscheduler(0, os.SCHED_FIFO, lowest)


# ---- what has become of a buffer


class ReceivedBuffer:
    """Place of the bytes of a received buffer, and of the header that tells of changes."""

    __slots__ = ("_generation", "_index", "_intact", "_offset", "_segment", "_table")

    def __init__(
        self, table: HeaderTable, index: int, generation: int, segment: Segment, offset: int
    ) -> None:
        self._table = table
        self._index = index
        self._generation = generation
        self._segment = segment  # Kept: its mapping is the memory of views.
        self._offset = offset
        self._intact: bool | None = None

    @property
    def is_intact(self) -> bool:
        """Whether the memory has the bytes that were sent."""
        if self._intact is not None:
            return self._intact
        state = self._state()
        if state.generation == self._generation and not state.invalidated:
            return True
        if self._is_unused(state) and self._segment.is_left() and self._is_unused(self._state()):
            self._intact = True  # For good: the header may be used again, the memory is not.
            return True
        return False

    def check(self) -> None:
        """Raise ShmError if the memory was taken back; wait for an owner that is ending."""
        state = self._state()
        end = time.monotonic() + (LEAVE_SECONDS if self._was_dropped(state) else 0)
        while not self.is_intact:
            if self._intact is not None or time.monotonic() >= end:
                self._intact = False
                raise gone(self._state())
            time.sleep(LEAVE_STEP)

    def _state(self) -> HeaderState:
        return self._table.state(self._index)

    def _was_dropped(self, state: HeaderState) -> bool:
        """Whether the owner has given the buffer up without taking it from its readers, as one does
        that ends. Also what the policy Deallocate of eclipse-zenoh looks like."""
        return not state.invalidated and state.generation == (self._generation + 1) & U32

    def _is_unused(self, state: HeaderState) -> bool:
        """Whether the memory was not used again when the header was in that state, if the owner
        did nothing afterwards."""
        is_same = (state.segment, state.offset) == (self._segment.number, self._offset)
        return is_same and (state.generation == self._generation or self._was_dropped(state))


def gone(state: HeaderState) -> ShmError:
    """Return the error for a payload whose memory was taken back."""
    if state.invalidated:
        why = (
            "its sender took the shared memory back, because this process did not confirm within "
            "0.1 s that it reads it: it was stopped, or got no processor time"
        )
    else:
        why = (
            "its sender has used the shared memory again: it deallocated the buffer by force, or "
            "this process was stopped for longer"
        )
    return ShmError(f"this payload is gone: {why}. {COPY_ADVICE}")
