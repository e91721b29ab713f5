"""Links over named pipes: whose the files are, what is left of them, and sessions over them."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.link_contract import KINDS, Stage
from tests.support.runtime_nodes import Record, make_node, numbered
from tests.support.waiting import until
from zenlake.errors import InvalidLocator, LinkError
from zenlake.link import pipe
from zenlake.wire.locator import EndPoint


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(KINDS["pipe"], tmp_path)
    yield stage
    stage.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_side_removes_the_pipes_that_it_reads(stage: Stage, tmp_path: Path) -> None:
    listener, connected, accepted = stage.triple()
    suffix = str(connected.local).rpartition("_downlink")[2]
    assert names(tmp_path) == [f"p_downlink{suffix}", "p_uplink", f"p_uplink{suffix}"]
    connected.close()
    assert names(tmp_path) == ["p_uplink", f"p_uplink{suffix}"]
    accepted.close()
    listener.close()
    assert names(tmp_path) == []


def test_a_pipe_of_a_dead_process_is_taken_over_without_its_bytes(
    stage: Stage, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "p_uplink")
    with pytest.raises(LinkError, match="no node listens there"):
        stage.connect(stage.endpoint)
    _, connected, accepted = stage.triple()
    assert stage.carry(connected, accepted, b"by pipe") == b"by pipe"


def test_a_listener_removes_the_pipes_that_killed_processes_left(
    stage: Stage, tmp_path: Path
) -> None:
    removed = {"p_downlink5", "p_uplink5", "p_uplink4294967295"}
    locked, young = "p_downlink6", "p_uplink6"
    others = {"q_downlink5", "p_downlink", "p_downlink5x", "p_uplink4294967296", "xp_uplink5"}
    for name in {*removed, locked, young, *others}:
        os.mkfifo(tmp_path / name)
        os.utime(tmp_path / name, (1, 1))
    os.utime(tmp_path / young, (2**33, 2**33))
    (tmp_path / "p_downlink7").write_text("precious")
    os.utime(tmp_path / "p_downlink7", (1, 1))
    (tmp_path / "p_downlink8").symlink_to(tmp_path / "q_downlink5")
    reader = os.open(tmp_path / locked, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.flock(reader, fcntl.LOCK_EX)
        stage.listen()
        left = {locked, young, *others, "p_downlink7", "p_downlink8", "p_uplink"}
        assert set(names(tmp_path)) == left
    finally:
        os.close(reader)


def test_a_listener_looks_at_a_limited_number_of_files(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "MAX_ENTRIES", 3)
    for number in range(10):
        os.mkfifo(tmp_path / f"p_uplink{number}")
        os.utime(tmp_path / f"p_uplink{number}", (1, 1))
    stage.listen()
    assert 8 <= len(names(tmp_path)) <= 9  # One of the three may be the listener's own.


@pytest.mark.process
def test_pipes_of_a_killed_client_are_gone_with_the_next_listener(
    stage: Stage, tmp_path: Path
) -> None:
    listener = stage.listen()
    program = f"""
import os, signal
from zenlake import link
from zenlake.link.options import LinkOptions
from zenlake.wire.locator import EndPoint
at = EndPoint({str(stage.endpoint)!r})
kept = link.connect(at, link.resolve(at)[0], LinkOptions())
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert len(names(tmp_path)) == 2
    listener.close()
    assert len(names(tmp_path)) == 1
    again = stage.listen()
    assert names(tmp_path) == ["p_uplink"]
    again.close()


def test_a_file_that_is_not_a_pipe_is_left_alone(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "p_uplink").write_text("precious")
    for act in (stage.listen, lambda: stage.connect(stage.endpoint)):
        with pytest.raises(LinkError, match="not a pipe"):
            act()
    assert (tmp_path / "p_uplink").read_text() == "precious"


def test_a_missing_folder_is_named_as_the_cause_of_a_listener_alone(
    stage: Stage, tmp_path: Path
) -> None:
    nowhere = EndPoint(f"unixpipe/{tmp_path}/missing/p")
    with pytest.raises(LinkError, match="a folder of the path is missing"):
        stage.listen(nowhere)
    with pytest.raises(LinkError, match="no node listens there"):
        stage.connect(nowhere)


def test_the_lock_of_a_listener_is_seen_by_others(stage: Stage, tmp_path: Path) -> None:
    stage.listen()
    other = os.open(tmp_path / "p_uplink", os.O_RDWR | os.O_NONBLOCK)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(other)


@pytest.mark.parametrize(("mask", "mode"), [("", 0o777), ("#file_mask=384", 0o600)])
def test_the_mask_is_the_mode_of_the_files(
    stage: Stage, tmp_path: Path, mask: str, mode: int
) -> None:
    umask = os.umask(0)
    try:
        stage.listen(EndPoint(f"{stage.endpoint}{mask}"))
    finally:
        os.umask(umask)
    assert (tmp_path / "p_uplink").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("wrong", ["#file_mask=rw", "x" * 240])
def test_a_wrong_endpoint_is_refused(stage: Stage, wrong: str) -> None:
    with pytest.raises(InvalidLocator):
        stage.listen(EndPoint(f"{stage.endpoint}{wrong}"))


def test_two_nodes_talk_and_pause_over_pipes(stage: Stage) -> None:
    there, back = Record(), Record()
    with make_node(there) as one, make_node(back) as two:
        one.listen(stage.endpoint)
        session = two.connect(stage.endpoint)
        for number in range(200):
            session.send(numbered(number, size=number * 1000))
        until(lambda: there.numbers, lambda numbers: numbers == list(range(200)))
        accepted = there.sessions[0]
        one.reactor.call_soon(accepted.pause)
        for number in range(200, 220):
            session.send(numbered(number, size=1000))
        accepted.resume()
        until(lambda: there.numbers, lambda numbers: numbers == list(range(220)))
        accepted.send(numbered(7))
        until(lambda: back.numbers, lambda numbers: numbers == [7])
        session.close()
        until(lambda: there.ends, lambda ends: len(ends) == 1)
