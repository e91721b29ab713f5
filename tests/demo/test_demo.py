"""The demo, as small as it gets: its books balance, it leaves a report and nothing else."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo.child import defer_signals

ROOT = Path(__file__).parents[2]
DEMO_SECONDS = 550.0  # Deadline on a busy machine; alone the demo takes half a minute.
GRACE_SECONDS = 15.0  # Time for workers of a Spark that has ended.
MARK = "ZENLAKE_DEMO_MARK"


@contextmanager
def demo(command: list[str], *options: str) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """The process, and by what all that it starts is known."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, MARK: mark, "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watch = threading.Timer(DEMO_SECONDS, process.terminate)
    watch.start()
    with process:
        try:
            yield process, mark
        finally:
            watch.cancel()
            watch.join()
            if process.poll() is None:
                process.terminate()


def left_of(mark: str) -> list[str]:
    """Return the processes that the demo started, once workers had the time to end."""
    end = time.monotonic() + GRACE_SECONDS
    while (left := list(_marked(mark))) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def _marked(mark: str) -> Iterator[str]:
    wanted = f"{MARK}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                yield (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has just ended, or is another's
            continue


def test_a_signal_waits_until_what_is_started_is_known() -> None:
    done = []

    def start() -> None:
        with defer_signals():
            signal.raise_signal(signal.SIGINT)
            done.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert done == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.campaign
@pytest.mark.spark
@pytest.mark.timeout(DEMO_SECONDS + 60)
def test_the_demo_accounts_for_every_sample_and_leaves_no_process(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    command = ["make", "--no-print-directory", "demo"]  # as the README has it
    with demo(command, f"DEMO=--quick --out {report}") as (process, mark):
        said, _ = process.communicate()
    assert process.returncode == 0, said
    assert "everything that was sent is accounted for" in said
    assert "✗" not in said
    assert "the tables followed the fleet within" in said or "no sample was put after" in said
    assert "eclipse-zenoh, asked the same, gets the same" in said
    assert "repeats itself" in said
    assert "datagrams on its link" in said
    assert "robot/1/pose" in report.read_text()
    assert left_of(mark) == []


@pytest.mark.spark
@pytest.mark.timeout(DEMO_SECONDS + 60)
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "demo", "--quick"]
    with demo(command, "--out", str(report)) as (process, mark):
        assert process.stdout is not None
        for line in process.stdout:
            if "demo.fleet" in line:  # Spark runs, the fleet is about to drive
                break
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate()
    assert process.returncode == 130, said
    assert "nothing is left running" in said
    assert left_of(mark) == []
    assert not report.exists()
