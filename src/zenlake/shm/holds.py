"""Holds: received buffers whose memory this process still reads, confirmed every 50 ms.

The owner of a buffer clears its watchdog bit every 100 ms, and takes the memory back if no reader
has set the bit again. A compiled loop sets the bits, on a thread that needs no GIL: a long call of
Python code does not lose a buffer. The thread ends when nothing is held.
"""

import ctypes
import logging
import os
import threading
from typing import TYPE_CHECKING

from zenlake.shm import native
from zenlake.shm.headers import HEADERS, WATCHDOG_WORDS, HeaderTable
from zenlake.shm.segment import ShmError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

log = logging.getLogger("zenlake.shm")

CONFIRM_MICROSECONDS = 50_000  # Half of the interval in which Rust nodes look at the bits.
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
        self.total = 0
        "Holds of all buffers."
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
        self._pid = os.getpid()

    def add(self, table: HeaderTable, index: int) -> None:
        """Confirm a buffer from now on."""
        with self._lock:
            held = self._tables.get(table) or self._new_table(table)
            held.counts[index] += 1
            held.bits[index // 64] |= 1 << index % 64
            held.total += 1
            self._start()

    def add_many(self, table: HeaderTable, indices: "npt.NDArray[np.int64]") -> None:
        """Confirm buffers from now on; one may be named several times."""
        import numpy as np

        with self._lock:
            held = self._tables.get(table) or self._new_table(table)
            bits = np.frombuffer(held.bits, np.uint64)
            np.add.at(np.frombuffer(held.counts, np.uint32), indices, 1)
            np.bitwise_or.at(bits, indices >> 6, np.uint64(1) << (indices & 63).astype(np.uint64))
            held.total += len(indices)
            self._start()

    def _start(self) -> None:
        """Start the thread that confirms, if it does not run."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # Too many threads; the next hold tries again.
                log.exception("shared memory that is read here cannot be confirmed")
            else:
                self._thread = thread

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

    def retire(self, table: HeaderTable) -> bool:
        """Unmap a segment as soon as that is safe; False: a buffer of it is held."""
        with self._lock:
            held = self._tables.get(table)
            if held is None:
                table.close()
                return True
            if held.total:
                return False
            del self._tables[table]
            self._retired.append((table, held))
            if self._thread is None:
                self._unmap_retired()
                self._write_slots()
            else:
                self._slots[0] = 0  # The loop returns at its next round, and starts again.
            return True

    @property
    def count(self) -> int:
        """Number of holds."""
        with self._lock:
            return sum(held.total for held in self._tables.values())

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

    def _run(self) -> None:
        confirm = native.load().confirm
        while True:
            confirm(ctypes.addressof(self._slots), WATCHDOG_WORDS, CONFIRM_MICROSECONDS)
            with self._lock:
                self._unmap_retired()
                self._write_slots()
                if not self.count:
                    self._thread = None
                    return

    def _unmap_retired(self) -> None:
        for table, _ in self._retired:
            table.close()
        self._retired.clear()
