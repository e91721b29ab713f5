"""TCP links, and what all socket links share: addresses, options, errors, protocols."""

import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.support.link_contract import KINDS, Stage
from zenlake import link as links
from zenlake.errors import InvalidLocator, LinkError
from zenlake.link import sockets, tcp
from zenlake.link.base import Listener, Progress, TransportLink
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import StreamListener
from zenlake.wire.locator import EndPoint, Locator

OPTIONS = LinkOptions()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(KINDS["tcp"], tmp_path)
    yield stage
    stage.close()


def option_of(link: TransportLink, level: int, option: int) -> int:
    with socket.socket(fileno=os.dup(link.fileno())) as sock:
        return sock.getsockopt(level, option)


def with_config(listener_at: str, config: str) -> EndPoint:
    return EndPoint(f"{listener_at}#{config}")


# --- protocols


def test_an_unknown_protocol_is_refused_with_the_known_ones() -> None:
    where = EndPoint("carrier-pigeon/loft:1")
    for act in (
        lambda: links.resolve(where),
        lambda: links.connect(where, sockets.Address(socket.AF_INET, ("127.0.0.1", 1)), OPTIONS),
        lambda: links.listen(where, OPTIONS),
    ):
        with pytest.raises(LinkError, match="'carrier-pigeon'") as refused:
            act()
        for known in ("tcp", "tls", "udp", "unixsock-stream", "ws"):
            assert known in str(refused.value)


@pytest.mark.process
def test_a_protocol_is_loaded_when_it_is_used() -> None:
    program = "import sys, zenlake.link; print('ssl' in sys.modules, 'websockets' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "False False\n"


# --- addresses


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("127.0.0.1:7447", ("127.0.0.1", 7447)),
        ("[::1]:0", ("::1", 0)),
        ("[fe80::1%lo]:65535", ("fe80::1%lo", 65535)),
        ("a.host:1", ("a.host", 1)),
    ],
)
def test_host_and_port(text: str, pair: tuple[str, int]) -> None:
    assert sockets.split_host(EndPoint(f"tcp/{text}"), text) == pair


@pytest.mark.parametrize("text", ["here", ":1", "h:", "h:65536", "h:-1", "h:x", "::1:7447", "h:²"])
def test_what_is_not_host_and_port_is_refused_by_name(text: str) -> None:
    where = EndPoint(f"tcp/{text}")
    with pytest.raises(InvalidLocator) as refused:
        links.resolve(where)
    assert str(where) in str(refused.value)


@pytest.mark.parametrize(
    ("sockaddr", "text"),
    [
        (("127.0.0.1", 1), "tcp/127.0.0.1:1"),
        (("::1", 1, 0, 0), "tcp/[::1]:1"),
        (("::ffff:127.0.0.1", 1, 0, 0), "tcp/127.0.0.1:1"),
        (("fe80::1", 1, 0, 7), "tcp/[fe80::1%7]:1"),
        (("fe80::1%lo", 1, 0, 7), "tcp/[fe80::1%lo]:1"),
    ],
)
def test_locators_of_sockets(sockaddr: tuple[Any, ...], text: str) -> None:
    assert sockets.sockaddr_locator("tcp", sockaddr) == text


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(LinkError, match=r"tcp/no\.such:1.*Name or service not known"):
        links.resolve(EndPoint("tcp/no.such:1"))


def test_a_name_has_all_its_addresses_and_the_first_that_works_is_listened_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def two(*_: Any, **__: Any) -> list[tuple[Any, ...]]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0))
            for host in ("192.0.2.77", "127.0.0.1")  # no host has the first
        ]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    where = EndPoint("tcp/two.names:0")
    assert [a.sockaddr[0] for a in links.resolve(where)] == ["192.0.2.77", "127.0.0.1"]
    with closing(links.listen(where, OPTIONS)) as listener:
        assert isinstance(listener, Listener)
        assert listener.locators[0].startswith("tcp/127.0.0.1:")


def test_a_multicast_group_is_no_peer() -> None:
    with pytest.raises(LinkError, match=r"tcp/224\.0\.0\.224:7446.*put udp/224\.0\.0\.224:7446"):
        links.resolve(EndPoint("tcp/224.0.0.224:7446"))


def test_an_address_of_another_machine_cannot_be_listened_at() -> None:
    with pytest.raises(LinkError, match=r"tcp/192\.0\.2\.77:0.*no interface") as refused:
        links.listen(EndPoint("tcp/192.0.2.77:0"), OPTIONS)
    assert refused.value.errno == errno.EADDRNOTAVAIL


def test_the_loopback_interface_is_found() -> None:
    hosts = {i.host for i in sockets.interfaces("lo")}
    assert "127.0.0.1" in hosts
    assert {i.name for i in sockets.interfaces("lo")} == {"lo"}
    assert hosts <= {i.host for i in sockets.interfaces()}
    assert sockets.interfaces("no-such-one") == []


@pytest.mark.parametrize(
    ("endpoint", "hosts"),
    [
        ("tcp/0.0.0.0:0", {"127.0.0.1"}),
        ("tcp/[::]:0", {"127.0.0.1", "[::1]"}),
        ("tcp/[::]:0#iface=lo", {"127.0.0.1", "[::1]"}),
    ],
)
def test_a_wildcard_has_the_address_of_each_interface(
    stage: Stage, endpoint: str, hosts: set[str]
) -> None:
    listener = stage.listen(EndPoint(endpoint))
    by_host = {locator.address.rpartition(":")[0]: locator for locator in listener.locators}
    assert hosts <= set(by_host)
    if "iface" in endpoint:
        assert hosts == set(by_host)
    assert not any(host in by_host for host in ("0.0.0.0", "[::]"))
    assert not any(host.startswith("[fe80") for host in by_host)
    assert len({locator.rpartition(":")[2] for locator in listener.locators}) == 1
    for host in hosts:
        connected = stage.connect(by_host[host])
        accepted = stage.accept(listener)
        assert stage.carry(connected, accepted, b"in") == b"in"
        assert accepted.address == host.strip("[]")  # IPv4 over an IPv6 socket too
        assert accepted.local == connected.remote == by_host[host]
        assert accepted.remote == connected.local


def test_locators_keep_their_metadata(stage: Stage) -> None:
    listener = stage.listen(EndPoint("tcp/127.0.0.1:0?prio=1-3#so_sndbuf=65536"))
    (locator,) = listener.locators
    assert isinstance(locator, Locator)
    assert locator.metadata == {"prio": "1-3"}
    assert sockets.resolve(locator)[0].sockaddr[1] > 0


# --- options


def test_batches_leave_at_once(stage: Stage) -> None:
    _, connected, accepted = stage.triple()
    for link in (connected, accepted):
        assert option_of(link, socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not os.get_blocking(link.fileno())
        assert not os.get_inheritable(link.fileno())


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_buffers_and_dscp(stage: Stage, host: str) -> None:
    config = "so_sndbuf=20000;so_rcvbuf=30000;dscp=0x20|8"
    listener = stage.listen(with_config(f"tcp/{host}:0", config))
    connected = stage.connect(with_config(listener.locators[0], config))
    accepted = stage.accept(listener)
    dscp = (
        (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
        if "[" in host
        else (socket.IPPROTO_IP, socket.IP_TOS)
    )
    for link in (connected, accepted):  # Linux doubles what it is asked for
        assert option_of(link, socket.SOL_SOCKET, socket.SO_SNDBUF) == 40_000
        assert option_of(link, socket.SOL_SOCKET, socket.SO_RCVBUF) == 60_000
    assert option_of(connected, *dscp) == 0x28


@pytest.mark.parametrize(
    ("text", "value"), [("46", 46), ("0x2E", 46), ("0b101", 5), ("1|2|0x4", 7), ("0", 0)]
)
def test_forms_of_dscp(text: str, value: int) -> None:
    assert sockets.parse_bits(EndPoint("tcp/h:1"), "dscp", text, sockets.MAX_DSCP) == value


BAD_CONFIG = [
    "dscp=256",
    "dscp=high",
    "dscp=1|",
    "dscp=-1",
    "so_sndbuf=many",
    "so_rcvbuf=-1",
    "so_rcvbuf=4294967296",
]


@pytest.mark.parametrize("config", BAD_CONFIG)
def test_a_bad_option_is_refused_by_key_and_value(stage: Stage, config: str) -> None:
    where = with_config("tcp/127.0.0.1:0", config)
    for act in (lambda: stage.listen(where), lambda: stage.connect(where)):
        with pytest.raises(InvalidLocator) as refused:
            act()
        assert config in str(refused.value)


def test_an_interface(stage: Stage) -> None:
    listener = stage.listen(EndPoint("tcp/127.0.0.1:0#iface=lo"))
    connected = stage.connect(with_config(listener.locators[0], "iface=lo"))
    accepted = stage.accept(listener)
    assert stage.carry(connected, accepted, b"by lo") == b"by lo"


def test_an_interface_that_is_not_there(stage: Stage) -> None:
    where = EndPoint("tcp/127.0.0.1:0#iface=no-such")
    for act in (lambda: stage.listen(where), lambda: stage.connect(where)):
        with pytest.raises(LinkError, match=r"iface=no-such.*No such device"):
            act()


def test_bind_chooses_the_source(stage: Stage) -> None:
    listener = stage.listen()
    connected = stage.connect(with_config(listener.locators[0], "bind=127.0.0.2:0"))
    accepted = stage.accept(listener)
    assert stage.carry(connected, accepted, b"from 2") == b"from 2"
    assert connected.local == accepted.remote
    assert accepted.address == "127.0.0.2"


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ("bind=[::1]:0", LinkError),
        ("bind=a.name:0", LinkError),
        ("bind=127.0.0.1", InvalidLocator),
        ("bind=192.0.2.77:0", LinkError),
        ("bind=127.0.0.1:0;iface=lo", InvalidLocator),
    ],
)
def test_a_bad_bind_is_refused(stage: Stage, config: str, error: type[Exception]) -> None:
    listener = stage.listen()
    with pytest.raises(error) as refused:
        stage.connect(with_config(listener.locators[0], config))
    assert "bind" in str(refused.value)
    assert config.partition(";")[0].partition("=")[2] in str(refused.value)


# --- connecting


def test_connect_does_not_wait(stage: Stage) -> None:
    """A listener whose queue is full leaves the connect open for long."""
    with socket.socket() as full, ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        host, port = full.getsockname()
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((host, port))
        link = stage.connect(EndPoint(f"tcp/{host}:{port}"))
        assert link.handshake() is Progress.WANT_WRITE
        assert link.handshake() is Progress.WANT_WRITE
        link.close()


def test_a_connect_that_meets_itself_is_refused(stage: Stage) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    where = f"tcp/127.0.0.1:{port}"
    link = stage.connect(with_config(where, f"bind=127.0.0.1:{port}"))
    error = stage.error_of(link.handshake)
    assert where in str(error)
    assert "connected to itself" in str(error)


def test_a_reset_is_an_error_and_not_the_end(stage: Stage) -> None:
    listener = stage.listen()
    with socket.create_connection(
        sockets.split_host(EndPoint(listener.locators[0]), listener.locators[0].address)
    ) as peer:
        accepted = stage.accept(listener)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    error = stage.error_of(accepted.receive)
    assert error.errno == errno.ECONNRESET
    assert str(accepted.remote) in str(error)


# --- accepting


def test_without_descriptors_accept_waits_and_goes_on(stage: Stage) -> None:
    listener = stage.listen()
    connected = stage.connect(listener.locators[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        answers = [listener.accept() for _ in range(3)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert answers == [None, None, None]
    accepted = stage.accept(listener)
    assert stage.carry(connected, accepted, b"at last") == b"at last"


class Failing:
    """A listening socket whose accept() fails."""

    def __init__(self, code: int) -> None:
        self._code = code

    def accept(self) -> NoReturn:
        raise OSError(self._code, os.strerror(self._code))


def refuse(*_: Any) -> NoReturn:
    raise ConnectionResetError(errno.ECONNRESET, "gone")


@pytest.mark.parametrize(
    "code",
    [errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENETDOWN, errno.EPROTO],
)
def test_what_passes_does_not_end_the_listener(code: int) -> None:
    sock: Any = Failing(code)
    assert StreamListener(sock, "tcp/x:1", (), refuse).accept() is None


@pytest.mark.parametrize("code", [errno.EBADF, errno.EINVAL, errno.ENOTSOCK])
def test_a_broken_listener_says_so(code: int) -> None:
    sock: Any = Failing(code)
    with pytest.raises(LinkError, match=r"tcp/x:1: accept"):
        StreamListener(sock, "tcp/x:1", (), refuse).accept()


def test_a_peer_that_goes_while_it_is_welcomed(stage: Stage) -> None:
    real = sockets.listening_socket(EndPoint("tcp/127.0.0.1:0"))
    with closing(StreamListener(real, "tcp/x:1", (), refuse)) as listener:
        connected = stage.connect(EndPoint(f"tcp/127.0.0.1:{real.getsockname()[1]}"))
        assert listener.accept() is None
        stage.until(lambda: _ended(connected.receive))


def _ended(receive: Callable[[], bytes | None]) -> bool | None:
    try:
        return True if receive() == b"" else None
    except LinkError:
        return True


def test_a_port_can_be_had_again_at_once(stage: Stage) -> None:
    """Though connections that this side ended still wait out their time at it."""
    listener, connected, accepted = stage.triple()
    accepted.close()
    assert stage.until(connected.receive) == b""
    connected.close()
    listener.close()
    again = stage.listen(EndPoint(listener.locators[0]))
    assert again.locators == listener.locators


def test_a_listener_on_windows_takes_no_port_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """SO_REUSEADDR means something else there."""
    monkeypatch.setattr(sockets, "IS_WINDOWS", True)
    with sockets.listening_socket(EndPoint("tcp/127.0.0.1:0")) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 0


def test_a_listener_in_use_says_what_to_do(stage: Stage) -> None:
    listener = stage.listen()
    with pytest.raises(LinkError, match=r"Address already in use.*listen elsewhere") as refused:
        tcp.listen(EndPoint(listener.locators[0]), OPTIONS)
    assert refused.value.errno == errno.EADDRINUSE
