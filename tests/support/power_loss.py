"""A disk that loses its power: a journal of what was done to it, and what may be left of that.

After a sync all of a file, or of a folder's names, is there. Of later operations any part may be
there: each operation or not, each sector of 512 bytes of a write or not, zeros instead of data.
"""

import errno
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.support.numbered_samples import Quick
from zenlake.log.format import Buffer

SECTOR = 512
MAX_CHOSEN = 6  # Newest operations of which any subset may be on the disk.


class Write(NamedTuple):
    file: int
    position: int
    data: bytes


class Truncate(NamedTuple):
    file: int
    size: int


class Sync(NamedTuple):
    file: int


class Names(NamedTuple):
    """One change of the names in a folder, which happens as a whole."""

    folder: str
    gone: str | None = None
    come: str | None = None
    file: int | None = None  # None: a folder


class SyncFolder(NamedTuple):
    folder: str


class Told(NamedTuple):
    """The point up to which the writer had acknowledged."""

    offset: int


Operation = Write | Truncate | Sync | Names | SyncFolder | Told


class Journal(Quick):
    """Does what is asked, below `root`, and writes it down."""

    def __init__(self, root: Path) -> None:
        self.operations: list[Operation] = []
        self.failing: set[int] = set()
        "Which syncs fail, counted from now on."
        self._root = root
        self._files: dict[str, int] = {}
        self._descriptors: dict[int, int] = {}
        self._count = 0
        for path in sorted(root.rglob("*")):
            self._come(path, self._new() if path.is_file() else None)
            if path.is_file():
                self.operations.append(Write(self._count, 0, path.read_bytes()))
                self.operations.append(Sync(self._count))
            self.fsync_folder(path.parent)

    def _new(self) -> int:
        self._count += 1
        return self._count

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root))

    def _come(self, path: Path, file: int | None) -> None:
        name = self._name(path)
        self.operations.append(Names(self._name(path.parent), None, name, file))
        if file is not None:
            self._files[name] = file

    def told(self, offset: int) -> None:
        self.operations.append(Told(offset))

    def open(self, path: Path, flags: int) -> int:
        fresh = not path.exists()
        descriptor = super().open(path, flags)
        if fresh:
            self._come(path, self._new())
        file = self._descriptors[descriptor] = self._files[self._name(path)]
        if flags & os.O_TRUNC:
            self.operations.append(Truncate(file, 0))
        return descriptor

    def pwritev(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(buffers)
        self.operations.append(Write(self._descriptors[descriptor], position, data))
        return super().pwritev(descriptor, buffers, position)

    def fdatasync(self, descriptor: int) -> None:
        fails = 0 in self.failing
        self.failing = {left - 1 for left in self.failing}
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.operations.append(Sync(self._descriptors[descriptor]))

    def truncate(self, descriptor: int, size: int) -> None:
        super().truncate(descriptor, size)
        self.operations.append(Truncate(self._descriptors[descriptor], size))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        file = self._files.pop(self._name(source))
        self._files[self._name(target)] = file
        old, new = self._name(source), self._name(target)
        if source.parent == target.parent:
            self.operations.append(Names(self._name(source.parent), old, new, file))
        else:  # both may be there, or only the one whose folder was synced
            self.operations.append(Names(self._name(target.parent), None, new, file))
            self.operations.append(Names(self._name(source.parent), old))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        del self._files[self._name(path)]
        self.operations.append(Names(self._name(path.parent), self._name(path)))

    def mkdir(self, path: Path) -> None:
        super().mkdir(path)
        self._come(path, None)

    def fsync_folder(self, path: Path) -> None:
        self.operations.append(SyncFolder(self._name(path)))


@dataclass
class Image:
    """A disk: names, and what the files hold."""

    names: dict[str, int | None] = field(default_factory=dict)
    files: dict[int, bytearray] = field(default_factory=dict)
    acknowledged: int = 0

    def apply(self, operation: Operation) -> None:
        match operation:
            case Write(file, position, data):
                content = self.files.setdefault(file, bytearray())
                content.extend(bytes(max(0, position - len(content))))
                content[position : position + len(data)] = data
            case Truncate(file, size):
                content = self.files.setdefault(file, bytearray())
                content[:] = content[:size].ljust(size, b"\0")
            case Names(_, gone, come, file):
                if gone is not None:
                    self.names.pop(gone, None)
                if come is not None:
                    self.names[come] = file
            case Told(offset):
                self.acknowledged = offset

    def place(self, root: Path) -> None:
        """Makes files of it; a name in a folder that is not there is gone with it."""
        root.mkdir()
        for name, file in sorted(self.names.items()):
            path = root / name
            if not path.parent.is_dir():
                continue
            if file is None:
                path.mkdir()
            else:
                path.write_bytes(self.files.get(file, b""))


def image_after(operations: Sequence[Operation], chance: random.Random | None) -> Image:
    """Return the files after the operations; with `chance` some unsynced ones are missing."""
    image = Image()
    synced = {
        operation: number for number, operation in enumerate(operations) if _is_sync(operation)
    }
    waiting: list[Operation] = []
    for number, operation in enumerate(operations):
        sync = _sync_of(operation)
        if chance is None or sync is None or synced.get(sync, -1) > number:
            image.apply(operation)
        else:
            waiting.append(operation)
    if chance is None:
        return image
    older = chance.random() < 0.5
    for operation in waiting[:-MAX_CHOSEN]:
        if older:
            image.apply(operation)
    for operation in waiting[-MAX_CHOSEN:]:
        for part in _left_of(operation, chance):
            image.apply(part)
    return image


def _is_sync(operation: Operation) -> bool:
    return isinstance(operation, Sync | SyncFolder)


def _sync_of(operation: Operation) -> Operation | None:
    """Return the sync that makes an operation durable."""
    match operation:
        case Write(file) | Truncate(file):
            return Sync(file)
        case Names(folder):
            return SyncFolder(folder)
    return None


def _left_of(operation: Operation, chance: random.Random) -> list[Operation]:
    kind = chance.choice(("all", "nothing", "sectors", "zeros"))
    if kind == "nothing":
        return []
    if kind == "all" or not isinstance(operation, Write):
        return [operation]
    file, position, data = operation
    if kind == "zeros":
        return [Write(file, position, bytes(len(data)))]
    parts: list[Operation] = []
    start = 0
    while start < len(data):
        end = min((position + start) // SECTOR * SECTOR + SECTOR - position, len(data))
        if chance.random() < 0.5:
            parts.append(Write(file, position + start, data[start:end]))
        start = end
    return parts
