"""Disks that fail, fill up or lose their power; folders that are not logs; locks.

ZENLAKE_FULL=1: 10,000 images after a loss of power instead of 2,000.
"""

import errno
import os
import random
import shutil
import warnings
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.numbered_samples import FULL, QUICK, Quick, Sample, held, losses, numbered
from tests.support.power_loss import Journal, Told, image_after
from zenlake.errors import ZError
from zenlake.log import files as files_module
from zenlake.log.files import LogLocked, LogRefused, write_all
from zenlake.log.format import SEGMENT_BYTES, SETTLED, Buffer
from zenlake.log.read.durable_mark import read_mark
from zenlake.log.write.writer import LogWriteError, Writer

pytestmark = pytest.mark.slow

IMAGES = 10_000 if FULL else 2_000
SEED = 2026
GROUPS = 12


# Loss of power


def journal_of(root: Path, retain_bytes: int | None) -> Journal:
    """A log from its creation on: groups, losses, rotation, syncs that fail, two writers."""
    journal = Journal(root)
    number = 0
    for _ in range(2):
        with Writer(
            root / "log", rotate_bytes=1200, retain_bytes=retain_bytes, files=journal
        ) as log:
            journal.failing = {3, 11, 12}
            for group in range(GROUPS):
                count = group % 4
                blocks = [numbered(0, number, count, pad=group * 40)] if count else [losses()]
                if group == 7:
                    blocks.append(numbered(0, number + count, 1))
                    count += 1
                while log.next == number:
                    with suppress(LogWriteError):
                        log.write(blocks)
                        break
                number += count
                assert log.next == number
                journal.told(number)
    return journal


def check_image(root: Path, acknowledged: int, retention: bool) -> None:
    """The log opens, has what was acknowledged, and takes more."""
    with Writer(root / "log", files=QUICK) as log:
        assert log.next >= acknowledged
        first = log.next
        log.write([numbered(9, 0, 2)])
    found = held(root / "log").by_offset()
    assert found.pop(first) == Sample(9, 0)
    assert found.pop(first + 1) == Sample(9, 1)
    kept = min(found, default=first) if retention else 0
    assert set(range(kept, acknowledged)) <= set(found)
    for offset, sample in found.items():
        assert sample == Sample(0, offset)


@pytest.mark.slow
@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("retain_bytes", [None, 3000], ids=["all is kept", "retention"])
def test_no_loss_of_power_loses_what_was_acknowledged(
    tmp_path: Path, retain_bytes: int | None
) -> None:
    (tmp_path / "disk").mkdir()
    operations = journal_of(tmp_path / "disk", retain_bytes).operations
    chance = random.Random(SEED)
    ends = list(range(1, len(operations) + 1))
    trials: list[tuple[int, random.Random | None]] = [(end, None) for end in ends]
    trials += [(chance.choice(ends), chance) for _ in range(IMAGES // 2 - len(trials))]
    for number, (end, how) in enumerate(trials):
        image = image_after(operations[:end], how)
        root = tmp_path / "image"
        image.place(root)
        try:
            check_image(root, image.acknowledged, retain_bytes is not None)
        except BaseException as error:
            error.add_note(f"image {number}: {operations[end - 1]} was the last operation")
            raise
        shutil.rmtree(root)


def test_no_loss_of_power_during_recovery_loses_anything(tmp_path: Path) -> None:
    """The writer that recovers a torn tail loses the power in its turn."""
    disk = tmp_path / "disk"
    with Writer(disk / "log", files=QUICK) as log:
        log.write([numbered(0, 0, 5)])
        log.write([numbered(0, 5, 5)])
        place = log.mark.position
    with (disk / "log" / "0" / "00000000000000000000.zlog").open("r+b") as file:
        file.truncate(place - 3)
        file.seek(place - 3)
    (disk / "log" / "0" / "mark").unlink()
    journal = Journal(disk)
    before = len(journal.operations)
    with Writer(disk / "log", files=journal) as log:
        assert log.recovery.torn
        assert log.next == 5
        log.write([numbered(0, 5, 3)])
        journal.told(8)
    chance = random.Random(SEED)
    for end in range(before, len(journal.operations) + 1):
        operations = [Told(5), *journal.operations[:end]]
        for how in (None, chance, chance, chance, chance):
            image = image_after(operations, how)
            root = tmp_path / "image"
            image.place(root)
            check_image(root, image.acknowledged, retention=False)
            torn = list((root / "log" / "0" / "torn").glob("*.zlog"))
            assert image.acknowledged < 8 or torn
            shutil.rmtree(root)


# Writes and syncs that fail


class Failing(Quick):
    """A disk on which one call fails; asserts that no failed descriptor is synced again."""

    def __init__(self, call: str, at: int, error: int) -> None:
        self.call, self.left, self.error = call, at, error
        self.opened = 0
        self.alive: dict[int, int] = {}
        self.broken: set[int] = set()
        self.names: dict[int, Path] = {}

    def open(self, path: Path, flags: int) -> int:
        descriptor = super().open(path, flags)
        self.opened += 1
        self.alive[descriptor] = self.opened
        self.names[descriptor] = path
        return descriptor

    def close(self, descriptor: int) -> None:
        del self.alive[descriptor]
        super().close(descriptor)

    def _fails(self, call: str, descriptor: int) -> bool:
        assert self.alive[descriptor] not in self.broken, "a broken descriptor is used again"
        if call != self.call:
            return False
        self.left -= 1
        if self.left == 0 and self.names[descriptor].name.startswith("0"):
            self.broken.add(self.alive[descriptor])
        return self.left == 0

    def pwritev(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        if self._fails("pwritev", descriptor):
            raise OSError(self.error, os.strerror(self.error))
        return super().pwritev(descriptor, buffers, position)

    def fdatasync(self, descriptor: int) -> None:
        if self._fails("fdatasync", descriptor):
            raise OSError(self.error, os.strerror(self.error))

    def truncate(self, descriptor: int, size: int) -> None:
        if self._fails("truncate", descriptor):
            raise OSError(self.error, os.strerror(self.error))
        super().truncate(descriptor, size)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_a_write_or_sync_that_fails(tmp_path: Path, call: str, error: int) -> None:
    """At the 1st to 50th: nothing of the group is acknowledged, and the writer goes on."""
    failed = 0
    for at in range(1, 51):
        path = tmp_path / str(at)
        files = Failing(call, at, error)
        try:
            log = Writer(path, rotate_bytes=1500, files=files)
        except LogWriteError as refused:
            assert errno.errorcode[error] in str(refused)
            assert not files.alive
            log = Writer(path, rotate_bytes=1500, files=files)
        number = 0
        for group in range(20):
            blocks = [numbered(0, number, 3, pad=200), losses()]
            try:
                log.write(blocks)
            except LogWriteError as refused:
                failed += 1
                assert log.failure is refused
                assert str(path / "0") in str(refused)
                assert os.strerror(error) in str(refused)
                assert log.next == number
                log.write(blocks)
            assert log.failure is None
            number += 3
            assert log.next == number, group
        log.close()
        assert not files.alive
        found = held(path)
        assert found.by_offset() == {offset: Sample(0, offset) for offset in range(60)}
        assert found.losses == 20
        assert not found.damage
        assert not found.repeated
        with Writer(path, files=QUICK) as again:
            assert not again.recovery.damage
            assert not again.recovery.torn
            assert again.next == 60
    assert failed > 15


class Full(Quick):
    """A disk of so many bytes; what does not fit is written in part, then fails."""

    def __init__(self, room: int) -> None:
        self.room = room

    def pwritev(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(buffers)
        more = max(0, position + len(data) - os.fstat(descriptor).st_size)
        if more > self.room:
            data = data[: max(0, len(data) - (more - self.room))]
            if not data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            more = self.room
        self.room -= more
        return super().pwritev(descriptor, [data], position)

    def truncate(self, descriptor: int, size: int) -> None:
        self.room += max(0, os.fstat(descriptor).st_size - size)
        super().truncate(descriptor, size)


def write_on(log: Writer, groups: int = 100) -> None:
    for _ in range(groups):
        log.write([numbered(0, log.next, 2)])


@pytest.mark.parametrize("spare", range(0, 400, 23))
def test_a_full_disk_and_then_room_again(tmp_path: Path, spare: int) -> None:
    disk = Full(1500 + spare)
    with Writer(tmp_path / "log", files=disk) as log:
        with pytest.raises(LogWriteError, match=r"ENOSPC.*free space"):
            write_on(log)
        for _ in range(3):
            with suppress(LogWriteError):
                write_on(log, 1)
        disk.room += 5000
        write_on(log, 1)
        assert log.failure is None
    found = held(tmp_path / "log")
    assert found.by_offset() == {offset: Sample(0, offset) for offset in range(log.next)}
    assert not found.damage


class Stuck(Quick):
    """Nothing works while `stuck`."""

    stuck = False

    def _check(self) -> None:
        if self.stuck:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def open(self, path: Path, flags: int) -> int:
        self._check()
        return super().open(path, flags)

    def fdatasync(self, descriptor: int) -> None:
        self._check()

    def truncate(self, descriptor: int, size: int) -> None:
        self._check()
        super().truncate(descriptor, size)


@pytest.mark.parametrize("before", [0, 1, 2], ids=["empty", "samples", "losses"])
@pytest.mark.parametrize("end", ["goes on", "closed", "killed"])
def test_a_segment_that_cannot_be_cut_back(tmp_path: Path, before: int, end: str) -> None:
    """The failed blocks are still in the file; they are read once or not at all."""
    files = Stuck()
    log = Writer(tmp_path / "log", files=files)
    expected: list[Sample] = []
    if before == 1:
        log.write([numbered(0, 0, 4)])
        expected = [Sample(0, number) for number in range(4)]
    elif before == 2:
        log.write([losses()])
    files.stuck = True
    for _ in range(2):
        with pytest.raises(LogWriteError, match="EIO"):
            log.write([numbered(1, 0, 3)])
    if end == "goes on":
        files.stuck = False
        log.write([numbered(1, 0, 3)])
        log.close()
    elif end == "closed":
        log.close()
    else:
        log._release()
    with Writer(tmp_path / "log", files=QUICK) as again:
        assert not again.recovery.damage
        assert again.next in (len(expected), len(expected) + 3)
        if again.next > len(expected):
            expected += [Sample(1, number) for number in range(3)]
        again.write([numbered(2, 0, 1)])
    found = held(tmp_path / "log")
    assert list(found.by_offset().values()) == [*expected, Sample(2, 0)]
    assert found.losses == (before == 2)


class Interrupting(Quick):
    at = 0

    def fdatasync(self, descriptor: int) -> None:
        self.at -= 1
        if self.at == 0:
            raise KeyboardInterrupt


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path) -> None:
    files = Interrupting()
    with Writer(tmp_path / "log", files=files) as log:
        log.write([numbered(0, 0, 1)])
        files.at = 1
        with pytest.raises(KeyboardInterrupt):
            log.write([numbered(0, 1, 50), numbered(0, 51, 50)])
        assert log.next == 1
        log.write([numbered(0, 1, 1)])
    assert held(tmp_path / "log").by_offset() == {0: Sample(0, 0), 1: Sample(0, 1)}


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_the_buffer_of_a_block_is_free_after_a_failure(tmp_path: Path, call: str) -> None:
    """However long a caller keeps the error."""
    files = Failing(call, 0, errno.EIO)
    with Writer(tmp_path / "log", files=files) as log:
        block = numbered(0, 0, 1)
        files.left = 1
        with pytest.raises(LogWriteError) as kept:
            log.write([block])
        log.write([block])
        block.buffer += bytes(1 << 20)
        assert kept.value.reason.errno == errno.EIO


class Stubborn(Quick):
    """Removes nothing."""

    def unlink(self, path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_retention_that_fails_does_not_fail_a_write(tmp_path: Path) -> None:
    with Writer(tmp_path / "log", files=Stubborn(), rotate_bytes=300, retain_bytes=600) as log:
        for number in range(10):
            log.write([numbered(0, number, 1)])
        assert log.failure is None
        assert log.retention_failure is not None
        assert "EROFS" in str(log.retention_failure)
        assert log.removed == (0, 0)
    assert len(held(tmp_path / "log").by_offset()) == 10


class Sparing(Quick):
    """Takes a few bytes at a time."""

    def pwritev(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        return super().pwritev(descriptor, [b"".join(buffers)[:7]], position)


def test_short_writes_are_continued(tmp_path: Path) -> None:
    with Writer(tmp_path / "log", files=Sparing()) as log:
        log.write([numbered(0, 0, 9), losses(), numbered(0, 9, 1)])
    assert len(held(tmp_path / "log").by_offset()) == 10


def test_a_disk_that_takes_nothing_is_no_endless_loop(tmp_path: Path) -> None:
    class Deaf(Quick):
        def pwritev(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
            return 0

    with pytest.raises(OSError, match="takes no bytes"):
        write_all(Deaf(), 0, [b"x"], 0)


def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    blocks = [numbered(0, number, 1) for number in range(1500)]
    with Writer(tmp_path / "log", files=QUICK) as log:
        assert log.write(blocks).offset == 1500
    assert len(held(tmp_path / "log").by_offset()) == 1500


# The lock


def test_a_partition_has_one_writer_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "LOCK_SECONDS", 0.05)
    with Writer(tmp_path / "log", files=QUICK) as log:
        log.write([numbered(0, 0, 1)])
        with pytest.raises(LogLocked, match=rf"process {os.getpid()} on "):
            Writer(tmp_path / "log", files=QUICK)
        (tmp_path / "log" / "0" / "lock").write_bytes(b"[" * 5000)
        with pytest.raises(LogLocked, match="did not say"):
            Writer(tmp_path / "log", files=QUICK)
        with Writer(tmp_path / "log", 1, files=QUICK) as other:
            assert other.log_id == log.log_id
        log.write([numbered(0, 1, 1)])
    with Writer(tmp_path / "log", files=QUICK) as log:
        assert log.next == 2


def test_a_stale_lock_is_no_lock(tmp_path: Path) -> None:
    Writer(tmp_path / "log", files=QUICK).close()
    lock = tmp_path / "log" / "0" / "lock"
    lock.write_text('{"pid": 1, "host": "elsewhere"}')
    with Writer(tmp_path / "log", files=QUICK):
        assert str(os.getpid()) in lock.read_text()


# Folders and files that are not logs


def segment_of(path: Path) -> Path:
    return path / "0" / "00000000000000000000.zlog"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Writer(tmp_path / "log", files=QUICK) as log:
        log.write([numbered(0, 0, 3)])
    return tmp_path / "log"


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(LogRefused, match=r"letter\.txt.*folder of its own"):
        Writer(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["letter.txt"]


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("mine")
    with pytest.raises(LogWriteError, match="ENOTDIR"):
        Writer(tmp_path / "log")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "which log"),
        ("[" * 50_000, "which log"),
        ("7", "which log"),
        ("{}", "which log"),
        ('{"format": 2, "id": "00"}', "newer zenlake"),
        ('{"format": "1", "id": "00"}', "newer zenlake"),
        ('{"format": 1, "id": "00"}', "32 hex"),
        ('{"format": 1, "id": 5}', "32 hex"),
        (" " * (65 << 10), "which log"),
    ],
)
def test_a_log_json_that_says_nothing(path: Path, text: str, says: str) -> None:
    (path / "log.json").write_text(text)
    with pytest.raises(LogRefused, match=says):
        Writer(path)


def test_a_lost_log_json_is_not_made_anew(path: Path) -> None:
    (path / "log.json").unlink()
    with pytest.raises(LogRefused, match="'0'"):
        Writer(path)


def test_an_unknown_version_of_a_segment_is_refused(path: Path) -> None:
    head = bytearray(segment_of(path).read_bytes()[:SEGMENT_BYTES])
    head[8] = 9
    head[-4:] = zlib.crc32(head[:-4]).to_bytes(4, "little")
    with segment_of(path).open("r+b") as file:
        file.write(head)
    before = segment_of(path).read_bytes()
    with pytest.raises(LogRefused, match="version 9 is unknown"):
        Writer(path)
    assert segment_of(path).read_bytes() == before


def test_a_segment_of_another_log_is_refused(path: Path, tmp_path: Path) -> None:
    with Writer(tmp_path / "other", files=QUICK) as log:
        log.write([numbered(0, 0, 3)])
    shutil.copy(segment_of(tmp_path / "other"), segment_of(path))
    with pytest.raises(LogRefused, match="another log"):
        Writer(path)


@pytest.mark.parametrize("what", ["0/00000000000000000000.zlog", "0/mark", "log.json"])
@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_regular_file_is_refused(
    path: Path, tmp_path: Path, what: str, kind: str
) -> None:
    file = path / what
    file.rename(tmp_path / "elsewhere")
    if kind == "link":
        file.symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        file.mkdir()
    else:
        os.mkfifo(file)
    with pytest.raises(LogRefused, match="not a regular file"):
        Writer(path)


def test_a_lock_that_is_a_link_is_refused(path: Path, tmp_path: Path) -> None:
    (path / "0" / "lock").unlink()
    (path / "0" / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(LogWriteError, match="ELOOP"):
        Writer(path)
    assert not (tmp_path / "victim").exists()


def test_an_empty_segment_is_put_aside(path: Path) -> None:
    (path / "0" / "00000000000000000003.zlog").touch()
    (path / "0" / "00000000000000000007.zlog").write_bytes(b"ZENLOG\r\n")
    with Writer(path, files=QUICK) as log:
        assert [torn.length for torn in log.recovery.torn] == [8, 0]
        assert all(torn.kept.exists() for torn in log.recovery.torn)
        assert log.next == 3
        log.write([numbered(0, 3, 1)])
    assert held(path).by_offset() == {offset: Sample(0, offset) for offset in range(4)}


def test_a_segment_with_an_impossible_name_is_refused(path: Path) -> None:
    (path / "0" / "99999999999999999999.zlog").touch()
    with pytest.raises(LogRefused, match="no segment has such an offset"):
        Writer(path)


@pytest.mark.process
def test_a_folder_that_may_not_be_written(path: Path) -> None:
    """As another user, in another process; a superuser may write anywhere."""
    (path.parent / "closed").mkdir(mode=0o555)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests: none is used
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.chdir(path.parent / "closed")
            if os.geteuid() == 0:
                os.setuid(65534)
            Writer("log")
        except LogWriteError as error:
            code = 0 if "right to write" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class ReadOnly(Quick):
    def open(self, path: Path, flags: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return super().open(path, flags)


def test_a_read_only_file_system(path: Path) -> None:
    with pytest.raises(LogWriteError, match=r"EROFS.*make the file system writable"):
        Writer(path, files=ReadOnly())


def test_a_folder_that_went_away(path: Path) -> None:
    """No sample is acknowledged while the folder is away; once it is back, writing goes on."""
    with Writer(path, rotate_bytes=300, files=QUICK) as log:
        path.rename(path.with_name("away"))
        with pytest.raises(LogWriteError, match=r"ENOENT.*put the folder back"):
            write_on(log)
        failed = log.failure
        path.with_name("away").rename(path)
        write_on(log, 1)
        assert failed is not None
        assert log.failure is None
    assert len(held(path).by_offset()) == log.next


@pytest.mark.parametrize("wrong", [{"codec": "gzip"}, {"partition": -1}, {"partition": 1 << 31}])
def test_wrong_arguments(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ZError, match=r"codec|partition"):
        Writer(tmp_path / "log", **wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "log").exists()


def test_the_mark_after_a_close(path: Path) -> None:
    mark = read_mark(path / "0")
    assert mark is not None
    assert mark.state == SETTLED
    assert mark.offset == 3
    assert mark.position == segment_of(path).stat().st_size
