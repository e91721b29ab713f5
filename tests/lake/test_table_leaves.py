"""How a folded table is cut into leaves."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.lake_rows import as_samples
from zenlake.lake.tables.commit import TableBatch, fold_latest
from zenlake.lake.tables.definitions import LATEST, TOMBSTONES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.reduce import keep_newest
from zenlake.lake.tables.schema import TIME


@pytest.mark.parametrize("count", [395, 396, 397, 1000, 1001, 1007])
def test_rows_that_fit_into_one_leaf_are_in_one(tmp_path: Path, count: int) -> None:
    rows = pa.table(
        {
            "key": [f"robot/{number}/pose" for number in range(count)],
            "kind": ["put"] * count,
            "payload": [b"x" * (number % 7) for number in range(count)],
            "received_at": pa.array(range(count), TIME),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": range(count),
        }
    )
    latest = DeltaStore(tmp_path / "latest", LATEST)
    tombstones = DeltaStore(tmp_path / "tombstones", TOMBSTONES)
    fold_latest(
        latest,
        tombstones,
        keep_newest(as_samples(rows)),
        TableBatch("f", "q", 0, {0: (0, count - 1)}),
    )
    assert [file.rows for file in latest.snapshot().files] == [count]
