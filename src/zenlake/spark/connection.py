"""Sessions of a worker process: opened when first used, kept for the tasks that follow.

Knows options and the session API. Does not know rows. Loaded on executors only.
"""

import json
import threading
from collections.abc import Iterable
from contextlib import suppress

import zenlake.api as zenoh
from zenlake.errors import ZError
from zenlake.spark.options import Options
from zenlake.wire.locator import EndPoint

MAX_SESSIONS = 4  # kept open in one process; the one unused for longest is closed
FLUSH_KEY = "@zenlake/flush"  # `@`: no wildcard matches it, and so nobody answers
SECRET_LENGTH = 4  # from which on what follows '#' in an endpoint is not repeated in an error

_kept: dict[tuple[object, ...], "Connection"] = {}
"By what it was opened with; the last used is the last."
_lock = threading.Lock()


class Connection:
    """A session, and whether what was sent on it has arrived."""

    def __init__(self, options: Options) -> None:
        settings = config(options)
        endpoints = options["connect"] or json.loads(settings.get_json("connect/endpoints")) or ()
        self.where = ", ".join(str(one).partition("#")[0] for one in endpoints) or "anybody"
        "For errors: never with what follows '#'."
        self.is_client = json.loads(settings.get_json("mode")) == "client"
        self.session = _opened(settings, self.where, options["connect"] or ())
        if not self.session.info.transports():
            self.session.close()
            raise ZError(f"no session with {self.where} (option 'connect'): is it up?")
        self.begin()

    def begin(self) -> None:
        """From now on it is watched whether a link is lost."""
        self._links = tuple(self.session._core.node.sessions.values())

    @property
    def is_whole(self) -> bool:
        """Whether none was lost."""
        alive = bool(self._links) and not self.session.is_closed()
        return alive and all(link.over is None for link in self._links)

    def settle(self, timeout: float) -> None:
        """Return when the nodes at the other end have taken everything; ZError: perhaps not.

        A client asks a question of the lowest priority, which goes behind all rows; that it is
        answered says that they were read. A peer closes, and that waits for the others.
        """
        if not self.is_client:
            self.check()
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
        self.check()

    def check(self) -> None:
        """ZError: a link was lost, and perhaps rows with it."""
        if not self.is_whole:
            why = next((link.over for link in self._links if link.over is not None), "closed")
            raise ZError(
                f"the link to {self.where} was lost while this task used it ({why}): run it again"
            )


def connection(options: Options) -> Connection:
    """The one of this process for these options; a new one if there is none, or it has broken."""
    name = (options["connect"], options["mode"], options["config"])
    with _lock:
        kept = _kept.pop(name, None)
        if kept is not None and not kept.is_whole:
            _close(kept)
            kept = None
        kept = kept or Connection(options)
        while len(_kept) >= MAX_SESSIONS:
            _close(_kept.pop(next(iter(_kept))))
        _kept[name] = kept
        kept.begin()
        return kept


def close_all() -> None:
    """Nothing is kept any more."""
    with _lock:
        while _kept:
            _close(_kept.popitem()[1])


def _close(kept: Connection) -> None:
    with suppress(ZError):
        kept.session.close()


def config(options: Options) -> zenoh.Config:
    """What a session is opened with: `config`, and over it `mode` and `connect`."""
    made = zenoh.Config() if options["config"] is None else _read(options["config"])
    if "mode" in options.given or made.get_json("mode") == "null":
        made.insert_json5("mode", json.dumps(options["mode"]))
    if options["connect"] is not None:
        made.insert_json5("connect/endpoints", json.dumps(options["connect"]))
    return made


def _read(text: str) -> zenoh.Config:
    try:
        inline = text.startswith("{")
        return zenoh.Config.from_json5(text) if inline else zenoh.Config.from_file(text)
    except ZError as error:
        where = _place(str(error))
    # Outside of the except: the cause may quote a value.
    raise ZError(
        f"option 'config' is not a Zenoh configuration{where}; values are not shown here: "
        "zenlake.Config.from_json5 or from_file says what is wrong"
    )


def _place(said: str) -> str:
    """The key or file that an error of Config begins with, without what was found there."""
    head, colon, _ = said.partition(": ")
    return f", see {head!r}" if colon and head.replace("/", "").replace("_", "").isalnum() else ""


def _opened(settings: zenoh.Config, where: str, endpoints: Iterable[str]) -> zenoh.Session:
    try:
        return zenoh.open(settings)
    except ZError as error:
        said = str(error)
    for value in (value for one in endpoints for value in EndPoint(one).config.values()):
        said = said.replace(value, "***") if len(value) >= SECRET_LENGTH else said
    raise ZError(f"no session with {where} (options 'connect', 'config'): {said}")
