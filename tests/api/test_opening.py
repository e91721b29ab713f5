"""From a configuration to a node: what keys become, and how opening succeeds or fails."""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zenoh

import zenlake
from tests.golden.proxy import free_port
from tests.support.certificates import Authority
from tests.support.discovery import new_group
from tests.support.reference_peer import ReferenceProcess
from tests.support.runtime_nodes import ANYWHERE, Record
from tests.support.waiting import until
from zenlake import link as links
from zenlake.api.config import opening
from zenlake.api.config.config import Config
from zenlake.api.config.opening import SessionSettings, StartConditions, open_node, read_settings
from zenlake.api.config.schema import KEYS
from zenlake.errors import AuthError, LinkError, SessionRefused, ZError
from zenlake.link.settings import SETTINGS
from zenlake.runtime.node import Node
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.autoconnect import ANY_ROLE, NO_ROLE, Strategy
from zenlake.transport.fragments import MAX_MESSAGE_BYTES
from zenlake.transport.offer import Offer
from zenlake.transport.retry import RetryPolicy
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.locator import EndPoint
from zenlake.wire.zenohid import WireZenohId

ROUTER, PEER, CLIENT = WireWhatAmI.ROUTER, WireWhatAmI.PEER, WireWhatAmI.CLIENT
NOWHERE = "tcp/127.0.0.1:1"
ALONE = {"scouting/multicast/enabled": False, "listen/endpoints": [ANYWHERE]}


def config(mode: str = "peer", /, **keys: Any) -> Config:
    """Keys with `__` for `/`; without scouting, and on the loopback only, unless they say so."""
    made = Config()
    told = {name.replace("__", "/"): value for name, value in keys.items()}
    for key, value in {"mode": mode, **ALONE, **told}.items():
        made.insert_json5(key, json.dumps(value))
    if mode == "client" and "listen/endpoints" not in told:
        made.insert_json5("listen/endpoints", "[]")
    return made


def meaning(mode: str = "peer", /, **keys: Any) -> SessionSettings:
    return read_settings(config(mode, **keys))


@contextmanager
def opened(
    mode: str = "peer", conditions: StartConditions | None = None, /, **keys: Any
) -> Iterator[Node]:
    meant = meaning(mode, **keys)
    node = Node(meant.node, Record(), network=meant.network)
    open_node(node, meant, conditions)
    with closing(node):
        yield node


def refusal(mode: str = "peer", /, **keys: Any) -> ZError:
    with pytest.raises(ZError) as error, opened(mode, **keys):
        pass
    return error.value


def where(node: Node) -> str:
    return str(node.locators[0])


# ---- settings


def test_defaults_of_a_peer() -> None:
    meant = read_settings(Config())
    offer = meant.node.offer
    assert offer == Offer(zid=offer.zid, whatami=PEER)
    assert (meant.listen, meant.connect) == ((EndPoint("tcp/[::]:0"),), ())
    assert (meant.listen_retry.timeout, meant.get("listen/exit_on_failure")) == (0.0, True)
    assert (meant.node.retry, meant.get("connect/exit_on_failure")) == (RetryPolicy(), False)
    assert meant.get("scouting/multicast/enabled")
    assert (meant.get("scouting/timeout"), meant.get("scouting/delay")) == (3000, 500)
    assert meant.get("open/return_conditions/connect_scouted")
    assert meant.get("open/return_conditions/declares")
    assert meant.get("queries_default_timeout") == 10_000
    assert not meant.get("timestamping/enabled")
    assert not meant.get("timestamping/drop_future_timestamp")
    assert meant.network is links
    assert meant.node.max_message == MAX_MESSAGE_BYTES
    assert (meant.node.limits.pending, meant.node.limits.sessions) == (10_000, 10_000)
    assert meant.node.patience == meant.node.limits.seconds == 10.0


def test_each_mode_has_defaults_of_its_own() -> None:
    router, client = meaning("router"), meaning("client", connect__endpoints=[NOWHERE])
    assert (router.node.offer.whatami, client.node.offer.whatami) == (ROUTER, CLIENT)
    assert [each.get("timestamping/enabled") for each in (router, client)] == [True, False]
    assert read_settings(Config.from_json5("{mode: 'router'}")).listen == (
        EndPoint("tcp/[::]:7447"),
    )
    assert client.listen == ()
    assert (client.node.retry.timeout, client.get("connect/exit_on_failure")) == (0.0, True)


def test_ids_are_as_told_or_drawn() -> None:
    assert meaning(id="a1b2").node.offer.zid == WireZenohId.parse("a1b2")
    assert meaning().node.offer.zid != meaning().node.offer.zid


def test_what_the_transport_is_told() -> None:
    meant = meaning(
        transport__link__tx__sequence_number_resolution="16bit",
        transport__link__tx__batch_size=1000,
        transport__link__tx__lease=2500,
        transport__unicast__compression__enabled=True,
        transport__unicast__qos__enabled=False,
        transport__unicast__lowlatency=True,
        transport__unicast__accept_pending=7,
        transport__unicast__accept_timeout=1500,
        transport__unicast__open_timeout=2000,
        transport__unicast__max_sessions=3,
        transport__link__rx__max_message_size=4096,
        region_name="east",
        queries_default_timeout=250,
    )
    offer = meant.node.offer
    assert (offer.resolution, offer.batch_size, offer.lease_ms) == (0x09, 1000, 2500)
    assert (offer.qos, offer.low_latency, offer.compression) == (False, True, True)
    assert offer.region_name == "east"
    limits = meant.node.limits
    assert (limits.pending, limits.seconds, limits.sessions) == (7, 1.5, 3)
    assert (meant.node.patience, meant.node.max_message) == (2.0, 4096)
    assert meant.get("queries_default_timeout") == 250


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"transport__unicast__lowlatency": True}, "'qos' and 'lowlatency'"),
        ({"transport__link__tx__batch_size": 10}, "transport/link/tx: batch_size is 10"),
        ({"transport__link__tx__lease": 1}, "transport/link/tx: lease_ms is 1"),
        ({"connect__retry": {"period_increase_factor": 0.5}}, "connect/retry"),
        ({"transport__auth__usrpwd__user": "u"}, "only one of user and password"),
        ({"transport__auth__usrpwd__dictionary_file": "/nowhere"}, "/nowhere cannot be read"),
        ({"transport__auth__pubkey__public_key_file": "/nowhere"}, "give a private_key_pem or"),
        ({"transport__auth__pubkey__known_keys_file": "/nowhere"}, "give a private_key_pem or"),
        ({"transport__auth__pubkey__private_key_pem": "x"}, "not a private key"),
    ],
)
def test_settings_that_contradict(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ZError) as error:
        meaning(**keys)
    assert words in str(error.value)


def test_retry_settings_become_a_policy() -> None:
    retry = {"period_init_ms": {"peer": 10}, "period_max_ms": 20, "period_increase_factor": 3}
    meant = meaning(connect__retry=retry, connect__timeout_ms=500, listen__timeout_ms=-1)
    assert meant.node.retry == RetryPolicy(0.01, 3.0, 0.02, 0.5)
    assert meant.listen_retry == RetryPolicy(1.0, 2.0, 4.0, None)
    never = meaning(connect__retry={"period_init_ms": -1, "period_max_ms": 0})
    assert never.node.retry.first == 0.0


def test_who_is_found_and_dialled() -> None:
    assert read_settings(Config()).node.discovery is not None
    found = read_settings(Config()).node.discovery
    assert found is not None
    assert found.group == "udp/224.0.0.224:7446#ttl=1"
    assert (found.answer, found.gossip, found.multihop) == (True, True, False)
    assert (found.scouted.roles, found.told.roles) == ({PEER: ANY_ROLE}, {PEER: ANY_ROLE})
    assert found.target == ROUTER | PEER


def test_scouting_settings_become_the_discovery_config() -> None:
    meant = meaning(
        scouting__multicast__enabled=True,
        scouting__multicast__address="224.0.0.1:5",
        scouting__multicast__interface="lo",
        scouting__multicast__ttl=3,
        scouting__multicast__listen={"peer": False},
        scouting__multicast__autoconnect=["router"],
        scouting__multicast__autoconnect_strategy={"peer": {"to_router": "greater-zid"}},
        scouting__gossip__multihop=True,
        scouting__gossip__target=[],
        scouting__gossip__autoconnect={"peer": []},
    ).node.discovery
    assert meant is not None
    assert meant.group == "udp/224.0.0.1:5#ttl=3;iface=lo"
    assert (meant.answer, meant.multihop, meant.target) == (False, True, NO_ROLE)
    assert meant.scouted.roles == {PEER: ROUTER}
    assert meant.scouted.strategies == {ROUTER: Strategy.GREATER_ZID}
    assert meant.told.roles == {PEER: NO_ROLE}


def test_nodes_that_find_nobody() -> None:
    assert meaning(scouting__gossip__enabled=False).node.discovery is None
    only_gossip = meaning().node.discovery
    assert only_gossip is not None
    assert only_gossip.group is None
    client = meaning("client", scouting__multicast__enabled=True, connect__endpoints=[NOWHERE])
    assert client.node.discovery is not None
    assert client.node.discovery.scouted.roles == {}
    assert meaning("client").node.discovery is None


def test_user_and_password_become_an_authenticator(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("a:b\n")
    usrpwd = {"user": "u", "password": "p", "dictionary_file": str(users)}
    (authenticator,) = meaning(transport__auth__usrpwd=usrpwd).node.authenticators
    assert repr(authenticator) == "UserPassword(user='u', users known=1)"
    assert meaning().node.authenticators == ()


def test_tls_options_are_the_keys_of_the_same_names() -> None:
    tls = {
        "root_ca_certificate": "a",
        "listen_private_key_base64": "b",
        "enable_mtls": True,
        "verify_name_on_connect": False,
    }
    options = meaning(transport__link__tls=tls).node.options.tls
    assert options is not None
    assert {name: getattr(options, name) for name in tls} == tls
    assert options.close_link_on_expiration is False


def test_the_config_is_copied() -> None:
    given = config()
    meant = read_settings(given)
    given.insert_json5("mode", "'router'")
    assert meant.config.get_json("mode") == '"peer"'


def test_settings_of_endpoints_without_effect_are_said(caplog: pytest.LogCaptureFixture) -> None:
    told = config(
        listen__endpoints=[
            "tcp/127.0.0.1:0#ifaec=lo;so_sndbuf=65536",
            "tls/127.0.0.1:0?prio=1-2#listen_private_key=/key;listen_private_key_file=/key",
        ],
        connect__endpoints=["quic/127.0.0.1:1?multistream=auto;prios=1#exit_on_failure=true"],
    )
    with caplog.at_level(logging.WARNING, "zenlake.config"):
        read_settings(told)
    assert [record.getMessage() for record in caplog.records] == [
        "configuration: listen/endpoints: ifaec of tcp/127.0.0.1:0 has no effect here",
        "configuration: listen/endpoints: listen_private_key of tls/127.0.0.1:0?prio=1-2 has no "
        "effect here",
        "configuration: connect/endpoints: prios of "
        "quic/127.0.0.1:1?multistream=auto;prios=1 has no effect here",
    ]


@pytest.mark.parametrize("protocol", sorted(links.PROTOCOLS))
def test_settings_of_every_protocol_are_known(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = sorted(SETTINGS[protocol] | {"retry_period_init_ms"})
    endpoint = f"{protocol}/127.0.0.1:1?rel=1#{';'.join(f'{name}=1' for name in names)}"
    with caplog.at_level(logging.WARNING, "zenlake.config"):
        read_settings(config(connect__endpoints=[endpoint]))
    assert caplog.records == []


def test_what_is_not_honoured_is_said_by_every_opening(caplog: pytest.LogCaptureFixture) -> None:
    told = config(
        transport__link__tx__queue__size__data=4,
        transport__shared_memory__enabled=False,
        gateway={"south": "auto"},
        adminspace__enabled=True,
        scouting__delay=1,
        routing__interests__timeout=10_000,
    )
    with caplog.at_level(logging.WARNING, "zenlake.config"):
        read_settings(told)
        read_settings(told)
    expected = [
        "configuration: transport/link/tx/queue/size/data has no effect here",
        "configuration: adminspace/enabled has no effect here",
    ]
    assert [record.getMessage() for record in caplog.records] == 2 * expected


def test_what_counts_as_unset_exists() -> None:
    for key, value in opening.AS_IF_UNSET.items():
        assert KEYS[key].refused
        assert KEYS[key].check(value, key) == value


# ---- listening


def test_a_peer_listens() -> None:
    with opened(listen__endpoints=[ANYWHERE, ANYWHERE]) as node:
        assert len(node.locators) == 2
        assert node.sessions == {}


def test_a_port_that_is_taken() -> None:
    with opened() as other:
        error = refusal(listen__endpoints=[where(other)])
        assert isinstance(error, LinkError)
        at = where(other)
        assert f"Can not create a new TCP listener bound to {at}" in str(error)
        with opened(listen__endpoints=[at, ANYWHERE], listen__exit_on_failure=False) as node:
            assert len(node.locators) == 1
        with opened(listen__endpoints=[f"{at}#exit_on_failure=false"]) as node:
            assert node.locators == ()
        quick = {"period_init_ms": 10}
        taken = {"listen__endpoints": [at], "listen__retry": quick, "listen__timeout_ms": 50}
        assert "Can not create" in str(refusal(**taken))


def test_listening_starts_when_the_port_is_free() -> None:
    later = {"listen__retry": {"period_init_ms": 10, "period_max_ms": 10}}
    with ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = [f"tcp/127.0.0.1:{taken.getsockname()[1]}"]
        background = {"listen__timeout_ms": -1, "listen__exit_on_failure": False}
        node = stack.enter_context(opened(listen__endpoints=at, **background, **later))
        assert node.locators == ()
        taken.close()
        until(lambda: node.locators)


@pytest.mark.parametrize("own", [False, True], ids=["of the key", "of the endpoint"])
def test_listening_in_the_background_keeps_to_the_retries_of_listening(own: bool) -> None:
    hour = {"period_init_ms": 3_600_000, "period_max_ms": 3_600_000}
    quick = {"period_init_ms": 10, "period_max_ms": 10}
    retries = {"listen__retry": hour if own else quick, "connect__retry": hour}
    background = {"listen__timeout_ms": -1, "listen__exit_on_failure": False}
    with ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = f"tcp/127.0.0.1:{taken.getsockname()[1]}"
        if own:
            at += "#retry_period_init_ms=10;retry_period_max_ms=10"
        node = stack.enter_context(opened(listen__endpoints=[at], **background, **retries))
        taken.close()
        until(lambda: node.locators)


def test_open_waits_until_the_port_is_free() -> None:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    at = [f"tcp/127.0.0.1:{taken.getsockname()[1]}"]
    freeing = threading.Timer(0.1, taken.close)
    freeing.start()
    quick = {"period_init_ms": 10, "period_max_ms": 10}
    with opened(listen__endpoints=at, listen__timeout_ms=30_000, listen__retry=quick) as node:
        assert len(node.locators) == 1
    freeing.join()


@pytest.mark.parametrize("key", ["listen__endpoints", "connect__endpoints"])
def test_protocols_that_nobody_speaks(key: str) -> None:
    error = refusal(**{key: ["foo/127.0.0.1:1"]})
    assert "Unicast not supported for foo protocol" in str(error)


def test_protocols_that_are_not_allowed() -> None:
    only = {"transport__link__protocols": ["tls"]}
    assert "Unsupported protocol: tcp. Supported protocols are: [tls]" in str(refusal(**only))
    with opened() as router:
        error = refusal("client", connect__endpoints=[where(router)], **only)
        assert "Unable to connect to any of" in str(error)
        assert "Unsupported protocol" in str(error)
        with opened(
            "client", connect__endpoints=[where(router)], transport__link__protocols=["tcp"]
        ):
            until(lambda: router.sessions)


def test_buffers_of_sockets() -> None:
    with opened() as peer:
        sized = {"transport__link__tcp": {"so_sndbuf": 50_000, "so_rcvbuf": 60_000}}
        with opened("client", connect__endpoints=[where(peer)], **sized) as node:
            (session,) = until(lambda: tuple(node.sessions.values()))
            with socket.socket(fileno=os.dup(session.link.fileno())) as sock:
                sizes = [
                    sock.getsockopt(socket.SOL_SOCKET, option)
                    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)
                ]
            assert sizes == [100_000, 120_000]  # Linux doubles what it is told
        own = f"{where(peer)}#so_sndbuf=40000"
        with opened("client", connect__endpoints=[own], **sized) as node:
            (session,) = until(lambda: tuple(node.sessions.values()))
            with socket.socket(fileno=os.dup(session.link.fileno())) as sock:
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 80_000


def test_permissions_of_pipes(tmp_path: Path) -> None:
    configured = {"transport__link__unixpipe": {"file_access_mask": 0o600}}
    for at, mode in (("p", 0o600), (f"q#file_mask={0o640}", 0o640)):
        with opened(listen__endpoints=[f"unixpipe/{tmp_path}/{at}"], **configured):
            (pipe,) = tmp_path.glob("*_uplink")
            assert pipe.stat().st_mode & 0o777 == mode


# ---- connecting: clients


def test_a_client_has_one_session_with_the_first_that_answers() -> None:
    with opened("router") as one, opened("router") as other:
        endpoints = [NOWHERE, where(one), where(other)]
        with opened("client", connect__endpoints=endpoints) as client:
            assert list(client.sessions) == [one.zid]
            assert client.locators == ()
        until(lambda: not one.sessions)
        assert other.sessions == {}


def test_a_client_goes_to_another_when_its_session_is_lost() -> None:
    quick = {"period_init_ms": 10, "period_max_ms": 20}
    with opened("router") as other:
        with opened("router") as one:
            group = {"strategy": "allOf", "locators": [where(one), where(other)]}
            node = opened("client", connect__endpoints=[group], connect__retry=quick)
            client = node.__enter__()
            assert list(client.sessions) == [one.zid]
        try:
            until(lambda: list(client.sessions) == [other.zid])
        finally:
            node.__exit__(None, None, None)


SEVERAL = {"transport__unicast__max_links": 2}
IN_TIME = {"connect__timeout_ms": 30_000}
"A timeout that no test reaches: what is awaited fails for good, or works."


def all_of(*endpoints: str) -> list[dict[str, Any]]:
    return [{"strategy": "allOf", "locators": list(endpoints)}]


@pytest.mark.parametrize("patience", [{}, IN_TIME], ids=["one attempt", "in time"])
@pytest.mark.parametrize("strategy", ["allOf", "oneOf"])
def test_a_client_links_all_of_a_group(strategy: str, patience: dict[str, Any]) -> None:
    with opened("router", listen__endpoints=[ANYWHERE, ANYWHERE], **SEVERAL) as router:
        group = [{"strategy": strategy, "locators": list(map(str, router.locators))}]
        with opened("client", connect__endpoints=group, **SEVERAL, **patience) as client:
            (session,) = client.sessions.values()
            assert {link.remote for link in session.links} == set(router.locators)
        with opened("client", connect__endpoints=group[0]["locators"], **SEVERAL) as client:
            (session,) = client.sessions.values()
            assert [link.remote for link in session.links] == [router.locators[0]]


def test_a_client_links_the_first_group_that_answers() -> None:
    with opened("router", listen__endpoints=[ANYWHERE, ANYWHERE], **SEVERAL) as router:
        groups = all_of(NOWHERE, "tcp/127.0.0.1:2") + all_of(*map(str, router.locators))
        with opened("client", connect__endpoints=groups, **SEVERAL) as client:
            (session,) = client.sessions.values()
            assert len(session.links) == 2


def test_a_client_opens_with_a_part_of_a_group_if_it_tries_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with opened("router", **SEVERAL) as router:
        for group in (all_of(NOWHERE, where(router)), all_of(where(router), NOWHERE)):
            caplog.clear()
            with opened("client", connect__endpoints=group, **SEVERAL) as client:
                assert list(client.sessions) == [router.zid]
            assert f"{NOWHERE}: no further link" in caplog.text


def test_a_client_with_time_needs_the_whole_group() -> None:
    with opened("router", **SEVERAL) as router:
        group = all_of(where(router), NOWHERE)
        error = refusal("client", connect__endpoints=group, connect__timeout_ms=60, **SEVERAL)
        assert f"allOf wants a link over each of its locators, and {NOWHERE} has none" in str(error)
        assert "set connect/timeout_ms to 0 to open without it" in str(error)


def test_a_client_does_not_link_another_node(caplog: pytest.LogCaptureFixture) -> None:
    with opened("router", **SEVERAL) as one, opened("router", **SEVERAL) as other:
        group = all_of(where(one), where(other))
        with opened("client", connect__endpoints=group, **SEVERAL) as client:
            assert list(client.sessions) == [one.zid]
            assert other.sessions == {}
        assert "has to be its own entry" in caplog.text
        error = refusal("client", connect__endpoints=group, **SEVERAL, **IN_TIME)
        assert f"the peer is {other.zid}, not {one.zid} as expected" in str(error)


@pytest.mark.parametrize(("here", "there"), [(1, 2), (2, 1)])
def test_a_client_says_which_key_admits_further_links(here: int, there: int) -> None:
    two = {"listen__endpoints": [ANYWHERE, ANYWHERE], "transport__unicast__max_links": there}
    with opened("router", **two) as router:
        told = {
            "connect__endpoints": all_of(*map(str, router.locators)),
            "transport__unicast__max_links": here,
        }
        with opened("client", **told) as client:
            assert list(client.sessions) == [router.zid]
        error = refusal("client", **told, **IN_TIME)
        assert f"raise on both nodes transport/unicast/max_links, which is {here} here" in str(
            error
        )


def is_another(one: object, found: object) -> bool:
    return found not in (None, one)


@pytest.mark.parametrize("number", [0, 1])
def test_a_client_gets_a_lost_link_of_its_group_back(number: int) -> None:
    quick = {"connect__retry": {"period_init_ms": 10, "period_max_ms": 20}, **SEVERAL}
    with opened("router", listen__endpoints=[ANYWHERE, ANYWHERE], **SEVERAL) as router:
        group = all_of(*map(str, router.locators))
        with opened("client", connect__endpoints=group, **quick) as client:
            (session,) = client.sessions.values()

            def link() -> TransportSession | None:
                found = {link.remote: link for link in session.links}
                return found.get(router.locators[number])

            for _ in range(3):
                lost = link()
                assert lost is not None
                error = LinkError("cut by the test")
                client.reactor.call_soon(partial(lost._on_broken_link, error))
                until(link, partial(is_another, lost))
                assert {link.remote for link in session.links} == set(router.locators)
            assert client.sessions == {router.zid: session}


def test_a_client_links_its_group_again_after_its_session() -> None:
    quick = {"connect__retry": {"period_init_ms": 10, "period_max_ms": 20}, **SEVERAL}
    with opened("router", listen__endpoints=[ANYWHERE, ANYWHERE], **SEVERAL) as router:
        group = all_of(*map(str, router.locators))
        with opened("client", connect__endpoints=group, **quick) as client:
            (session,) = client.sessions.values()
            (theirs,) = until(lambda: tuple(router.sessions.values()))
            theirs.close()
            until(lambda: session.over)
            (again,) = until(
                lambda: tuple(client.sessions.values()),
                lambda found: bool(found) and len(found[0].links) == 2,
            )
            assert again is not session


def test_a_group_without_locators_is_refused() -> None:
    assert "the groups name no locator" in str(refusal("client", connect__endpoints=all_of()))


@pytest.mark.parametrize(
    ("endpoints", "shown"),
    [
        ([NOWHERE], f"[{NOWHERE}]!"),
        (
            [NOWHERE, "tcp/127.0.0.1:2?rel=1#iface=lo"],
            f"[{NOWHERE}, tcp/127.0.0.1:2?rel=1#iface=lo]!",
        ),
        (
            [{"strategy": "allOf", "locators": [NOWHERE, "tcp/127.0.0.1:2"]}],
            f'[{{strategy: "allOf", locators: ["{NOWHERE}", "tcp/127.0.0.1:2"]}}]!',
        ),
        (["foo/127.0.0.1:1"], "[foo/127.0.0.1:1]!"),
    ],
)
def test_a_client_that_reaches_nobody(endpoints: list[Any], shown: str) -> None:
    error = refusal("client", connect__endpoints=endpoints)
    assert f"Unable to connect to any of {shown}" in str(error)


def test_what_a_client_could_not_reach_ends_with_the_cause() -> None:
    error = refusal("client", connect__endpoints=[NOWHERE])
    assert str(error).endswith(f"{error.__cause__}.")
    assert "Connection refused" in str(error)
    assert isinstance(error.__cause__, LinkError)


WANTS_A_PASSWORD = "The node refused: it may want user and password (transport/auth)."
CREDENTIALS = [None, {"user": "u", "password": "wrong"}, {"user": "unknown", "password": "p"}]


@pytest.fixture
def users(tmp_path: Path) -> dict[str, object]:
    """Configuration of a node that wants a password."""
    file = tmp_path / "users"
    file.write_text("u:p\n")
    return {"user": "r", "password": "r", "dictionary_file": str(file)}


def assert_refused(at: str, usrpwd: dict[str, str] | None) -> None:
    shown = {} if usrpwd is None else {"transport__auth__usrpwd": usrpwd}
    error = refusal("client", connect__endpoints=[at], **shown)
    assert WANTS_A_PASSWORD in str(error)
    assert isinstance(error.__cause__, SessionRefused)


@pytest.mark.parametrize("usrpwd", CREDENTIALS)
def test_a_client_without_the_right_password(
    usrpwd: dict[str, str] | None, users: dict[str, object]
) -> None:
    with opened("router", transport__auth__usrpwd=users) as node:
        assert_refused(where(node), usrpwd)


@pytest.mark.interop
@pytest.mark.parametrize("usrpwd", CREDENTIALS)
def test_a_client_without_the_right_password_at_the_reference(
    reference: ReferenceProcess, usrpwd: dict[str, str] | None, users: dict[str, object]
) -> None:
    at = f"tcp/127.0.0.1:{free_port()}"
    them = reference.open("router", {"listen/endpoints": [at], "transport/auth/usrpwd": users})
    try:
        assert_refused(at, usrpwd)
    finally:
        them.close()


@pytest.mark.parametrize("protocol", ["tls", "quic"])
@pytest.mark.parametrize("stranger", [False, True])
def test_a_refused_certificate_is_not_taken_for_a_password(
    tmp_path: Path, protocol: str, stranger: bool
) -> None:
    authority = Authority(tmp_path)
    server, other = authority.server(), Authority(tmp_path, "other").client()
    roots = {"root_ca_certificate": authority.certificate, "enable_mtls": True}
    listens = {"listen_certificate": server.certificate, "listen_private_key": server.key}
    shown = {"connect_certificate": other.certificate, "connect_private_key": other.key}
    with opened(
        "router",
        listen__endpoints=[f"{protocol}/127.0.0.1:0"],
        transport__link__tls={**roots, **listens},
    ) as router:
        tls = {**roots, **shown} if stranger else {**roots, "enable_mtls": False}
        told = {"connect__endpoints": [where(router)], "transport__link__tls": tls}
        text = str(refusal("client", **told))
    assert "user and password" not in text
    alert = "unknown ca" if stranger else "certificate required"
    assert f"it refused this side: {alert} (set transport/link/tls/enable_mtls to true" in text


def test_a_client_that_is_not_answered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"tcp/127.0.0.1:{silent.getsockname()[1]}"
        error = refusal("client", connect__endpoints=[at], transport__unicast__open_timeout=50)
        assert "Unable to connect" in str(error)


def test_a_client_that_has_time() -> None:
    quick = {"period_init_ms": 10, "period_max_ms": 10}
    late = {"connect__retry": quick, "connect__timeout_ms": 60}
    error = refusal("client", connect__endpoints=[NOWHERE], **late)
    assert f"Unable to connect to any of [{NOWHERE}]. Timeout!" in str(error)

    port = free_port()
    found: list[Node] = []
    endless = {"connect__retry": quick, "connect__timeout_ms": -1}

    def open_client() -> None:
        with opened("client", connect__endpoints=[f"tcp/127.0.0.1:{port}"], **endless) as node:
            found.append(node)
            until(lambda: not node.sessions)

    opening_client = threading.Thread(target=open_client)
    opening_client.start()
    with opened("router", listen__endpoints=[f"tcp/127.0.0.1:{port}"]):
        until(lambda: found)
    opening_client.join()


def test_a_client_without_anybody() -> None:
    error = refusal("client")
    assert "No peer specified and multicast scouting deactivated!" in str(error)


def test_a_client_that_nobody_answers() -> None:
    scouting = on_loopback(new_group())
    assert "timeout" in str(refusal("client", scouting__timeout=50, **scouting))


def on_loopback(group: str) -> dict[str, Any]:
    return {
        "scouting__multicast__enabled": True,
        "scouting__multicast__address": group,
        "scouting__multicast__interface": "lo",
    }


def test_a_client_finds_whom_to_connect_to() -> None:
    group = on_loopback(new_group())
    with (
        opened("router", scouting__delay=0, **group) as router,
        opened("client", scouting__timeout=30_000, **group) as client,
    ):
        assert list(client.sessions) == [router.zid]


def test_a_client_that_finds_only_a_client_has_no_session() -> None:
    group = on_loopback(new_group())
    there: dict[str, Any] = {"listen__endpoints": [ANYWHERE], **group}
    with (
        opened("router") as router,
        opened("client", connect__endpoints=[where(router)], **there) as found,
    ):
        error = refusal("client", scouting__timeout=500, **group)
        assert "scouting led to no session within 0.5 s" in str(error)
        assert list(found.sessions) == [router.zid]


# ---- connecting: peers and routers


@pytest.mark.parametrize("mode", ["peer", "router"])
def test_open_waits_for_the_endpoints(mode: str) -> None:
    with (
        opened("router") as one,
        opened() as other,
        opened(mode, connect__endpoints=[where(one), where(other)], scouting__delay=30_000) as node,
    ):
        assert set(node.sessions) == {one.zid, other.zid}


def test_open_does_not_wait_longer_than_the_delay(caplog: pytest.LogCaptureFixture) -> None:
    with opened(connect__endpoints=[NOWHERE], scouting__delay=20) as node:
        assert node.sessions == {}
    assert "without all that is configured" in caplog.text


def test_open_need_not_wait() -> None:
    patient = {"connect__endpoints": [NOWHERE], "scouting__delay": 3_600_000}
    with opened(open__return_conditions={"connect_scouted": False}, **patient) as node:
        assert node.sessions == {}


def test_a_peer_comes_back_to_its_endpoints() -> None:
    port = free_port()
    at = f"tcp/127.0.0.1:{port}"
    quick = {"period_init_ms": 10, "period_max_ms": 20}
    with opened(connect__endpoints=[at], connect__retry=quick, scouting__delay=1) as node:
        for _ in range(2):
            with opened("router", listen__endpoints=[at]) as router:
                until(lambda: node.sessions)
                assert list(node.sessions) == [router.zid]
            until(lambda: not node.sessions)


def test_peers_that_must_reach_somebody() -> None:
    must = {"connect__endpoints": [NOWHERE], "connect__exit_on_failure": True}
    quick = {"period_init_ms": 10, "period_max_ms": 10}
    assert "Connection refused" in str(refusal(connect__timeout_ms=0, **must))
    error = refusal(connect__timeout_ms=50, connect__retry=quick, **must)
    assert f"Unable to connect to any of [{NOWHERE}]. Timeout!" in str(error)
    own = {"connect__endpoints": [f"{NOWHERE}#exit_on_failure=false"]}
    with opened(**{**must, **own}, connect__timeout_ms=0, scouting__delay=1) as node:
        assert node.sessions == {}


def test_peers_that_must_reach_somebody_and_do() -> None:
    must = {"connect__exit_on_failure": True, "connect__timeout_ms": 30_000}
    with (
        opened("router") as router,
        opened(connect__endpoints=[where(router)], scouting__delay=1, **must) as node,
    ):
        assert list(node.sessions) == [router.zid]


def test_peers_find_each_other() -> None:
    group = on_loopback(new_group())
    with (
        opened(scouting__delay=1, **group) as one,
        opened(scouting__delay=30_000, **group) as other,
    ):
        assert list(other.sessions) == [one.zid]


# ---- what open waits for


def test_declarations_are_waited_for() -> None:
    conditions = StartConditions(wait_declares=True)
    with opened("router") as router:
        at = [where(router)]
        began = time.monotonic()
        telling = threading.Timer(0.1, conditions.declared, [router.zid])
        telling.start()
        with opened("peer", conditions, connect__endpoints=at, scouting__delay=30_000) as node:
            assert time.monotonic() - began >= 0.1
            assert conditions.wait(node, 0)
        telling.join()


def test_declarations_that_do_not_come_are_not_waited_for_longer_than_the_delay() -> None:
    conditions = StartConditions(wait_declares=True)
    with opened("router") as router:
        at = [where(router)]
        with opened("peer", conditions, connect__endpoints=at, scouting__delay=50) as node:
            assert not conditions.wait(node, 0)


# ---- with the reference


@pytest.fixture(scope="module")
def reference() -> Iterator[ReferenceProcess]:
    with ReferenceProcess() as process:
        yield process


@pytest.mark.process
@pytest.mark.interop
@pytest.mark.parametrize("mode", ["peer", "client", "router"])
def test_sessions_with_the_reference(reference: ReferenceProcess, mode: str) -> None:
    at = f"tcp/127.0.0.1:{free_port()}"
    them = reference.open("router", {"listen/endpoints": [at]})
    try:
        with opened(mode, connect__endpoints=[at], scouting__delay=30_000) as node:
            assert [str(zid) for zid in node.sessions] == [them.zid]
            assert them.transports()[str(node.zid)]["whatami"] == mode.upper()
    finally:
        them.close()


@pytest.mark.process
@pytest.mark.interop
def test_the_same_keys_mean_the_same_on_both_sides(
    reference: ReferenceProcess, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    server, users = authority.server(), tmp_path / "users"
    users.write_text("u:p\n")
    listening = {
        "transport/link/tls/listen_private_key": server.key,
        "transport/link/tls/listen_certificate": server.certificate,
        "transport/auth/usrpwd/dictionary_file": str(users),
    }
    connecting = {
        "transport/link/tls/root_ca_certificate": authority.certificate,
        "transport/auth/usrpwd": {"user": "u", "password": "p"},
    }
    ours = {key.replace("/", "__"): value for key, value in connecting.items()}
    at = f"tls/127.0.0.1:{free_port()}"
    them = reference.open("router", {"listen/endpoints": [at], **listening})
    try:
        with opened("client", connect__endpoints=[at], **ours) as node:
            assert [str(zid) for zid in node.sessions] == [them.zid]
        ours["transport__auth__usrpwd"] = {"user": "u", "password": "wrong"}
        assert "Unable to connect" in str(refusal("client", connect__endpoints=[at], **ours))
    finally:
        them.close()
    mine = {key.replace("/", "__"): value for key, value in listening.items()}
    with opened("router", listen__endpoints=["tls/127.0.0.1:0"], **mine) as node:
        them = reference.open("client", {"connect/endpoints": [where(node)], **connecting})
        try:
            (session,) = until(lambda: tuple(node.sessions.values()))
            assert session.agreement.identities == {"user-password": "u"}
        finally:
            them.close()


def test_auth_errors_are_zerrors() -> None:
    assert issubclass(AuthError, ZError)


# ---- keys that would change what a session does


NOT_IMPLEMENTED = {
    "access_control/enabled": "true",
    "namespace": '"fleet/7"',
    "downsampling": '[{messages: ["put"], rules: [{key_expr: "a", freq: 1}]}]',
    "low_pass_filter": '[{messages: ["put"], key_exprs: ["a"], size_limit: 1}]',
    "gateway": '{south: [{filters: [{modes: ["peer"]}]}]}',
    "qos/publication": '[{key_exprs: ["a"], config: {priority: "real_time"}}]',
    "qos/network": '[{messages: ["put"], overwrite: {priority: "real_time"}}]',
    "plugins/rest/__required__": "true",
}


def _nest(key: str, value: str) -> str:
    """Return a whole configuration with one key."""
    for name in reversed(key.split("/")):
        value = f"{{{name}: {value}}}"
    return value


@pytest.mark.parametrize("form", ["text", "key", "file"])
@pytest.mark.parametrize("key", NOT_IMPLEMENTED)
def test_a_key_that_is_not_implemented_is_not_pretended(
    key: str, form: str, tmp_path: Path
) -> None:
    value = NOT_IMPLEMENTED[key]
    file = tmp_path / "zenoh.json5"
    file.write_text(_nest(key, value))
    given = Config()
    if form == "key":
        given.insert_json5(key, value)
    else:
        given = Config.from_file(file) if form == "file" else Config.from_json5(file.read_text())
    with pytest.raises(ZError, match=f"^{key} is not implemented yet: .* would .*Remove {key} to"):
        zenlake.open(given)


def test_one_error_names_all_keys_that_are_not_implemented() -> None:
    given = Config()
    for key, value in NOT_IMPLEMENTED.items():
        given.insert_json5(key, value)
    with pytest.raises(ZError) as caught:
        read_settings(given)
    for key in NOT_IMPLEMENTED:
        assert str(caught.value).count(key) == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("namespace", "null"),
        ("downsampling", "[]"),
        ("low_pass_filter", "[]"),
        ("qos", "{}"),
        ("qos", "{publication: [], network: []}"),
        ("access_control", "{}"),
        ("access_control", '{enabled: false, default_permission: "allow", rules: []}'),
        ("plugins", "{}"),
        ("plugins", "{rest: {__required__: false, http_port: 8000}, other: null}"),
    ],
)
def test_an_empty_value_is_accepted(key: str, value: str) -> None:
    given = Config()
    given.insert_json5(key, value)
    read_settings(given)


def test_the_defaults_of_eclipse_zenoh_are_accepted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "zenlake.config"):
        read_settings(Config.from_json5(str(zenoh.Config())))
    assert not caplog.records


# ---- multicast groups


GROUP_KEYS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"batch_size": 8192, "lease_ms": 10_000, "resolution": 0x0A, "join_seconds": 2.5}),
    ({}, {"qos": False, "compression": False, "max_members": 1000}),
    ({"transport/link/tx/batch_size": 4096}, {"batch_size": 4096}),
    ({"transport/link/tx/lease": 1500}, {"lease_ms": 1500}),
    ({"transport/link/tx/sequence_number_resolution": "16bit"}, {"resolution": 0x09}),
    ({"transport/multicast/join_interval": 300}, {"join_seconds": 0.3}),
    ({"transport/multicast/join_interval": None}, {"join_seconds": 2.5}),
    ({"transport/multicast/max_sessions": 7}, {"max_members": 7}),
    ({"transport/multicast/max_sessions": None}, {"max_members": 1000}),
    ({"transport/multicast/qos/enabled": True}, {"qos": True}),
    ({"transport/multicast/compression/enabled": True}, {"compression": True}),
]


@pytest.mark.parametrize("mode", ["peer", "router"])
@pytest.mark.parametrize(("keys", "expected"), GROUP_KEYS)
def test_what_groups_are_joined_with(
    mode: str, keys: dict[str, Any], expected: dict[str, Any]
) -> None:
    node = meaning(mode, **keys).node
    assert node.group is not None
    assert (node.group.zid, node.group.whatami) == (node.offer.zid, node.offer.whatami)
    assert {name: getattr(node.group, name) for name in expected} == expected


def test_a_client_has_no_groups() -> None:
    assert meaning("client").node.group is None


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, True),
        ({"scouting/multicast/address": "224.0.0.225:7446"}, False),
        ({"scouting/multicast/autoconnect": {"peer": []}}, False),
        ({"scouting/multicast/enabled": False}, False),
    ],
    ids=["the group's", "another", "only answers", "off"],
)
def test_scouting_at_the_address_of_a_group_is_said(
    caplog: pytest.LogCaptureFixture, settings: dict[str, Any], warned: bool
) -> None:
    group = "udp/224.0.0.224:7446#iface=lo"
    on = {"scouting/multicast/enabled": True, "listen/endpoints": [group]}
    with caplog.at_level(logging.WARNING, "zenlake.config"):
        meaning(**{**on, **settings})
    assert ["hear scouting" in record.getMessage() for record in caplog.records] == [True] * warned


def test_an_interval_that_no_node_can_keep() -> None:
    with pytest.raises(ZError, match=r"transport/multicast: join_seconds is 0.0"):
        meaning(transport__multicast__join_interval=0)
