"""A session opens on a machine without multicast."""

import logging
from typing import Any

import pytest

from tests.support.session_pairs import dialling, listening, opened
from tests.support.waiting import until

NO_MULTICAST: dict[str, Any] = {
    "scouting__multicast__enabled": True,
    "scouting__multicast__interface": "nowhere0",
    "scouting__delay": 0,
}


def test_a_group_that_cannot_be_joined_is_told_and_not_fatal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "zenlake"), opened(**NO_MULTICAST) as session:
        sub = session.declare_subscriber("a")
        session.put("a", "x")
        assert sub.recv().payload == "x"
    (told,) = [record for record in caplog.records if record.name == "zenlake.runtime"]
    assert told.levelno == logging.WARNING
    assert "nowhere0" in told.getMessage()


def test_who_has_an_endpoint_is_connected_all_the_same() -> None:
    listener, port = listening(**NO_MULTICAST)
    with listener, dialling(port, **NO_MULTICAST) as dialler:
        until(lambda: listener.info.peers_zid() == [dialler.zid()])
