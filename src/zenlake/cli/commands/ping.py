"""`zenlake ping`: open a session, show what was agreed on, close it.

Knows options, the terminal, and the remedy when no session opens. A node does the work.
"""

import secrets
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from zenlake.cli import session_options
from zenlake.cli.display import error_console
from zenlake.cli.failure import FAILURE, USAGE, wrong_usage
from zenlake.cli.options import ModeChoice, duration_option, json_option
from zenlake.cli.printing import print_object, print_table, properties_table
from zenlake.cli.render.text import escape
from zenlake.errors import AuthError, InvalidLocator, LinkError, SessionRefused, ZError
from zenlake.quantities import counted
from zenlake.wire.enums import CloseReason
from zenlake.wire.locator import EndPoint

if TYPE_CHECKING:
    from zenlake.link.options import LinkOptions
    from zenlake.runtime.node import NodeConfig
    from zenlake.runtime.transport_session import TransportSession
    from zenlake.transport.auth import Authenticator
    from zenlake.transport.offer import Offer

MAX_COUNT = 10_000
MAX_TIMEOUT = 3600.0
MAX_LEASE = 1e9
BITS = (8, 16, 32, 64)
YES_NO = {True: "yes", False: "no"}


@dataclass(frozen=True)
class OfferOptions:
    """Options of the session that is offered."""

    mode: Annotated[ModeChoice, typer.Option(help="Role to announce.")] = "client"
    qos: Annotated[
        bool | None,
        typer.Option("--qos/--no-qos", help="Offer lanes by priority. Default: yes."),
    ] = None
    low_latency: Annotated[
        bool, typer.Option("--low-latency", help="Offer low latency, which has no lanes.")
    ] = False
    compression: Annotated[bool, typer.Option("--compression", help="Offer compression.")] = False
    batch_size: Annotated[
        int | None,
        typer.Option(metavar="BYTES", help="Size of the largest batch. Default: 65535."),
    ] = None
    lease: Annotated[
        float,
        duration_option(
            "--lease",
            least=0.0,
            most=MAX_LEASE,
            help="Time without a message after which the node is to close the session. Default: "
            "10s.",
        ),
    ] = 10.0
    resolution: Annotated[
        Literal["8", "16", "32", "64"],
        typer.Option(help="Bits of sequence numbers and request ids."),
    ] = "32"

    def build(self) -> "Offer":
        """Return the offer that the options describe."""
        from zenlake.transport.offer import Offer
        from zenlake.wire.enums import WireWhatAmI
        from zenlake.wire.zenohid import MAX_BYTES, WireZenohId

        bits, size = BITS.index(int(self.resolution)), self.batch_size
        with wrong_usage():
            offer = Offer(
                zid=WireZenohId(secrets.token_bytes(MAX_BYTES)),
                whatami=WireWhatAmI[self.mode.upper()],
                resolution=bits | bits << 2,
                qos=not self.low_latency if self.qos is None else self.qos,
                low_latency=self.low_latency,
                compression=self.compression,
                lease_ms=round(self.lease * 1000),
            )
            return offer if size is None else replace(offer, batch_size=size)


@dataclass(frozen=True)
class LoginOptions:
    """Options of authentication by user and password."""

    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Authenticate as this user; without --password-file the password is asked for.",
        ),
    ] = None
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File that holds the password of --user.")
    ] = None

    def authenticators(self) -> "list[Authenticator]":
        """Return how this node proves who it is. AuthError: the password cannot be used."""
        from zenlake.transport.usrpwd import UserPassword

        return [] if self.user is None else [UserPassword(self.user, self._password(self.user))]

    def _password(self, user: str) -> str:
        from zenlake.transport.auth import read_secret

        if self.password_file is not None:
            return read_secret(self.password_file).rstrip("\r\n")
        if not sys.stdin.isatty():
            raise typer.BadParameter("--user needs --password-file where no terminal can ask")
        return str(typer.prompt(f"Password of {user}", hide_input=True, err=True))


@dataclass(frozen=True)
class CertificateOptions:
    """Options of TLS."""

    ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TLS: certificates of the authorities to trust."),
    ] = None
    cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TLS: client certificate, with --key.")
    ] = None
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TLS: private key of --cert.")
    ] = None
    verify_name: Annotated[
        bool,
        typer.Option(
            "--verify-name/--no-verify-name",
            help="TLS: check that the certificate names the host in ENDPOINT.",
        ),
    ] = True

    def build(self) -> "LinkOptions":
        """Return the link options."""
        from zenlake.link.options import LinkOptions, TlsOptions

        return LinkOptions(
            TlsOptions(
                root_ca_certificate=_path(self.ca),
                connect_certificate=_path(self.cert),
                connect_private_key=_path(self.key),
                enable_mtls=self.cert is not None,
                verify_name_on_connect=self.verify_name,
            )
        )


def _path(file: Path | None) -> str | None:
    return None if file is None else str(file)


@session_options.expand_options
def ping(
    certificates: CertificateOptions,
    login: LoginOptions,
    offered: OfferOptions,
    endpoint: Annotated[
        str,
        typer.Argument(metavar="ENDPOINT", help="Node to connect to, such as tcp/127.0.0.1:7447."),
    ],
    count: Annotated[
        int,
        typer.Option(min=1, max=MAX_COUNT, help="Number of sessions to open, one after another."),
    ] = 1,
    timeout: Annotated[
        float,
        duration_option(
            "--timeout", most=MAX_TIMEOUT, help="Longest wait for one session. Default: 10s."
        ),
    ] = 10.0,
    json: Annotated[bool, json_option("Print one JSON object per session, one per line.")] = False,
) -> None:
    """Open a session with a node and show what was agreed on.

    Two times are shown: until the link is established (TCP connect, TLS, WebSocket upgrade), and
    from then until the session is open (INIT and OPEN, so two round trips).

    Exit status: 0 the session opened, 1 it did not (the reason is printed), 2 wrong usage.

    \b
    Examples:
      zenlake ping tcp/127.0.0.1:7447
      zenlake ping tcp/10.0.0.5:7447 --count 20 --json
      zenlake ping tls/example.org:7447 --ca ca.pem --user alice --password-file secret.txt
    """
    from zenlake.runtime.node import NodeConfig

    offers, options = [offered.build() for _ in range(count)], certificates.build()
    try:
        at = EndPoint(endpoint)
        authenticators = login.authenticators()
    except (InvalidLocator, AuthError) as error:
        typer.echo(f"zenlake: {error}", err=True)
        raise typer.Exit(USAGE) from None
    opened: list[dict[str, Any]] = []
    with _spinner(f"connecting to {at.locator} ..."):
        for offer in offers:  # Each has a new id: the peer may still remember the last one.
            config = NodeConfig(
                offer=offer, options=options, authenticators=authenticators, open_seconds=timeout
            )
            opened.append(_facts(_probe(at, config), login.user))
            if json:
                print_object(opened[-1])
    if not json:
        _print_table(opened)


def _probe(at: EndPoint, config: "NodeConfig") -> "TransportSession":
    """Return a session that was opened and closed."""
    from zenlake.runtime.message_handler import MessageHandler
    from zenlake.runtime.node import Node

    try:
        with Node(config, MessageHandler(lambda *_: None)) as node:
            return node.connect(at)
    except ZError as error:
        typer.echo(_explain(at.locator, _restate(error)), err=True)
        raise typer.Exit(FAILURE) from None


def _spinner(text: str) -> AbstractContextManager[object]:
    """Show a spinner on standard error if it is a terminal."""
    stderr = error_console()
    return stderr.status(escape(text)) if stderr.is_terminal else nullcontext()


def _facts(session: "TransportSession", user: str | None) -> dict[str, Any]:
    """Return what was agreed on, by the names that --json has."""
    link, peer, agreed = session.link, session.handshake.peer, session.agreement
    assert peer is not None
    return {
        "zid": str(agreed.zid),
        "whatami": agreed.whatami.name,
        "protocol": link.protocol,
        "local": str(link.local),
        "remote": str(link.remote),
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
        "connect_ms": round((session.linked_at - session.began_at) * 1000, 3),
        "open_ms": round((session.opened_at - session.linked_at) * 1000, 3),
    }


ROWS: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
    ("peer", lambda f: f"{f['zid']}, a {f['whatami'].lower()}"),
    ("link", lambda f: f"{f['local']} to {f['remote']}"),
    ("protocol version", lambda f: f"{f['version']:#x}, patch {f['patch']}"),
    ("largest batch", lambda f: counted(f["batch_size"], "byte")),
    ("sequence numbers", lambda f: f"{f['resolution']} bits, mask {f['sn_mask']:#x}"),
    ("lanes (QoS)", lambda f: "8, by priority" if f["qos"] else "one for all priorities"),
    ("low latency", lambda f: YES_NO[f["low_latency"]]),
    ("compression", lambda f: YES_NO[f["compression"]]),
    ("lease", lambda f: f"{f['lease']:g} s ours, {f['peer_lease']:g} s the peer's"),
    ("region", lambda f: f["region_name"] or "none"),
    ("authenticated as", lambda f: f["authenticated_as"] or "no user"),
]


def _print_table(opened: list[dict[str, Any]]) -> None:
    facts = opened[-1]
    table = properties_table((name, escape(text(facts))) for name, text in ROWS)
    table.add_section()
    table.add_row("time to connect", _format_times([session["connect_ms"] for session in opened]))
    table.add_row("time to open", _format_times([session["open_ms"] for session in opened]))
    print_table(table)


def _format_times(ms: list[float]) -> str:
    if len(ms) == 1:
        return f"{ms[0]:.2f} ms"
    sessions = counted(len(ms), "session")
    return f"{min(ms):.2f} to {max(ms):.2f} ms, half below {median(ms):.2f} ms ({sessions})"


# ---- no session

RESTATED = {
    "no link within": "no link in time",
    "no session within": "no link in time",
    "the handshake took too long": "no answer in time",
    "the peer closed the link": "it closed the link without a word",
}
"The words of a node, and what they mean to a user who asked for one session."
BY_REASON: dict[int, str] = {
    CloseReason.GENERIC: "It gives no reason. Its own log says more.",
    CloseReason.UNSUPPORTED: "It does not support what was asked for. Offer less: --no-qos.",
    CloseReason.INVALID: "It cannot use what was said. Does it demand authentication (--user), or "
    "speak another version of the protocol? Its own log says more.",
    CloseReason.MAX_SESSIONS: "It has as many sessions as it takes: close some, or raise its "
    "limit (transport/unicast/max_sessions).",
    CloseReason.MAX_LINKS: "It has a session with this id already.",
    CloseReason.EXPIRED: "It waited too long for this node: is the network slow?",
    CloseReason.UNRESPONSIVE: "It waited too long for this node: is the network slow?",
    CloseReason.CONNECTION_TO_SELF: "This is the node itself.",
}
BY_WORDS = {
    "Hostname mismatch": "The certificate is for another name: connect to the name that it has, "
    "or leave the name unchecked with --no-verify-name.",
    "IP address mismatch": "The certificate is for another address: connect to the name that it "
    "has, or leave the name unchecked with --no-verify-name.",
    "self-signed certificate": "No authority that is trusted here has signed it: give the "
    "authority's certificate with --ca FILE.",
    "unable to get local issuer": "No authority that is trusted here has signed it: give the "
    "authority's certificate with --ca FILE.",
    "certificate required": "It demands a client certificate: give --cert FILE and --key FILE.",
    "(GENERIC) while INIT ack": "It gives no reason. Does it demand authentication (--user)? Its "
    "own log says more.",
    "(GENERIC) while OPEN ack": "It gives no reason. Is the user or the password wrong? Its own "
    "log says more.",
    "(INVALID) while OPEN ack": "Has it as many sessions as it takes? Its own log says more.",
    "does not answer user-password": "It does not ask for a password: leave out --user.",
    "no link in time": "Is the host up, does a firewall drop what is sent to this port, and does "
    "it speak this protocol (tcp, tls, ws)? Wait longer with --timeout.",
    "no answer in time": "Something is there and says nothing: is it a Zenoh node, and does it "
    "speak this protocol (tcp, tls, ws)? Wait longer with --timeout.",
    "without a word": "Is it a Zenoh node, and does it speak this protocol (tcp, tls, ws)?",
}


def _restate(error: ZError) -> ZError:
    for words, meaning in RESTATED.items():
        if words in str(error):
            return SessionRefused(meaning, CloseReason.GENERIC)
    return error.__cause__ if isinstance(error.__cause__, LinkError) else error


def _explain(endpoint: str, error: ZError) -> str:
    text = escape(str(error))
    problem = text if endpoint.partition("/")[2] in text else f"{endpoint}: {text}"
    remedy = _suggest_remedy(error)
    return f"zenlake: no session with {problem}" + (f"\n{remedy}" if remedy else "")


def _suggest_remedy(error: ZError) -> str | None:
    """Return what a user can do next, where the error does not say it itself."""
    text = str(error)
    for words, remedy in BY_WORDS.items():
        if words in text:
            return remedy
    if isinstance(error, SessionRefused) and error.by_peer:
        return BY_REASON.get(error.reason)
    return None
