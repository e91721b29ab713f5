"""The units in deploy/ agree: one user, folders that match, commands that exist."""

import configparser
import re
import shlex
from pathlib import Path

import pytest

from tests.support.cli_in_process import zenlake
from zenlake.lake.pipeline import runner
from zenlake.lake.scaffold import create_project
from zenlake.log.write import recorder
from zenlake.quantities import seconds

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICES = ("zenlake-record", "zenlake-lake", "zenlake-upkeep")
STATE, CACHE = "/var/lib", "/var/cache"
LAKE = f"{STATE}/zenlake/fleet"
SECTIONS = {"Unit", "Service", "Timer", "Install"}


class Unit:
    """A unit file: `[section] name` gives all values of a name, with specifiers replaced."""

    def __init__(self, path: Path) -> None:
        # A name may be there several times, which the parser of the standard library refuses: it
        # gets each value under a number of its own, and so checks everything else.
        text = re.sub(r"\\\n\s*", "", path.read_text())
        numbered = re.sub(
            r"^(\w+)=", lambda match: f"{match[1]}:{match.start()}=", text, flags=re.M
        )
        parser = configparser.ConfigParser(delimiters="=", interpolation=None)
        parser.optionxform = str  # type: ignore[assignment]
        parser.read_string(numbered)
        self.sections = set(parser.sections())
        self._values: dict[tuple[str, str], list[str]] = {}
        for section in parser.sections():
            for name, value in parser.items(section):
                found = self._values.setdefault((section, name.partition(":")[0]), [])
                found.append(value.replace("%S", STATE).replace("%C", CACHE))

    def all(self, name: str, section: str = "Service") -> list[str]:
        return self._values.get((section, name), [])

    def only(self, name: str, section: str = "Service") -> str:
        (value,) = self.all(name, section)
        return value

    @property
    def commands(self) -> list[list[str]]:
        """The arguments of `zenlake` in each ExecStart."""
        found = []
        for line in self.all("ExecStart"):
            program, *words = shlex.split(line)
            assert program == "/opt/zenlake/bin/zenlake"
            found.append(words)
        return found


@pytest.fixture
def units() -> dict[str, Unit]:
    return {name: Unit(DEPLOY / f"{name}.service") for name in SERVICES}


def test_every_unit_is_checked() -> None:
    there = {path.name for path in DEPLOY.iterdir()} - {"README.md"}
    assert there == {f"{name}.service" for name in SERVICES} | {"zenlake-upkeep.timer"}
    for name in there:
        assert Unit(DEPLOY / name).sections <= SECTIONS


def test_all_run_as_one_user_with_one_folder(units: dict[str, Unit]) -> None:
    for unit in units.values():
        assert unit.all("DynamicUser") == []
        assert (unit.only("User"), unit.only("Group")) == ("zenlake", "zenlake")
        assert (unit.only("StateDirectory"), unit.only("CacheDirectory")) == ("zenlake", "zenlake")
        # What one of them writes, the group of the others can read.
        assert (unit.only("StateDirectoryMode"), unit.only("UMask")) == ("0750", "0027")
        assert unit.only("WorkingDirectory") == f"{STATE}/zenlake"
        assert f"NUMBA_CACHE_DIR={CACHE}/zenlake" in unit.only("Environment").split()


def test_they_work_on_one_lake(units: dict[str, Unit], tmp_path: Path) -> None:
    (record,) = units["zenlake-record"].commands
    log = Path(record[record.index("--output") + 1])
    (run,) = units["zenlake-lake"].commands
    assert run[:3] == ["lake", "run", LAKE]
    assert [words[:3] for words in units["zenlake-upkeep"].commands] == [
        ["lake", "retain", LAKE],
        ["lake", "compact", LAKE],
    ]
    for name in ("zenlake-lake", "zenlake-upkeep"):
        assert units[name].only("ConditionPathExists", "Unit") == f"{LAKE}/lake.toml"
    # The log of the recorder is the log that the lake.toml of such a lake names.
    project = create_project(tmp_path / "fleet", "fleet")
    assert log.relative_to(LAKE) == project.log.relative_to(project.home)
    assert project.record is None  # So that `lake run` leaves the log to the recorder.


def test_the_folders_are_those_of_the_page() -> None:
    page = (DEPLOY / "README.md").read_text()
    assert "useradd --system --user-group --home-dir /var/lib/zenlake" in page
    assert (
        f"install -d -o zenlake -g zenlake -m 0750 {STATE}/zenlake {LAKE} {CACHE}/zenlake" in page
    )
    assert f"zenlake lake init {LAKE}\n" in page
    named = set(re.findall(r"/var/(?:lib|cache)/zenlake[\w/-]*", page))
    assert named == {f"{STATE}/zenlake", LAKE, f"{LAKE}/log", f"{CACHE}/zenlake"}


def test_the_commands_are_accepted(units: dict[str, Unit], tmp_path: Path) -> None:
    for words in [*units["zenlake-lake"].commands, *units["zenlake-upkeep"].commands]:
        done = zenlake(*(word.replace(LAKE, str(tmp_path)) for word in words))
        assert (done.exit_code, "there is no lake" in done.stderr) == (1, True)
    (record,) = units["zenlake-record"].commands
    # A key expression that is not valid: everything else of the command line was accepted then.
    refused = zenlake(*record, "--key", "a//b")
    assert refused.exit_code == 2
    assert "a//b" in refused.stderr


def test_a_stop_has_the_time_that_it_needs(units: dict[str, Unit]) -> None:
    """Only the main process gets the signal: Spark's JVM is ended by the driver."""
    needed = {
        "zenlake-record": recorder.JOIN_SECONDS,
        "zenlake-lake": runner.STOP_SECONDS + runner.KILL_SECONDS + 2 * recorder.JOIN_SECONDS,
    }
    for name, least in needed.items():
        unit = units[name]
        assert (unit.only("KillMode"), unit.only("KillSignal")) == ("mixed", "SIGTERM")
        assert seconds(unit.only("TimeoutStopSec").replace("min", "m")) > least
    after = units["zenlake-lake"].only("After", "Unit").split()
    assert "zenlake-record.service" in after  # Units stop in the reverse order.


def test_the_timer_starts_the_service() -> None:
    timer = Unit(DEPLOY / "zenlake-upkeep.timer")
    assert timer.only("OnCalendar", "Timer") == "hourly"
    assert timer.all("Unit", "Timer") in ([], ["zenlake-upkeep.service"])
    assert timer.only("WantedBy", "Install") == "timers.target"
