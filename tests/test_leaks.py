"""The check that runs after every test sees what it should see."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.leaks import alive

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="needs /proc (Linux): sockets and processes unseen"
)


def test_a_thread_is_seen() -> None:
    before, release = alive(), threading.Event()
    thread = threading.Thread(target=release.wait, args=(30,), name="left")
    thread.start()
    try:
        assert [name for name in alive() - before if name.startswith("thread left")]
    finally:
        release.set()
        thread.join(30)
    assert alive() == before


@needs_proc
def test_a_socket_is_seen() -> None:
    before = alive()
    with socket.socket():
        (name,) = alive() - before
        assert name.startswith("socket:")
    assert alive() == before


@pytest.mark.process
@needs_proc
def test_a_child_process_is_seen() -> None:
    before = alive()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert f"process {child.pid}" in alive() - before
        child.communicate(timeout=30)
    assert alive() == before
