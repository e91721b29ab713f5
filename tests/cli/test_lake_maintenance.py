"""`zenlake lake compact`, `retain` and `info`, on tables made here and without Spark."""

import fcntl
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.cli_in_process import zenlake
from tests.support.lake_rows import as_samples
from zenlake.lake.tables.definitions import SAMPLES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.schema import SAMPLE
from zenlake.log.block import OpenBlock, SourceLink
from zenlake.log.write.writer import Writer
from zenlake.wire.cursor import ByteWriter as Bytes
from zenlake.wire.enums import Mapping
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr

pytestmark = pytest.mark.slow

NOW = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)


def samples(count: int, first: int, when: datetime) -> pa.Table:
    said = {
        "key": pa.array([f"robot/{number}" for number in range(first, first + count)]),
        "received_at": pa.array([when] * count, pa.timestamp("us", "UTC")),
        "offset": pa.array(range(first, first + count), pa.int64()),
    }
    columns = [
        said[field.name] if field.name in said else pa.nulls(count, field.type) for field in SAMPLE
    ]
    return as_samples(pa.table(columns, schema=SAMPLE))


def record(path: Path, count: int) -> None:
    block = OpenBlock()
    link = block.link(SourceLink(1, 2, b"\xab"))
    assert link is not None
    block.key(link, int(Mapping.SENDER) << 16, b"a", b"")
    for number in range(count):
        w = Bytes()
        NETWORK.write(w, Push(WireExpr(0, "a", Mapping.SENDER), Put(b"%d" % number)))
        block.add(link, True, 1_794_736_800_000_000_000, 1, bytes(w.out))
    with Writer(path) as writer:
        writer.write([block])


@pytest.fixture(scope="module", autouse=True)
def _delta_is_awake(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its runtime has a pair of sockets, once and for all."""
    store = DeltaStore(tmp_path_factory.mktemp("delta"), SAMPLES)
    store.commit()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Three files of today and one of last month; the table is two samples behind its log."""
    (tmp_path / "lake.toml").write_text('[lake]\nname = "fleet"\n[retention]\nsamples = "7d"\n')
    store = DeltaStore(tmp_path / "tables" / "samples", SAMPLES)
    for number in range(3):
        store.commit([store.write_file(samples(2, 2 * number, NOW))])
    old = samples(2, 6, NOW - timedelta(days=30))
    store.commit([store.write_file(old)], transactions={"zenlake/offset/0": 8})
    record(tmp_path / "log", 10)
    return tmp_path


def test_info(home: Path) -> None:
    shown = zenlake("lake", "info", str(home))
    assert (shown.exit_code, shown.stderr) == (0, "")
    (line,) = [line for line in shown.stdout.splitlines() if "samples" in line]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    newest = f"{NOW:%Y-%m-%d} 12:00:00"
    assert (cells[:3], cells[4:]) == (["samples", "8", "4"], [newest, "-", "2"])
    facts = json.loads(zenlake("lake", "info", str(home), "--json").stdout)
    (table,) = facts["tables"]
    assert (table["table"], table["rows"], table["files"], table["behind"]) == ("samples", 8, 4, 2)
    assert facts["log"] == {"0": 10}


def test_compact(home: Path) -> None:
    shown = zenlake("lake", "compact", str(home))
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.startswith("samples: 3 files into 1, ")
    assert shown.stdout.endswith("; 0 old files removed, 0 B\n")
    again = json.loads(zenlake("lake", "compact", str(home), "-t", "samples", "--json").stdout)
    assert (again["table"], again["files"], again["removed_files"]) == ("samples", 0, 0)
    assert DeltaStore(home / "tables" / "samples", SAMPLES).read().num_rows == 8


def test_retain(home: Path) -> None:
    shown = zenlake("lake", "retain", str(home))
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.startswith("samples: 2 rows from before ")
    again = json.loads(zenlake("lake", "retain", str(home), "--json").stdout)
    assert (again["table"], again["rows"], again["more"]) == ("samples", 0, False)
    assert DeltaStore(home / "tables" / "samples", SAMPLES).read().num_rows == 6


def test_what_cannot_be_done_is_said_in_one_line(home: Path, tmp_path: Path) -> None:
    refused = zenlake("lake", "compact", str(home), "-t", "sampels")
    assert refused.exit_code == 1
    assert "no table 'sampels'; there are samples" in refused.stderr
    with (home / "tables" / ".upkeep").open("a") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        for command in ("compact", "retain"):
            refused = zenlake("lake", command, str(home))
            assert refused.exit_code == 1
            assert refused.stderr.startswith(f"zenlake lake {command}: another upkeep of ")
    for command in ("compact", "retain", "info"):
        refused = zenlake("lake", command, str(tmp_path / "nowhere"))
        assert refused.exit_code == 1
        assert refused.stderr.count("\n") == 1
        assert "there is no lake" in refused.stderr


def test_a_lake_without_tables(tmp_path: Path) -> None:
    (tmp_path / "lake.toml").write_text('[lake]\nname = "fleet"\n')
    assert "no tables yet" in zenlake("lake", "info", str(tmp_path)).stdout
    refused = zenlake("lake", "compact", str(tmp_path))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "no tables yet" in refused.stderr
