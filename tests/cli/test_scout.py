"""`zenlake scout` before nodes of ours on the loopback interface."""

import json
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.golden.proxy import free_port
from tests.support.cli_in_process import zenlake
from tests.support.cli_terminal import SCRIPT, on_terminal
from zenlake.runtime import discovery
from zenlake.runtime.discovery import DiscoveryConfig
from zenlake.runtime.message_handler import MessageHandler
from zenlake.runtime.node import Node, NodeConfig
from zenlake.transport.offer import Offer
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.slow

SECONDS = "1.5"


def group() -> str:
    """Return a group without other nodes."""
    return f"udp/224.0.0.240:{free_port()}"


@contextmanager
def node(at: str, whatami: WireWhatAmI) -> Iterator[Node]:
    config = NodeConfig(
        offer=Offer(zid=WireZenohId(secrets.token_bytes(16)), whatami=whatami),
        discovery=DiscoveryConfig(group=f"{at}#iface=lo"),
    )
    with Node(config, MessageHandler(lambda *_: None)) as running:
        running.listen("tcp/127.0.0.1:0")
        yield running


def scout(at: str, *options: str, seconds: str = SECONDS) -> tuple[int, str, str]:
    result = zenlake("scout", "--group", at, "--iface", "lo", "--seconds", seconds, *options)
    return result.exit_code, result.stdout, result.stderr


def test_who_answers_is_in_a_table() -> None:
    at = group()
    with node(at, WireWhatAmI.ROUTER) as router:
        status, out, err = scout(at)
        (locator,) = router.locators
    assert (status, err) == (0, "")
    (row,) = [line for line in out.splitlines() if str(router.zid) in line]
    assert row.split() == [str(router.zid), "router", str(locator), "127.0.0.1"]
    assert "\x1b" not in out


def test_json_is_one_object_a_line() -> None:
    at = group()
    with node(at, WireWhatAmI.ROUTER) as router, node(at, WireWhatAmI.ROUTER) as other:
        status, out, _ = scout(at, "--json")
        assert status == 0
        found = {line["zid"]: line for line in map(json.loads, out.splitlines())}
        assert found == {
            str(n.zid): {
                "zid": str(n.zid),
                "whatami": "ROUTER",
                "locators": [str(locator) for locator in n.locators],
                "source": "127.0.0.1",
            }
            for n in (router, other)
        }


@pytest.mark.parametrize(
    ("what", "answers"),
    [
        (["peer"], True),
        (["router", "peer"], True),
        (["router"], False),
        (["router", "client"], False),
    ],
)
def test_only_the_roles_that_were_asked_for_answer(what: list[str], answers: bool) -> None:
    at = group()
    with node(at, WireWhatAmI.PEER) as peer:
        options = [word for role in what for word in ("--what", role)]
        status, out, err = scout(at, "--json", *options, seconds=SECONDS if answers else "0.5")
    assert status == (0 if answers else 1)
    assert (str(peer.zid) in out) == answers
    assert (" or ".join(what) in err) != answers


def test_nobody_is_status_1_and_what_to_check() -> None:
    status, out, err = scout(group(), seconds="0.1")
    assert (status, out) == (1, "")
    for said in ("no node answered at udp/224.0.0.240:", "on lo", "multicast", "--iface", "ping"):
        assert said in err


def test_wrong_places_are_status_2() -> None:
    for options, said in [
        (["--iface", "nowhere0"], "iface=nowhere0"),
        (["--group", "udp/127.0.0.1:7446"], "is not a multicast group"),
        (["--group", "nonsense"], "is not an endpoint"),
        (["--what", "bystander"], "bystander"),
        (["--seconds", "0"], "--seconds"),
    ]:
        result = zenlake("scout", "--seconds", "0.1", *options)
        assert result.exit_code == 2
        assert said in result.stderr


def test_an_endpoint_with_settings_takes_an_interface_too() -> None:
    at = group()
    with node(at, WireWhatAmI.PEER):
        assert scout(f"{at}#ttl=1")[0] == 0


@pytest.mark.process
def test_ctrl_c_ends_it_with_what_was_found() -> None:
    at = group()
    options = ["scout", "--group", at, "--iface", "lo", "--seconds", "600", "--json"]
    with (
        node(at, WireWhatAmI.PEER) as peer,
        subprocess.Popen(
            [SCRIPT, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    assert json.loads(first)["zid"] == str(peer.zid)
    assert (process.returncode, rest, err) == (0, "", "")


@pytest.mark.process
def test_on_a_terminal_the_table_grows() -> None:
    at = group()
    with node(at, WireWhatAmI.PEER) as peer:
        status, seen = on_terminal("scout", "--group", at, "--iface", "lo", "--seconds", SECONDS)
    assert status == 0
    assert "asking ..." in seen
    assert str(peer.zid) in seen.rpartition("asking ...")[2]


def test_help_has_an_example() -> None:
    text = zenlake("scout", "--help").stdout
    for said in ("--what", "--seconds", "--group", "--iface", "--json", "zenlake scout --what"):
        assert said in text


def test_the_default_group_is_the_runtimes() -> None:
    assert discovery.DEFAULT_GROUP in zenlake("scout", "--help").stdout
