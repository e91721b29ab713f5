"""The session of a command: the options that say where it connects, and how it opens and ends.

Knows options, the configuration and what to say when nobody is there. Does not know any command.
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
from typing import Annotated, Any, NoReturn

import typer

import zenlake
from zenlake.cli.commands.ping import Mode
from zenlake.cli.render.text import escape
from zenlake.errors import SessionRefused, ZError

FAILURE, USAGE = 1, 2
MEET_SECONDS = 3.0  # for the first node to be there, when a command needs one
SETTLE_SECONDS = 0.25  # for what a node that came late declares
POLL_SECONDS = 0.02
CONFIG_HELP = "A Zenoh configuration (.json5, .json, .yaml, .toml); other options override it."
CFG_HELP = (
    "One setting, such as transport/unicast/max_sessions:100 (or with =); VALUE is JSON5, or a "
    "word. ':{...}' is a whole configuration, instead of a file. May be repeated."
)
CFG_EXAMPLE = """--cfg 'connect/endpoints:["tcp/127.0.0.1:7447"]'"""
_BARE_WORD = re.compile(r"\w[\w.:/@+-]*")


@dataclass(frozen=True)
class SessionOptions:
    """Where a command connects. Every field is an option of every command."""

    connect: Annotated[
        list[str] | None,
        typer.Option(
            "--connect",
            "-e",
            metavar="ENDPOINT",
            help="Whom to dial, such as tcp/127.0.0.1:7447; may be repeated.",
        ),
    ] = None
    listen: Annotated[
        list[str] | None,
        typer.Option(
            "--listen", "-l", metavar="ENDPOINT", help="Where to be dialled; may be repeated."
        ),
    ] = None
    mode: Annotated[
        Mode | None,
        typer.Option(
            "--mode",
            "-m",
            help="What to be. Default: client with --connect and without --listen, else peer.",
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            envvar="ZENOH_CONFIG",
            help=CONFIG_HELP,
        ),
    ] = None
    cfg: Annotated[
        list[str] | None,
        typer.Option(
            "--cfg",
            metavar="KEY:VALUE",
            help=CFG_HELP,
        ),
    ] = None
    no_multicast_scouting: Annotated[
        bool,
        typer.Option("--no-multicast-scouting", help="Do not look for nodes by multicast."),
    ] = False


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """`command` for Typer: a parameter that is a dataclass becomes the options of its fields.

    What goes wrong with the session is said in one line, and is status 1.
    """
    own: list[inspect.Parameter] = []
    common: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[name] = group
            common[:0] = _options(group)
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


def _options(group: type[Any]) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=field.type,
        )
        for field in fields(group)
    ]


def fail(what: str, error: object, status: int = FAILURE) -> NoReturn:
    """End with one line on standard error."""
    typer.echo(f"zenlake {what}: {escape(' '.join(str(error).split()))}", err=True)
    raise typer.Exit(status)


@contextmanager
def opened(at: SessionOptions, *, meet: bool = False) -> Iterator["zenlake.Session"]:
    """A session, closed on leaving. `meet`: somebody has to be there, or ZError."""
    config = config_of(at)
    try:
        session = zenlake.open(config)
    except ZError as error:
        cause = error.__cause__
        absent = not (isinstance(cause, SessionRefused) and cause.by_peer)
        advice = f" {_advice(at)}" if absent else ""
        end = "" if str(error).endswith((".", "!", "?")) else "."
        raise ZError(f"no session {_where(config)}: {error}{end}{advice}") from None
    with session:
        if meet and not met(session):
            raise ZError(f"nobody is connected {_where(config)}. {_advice(at)}")
        yield session


def met(session: "zenlake.Session") -> bool:
    """Is there another node, now or within MEET_SECONDS?"""
    if session.info.transports():
        return True
    until = time.monotonic() + MEET_SECONDS
    while time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        if session.info.transports():
            time.sleep(SETTLE_SECONDS)
            return True
    return False


def config_of(at: SessionOptions) -> "zenlake.Config":
    """The configuration that the options make: the file, then each option, then --cfg.

    As zenohd does, a --cfg without a key takes the place of the file.
    """
    given = [(f"--cfg {text}", *_cfg(text)) for text in at.cfg or []]
    whole = [(option, value) for option, key, value in given if not key]
    config = _whole(*whole[-1]) if whole else _config_file(at.config)
    settings: list[tuple[str, str, str]] = []  # option, key, JSON5
    if at.connect:
        settings.append(("--connect", "connect/endpoints", jsonlib.dumps(_endpoints(at.connect))))
    if at.listen:
        settings.append(("--listen", "listen/endpoints", jsonlib.dumps(_endpoints(at.listen))))
    if at.no_multicast_scouting:
        settings.append(("--no-multicast-scouting", "scouting/multicast/enabled", "false"))
    if at.mode:
        settings.append(("--mode", "mode", jsonlib.dumps(at.mode.value)))
    settings += [setting for setting in given if setting[1]]
    for option, key, value in settings:
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


def _whole(option: str, value: str) -> "zenlake.Config":
    try:
        return zenlake.Config.from_json5(value)
    except ZError as error:
        raise typer.BadParameter(f"{option}: {error}") from None


def _insert(config: "zenlake.Config", option: str, key: str, value: str) -> None:
    """Put a setting into `config`; a bare word is a string where a string is wanted."""
    from zenlake.api.config.config import NotJson5

    try:
        try:
            config.insert_json5(key, value)
        except NotJson5:
            if not _BARE_WORD.fullmatch(value):
                raise
            config.insert_json5(key, jsonlib.dumps(value))
    except NotJson5 as error:
        hint = f"A shell takes quotes away: write {CFG_EXAMPLE}"
        raise typer.BadParameter(f"{option}: {error}. {hint}") from None
    except ZError as error:
        raise typer.BadParameter(f"{option}: {error}") from None


def _config_file(file: Path | None) -> "zenlake.Config":
    if file is None:
        return zenlake.Config()
    try:
        return zenlake.Config.from_file(file)
    except ZError as error:
        raise typer.BadParameter(f"--config {file}: {error}") from None


def _endpoints(texts: list[str]) -> list[str]:
    from zenlake.errors import InvalidLocator
    from zenlake.wire.locator import EndPoint

    for text in texts:
        try:
            EndPoint(text)
        except InvalidLocator as error:
            raise typer.BadParameter(str(error)) from None
    return texts


def _where(config: "zenlake.Config") -> str:
    endpoints = jsonlib.loads(config.get_json("connect/endpoints"))
    named = ", ".join(endpoints) if isinstance(endpoints, list) else str(endpoints)
    return f"with {named}" if endpoints else "without --connect"


def _advice(at: SessionOptions) -> str:
    if at.connect:
        return f"Is a node listening there? Try: zenlake ping {at.connect[0]}"
    return "Name a node with --connect ENDPOINT; zenlake scout shows who is there."


def key_expr(text: str) -> str:
    """A key expression that a user wrote, or wrong usage with what to write instead."""
    from zenlake.errors import InvalidKeyExpr
    from zenlake.keyexpr import KeyExpr

    try:
        return KeyExpr(text)
    except InvalidKeyExpr as error:
        raise typer.BadParameter(str(error)) from None


def selector(text: str) -> str:
    """KEY or KEY?PARAMETERS, its key expression checked."""
    key_expr(text.partition("?")[0])
    return text


def until_interrupted(count: int | None) -> AbstractContextManager[object]:
    """Ctrl-C is how a command ends that has no --count; otherwise it is an interruption."""
    return suppress(KeyboardInterrupt) if count is None else nullcontext()
