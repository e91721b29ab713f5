"""The options of whoever publishes: how a put or delete travels.

Knows the options and what they mean to the API. Does not know what is published.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

import zenlake
from zenlake.cli import choices, session_options

WANTED_SECONDS = 1.0  # for somebody to say that he wants it: a node may still be declaring

PriorityOption = Annotated[
    choices.PriorityChoice,
    typer.Option(help="Which lane of the link it takes; real-time goes first."),
]
CongestionOption = Annotated[
    choices.CongestionControlChoice,
    typer.Option(help="On a full lane: block waits, drop loses it without a word."),
]
ReliabilityOption = Annotated[
    choices.ReliabilityChoice, typer.Option(help="Best effort may take links that lose messages.")
]
ExpressOption = Annotated[
    bool, typer.Option("--express", help="Send at once instead of in a batch.")
]
AttachmentOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Text to go along with the payload.")
]
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
    session: "zenlake.Session",
    key: str,
    priority: choices.PriorityChoice,
    congestion_control: choices.CongestionControlChoice,
    reliability: choices.ReliabilityChoice,
    express: bool,
) -> Iterator["zenlake.Publisher"]:
    with session.declare_publisher(
        key,
        priority=choices.to_api(priority),
        congestion_control=choices.to_api(congestion_control),
        reliability=choices.to_api(reliability),
        express=express,
    ) as declared:
        until = time.monotonic() + WANTED_SECONDS
        while not declared.matching_status.matching and time.monotonic() < until:
            time.sleep(session_options.POLL_SECONDS)
        yield declared
