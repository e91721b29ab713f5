"""What every test is held to: nothing it started is left behind, and examples repeat."""

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "zenlake",
    deadline=None,  # the machine is shared: no test may depend on how fast it is
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("zenlake")


def _sockets() -> set[str]:
    fds = Path("/proc/self/fd")
    if not fds.exists():
        return set()
    found = set()
    for fd in fds.iterdir():
        try:
            target = str(fd.readlink())
        except OSError:  # the descriptor of this very listing
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def _children() -> set[str]:
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        return set()
    found: set[str] = set()
    for task in tasks.iterdir():
        try:
            found.update((task / "children").read_text().split())
        except OSError:  # a thread that ended meanwhile
            continue
    return found


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.is_alive()}


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    before = _threads(), _sockets(), _children()
    yield
    if left_behind(before):
        gc.collect()  # what only a cycle keeps alive is not a leak
    left = left_behind(before)
    assert not left, f"left behind by this test: {left}"


def left_behind(
    before: tuple[set[threading.Thread], set[str], set[str]],
) -> list[object]:
    threads, sockets, children = before
    return [*(_threads() - threads), *(_sockets() - sockets), *(_children() - children)]
