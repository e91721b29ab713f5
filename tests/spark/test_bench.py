"""Spark's figures of `make bench` can be measured; this does not judge their values."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench import spark as bench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.campaign
def test_the_figures_of_spark_can_be_measured(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "ROWS", 2_000)
    monkeypatch.setattr(bench, "TUPLE_ROWS", 200)
    monkeypatch.setattr(bench, "ROUNDS", 1)
    bench.write_log(tmp_path / "log", bench.ROWS)
    spark.dataSource.register(bench.Tuples)
    found = list(bench.measure(spark, tmp_path))
    assert len(found) > 4
    assert all(math.isfinite(figure.value) and figure.value > 0 for figure in found)
