"""Rules of decoders that change: each sample is in `messages` or in `messages_failed`, not both."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_in_process import zenlake
from tests.support.decoded_lakes import FAILING, DecodedLake, in_order, json_event
from tests.support.lake_ranges import open_tables, planned, write_batch
from zenlake.errors import ZError
from zenlake.lake.pipeline.decoder_rules import USED, DecoderRules
from zenlake.lake.tables import table_set
from zenlake.lake.tables.projections import commit_table

pytestmark = pytest.mark.slow

ROWS, BATCH = 60, 20


@pytest.fixture
def lake(tmp_path: Path) -> DecodedLake:
    made = DecodedLake(tmp_path / "lake")
    made.record([json_event(number, at=number * 10.0) for number in range(ROWS)])
    return made


def run(lake: DecodedLake, batches: int = -1) -> None:
    """Fill the tables from where they are, as a new process does."""
    tables, rules = open_tables(lake.project), DecoderRules(lake.project)
    try:
        for batch in planned(lake.project.log, BATCH, tables.start(), tables.positions().values()):
            if batches == 0:
                break
            batches -= 1
            chosen = rules.for_batch(tables.positions())
            tables.commit(write_batch(lake.project, tables, batch, chosen))
    finally:
        tables.close()


def offsets(lake: DecodedLake) -> tuple[list[int], list[int]]:
    decoded, failed = (in_order(store)["offset"].to_pylist() for store in lake.stores())
    return decoded, failed


@pytest.mark.parametrize("before", [FAILING, ""])
@pytest.mark.parametrize("committed", ["messages", "messages_failed"])
def test_a_batch_of_which_one_table_has_its_part_keeps_its_rules(
    lake: DecodedLake, monkeypatch: pytest.MonkeyPatch, before: str, committed: str
) -> None:
    """The process is killed between two commits, and lake.toml is changed before the next one."""
    after = "" if before else FAILING

    def commit(store: Any, *arguments: Any) -> None:
        if store.table.name in {"messages", "messages_failed"} - {committed}:
            raise ZError("killed")
        commit_table(store, *arguments)

    lake.configure(before)
    run(lake, 1)
    with monkeypatch.context() as patch:
        patch.setattr(table_set, "commit_table", commit)
        with pytest.raises(ZError, match="killed"):
            run(lake, 1)
    lake.configure(after)
    run(lake)
    old, new = list(range(2 * BATCH)), list(range(2 * BATCH, ROWS))
    assert offsets(lake) == ((new, old) if before else (old, new))


def test_rules_that_work_no_more_are_left(lake: DecodedLake, caplog: Any) -> None:
    """A rule may name a file that is gone: the lake goes on by the rules that it has."""
    run(lake, 1)
    state = lake.project.state / USED
    for text in ("not JSON", '[{"key": "**", "use": "nosuchmodule:decode"}]', "[1]"):
        state.write_text(text)
        caplog.clear()
        rules = DecoderRules(lake.project)
        differ = {"messages": {0: 1}, "messages_failed": {0: 2}}
        assert rules.for_batch(differ) == rules.current()
        assert "the rules of lake.toml are taken" in caplog.text


@pytest.mark.parametrize("name", ["messages", "messages_failed"])
def test_a_table_that_is_reset_is_decoded_by_the_present_rules(
    lake: DecodedLake, name: str
) -> None:
    everything: list[int] = list(range(ROWS))
    lake.configure(FAILING)
    run(lake)
    assert offsets(lake) == ([], everything)
    lake.configure()
    assert zenlake("lake", "reset", str(lake.project.home), name).exit_code == 0
    run(lake)
    assert offsets(lake) == (everything, [])


def test_rules_that_change_just_before_a_kill(lake: DecodedLake) -> None:
    """No batch was under way of which one table has its part: tables record offsets together."""
    tables, rules = open_tables(lake.project), DecoderRules(lake.project)
    batches = planned(lake.project.log, BATCH)
    for _ in range(2):  # The second one within a minute, and without a row in messages_failed.
        chosen = rules.for_batch(tables.positions())
        tables.commit(write_batch(lake.project, tables, next(batches), chosen))
    lake.configure(FAILING)
    rules.for_batch(tables.positions())  # Recorded for the third batch, which is not written.
    batches.close()
    tables.close(records=False)
    run(lake)
    assert offsets(lake) == (list(range(2 * BATCH)), list(range(2 * BATCH, ROWS)))
