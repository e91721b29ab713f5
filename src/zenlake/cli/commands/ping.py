"""`zenlake ping`: open a session, show what was agreed on, close it."""

import json as jsonlib
import secrets
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zenlake.cli.quantities import counted
from zenlake.cli.render.text import escape

if TYPE_CHECKING:
    from zenlake.cli.handshake_probe import ProbeResult
    from zenlake.transport.offer import Offer
    from zenlake.wire.zenohid import WireZenohId

REFUSED, USAGE = 1, 2
MAX_COUNT = 10_000
MAX_SECONDS = 3600.0
BITS = (8, 16, 32, 64)
YES_NO = {True: "yes", False: "no"}


class Mode(StrEnum):
    CLIENT = "client"
    PEER = "peer"
    ROUTER = "router"


class Resolution(StrEnum):
    BITS_8 = "8"
    BITS_16 = "16"
    BITS_32 = "32"
    BITS_64 = "64"


def ping(
    endpoint: Annotated[
        str, typer.Argument(metavar="ENDPOINT", help="Whom to dial, such as tcp/127.0.0.1:7447.")
    ],
    mode: Annotated[Mode, typer.Option(help="What to say that we are.")] = Mode.CLIENT,
    count: Annotated[
        int,
        typer.Option(
            min=1, max=MAX_COUNT, help="How many sessions to open, one after another, for timing."
        ),
    ] = 1,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=MAX_SECONDS, help="Seconds to wait for one session.")
    ] = 10.0,
    qos: Annotated[
        bool | None,
        typer.Option("--qos/--no-qos", help="Offer lanes by priority. Default: yes."),
    ] = None,
    low_latency: Annotated[
        bool, typer.Option("--low-latency", help="Offer low latency, which has no lanes.")
    ] = False,
    compression: Annotated[bool, typer.Option("--compression", help="Offer compression.")] = False,
    batch_size: Annotated[
        int | None, typer.Option(metavar="BYTES", help="The largest batch. Default: 65535.")
    ] = None,
    lease: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Say that we are gone when silent for this long."),
    ] = 10.0,
    resolution: Annotated[
        Resolution, typer.Option(help="Bits of sequence numbers and request ids.")
    ] = Resolution.BITS_32,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Authenticate as this user; the password is asked for, or read:"
        ),
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file that holds the password alone.")
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TLS: certificates of the authorities to trust."),
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TLS: our certificate, with --key.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TLS: the private key of --cert.")
    ] = None,
    verify_name: Annotated[
        bool,
        typer.Option(
            "--verify-name/--no-verify-name",
            help="TLS: the certificate has to name the host in ENDPOINT.",
        ),
    ] = True,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a session, one a line.")
    ] = False,
) -> None:
    """Open a session with a node, show what was agreed on, and close it.

    Two times are shown: until the link is there (TCP's connect, TLS, the WebSocket upgrade) and
    from there until the session is open (INIT and OPEN, so two round trips).

    Exit status: 0 it opened, 1 it did not (and why), 2 wrong usage.

    \b
    Examples:
      zenlake ping tcp/127.0.0.1:7447
      zenlake ping tcp/10.0.0.5:7447 --count 20 --json
      zenlake ping tls/example.org:7447 --ca ca.pem --user alice --password-file secret.txt
    """
    from zenlake.cli.handshake_probe import advice, open_once
    from zenlake.errors import AuthError, InvalidLocator, ZError
    from zenlake.link.options import LinkOptions, TlsOptions
    from zenlake.transport.usrpwd import UserPassword
    from zenlake.wire.locator import EndPoint

    offer = _offer(
        whatami=mode,
        qos=not low_latency if qos is None else qos,
        low_latency=low_latency,
        compression=compression,
        batch_size=batch_size,
        lease_ms=round(lease * 1000),
        resolution=resolution,
    )
    tls = TlsOptions(
        root_ca_certificate=_path(ca),
        connect_certificate=_path(cert),
        connect_private_key=_path(key),
        enable_mtls=cert is not None,
        verify_name_on_connect=verify_name,
    )
    try:
        at = EndPoint(endpoint)
        shown = [] if user is None else [UserPassword(user, _password(user, password_file))]
    except (InvalidLocator, AuthError) as error:
        typer.echo(f"zenlake: {error}", err=True)
        raise typer.Exit(USAGE) from None
    opened: list[ProbeResult] = []
    try:
        with _spinner(f"dialling {at.locator} ..."):
            for _ in range(count):
                offer = replace(offer, zid=_new_id())  # the peer may not have forgotten the last
                opened.append(open_once(at, offer, LinkOptions(tls), shown, timeout))
                if json:
                    _print_line(_facts(opened[-1], user))
    except ZError as error:
        typer.echo(_explanation(at.locator, error, advice(error)), err=True)
        raise typer.Exit(REFUSED) from None
    if not json:
        _print_table(opened, user)


def _offer(**fields: Any) -> "Offer":
    from zenlake.transport.offer import Offer
    from zenlake.wire.enums import WireWhatAmI

    bits = BITS.index(int(fields.pop("resolution")))
    whatami = WireWhatAmI[fields.pop("whatami").name]
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return Offer(zid=_new_id(), whatami=whatami, resolution=bits | bits << 2, **given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _new_id() -> "WireZenohId":
    from zenlake.wire.zenohid import MAX_BYTES, WireZenohId

    return WireZenohId(secrets.token_bytes(MAX_BYTES))


def _path(file: Path | None) -> str | None:
    return None if file is None else str(file)


def _password(user: str, file: Path | None) -> str:
    from zenlake.transport.auth import read_secret

    if file is not None:
        return read_secret(file).rstrip("\r\n")
    if not sys.stdin.isatty():
        raise typer.BadParameter("--user needs --password-file where nobody can be asked")
    return str(typer.prompt(f"Password of {user}", hide_input=True, err=True))


def _spinner(text: str) -> AbstractContextManager[object]:
    """On standard error, where it is in nobody's way, and only on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(escape(text)) if console.is_terminal else nullcontext()


def _facts(opened: "ProbeResult", user: str | None) -> dict[str, Any]:
    """What was agreed on, by the names that --json has."""
    peer, agreed = opened.peer, opened.agreed
    return {
        "zid": str(agreed.zid),
        "whatami": agreed.whatami.name,
        "protocol": opened.protocol,
        "local": str(opened.local),
        "remote": str(opened.remote),
        "version": peer.version,
        "batch_size": agreed.batch_size,
        "resolution": BITS[agreed.resolution & 0x03],
        "sn_mask": agreed.sn_mask,
        "qos": agreed.qos,
        "low_latency": agreed.low_latency,
        "compression": agreed.compression,
        "patch": agreed.patch,
        "lease": agreed.lease,
        "peer_lease": agreed.peer_lease,
        "region_name": agreed.region_name,
        "authenticated_as": user,
        "connect_ms": round(opened.connect * 1000, 3),
        "open_ms": round(opened.open * 1000, 3),
    }


def _print_line(facts: dict[str, Any]) -> None:
    sys.stdout.write(jsonlib.dumps(facts) + "\n")
    sys.stdout.flush()


ROWS: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
    ("peer", lambda f: f"{f['zid']}, a {f['whatami'].lower()}"),
    ("link", lambda f: f"{f['local']} to {f['remote']}"),
    ("protocol version", lambda f: f"{f['version']:#x}, patch {f['patch']}"),
    ("largest batch", lambda f: f"{f['batch_size']} bytes"),
    ("sequence numbers", lambda f: f"{f['resolution']} bits, mask {f['sn_mask']:#x}"),
    ("lanes (QoS)", lambda f: "8, by priority" if f["qos"] else "one for all priorities"),
    ("low latency", lambda f: YES_NO[f["low_latency"]]),
    ("compression", lambda f: YES_NO[f["compression"]]),
    ("lease", lambda f: f"{f['lease']:g} s ours, {f['peer_lease']:g} s the peer's"),
    ("region", lambda f: f["region_name"] or "none"),
    ("authenticated as", lambda f: f["authenticated_as"] or "nobody"),
]


def _print_table(opened: list["ProbeResult"], user: str | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    facts = _facts(opened[-1], user)
    table = Table(show_header=False)
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    for name, text in ROWS:
        table.add_row(name, Text(escape(text(facts))))
    table.add_section()
    table.add_row("time to connect", _times([session.connect for session in opened]))
    table.add_row("time to open", _times([session.open for session in opened]))
    Console(highlight=False).print(table)


def _times(seconds: list[float]) -> str:
    ms = [second * 1000 for second in seconds]
    if len(ms) == 1:
        return f"{ms[0]:.2f} ms"
    sessions = counted(len(ms), "session")
    return f"{min(ms):.2f} to {max(ms):.2f} ms, half below {median(ms):.2f} ms ({sessions})"


def _explanation(endpoint: str, error: Exception, next_step: str | None) -> str:
    text = escape(str(error))
    said = text if endpoint.partition("/")[2] in text else f"{endpoint}: {text}"
    return f"zenlake: no session with {said}" + (f"\n{next_step}" if next_step else "")
