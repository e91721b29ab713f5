"""A serial line for tests: two pseudo-terminals, and a thread that carries bytes between them."""

import os
import pty
import select
import threading
import tty
from types import TracebackType
from typing import Self

TURN_SECONDS = 0.05  # Upper bound on the time until the thread sees that the line ends.


class SerialLine:
    """Two devices, `ends`. `carried`: the bytes that left each end."""

    def __init__(self) -> None:
        self._masters: list[int] = []
        self._slaves: list[int] = []
        self.ends = ["", ""]
        for end in range(2):
            self._masters.append(-1)
            self._slaves.append(-1)
            self._open(end)
        self._lock = threading.Lock()
        self.carried = [bytearray(), bytearray()]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="serial line")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        for fd in (*self._masters, *self._slaves):
            os.close(fd)

    def _open(self, end: int) -> None:
        master, slave = pty.openpty()
        tty.setraw(slave)
        os.set_blocking(master, False)
        self._masters[end] = master
        self._slaves[end] = slave  # Kept open: a closed device would hang up the line.
        self.ends[end] = os.ttyname(slave)

    def plug_again(self, end: int) -> None:
        """Hang up an end, whose device is then another one."""
        with self._lock:
            os.close(self._masters[end])
            os.close(self._slaves[end])
            self._open(end)

    def noise(self, end: int, data: bytes) -> None:
        """Let bytes arrive at an end that the other one did not send."""
        os.write(self._masters[end], data)

    def _carry(self) -> None:
        waiting = [b"", b""]
        while not self._stop.is_set():
            with self._lock:
                self._carry_some(waiting)

    def _carry_some(self, waiting: list[bytes]) -> None:
        reads = [self._masters[end] for end in (0, 1) if not waiting[end]]
        writes = [self._masters[1 - end] for end in (0, 1) if waiting[end]]
        readable, _, _ = select.select(reads, writes, [], TURN_SECONDS)
        for end, master in enumerate(self._masters):
            if master in readable:
                waiting[end] = os.read(master, 4096)
                self.carried[end] += waiting[end]
            if waiting[end]:
                try:
                    sent = os.write(self._masters[1 - end], waiting[end])
                except BlockingIOError:
                    continue
                waiting[end] = waiting[end][sent:]
