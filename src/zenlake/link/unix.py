"""unixsock-stream/PATH: a stream over a socket file.

The owner of a socket file is the process that holds the lock on PATH.lock, as with Rust nodes.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import uuid
from pathlib import Path

from zenlake import filelock
from zenlake.errors import LinkError
from zenlake.link import sockets
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import Address, StreamLink, StreamListener, failed
from zenlake.wire.locator import EndPoint, Locator

PROTOCOL = "unixsock-stream"
LOCK_TRIES = 16  # how often a lock file may be taken away by its last owner while we open it


class UnixLink(StreamLink):
    """Unix connection. Only the listener's end has a path; the other end gets a unique name."""

    def __init__(self, sock: socket.socket, local: str, remote: str, name: str = "") -> None:
        ends = Locator(f"{PROTOCOL}/{local}"), Locator(f"{PROTOCOL}/{remote}")
        super().__init__(sock, name or f"{ends[1]} at {ends[0]}", *ends, PROTOCOL)
        self._connected = not name


class UnixListener(StreamListener):
    """Listener that owns its socket file, and removes it when closed."""

    def __init__(self, sock: socket.socket, endpoint: EndPoint, lock: int) -> None:
        path = endpoint.address
        super().__init__(
            sock,
            endpoint,
            (endpoint.locator,),
            lambda accepted, _: UnixLink(accepted, path, str(uuid.uuid4())),
        )
        self._path, self._file_lock = Path(path), lock
        self._owner = os.getpid()

    def close(self) -> None:
        super().close()
        with self._lock:
            if self._file_lock >= 0:
                if self._owner == os.getpid():  # A forked process has only a copy.
                    self._path.unlink(missing_ok=True)
                    _lock_path(self._path).unlink(missing_ok=True)
                os.close(self._file_lock)
                self._file_lock = -1


def resolve(endpoint: EndPoint) -> list[Address]:
    return [Address(_family(endpoint), endpoint.address)]


def _family(endpoint: EndPoint) -> int:
    if sockets.AF_UNIX < 0:
        raise LinkError(f"{endpoint}: this system has no Unix sockets: use tcp")
    return sockets.AF_UNIX


def connect(endpoint: EndPoint, address: Address, options: LinkOptions) -> UnixLink:
    sock = sockets.connect(endpoint, address)
    return UnixLink(sock, str(uuid.uuid4()), address.sockaddr, endpoint)


def listen(endpoint: EndPoint, options: LinkOptions) -> UnixListener:
    family, path = _family(endpoint), Path(endpoint.address)
    lock = _take_lock(endpoint, _lock_path(path))
    try:
        _remove_stale(endpoint, path)
        sock = sockets.new_socket(endpoint, family, socket.SOCK_STREAM)
        try:
            sock.bind(str(path))
            sock.listen(sockets.BACKLOG)
            return UnixListener(sock, endpoint, lock)
        except OSError as error:
            sock.close()
            raise failed(endpoint, "listen", error) from None
    except BaseException:
        _lock_path(path).unlink(missing_ok=True)
        os.close(lock)
        raise


def _lock_path(path: Path) -> Path:
    return Path(f"{path}.lock")


def _take_lock(endpoint: EndPoint, path: Path) -> int:
    """The descriptor that holds the lock; the kernel frees it if this process dies."""
    for _ in range(LOCK_TRIES):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
        except OSError as error:
            raise failed(endpoint, f"open the lock file {path}", error) from None
        try:
            if not filelock.lock(lock):
                os.close(lock)
                break
            if path.exists() and os.path.samestat(path.stat(), os.fstat(lock)):
                return lock
        except OSError as error:
            os.close(lock)
            raise failed(endpoint, f"lock {path}", error) from None
        os.close(lock)
    raise failed(endpoint, "listen", OSError(errno.EADDRINUSE, f"{path} is locked by a live node"))


def _remove_stale(endpoint: EndPoint, path: Path) -> None:
    """Remove the socket file of a dead process; LinkError if the path is anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise failed(endpoint, "listen", error) from None
    if not stat.S_ISSOCK(mode):
        raise LinkError(
            f"{endpoint}: {path} is a file but not a socket: move it, or choose another"
        )
    with socket.socket(sockets.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        code = probe.connect_ex(str(path))
    if code in (0, errno.EAGAIN):
        raise failed(endpoint, "listen", OSError(errno.EADDRINUSE, f"{path} is in use"))
    path.unlink(missing_ok=True)
