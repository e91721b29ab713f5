"""Sessions of this package that are connected, over TCP on loopback."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import zenlake
from tests.golden.proxy import free_port
from tests.support.waiting import until

DEADLINE = 30.0


def configured(**settings: Any) -> zenlake.Config:
    config = zenlake.Config()
    settings = {
        "scouting__multicast__enabled": False,
        "listen__endpoints": [],
        "transport__shared_memory__enabled": False,  # What these test is the network.
        **settings,
    }
    for key, value in settings.items():
        config.insert_json5(key.replace("__", "/"), json.dumps(value))
    return config


def opened(**settings: Any) -> zenlake.Session:
    return zenlake.open(configured(**settings))


def listening(**settings: Any) -> tuple[zenlake.Session, int]:
    port = free_port()
    return opened(listen__endpoints=[f"tcp/127.0.0.1:{port}"], **settings), port


def dialling(port: int, **settings: Any) -> zenlake.Session:
    return opened(connect__endpoints=[f"tcp/127.0.0.1:{port}"], **settings)


@contextmanager
def pair(**settings: Any) -> Iterator[tuple[zenlake.Session, zenlake.Session]]:
    """Yield the session that listens, and the one that connected to it."""
    listener, port = listening(**settings)
    with listener, dialling(port, **settings) as dialler:
        until(lambda: listener.info.peers_zid() and dialler.info.peers_zid())
        yield listener, dialler


def publisher_for(
    session: zenlake.Session, key: str, matched: bool = True, **options: Any
) -> zenlake.Publisher:
    """A publisher that knows of its subscribers."""
    publisher = session.declare_publisher(key, **options)
    until(lambda: publisher.matching_status.matching is matched)
    return publisher
