"""lake.toml: what it says is what is meant, and what cannot be meant is refused with a remedy.

Also what a new lake consists of, and how far its flows are by the files that Spark leaves.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support import spark_log
from zenlake.errors import ZError
from zenlake.lake import scaffold
from zenlake.lake.pipeline import flows, progress
from zenlake.lake.pipeline.spark_session import extract_reason
from zenlake.lake.project import SECTIONS, Project, find
from zenlake.log.read.log import Log

FULL = """
[lake]
name = "fleet"
log = "/data/log"
tables = "silver"
format = "delta"
[record]
connect = ["tcp/127.0.0.1:7447"]
keys = ["robot/**", "a/**/**"]
mode = "peer"
codec = "lz4"
partition = 3
config = "zenoh.json5"
[samples]
duplicates_within = "90s"
max_rows = 5
[retention]
log = "2d"
samples = "4w"
[upkeep]
every = "never"
target = "1GiB"
vacuum_after = "10m"
[[decoders]]
key = "robot/*/imu"
use = "protobuf"
descriptor = "imu.desc"
"""


def test_a_full_lake_toml_is_read(tmp_path: Path) -> None:
    (tmp_path / "lake.toml").write_text(FULL)
    project = Project.load(tmp_path)
    assert project == Project.load(tmp_path / "lake.toml")
    assert (project.home, project.name) == (tmp_path, "fleet")
    assert (project.log, project.tables) == (Path("/data/log"), tmp_path / "silver")
    assert project.table("latest") == tmp_path / "silver" / "latest"
    assert project.record is not None
    assert project.record.connect == ("tcp/127.0.0.1:7447",)
    assert project.record.keys == ("robot/**", "a/**")
    assert (project.record.mode, project.record.codec) == ("peer", "lz4")
    assert (project.record.partition, project.record.config) == (3, tmp_path / "zenoh.json5")
    assert (project.duplicates_within, project.max_rows) == (90.0, 5)
    assert project.retention == {"log": 172_800.0, "samples": 4 * 604_800.0}
    assert project.upkeep.every is None
    assert (project.upkeep.target, project.upkeep.vacuum_after) == (1 << 30, 600.0)
    assert project.decoders == (
        {"key": "robot/*/imu", "use": "protobuf", "descriptor": "imu.desc"},
    )


def test_only_a_name_is_required() -> None:
    project = Project.parse('[lake]\nname = "x"', "/a/lake.toml")
    assert (project.log, project.tables) == (Path("/a/log"), Path("/a/tables"))
    assert (project.record, project.retention) == (None, {})
    assert (project.duplicates_within, project.max_rows) == (600.0, 1_000_000)
    assert (project.upkeep.every, project.upkeep.target) == (600.0, 128 << 20)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "[lake] with a name is missing"),
        ("[lake]\nlog = 'x'", "[lake] with a name is missing"),
        ("[lake", "lake.toml: "),
        ("[lake]\nname = 7", "[lake] name: 7 is not a name of letters"),
        ("[lake]\nname = '../x'", "[lake] name: '../x' is not a name"),
        ("[lake]\nname = 'x'\nformt = 'delta'", "[lake] has no formt; did you mean format?"),
        ("[lake]\nname = 'x'\nformat = 'iceberg'", "the only format of tables"),
        (
            "[lake]\nname = 'x'\nformat = 'catalog'",
            "[lake] format: 'catalog' is not \"delta\", the only format of tables",
        ),
        ("lake = 'x'", "lake is a section: write [lake]"),
        ("[lake]\nname = 'x'\n[recrod]", "no [recrod]; did you mean [record]?"),
        ("[lake]\nname = 'x'\n[zzz]", "there is no [zzz]; there are [lake], [record]"),
        ("[lake]\nname = 'x'\n[retention]\nlogs = '2d'", "has no logs; did you mean log?"),
        (
            "[lake]\nname = 'x'\n[retention]\nlog = 2",
            "[retention] log: 2 is not a duration such as",
        ),
        ("[lake]\nname = 'x'\n[retention]\nlog = '0d'", "log: '0d' is not a duration"),
        ("[lake]\nname = 'x'\n[retention]\nlog = '999999w'", "is not a duration"),
        ("[lake]\nname = 'x'\n[upkeep]\nevery = 'often'", 'or "never"'),
        ("[lake]\nname = 'x'\n[upkeep]\ntarget = '1'", "a size from 64KiB"),
        ("[lake]\nname = 'x'\n[samples]\nmax_rows = true", "a whole number from 1 on"),
        ("[lake]\nname = 'x'\n[record]\nkeys = 'a'", "a list of key expressions"),
        ("[lake]\nname = 'x'\n[record]\nkeys = ['a//b']", "a list of key expressions"),
        ("[lake]\nname = 'x'\n[record]\nconnect = ['nowhere']", "a list of endpoints"),
        ("[lake]\nname = 'x'\n[record]\nmode = 'router'", "one of client, peer"),
        ("decoders = 1\n[lake]\nname = 'x'", "write [[decoders]] above each"),
        ("[lake]\nname = 'x'\n[[decoders]]\nkey = 'a'", "[[decoders]] 1: say what decodes"),
        ("[lake]\nname = 'x'\n[[decoders]]\nuse = ''", "[[decoders]] 1 use: ''"),
        ("[lake]\nname = 'x'\n[[decoders]]\nuse = 'json'\nkey = 'a//b'", "[[decoders]] 1 key"),
    ],
)
def test_invalid_settings_are_refused(text: str, said: str) -> None:
    with pytest.raises(ZError) as refused:
        Project.parse(text)
    assert said in str(refused.value)
    assert str(refused.value).startswith("lake.toml: ")


def test_a_file_that_is_not_a_lake_toml(tmp_path: Path) -> None:
    with pytest.raises(ZError, match="zenlake lake init"):
        Project.load(tmp_path)
    (tmp_path / "lake.toml").write_bytes(b"\xff")
    with pytest.raises(ZError, match="UTF-8"):
        Project.load(tmp_path)
    (tmp_path / "lake.toml").write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(ZError, match="larger than 1 MiB"):
        Project.load(tmp_path)


def test_a_lake_is_found_from_within(tmp_path: Path) -> None:
    scaffold.create_project(tmp_path / "fleet", "fleet")
    assert find(tmp_path / "fleet" / "transformations").home == tmp_path / "fleet"
    with pytest.raises(ZError, match=r"no lake\.toml in "):
        find(tmp_path)


# ---- a new one


def test_a_new_lake_says_what_was_asked(tmp_path: Path) -> None:
    made = scaffold.create_project(
        tmp_path / "a b", "fleet", ["tcp/[::1]:7447"], ["ключ/**", 'x/"q"']
    )
    assert made == Project.load(tmp_path / "a b")
    assert made.name == "fleet"
    assert made.record is not None
    assert made.record.connect == ("tcp/[::1]:7447",)
    assert made.record.keys == ("ключ/**", 'x/"q"')
    there = sorted(str(path.relative_to(made.home)) for path in made.home.rglob("*.*"))
    assert there == [
        "lake.toml",
        "spark-pipeline.yml",
        "transformations/tables.py",
    ]
    for path in made.home.rglob("*.py"):
        compile(path.read_text(), path, "exec")
    spec = (made.home / "spark-pipeline.yml").read_text()
    assert "$" not in spec


def test_a_new_lake_that_does_not_record_shows_how_to(tmp_path: Path) -> None:
    made = scaffold.create_project(tmp_path, "fleet")
    assert made.record is None
    commented = [
        line.removeprefix("# ")
        for line in (tmp_path / "lake.toml").read_text().splitlines()
        if line.startswith("# ")
    ]
    section = "\n".join(commented[commented.index(next(o for o in commented if "[record]" in o)) :])
    assert set(tomllib.loads(section.partition("How payloads")[0])["record"]) == set(
        SECTIONS["record"]
    )


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "transformations").mkdir()
    mine = tmp_path / "transformations" / "tables.py"
    mine.write_text("mine")
    with pytest.raises(ZError, match=r"tables\.py is there already"):
        scaffold.create_project(tmp_path, "fleet")
    assert mine.read_text() == "mine"
    assert not (tmp_path / "lake.toml").exists()


def test_a_lake_with_a_bad_name_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(ZError, match="is not a name of letters"):
        scaffold.create_project(tmp_path / "new", "no name")
    assert not (tmp_path / "new").exists()


def test_no_file_of_a_lake_names_its_folder(tmp_path: Path) -> None:
    made = scaffold.create_project(tmp_path / "a lake", "fleet")
    texts = [path.read_text() for path in made.home.rglob("*") if path.is_file()]
    assert len(texts) >= 3
    assert not [text for text in texts if "a lake" in text or str(tmp_path) in text]
    assert made.state == made.home / "state"


# ---- how far flows are


def checkpoint(state: Path, flow: str, log: Path, *ends: int, version: int = 0) -> None:
    """As Spark leaves it: all of `ends` were planned, all but the last one have ended."""
    folder = state / "_checkpoints" / flow / flow / str(version)
    (folder / "offsets").mkdir(parents=True)
    (folder / "commits").mkdir()
    for batch, end in enumerate(ends):
        source = json.dumps({"log": Log(log).id, "partitions": {"0": end}})
        (folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{source}")
        if batch < len(ends) - 1:
            (folder / "commits" / str(batch)).write_text("v1\n{}")


def test_progress_counts_completed_batches_only(tmp_path: Path) -> None:
    spark_log.append(tmp_path / "log", 100)
    log_id = Log(tmp_path / "log").id
    assert progress.committed_offsets(tmp_path, log_id) == {}
    checkpoint(tmp_path, "samples", tmp_path / "log", 50, 80, 100)
    checkpoint(tmp_path, "loss", tmp_path / "log", 100)  # planned, and never ended
    checkpoint(tmp_path, "own", tmp_path / "log", 90, 100)
    checkpoint(tmp_path, "own", tmp_path / "log", 10, 100, version=1)  # after a full refresh
    found = progress.committed_offsets(tmp_path, log_id)
    assert {flow: committed.offsets for flow, committed in found.items()} == {
        "samples": {0: 80},
        "own": {0: 10},
    }
    assert progress.committed_offsets(tmp_path, "another")["samples"].offsets == {}
    assert progress.count_behind({0: 100}, found["samples"].offsets) == 20


@pytest.mark.parametrize("text", ["", "v1", 'v1\n{}\n-\n[]\nnull\n{}\nnonsense\n{"log": 1}'])
def test_invalid_offset_files_are_ignored(text: str) -> None:
    assert progress.parse_offsets(text, "ab") == {}


DAY = 86_400.0
LAST = (spark_log.START + 999 * spark_log.STEP) / 1e9  # Time of the last of 1000 samples.


def lake_of(tmp_path: Path, log: str) -> Project:
    """A lake with 1000 samples in many segments, received within a second."""
    spark_log.append(tmp_path / "log", 1000, per_block=10, rotate=1 << 10)
    text = f'[lake]\nname = "x"\n[samples]\nduplicates_within = "1ms"\n[retention]\nlog = "{log}"'
    (tmp_path / "lake.toml").write_text(text)
    return Project.load(tmp_path)


def test_the_log_is_trimmed_below_the_slowest_flow(tmp_path: Path) -> None:
    project = lake_of(tmp_path, "10ms")
    assert progress.durable_offsets(project) == {0: 1000}
    assert progress.trim(project, [{0: 990}, {}]).segments == 0  # one never began
    assert progress.trim(project, []).segments == 0
    assert progress.trim(project, [{0: 990}, {0: 400}]).segments > 0
    first = Log(project.log).first(0)
    assert 300 < first <= 400
    progress.trim(project, [{0: 990}])
    assert 400 < Log(project.log).first(0) <= 990


def test_the_log_is_trimmed_by_age_and_a_clock_ahead_counts_for_nothing(tmp_path: Path) -> None:
    project = lake_of(tmp_path, "500ms")
    assert progress.trim(project, [{0: 1000}], now=LAST - DAY).segments == 0
    progress.trim(project, [{0: 1000}], now=LAST + 365 * DAY)
    assert 400 < Log(project.log).first(0) <= 500


def test_a_log_that_is_kept_or_not_there_is_not_trimmed(tmp_path: Path) -> None:
    project = Project.parse('[lake]\nname = "x"\n[retention]\nlog = "1d"', tmp_path / "lake.toml")
    assert progress.trim(project, [{0: 10}]).segments == 0
    assert progress.durable_offsets(project) == {}
    spark_log.append(tmp_path / "log", 10)
    kept = Project.parse('[lake]\nname = "x"', tmp_path / "lake.toml")
    assert progress.trim(kept, [{0: 10}]).segments == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no reason given"),
        ("[A] b SQLSTATE: 42000\nmore", "[A] b"),
        ("x\npyspark.errors.Foo: y\nValueError: z\n  at", "ValueError: z"),
        ("x\nzenlake.spark.offsets.DataLoss: gone", "gone"),
        ("e" * 600, "e" * 500 + "..."),
    ],
)
def test_the_reason_is_one_line(text: str, reason: str) -> None:
    assert extract_reason(text) == reason


# ---- flows


@pytest.mark.parametrize(
    ("into", "said"),
    [
        ([], "goes into 0 tables"),
        ("../x", "not a valid table name"),
        ("tombstones", "with `latest`"),
    ],
)
def test_flows_that_are_refused(
    into: str | list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake.toml").write_text('[lake]\nname = "x"')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZError, match=said):
        flows.flow(into=into)(lambda: cast(Any, None))


def test_flows_and_tables_are_collected_only_inside_the_block(tmp_path: Path) -> None:
    project = Project.parse('[lake]\nname = "x"', tmp_path / "lake.toml")
    rows = cast(Any, lambda: None)
    with flows.collect(project) as outer:
        with flows.collect(project) as inner:
            flows.table("samples")
            flows.table("samples")
            flows.flow(into="own", name="mine")(rows)
        flows.table("latest")
    assert (inner.tables, outer.tables) == (["samples"], ["latest"])
    assert inner.flows == {"mine": flows.Flow("mine", ("own",), None, rows)}
    assert outer.flows == {}


def test_a_table_that_is_not_built_in_is_refused(tmp_path: Path) -> None:
    project = Project.parse('[lake]\nname = "x"', tmp_path / "lake.toml")
    with flows.collect(project) as found:
        with pytest.raises(ZError, match=r"no built-in table 'sampels'; did you mean 'samples'"):
            flows.table("sampels")
        with pytest.raises(ZError, match="built-in tables have this name"):
            flows.flow(into="own", name="tables")(cast(Any, lambda: None))
    assert not found.tables


@pytest.mark.process
def test_views_are_exported_and_loaded_on_first_use() -> None:
    program = (
        "import sys, zenlake.lake as lake\n"
        "assert not {'pyspark', 'pyarrow'} & set(sys.modules)\n"
        "from zenlake.lake import views\n"
        "assert lake.views is views and views.__name__ == 'zenlake.lake.pipeline.views'\n"
        "assert 'views' in dir(lake)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
