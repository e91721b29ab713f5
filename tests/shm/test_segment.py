"""Segments: who removes them, and when. Nothing is left behind after exit, kill or fork."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import python_environment
from tests.support.shared_memory import remaining
from tests.support.waiting import until
from zenlake.shm import segment as segment_module
from zenlake.shm.segment import Segment, ShmError, sweep_orphans, unavailable

SECONDS = 60.0


def path_of(number: int) -> Path:
    return segment_module._path(number)


def test_a_segment_is_private_and_locked() -> None:
    segment = Segment.create(4096, 32)
    status = path_of(segment.number).stat()
    assert status.st_mode & 0o777 == 0o600
    assert status.st_size == segment.size == 4096
    with path_of(segment.number).open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    sweep_orphans()
    assert remaining({segment.number})
    segment.close()
    segment.close()
    assert not remaining({segment.number})


def test_the_memory_of_a_closed_segment_stays_readable() -> None:
    segment = Segment.create(4096, 32)
    other = Segment.open(segment.number)
    segment.map[:5] = b"hello"
    segment.close()
    other.close()
    assert bytes(other.map[:5]) == b"hello"


HELD = """
from zenlake.shm.segment import Segment
segment = Segment.create(64, 32)
print(segment.number, flush=True)
input()
"""


@pytest.mark.process
def test_the_last_process_that_maps_a_segment_of_a_crashed_one_removes_it() -> None:
    with subprocess.Popen([sys.executable, "-c", HELD], stdin=-1, stdout=-1, text=True) as owner:
        assert owner.stdout is not None
        number = int(owner.stdout.readline())
        other = Segment.open(number)
        assert not other.is_abandoned()
        owner.kill()
    until(other.is_abandoned)
    sweep_orphans()
    assert remaining({number})
    other.close()
    assert not remaining({number})


def test_a_file_without_a_lock_is_an_orphan_unless_it_is_new_and_empty() -> None:
    orphan, new, named = path_of(1), path_of(2), segment_module.FOLDER / "not-a-number.zenoh"
    old = path_of(3)
    files = (orphan, new, named, old)
    if any(file.exists() for file in files):
        pytest.skip("another process has segments with these numbers")
    try:
        for file in files:
            file.touch(0o600)
        orphan.write_bytes(b"x")
        os.utime(old, (0, 0))
        sweep_orphans()
        assert [file.exists() for file in files] == [False, True, True, False]
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def test_links_and_folders_are_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"x" * 64)
    number = 0xFFFF_FFFF_FF
    path_of(number).symlink_to(target)
    try:
        with pytest.raises(ShmError, match="symbolic links"):
            Segment.open(number)
        sweep_orphans()
        assert target.exists()
        assert path_of(number).is_symlink()
    finally:
        path_of(number).unlink()


class Blocking:
    """A finder of modules that refuses one package."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, *_: object) -> None:
        if name == self._package:
            raise ImportError(f"{name} is blocked")


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unavailable() is None
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        assert unavailable() == "shared memory needs Linux, and this is darwin"
    with monkeypatch.context() as patch:
        patch.setattr(segment_module, "FOLDER", Path("/nowhere"))
        assert "docker run --shm-size" in str(unavailable())
    for package in ("numba", "llvmlite"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            assert f"{package} cannot be imported" in str(unavailable())
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, package, raising=False)
            patch.setattr(sys, "meta_path", [Blocking(package), *sys.meta_path])
            assert f"{package} cannot be imported" in str(unavailable())
    with monkeypatch.context() as patch:
        patch.setenv("NUMBA_DISABLE_JIT", "1")
        assert "NUMBA_DISABLE_JIT is set" in str(unavailable())
        patch.setenv("NUMBA_DISABLE_JIT", "0")
        assert unavailable() is None


# ---- the end of a process

TWO_SESSIONS = """
import os, signal, sys, time
import zenlake, zenlake.shm
from tests.support.session_pairs import dialling, listening
from tests.support.shared_memory import mapped_segments, remaining

def opened():
    listener, port = listening(transport__shared_memory__enabled=True)
    return listener, dialling(port, transport__shared_memory__enabled=True)

def talk(a, b):
    with b.declare_subscriber("shm/exit") as sub:
        pub = a.declare_publisher("shm/exit")
        while not pub.matching_status.matching:
            time.sleep(0.01)
        pub.put(bytes(range(256)) * 400)
        sample = sub.recv()
        assert sample.payload == bytes(range(256)) * 400
        pub.undeclare()
    return sample

def told():
    print(*mapped_segments(), flush=True)

a, b = opened()
assert a.info.transports()[0].is_shm
provider = zenlake.shm.ShmProvider.default_backend(65536)
buffer = provider.alloc(100)
dropped = zenlake.shm.ShmProvider.default_backend(65536)
del dropped
kept = talk(a, b)
"""
ENDS = {
    "normal": ("told()", 0),
    "closed": ("told(); a.close(); b.close()", 0),
    "exception": ("told(); 1 / 0", 1),
    "sys.exit": ("told(); sys.exit(3)", 3),
    "os._exit": ("told(); os._exit(4)", 4),
    "SIGTERM": ("told(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM),
    "SIGKILL": ("told(); os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)", -signal.SIGKILL),
}
SWEPT = {"os._exit", "SIGTERM", "SIGKILL"}
"Ends that run no code of the process: the next process removes its segments."


@contextmanager
def program(code: str) -> Iterator["subprocess.Popen[str]"]:
    """A process with two sessions that have passed a payload through shared memory."""
    with subprocess.Popen(
        [sys.executable, "-c", TWO_SESSIONS + code],
        env=python_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def numbers(line: str) -> set[int]:
    found = {int(word) for word in line.split()}
    assert found
    return found


@pytest.mark.process
@pytest.mark.parametrize("end", ENDS)
def test_no_segment_is_left_after(end: str) -> None:
    code, status = ENDS[end]
    with program(code) as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == status, err
    made = numbers(out)
    assert len(made) >= 4  # Of each node, the headers, the pool; and the provider's.
    if end in SWEPT:
        with program("") as following:
            following.communicate(timeout=SECONDS)
    assert not remaining(made)


# ---- fork

FORK = """
of_parent = remaining(mapped_segments())
assert len(of_parent) >= 4
child = os.fork()
if not child:
    try:
        before = mapped_segments()
        {in_child}
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    {end_of_child}
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
told()
assert remaining(of_parent) == of_parent
talk(a, b)
talk(b, a)
buffer[:5] = b"alive"
with b.declare_subscriber("shm/fork") as sub:
    time.sleep(0.2)
    a.put("shm/fork", buffer)
    assert bytes(sub.recv().payload)[:5] == b"alive"
"""
IN_CHILD = {
    "nothing": "pass",
    "releases": "del kept, buffer, provider; import gc; gc.collect()",
    "opens": "c, d = opened(); talk(c, d); print('own', *mapped_segments() - before, flush=True); "
    "c.close(); d.close()",
}
ENDS_OF_CHILD = {"os._exit": "os._exit(0)", "sys.exit": "sys.exit(0)"}


@pytest.mark.process
@pytest.mark.parametrize("end", ENDS_OF_CHILD)
@pytest.mark.parametrize("does", IN_CHILD)
def test_a_child_of_a_fork_leaves_the_segments_of_its_parent(does: str, end: str) -> None:
    code = FORK.format(in_child=IN_CHILD[does], end_of_child=ENDS_OF_CHILD[end])
    with program(code) as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    lines = out.splitlines()
    assert "child 0" in lines, err
    for line in lines:
        if line.startswith("own"):
            assert not remaining(numbers(line.removeprefix("own")))
    until(lambda: remaining(numbers(lines[-1])), lambda left: not left, SECONDS)
