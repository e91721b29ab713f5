"""Zenoh sessions of a worker process: opened on first use and reused by later tasks.

Knows options and the session API. Does not know rows. Loaded on executors only.
"""

import json
import threading
from collections.abc import Iterable
from contextlib import suppress

import zenlake.api as zenoh
from zenlake.api.session_core import core_of
from zenlake.errors import ZError
from zenlake.spark.options import Options
from zenlake.wire.locator import EndPoint

MAX_SESSIONS = 4  # Sessions kept open per process; the least recently used one is closed.
FLUSH_KEY = "@zenlake/flush"  # No wildcard matches a chunk with `@`, so no queryable answers.
SECRET_LENGTH = 4  # Shortest endpoint setting (behind '#') that an error text masks.

_open_connections: dict[tuple[object, ...], "Connection"] = {}
"""Connections of this process by the options that open them; the most recently used is last.

Module state, because Spark runs many tasks in one worker process and pickles each task's writer
afresh: only a module outlives a task. `_lock` guards it.
"""
_lock = threading.Lock()


class Connection:
    """A session, and the knowledge whether it lost a link since a task began to use it."""

    def __init__(self, options: Options) -> None:
        settings = session_config(options)
        endpoints = options["connect"] or json.loads(settings.get_json("connect/endpoints")) or ()
        names = ", ".join(str(endpoint).partition("#")[0] for endpoint in endpoints)
        self.where = names or "any node"
        "The endpoints for error texts, without the settings behind '#', which may be secret."
        self.is_client = json.loads(settings.get_json("mode")) == "client"
        self.session = _open_session(settings, self.where, options["connect"] or ())
        if not self.session.info.transports():
            self.session.close()
            raise ZError(f"no session with {self.where} (option 'connect'): is it up?")
        self.watch_links()

    def watch_links(self) -> None:
        """Remember the current links: `is_intact` tells from now on whether one was lost."""
        self._links = tuple(core_of(self.session).node.sessions.values())

    @property
    def is_intact(self) -> bool:
        """Whether the session is open and no link was lost since `watch_links`."""
        is_open = bool(self._links) and not self.session.is_closed()
        return is_open and all(link.over is None for link in self._links)

    def flush(self, timeout: float) -> None:
        """Wait until the nodes at the other end have read every row. ZError: perhaps they have not.

        A client sends a query of the lowest priority, which follows all rows; its final reply shows
        that they were read. A peer closes its session, which waits for the other nodes.
        """
        if not self.is_client:
            self.check_links()
            self.session.close()
            return
        for reply in self.session.get(
            f"{FLUSH_KEY}/{self.session.zid()}",
            timeout=timeout,
            target=zenoh.QueryTarget.ALL,
            priority=zenoh.Priority.BACKGROUND,
            congestion_control=zenoh.CongestionControl.BLOCK,
        ):
            raise ZError(
                f"{self.where} has not taken the last rows within {timeout:g} s ({reply.result}): "
                "look at which subscriber is slow, or raise the option 'timeout'"
            )
        self.check_links()

    def check_links(self) -> None:
        """Raise ZError if a link was lost, and perhaps rows with it."""
        if not self.is_intact:
            why = next((link.over for link in self._links if link.over is not None), "closed")
            raise ZError(
                f"the link to {self.where} was lost while this task used it ({why}): run it again"
            )


def get_connection(options: Options) -> Connection:
    """Return this process's connection for `options`, and open one if there is none intact."""
    key = (options["connect"], options["mode"], options["config"])
    with _lock:
        connection = _open_connections.pop(key, None)
        if connection is not None and not connection.is_intact:
            _close(connection)
            connection = None
        connection = connection or Connection(options)
        while len(_open_connections) >= MAX_SESSIONS:
            _close(_open_connections.pop(next(iter(_open_connections))))
        _open_connections[key] = connection
        connection.watch_links()
        return connection


def close_all() -> None:
    """Close every connection of this process."""
    with _lock:
        while _open_connections:
            _close(_open_connections.popitem()[1])


def _close(connection: Connection) -> None:
    with suppress(ZError):
        connection.session.close()


def session_config(options: Options) -> zenoh.Config:
    """Return the configuration of a session: the option `config`, then `mode` and `connect`."""
    settings = zenoh.Config() if options["config"] is None else _read_config(options["config"])
    if "mode" in options.given or settings.get_json("mode") == "null":
        settings.insert_json5("mode", json.dumps(options["mode"]))
    if options["connect"] is not None:
        settings.insert_json5("connect/endpoints", json.dumps(options["connect"]))
    return settings


def _read_config(text: str) -> zenoh.Config:
    try:
        is_inline = text.startswith("{")
        return zenoh.Config.from_json5(text) if is_inline else zenoh.Config.from_file(text)
    except ZError as error:
        where = _error_location(str(error))
    # Raised outside of the except block: the cause may quote a secret value.
    raise ZError(
        f"option 'config' is not a Zenoh configuration{where}; values are not shown here: "
        "zenlake.Config.from_json5 or from_file says what is wrong"
    )


def _error_location(text: str) -> str:
    """Return the key or file that an error of Config begins with, without the value."""
    head, colon, _ = text.partition(": ")
    return f", see {head!r}" if colon and head.replace("/", "").replace("_", "").isalnum() else ""


def _open_session(settings: zenoh.Config, where: str, endpoints: Iterable[str]) -> zenoh.Session:
    try:
        return zenoh.open(settings)
    except ZError as error:
        text = str(error)
    for endpoint in endpoints:
        for value in EndPoint(endpoint).config.values():
            text = text.replace(value, "***") if len(value) >= SECRET_LENGTH else text
    raise ZError(f"no session with {where} (options 'connect', 'config'): {text}")
