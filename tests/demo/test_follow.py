"""Delays that the demo shows: from a put to its row, of all samples but those of the start."""

import io
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from demo.follow import Commit, Delays, Follower, measure_delays
from demo.story import Teller, show_delays
from tests.support.delta_runtime import start_delta_runtime
from tests.support.lake_rows import T0, Row, as_rows, as_samples
from zenlake.lake.scaffold import create_project
from zenlake.lake.tables.definitions import LATEST, SAMPLES
from zenlake.lake.tables.delta import OFFSET_APP, DeltaStore

LATE = (5, 1.5)  # Robot 5 has a clock that lags by 1.5 s.


@pytest.fixture(scope="module", autouse=True)
def _delta_runtime(tmp_path_factory: pytest.TempPathFactory) -> None:
    start_delta_runtime(tmp_path_factory.mktemp("delta"))


def row(offset: int, put: float, robot: int = 1) -> Row:
    """Return a sample that was put so many seconds after T0, by a robot with a clock in time."""
    stamp = round((put - (LATE[1] if robot == LATE[0] else 0.0)) * 1e6)
    return Row(f"robot/{robot}/pose", offset, stamp=stamp, received=round(put * 1e6))


def commits(*ends: tuple[float, int]) -> list[Commit]:
    return [Commit(T0 + seen, end, T0 + seen, end) for seen, end in ends]


def test_the_delay_is_from_a_put_to_the_first_commit_that_has_it() -> None:
    samples = as_rows([row(0, 1.0), row(1, 8.0), row(2, 12.5), row(3, 12.9), row(4, 13.5)])
    found = measure_delays(samples, commits((10, 1), (12, 2), (13.25, 4), (14, 5)), LATE)
    assert found is not None
    assert found == pytest.approx(Delays(3, 0.5, 0.75))


def test_samples_of_the_first_two_batches_do_not_count() -> None:
    samples = as_rows([row(0, 1.0), row(1, 8.0), row(2, 11.0)])
    assert measure_delays(samples, [], LATE) is None
    assert measure_delays(samples, commits((10, 3)), LATE) is None
    assert measure_delays(samples, commits((10, 1), (12, 2), (13, 3)), LATE) is None


def test_a_clock_that_lags_is_set_right() -> None:
    samples = as_rows([row(0, 1.0), row(1, 1.5), row(2, 4.0, robot=5), row(3, 4.5)])
    found = measure_delays(samples, commits((2, 1), (3, 2), (5, 4)), LATE)
    assert found == pytest.approx(Delays(2, 0.75, 1.0))


def test_a_row_counts_as_soon_as_both_tables_have_it(tmp_path: Path) -> None:
    project = create_project(tmp_path / "fleet", "fleet")
    samples, latest = (DeltaStore(project.table(table.name), table) for table in (SAMPLES, LATEST))
    follower = Follower(project)
    follower.look()
    assert follower.describe() is None
    for first, end in pairwise((0, 3, 5)):
        rows = as_samples(as_rows([row(offset, offset / 10) for offset in range(first, end)]))
        offsets = {f"{OFFSET_APP}0": end}
        before = len(follower.commits)
        samples.commit(samples.write(rows), transactions=offsets)
        follower.look()
        assert len(follower.commits) == before
        latest.commit(
            latest.write(rows.slice(rows.num_rows - 1).select(LATEST.schema.names)),
            transactions=offsets,
        )
        follower.look()
        follower.look()
        assert len(follower.commits) == before + 1
        commit = follower.commits[-1]
        assert (commit.end, commit.rows) == (end, end)
        assert commit.newest == pytest.approx(T0 + (end - 1) / 10)
    assert str(follower.describe()).startswith("samples: 5 rows, 0 behind, newest ")


def test_a_commit_without_new_samples_is_not_a_batch(tmp_path: Path) -> None:
    project = create_project(tmp_path / "fleet", "fleet")
    rows = as_samples(as_rows([row(0, 0.0)]))
    stores = [DeltaStore(project.table(table.name), table) for table in (SAMPLES, LATEST)]
    for store in stores:
        added = store.write(rows.select(store.table.schema.names))
        store.commit(added, transactions={f"{OFFSET_APP}0": 1})
    follower = Follower(project)
    follower.look()
    before = list(follower.commits)
    compacted = stores[0]
    compacted.commit(compacted.write(rows), removed=compacted.snapshot().files, data_change=False)
    follower.look()
    assert follower.commits == before


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (Delays(900, 0.7, 1.34), "✓ the tables followed the fleet within 1.3 s"),
        (Delays(900, 3.1, 7.51), "the tables followed the fleet within 7.5 s"),
        (None, "no sample was put after the first 2 batches"),
    ],
)
def test_a_long_delay_is_shown_and_is_not_a_failure(found: Delays | None, shown: str) -> None:
    console = Console(file=io.StringIO(), width=200)
    show_delays(Teller(console), found)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert said.strip().startswith(shown)
    assert "✗" not in said
