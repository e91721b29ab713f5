"""The reactor on each poller of this system: what it sees, what wakes it, and its limits."""

import fcntl
import os
import resource
import select
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from errno import EBADF, ENOMEM, ENOTSOCK
from pathlib import Path

import pytest

from tests.golden.proxy import free_port
from tests.support.certificates import Authority
from tests.support.reference_peer import ReferenceProcess, fingerprint, payload
from tests.support.runtime_nodes import ANYWHERE, make_node
from tests.support.waiting import until, until_found
from zenlake import Config, CongestionControl, Session
from zenlake import open as open_session
from zenlake.errors import LinkError, SessionRefused, ZError
from zenlake.runtime.polling import (
    BROKEN,
    FD_SETSIZE,
    READ,
    SELECTOR_VARIABLE,
    WRITE,
    EventWaker,
    SelectorPoller,
    SocketWaker,
    make_poller,
    wait_readable,
)
from zenlake.runtime.reactor import Reactor

PATIENCE = 60.0
SELECTORS = ["epoll", "poll", "select"]


@pytest.fixture(params=SELECTORS)
def selector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(SELECTOR_VARIABLE, request.param)
    return str(request.param)


@pytest.fixture
def loop(selector: str) -> Iterator[Reactor]:
    reactor = Reactor()
    reactor.start()
    with ExitStack() as stack:
        stack.callback(reactor.stop)
        yield reactor


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    with ends[0], ends[1]:
        for end in ends:
            end.setblocking(False)
        yield ends


def test_masks_are_those_of_epoll() -> None:
    assert (READ, WRITE) == (select.EPOLLIN, select.EPOLLOUT)
    assert BROKEN == select.EPOLLERR | select.EPOLLHUP


def test_the_best_poller_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SELECTOR_VARIABLE, raising=False)
    with closing(make_poller()) as poller:
        assert isinstance(poller, select.epoll)


def test_an_unknown_selector_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SELECTOR_VARIABLE, "kpoll")
    with pytest.raises(ZError, match=r"ZENLAKE_SELECTOR: 'kpoll' .*use one of epoll, poll, select"):
        Reactor()


def test_a_source_watched_during_a_wait_is_seen(
    loop: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    """The thread sleeps without a timer; only a wake-up lets it see the new source."""
    here, there = pair
    seen: list[tuple[bool, bool]] = []
    heard = threading.Event()

    def ready(readable: bool, writable: bool) -> None:
        seen.append((readable, writable))
        if readable:
            here.recv(100)
        else:
            loop.change(here, read=True, write=False)
        heard.set()

    until(lambda: loop._asleep)
    loop.watch(here, ready, read=False, write=True)
    assert heard.wait(PATIENCE)
    assert seen[0] == (False, True)
    heard.clear()
    there.send(b"x")
    assert heard.wait(PATIENCE)
    until(lambda: loop._asleep)
    assert seen[-1] == (True, False)
    heard.clear()
    loop.change(here, read=False, write=True)
    assert heard.wait(PATIENCE)
    loop.forget(here)


def test_a_hang_up_is_seen(loop: Reactor, pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    heard = threading.Event()

    def ready(readable: bool, writable: bool) -> None:
        if readable and here.recv(100) == b"":
            loop.forget(here)
            heard.set()

    loop.watch(here, ready, read=True, write=False)
    there.close()
    assert heard.wait(PATIENCE)


def test_sources_forgotten_and_closed_on_another_thread_do_no_harm(loop: Reactor) -> None:
    for _ in range(200):
        here, there = socket.socketpair()
        with here, there:
            loop.watch(here, lambda readable, writable: None, read=True, write=False)
            there.send(b"x")
            loop.forget(here)
    called = threading.Event()
    loop.call_soon(called.set)
    assert called.wait(PATIENCE)


@pytest.mark.parametrize("waker", [EventWaker, SocketWaker])
def test_a_waker_wakes_once_for_many_calls(waker: type[EventWaker | SocketWaker]) -> None:
    with closing(waker()) as made:
        assert not wait_readable([made], 0)
        for _ in range(1000):
            made.wake()
        assert wait_readable([made], PATIENCE)
        made.drain()
        assert not wait_readable([made], 0)


def test_sessions_work_with_a_pair_of_sockets_as_waker(
    loop: Reactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "eventfd")
    other = Reactor()
    other.start()
    with ExitStack() as stack:
        stack.callback(other.stop)
        assert isinstance(other._waker, SocketWaker)
        until(lambda: other._asleep)
        called = threading.Event()
        other.call_soon(called.set)
        assert called.wait(PATIENCE)


def test_a_waker_needs_no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")  # socketpair() takes another family, and fails.
    with closing(SocketWaker()) as waker:
        waker.wake()
        assert wait_readable([waker], PATIENCE)
        waker.drain()
        assert not wait_readable([waker], 0)


class _FailingSelector(selectors.SelectSelector):
    """Selector whose waits fail with one error."""

    code = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize("code", [EBADF, ENOTSOCK])
def test_a_wait_survives_a_source_that_was_closed(code: int) -> None:
    with closing(SelectorPoller(_FailingSelector())) as poller:
        _FailingSelector.code = code
        assert poller.poll(0, 1) == []
        _FailingSelector.code = ENOMEM
        with pytest.raises(OSError, match="memory"):
            poller.poll(0, 1)


# ---- the limit of select()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Take all descriptors below FD_SETSIZE, so that the next ones are above it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4 * FD_SETSIZE, before[1]), before[1]))
    taken: list[int] = []
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        while not taken or taken[-1] < FD_SETSIZE:
            taken.append(fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, 0))
        yield
    finally:
        for fd in [*taken, null]:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_select_says_that_it_watches_few_descriptors(
    many_descriptors: None,
) -> None:
    here, there = socket.socketpair()
    with here, there, closing(make_poller("select")) as poller:
        said = r"below 1024 \(FD_SETSIZE\).*set ZENLAKE_SELECTOR to epoll or poll"
        with pytest.raises(LinkError, match=said):
            poller.register(here.fileno(), READ)


def test_waiting_for_answers_has_no_such_limit(many_descriptors: None) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.send(b"x")
        assert here.fileno() >= FD_SETSIZE
        assert wait_readable([here], PATIENCE)


@pytest.mark.slow
def test_a_link_beyond_the_limit_ends_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv(SELECTOR_VARIABLE, "select")
    with make_node() as listening, make_node() as node:
        (locator,) = listening.listen(ANYWHERE)
        (listener,) = listening._listeners
        until(lambda: listener.fileno() in listening.reactor._ready)  # type: ignore[attr-defined]
        request.getfixturevalue("many_descriptors")
        with pytest.raises(SessionRefused, match="FD_SETSIZE"):
            node.connect(locator)
        assert not node.pending
        until(lambda: not listening.pending)


# ---- sessions


def _config(**keys: str) -> Config:
    config = Config()
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("listen/endpoints", "[]")
    for key, value in keys.items():
        config.insert_json5(key.replace("__", "/"), value)
    return config


LARGE = 300_000  # Bytes: more than a socket takes at once, so that the link has to be writable.
DATAGRAMS = 30_000  # Bytes in fragments that a socket of datagrams holds: it loses what is more.


def _exchange(first: Session, second: Session, size: int = LARGE) -> None:
    """Put and get, from `first` to `second`."""
    subscriber = second.declare_subscriber("polled/put")
    queryable = second.declare_queryable(
        "polled/get", lambda query: query.reply("polled/get", "answer")
    )
    publisher = first.declare_publisher("polled/put")
    until(lambda: publisher.matching_status.matching)
    publisher.put("x" * size)
    publisher.put("end")
    assert [len(str(subscriber.recv().payload)) for _ in range(2)] == [size, 3]

    def answers() -> list[str]:
        return [str(reply.ok.payload) for reply in first.get("polled/get") if reply.ok]

    until(answers, lambda found: found == ["answer"])
    queryable.undeclare()
    subscriber.undeclare()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["tcp", "tls", "udp", "unixsock-stream", "ws"])
def test_sessions_on_every_link(selector: str, protocol: str, tmp_path: Path) -> None:
    at = f"{protocol}/127.0.0.1:{free_port()}"
    keys = {}
    if protocol == "unixsock-stream":
        at = f"{protocol}/{tmp_path}/s"
    if protocol == "tls":
        authority = Authority(tmp_path)
        server = authority.server()
        keys = {
            "transport__link__tls__root_ca_certificate": f'"{authority.certificate}"',
            "transport__link__tls__listen_private_key": f'"{server.key}"',
            "transport__link__tls__listen_certificate": f'"{server.certificate}"',
        }
    with (
        open_session(_config(listen__endpoints=f'["{at}"]', **keys)) as listening,
        open_session(_config(connect__endpoints=f'["{at}"]', **keys)) as connected,
    ):
        size = DATAGRAMS if protocol == "udp" else LARGE
        _exchange(connected, listening, size)
        _exchange(listening, connected, size)


@pytest.mark.interop
@pytest.mark.process
def test_sessions_with_eclipse_zenoh(selector: str) -> None:
    at = f"tcp/127.0.0.1:{free_port()}"
    with (
        open_session(_config(listen__endpoints=f'["{at}"]')) as session,
        ReferenceProcess() as process,
    ):
        subscriber = session.declare_subscriber("polled/from")
        reference = process.open("peer", {"connect/endpoints": [at]})
        reference.subscribe("polled/to")
        block = CongestionControl.BLOCK  # By default a busy sender may drop.
        publisher = session.declare_publisher("polled/to", congestion_control=block)
        until(lambda: publisher.matching_status.matching)
        until(lambda: reference.matching("polled/from"))
        sizes = [8, 300_000, 1]
        reference.put("polled/from", sizes, congestion_control=block.name)
        received = [until_found(subscriber.try_recv).payload.to_bytes() for _ in sizes]
        assert received == [payload(index, size) for index, size in enumerate(sizes)]
        for data in received:
            publisher.put(data)
        until(reference.count, lambda count: count == len(sizes))
        found = [sample["payload"] for sample in reference.samples()]
        assert found == [fingerprint(data) for data in received]
        reference.close()
