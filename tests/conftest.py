"""What every test is held to: nothing it started is left behind, and examples repeat."""

import gc
import os
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from leaks import alive

GRACE_SECONDS = 5.0  # for threads that are ending

settings.register_profile(
    "zenlake",
    deadline=None,  # the machine is shared: no test may depend on how fast it is
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("zenlake")


WITH_SPARK = ("lake", "spark")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A Spark that runs in the process opens connections whenever it likes, and changes how
    log records are shown: its tests come last."""
    items.sort(key=lambda item: item.path.parent.name in WITH_SPARK)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    before = alive()
    yield
    if alive() - before:
        gc.collect()  # what only a cycle keeps alive is not a leak
    end = time.monotonic() + GRACE_SECONDS
    while (left := alive() - before) and time.monotonic() < end:
        time.sleep(0.02)  # threads of callbacks end soon after their entity is undeclared
    assert not left, f"left behind by this test: {sorted(left)}"
