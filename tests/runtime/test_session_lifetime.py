"""Sessions of nodes that connect to each other, and sessions that end with a certificate."""

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.runtime_nodes import ANYWHERE, make_node
from tests.support.waiting import until
from zenlake.errors import SessionClosed
from zenlake.link.options import LinkOptions, TlsOptions
from zenlake.transport.retry import RetryPolicy
from zenlake.wire.enums import CloseReason

pytestmark = pytest.mark.slow

SOON = RetryPolicy(first=0.05, longest=0.1)


def test_to_connect_again_gives_the_session_that_there_is() -> None:
    with make_node() as server, make_node() as client:
        (locator,) = server.listen(ANYWHERE)
        session = client.connect(locator)
        assert client.connect(locator) is session
        assert list(client.sessions.values()) == [session]
        until(lambda: len(server.sessions) == 1 and server.pending == 0)


def test_two_nodes_that_keep_each_other_connected_rest_once_they_are() -> None:
    with make_node() as a, make_node() as b:
        (at_a,), (at_b,) = a.listen(ANYWHERE), b.listen(ANYWHERE)
        connectors = [a.keep_connected(at_b, policy=SOON), b.keep_connected(at_a, policy=SOON)]
        until(lambda: all(connector.session is not None for connector in connectors))
        until(lambda: a.pending == b.pending == 0)
        attempts = [connector.attempts for connector in connectors]
        quiet = threading.Event()
        a.reactor.call_at(a.reactor.now() + 10 * SOON.longest, quiet.set)
        assert quiet.wait(30)
        assert [connector.attempts for connector in connectors] == attempts
        first = connectors[0].session
        assert first is not None
        first.close()
        until(lambda: connectors[0].session not in (None, first))
        until(lambda: connectors[1].session is not None)


def test_a_session_ends_with_the_certificate_if_that_is_wanted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    now = datetime.now(UTC)
    brief = authority.server(validity=(now - timedelta(days=1), now + timedelta(seconds=6)))
    serving = TlsOptions(listen_certificate=brief.certificate, listen_private_key=brief.key)
    dialling = TlsOptions(root_ca_certificate=authority.certificate, close_link_on_expiration=True)
    with (
        make_node(options=LinkOptions(tls=serving)) as server,
        make_node(options=LinkOptions(tls=dialling)) as client,
    ):
        (locator,) = server.listen("tls/127.0.0.1:0")
        session = client.connect(locator)
        until(lambda: session.over is not None)
        assert isinstance(session.over, SessionClosed)
        assert session.over.reason == CloseReason.EXPIRED
        assert "certificate" in str(session.over)
        assert locator.address in str(session.over)
