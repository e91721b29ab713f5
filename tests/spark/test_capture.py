"""Packet captures as tables: files, globs, and streams shared out among tasks."""

import struct
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from zenlake import capture
from zenlake.columnar.write import full_text
from zenlake.errors import ZError
from zenlake.spark import capture_source
from zenlake.spark.capture_source import (
    CaptureDataSource,
    CaptureReader,
    StreamShare,
    find_files,
    group_by_size,
)
from zenlake.spark.options import Options, Purpose
from zenlake.wire.batch import write_batch
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing, to_stream
from zenlake.wire.push import Push
from zenlake.wire.put import Put

STREAMS, MESSAGES = 5, 40
RAW_IP = 101
SYN, ACK = 0x02, 0x10


def packet(source_port: int, sequence: int, flags: int, data: bytes) -> bytes:
    """IPv4 and TCP, from 10.0.0.1 to port 7447 of 10.0.0.2."""
    tcp = struct.pack("!HHIIBBHHH", source_port, 7447, sequence, 0, 5 << 4, flags, 65535, 0, 0)
    size = 20 + len(tcp) + len(data)
    ends = bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2))
    return struct.pack("!BBHHHBBH4s4s", 0x45, 0, size, 0, 0, 64, 6, 0, *ends) + tcp + data


def write_capture(path: Path, name: str) -> None:
    """STREAMS conversations, of MESSAGES puts each, one packet of each in turn."""
    packets = [packet(5000 + s, 99, SYN, b"") for s in range(STREAMS)]
    at = [100] * STREAMS
    for number in range(MESSAGES):
        for stream in range(STREAMS):
            put = Push(full_text(f"{name}/{stream}"), Put(b"%d" % number))
            data = to_stream([write_batch([Frame(number, messages=[put])])], Framing.STREAM)
            packets.append(packet(5000 + stream, at[stream], ACK, bytes(data)))
            at[stream] += len(data)
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, RAW_IP))
        for time, data in enumerate(packets):
            file.write(struct.pack("<IIII", 1_700_000_000, time, len(data), len(data)) + data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captures")
    for name in ("one", "two"):
        write_capture(folder / f"{name}.pcap", name)
    return folder


def wanted(*names: str) -> set[tuple[str, bytes]]:
    return {
        (f"{name}/{stream}", b"%d" % number)
        for name in names
        for stream in range(STREAMS)
        for number in range(MESSAGES)
    }


@pytest.mark.spark
def test_a_glob_of_captures(spark: SparkSession, folder: Path) -> None:
    frame = spark.read.format("zenoh-capture").load(f"{folder}/*.pcap")
    assert frame.columns == capture.CAPTURE.names
    rows = frame.where("message = 'PUSH'").select("key", "payload").collect()
    assert len(rows) == 2 * STREAMS * MESSAGES
    assert {(row["key"], bytes(row["payload"])) for row in rows} == wanted("one", "two")


@pytest.mark.spark
def test_several_paths_and_few_columns(spark: SparkSession, folder: Path) -> None:
    paths = [str(folder / "one.pcap"), str(folder / "two.pcap")]
    frame = spark.read.format("zenoh-capture").option("columns", "key,src_port").load(paths)
    assert frame.columns == ["key", "src_port"]
    assert frame.distinct().count() == 2 * STREAMS


def test_streams_are_shared_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_source, "PART_BYTES", 1 + (folder / "one.pcap").stat().st_size // 3)
    schema = CaptureDataSource({}).schema()
    options = Options.parse({"path": str(folder / "one.pcap")}, Purpose.CAPTURE)
    reader = CaptureReader(options, schema)
    parts = reader.partitions()
    assert parts == [StreamShare(str(folder / "one.pcap"), number, 3) for number in range(3)]
    streams, found = [], []
    for part in parts:
        rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
        assert rows
        streams.append({row["stream"] for row in rows})
        found += [(row["key"], row["payload"]) for row in rows if row["message"] == "PUSH"]
    assert sum(map(len, streams)) == len(set.union(*streams)) == STREAMS
    assert len(found) == STREAMS * MESSAGES
    assert set(found) == wanted("one")


def test_paths_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ZError, match="option 'path': no file matches '/nowhere/"):
        find_files(["/nowhere/*.pcap"])
    with pytest.raises(ZError, match=r"option 'path' \(or 'paths'\) is missing: capture files"):
        CaptureReader(Options.parse({}, Purpose.CAPTURE), CaptureDataSource({}).schema())
    (tmp_path / "a").write_bytes(b"")
    assert find_files([str(tmp_path), f"file://{tmp_path}/a"]) == [str(tmp_path / "a")]


@pytest.mark.spark
def test_what_is_no_capture_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(b"this is no capture at all, by any means" * 10)
    frame = spark.read.format("zenoh-capture").load(str(tmp_path / "a.pcap"))
    with pytest.raises(Exception, match=r"a\.pcap"):
        frame.count()


def test_groups_are_complete_and_similar() -> None:
    sizes = {number: (number * 7919) % 100 + 1 for number in range(50)}
    groups = group_by_size(sizes, 4)
    assert sorted(number for group in groups for number in group) == list(range(50))
    filled = [sum(sizes[number] for number in group) for group in groups]
    assert max(filled) - min(filled) <= 100
