"""A writer that is killed, at any moment, loses nothing that it acknowledged.

ZENLAKE_FULL=1: 1,000 kills at random instead of 100.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.killed_writers import IN_VAIN, KILL_AT
from tests.support.numbered_samples import FULL
from tests.support.processes import module_command, python_environment

pytestmark = pytest.mark.process

RANDOM_KILLS = 1000 if FULL else 100
SYSCALLS = 200
DEADLINE_SECONDS = 280.0


def killing(
    mode: str, folder: Path, trials: int = 0, before: tuple[str, ...] = ()
) -> dict[str, int]:
    """Run the process that forks and kills writers; return its findings."""
    command = [
        *before,
        *module_command("tests.support.killed_writers", mode, str(folder), str(trials), "20"),
    ]
    done = subprocess.run(
        command,
        env=python_environment(PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_killed_at_random_points(tmp_path: Path) -> None:
    found = killing("random", tmp_path / "log", RANDOM_KILLS)
    assert found["opened"] > RANDOM_KILLS / 10
    assert found["acknowledged"] > RANDOM_KILLS


def test_killed_before_each_call(tmp_path: Path) -> None:
    assert killing("calls", tmp_path)["calls"] > 200


def test_killed_in_the_middle_of_each_call(tmp_path: Path) -> None:
    assert killing("halves", tmp_path)["calls"] > 200


@pytest.mark.campaign
def test_killed_at_each_of_the_first_system_calls(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace: apt-get install strace")
    names = [f"?{name}{suffix}" for name in IN_VAIN for suffix in ("", "at", "at2", "2")]
    calls = ",".join(names)
    inject = f"inject={calls}:signal=KILL:when={KILL_AT}"
    quiet = ("-f", "-qq", "-o", os.devnull)
    before = (strace, *quiet, "-e", f"trace={calls}", "-e", inject)
    found = killing("syscalls", tmp_path, SYSCALLS, before)
    assert found["killed"] == SYSCALLS
    assert found["acknowledged"] > SYSCALLS
    assert killing("after", tmp_path)["checked"] == SYSCALLS
