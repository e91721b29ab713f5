"""Polling: waiting for descriptors on any system, and waking a thread that waits.

Knows epoll, which is the fast case, and the standard library's selectors for systems without it.
Does not know what a descriptor is for.
"""

import os
import select
import selectors
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from errno import EBADF, ENOTSOCK
from functools import partial
from typing import Any, Protocol

from zenlake.errors import LinkError, ZError

SELECTOR_VARIABLE = "ZENLAKE_SELECTOR"
"Environment variable that names the poller of every I/O thread."

READ, WRITE = 0x01, 0x04  # Bits of a mask: those of epoll, whose events need no translation.
BROKEN = 0x08 | 0x10  # EPOLLERR, EPOLLHUP.
FD_SETSIZE = 1024  # Descriptors that POSIX systems let select() watch: 0 to 1023.
WINDOWS_SOCKETS = 512  # Sockets that Python lets select() watch on Windows.
SOURCE_IS_CLOSED = {EBADF, ENOTSOCK}  # Errors of a wait; the second one is that of Windows.
WAKE_BYTES = 4096  # Bytes taken from a waker at once; it seldom holds more than one.


class PollSource(Protocol):
    """An object that a poller can watch."""

    def fileno(self) -> int: ...


class Poller(Protocol):
    """The methods of `select.epoll` that the reactor calls. Masks are of READ and WRITE."""

    def register(self, fd: int, mask: int) -> None: ...
    def modify(self, fd: int, mask: int) -> None: ...
    def unregister(self, fd: int) -> None: ...
    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...


class SelectorPoller:
    """Poller on a selector of the standard library.

    A wait that has begun does not see later changes of what to watch, so the reactor wakes it.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector

    def register(self, fd: int, mask: int) -> None:
        self._selector.register(fd, _EVENTS[mask])

    def modify(self, fd: int, mask: int) -> None:
        self._selector.modify(fd, _EVENTS[mask])

    def unregister(self, fd: int) -> None:
        self._selector.unregister(fd)

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        try:
            found = self._selector.select(timeout)
        except OSError as error:
            if error.errno not in SOURCE_IS_CLOSED:
                raise
            return []  # Another thread forgot and closed a source just before the wait began.
        return [(key.fd, _MASKS[events]) for key, events in found[:most]]

    def close(self) -> None:
        self._selector.close()

    def fileno(self) -> int:
        """Return the selector's own descriptor; -1: it has none."""
        own: Callable[[], int] | None = getattr(self._selector, "fileno", None)
        return -1 if own is None else own()


class SelectPoller(SelectorPoller):
    """Poller on select(), which watches few descriptors; a refusal says so."""

    def __init__(self) -> None:
        super().__init__(selectors.SelectSelector())

    def register(self, fd: int, mask: int) -> None:
        on_windows = os.name == "nt"
        watched = len(self._selector.get_map())
        if watched >= WINDOWS_SOCKETS if on_windows else fd >= FD_SETSIZE:
            limit = (
                f"{WINDOWS_SOCKETS} sockets"
                if on_windows
                else f"descriptors below {FD_SETSIZE} (FD_SETSIZE), and this one is {fd}"
            )
            others = " or ".join(name for name in POLLERS if name != "select")
            advice = f"set {SELECTOR_VARIABLE} to {others}, or " if others else ""
            raise LinkError(f"select() watches only {limit}: {advice}open fewer links and files")
        super().register(fd, mask)


_EVENTS = {
    READ: selectors.EVENT_READ,
    WRITE: selectors.EVENT_WRITE,
    READ | WRITE: selectors.EVENT_READ | selectors.EVENT_WRITE,
}
_MASKS = {events: mask for mask, events in _EVENTS.items()}


def _make_selector_poller(kind: type[selectors.BaseSelector]) -> SelectorPoller:
    return SelectorPoller(kind())


def _make_pollers() -> dict[str, Callable[[], Any]]:
    """Return the pollers of this system by name, the best one first."""
    found: dict[str, Callable[[], Any]] = {}
    if hasattr(select, "epoll"):
        found["epoll"] = select.epoll
    for name, kind in (("kqueue", "KqueueSelector"), ("poll", "PollSelector")):
        selector = getattr(selectors, kind, None)
        if selector is not None:
            found[name] = partial(_make_selector_poller, selector)
    found["select"] = SelectPoller
    return found


POLLERS = _make_pollers()


def make_poller(name: str | None = None) -> Poller:
    """Return the poller `name`, else that of ZENLAKE_SELECTOR, else the best one of this system.

    ZError: this system has no such poller.
    """
    chosen = name or os.environ.get(SELECTOR_VARIABLE) or next(iter(POLLERS))
    if chosen not in POLLERS:
        raise ZError(
            f"{SELECTOR_VARIABLE}: {chosen!r} is not a selector of this system: "
            f"use one of {', '.join(POLLERS)}"
        )
    poller: Poller = POLLERS[chosen]()
    return poller


class SocketWaker:
    """Descriptor that becomes readable when any thread calls `wake`: a pair of sockets."""

    def __init__(self) -> None:
        self._hearing, self._sending = _make_socket_pair()
        self._hearing.setblocking(False)
        self._sending.setblocking(False)
        with suppress(OSError):  # Unix sockets have no such option, and no delay.
            self._sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self._hearing.fileno()

    def descriptors(self) -> tuple[int, ...]:
        return self._hearing.fileno(), self._sending.fileno()

    def wake(self) -> None:
        with suppress(BlockingIOError):  # So many bytes wait that the thread wakes anyway.
            self._sending.send(b"\0")

    def drain(self) -> None:
        """Make the descriptor unreadable again, on the thread that was woken."""
        with suppress(BlockingIOError):
            self._hearing.recv(WAKE_BYTES)

    def close(self) -> None:
        self._hearing.close()
        self._sending.close()


def _make_socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets; of TCP where the system has no pairs of Unix sockets."""
    with suppress(OSError):
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener, ExitStack() as unless_made:
        sending = unless_made.enter_context(socket.create_connection(listener.getsockname()))
        while True:  # Another process of this machine may connect first.
            hearing, address = listener.accept()
            if address == sending.getsockname():
                unless_made.pop_all()
                return hearing, sending
            hearing.close()


class EventWaker:
    """A `SocketWaker` in one descriptor and a third of its time: an eventfd."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def descriptors(self) -> tuple[int, ...]:
        return (self._fd,)

    def wake(self) -> None:
        os.eventfd_write(self._fd, 1)

    def drain(self) -> None:
        """Make the descriptor unreadable again, on the thread that was woken."""
        os.eventfd_read(self._fd)

    def close(self) -> None:
        os.close(self._fd)


Waker = SocketWaker | EventWaker


def make_waker() -> Waker:
    """Return the fastest waker of this system."""
    return EventWaker() if hasattr(os, "eventfd") else SocketWaker()


def wait_readable(sources: Iterable[int | PollSource], seconds: float) -> bool:
    """Wait up to `seconds` until a source is readable; return whether one is. None: no wait."""
    kind = getattr(selectors, "PollSelector", selectors.SelectSelector)
    with kind() as selector:
        for source in sources:
            selector.register(source, selectors.EVENT_READ)
        return bool(selector.get_map() and selector.select(seconds))
