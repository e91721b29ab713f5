"""The session of a command: the options for where it connects, and how it opens and ends.

Knows options and the configuration. Does not know any command.
"""

import inspect
import json as jsonlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

import zenlake
from zenlake.cli.failure import fail, wrong_usage
from zenlake.cli.options import ModeChoice
from zenlake.errors import SessionRefused, ZError
from zenlake.keyexpr import KeyExpr
from zenlake.wire.locator import EndPoint

MEET_SECONDS = 3.0  # Time the first node gets to connect, for a command that needs one.
SETTLE_SECONDS = 0.25  # Time a node that connected late gets to declare its subscribers.
POLL_SECONDS = 0.02
CFG_EXAMPLE = """--cfg 'connect/endpoints:["tcp/127.0.0.1:7447"]'"""
_BARE_WORD = re.compile(r"\w[\w.:/@+-]*")

ConnectOption = Annotated[
    list[str] | None,
    typer.Option(
        "--connect",
        "-e",
        metavar="ENDPOINT",
        help="Endpoint to connect to, such as tcp/127.0.0.1:7447; may be repeated.",
    ),
]
ListenOption = Annotated[
    list[str] | None,
    typer.Option(
        "--listen",
        "-l",
        metavar="ENDPOINT",
        help="Endpoint to listen on, such as tcp/0.0.0.0:7447; may be repeated.",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        envvar="ZENOH_CONFIG",
        help="A Zenoh configuration (.json5, .json, .yaml, .toml); other options override it.",
    ),
]
CfgOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cfg",
        metavar="KEY:VALUE",
        help="One setting, such as transport/unicast/max_sessions:100 (or with =); VALUE is JSON5, "
        "or a word. ':{...}' is a whole configuration, instead of a file. May be repeated.",
    ),
]
ScoutingOption = Annotated[
    bool,
    typer.Option(
        "--no-multicast-scouting", help="Neither send nor answer multicast scouting messages."
    ),
]


@dataclass(frozen=True)
class SessionOptions:
    """Options of every command that opens a session, one field per option."""

    connect: ConnectOption = None
    listen: ListenOption = None
    mode: Annotated[
        ModeChoice | None,
        typer.Option(
            "--mode",
            "-m",
            help="Mode of the session. Default: client with --connect and without --listen, else "
            "peer.",
        ),
    ] = None
    config: ConfigOption = None
    cfg: CfgOption = None
    no_multicast_scouting: ScoutingOption = False


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` for Typer, with each dataclass parameter replaced by its fields.

    A ZError becomes one line on standard error, and exit status 1.
    """
    own: list[inspect.Parameter] = []
    common: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[name] = group
            common[:0] = [
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=field.type,
                )
                for field in fields(group)
            ]
        else:
            own.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        try:
            command(**given)
        except ZError as error:
            fail(command.__module__.rpartition(".")[2], error)

    run.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


@contextmanager
def open_session(at: SessionOptions, *, meet: bool = False) -> Iterator["zenlake.Session"]:
    """Open a session for the `with` block. ZError: it fails, or with `meet` no node connects."""
    from zenlake.api.config.opening import NotImplementedKey

    config = build_config(at)
    try:
        session = zenlake.open(config)
    except NotImplementedKey:
        raise
    except ZError as error:
        cause = error.__cause__
        absent = not (isinstance(cause, SessionRefused) and cause.by_peer)
        advice = f" {_advice(at)}" if absent else ""
        end = "" if str(error).endswith((".", "!", "?")) else "."
        raise ZError(f"no session {_where(config)}: {error}{end}{advice}") from None
    with session:
        if meet and not wait_for_node(session):
            raise ZError(f"no node is connected {_where(config)}. {_advice(at)}")
        yield session


def wait_for_node(session: "zenlake.Session") -> bool:
    """Return whether a node is connected, now or within MEET_SECONDS."""
    if session.info.transports():
        return True
    until = time.monotonic() + MEET_SECONDS
    while time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        if session.info.transports():
            time.sleep(SETTLE_SECONDS)
            return True
    return False


def build_config(at: SessionOptions) -> "zenlake.Config":
    """Build the configuration from the file, then each option, then --cfg.

    A --cfg without a key takes the place of the file, as it does in zenohd.
    """
    given = [(f"--cfg {text}", *_cfg(text)) for text in at.cfg or []]
    config = zenlake.Config()
    whole = [(option, value) for option, key, value in given if not key]
    if whole:
        option, value = whole[-1]
        with wrong_usage(option):
            config = zenlake.Config.from_json5(value)
    elif at.config:
        with wrong_usage(f"--config {at.config}"):
            config = zenlake.Config.from_file(at.config)
    scouting = False if at.no_multicast_scouting else None
    for option, key, setting in (
        ("--connect", "connect/endpoints", [check_endpoint(text) for text in at.connect or []]),
        ("--listen", "listen/endpoints", [check_endpoint(text) for text in at.listen or []]),
        ("--no-multicast-scouting", "scouting/multicast/enabled", scouting),
        ("--mode", "mode", at.mode),
    ):
        if setting not in (None, []):
            _insert(config, option, key, jsonlib.dumps(setting))
    for option, key, value in given:
        if key:
            _insert(config, option, key, value)
    if at.connect and not at.listen and config.get_json("mode") == "null":
        config.insert_json5("mode", '"client"')
    return config


def _cfg(text: str) -> tuple[str, str]:
    """Return key and value; `:` or `=` separates them, whichever comes first."""
    key, *value = re.split("[:=]", text, maxsplit=1)
    if not value:
        raise typer.BadParameter(f"--cfg {text}: write KEY:VALUE, such as {CFG_EXAMPLE}")
    return key, value[0]


def _insert(config: "zenlake.Config", option: str, key: str, value: str) -> None:
    """Insert a setting into `config`; a bare word is a string where a string is needed."""
    from zenlake.api.config.config import NotJson5

    with wrong_usage(option):
        try:
            config.insert_json5(key, value)
        except NotJson5 as error:
            if not _BARE_WORD.fullmatch(value):
                hint = f"A shell takes quotes away: write {CFG_EXAMPLE}"
                raise ZError(f"{error}. {hint}") from None
            config.insert_json5(key, jsonlib.dumps(value))


def check_endpoint(text: str) -> str:
    """Return an endpoint that a user wrote; BadParameter says what to write instead."""
    with wrong_usage():
        EndPoint(text)
    return text


def _where(config: "zenlake.Config") -> str:
    endpoints = jsonlib.loads(config.get_json("connect/endpoints"))
    named = ", ".join(endpoints) if isinstance(endpoints, list) else str(endpoints)
    return f"with {named}" if endpoints else "without --connect"


def _advice(at: SessionOptions) -> str:
    if at.connect:
        return f"Is a node listening there? Try: zenlake ping {at.connect[0]}"
    return "Name a node with --connect ENDPOINT; zenlake scout lists nodes."


def check_key_expr(text: str) -> str:
    """Return a key expression that a user wrote; BadParameter says what to write instead."""
    with wrong_usage():
        return KeyExpr(text)


def check_selector(text: str) -> str:
    """Return KEY or KEY?PARAMETERS; BadParameter if its key expression is not valid."""
    check_key_expr(text.partition("?")[0])
    return text


def end_on_interrupt(count: int | None) -> AbstractContextManager[object]:
    """End the `with` block normally on Ctrl-C if there is no --count to reach."""
    return suppress(KeyboardInterrupt) if count is None else nullcontext()
