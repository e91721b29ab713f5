"""`zenlake replay`: what it sends, says, and how it ends."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.cli_in_process import tool
from tests.support.cli_process import DEADLINE, ENV, Peer, peer, running
from tests.support.cli_terminal import SCRIPT, on_terminal
from tests.support.waiting import until
from zenlake.log.block import OpenBlock, SourceLink
from zenlake.log.write.writer import Writer
from zenlake.wire.cursor import ByteWriter as Bytes
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr

SECOND = 1_000_000_000
NOON = 1_794_744_000 * SECOND  # 2026-11-15T12:00:00Z


def record(path: Path, keys: Sequence[str], apart: int, partition: int = 0) -> Path:
    """One sample for each key, so many nanoseconds apart; its payload is its number."""
    with Writer(path, partition) as writer:
        block = OpenBlock()
        link = block.link(SourceLink(1, 2, b"\x01"))
        assert link is not None
        for number, key in enumerate(keys):
            w = Bytes()
            NETWORK.write(w, Push(WireExpr(0, key), Put(b"%d" % number)))
            assert block.key(link, 0, key.encode(), b"")
            block.add(link, True, NOON + number * apart, 1, bytes(w.out))
        writer.write([block])
    return path


def got(listener: Peer, count: int) -> list[tuple[str, bytes]]:
    until(lambda: len(listener.samples) >= count)
    return [(str(sample.key_expr), bytes(sample.payload)) for sample in listener.samples]


def damage_first_segment(log: Path) -> None:
    """Flip the last byte of the first segment of partition 0."""
    segment = min((log / "0").glob("*.zlog"))
    data = bytearray(segment.read_bytes())
    data[-1] ^= 0xFF
    segment.write_bytes(data)


KEYS = ["robot/1/pose", "robot/2/pose", "robot/1/battery", "other"]


def test_what_was_recorded_is_put_again(tmp_path: Path) -> None:
    log = record(tmp_path / "log", KEYS, SECOND // 100)
    with peer() as listener:
        listener.watch("**")
        done = tool("replay", str(log), "-e", listener.endpoint)
        assert done.status == 0, done.err
        assert got(listener, 4) == [(key, b"%d" % i) for i, key in enumerate(KEYS)]
    assert "4 samples" in done.out
    assert "samples/s" in done.out
    assert "ms late" in done.out
    assert done.err == ""


def test_a_part_of_it_under_other_names_as_json(tmp_path: Path) -> None:
    log = record(tmp_path / "log", KEYS, SECOND)
    with peer() as listener:
        listener.watch("**")
        done = tool(
            *("replay", str(log), "-e", listener.endpoint, "--speed", "max", "--json"),
            *("-k", "robot/**", "--remap", "robot/1=sim", "--remap", "robot=old/robot"),
            *("--from", "2026-11-15T12:00:01Z", "--to", "3", "--timestamps", "new"),
        )
        assert done.status == 0, done.err
        assert got(listener, 2) == [("old/robot/2/pose", b"1"), ("sim/battery", b"2")]
    said = json.loads(done.out)
    assert (said["samples"], said["heard"], said["bytes"], said["rounds"]) == (2, 2, 2, 1)
    assert (said["dropped"], said["bad_keys"], said["lateness"]) == (0, 0, 0)
    assert said["seconds"] > 0
    assert said["samples_per_second"] > 0


@pytest.mark.process
def test_it_takes_its_time_and_a_terminal_may_be_spared_the_bar(tmp_path: Path) -> None:
    log = record(tmp_path / "log", KEYS[:2], SECOND // 2)
    record(log, KEYS[2:], SECOND, partition=3)
    with peer() as listener:
        listener.watch("**")
        status, seen = on_terminal(
            *("replay", str(log), "-e", listener.endpoint, "--speed", "5", "--json", "--quiet"),
            *("--partition", "3"),
        )
    assert status == 0, seen
    said = json.loads(seen)
    assert said["samples"] == 2
    assert said["seconds"] >= 0.2


def test_a_loop_starts_over_until_it_is_told_to_stop(tmp_path: Path) -> None:
    log = record(tmp_path / "log", KEYS, SECOND // 1000)
    ended = threading.Event()

    def stop() -> None:
        try:
            until(lambda: len(listener.samples) >= 9 or ended.is_set())
        finally:
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    with peer() as listener:
        listener.watch("**")
        thread = threading.Thread(target=stop)
        thread.start()
        done = tool("replay", str(log), "-e", listener.endpoint, "--json", "--loop")
        ended.set()
        thread.join(DEADLINE)
    assert done.status == 0, done.err
    said = json.loads(done.out)
    assert said["samples"] >= 9
    assert said["rounds"] >= 2


@pytest.mark.process
def test_control_c_ends_it_in_order(tmp_path: Path) -> None:
    log = record(tmp_path / "log", KEYS, 1000 * SECOND)
    with peer() as listener:
        listener.watch("**")
        with running("replay", str(log), "-e", listener.endpoint, "--json") as process:
            until(lambda: listener.samples)
            done = process.interrupt()
    assert done.status == 130, done.err
    said = json.loads(done.out)
    assert (said["samples"], said["rounds"]) == (1, 0)
    assert "Traceback" not in done.err


@pytest.mark.process
def test_a_request_to_end_ends_it_in_order(tmp_path: Path) -> None:
    log = record(tmp_path / "log", KEYS, 1000 * SECOND)
    with peer() as listener:
        listener.watch("**")
        process = subprocess.Popen(
            [SCRIPT, "replay", str(log), "-e", listener.endpoint],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENV,
            text=True,
        )
        try:
            until(lambda: listener.samples)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 130
    assert "1 sample, " in out
    assert err == ""


@pytest.mark.process
def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    log = record(tmp_path / "log", KEYS, SECOND // 10)
    with peer() as listener:
        listener.watch("**")
        status, seen = on_terminal("replay", str(log), "-e", listener.endpoint)
        assert status == 0
        assert "100%" in seen
        assert "4 samples" in seen


def test_nobody_listens_to_it(tmp_path: Path) -> None:
    log = record(tmp_path / "log", KEYS, 0)
    with peer() as listener:
        done = tool("replay", str(log), "-e", listener.endpoint, "--json", "-m", "peer")
        assert done.status == 0, done.err
    assert json.loads(done.out)["heard"] == 0


def test_damage_is_skipped_only_with_the_option(tmp_path: Path) -> None:
    log = record(tmp_path / "log", ["bad"], 0)
    record(log, ["good"], 0, partition=1)
    damage_first_segment(log)
    with peer() as listener:
        listener.watch("**")
        refused = tool("replay", str(log), "-e", listener.endpoint, "--speed", "max")
        assert refused.status == 1
        assert "Read around it, or with --skip-damage" in refused.err
        assert "on_damage" not in refused.err
        done = tool("replay", str(log), "-e", listener.endpoint, "--speed", "max", "--skip-damage")
        assert done.status == 0, done.err
        assert done.err.startswith("passed over partition 0, offset")
        until(lambda: ("good", b"0") in got(listener, 1))
        assert "bad" not in [key for key, _ in got(listener, 1)]


WRONG = {
    "speed": (("--speed", "fast"), "--speed fast"),
    "no speed": (("--speed", "0"), "--speed 0"),
    "remap": (("--remap", "robot"), "FROM=TO"),
    "remap to nothing": (("--remap", "a/**=b"), "whole chunks"),
    "key": (("-k", "a//b"), "a//b"),
    "time": (("--from", "yesterday"), "--from: 'yesterday' is not a time"),
    "timestamps": (("--timestamps", "none"), "timestamps"),
}


@pytest.mark.parametrize(("options", "said"), WRONG.values(), ids=list(WRONG))
def test_wrong_usage(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    log = record(tmp_path / "log", KEYS, 0)
    done = tool("replay", str(log), "-e", "tcp/127.0.0.1:1", *options)
    assert done.status == 2
    assert said in done.err


def test_what_cannot_be_replayed(tmp_path: Path) -> None:
    done = tool("replay", str(tmp_path), "-e", "tcp/127.0.0.1:1")
    assert done.status == 1
    assert "not a log" in done.err
    log = record(tmp_path / "log", KEYS, 0)
    done = tool("replay", str(log), "-e", "tcp/127.0.0.1:1")
    assert done.status == 1
    assert "no session" in done.err
    with peer() as listener:
        ended = tool("replay", str(log), "-e", listener.endpoint, "-k", "nothing/here")
    assert ended.status == 1
    assert "no sample" in ended.err
    assert len(ended.err.splitlines()) == 1
