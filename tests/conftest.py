"""Rules for every test: nothing it started is left behind, examples repeat, marks are true.

A test that starts a process says so with a mark, because `make unit` chooses by marks. With
`ZENLAKE_NO_SKIPS=1` a skipped test fails the run, since a skipped test proves nothing.
"""

import gc
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.leaks import alive
from tests.support.processes import obey_sigint
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GRACE_SECONDS = 5.0  # Limit for threads that are ending.
SPARK_END_SECONDS = 60.0  # Limit for the JVM of the local Spark to end.
WITH_PROCESSES = ("process", "interop", "spark", "campaign")  # Marks that allow other processes.
NO_SKIPS = bool(os.environ.get("ZENLAKE_NO_SKIPS"))

settings.register_profile(
    "zenlake",
    deadline=None,  # the machine is shared: no test may depend on how fast it is
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("zenlake")


def pytest_configure(config: pytest.Config) -> None:
    """Let SIGINT reach the processes that tests start, however this run was started."""
    obey_sigint()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that have a test with Spark last.

    A Spark that runs in this process opens connections whenever it likes, and changes how log
    records are shown.
    """
    with_spark = {item.path for item in items if item.get_closest_marker("spark")}
    items.sort(key=lambda item: item.path in with_spark)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail the run for a skipped test where ZENLAKE_NO_SKIPS is set."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if NO_SKIPS and reporter is not None and reporter.stats.get("skipped") and exitstatus == 0:
        reporter.write_line("ZENLAKE_NO_SKIPS is set, and tests were skipped: the run fails")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    look = partial(alive, with_spark="spark" in request.fixturenames)
    before = look()
    yield
    if not look() - before:
        return
    gc.collect()  # what only a cycle keeps alive is not a leak
    with suppress(AssertionError):  # threads of callbacks end soon after their entity is undeclared
        until(lambda: look() - before, lambda left: not left, GRACE_SECONDS)
    left = look() - before
    assert not left, f"left behind by this test: {sorted(left)}"


@pytest.fixture(autouse=True)
def _processes_are_marked(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Fail a test that starts a process and has no mark that says so."""
    if any(request.node.get_closest_marker(name) for name in WITH_PROCESSES):
        yield
        return
    started: list[Any] = []
    start = subprocess.Popen.__init__

    def noted(popen: Any, args: Any, *rest: Any, **options: Any) -> None:
        started.append(args)
        start(popen, args, *rest, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    yield
    assert not started, f"starts a process: mark it with one of {WITH_PROCESSES}: {started[0]}"


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """One small local Spark for all tests of this process."""
    import zenlake.spark

    session = zenlake.spark.session(
        "tests",
        "local[2]",
        **{
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "OFF",
        },
    )
    gateway = session.sparkContext._gateway
    assert gateway is not None
    # What is opened once and stays is opened here: the first Python task connects back.
    session.createDataFrame([(1,)], "one int").count()
    try:
        yield session
    finally:
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # which ends the JVM
        gateway.proc.wait(SPARK_END_SECONDS)
