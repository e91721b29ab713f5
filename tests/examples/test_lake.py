"""The examples of lakes, as they are: those with Spark one after another in one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
WITH_SPARK = ("lake_stall.py", "lake_publish.py", "lake_fleet.py", "fleet.ipynb")
MAX_LINES = 60
SOON = 120.0  # Seconds.
AT_LAST = 500.0  # Seconds for four starts of a Spark on a busy machine.
SHARED = """
import json, pathlib, runpy, sys
from pyspark.sql import SparkSession
SparkSession.stop = lambda self: None  # one for all: a start costs more than what they do with it
for path in map(pathlib.Path, sys.argv[1:]):
    sys.stdout.write(f"== {path.name}\\n")
    sys.stdout.flush()
    if path.suffix == ".ipynb":
        names = {"__name__": "__main__"}
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)
        sys.stdout.write(json.dumps([names["newest"], len(names["three"])]) + "\\n")
    else:
        runpy.run_path(str(path), run_name="__main__")
    sys.stdout.flush()
"""


def run(*args: str, seconds: float) -> str:
    done = subprocess.run(
        [sys.executable, *args],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.spark
def test_time_travel() -> None:
    now, then, poses = run("-W", "error", "lake_time_travel.py", seconds=SOON).split("? ")[1:]
    assert now.splitlines() == ["robot/1/*", '  robot/1/pose = {"x": 99}']
    assert sorted(then.splitlines()[1:]) == [
        '  robot/1/pose = {"x": 2}',
        "  robot/1/task = fetch shelf 7",
    ]
    assert poses.splitlines()[1:] == [
        f'  robot/1/pose = {{"x": {number}}}' for number in (0, 1, 2, 99)
    ]


@pytest.mark.campaign
@pytest.mark.spark
@pytest.mark.timeout(AT_LAST + 20)
def test_with_spark() -> None:
    paths = [str(EXAMPLES / name) for name in WITH_SPARK]
    said = run("-c", SHARED, *paths, seconds=AT_LAST)
    parts = dict(part.split("\n", 1) for part in said.split("== ")[1:])
    assert list(parts) == list(WITH_SPARK)

    gap, cause = _rows(parts["lake_stall.py"], 3), _rows(parts["lake_stall.py"], 7)
    assert int(gap[0][2]) >= 500  # A map of 2 MB on a link of 2 MB/s.
    assert [row[0] for row in cause] == ["robot/1/map"]
    assert cause[0][1:5] == ["PUSH", "put", "5", "block"]
    assert int(cause[0][5]) > 1
    assert int(cause[0][6]) > 2_000_000

    assert sorted(parts["lake_publish.py"].splitlines()) == [
        'fleet/2/advice is {"charge": true, "level": 0.51}',
        'fleet/3/advice is {"charge": true, "level": 0.265}',
    ]

    assert _rows(parts["lake_fleet.py"], 3) == [
        ["1", "100", "0.755"],
        ["2", "100", "0.51"],
        ["3", "100", "0.265"],
    ]
    latest = dict(_rows(parts["lake_fleet.py"], 2))
    assert latest["robot/3/battery"] == '{"level": 0.265}'
    assert len(latest) == 6
    health = _rows(parts["lake_fleet.py"], 4)
    assert sum(int(row[1]) for row in health) == 300

    notebook = parts["fleet.ipynb"]
    assert dict(_rows(notebook, 2)) == latest
    newest, three = json.loads(notebook.splitlines()[-1])
    assert sorted(newest) == sorted(latest[key] for key in latest if key.endswith("/battery"))
    assert three == 3


def _rows(said: str, columns: int) -> list[list[str]]:
    """The rows of every table that Spark showed with so many columns, without their names."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in said.splitlines()]
    return [
        row for row in cells if len(row) == columns and row[0] not in ("before", "key", "robot")
    ]


def test_the_examples_are_short_and_in_the_list() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("lake_*.py"):
        assert len(path.read_text().splitlines()) <= MAX_LINES, path
        assert f"`{path.name}`" in listed


def test_the_notebook_has_no_results_in_it() -> None:
    book = json.loads((EXAMPLES / "fleet.ipynb").read_text())
    assert book["nbformat"] == 4
    for cell in book["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
