"""The tape alone: group commit, room, loss and the end, with disks that stand still or fail."""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.log_recording import DEADLINE, Disk, blocks, lost, put, walked
from tests.support.waiting import until
from zenlake.api.values.sample import Sample
from zenlake.errors import ZError
from zenlake.keytable import KeyTable
from zenlake.log.format import MAX_LINKS
from zenlake.log.write import recording_sink as tapes
from zenlake.log.write.recording_sink import RecordingSink
from zenlake.log.write.writer import Writer
from zenlake.runtime.session_face import SessionFace
from zenlake.wire import qos
from zenlake.wire.cursor import ByteWriter as Bytes
from zenlake.wire.enums import Mapping, WireWhatAmI
from zenlake.wire.network import NETWORK
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.slow

JOIN_SECONDS = 20.0
A_DAY = 86_400.0


@contextmanager
def opened(path: Path, disk: Disk | None = None, **options: Any) -> Iterator[RecordingSink]:
    with Writer(path, files=disk or Disk()) as writer:
        tape = RecordingSink(writer, **options)
        try:
            yield tape
        finally:
            if disk is not None:
                disk.moving.set()
            tape.close()
            assert tape.join(JOIN_SECONDS)


def take(tape: RecordingSink, payload: bytes, key: str = "rec/a", source: Any = None) -> bool:
    body = Put(payload, source_info=put(key, b"", source).body.source_info)
    return tape.push_one(Sample.of(key, body, int(qos.DEFAULT)))


def fake_port(zid: bytes, keys: KeyTable | None = None) -> SessionFace:
    agreed = SimpleNamespace(zid=WireZenohId(zid), whatami=WireWhatAmI.CLIENT)
    return SessionFace(
        cast("Any", SimpleNamespace(agreement=agreed)),
        cast("Any", SimpleNamespace(keys=keys or KeyTable())),
    )


def message(scope: int, suffix: str, payload: bytes) -> bytes:
    push = put(suffix, payload)
    push.key = WireExpr(scope, suffix, Mapping.SENDER)
    w = Bytes()
    NETWORK.write(w, push)
    return bytes(w.out)


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """It runs beside, and what it gave or raised is there once it has ended."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except ZError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


# ---- when a commit happens


def test_a_sample_alone_is_durable_after_sync_seconds(tmp_path: Path) -> None:
    with opened(tmp_path / "log", sync_seconds=0.01) as tape:
        take(tape, b"alone")
        until(lambda: tape.mark.offset == 1)


@pytest.mark.parametrize("options", [{"sync_bytes": 3000}, {"sync_samples": 30}], ids=str)
def test_enough_of_them_do_not_wait_for_that(tmp_path: Path, options: dict[str, Any]) -> None:
    with opened(tmp_path / "log", sync_seconds=A_DAY, **options) as tape:
        take(tape, b"alone")
        assert tape.mark.offset == 0
        for _ in range(29):
            take(tape, b"x" * 100)
        until(lambda: tape.mark.offset == 30)
    assert len(list(blocks(tmp_path / "log"))) == 1


def test_the_end_does_not_wait_for_that(tmp_path: Path) -> None:
    with opened(tmp_path / "log", sync_seconds=A_DAY) as tape:
        take(tape, b"alone")
    assert [each.payload for each in walked(tmp_path / "log")] == [b"alone"]


def test_what_comes_during_a_commit_goes_into_the_next(tmp_path: Path) -> None:
    disk = Disk()
    with opened(tmp_path / "log", disk) as tape:
        disk.moving.clear()
        take(tape, b"first")
        assert disk.waits.wait(DEADLINE)
        for number in range(50):
            take(tape, b"%d" % number)
        assert tape.mark.offset == 0
        disk.moving.set()
        tape.durable(DEADLINE)
    assert [block.header.samples for block in blocks(tmp_path / "log")] == [1, 50]


@pytest.mark.parametrize(
    "options", [{"overflow": "wait"}, {"sync_seconds": -1}, {"sync_bytes": 0}, {"sync_samples": 0}]
)
def test_options_that_mean_nothing(tmp_path: Path, options: dict[str, Any]) -> None:
    with Writer(tmp_path / "log") as writer, pytest.raises(ZError):
        RecordingSink(writer, **options)


# ---- what is durable, and what is said until then


def test_durable_returns_after_the_sync_of_what_was_received(tmp_path: Path) -> None:
    disk = Disk()
    with opened(tmp_path / "log", disk) as tape:
        for number in range(20):
            take(tape, b"%d" % number)
            mark = tape.durable(DEADLINE)
            assert mark.offset == number + 1
            assert disk.calls[-1] == ("fdatasync", mark.position)
            before = [call for call, _ in disk.calls]
            assert before[-2:] == ["pwritev", "fdatasync"]


def test_durable_gives_up_in_time_and_says_how_far(tmp_path: Path) -> None:
    disk = Disk()
    with opened(tmp_path / "log", disk) as tape:
        take(tape, b"one")
        tape.durable(DEADLINE)
        disk.moving.clear()
        take(tape, b"two")
        with pytest.raises(ZError, match=r"offset 2 is not durable, only 1 is$"):
            tape.durable(0.05)
        disk.moving.set()
        assert tape.durable(DEADLINE).offset == 2


def test_durable_does_not_wait_for_what_comes_later(tmp_path: Path) -> None:
    disk = Disk()
    with opened(tmp_path / "log", disk) as tape:
        disk.moving.clear()
        take(tape, b"one")
        assert disk.waits.wait(DEADLINE)
        thread, found = in_thread(lambda: tape.durable(DEADLINE))
        take(tape, b"two")
        disk.sync_fault = None
        disk.moving.set()
        thread.join(JOIN_SECONDS)
        assert found[0].offset >= 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_and_works_again(tmp_path: Path, number: int) -> None:
    disk = Disk()
    with opened(tmp_path / "log", disk) as tape:
        take(tape, b"before")
        tape.durable(DEADLINE)
        disk.fault = number
        take(tape, b"during")
        until(lambda: tape.failure)
        with pytest.raises(ZError, match=f"only 1 is: .*{errno.errorcode[number]}"):
            tape.durable(0.05)
        take(tape, b"during, too")
        disk.fault = None
        assert tape.durable(DEADLINE).offset == 3
        assert tape.failure is None
        take(tape, b"after")
    found = [each.payload for each in walked(tmp_path / "log")]
    assert found == [b"before", b"during", b"during, too", b"after"]
    assert lost(tmp_path / "log") == []


def test_a_sync_that_fails_acknowledges_nothing(tmp_path: Path) -> None:
    disk = Disk()
    with opened(tmp_path / "log", disk) as tape:
        disk.sync_fault = errno.EIO
        take(tape, b"written, not synced")
        until(lambda: tape.failure)
        assert tape.mark.offset == 0
        disk.sync_fault = None
        assert tape.durable(DEADLINE).offset == 1


def test_a_defect_stops_nothing_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path / "log") as tape:
        with monkeypatch.context() as patched:
            patched.setattr(tape.writer, "write", lambda _: 1 / 0)
            take(tape, b"one")
            until(lambda: tape.failure)
            with pytest.raises(ZError, match="division by zero"):
                tape.durable(0.05)
        assert tape.durable(DEADLINE).offset == 1
    assert [each.exc_info[0] for each in caplog.records if each.exc_info] == [ZeroDivisionError]


def test_the_end_on_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes, "CLOSE_SECONDS", 0.2)
    disk = Disk()
    with opened(tmp_path / "log", disk) as tape:
        take(tape, b"one")
        tape.durable(DEADLINE)
        disk.fault = errno.EIO
        take(tape, b"two")
        take(tape, b"three")
        thread, found = in_thread(tape.durable)  # Waits until the sink gives up.
        until(lambda: tape.failure)
        tape.close()
        assert tape.join(JOIN_SECONDS)
        thread.join(JOIN_SECONDS)
        assert not thread.is_alive()
        assert "only 1 is" in str(found[0])
        assert tape.dropped == 2
        disk.fault = None
    assert [each.payload for each in walked(tmp_path / "log")] == [b"one"]


# ---- room


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes, "WAITING_BYTES", 10_000)
    monkeypatch.setattr(tapes, "BLOCK_BYTES", 3_000)


@pytest.mark.usefixtures("_small")
def test_block_has_no_room_until_half_is_written(tmp_path: Path) -> None:
    disk = Disk()
    with opened(tmp_path / "log", disk) as tape:
        disk.moving.clear()
        taken = 0
        while take(tape, b"x" * 1000):
            taken += 1
        assert tape.waiting == pytest.approx(10_000, abs=1100)
        called = threading.Event()
        tape.when_room(called.set)
        thread, _ = in_thread(tape.wait_room)
        assert not called.is_set()
        assert thread.is_alive()
        disk.moving.set()
        assert called.wait(DEADLINE)
        thread.join(JOIN_SECONDS)
        assert not thread.is_alive()
        tape.durable(DEADLINE)
        assert tape.waiting == 0
        tape.when_room(called.clear)
        assert not called.is_set(), "there is room: it is told at once"
    assert len(walked(tmp_path / "log")) == taken + 1
    assert lost(tmp_path / "log") == []


@pytest.mark.usefixtures("_small")
def test_the_end_lets_all_go_who_wait_for_room(tmp_path: Path) -> None:
    disk = Disk()
    with opened(tmp_path / "log", disk) as tape:
        disk.moving.clear()
        while take(tape, b"x" * 1000):
            pass
        called = threading.Event()
        tape.when_room(called.set)
        thread, _ = in_thread(tape.wait_room)
        tape.close()
        assert called.is_set()
        thread.join(JOIN_SECONDS)
        assert not thread.is_alive()


@pytest.mark.usefixtures("_small")
def test_drop_counts_and_records_what_it_lets_go(tmp_path: Path) -> None:
    disk = Disk()
    zid = b"\x05" * 4
    with opened(tmp_path / "log", disk, overflow="drop") as tape:
        disk.moving.clear()
        number = 0
        while not tape.dropped:
            assert take(tape, b"%d" % number + b"x" * 1000, source=(zid, 1, number))
            number += 1
        kept = number - 1
        for _ in range(6):
            take(tape, b"x" * 1000, source=(zid, 1, number))
            number += 1
        assert tape.dropped == 7
        disk.moving.set()
        tape.durable(DEADLINE)
        take(tape, b"again", source=(zid, 1, number))
        take(tape, b"and one is missing", source=(zid, 1, number + 2))
        tape.durable(DEADLINE)
        assert tape.losses == {"dropped": 1, "source": 1}
        assert tape.missing == {"dropped": 7, "source": 1}
    found = lost(tmp_path / "log")
    assert [(each.kind, each.offset, each.missing) for each in found] == [
        ("dropped", kept, 7),
        ("source", kept + 1, 1),
    ]
    assert len(walked(tmp_path / "log")) == kept + 2


@pytest.mark.usefixtures("_small")
def test_what_is_dropped_at_the_end_is_recorded(tmp_path: Path) -> None:
    disk = Disk()
    with opened(tmp_path / "log", disk, overflow="drop") as tape:
        disk.moving.clear()
        while tape.dropped < 3:
            take(tape, b"x" * 1000)
    (found,) = lost(tmp_path / "log")
    assert (found.kind, found.missing) == ("dropped", 3)
    assert found.offset == len(walked(tmp_path / "log"))


def test_records_of_loss_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes, "MAX_LOSSES", 10)
    with opened(tmp_path / "log", sync_seconds=A_DAY) as tape:
        for number in range(30):
            take(tape, b"x", source=(b"\x01", 1, 2 * number))
        assert tape.losses.total() == 29
        assert tape.unrecorded == 19
    assert len(lost(tmp_path / "log")) == 10


def test_what_comes_after_the_end_is_counted(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as tape:
        tape.close()
        take(tape, b"late")
        assert tape.dropped == 1
        assert tape.received == 0


def test_a_message_too_long_for_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes, "MAX_MESSAGE_BYTES", 5000)
    with opened(tmp_path / "log") as tape:
        take(tape, b"a")
        take(tape, b"x" * 6000)
        take(tape, b"b")
    assert [each.payload for each in walked(tmp_path / "log")] == [b"a", b"b"]
    (found,) = lost(tmp_path / "log")
    assert (found.kind, found.offset, found.missing) == ("dropped", 1, 1)


def test_a_large_message_leaves_no_large_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tapes, "BLOCK_BYTES", 3_000)
    with opened(tmp_path / "log") as tape:
        for size in (100, 50_000, 200, 2_900):
            take(tape, b"x" * size)
            tape.durable(DEADLINE)
        kept = [len(buffer) for buffer in tape._buffers]
        assert all(size <= 6_000 for size in kept)
    assert [len(each.payload) for each in walked(tmp_path / "log")] == [100, 50_000, 200, 2_900]


# ---- links and keys


def test_an_id_that_stands_for_another_key_begins_another_link(tmp_path: Path) -> None:
    keys = KeyTable()
    port = fake_port(b"\x07", keys)
    number = int(Mapping.SENDER) << 16 | 5
    with opened(tmp_path / "log", sync_seconds=A_DAY) as tape:
        for text in ("rec/a", "rec/b", "rec/a"):
            keys.undeclare(Mapping.SENDER, 5)
            keys.declare(Mapping.SENDER, 5, text)
            data = message(5, "/x", text.encode())
            tape.push_message((port, True, (number, b"/x"), data, 0, len(data), None))
    found = walked(tmp_path / "log")
    assert [each.key for each in found] == ["rec/a/x", "rec/b/x", "rec/a/x"]
    assert {each.link for each in found} == {b"\x07"}
    (block,) = blocks(tmp_path / "log")
    assert len({entry["serial"] for entry in block.links()}) == 3


def test_more_links_than_a_block_has_room_for(tmp_path: Path) -> None:
    many = MAX_LINKS + 5
    data = message(0, "rec/a", b"x")
    name = (int(Mapping.SENDER) << 16, b"rec/a")
    with opened(tmp_path / "log", sync_seconds=A_DAY) as tape:
        for number in range(many):
            port = fake_port(number.to_bytes(2, "little") + b"\x01")
            tape.push_message((port, number % 2 == 0, name, data, 0, len(data), None))
    found = walked(tmp_path / "log")
    assert len({each.link for each in found}) == many
    assert [each.reliable for each in found] == [number % 2 == 0 for number in range(many)]
    assert sum(len(block.links()) for block in blocks(tmp_path / "log")) == many


def test_a_sample_of_its_own_session_has_no_link(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as tape:
        before = time.time_ns()
        take(tape, b"own", key="rec/ä")
        tape.durable(DEADLINE)
    (found,) = walked(tmp_path / "log")
    assert (found.key, found.link, found.payload) == ("rec/ä", b"", b"own")
    assert before <= found.time <= time.time_ns()
