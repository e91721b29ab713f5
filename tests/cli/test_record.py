"""`zenlake record` beside real publishers: what it says, what is in the log, and how it ends."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ENOSPC
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import zenlake as api
from tests.golden.proxy import free_port
from tests.support.cli_in_process import zenlake
from tests.support.cli_process import DEADLINE, Peer, Running, matching, peer
from tests.support.cli_terminal import on_terminal
from tests.support.reference_peer import ReferenceProcess, payload
from tests.support.waiting import until
from zenlake.cli import display
from zenlake.cli.signals import STOP_SIGNALS
from zenlake.log.format import SETTLED, Mark
from zenlake.log.read.reader import Reader
from zenlake.log.write import recording_sink
from zenlake.log.write.recorder import RecorderStats
from zenlake.log.write.writer import LogWriteError, Writer

pytestmark = pytest.mark.slow

recording: Any = import_module(
    "zenlake.cli.commands.record"
)  # the package names its command so, too
LINE = (
    r"[\d,]+ samples/s, [\d.]+ \w+/s, durable to [\d,]+( \([\d,]+ waiting\))?, "
    r"\d+ gaps?, \d+ dropped, [\d.]+ \w+ left"
)
AT_MOST = ("--duration", "60s")  # Options that end the process of a test that fails.
BLOCK = api.CongestionControl.BLOCK


def recorded(log: Path, partition: int = 0) -> list[tuple[str, bytes]]:
    """Keys and payloads, in the order of their offsets."""
    found: list[tuple[str, bytes]] = []
    for batch in Reader(log, partition).batches():
        first = batch.column("offset")[0].as_py()
        assert batch.column("offset").to_pylist() == list(range(first, first + len(batch)))
        columns = (batch.column(name).to_pylist() for name in ("key", "payload"))
        found += zip(*columns, strict=True)
    return found


def mark_of(log: Path, partition: int = 0) -> Mark:
    mark = Mark.decode((log / str(partition) / "mark").read_bytes())
    assert mark is not None
    return mark


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def put(met: Peer, key: str, numbers: range) -> list[tuple[str, bytes]]:
    values = [(key, b"%d" % number) for number in numbers]
    for _, value in values:
        met.session.put(key, value, congestion_control=BLOCK)
    return values


class Recording(Running):
    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)


@contextmanager
def running(*args: str, ignore: str | None = None) -> Iterator[Recording]:
    process = Recording(*args, ignore=ignore)
    try:
        yield process
    finally:
        process.kill()


def received(record: Running, samples: int) -> None:
    """Read its objects until so many samples are durable."""
    while json.loads(record.line())["durable"] < samples:
        pass


# ---- a process of its own


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_seals(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    wanted = ["-k", "demo/**", "-k", "other", "-o", str(log), "--codec", "zstd", "--json"]
    with peer() as met, running("record", "-e", met.endpoint, *wanted) as record:
        matching(met.session, "demo/a")
        matching(met.session, "other")
        values = put(met, "demo/a", range(500)) + put(met, "other", range(500, 510))
        put(met, "neither", range(3))
        received(record, 510)
        record.signal(number)
        done = record.end()
    assert (done.status, done.err) == (0, "")
    last = objects(done.out)[-1]
    assert (last["event"], last["samples"], last["durable"]) == ("sealed", 510, 510)
    assert (last["gaps"], last["dropped"], last["failure"]) == (0, 0, None)
    assert mark_of(log).state == SETTLED
    found = recorded(log)
    assert [sample for sample in found if sample[0] == "demo/a"] == values[:500]
    assert [sample for sample in found if sample[0] == "other"] == values[500:]


@pytest.mark.process
def test_a_background_job_ignores_ctrl_c_and_obeys_sigterm(tmp_path: Path) -> None:
    log = tmp_path / "log"
    wanted = ["-k", "demo/**", "-o", str(log), "--json"]
    with peer() as met, running("record", "-e", met.endpoint, *wanted, ignore="INT") as record:
        matching(met.session, "demo/a")
        put(met, "demo/a", range(10))
        received(record, 10)
        record.signal(signal.SIGINT)
        put(met, "demo/a", range(10, 20))
        received(record, 20)
        record.signal(signal.SIGTERM)
        done = record.end()
    assert (done.status, done.err) == (0, "")
    last = objects(done.out)[-1]
    assert (last["event"], last["samples"]) == ("sealed", 20)


@pytest.mark.process
@pytest.mark.interop
def test_what_eclipse_zenoh_puts_is_recorded(tmp_path: Path) -> None:
    endpoint, log = f"tcp/127.0.0.1:{free_port()}", tmp_path / "log"
    with (
        ReferenceProcess() as reference,
        running("record", "-l", endpoint, "-k", "demo/**", "-o", str(log), "--json") as record,
    ):
        record.line()  # it listens
        theirs = reference.open("client", {"connect/endpoints": [endpoint]})
        qos: dict[str, Any] = {"congestion_control": "BLOCK"}
        until(lambda: theirs.matching("demo/a", **qos))
        sizes = [8, 64, 0, 100_000, 1]
        theirs.put("demo/a", sizes, **qos)
        received(record, len(sizes))
        record.signal(signal.SIGTERM)
        done = record.end()
    assert (done.status, done.err) == (0, "")
    assert recorded(log) == [("demo/a", payload(i, size)) for i, size in enumerate(sizes)]


@pytest.mark.process
def test_after_a_kill_it_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with peer() as met:
        command = ("record", "-e", met.endpoint, "-k", "demo/**", "-o", str(log), "--json")
        with running(*command) as record:
            matching(met.session, "demo/a")
            values = put(met, "demo/a", range(100))
            received(record, 100)
            refused = zenlake(*command)  # while the first one holds the lock
        with next((log / "0").glob("*.zlog")).open("ab") as segment:
            segment.write(b"half a block")
        until(lambda: not met.session.info.transports())  # it knows that the first is gone
        more = [b"%d" % number for number in range(100, 150)]
        with publishing(met, "demo/a", more):
            done = zenlake(*command, "-n", "50", *AT_MOST)
    assert refused.exit_code == 1
    assert refused.stderr.startswith("zenlake record: ")
    assert done.exit_code == 0
    assert re.fullmatch(r"cut off 12 bytes that were never acknowledged; .*torn.*\n", done.stderr)
    assert objects(done.stdout)[-1]["first"] == 100
    assert recorded(log) == values + [("demo/a", value) for value in more]


@pytest.mark.process
def test_the_live_line(tmp_path: Path) -> None:
    endpoint, log = f"tcp/127.0.0.1:{free_port()}", str(tmp_path / "log")
    status, seen = on_terminal(
        "record", "-l", endpoint, "--no-multicast-scouting", "-k", "**", "-o", log,
        "--duration", "1200ms",
    )  # fmt: skip
    assert status == 0
    assert "recording ** into " in seen
    assert len(re.findall(LINE, seen)) >= 2
    summary = r"sealed .*: 0 samples \(no offsets\), 0 B in [\d.]+ s; 0 gaps, 0 dropped$"
    assert re.search(summary, " ".join(seen.split()))


# ---- within this process


@contextmanager
def publishing(
    met: Peer, key: str, values: list[bytes], after: Callable[[int], None] | None = None
) -> Iterator[None]:
    """Put `values` once there is a subscriber, and call `after` with their number."""

    def work() -> None:
        matching(met.session, key)
        for number, value in enumerate(values, 1):
            met.session.put(key, value, congestion_control=BLOCK)
            if after is not None:
                after(number)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_it_ends_after_so_many(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    values = [b"%d" % number for number in range(1000)]
    with peer() as met, publishing(met, "demo/a", values):
        done = zenlake(
            "record", "-e", met.endpoint, "-k", "demo/**", "-o", log, "-n", "1000", *AT_MOST
        )
    assert done.exit_code == 0, done.stderr
    assert re.fullmatch(
        r"sealed .*log, partition 0: 1,000 samples \(offsets 0 to 999\), [\d.]+ KiB in [\d.]+ s; "
        r"0 gaps, 0 dropped\n",
        done.stdout,
    )
    assert done.stderr == f"recording demo/** into {log}, partition 0\n"
    assert recorded(tmp_path / "log") == [("demo/a", value) for value in values]


def test_segments_rotate_and_old_ones_go(tmp_path: Path) -> None:
    log = tmp_path / "log"
    values = [os.urandom(1000) for _ in range(1000)]

    def wait(puts: int) -> None:
        if puts % 50 == 0:  # so that no commit has more than these
            until(lambda: mark_of(log, 3).offset == puts)

    with peer() as met, publishing(met, "demo/a", values, wait):
        done = zenlake(
            "record", "-e", met.endpoint, "-k", "demo/**", "-o", str(log), "-n", "1000",
            "--partition", "3", "--rotate", "64KiB", "--retain", "200KiB", "--retain", "7d",
            "--sync", "1ms", *AT_MOST,
        )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    segments = sorted(file.name for file in (log / "3").glob("*.zlog"))
    assert 1 < len(segments) < 10
    first = int(segments[0].removesuffix(".zlog"))
    assert first > 0
    assert recorded(log, 3) == [("demo/a", value) for value in values[first:]]


def test_lines_where_there_is_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(display, "TICK_SECONDS", 0.05)
    with peer() as met:
        done = zenlake(
            "record", "-e", met.endpoint, "-k", "a", "-o", str(tmp_path), "--duration", "200ms"
        )
    assert done.exit_code == 0, done.stderr
    _, *lines = done.stderr.splitlines()
    assert len(lines) >= 2
    assert all(re.fullmatch(LINE, line) for line in lines)


def test_a_full_disk_is_said_and_is_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = LogWriteError(tmp_path, OSError(ENOSPC, "No space left on device"))

    def full(writer: Writer, blocks: object) -> Mark:
        raise error

    monkeypatch.setattr(Writer, "write", full)
    monkeypatch.setattr(recording_sink, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(display, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(display, "TICK_SECONDS", 0.05)
    shown, format_stats = threading.Event(), recording.format_stats

    def watched(stats: RecorderStats, rate: Any) -> str:
        if stats.received == 2 and stats.failure:
            shown.set()
        return str(format_stats(stats, rate))

    def stop(puts: int) -> None:
        if puts == 2:
            shown.wait(DEADLINE)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(recording, "format_stats", watched)
    with peer() as met, publishing(met, "demo/a", [b"1", b"2"], stop):
        done = zenlake("record", "-e", met.endpoint, "-k", "demo/a", "-o", str(tmp_path / "log"))
    assert done.exit_code == 1
    assert "durable to 0 (2 waiting)" in done.stderr
    assert "NOT WRITING: " in done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("zenlake record: 2 samples not durable: ")
    assert "No space left on device" in last


def test_writing_may_fail_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that could not be written are kept and written later; then the log is sealed."""
    write, failures = Writer.write, [ENOSPC] * 3

    def sometimes(writer: Writer, blocks: Any) -> Mark:
        if failures:
            raise LogWriteError(tmp_path, OSError(failures.pop(), "No space left on device"))
        return write(writer, blocks)

    monkeypatch.setattr(Writer, "write", sometimes)
    monkeypatch.setattr(recording_sink, "RETRY_SECONDS", 0.01)
    log = tmp_path / "log"
    with peer() as met, publishing(met, "demo/a", [b"1", b"2"]):
        done = zenlake(
            "record", "-e", met.endpoint, "-k", "demo/a", "-o", str(log), "-n", "2", *AT_MOST
        )
    assert done.exit_code == 0, done.stderr
    assert failures == []
    assert recorded(log) == [("demo/a", b"1"), ("demo/a", b"2")]


def test_without_a_session_no_log_is_made(tmp_path: Path) -> None:
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    done = zenlake("record", "-e", endpoint, "-k", "a", "-o", str(tmp_path / "log"))
    assert done.exit_code == 1
    assert done.stderr.startswith(f"zenlake record: no session with {endpoint}: ")
    assert not (tmp_path / "log").exists()


def test_a_folder_that_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"mine")
    with peer() as met:
        done = zenlake("record", "-e", met.endpoint, "-k", "a", "-o", str(tmp_path))
    assert done.exit_code == 1
    assert done.stderr.startswith("zenlake record: ")
    assert [file.name for file in tmp_path.iterdir()] == ["holiday.jpg"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rotate", "much"], "--rotate: 'much' is not a size, such as 256MiB"),
        (["--rotate", "1KiB"], "--rotate 1KiB: a segment has at least 64KiB"),
        (["--sync", "5"], "--sync: '5' is ambiguous as a duration: write 5s, 5ms or 5m"),
        (["--sync", "2h"], "--sync 2h: at most 60s"),
        (
            ["--retain", "forever"],
            "--retain: 'forever' is not an age such as 7d, or a size such as 50GiB",
        ),
        (["--retain", "0d"], "--retain: '0d' is too short: nothing would be kept"),
        (
            ["--retain", "7d", "--retain", "1h"],
            "--retain: '7d, 1h': give one age and one size at most",
        ),
        (["--duration", "-1s"], "--duration: '-1s' is not a duration"),
        (["--codec", "gzip"], "gzip"),
        (["-k", "a//b"], "a//b"),
    ],
)
def test_wrong_usage(tmp_path: Path, options: list[str], said: str) -> None:
    done = zenlake("record", "-k", "a", "-o", str(tmp_path / "log"), *options)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "log").exists()


def test_a_line_tells_what_is_wrong() -> None:
    stats = RecorderStats(
        samples=5,
        bytes=7,
        received=1205,
        durable=1200,
        waiting_bytes=7,
        gaps=1,
        lost=3,
        dropped=2,
        disk_left=1 << 40,
        failure="disk \x1b[31m full",
    )
    line = recording.format_stats(stats, recording.RecordRate(12_345.6, 3 << 20))
    assert line == (
        "12,346 samples/s, 3 MiB/s, durable to 1,200 (5 waiting), 1 gap, 2 dropped, 1 TiB left, "
        r"NOT WRITING: disk \x1b[31m full"
    )


def test_the_handlers_of_signals_are_put_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    zenlake("record", "-e", endpoint, "-k", "a", "-o", str(tmp_path / "log"))
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
