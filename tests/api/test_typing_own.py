"""What type checkers know of modules that `eclipse-zenoh` has not, or has without types."""

import pytest

from tests.support.type_checkers import Findings, bare, check

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROUTER = """\
from typing import reveal_type

import zenlake.router

reveal_type(zenlake.router.run([]).session)
"""
RIGHT = """\
from typing import reveal_type

import zenlake.shm

reveal_type(zenlake.shm.ShmProvider)
reveal_type(zenlake.shm.ZShm)
"""
WRONG = """\
import zenlake.shm

zenlake.shm.no_such_name
zenlake.shm.shmprovider
"""

ARROW = """\
from typing import reveal_type

import zenlake
import zenlake.capture
import zenlake.log


def use(session: zenlake.Session) -> None:
    batches = zenlake.ArrowBatches(overflow="drop")
    reveal_type(session.declare_subscriber("a", batches))
    reveal_type(session.liveliness().declare_subscriber("a", batches))
    reveal_type(zenlake.ext.declare_advanced_subscriber(session, "a", batches))
    reveal_type(batches.recv())
    reveal_type(batches.try_recv())
    reveal_type(session.put_batch(batches.recv()))
    reveal_type(session.declare_publisher("a").put_batch(batches.recv()))
    reveal_type(next(zenlake.log.Reader("a").batches()))
    reveal_type(next(zenlake.capture.read("a")))


async def use_async(session: zenlake.aio.Session, batches: zenlake.ArrowBatches) -> None:
    reveal_type(await session.put_batch(batches.recv()))
"""
ARROW_TYPES = [
    "Subscriber[Handler[RecordBatch]]",
    "Subscriber[Handler[RecordBatch]]",
    "AdvancedSubscriber[Handler[RecordBatch]]",
    "RecordBatch",
    "RecordBatch | None",
    "int",
    "int",
    "RecordBatch",
    "RecordBatch",
    "int",
]
NO_ROWS = """\
import zenlake


async def use(session: zenlake.Session, other: zenlake.aio.Session) -> None:
    session.put_batch(5)
    session.declare_publisher("a").put_batch("rows")
    await other.put_batch([])
    session.declare_queryable("a", zenlake.ArrowBatches())
    session.get("a", zenlake.ArrowBatches())
    session.declare_publisher("a").declare_matching_listener(zenlake.ArrowBatches())
    zenlake.scout(zenlake.ArrowBatches())
    zenlake.ArrowBatches(overflow="wait")
"""
NO_ROWS_LINES = range(5, 13)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Findings]]:
    folder = tmp_path_factory.mktemp("types")
    programs = {"router": ROUTER, "right": RIGHT, "wrong": WRONG}
    return check({**programs, "arrow": ARROW, "no_rows": NO_ROWS}, folder)


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_checkers_know_the_session_of_a_router(
    found: dict[str, dict[str, Findings]], checker: str
) -> None:
    findings = found[checker]["router"]
    assert findings.errors == {}
    assert findings.revealed[5].rpartition(".")[2] == "Session"


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_checkers_know_the_names_of_shared_memory_and_no_others(
    found: dict[str, dict[str, Findings]], checker: str
) -> None:
    findings = found[checker]["right"]
    assert findings.errors == {}
    assert "ShmProvider" in findings.revealed[5]
    assert "ZShm" in findings.revealed[6]
    assert [line for line in (3, 4) if found[checker]["wrong"].refuses(line)] == [3, 4]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_checkers_know_record_batches(found: dict[str, dict[str, Findings]], checker: str) -> None:
    findings = found[checker]["arrow"]
    assert [bare(shown) for shown in findings.revealed.values()] == ARROW_TYPES
    assert findings.errors == {}


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_checkers_refuse_what_is_not_a_record_batch_and_what_gives_none(
    found: dict[str, dict[str, Findings]], checker: str
) -> None:
    findings = found[checker]["no_rows"]
    assert [line for line in NO_ROWS_LINES if findings.refuses(line)] == [*NO_ROWS_LINES]
