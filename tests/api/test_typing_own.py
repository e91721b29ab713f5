"""What type checkers know of modules that `eclipse-zenoh` has not, or has without types."""

import pytest

from tests.support.type_checkers import Findings, check

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


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Findings]]:
    folder = tmp_path_factory.mktemp("types")
    return check({"router": ROUTER, "right": RIGHT, "wrong": WRONG}, folder)


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
