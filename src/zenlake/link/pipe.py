"""unixpipe/PATH: a stream over two named pipes, as zenoh-link-unixpipe 1.10.2 makes them.

Knows the files, their locks and the invitations. Needs epoll: a link has two descriptors.

    PATH_uplink             the listener's: reads invitations
    PATH_downlink<suffix>   the connecting side's: reads what the listener's side sends
    PATH_uplink<suffix>     the listener's side's: reads what the connecting side sends

Invitation = DE AD BE EF, then the suffix (u32, native order). The connecting side writes it to
PATH_uplink, the listener answers with it in the downlink, the connecting side confirms with it in
the uplink; the stream follows. The reader of a pipe creates it, holds a lock on it and removes it.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import select
import stat
import struct
import threading
from contextlib import suppress
from itertools import islice

from zenlake import filelock
from zenlake.errors import LinkError
from zenlake.link.base import READ_BYTES, Listener, Progress, TransportLink
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import Address, failed, parse_size
from zenlake.wire.framing import Framing
from zenlake.wire.locator import EndPoint, Locator

log = logging.getLogger(__name__)

PROTOCOL = "unixpipe"
MAGIC = bytes.fromhex("deadbeef")
INVITATION = struct.Struct("=4sI")
MAX_SUFFIX = 0xFFFFFFFF
SUFFIX_TRIES = 100  # As Rust: attempts to find a suffix whose files do not exist.
INVITATIONS_PER_ACCEPT = 64  # Invitations without a peer that one accept() passes over.
FILE_MASK = 0o777  # Mode of the files, less the umask; Rust's default.
MAX_ENTRIES = 20_000  # Directory entries among which listen() looks for pipes of ended processes.
REQUEST_BYTES = 4096  # Bytes of invitations read at once; PIPE_BUF keeps each of them whole.


class _ReadEnd:
    """Named pipe that this process created, locked and reads. Has a writing end of its own, so
    that it never ends."""

    def __init__(self, path: str, mode: int, *, new: bool) -> None:
        """Create the pipe. `new`: FileExistsError if there is one. OSError: it cannot be had."""
        self.path, self._owner = path, os.getpid()
        try:
            os.mkfifo(path, mode)
        except FileExistsError:
            if new:
                raise
        self.fd = _open(path, os.O_RDWR)
        try:
            if not filelock.lock(self.fd):
                raise OSError(errno.EADDRINUSE, f"{path} is locked by a live node")
            with suppress(BlockingIOError):  # Left by a process that is gone.
                while os.read(self.fd, READ_BYTES):
                    pass
        except BaseException:
            os.close(self.fd)
            raise

    def close(self) -> None:
        if self.fd >= 0:
            if self._owner == os.getpid():  # A forked process has only a copy.
                with suppress(FileNotFoundError):
                    os.unlink(self.path)  # noqa: PTH108 - paths of endpoints are text here
            os.close(self.fd)
            self.fd = -1


def _open(path: str, flags: int) -> int:
    """Open a pipe; OSError if the path is anything else."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EEXIST, f"{path} is a file but not a pipe: move it, or choose another")
    return fd


def _open_write(path: str) -> int:
    """Open a pipe for writing; OSError if no live node reads it."""
    fd = _open(path, os.O_WRONLY)
    if filelock.lock(fd):
        os.close(fd)
        raise OSError(errno.ECONNREFUSED, f"{path} has no reader")
    return fd


class PipeLink(TransportLink):
    """Two pipes. `fileno()` is an epoll on both of them: readable where drive() has work."""

    protocol = address = PROTOCOL
    framing = Framing.STREAM
    reliable = True
    driven = True

    def __init__(
        self, name: str, local: Locator, remote: Locator, suffix: int, reads: _ReadEnd, writes: str
    ) -> None:
        """`writes`: path of the pipe to the peer, which the connecting side opens when invited."""
        self.name, self.local, self.remote = name, local, remote
        self._invitation = INVITATION.pack(MAGIC, suffix)
        self._reads, self._writes, self._fd = reads, writes, -1
        self._greeting = b""
        self._linked = self._ended = self._readable = False
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._poll = select.epoll()
        self._poll.register(reads.fd, select.EPOLLIN)

    def fileno(self) -> int:
        return -1 if self._poll.closed else self._poll.fileno()

    def open_write(self) -> None:
        """Open the pipe to the peer and write the invitation there. OSError: no peer reads it."""
        self._fd = _open_write(self._writes)
        self._poll.register(self._fd, 0)  # EPOLLERR is always told: the reader is gone.
        os.write(self._fd, self._invitation)

    def handshake(self) -> Progress:
        with self._sending, self._receiving:
            if self._linked:
                return Progress.DONE
            if self._poll.closed:
                raise failed(self.name, "connect", OSError(errno.EBADF, "closed"))
            self._greeting += self._read(INVITATION.size - len(self._greeting)) or b""
            if len(self._greeting) < INVITATION.size:
                if self._ended:
                    raise LinkError(f"{self.name}: the peer went away during the handshake")
                return Progress.WANT_READ
            if self._greeting != self._invitation:
                raise LinkError(f"{self.name}: the peer answered another invitation")
            if self._fd < 0:
                try:
                    self.open_write()
                except OSError as error:
                    raise failed(self.name, "connect", error) from None
            self._linked = True
            return Progress.DONE

    def _read(self, size: int) -> bytes | None:
        try:
            return os.read(self._reads.fd, size)
        except BlockingIOError:
            if self._readable:
                self._readable = False
                self._poll.modify(self._reads.fd, select.EPOLLIN)
            return None

    def drive(self) -> None:
        with self._sending, self._receiving:
            if self._poll.closed:
                return
            for fd, events in self._poll.poll(0):
                if fd == self._reads.fd:  # Not told again until a read finds the pipe empty.
                    self._readable = True
                    self._poll.modify(fd, 0)
                elif events & select.EPOLLERR:
                    self._ended = True
                    self._poll.unregister(fd)
                else:
                    self._poll.modify(fd, 0)

    def receive(self) -> bytes | None:
        with self._receiving:
            ended = self._ended  # Known before the read: its last bytes are in the pipe by now.
            try:
                data = self._read(READ_BYTES)
            except OSError as error:
                raise failed(self.name, "receive", error) from None
            return b"" if data is None and ended else data

    @property
    def more(self) -> bool:
        return self._readable or self._ended

    def send(self, data: bytes | bytearray | memoryview) -> int:
        with self._sending:
            if self._poll.closed:
                raise failed(self.name, "send", OSError(errno.EBADF, "closed"))
            if not self._linked:
                return 0
            try:
                taken = os.write(self._fd, data)
            except BlockingIOError:
                taken = 0
            except OSError as error:
                raise failed(self.name, "send", error) from None
            if taken < len(data) and not self._ended:
                self._poll.modify(self._fd, select.EPOLLOUT)
            return taken

    def close(self) -> None:
        with self._sending, self._receiving:
            self._poll.close()
            self._reads.close()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


class PipeListener(Listener):
    """Listener on the pipe of invitations."""

    def __init__(self, endpoint: EndPoint, requests: _ReadEnd, mode: int) -> None:
        self.name = endpoint
        self.locators = (endpoint.locator,)
        self._requests, self._mode = requests, mode
        self._received = bytearray()
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._requests.fd

    def accept(self) -> TransportLink | None:
        with self._lock:
            for _ in range(INVITATIONS_PER_ACCEPT):
                suffix = self._next_suffix()
                if suffix is None:
                    return None
                with suppress(OSError):  # The peer is gone, or has never been.
                    return self._link(suffix)
            return None

    def _next_suffix(self) -> int | None:
        """Return the suffix of the next invitation; bytes that are none are passed over."""
        if len(self._received) < INVITATION.size:
            try:
                self._received += os.read(self._requests.fd, REQUEST_BYTES)
            except BlockingIOError:
                return None
            except OSError as error:
                raise failed(self.name, "accept", error) from None
        start = self._received.find(MAGIC)
        del self._received[: start if start >= 0 else max(0, len(self._received) - len(MAGIC) + 1)]
        if start < 0 or len(self._received) < INVITATION.size:
            return None
        suffix: int = INVITATION.unpack_from(self._received)[1]
        del self._received[: INVITATION.size]
        return suffix

    def _link(self, suffix: int) -> PipeLink:
        down, up = _paths(self.name.address, suffix)
        reads = _ReadEnd(up, self._mode, new=False)
        remote = Locator(f"{PROTOCOL}/{down}")
        link = PipeLink(
            f"{remote} at {self.locators[0]}", self.locators[0], remote, suffix, reads, down
        )
        try:
            link.open_write()
        except OSError:
            link.close()
            raise
        return link

    def close(self) -> None:
        with self._lock:
            self._requests.close()


def _paths(path: str, suffix: int | str = "") -> tuple[str, str]:
    return f"{path}_downlink{suffix}", f"{path}_uplink{suffix}"


def _check(endpoint: EndPoint) -> int:
    """Return the mode of the files; LinkError if this system or the path does not do."""
    if not hasattr(select, "epoll"):
        raise LinkError(f"{endpoint}: named pipes need epoll, which only Linux has: use tcp")
    Locator(f"{PROTOCOL}/{_paths(endpoint.address, MAX_SUFFIX)[0]}")  # Its length has a limit.
    mask = endpoint.config.get("file_mask", str(FILE_MASK))
    return parse_size(endpoint, "file_mask", mask, FILE_MASK)


def resolve(endpoint: EndPoint) -> list[Address]:
    return [Address(0, endpoint.address)]


def connect(endpoint: EndPoint, address: Address, options: LinkOptions) -> PipeLink:
    mode, path = _check(endpoint), endpoint.address
    try:
        requests = _open_write(_paths(path)[1])
    except OSError as error:
        if error.errno == errno.ENXIO:  # The pipe of a process that is gone.
            error = OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        raise failed(endpoint, "connect", error) from None
    try:
        suffix, reads = _reserve(path, mode)
        down, up = _paths(path, suffix)
        local = Locator(f"{PROTOCOL}/{down}")
        link = PipeLink(endpoint, local, endpoint.locator, suffix, reads, up)
        try:
            os.write(requests, INVITATION.pack(MAGIC, suffix))
        except OSError:
            link.close()
            raise
        return link
    except OSError as error:
        raise failed(endpoint, "connect", error) from None
    finally:
        os.close(requests)


def _reserve(path: str, mode: int) -> tuple[int, _ReadEnd]:
    """Return a suffix that no other link has, and the new pipe to read."""
    for _ in range(SUFFIX_TRIES):
        suffix = secrets.randbits(32)
        down, up = _paths(path, suffix)
        if not os.path.lexists(up):
            with suppress(FileExistsError):
                return suffix, _ReadEnd(down, mode, new=True)
    raise OSError(errno.EEXIST, f"{SUFFIX_TRIES} names beside {path} are taken: remove old pipes")


def listen(endpoint: EndPoint, options: LinkOptions) -> PipeListener:
    mode = _check(endpoint)
    try:
        requests = _ReadEnd(_paths(endpoint.address)[1], mode, new=False)
    except OSError as error:
        raise failed(endpoint, "listen", error) from None
    with suppress(OSError):
        _remove_stale(endpoint, requests)
    return PipeListener(endpoint, requests, mode)


def _remove_stale(endpoint: EndPoint, requests: _ReadEnd) -> None:
    """Remove pipes of links whose reader was killed: they are not locked.

    A pipe that is younger than the lock of this listener is left: a peer may be about to lock it.
    OSError: the directory cannot be read.
    """
    os.utime(requests.fd)
    locked_at = os.fstat(requests.fd).st_mtime_ns
    folder, name = os.path.split(endpoint.address)
    pattern = re.compile(rf"{re.escape(name)}_(?:down|up)link([0-9]{{1,10}})")
    with os.scandir(folder or ".") as entries:
        for entry in islice(entries, MAX_ENTRIES):
            found = pattern.fullmatch(entry.name)
            if found is not None and int(found[1]) <= MAX_SUFFIX:
                with suppress(OSError):  # Not a pipe, or not this user's.
                    _remove_unlocked(entry.path, locked_at)


def _remove_unlocked(path: str, before: int) -> None:
    fd = _open(path, os.O_RDWR)
    try:
        if os.fstat(fd).st_mtime_ns < before and filelock.lock(fd):
            os.unlink(path)  # noqa: PTH108 - paths of endpoints are text here
            log.info("removed %s, whose reader is gone", path)
    finally:
        os.close(fd)
