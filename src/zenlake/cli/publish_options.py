"""The options of whoever publishes: how a put or delete travels.

Knows the options and what they mean to the API. Does not know what is published.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

import zenlake
from zenlake.cli import choices, session_options
from zenlake.cli.render.text import escape

WANTED_SECONDS = 1.0  # for somebody to say that he wants it: a node may still be declaring


@dataclass(frozen=True)
class Travel:
    """How a put or delete travels. Every field is an option of every command that publishes."""

    attachment: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text to go along with the payload.")
    ] = None
    priority: Annotated[
        choices.PriorityChoice,
        typer.Option(help="Which lane of the link it takes; real-time goes first."),
    ] = choices.PriorityChoice.DATA
    congestion_control: Annotated[
        choices.CongestionControlChoice,
        typer.Option(help="On a full lane: block waits, drop loses it without a word."),
    ] = choices.CongestionControlChoice.BLOCK
    reliability: Annotated[
        choices.ReliabilityChoice,
        typer.Option(help="Best effort may take links that lose messages."),
    ] = choices.ReliabilityChoice.RELIABLE
    express: Annotated[
        bool, typer.Option("--express", help="Send at once instead of in a batch.")
    ] = False


EncodingOption = Annotated[
    str | None,
    typer.Option(
        "--encoding",
        metavar="TYPE[;SCHEMA]",
        help="What the payload is, such as application/json. Default: zenoh/string for VALUE, by "
        "its name for a file, else zenoh/bytes.",
    ),
]


@contextmanager
def publisher(
    session: "zenlake.Session", key: str, travel: Travel
) -> Iterator["zenlake.Publisher"]:
    with session.declare_publisher(
        key,
        priority=choices.to_api(travel.priority),
        congestion_control=choices.to_api(travel.congestion_control),
        reliability=choices.to_api(travel.reliability),
        express=travel.express,
    ) as declared:
        until = time.monotonic() + WANTED_SECONDS
        while not declared.matching_status.matching and time.monotonic() < until:
            time.sleep(session_options.POLL_SECONDS)
        if not declared.matching_status.matching:
            waited = f"{WANTED_SECONDS:g} s"
            typer.echo(f"no subscriber for {escape(key)} (waited {waited} for one)", err=True)
        yield declared
