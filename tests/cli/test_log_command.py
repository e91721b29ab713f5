"""`zenlake log`: info, verify, cat, export and trim of logs that were written here."""

import json
import re
from collections.abc import Iterable
from errno import EACCES
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mcap.reader import make_reader
from pyarrow import parquet

from tests.support.cli_in_process import zenlake
from tests.support.cli_process import running
from tests.support.cli_terminal import on_terminal
from zenlake.cli.render import log_info
from zenlake.log.block import Loss, OpenBlock, SourceLink
from zenlake.log.format import LANE
from zenlake.log.read.log import Log
from zenlake.log.write.writer import Writer
from zenlake.wire.cursor import ByteWriter as Bytes
from zenlake.wire.delete import Del
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.enums import Mapping, WireCongestionControl, WirePriority
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.slow

SECOND = 1_000_000_000
BEGAN = 1_794_736_800 * SECOND  # 2026-11-15T10:00:00Z
PUBLISHER = SourceLink(1, 2, b"\xab")
LAST_QOS = QoS(WirePriority.REAL_TIME, WireCongestionControl.BLOCK, express=True)
SAMPLES: list[tuple[str, Put | Del]] = [
    ("demo/a", Put(b"hello", encoding=WireEncoding.parse("zenoh/string"))),
    ("demo/b", Put(b'{"x": 1}', encoding=WireEncoding.parse("application/json;fleet.Pose"))),
    ("demo/b", Del()),
    (
        "demo/c",
        Put(
            b"\x00\xff",
            WireTimestamp.parse("2026-11-15T09:59:59.5Z/ab"),
            source_info=WireSourceInfo(WireEntityId(WireZenohId(b"\xcd"), 3), 77),
            attachment=b"tag",
        ),
    ),
]


def message(key: str, body: Put | Del, qos: QoS) -> bytes:
    w = Bytes()
    NETWORK.write(w, Push(WireExpr(0, key, Mapping.SENDER), body, qos))
    return bytes(w.out)


def block(
    samples: Iterable[tuple[str, Put | Del]], time: int, loss: Loss | None = None
) -> OpenBlock:
    """A sample a second."""
    made = OpenBlock()
    link = made.link(PUBLISHER)
    assert link is not None
    if loss is not None:
        made.add_loss(loss)
    for number, (key, body) in enumerate(samples):
        made.key(link, int(Mapping.SENDER) << 16, key.encode(), b"")
        qos = LAST_QOS if body is SAMPLES[-1][1] else QoS()
        made.add(link, True, time + number * SECOND, 1, message(key, body, qos))
    return made


def numbered(count: int, first: int = 0) -> list[tuple[str, Put | Del]]:
    return [(f"n/{i % 3}", Put(b"%d" % i)) for i in range(first, first + count)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Four samples, one per second, and a loss before the third."""
    path = tmp_path / "log"
    loss = Loss(LANE, BEGAN + SECOND, b"\xab", 4, 6, 3, lane=8 | 5)
    with Writer(path) as writer:
        writer.write([block(SAMPLES[:2], BEGAN)])
        writer.write([block(SAMPLES[2:], BEGAN + 2 * SECOND, loss)])
    return path


def long_log(path: Path, blocks: int = 20, partition: int = 0) -> Path:
    """Ten samples a block, a block a segment."""
    with Writer(path, partition, rotate_bytes=1) as writer:
        for number in range(blocks):
            writer.write([block(numbered(10, 10 * number), BEGAN + 10 * number * SECOND)])
    return path


def damage(path: Path, segment: int, partition: int = 0) -> None:
    file = path / str(partition) / f"{segment:020}.zlog"
    data = bytearray(file.read_bytes())
    data[-1] ^= 0xFF
    file.write_bytes(data)


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def payloads(*args: str) -> list[int]:
    """Return the numbers that `log cat` shows of a log with numbers."""
    done = zenlake("log", "cat", "--json", *args)
    assert done.exit_code == 0, done.stderr
    return [int(sample["value"]) for sample in objects(done.stdout)]


# ---- cat


def test_samples_are_shown_as_sub_shows_them(log: Path) -> None:
    done = zenlake("log", "cat", str(log))
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "0:0  2026-11-15T10:00:00.000000Z  PUT  demo/a  hello  (zenoh/string, 5 bytes)",
        '0:1  2026-11-15T10:00:01.000000Z  PUT  demo/b  {"x": 1}  '
        "(application/json;fleet.Pose, 8 bytes)",
        "0:2  2026-11-15T10:00:02.000000Z  DELETE  demo/b",
        "0:3  2026-11-15T10:00:03.000000Z  PUT  demo/c  0x00ff  "
        "(zenoh/bytes, 2 bytes, 2026-11-15T09:59:59.500000000Z, attachment tag)",
    ]


def test_samples_for_programs(log: Path) -> None:
    done = zenlake("log", "cat", str(log), "--json")
    first, _, deleted, last = objects(done.stdout)
    assert (first["key"], first["kind"], first["value"]) == ("demo/a", "PUT", "hello")
    assert (deleted["kind"], deleted["size"]) == ("DELETE", 0)
    assert last == {
        "key": "demo/c",
        "kind": "PUT",
        "value": "00ff",
        "form": "hex",
        "size": 2,
        "encoding": "zenoh/bytes",
        "timestamp": "2026-11-15T09:59:59.500000000Z/ab",
        "priority": "REAL_TIME",
        "congestion_control": "BLOCK",
        "express": True,
        "attachment": {"value": "tag", "form": "text", "size": 3},
        "source": "cd/3",
        "source_sn": 77,
        "reliable": True,
        "partition": 0,
        "offset": 3,
        "received_at": "2026-11-15T10:00:03.000000Z",
    }


def test_losses_stand_where_something_is_missing(log: Path) -> None:
    done = zenlake("log", "cat", str(log), "--losses")
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert lines[2] == (
        "0:2  2026-11-15T10:00:01.000000Z  LOSS  lane: 3 frames from ab, numbers 4 to 6 of its "
        "reliable lane 5, never came"
    )
    found = objects(zenlake("log", "cat", str(log), "--losses", "--json").stdout)[2]
    assert (found["kind"], found["loss"]["count"], found["offset"]) == ("LOSS", 3, 2)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], range(200)),
        (["--from", "5", "--to", "9"], range(5, 9)),
        (["--from", "195"], range(195, 200)),
        (["--until", "3"], range(3)),
        (["--from", "2026-11-15T10:00:42Z", "--to", "2026-11-15T10:00:45Z"], range(42, 45)),
        (["--from", "now"], range(0)),
        (["--from", "-100w", "-n", "12"], range(12)),
        (["-k", "n/1", "--to", "10"], range(1, 10, 3)),
        (["-k", "other/**"], range(0)),
        (["--to", "1000000"], range(200)),
    ],
    ids=str,
)
def test_a_part_of_a_log(tmp_path: Path, options: list[str], wanted: range) -> None:
    assert payloads(str(long_log(tmp_path / "log")), *options) == list(wanted)


def test_partitions_one_after_another(tmp_path: Path) -> None:
    path = tmp_path / "log"
    long_log(path, 1, partition=0)
    long_log(path, 2, partition=7)
    assert payloads(str(path)) == [*range(10), *range(20)]
    assert payloads(str(path), "--partition", "7", "--from", "15") == [*range(15, 20)]
    vague = zenlake("log", "cat", str(path), "--from", "15")
    assert (vague.exit_code, "needs --partition" in vague.stderr) == (2, True)
    missing = zenlake("log", "cat", str(path), "--partition", "3")
    assert missing.exit_code == 2
    assert "--partition 3: there are partitions 0, 7" in " ".join(missing.stderr.split())


@pytest.mark.process
def test_what_is_recorded_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Writer(path) as writer:
        writer.write([block(numbered(3), BEGAN)])
        with running("log", "cat", str(path), "--follow", "--from", "1", "--json") as cat:
            seen = [json.loads(cat.line())["value"] for _ in range(2)]
            writer.write([block(numbered(2, 3), BEGAN + 3 * SECOND)])
            seen += [json.loads(cat.line())["value"] for _ in range(2)]
            done = cat.interrupt()
    assert seen == ["1", "2", "3", "4"]
    assert (done.status, done.out, done.err) == (0, "", "")


# ---- info


def test_what_a_log_holds(log: Path) -> None:
    done = zenlake("log", "info", str(log))
    assert (done.exit_code, done.stderr) == (0, "")
    rows = dict(re.findall(r"│ (.*?) +│ (.*?) +│", done.stdout))
    assert rows["partition 0"] == "sealed"
    assert rows["offsets"] == "0 to 3"
    assert rows["samples"] == "4"
    assert rows["received"] == "2026-11-15T10:00:00.000000Z to 2026-11-15T10:00:03.000000Z (3 s)"
    assert rows["blocks"] == "2: 2 none"
    assert rows["records of loss"] == "1"
    assert (rows["keys"], rows["2"]) == ("3", "demo/b")


def test_what_a_log_holds_for_programs(log: Path) -> None:
    (log / "0" / "torn").mkdir()
    (log / "0" / "torn" / "some").write_bytes(b"123")
    (found,) = objects(zenlake("log", "info", str(log), "--json").stdout)
    assert re.fullmatch("[0-9a-f]{32}", found["id"])
    assert (found["samples"], found["distinct_keys"]) == (4, 3)
    assert found["keys"] == {"demo/b": 2, "demo/a": 1, "demo/c": 1}
    (partition,) = found["partitions"]
    named = {name: partition[name] for name in ("first", "next", "segments", "losses")}
    assert named == {"first": 0, "next": 4, "segments": 1, "losses": 1}
    assert (partition["first_time"], partition["last_time"]) == (BEGAN, BEGAN + 3 * SECOND)
    assert (partition["torn_files"], partition["torn_bytes"]) == (1, 3)


def test_keys_of_a_long_log_are_counted_when_asked_for(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_info, "COUNTED_SAMPLES", 3)
    monkeypatch.setattr(log_info, "TOP_KEYS", 1)
    assert "--keys counts them" in zenlake("log", "info", str(log)).stdout
    counted = zenlake("log", "info", str(log), "--keys").stdout
    assert "demo/b" in counted
    assert "demo/a" not in counted
    assert "and 2 more" in counted


def test_an_empty_log(tmp_path: Path) -> None:
    Writer(tmp_path / "log").close()
    (found,) = objects(zenlake("log", "info", str(tmp_path / "log"), "--json").stdout)
    assert (found["samples"], found["keys"]) == (0, {})
    assert zenlake("log", "info", str(tmp_path / "log")).exit_code == 0
    assert payloads(str(tmp_path / "log")) == []


# ---- export


def test_export_to_parquet(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    done = zenlake("log", "export", str(log), "--to", str(file))
    assert done.exit_code == 0, done.stderr
    assert re.fullmatch(r"4 rows in .*x\.parquet, [\d.]+ KiB, in [\d.e-]+ s\n", done.stdout)
    rows = parquet.read_table(file).to_pylist()
    assert [row["key"] for row in rows] == ["demo/a", "demo/b", "demo/b", "demo/c"]
    assert [row["payload"] for row in rows] == [b"hello", b'{"x": 1}', None, b"\x00\xff"]
    assert rows[3]["source"] == {"id": "cd", "entity": 3, "sn": 77}
    assert [row["offset"] for row in rows] == [0, 1, 2, 3]


def test_export_a_part_to_arrow(tmp_path: Path) -> None:
    path, file = long_log(tmp_path / "log"), tmp_path / "x.arrow"
    options = ["-k", "n/0", "--from", "30", "--until", "2026-11-15T10:00:39Z", "--json"]
    done = zenlake("log", "export", str(path), "--to", str(file), *options)
    assert done.exit_code == 0, done.stderr
    assert objects(done.stdout)[0]["rows"] == 3
    with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
        assert reader.read_all().column("payload").to_pylist() == [b"30", b"33", b"36"]


def test_export_to_mcap(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.mcap"
    done = zenlake("log", "export", str(log), "--to", str(file), "--losses")
    assert done.exit_code == 0, done.stderr
    assert "without 1 attachment: " in done.stdout
    with file.open("rb") as stream:
        found = list(make_reader(stream).iter_messages())
    topics = [channel.topic for _, channel, _ in found]
    assert sorted(topics) == ["@zenlake/deletes", "@zenlake/losses", "demo/a", "demo/b", "demo/c"]
    _, channel, message = found[-1]
    assert (channel.topic, message.data) == ("demo/c", b"\x00\xff")
    assert message.log_time == BEGAN + 3 * SECOND
    assert message.publish_time == BEGAN - SECOND // 2


def test_export_overwrites_only_when_told(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    file.write_bytes(b"mine")
    done = zenlake("log", "export", str(log), "--to", str(file))
    assert done.exit_code == 1
    assert "exists already" in done.stderr
    assert file.read_bytes() == b"mine"
    assert zenlake("log", "export", str(log), "--to", str(file), "--force").exit_code == 0
    assert zenlake("log", "export", str(log), "--to", str(tmp_path / "x.csv")).exit_code == 1


# ---- damage


def test_damage_is_named_and_passed_over_only_when_told(tmp_path: Path) -> None:
    path = long_log(tmp_path / "log", 5)
    damage(path, 20)
    done = zenlake("log", "cat", str(path))
    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == 20
    assert re.search(r"^zenlake log cat: .*offsets 20 to 29: .* or with --skip-damage", done.stderr)
    assert "on_damage" not in done.stderr
    passed = zenlake("log", "cat", str(path), "--skip-damage")
    assert passed.exit_code == 0
    assert len(passed.stdout.splitlines()) == 40
    assert re.match(r"passed over .*offsets 20 to 29: ", passed.stderr)
    file = tmp_path / "x.parquet"
    assert zenlake("log", "export", str(path), "--to", str(file)).exit_code == 1
    assert not file.exists()
    exported = zenlake("log", "export", str(path), "--to", str(file), "--skip-damage")
    assert exported.exit_code == 0
    assert parquet.read_metadata(file).num_rows == 40


# ---- verify


def test_an_intact_log(tmp_path: Path) -> None:
    path = long_log(tmp_path / "log", 3)
    (path / "0" / "torn").mkdir()
    (path / "0" / "torn" / "tail").write_bytes(b"123")
    done = zenlake("log", "verify", str(path))
    assert (done.exit_code, done.stderr) == (0, "")
    said, torn = done.stdout.splitlines()
    assert re.fullmatch(
        r"partition 0: offsets 0 to 29, 30 samples and 0 losses in 3 blocks, 3 segments, "
        r"[\d.]+ KiB: intact",
        said,
    )
    assert torn.startswith("  torn, never acknowledged: ")


def test_a_log_that_is_damaged(tmp_path: Path) -> None:
    path = long_log(tmp_path / "log", 5)
    damage(path, 20)
    done = zenlake("log", "verify", str(path))
    assert done.exit_code == 1
    said, *named = done.stdout.splitlines()
    assert said.endswith("DAMAGED in 1 place")
    assert len(named) == 1
    assert re.match(r"  damaged: .*offsets 20 to 29:.*00020\.zlog at byte 56", named[0])
    (found,) = objects(zenlake("log", "verify", str(path), "--json").stdout)
    assert (found["samples"], found["first"], found["end"]) == (40, 0, 50)
    assert [(span["first"], span["end"]) for span in found["damage"]] == [(20, 30)]


@pytest.mark.process
def test_verifying_shows_how_far_it_is(log: Path) -> None:
    status, seen = on_terminal("log", "verify", str(log))
    assert status == 0
    assert "verifying" in seen
    assert "intact" in seen


# ---- trim


def test_trim_removes_the_oldest_segments(tmp_path: Path) -> None:
    path = long_log(tmp_path / "log")
    before = zenlake("log", "trim", str(path), "--before", "35", "--json")
    assert objects(before.stdout)[0]["segments"] == 3
    assert payloads(str(path)) == [*range(30, 200)]
    until = zenlake("log", "trim", str(path), "--before", "2026-11-15T10:01:00Z")
    assert re.fullmatch(r"removed 3 segments, [\d.]+ \w+\n", until.stdout)
    assert payloads(str(path)) == [*range(60, 200)]
    segment = (path / "0" / f"{100:020}.zlog").stat().st_size
    zenlake("log", "trim", str(path), "--keep", str(2 * segment))
    assert payloads(str(path)) == [*range(180, 200)]
    zenlake("log", "trim", str(path), "--before", "now")
    assert payloads(str(path)) == [*range(190, 200)]
    gone = zenlake("log", "cat", str(path), "--from", "5")
    assert gone.exit_code == 1
    assert re.search("190", gone.stderr)


def test_trim_beside_a_writer(tmp_path: Path) -> None:
    with Writer(tmp_path / "log", rotate_bytes=1) as writer:
        for number in range(5):
            writer.write([block(numbered(10, 10 * number), BEGAN + number * SECOND)])
        done = zenlake("log", "trim", str(tmp_path / "log"), "--keep", "1")
        writer.write([block(numbered(10, 50), BEGAN + 9 * SECOND)])
    assert done.exit_code == 0, done.stderr
    assert payloads(str(tmp_path / "log")) == [*range(40, 60)]


# ---- wrong


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--before or --keep"),
        (["--keep", "7d"], "--keep: '7d' is not a size"),
        (["--before", "soon"], "--before: 'soon' is not a time"),
        (["--before", "5", "--partition", "9"], "--partition 9: there are partitions 0"),
    ],
)
def test_wrong_usage_of_trim(log: Path, options: list[str], said: str) -> None:
    done = zenlake("log", "trim", str(log), *options)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize("command", [["info"], ["verify"], ["cat"], ["trim", "--keep", "1GiB"]])
def test_there_is_no_log(tmp_path: Path, command: list[str]) -> None:
    name, *options = command
    done = zenlake("log", name, str(tmp_path / "nothing"), *options)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"zenlake log {name}: ")
    assert not (tmp_path / "nothing").exists()


def test_a_file_that_cannot_be_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(opened: Log, partition: int) -> None:
        raise PermissionError(EACCES, "Permission denied", "0/mark")

    monkeypatch.setattr(Log, "mark", refused)
    done = zenlake("log", "info", str(log))
    assert (done.exit_code, done.stderr) == (1, "zenlake log info: 0/mark: Permission denied\n")


@pytest.mark.process
def test_whoever_reads_may_stop(tmp_path: Path) -> None:
    with Writer(tmp_path / "log") as writer:
        writer.write([block(numbered(5000), BEGAN)])
    with running("log", "cat", str(tmp_path / "log")) as cat:
        assert cat.line().startswith("0:0 ")
        cat.close_output()
        done = cat.end()
    assert (done.status, done.err) == (1, "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--from", "yesterday"], "--from: 'yesterday' is not a time"),
        (["--to", "2026-13-01"], "--until: '2026-13-01' is not a time"),
        (["--from", "9" * 30], "an offset is at most"),
        (["--follow", "--until", "5"], "leave --until out"),
        (["-k", "a//b"], "a//b"),
    ],
)
def test_wrong_usage(log: Path, options: list[str], said: str) -> None:
    done = zenlake("log", "cat", str(log), *options)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
