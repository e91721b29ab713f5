"""Writers that are killed: run as a process, it forks one after another and checks the log.

`python -m tests.support.killed_writers random|calls|halves|syscalls|after FOLDER TRIALS SEED`;
the last line says what was found; anything that may not be is an AssertionError.
"""

import itertools
import json
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.numbered_samples import QUICK, Held, Quick, held, losses, numbered
from zenlake.log.files import Files
from zenlake.log.format import Buffer
from zenlake.log.write.writer import Writer

MAX_KILL_SECONDS = 0.03
MAX_OPEN_SECONDS = 60.0  # Upper bound on the wait for a child that opens its log.
CHECK_EVERY = 25  # Random kills between two checks.
KILL_AT = 150  # Number of the call at which strace kills a child; no child gets so far.
GROUPS = 60  # Groups of blocks that one planned writer writes.
ROTATE_BYTES, RETAIN_BYTES = 1500, 6000
OPENED, BASE, ACKNOWLEDGED = range(3)  # Words of `_shared`.
_shared = memoryview(mmap.mmap(-1, 3 * 8)).cast("Q")
"""Report of a child, without a system call. Each word is stored in one go: a child may be killed
between any two instructions, and `struct` writes zeros first."""


class Trial(NamedTuple):
    """The last report of a killed child: its number, first offset and acknowledged offset."""

    writer: int
    opened: int
    base: int
    acknowledged: int


def tell(base: int, acknowledged: int) -> None:
    _shared[BASE] = base
    _shared[ACKNOWLEDGED] = acknowledged
    _shared[OPENED] = 1


def child(work: Callable[[], None]) -> int:
    """Its process id; it ends when its work does."""
    for word in (OPENED, BASE, ACKNOWLEDGED):
        _shared[word] = 0
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent has to hear of it
        sys.stderr.write(f"{error!r}\n")
        os._exit(1)
    os._exit(0)


def ended(pid: int, writer: int) -> tuple[Trial, int]:
    """Wait for the child; return its last report and its exit status."""
    _, status = os.waitpid(pid, 0)
    return Trial(writer, *_shared), status


def check(found: Held, trials: Sequence[Trial], *, retention: bool = False) -> None:
    """Nothing acknowledged is lost, altered, doubled or out of order."""
    assert not found.damage, found.damage
    by_offset = found.by_offset()
    kept = min(by_offset, default=0)
    if not retention:
        assert kept == 0
    assert len(by_offset) == max(by_offset, default=-1) + 1 - kept, "offsets are missing"
    of_writer: dict[int, list[tuple[int, int]]] = {}
    for offset, (writer, number) in by_offset.items():
        of_writer.setdefault(writer, []).append((offset, number))
    for trial in trials:
        there = of_writer.pop(trial.writer, [])
        if not trial.opened:
            assert not there
            continue
        assert all(offset - number == trial.base for offset, number in there), trial
        behind = max((number for _, number in there), default=-1) + 1
        assert behind >= trial.acknowledged or trial.base + trial.acknowledged <= kept, trial
    assert not of_writer, "samples that no writer wrote"


def wait_until_opened() -> None:
    """Wait until the child has opened its log, at most MAX_OPEN_SECONDS."""
    deadline = time.monotonic() + MAX_OPEN_SECONDS
    while not _shared[OPENED] and time.monotonic() < deadline:
        time.sleep(0.001)


def write_for_ever(path: Path, writer: int, chance: random.Random) -> None:
    log = Writer(path, rotate_bytes=64 << 10)
    base, number = log.next, 0
    tell(base, 0)
    while True:
        blocks = []
        for _ in range(chance.randint(1, 3)):
            count = chance.choice((0, 1, 2, 5, 40))
            blocks.append(numbered(writer, number, count) if count else losses())
            number += count
        log.write(blocks)
        tell(base, number)


def kill_at_random(path: Path, trials: int, chance: random.Random) -> dict[str, int]:
    done: list[Trial] = []
    for writer in range(trials):
        seed = chance.random()
        pid = child(lambda n=writer, s=seed: write_for_ever(path, n, random.Random(s)))  # type: ignore[misc]
        if writer % 2:  # However busy the machine is, half of the writers get to write.
            wait_until_opened()
        time.sleep(chance.uniform(0, MAX_KILL_SECONDS))
        os.kill(pid, signal.SIGKILL)
        trial, status = ended(pid, writer)
        assert os.WIFSIGNALED(status), "a writer ended by itself"
        done.append(trial)
        if (writer + 1) % CHECK_EVERY == 0:
            with Writer(path):  # the same work that the next writer would have
                pass
            check(held(path), done)
    torn = path / "0" / "torn"
    return {
        "trials": trials,
        "opened": sum(trial.opened for trial in done),
        "acknowledged": sum(trial.acknowledged for trial in done),
        "torn": len(list(torn.iterdir())) if torn.exists() else 0,
    }


def plan(path: Path, writer: int, files: Files, groups: int = GROUPS) -> None:
    """Creation, groups of blocks, rotation, retention, close."""
    with Writer(path, rotate_bytes=ROTATE_BYTES, retain_bytes=RETAIN_BYTES, files=files) as log:
        base, number = log.next, 0
        tell(base, 0)
        for group in range(groups):
            blocks = [numbered(writer, number + place, 1, pad=150) for place in range(group % 3)]
            number += group % 3
            log.write([*blocks, losses()] if group % 5 == 0 else blocks)
            tell(base, number)


class Dying(Quick):
    """Ends the process at one of its calls; before it, or with half of it done."""

    def __init__(self, at: int, half: bool) -> None:
        self._left = at
        self._half = half

    @contextmanager
    def _call(self) -> Iterator[bool]:
        """Whether it is the last one."""
        self._left -= 1
        if self._left == 0 and not self._half:
            os._exit(9)
        try:
            yield self._left == 0
        finally:
            if self._left == 0:
                os._exit(9)

    def open(self, path: Path, flags: int) -> int:
        with self._call():
            return super().open(path, flags)

    def pwritev(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        with self._call() as last:
            if last:
                whole = b"".join(buffers)
                buffers = [whole[: len(whole) // 2]]
            return super().pwritev(descriptor, buffers, position)

    def fdatasync(self, descriptor: int) -> None:
        with self._call():
            super().fdatasync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        with self._call():
            super().truncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        with self._call():
            super().rename(source, target)

    def unlink(self, path: Path) -> None:
        with self._call():
            super().unlink(path)

    def mkdir(self, path: Path) -> None:
        with self._call():
            super().mkdir(path)

    def fsync_folder(self, path: Path) -> None:
        with self._call():
            super().fsync_folder(path)


def go_on(path: Path, first: Trial) -> None:
    """After a death: another writer opens the log, writes, and all is there."""
    trial, status = ended(child(lambda: plan(path, 1, QUICK, 4)), 1)
    assert status == 0, "the log did not open again"
    check(held(path), [first, trial], retention=True)


def kill_at_calls(path: Path, half: bool) -> dict[str, int]:
    """At each call of the plan, until there is none left."""
    for at in itertools.count(1):
        folder = path / str(at)
        first, status = ended(
            child(lambda f=folder, n=at: plan(f, 0, Dying(n, half))),  # type: ignore[misc]
            0,
        )
        go_on(folder, first)
        if status == 0:
            return {"calls": at - 1, "acknowledged": first.acknowledged}
        assert os.WEXITSTATUS(status) == 9, status
    raise AssertionError


class Noting(Files):
    """Notes which system call each of its calls is."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pwritev(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        self.calls.append("pwritev")
        return super().pwritev(descriptor, buffers, position)

    def fdatasync(self, descriptor: int) -> None:
        self.calls.append("fdatasync")

    def truncate(self, descriptor: int, size: int) -> None:
        self.calls.append("ftruncate")
        super().truncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        self.calls.append("rename")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.calls.append("unlink")
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self.calls.append("mkdir")
        super().mkdir(path)

    def fsync_folder(self, path: Path) -> None:
        self.calls.append("fsync")


IN_VAIN: dict[str, Callable[[int], object]] = {
    "pwritev": lambda nowhere: os.pwritev(nowhere, [b"-"], 0),
    "fdatasync": os.fdatasync,
    "ftruncate": lambda nowhere: os.ftruncate(nowhere, 0),
    "rename": lambda _: Path("/dev/null/a").rename("/dev/null/b"),
    "unlink": lambda _: Path("/dev/null/a").unlink(),
    "mkdir": lambda _: Path("/dev/null/a").mkdir(),
    "fsync": os.fsync,
}
"Calls that change nothing, and count all the same."


def count_then_plan(path: Path, call: str, at: int) -> None:
    """Calls in vain until `at` of the kind are left before strace kills."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for _ in range(KILL_AT - at):
        with suppress(OSError):
            IN_VAIN[call](nowhere)
    plan(path, 0, Files())


def kill_at_syscalls(path: Path, trials: int) -> dict[str, int]:
    """At each of the first calls of the plan; strace counts each kind by itself."""
    noting = Noting()
    plan(path / "0", 0, noting)
    killed: list[Trial] = []
    for number, call in enumerate(noting.calls[:trials]):
        folder, at = path / str(number + 1), noting.calls[: number + 1].count(call)
        pid = child(lambda f=folder, c=call, n=at: count_then_plan(f, c, n))  # type: ignore[misc]
        trial, status = ended(pid, 0)
        if os.WIFSIGNALED(status):
            killed.append(trial)
    (path / "killed.json").write_text(json.dumps(killed))
    return {"killed": len(killed), "acknowledged": sum(trial.acknowledged for trial in killed)}


def after_syscalls(path: Path) -> dict[str, int]:
    """Looks at what is left; without strace, which is slow."""
    killed = [Trial(*fields) for fields in json.loads((path / "killed.json").read_text())]
    for number, trial in enumerate(killed):
        go_on(path / str(number + 1), trial)
    return {"checked": len(killed)}


def main(mode: str, folder: str, trials: str, seed: str) -> None:
    path, count = Path(folder), int(trials)
    found = {
        "random": lambda: kill_at_random(path, count, random.Random(int(seed))),
        "calls": lambda: kill_at_calls(path, half=False),
        "halves": lambda: kill_at_calls(path, half=True),
        "syscalls": lambda: kill_at_syscalls(path, count),
        "after": lambda: after_syscalls(path),
    }[mode]()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
