"""The figures of `python -m bench lake serve` can be measured; how large they are, is not
asked here. Those of a lake that runs, with a Spark of its own, are left to the bench itself.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench import lake as bench
from bench import lake_plain, lake_updates, serve
from bench.lake_rows import write_log
from zenlake.lake.pipeline.runner import prepare_session
from zenlake.lake.scaffold import create_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bench.figures import Figures


def measured(figures: "Figures", count: int) -> None:
    found = list(figures)
    assert len({figure.name for figure in found}) == len(found) == count
    assert all(math.isfinite(figure.value) and figure.value > 0 for figure in found)
    assert all(figure.unit for figure in found)


@pytest.mark.campaign
@pytest.mark.spark
def test_a_job_by_hand_makes_as_many_rows(spark: "SparkSession", tmp_path: Path) -> None:
    project = create_project(tmp_path / "fleet", "bench")
    write_log(project.log, 2_000)
    rows = spark.read.format("zenoh").load(str(project.log))
    rows.write.parquet(str(tmp_path / "rows"))
    prepare_session(spark)
    bench.fill(spark, project)
    lake_plain.make(spark, tmp_path / "rows", tmp_path / "plain")
    bench.compare(spark, project, tmp_path / "plain")


def test_updates_of_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "CHANGED": 10,
        "LIVE": 50,
        "UPDATES": 1,
        "TIMES": (1, 2),
        "REPEATS": 1,
    }.items():
        monkeypatch.setattr(lake_updates, name, value)
    measured(lake_updates.updates(tmp_path), 7)


@pytest.mark.process
def test_a_lake_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "ROWS", 8_000)
    monkeypatch.setattr(serve, "BATCH_ROWS", 4_000)
    monkeypatch.setattr(serve, "ROUNDS", 1)
    measured(serve.figures(), 9)
