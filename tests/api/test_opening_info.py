"""Transports and links of a session, and the events that tell of their changes."""

import gc
import pickle
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.runtime_nodes import ANYWHERE, Record, make_node
from tests.support.waiting import until
from zenlake.api.discovery.info import LinkEvent, SessionInfo, Transport, TransportEvent
from zenlake.api.handlers import Callback
from zenlake.api.values.enums import Reliability, SampleKind, WhatAmI
from zenlake.api.values.wrapped import make
from zenlake.errors import SessionEnded, ZError
from zenlake.runtime.message_handler import MessageHandler
from zenlake.runtime.node import Node
from zenlake.runtime.transport_session import TransportSession
from zenlake.wire import enums as wire

PUT, DELETE = SampleKind.PUT, SampleKind.DELETE


@contextmanager
def informed(
    whatami: wire.WireWhatAmI = wire.WireWhatAmI.ROUTER,
) -> Iterator[tuple[Node, SessionInfo]]:
    """A node that listens, and what it says of itself."""
    holder: list[SessionInfo] = []

    def opened(session: TransportSession) -> None:
        holder[0].opened(session)

    def closed(session: TransportSession, why: SessionEnded) -> None:
        holder[0].closed(session)

    node = make_node(MessageHandler(lambda *_: None, opened, closed), whatami=whatami)
    holder.append(make(SessionInfo, node))
    with node:
        node.listen(ANYWHERE)
        yield node, holder[0]
    holder[0].close()


@contextmanager
def connected(to: Node, whatami: wire.WireWhatAmI = wire.WireWhatAmI.PEER) -> Iterator[Node]:
    with make_node(Record(), whatami=whatami) as node:
        node.connect(to.locators[0])
        until(lambda: node.zid in to.sessions)
        yield node


def test_a_session_without_peers_has_no_transports_or_links() -> None:
    with informed() as (node, info):
        assert str(info.zid()) == str(node.zid)
        assert info.routers_zid() == info.peers_zid() == []
        assert info.transports() == []
        assert info.links() == []


def test_who_it_is_connected_to() -> None:
    with (
        informed() as (node, info),
        connected(node) as peer,
        connected(node, wire.WireWhatAmI.CLIENT),
        connected(node, wire.WireWhatAmI.ROUTER) as router,
    ):
        assert [str(zid) for zid in info.peers_zid()] == [str(peer.zid)]
        assert [str(zid) for zid in info.routers_zid()] == [str(router.zid)]
        assert len(info.transports()) == len(info.links()) == 3


def test_a_transport_and_its_link() -> None:
    with informed() as (node, info), connected(node) as peer:
        (transport,) = info.transports()
        assert (str(transport.zid), transport.whatami) == (str(peer.zid), WhatAmI.PEER)
        assert (transport.is_qos, transport.is_multicast, transport.is_shm) == (True, False, False)
        (link,) = info.links()
        assert link.zid == transport.zid
        assert link.src == str(node.locators[0])
        assert link.dst.startswith("tcp/127.0.0.1:")
        assert (link.interfaces, link.is_streamed, link.mtu > 1000) == (["lo"], True, True)
        assert (link.group, link.auth_identifier) == (None, None)
        assert (link.priorities, link.reliability) == ((0, 7), Reliability.RELIABLE)
        for value in (transport, link):
            assert value == pickle.loads(pickle.dumps(value))
            assert hash(value) == hash(pickle.loads(pickle.dumps(value)))
        assert link == info.links()[0]


def test_transports_links_and_events_print_as_in_the_reference() -> None:
    with informed() as (node, info), connected(node) as peer:
        zid = str(peer.zid)
        (transport,) = info.transports()
        assert (
            str(transport)
            == repr(transport)
            == (
                f"Transport {{ zid: {zid}, whatami: Peer, is_qos: true, is_multicast: false, "
                "is_shm: false }"
            )
        )
        (link,) = info.links()
        assert str(link).startswith(f"Link {{ zid: {zid}, src: {link.src}, dst: {link.dst}, ")
        assert 'is_streamed: true, interfaces: ["lo"], auth_identifier: None' in str(link)
        event = make(TransportEvent, kind=PUT, transport=transport)
        assert str(event) == f"TransportEvent {{ kind: Put, transport: {transport} }}"


def test_listeners_get_each_transport_and_link_once_opened_and_once_closed() -> None:
    with informed() as (node, info):
        transports = info.declare_transport_events_listener()
        links = info.declare_link_events_listener()
        with connected(node) as peer:
            opened, linked = transports.recv(), links.recv()
            assert (opened.kind, opened.transport) == (PUT, info.transports()[0])
            assert (linked.kind, linked.link) == (PUT, info.links()[0])
            assert transports.try_recv() is None
        closed = transports.recv()
        assert closed == make(TransportEvent, kind=DELETE, transport=opened.transport)
        assert links.recv() == make(LinkEvent, kind=DELETE, link=linked.link)
        assert str(closed.transport.zid) == str(peer.zid)
        transports.undeclare()
        links.undeclare()


@pytest.mark.parametrize("history", [None, False, True])
def test_history_begins_with_the_open_transports_and_links(history: bool | None) -> None:
    with informed() as (node, info), connected(node) as peer:
        until(lambda: info.transports())
        with info.declare_transport_events_listener(history=history) as listener:
            event = listener.try_recv()
            if not history:
                assert event is None
            else:
                assert event is not None
                assert (event.kind, str(event.transport.zid)) == (PUT, str(peer.zid))
        with info.declare_link_events_listener(history=history) as links:
            assert (links.try_recv() is not None) == bool(history)


def test_a_callback_hears_events_until_its_listener_is_undeclared() -> None:
    events: list[TransportEvent] = []
    dropped: list[int] = []
    with informed() as (node, info):
        handler = Callback(events.append, lambda: dropped.append(1))
        listener = info.declare_transport_events_listener(handler)
        assert listener.handler is None
        with connected(node):
            until(lambda: len(events) == 1)
        until(lambda: len(events) == 2)
        listener.undeclare()
        assert dropped == [1]
        with connected(node):
            pass
    assert [event.kind for event in events] == [PUT, DELETE]


def test_an_undeclared_listener_refuses_every_call() -> None:
    with informed() as (_, info):
        transports = info.declare_transport_events_listener()
        links = info.declare_link_events_listener()
        transports.undeclare()
        links.undeclare()
        for call in (transports.recv, transports.undeclare, lambda: transports.handler):
            with pytest.raises(ZError, match=r"^Undeclared transport events listener$"):
                call()
        with pytest.raises(ZError, match=r"^Undeclared link events listener$"):
            links.recv()


def test_a_listener_that_is_dropped_is_undeclared() -> None:
    with informed() as (node, info):
        listener = info.declare_transport_events_listener()
        handler, gone = listener.handler, weakref.ref(listener)
        del listener
        gc.collect()
        assert gone() is None
        with connected(node):
            pass
        with pytest.raises(ZError, match="channel is empty and closed"):
            handler.recv()


def test_a_callback_stays_when_its_listener_is_dropped() -> None:
    events: list[TransportEvent] = []
    with informed() as (node, info):
        info.declare_transport_events_listener(Callback(events.append, indirect=False))
        gc.collect()
        with connected(node):
            until(lambda: events)


def test_a_closed_session_ends_listeners_and_names_no_transports() -> None:
    with informed() as (node, info):
        listener = info.declare_transport_events_listener()
        with connected(node):
            until(lambda: info.transports())
            node.close()
            info.close()
    assert [event.kind for event in listener] == [PUT, DELETE]
    with pytest.raises(ZError, match="channel is empty and closed"):
        listener.recv()
    with pytest.raises(ZError, match="session closed"):
        info.declare_transport_events_listener()
    assert info.transports() == []
    assert info.links() == []
    assert info.peers_zid() == []
    assert str(info.zid()) == str(node.zid)
    listener.undeclare()


def test_a_handler_of_a_wrong_type_is_refused() -> None:
    with informed() as (_, info), pytest.raises(ValueError, match="Invalid handler type int"):
        info.declare_link_events_listener(5)  # type: ignore[call-overload]


def test_two_transports_differ_in_any_of_their_parts() -> None:
    with informed() as (node, info), connected(node):
        (one,) = info.transports()
    other = make(
        Transport, zid=one.zid, whatami=one.whatami, is_qos=False, is_multicast=False, is_shm=False
    )
    assert one != other
