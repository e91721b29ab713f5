"""`messages` made again by other decoders: equal to a table made from scratch, and never mixed."""

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.support.cli_in_process import zenlake
from tests.support.decoded_lakes import (
    FAILING,
    QUERY,
    DecodedLake,
    from_scratch,
    in_order,
    json_event,
    write_checkpoint,
)
from tests.support.lake_ranges import fill, open_tables, planned, write_batch
from tests.support.processes import call_command, python_environment
from zenlake.errors import ZError
from zenlake.lake.pipeline.progress import TABLES_FLOW
from zenlake.lake.pipeline.reset import plan_reset, reset
from zenlake.lake.project import Project
from zenlake.lake.reprocess import messages, sources
from zenlake.lake.reprocess.messages import TableChange, reprocess
from zenlake.lake.tables import projections
from zenlake.lake.tables.delta import DeltaStore, StoreError
from zenlake.log.read.log import Log

pytestmark = pytest.mark.slow

DAY = 86_400
KILL_SECONDS = 120.0


def failed_lake(home: Path, count: int = 40, **options: Any) -> DecodedLake:
    """Return a lake with `count` samples, none of which could be decoded."""
    lake = DecodedLake(home, FAILING, **options)
    lake.record([json_event(number, at=number * 10.0) for number in range(count)])
    for upto in (count // 2, count):
        lake.take("samples", {0: upto})
        lake.take("messages", {0: upto})
    assert lake.messages.snapshot().rows == 0
    assert lake.failed.snapshot().rows == count
    lake.configure(**options)
    return lake


def files_on_disk(store: DeltaStore) -> set[str]:
    return {str(path.relative_to(store.path)) for path in store.path.rglob("*.parquet")}


def named_files(store: DeltaStore) -> set[str]:
    return {file.path for file in store.snapshot().files}


# ---- what is made


@pytest.mark.parametrize("source", ["samples", "log"])
def test_the_result_is_the_table_made_from_scratch(tmp_path: Path, source: Any) -> None:
    lake = failed_lake(tmp_path / "lake")
    expected = from_scratch(lake, tmp_path / "scratch")
    versions = lake.messages.snapshot().version, lake.failed.snapshot().version
    recorded = lake.messages.offsets(), lake.messages.transaction(f"zenlake/messages/{QUERY}")
    done = reprocess(lake.project, source)
    assert lake.tables() == expected
    assert expected["messages"].num_rows == 40
    assert (lake.messages.snapshot().version, lake.failed.snapshot().version) == (
        versions[0] + 1,
        versions[1] + 1,
    )
    # A running flow recognises its batches by these.
    assert recorded == (
        lake.messages.offsets(),
        lake.messages.transaction(f"zenlake/messages/{QUERY}"),
    )
    assert (done.source, done.samples) == (source, 40)
    assert done.tables == {
        "messages": TableChange(before=0, after=40),
        "messages_failed": TableChange(before=40, after=0),
    }
    assert dict(done.before.decoders) == {("number", "messages_failed"): 40}
    assert dict(done.after.decoders) == {("json", "messages"): 40}


def test_small_pieces_and_buffers_give_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds on memory are those of a piece that is read and of a buffer that is written."""
    lake = failed_lake(tmp_path / "lake", 200)
    expected = from_scratch(lake, tmp_path / "scratch")
    monkeypatch.setattr(sources, "PIECE_BYTES", 1)
    monkeypatch.setattr(projections, "MAX_BUFFER_ROWS", 30)
    reprocess(lake.project, "samples")
    assert len(lake.messages.snapshot().files) >= 200 // 30
    assert lake.tables() == expected


def test_deletes_and_samples_without_a_decoder_stay_out(tmp_path: Path) -> None:
    lake = DecodedLake(tmp_path / "lake", FAILING)
    put, delete = json_event(0), json_event(1)._replace(payload=None)
    image = json_event(2)._replace(encoding="image/png")
    lake.record([put, delete, image])
    lake.take("samples")
    lake.take("messages")
    assert in_order(lake.failed)["offset"].to_pylist() == [0, 2]
    lake.configure()
    for source in ("samples", "log"):
        reprocess(lake.project, source)
        assert in_order(lake.messages)["offset"].to_pylist() == [0]
        assert lake.failed.snapshot().rows == 0


def test_samples_that_had_no_decoder_get_their_rows(tmp_path: Path) -> None:
    """Only the checkpoint knows that the flow has passed samples behind its last decoded row."""
    lake = DecodedLake(tmp_path / "lake", '[[decoders]]\nkey = "robot/1"\nuse = "none"\n')
    lake.record([json_event(0), json_event(1), json_event(2), *[json_event(1)] * 3])
    lake.take("samples")
    lake.take("messages")
    lake.checkpoint()
    lake.configure()
    lake.record([json_event(3)])
    lake.take("messages")  # The checkpoint is of the batch before.
    reprocess(lake.project, "samples")
    assert in_order(lake.messages)["offset"].to_pylist() == [0, 1, 2, 3, 4, 5, 6]
    assert lake.tables() == from_scratch(lake, tmp_path / "scratch")


def test_tables_that_do_not_exist_yet_are_made(tmp_path: Path) -> None:
    lake = DecodedLake(tmp_path / "lake", '[[decoders]]\nkey = "**"\nuse = "none"\n')
    lake.record([json_event(number) for number in range(5)])
    lake.take("samples")
    lake.take("messages")
    assert not lake.messages.exists()
    lake.configure()
    with pytest.raises(ZError, match="taken no sample yet"):
        reprocess(lake.project)
    lake.checkpoint()
    assert reprocess(lake.project).tables["messages"].after == 5
    assert in_order(lake.messages)["offset"].to_pylist() == [0, 1, 2, 3, 4]
    lake.record([json_event(9)])
    lake.take("messages")
    assert lake.tables() == from_scratch(lake, tmp_path / "scratch")


# ---- beside a running flow


def test_rows_appended_meanwhile_stay(tmp_path: Path) -> None:
    lake = failed_lake(tmp_path / "lake")
    lake.record([json_event(number, at=500.0 + number) for number in range(40, 60)])
    calls = []

    def append(done: int, total: int) -> None:
        calls.append((done, total))
        if len(calls) == 1:
            lake.take("messages", {0: 50})
            lake.take("messages", {0: 60})

    done = reprocess(lake.project, "samples", on_progress=append)
    assert calls[-1] == (40, 40)
    assert done.tables["messages"] == TableChange(before=0, after=40)
    assert lake.tables() == from_scratch(lake, tmp_path / "scratch")
    lake.record([json_event(60, at=600.0)])
    lake.take("messages")
    assert lake.messages.snapshot().rows == 61


def test_a_batch_that_only_one_table_has_is_left_to_the_flow(tmp_path: Path) -> None:
    lake = failed_lake(tmp_path / "lake")
    lake.configure(FAILING)
    lake.record([json_event(number, at=500.0 + number) for number in range(40, 50)])
    lake.take("messages", tables=1)  # messages_failed gets its commit later.
    lake.configure()
    done = reprocess(lake.project, "log")
    assert done.samples == 40
    assert in_order(lake.messages)["offset"].to_pylist() == list(range(40))


def test_samples_that_the_table_does_not_have_yet_are_read_from_the_log(tmp_path: Path) -> None:
    lake = failed_lake(tmp_path / "lake")
    lake.configure(FAILING)
    lake.record([json_event(number, at=500.0 + number) for number in range(40, 50)])
    lake.take("messages")
    lake.configure()
    assert reprocess(lake.project, "samples").samples == 50
    assert lake.tables() == from_scratch(lake, tmp_path / "scratch")
    shutil.rmtree(lake.project.log)
    with pytest.raises(ZError, match="bring `samples` up to date first"):
        reprocess(lake.project, "samples")


def test_a_query_that_starts_again_adds_no_row_twice(tmp_path: Path) -> None:
    """The tables had no new rows and recorded no offsets when their query was killed."""
    lake = DecodedLake(tmp_path / "lake")
    events = [json_event(number, at=number * 10.0) for number in range(40)]
    lake.record([*events[:20], *(event._replace(encoding="image/png") for event in events[20:])])
    killed = open_tables(lake.project)
    for batch in planned(lake.project.log, 20):
        killed.commit(write_batch(lake.project, killed, batch))
    killed.close(records=False)
    assert lake.messages.offsets() == lake.failed.offsets() == {0: 20}
    write_checkpoint(lake.project, TABLES_FLOW, 1, {0: 40})
    lake.configure('[[decoders]]\nkey = "**"\nuse = "json"\n')
    reprocess(lake.project, "log")
    fill(lake.project)
    assert in_order(lake.messages)["offset"].to_pylist() == list(range(40))
    assert lake.messages.offsets() == {0: 40}


def test_tables_that_are_made_again_record_what_they_have(tmp_path: Path) -> None:
    """By an older flow, whose checkpoint tells that both tables are to have rows."""
    lake = DecodedLake(tmp_path / "lake")
    lake.record([json_event(number, at=number * 10.0) for number in range(40)])
    lake.take("samples")
    lake.take("messages")
    lake.checkpoint()
    lake.record([json_event(number, at=number * 10.0) for number in range(40, 60)])
    fill(lake.project)
    (lake.project.home / "spark-pipeline.yml").write_text("name: x\nstorage: file:///x\n")
    reset(lake.project, plan_reset(lake.project, ["messages"]))
    with pytest.raises(ZError, match="has taken no sample yet"):
        reprocess(lake.project)
    lake.checkpoint()
    reprocess(lake.project)
    assert {frozenset(store.offsets().items()) for store in lake.stores()} == {frozenset({(0, 40)})}
    fill(lake.project)
    assert in_order(lake.stores()[0])["offset"].to_pylist() == list(range(60))


def test_another_commit_to_the_replaced_files_is_a_conflict(tmp_path: Path) -> None:
    lake = failed_lake(tmp_path / "lake")

    def remove(done: int, total: int) -> None:
        if done == total:
            other = DeltaStore(lake.failed.path, lake.failed.table)
            other.commit((), other.snapshot().files[:1])

    with pytest.raises(StoreError, match=r"another process changed it meanwhile.*start again"):
        reprocess(lake.project, on_progress=remove)
    assert (lake.messages.snapshot().rows, lake.failed.snapshot().rows) == (0, 20)
    assert files_on_disk(lake.messages) == set()
    reprocess(lake.project)
    assert (lake.messages.snapshot().rows, lake.failed.snapshot().rows) == (40, 0)


def test_nothing_is_left_behind_by_an_error(tmp_path: Path) -> None:
    lake = failed_lake(tmp_path / "lake")
    before = lake.tables()
    files = files_on_disk(lake.messages), files_on_disk(lake.failed)

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reprocess(lake.project, on_progress=fail)
    assert lake.tables() == before
    assert (files_on_disk(lake.messages), files_on_disk(lake.failed)) == files


def test_maintenance_of_another_process_is_waited_for(tmp_path: Path) -> None:
    lake = failed_lake(tmp_path / "lake")
    with (lake.project.tables / ".upkeep").open("a") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        with pytest.raises(ZError, match=r"another upkeep of .* try again when it has ended"):
            reprocess(lake.project, wait=0.0)
    before = (lake.project.tables / ".upkeep").stat().st_mtime_ns
    reprocess(lake.project)
    # It does not count as maintenance, which stays due.
    assert (lake.project.tables / ".upkeep").stat().st_mtime_ns == before


# ---- samples that the source no longer has


def test_rows_older_than_the_log_stay(tmp_path: Path) -> None:
    lake = DecodedLake(tmp_path / "lake", FAILING)
    old = [json_event(number) for number in range(20)]
    new = [json_event(number, at=5000.0 + number) for number in range(20, 40)]
    lake.record([*old, *new], block=10, rotate_bytes=1)
    for upto in (7, 40):  # The second file has samples from before and after the trim.
        lake.take("messages", {0: upto})
    (first,) = named_files(lake.failed) & {
        file.path for file in lake.failed.snapshot().files if file.rows == 7
    }
    lake.configure()
    expected = from_scratch(lake, tmp_path / "scratch")
    trim_before(lake, 20)
    done = reprocess(lake.project)
    assert done.source == "log"
    assert done.tables == {
        "messages": TableChange(before=0, after=20),
        "messages_failed": TableChange(before=20, after=0, older=20),
    }
    assert first in named_files(lake.failed)  # A file that stays whole is not written again.
    assert in_order(lake.failed)["offset"].to_pylist() == list(range(20))
    assert in_order(lake.messages) == expected["messages"].slice(20)


def trim_before(lake: DecodedLake, offset: int) -> None:
    """Make the log start at an offset, as retention does with whole segments."""
    assert Log(lake.project.log).trim(before_offset=offset).segments
    assert Log(lake.project.log).first(0) == offset


def test_rows_older_than_samples_stay(tmp_path: Path) -> None:
    lake = DecodedLake(tmp_path / "lake", FAILING)
    lake.record([json_event(n, at=n % 20 + DAY * (n // 20)) for n in range(60)])
    lake.take("samples")
    lake.take("messages")
    lake.configure()
    expected = from_scratch(lake, tmp_path / "scratch")
    first = min(lake.samples.snapshot().files, key=lambda file: file.partition["day"] or "")
    lake.samples.commit((), [first])
    done = reprocess(lake.project, "samples")
    assert done.tables["messages_failed"] == TableChange(before=40, after=0, older=20)
    assert in_order(lake.messages) == expected["messages"].slice(20)
    # The log has them all, and goes back further.
    assert reprocess(lake.project).source == "log"
    assert lake.tables() == expected


def test_rows_beyond_retention_are_not_brought_back(tmp_path: Path) -> None:
    settings = '[retention]\nmessages = "1d"\n'
    lake = DecodedLake(tmp_path / "lake", settings=settings)
    lake.record([json_event(n, at=n % 20 + DAY * (n // 20)) for n in range(80)])
    lake.take("samples")
    lake.take("messages")
    days = sorted(lake.messages.snapshot().files, key=lambda file: file.partition["day"] or "")
    lake.messages.commit((), days[:2])  # As retention does.
    kept = in_order(lake.messages)
    for source in ("samples", "log"):
        reprocess(lake.project, source)
        assert in_order(lake.messages) == kept


def test_a_source_that_leaves_samples_out_is_refused(tmp_path: Path) -> None:
    lake = failed_lake(tmp_path / "lake")
    before = lake.tables()
    rest = lake.samples.read(filter=pc.field("key") != "robot/3")
    lake.samples.commit(lake.samples.write(rest), lake.samples.snapshot().files)
    with pytest.raises(ZError, match=r"samples lacks 10 samples .*'robot/3'.* --from log"):
        reprocess(lake.project, "samples")
    assert lake.tables() == before
    assert files_on_disk(lake.messages) == named_files(lake.messages)


def test_a_log_that_was_recreated_is_not_a_source(tmp_path: Path) -> None:
    lake = failed_lake(tmp_path / "lake")
    lake.checkpoint()
    shutil.rmtree(lake.project.log)
    lake.record([json_event(number, at=-100.0) for number in range(60)])
    with pytest.raises(ZError, match="is not the log that `messages` was made from"):
        reprocess(lake.project, "log")
    assert reprocess(lake.project).source == "samples"


# ---- repeats


def test_repeats_in_the_log_are_left_out(tmp_path: Path) -> None:
    lake = DecodedLake(tmp_path / "lake", FAILING)
    events = [json_event(number, source="a1") for number in range(30)]
    lake.record([*events, *events[10:20], json_event(30, source="a1")])
    for upto in (15, 33, 41):
        lake.take("messages", {0: upto})
    lake.configure()
    reprocess(lake.project, "log")
    assert in_order(lake.messages)["offset"].to_pylist() == [*range(30), 40]
    assert lake.tables() == from_scratch(lake, tmp_path / "scratch")


def test_a_repeat_of_a_row_that_stays_is_left_out(tmp_path: Path) -> None:
    lake = DecodedLake(tmp_path / "lake", FAILING)
    events = [json_event(number, source="a1") for number in range(10)]
    lake.record([*events, *events[5:]], block=5, rotate_bytes=1)
    lake.take("messages")
    lake.checkpoint()
    lake.configure()
    trim_before(lake, 5)
    done = reprocess(lake.project, "log")
    assert done.tables["messages_failed"].older == 5
    trim_before(lake, 10)
    assert reprocess(lake.project, "log").samples == 0  # The log has repeats of rows that stay.
    assert in_order(lake.messages)["offset"].to_pylist() == [5, 6, 7, 8, 9]


def numbers_of(lake: DecodedLake, offsets: Sequence[tuple[int, int]]) -> Counter[int]:
    """Count by their number the samples at these places of the log."""
    found: Counter[int] = Counter()
    for partition, offset in offsets:
        source = lake.events[partition][offset].source
        assert source is not None
        found[source[2]] += 1
    return found


def places(store: DeltaStore) -> list[tuple[int, int]]:
    rows = in_order(store).select(["partition", "offset"]).to_pylist()
    return [(row["partition"], row["offset"]) for row in rows]


def test_copies_on_both_sides_of_the_flow_s_position(tmp_path: Path) -> None:
    """Of samples 4 to 9 `samples` has the copies that the flow `messages` will leave out."""
    lake = DecodedLake(tmp_path / "lake", FAILING)
    events = [json_event(number, source="b2") for number in range(10)]
    lake.record(events, 0)
    lake.record(events, 1)
    lake.take("messages", {0: 4, 1: 10})
    lake.take("samples", {0: 10, 1: 10})
    lake.configure()
    reprocess(lake.project, "samples")
    assert places(lake.messages) == [
        *((0, at) for at in range(4)),
        *((1, at) for at in range(4, 10)),
    ]
    lake.take("messages")
    assert numbers_of(lake, places(lake.messages)) == Counter(range(10))


@pytest.mark.parametrize("seed", range(12))
def test_two_recorders_give_each_sample_once(tmp_path: Path, seed: int) -> None:
    """Two partitions have the same samples, and flows that ran apart kept other copies of them."""
    rng = random.Random(seed)
    lake = DecodedLake(tmp_path / "lake", FAILING, '[samples]\nduplicates_within = "40s"\n')
    numbers = range(400)
    for partition in (0, 1):
        late = {number: number + rng.random() * 5 for number in numbers if rng.random() < 0.9}
        events = [
            json_event(number, at=at, source="b2")
            for number, at in sorted(late.items(), key=lambda entry: entry[1])
        ]
        lake.record(events, partition, block=rng.randint(1, 9))
    ends = lake.end()
    at = {"samples": dict.fromkeys(ends, 0), "messages": dict.fromkeys(ends, 0)}
    for _ in range(rng.randint(3, 8)):
        for flow in rng.sample(("samples", "messages"), rng.randint(1, 2)):
            step = rng.randint(1, 60)
            # The partitions go on by about the same time, as their recorders do.
            at[flow] = {
                p: min(max(at[flow][p], at[flow][0] + step + rng.randint(-9, 9)), end)
                for p, end in ends.items()
            }
            lake.take(flow, at[flow])
    if rng.random() < 0.5 and at["samples"] != {0: 0, 1: 0}:
        lake.checkpoint()
    lake.configure(settings='[samples]\nduplicates_within = "40s"\n')
    source: Any = rng.choice(["samples", "log"] if lake.samples.exists() else ["log"])
    if not lake.messages.exists():
        lake.take("messages", {0: 1, 1: 1})
    taken = numbers_of(lake, [*places(lake.messages), *places(lake.failed)])
    reprocess(lake.project, source)
    assert lake.failed.snapshot().rows == 0
    assert numbers_of(lake, places(lake.messages)) == taken
    lake.take("samples")
    lake.take("messages")
    every = numbers_of(lake, [(p, o) for p, end in ends.items() for o in range(end)])
    assert numbers_of(lake, places(lake.messages)) == Counter(every.keys())
    reprocess(lake.project, source)
    assert numbers_of(lake, places(lake.messages)) == Counter(every.keys())


# ---- kills


def reprocess_until(home: str, calls: int) -> None:
    """Reprocess a lake; the process kills itself at the call number `calls` that syncs a file."""
    from zenlake.lake.tables import delta

    sync, count = delta.sync, 0

    def counting(path: Path) -> None:
        nonlocal count
        count += 1
        if count == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(path)

    delta.sync = counting
    reprocess(Project.load(home), "samples")
    sys.stdout.write(str(count))


def run_until(lake: DecodedLake, calls: int) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        call_command("tests.lake.test_reprocess", "reprocess_until", str(lake.project.home), calls),
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=KILL_SECONDS,
        check=False,
    )


@pytest.mark.process
def test_a_kill_leaves_the_old_or_the_new_table(tmp_path: Path) -> None:
    lake = failed_lake(tmp_path / "lake")
    old, new = lake.tables(), from_scratch(lake, tmp_path / "scratch")
    shutil.copytree(tmp_path / "lake", tmp_path / "whole")
    whole = run_until(DecodedLake(tmp_path / "whole"), 0)
    assert whole.returncode == 0, whole.stderr
    points = int(whole.stdout)
    rng = random.Random(7)
    seen = set()
    # A commit ends with two calls, so that the last but three is between the commits.
    for point in sorted({1, rng.randrange(2, points - 3), points - 3, points}):
        killed = run_until(lake, point)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        found = lake.tables()
        states = tuple("new" if found[name] == new[name] else "old" for name in found)
        assert all(found[name] in (old[name], new[name]) for name in found), point
        seen.add(states)
    assert seen == {("old", "old"), ("new", "old"), ("new", "new")}
    reprocess(lake.project, "samples")
    assert lake.tables() == new


# ---- the command


def test_the_command(tmp_path: Path) -> None:
    lake = failed_lake(tmp_path / "lake")
    home, before = str(lake.project.home), lake.tables()
    shown = zenlake("lake", "reprocess", home, "messages", "--dry-run")
    assert shown.exit_code == 0
    assert shown.stderr.startswith("reading samples, from 2026-09-21 14:13:20 UTC on (log: from")
    assert "│ json    │ messages        │   0 │   40 │" in shown.stdout
    assert "│ number  │ messages_failed │  40 │    0 │" in shown.stdout
    assert shown.stdout.endswith(
        "messages: 40 rows would be made again from samples (was 0), messages_failed: 0 (was 40)\n"
    )
    assert lake.tables() == before
    facts = json.loads(zenlake("lake", "reprocess", home, "messages", "--json").stdout)
    assert (facts["source"], facts["dry_run"], facts["samples"]) == ("samples", False, 40)
    assert facts["tables"]["messages"] == {"before": 0, "after": 40, "older": 0, "newer": 0}
    assert facts["before"]["decoders"] == {"number": {"messages_failed": 40}}
    assert sum(facts["before"]["reasons"].values()) == 40
    assert facts["after"] == {"decoders": {"json": {"messages": 40}}, "reasons": {}}
    again = zenlake("lake", "reprocess", home, "messages", "--from", "log")
    assert again.stdout == (
        "messages: 40 rows made again from log (was 40), messages_failed: 0 (was 0)\n"
    )


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("latest", "only messages is decoded again .*zenlake lake reset"),
        ("samples", "only messages is decoded again .*zenlake lake reset"),
        ("own", "a table of your own"),
        ("messages_failed", "made together with messages"),
    ],
)
def test_other_tables_are_refused(tmp_path: Path, table: str, reason: str) -> None:
    with pytest.raises(ZError, match=reason):
        messages.check_table(table)
    refused = zenlake("lake", "reprocess", str(tmp_path), table)
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"zenlake lake reprocess: {table}")


def test_a_rule_that_cannot_work_is_told_first(tmp_path: Path) -> None:
    lake = failed_lake(tmp_path / "lake")
    lake.configure('[[decoders]]\nkey = "**"\nuse = "number"\ntype = "int63"\n')
    refused = zenlake("lake", "reprocess", str(lake.project.home), "messages")
    assert refused.exit_code == 1
    assert "[[decoders]] 1: " in refused.stderr
    assert lake.failed.snapshot().rows == 40
