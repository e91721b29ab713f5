"""Links over socket files: who owns the file, and what is left of it."""

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.link_contract import KINDS, Stage
from zenlake.errors import LinkError
from zenlake.link.sockets import Address
from zenlake.link.unix import resolve
from zenlake.wire.locator import EndPoint

LISTEN_FOR_EVER = """
import sys, time
from zenlake.link import listen
from zenlake.link.options import LinkOptions
from zenlake.wire.locator import EndPoint
listener = listen(EndPoint(sys.argv[1]), LinkOptions())
print("listening", flush=True)
time.sleep(600)
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(KINDS["unix"], tmp_path)
    yield stage
    stage.close()


def works(stage: Stage) -> None:
    _, connected, accepted = stage.triple()
    assert stage.carry(connected, accepted, b"by file") == b"by file"


def test_the_address_is_the_path(stage: Stage, tmp_path: Path) -> None:
    assert resolve(stage.endpoint) == [Address(socket.AF_UNIX, f"{tmp_path}/s")]
    listener, connected, accepted = stage.triple()
    assert listener.locators == (stage.endpoint.locator,)
    assert connected.remote == accepted.local == stage.endpoint.locator
    _, other = stage.pair(listener)
    assert len({connected.local, accepted.remote, other.remote}) == 3


def test_files_are_removed_on_close(stage: Stage, tmp_path: Path) -> None:
    listener = stage.listen()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s", "s.lock"]
    listener.close()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_process_leaves_the_files_alone(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = stage.listen()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    listener.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s", "s.lock"]


def test_closing_again_leaves_the_files_of_the_next_alone(stage: Stage, tmp_path: Path) -> None:
    first = stage.listen()
    first.close()
    second = stage.listen()
    first.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s", "s.lock"]
    connected, accepted = stage.pair(second)
    assert stage.carry(connected, accepted, b"second") == b"second"


def test_a_stale_socket_file_is_replaced(stage: Stage, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/s")
        dead.listen()
    (tmp_path / "s.lock").touch()
    works(stage)


def test_a_live_socket_without_a_lock_is_left_alone(stage: Stage, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as live, socket.socket(socket.AF_UNIX) as client:
        live.bind(f"{tmp_path}/s")
        live.listen()
        with pytest.raises(LinkError, match=r"unixsock-stream/.*is in use"):
            stage.listen()
        assert [p.name for p in tmp_path.iterdir()] == ["s"]
        client.connect(f"{tmp_path}/s")


def test_a_lock_held_by_another_node_is_respected(stage: Stage, tmp_path: Path) -> None:
    """As a Rust node holds it, even before its socket file is there."""
    lock = os.open(tmp_path / "s.lock", os.O_RDONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(LinkError, match=r"s\.lock is locked by a live node"):
            stage.listen()
        assert [p.name for p in tmp_path.iterdir()] == ["s.lock"]
    finally:
        os.close(lock)
    works(stage)


def test_our_lock_is_seen_by_others(stage: Stage, tmp_path: Path) -> None:
    stage.listen()
    lock = os.open(tmp_path / "s.lock", os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(lock)


def test_a_file_that_is_no_socket_is_left_alone(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(LinkError, match="not a socket"):
        stage.listen()
    assert (tmp_path / "s").read_text() == "precious"
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


@pytest.mark.process
def test_the_files_of_a_killed_process_are_taken_over(stage: Stage, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LISTEN_FOR_EVER, stage.endpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "listening\n"
        with pytest.raises(LinkError, match="locked by a live node"):
            stage.listen()
        child.kill()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s", "s.lock"]
    works(stage)


@pytest.mark.parametrize("path", ["{folder}/no/such/folder/s", "{folder}/" + "x" * 150])
def test_a_path_that_cannot_be(stage: Stage, tmp_path: Path, path: str) -> None:
    where = EndPoint("unixsock-stream/" + path.format(folder=tmp_path))
    for act in (lambda: stage.listen(where), lambda: stage.connect(where)):
        with pytest.raises(LinkError, match="unixsock-stream/"):
            act()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named_as_the_cause(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="a folder of the path is missing"):
        stage.listen(EndPoint(f"unixsock-stream/{tmp_path}/missing/s"))


def test_a_full_queue_is_an_error_that_can_be_tried_again(stage: Stage, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as filler:
        full.bind(f"{tmp_path}/s")
        full.listen(0)
        filler.connect(f"{tmp_path}/s")
        with pytest.raises(LinkError, match="try again later"):
            stage.connect(stage.endpoint)
