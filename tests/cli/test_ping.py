"""`zenlake ping` before a node of ours, before what is none, and before eclipse-zenoh."""

import json
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.golden.proxy import free_port
from tests.support.certificates import Authority
from tests.support.cli_in_process import zenlake
from tests.support.cli_terminal import on_terminal
from tests.support.reference_node import ReferenceNode
from tests.support.reference_peer import ReferenceProcess
from zenlake.link.options import LinkOptions, TlsOptions
from zenlake.runtime.message_handler import MessageHandler
from zenlake.runtime.node import Node, NodeConfig
from zenlake.transport.admission import AdmissionLimits
from zenlake.transport.offer import Offer
from zenlake.transport.usrpwd import UserPassword
from zenlake.wire.batch import write_batch
from zenlake.wire.close import Close
from zenlake.wire.enums import CloseReason, WireWhatAmI
from zenlake.wire.framing import Framing, to_stream
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.slow

SECRET = "Zq7-not-to-be-seen"


@contextmanager
def node(listen: str = "tcp/127.0.0.1:0", offer: Any = None, **config: Any) -> Iterator[str]:
    """Where a router of ours listens."""
    zid = WireZenohId(secrets.token_bytes(16))
    fields = {"zid": zid, "whatami": WireWhatAmI.ROUTER, **(offer or {})}
    with Node(
        NodeConfig(offer=Offer(**fields), **config), MessageHandler(lambda *_: None)
    ) as running:
        (locator,) = running.listen(listen)
        yield locator


@contextmanager
def stub(answer: bytes | None) -> Iterator[str]:
    """Where something takes one connection, and answers, or (None) never does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        if answer is None:
            yield f"tcp/127.0.0.1:{server.getsockname()[1]}"
            return

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(30)
                connection.recv(1000)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1000):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp/127.0.0.1:{server.getsockname()[1]}"
        finally:
            thread.join(30)


def facts(*args: str) -> dict[str, Any]:
    result = zenlake("ping", "--json", *args)
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refusal(*args: str) -> str:
    result = zenlake("ping", "--timeout", "20", *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("zenlake: no session with ")
    return result.stderr


def test_a_table_of_what_was_agreed_on() -> None:
    with node(offer={"region_name": "hall 3", "lease_ms": 4000}) as at:
        result = zenlake("ping", at)
    assert (result.exit_code, result.stderr) == (0, "")
    for said in (
        "a router",
        f"to {at}",
        "0x9, patch 1",
        "65,535 bytes",
        "32 bits, mask 0xfffffff",
        "8, by priority",
        "10 s ours, 4 s the peer's",
        "hall 3",
        "no user",
        "time to connect",
        "time to open",
    ):
        assert said in result.stdout


def test_json_holds_all_of_it() -> None:
    offer = {"zid": WireZenohId.parse("abc"), "compression": True}
    with node(offer=offer) as at:
        found = facts(at, "--compression", "--no-qos")
    assert found.pop("connect_ms") > 0
    assert found.pop("open_ms") > 0
    assert found.pop("local").startswith("tcp/127.0.0.1:")
    assert found == {
        "zid": "abc",
        "whatami": "ROUTER",
        "protocol": "tcp",
        "remote": str(at),
        "version": 9,
        "batch_size": 65_535,
        "resolution": 32,
        "sn_mask": 0x0FFF_FFFF,
        "qos": False,
        "low_latency": False,
        "compression": True,
        "patch": 1,
        "lease": 10.0,
        "peer_lease": 10.0,
        "region_name": None,
        "authenticated_as": None,
    }


@pytest.mark.parametrize("mode", ["client", "peer", "router"])
def test_every_role_can_be_played(mode: str) -> None:
    seen: list[WireWhatAmI] = []
    zid = WireZenohId(secrets.token_bytes(16))
    handler = MessageHandler(
        lambda *_: None, lambda session: seen.append(session.agreement.whatami)
    )
    config = NodeConfig(offer=Offer(zid=zid, whatami=WireWhatAmI.ROUTER))
    with Node(config, handler) as running:
        (at,) = running.listen("tcp/127.0.0.1:0")
        facts(at, "--mode", mode)
    assert seen == [WireWhatAmI[mode.upper()]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--batch-size", "1000"], {"batch_size": 1000}),
        (["--lease", "2.5"], {"lease": 2.5}),
        (["--resolution", "8"], {"resolution": 8, "sn_mask": 0x7F}),
        (["--resolution", "16"], {"resolution": 16, "sn_mask": 0x3FFF}),
        (["--resolution", "64"], {"resolution": 32}),
        (["--no-qos"], {"qos": False}),
        (["--qos"], {"qos": True}),
        (["--low-latency"], {"qos": False, "low_latency": False}),
    ],
)
def test_offers_are_negotiated(options: list[str], expected: dict[str, Any]) -> None:
    with node() as at:
        found = facts(at, *options)
    assert {name: found[name] for name in expected} == expected


def test_low_latency_where_both_want_it() -> None:
    with node(offer={"qos": False, "low_latency": True}) as at:
        assert facts(at, "--low-latency")["low_latency"] is True


def test_many_sessions_give_many_times() -> None:
    with node() as at:
        lines = zenlake("ping", at, "--count", "5", "--json").stdout.splitlines()
        assert len({json.loads(line)["local"] for line in lines}) == 5
        assert "(5 sessions)" in zenlake("ping", at, "--count", "5").stdout


@pytest.mark.parametrize("protocol", ["tcp", "ws"])
def test_ping_names_the_protocol_of_the_link(protocol: str) -> None:
    with node(f"{protocol}/127.0.0.1:0") as at:
        assert facts(at)["protocol"] == protocol


def test_a_unix_socket(tmp_path: Path) -> None:
    with node(f"unixsock-stream/{tmp_path}/s") as at:
        assert facts(at)["protocol"] == "unixsock-stream"


# ---- credentials


def test_a_password_opens_and_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    known = UserPassword(dictionary={"alice": SECRET.encode()})
    with node(authenticators=[known]) as at:
        result = zenlake("ping", at, "--user", "alice", "--password-file", str(file))
        assert (result.exit_code, result.stderr) == (0, "")
        assert "alice" in result.stdout
        assert SECRET not in result.stdout
        said = refusal(at, "--user", "bob", "--password-file", str(file))
        assert "user or the password wrong?" in said
        assert SECRET not in said
        assert "--user" in refusal(at)


@pytest.mark.process
def test_a_password_is_asked_for_on_a_terminal() -> None:
    known = UserPassword(dictionary={"alice": SECRET.encode()})
    with node(authenticators=[known]) as at:
        status, seen = on_terminal(
            "ping", at, "--user", "alice", answer=f"{SECRET}\n".encode(), after=b"alice: "
        )
    assert status == 0
    assert "Password of alice" in seen
    assert "time to open" in seen
    assert SECRET not in seen


def test_a_password_where_nobody_asks_for_one(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    with node() as at:
        said = refusal(at, "--user", "alice", "--password-file", str(file))
    assert "leave out --user" in said
    assert SECRET not in said


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextmanager
def tls_node(authority: Authority, *names: str, mutual: bool = False) -> Iterator[str]:
    server = authority.server(names)
    tls = TlsOptions(
        root_ca_certificate=authority.certificate,
        listen_certificate=server.certificate,
        listen_private_key=server.key,
        enable_mtls=mutual,
    )
    with node("tls/127.0.0.1:0", options=LinkOptions(tls)) as at:
        yield at


def test_tls(authority: Authority) -> None:
    with tls_node(authority, "127.0.0.1") as at:
        assert facts(at, "--ca", authority.certificate)["protocol"] == "tls"
        assert "--ca FILE" in refusal(at)


def test_a_certificate_for_another_name(authority: Authority) -> None:
    with tls_node(authority, "192.0.2.1", "example.org") as at:
        assert "--no-verify-name" in refusal(at, "--ca", authority.certificate)
        assert facts(at, "--ca", authority.certificate, "--no-verify-name")["protocol"] == "tls"


def test_a_certificate_of_ours(authority: Authority) -> None:
    client = authority.client()
    with tls_node(authority, "127.0.0.1", mutual=True) as at:
        trust = ["--ca", authority.certificate]
        mine = ["--cert", client.certificate, "--key", client.key]
        assert facts(at, *trust, *mine)["protocol"] == "tls"
        assert "certificate" in refusal(at, *trust)


# ---- no session


def test_a_refused_connection_is_explained_with_a_remedy() -> None:
    said = refusal(f"tcp/127.0.0.1:{free_port()}")
    assert "Connection refused" in said
    assert "start the other node, or correct the address" in said


def test_a_host_that_does_not_exist() -> None:
    assert "is not the address of a host" in refusal("tcp/nowhere.invalid:7447")


def test_something_that_says_nothing() -> None:
    with stub(None) as at:
        said = refusal(at, "--timeout", "0.3")
    assert "no answer in time" in said
    assert "--timeout" in said


def test_something_that_speaks_another_language() -> None:
    with stub(b"HTTP/1.1 400 Bad Request\r\n\r\n") as at:
        assert refusal(at)


def test_something_that_hangs_up() -> None:
    with stub(b"") as at:
        assert "Is it a Zenoh node" in refusal(at)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (CloseReason.GENERIC, "demand authentication (--user)?"),
        (CloseReason.UNSUPPORTED, "Offer less"),
        (CloseReason.INVALID, "another version"),
        (CloseReason.MAX_SESSIONS, "as many sessions as it takes"),
        (CloseReason.MAX_LINKS, "this id already"),
        (CloseReason.EXPIRED, "slow"),
        (CloseReason.UNRESPONSIVE, "slow"),
        (CloseReason.CONNECTION_TO_SELF, "the node itself"),
        (77, "reason 77"),
    ],
)
def test_every_close_reason_in_words(reason: int, said: str) -> None:
    with stub(to_stream([write_batch([Close(reason)])], Framing.STREAM)) as at:
        assert said in refusal(at)


def test_a_node_that_is_full() -> None:
    with node(limits=AdmissionLimits(sessions=0)) as at:
        assert "as many sessions as it takes" in refusal(at)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nonsense"], "is not an endpoint"),
        (["tcp/127.0.0.1:1", "--low-latency", "--qos"], "low latency has no lanes"),
        (["tcp/127.0.0.1:1", "--batch-size", "1"], "batch_size"),
        (["tcp/127.0.0.1:1", "--lease", "0"], "lease_ms"),
        (["tcp/127.0.0.1:1", "--resolution", "7"], "resolution"),
        (["tcp/127.0.0.1:1", "--user", "a"], "--password-file"),
        (["tcp/127.0.0.1:1", "--user", "a", "--password-file", "/none/such"], "cannot be read"),
        (["tcp/127.0.0.1:1", "--password", "x"], "--password"),
    ],
)
def test_wrong_usage_is_status_2(args: list[str], said: str) -> None:
    result = zenlake("ping", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_help_has_an_example() -> None:
    text = zenlake("ping", "--help").stdout
    assert "zenlake ping tcp/127.0.0.1:7447" in text
    assert "Exit status" in text


@pytest.mark.process
@pytest.mark.interop
def test_a_router_of_eclipse_zenoh_is_pinged() -> None:
    with ReferenceNode() as router:
        found = facts(f"tcp/127.0.0.1:{router.port}")
        assert (found["whatami"], found["version"], found["qos"]) == ("ROUTER", 9, True)
        assert zenlake("ping", f"tcp/127.0.0.1:{router.port}", "--count", "50").exit_code == 0


@pytest.mark.process
@pytest.mark.interop
@pytest.mark.parametrize("protocol", ["udp", "ws"])
def test_a_node_of_eclipse_zenoh_is_pinged_over_other_links(protocol: str) -> None:
    at = f"{protocol}/127.0.0.1:{free_port(socket.SOCK_DGRAM)}"
    with ReferenceProcess() as reference:
        router = reference.open("router", {"listen/endpoints": [at]})
        found = facts(at, "--mode", "peer")
        assert (found["zid"], found["protocol"]) == (router.zid, protocol)
