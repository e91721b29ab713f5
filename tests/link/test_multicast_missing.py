"""Groups on a host where no interface does multicast, and scouting there."""

import errno
import logging
import socket
from typing import Any

import pytest

from zenlake.api.config.config import Config
from zenlake.api.discovery.scouting import scout
from zenlake.errors import LinkError
from zenlake.link import multicast, sockets
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import Interface
from zenlake.wire.locator import EndPoint

WHY = "no interface of this host does multicast"


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this host have its loopback alone."""
    loopback = [Interface("lo", "127.0.0.1", False), Interface("lo", "::1", False)]
    join_group = multicast._join_group

    def join(sock: socket.socket, group: str, source: str, index: int) -> None:
        if source in multicast.WILDCARD.values():
            raise OSError(errno.ENODEV, "No such device")
        join_group(sock, group, source, index)

    monkeypatch.setattr(sockets, "interfaces", lambda name=None: loopback)
    monkeypatch.setattr(multicast, "_join_group", join)


def config(**multicast: Any) -> Config:
    made = Config()
    for key, value in multicast.items():
        made.insert_json5(f"scouting/multicast/{key}", f"'{value}'")
    return made


@pytest.mark.parametrize("group", ["224.0.0.224:0", "[ff02::224]:0"])
def test_a_group_says_that_no_interface_does_multicast(group: str) -> None:
    with pytest.raises(multicast.NoMulticast, match=WHY):
        multicast.join(EndPoint(f"udp/{group}"), LinkOptions())


def test_scouting_finds_nothing_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "zenlake.scouting"), scout(config=config()) as looking:
        assert looking.try_recv() is None
        answers = looking.handler
    assert list(answers) == []
    (record,) = caplog.records
    assert WHY in record.getMessage()
    assert "scouting/multicast/interface" in record.getMessage()


def test_an_interface_that_was_named_has_to_exist(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(LinkError, match="iface=nowhere0: no interface has this name"):
        scout(config=config(interface="nowhere0"))
    with scout(config=config(interface="lo", address="224.0.0.224:7446")) as looking:
        assert looking.try_recv() is None
    assert not caplog.records
