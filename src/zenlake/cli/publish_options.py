"""The options of the commands that publish: how a put or delete is sent.

Knows the options and the API's names for them. Does not know what is published.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

import zenlake
from zenlake.cli import session_options
from zenlake.cli.options import (
    CongestionControlChoice,
    PriorityChoice,
    ReliabilityChoice,
    to_api,
)
from zenlake.cli.render.text import escape

SUBSCRIBER_SECONDS = 1.0  # Time a subscriber gets to declare itself before the first put.


@dataclass(frozen=True)
class PublishOptions:
    """Options of every command that publishes, one field per option."""

    attachment: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text to attach to the sample.")
    ] = None
    priority: Annotated[
        PriorityChoice,
        typer.Option(help="Priority of the message; real-time is sent first."),
    ] = "data"
    congestion_control: Annotated[
        CongestionControlChoice,
        typer.Option(help="When the send queue is full: block waits, drop discards the message."),
    ] = "block"
    reliability: Annotated[
        ReliabilityChoice,
        typer.Option(help="best-effort may use links that lose messages."),
    ] = "reliable"
    express: Annotated[
        bool, typer.Option("--express", help="Send at once instead of in a batch.")
    ] = False


EncodingOption = Annotated[
    str | None,
    typer.Option(
        "--encoding",
        metavar="TYPE[;SCHEMA]",
        help="Encoding of the payload, such as application/json. Default: zenoh/string for VALUE, "
        "by its name for a file, else zenoh/bytes.",
    ),
]


@contextmanager
def declare_publisher(
    session: "zenlake.Session", key: str, options: PublishOptions
) -> Iterator["zenlake.Publisher"]:
    """Declare a publisher, and wait a moment for a subscriber; say so if there is none."""
    with session.declare_publisher(
        key,
        priority=to_api("Priority", options.priority),
        congestion_control=to_api("CongestionControl", options.congestion_control),
        reliability=to_api("Reliability", options.reliability),
        express=options.express,
    ) as publisher:
        until = time.monotonic() + SUBSCRIBER_SECONDS
        while not publisher.matching_status.matching and time.monotonic() < until:
            time.sleep(session_options.POLL_SECONDS)
        if not publisher.matching_status.matching:
            waited = f"{SUBSCRIBER_SECONDS:g} s"
            typer.echo(f"no subscriber for {escape(key)} (waited {waited} for one)", err=True)
        yield publisher
