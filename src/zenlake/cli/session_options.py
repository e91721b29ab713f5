"""The session of a command: the options that say where it connects, and how it opens and ends.

Knows options, the configuration and what to say when nobody is there. Does not know any command.
"""

import inspect
import json as jsonlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields
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
            help="A Zenoh configuration (.json5, .json); the other options override it.",
        ),
    ] = None
    cfg: Annotated[
        list[str] | None,
        typer.Option(
            "--cfg",
            metavar="KEY=JSON5",
            help="One setting, such as transport/unicast/lowlatency=true; may be repeated.",
        ),
    ] = None
    no_multicast_scouting: Annotated[
        bool,
        typer.Option("--no-multicast-scouting", help="Do not look for nodes by multicast."),
    ] = False


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """`command` for Typer: the options of a Connection in place of its parameter `at`.

    What goes wrong with the session is said in one line, and is status 1.
    """

    @wraps(command)
    def run(**given: Any) -> None:
        names = [field.name for field in fields(SessionOptions)]
        at = SessionOptions(**{name: given.pop(name) for name in names})
        try:
            command(at=at, **given)
        except ZError as error:
            fail(command.__module__.rpartition(".")[2], error)

    signature = inspect.signature(command)
    own = [parameter for name, parameter in signature.parameters.items() if name != "at"]
    common = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=field.type,
        )
        for field in fields(SessionOptions)
    ]
    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    run.__signature__ = inspect.Signature([*keyword_only, *common])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


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
    """The configuration that the options make: the file, then each option, then --cfg."""
    config = _config_file(at.config)
    settings: list[tuple[str, str, str]] = []  # option, key, JSON5
    if at.connect:
        settings.append(("--connect", "connect/endpoints", jsonlib.dumps(_endpoints(at.connect))))
    if at.listen:
        settings.append(("--listen", "listen/endpoints", jsonlib.dumps(_endpoints(at.listen))))
    if at.no_multicast_scouting:
        settings.append(("--no-multicast-scouting", "scouting/multicast/enabled", "false"))
    if at.mode:
        settings.append(("--mode", "mode", jsonlib.dumps(at.mode.value)))
    for text in at.cfg or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f'--cfg {text}: write KEY=JSON5, such as mode="client"')
        settings.append((f"--cfg {text}", key, value))
    for option, key, value in settings:
        try:
            config.insert_json5(key, value)
        except ZError as error:
            raise typer.BadParameter(f"{option}: {error}") from None
    if at.connect and not at.listen and config.get_json("mode") == "null":
        config.insert_json5("mode", '"client"')
    return config


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
