"""Options that several commands share; the API's enumerations have its names in lower case.

Knows Typer. Does not know any command.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import zenlake
from zenlake import quantities
from zenlake.cli.failure import wrong_usage
from zenlake.cli.quantities import format_duration

DAY = 86_400.0

ModeChoice = Literal["client", "peer", "router"]
PriorityChoice = Literal[
    "real-time",
    "interactive-high",
    "interactive-low",
    "data-high",
    "data",
    "data-low",
    "background",
]
CongestionControlChoice = Literal["drop", "block", "block-first"]
ReliabilityChoice = Literal["best-effort", "reliable"]
QueryTargetChoice = Literal["best-matching", "all", "all-complete"]
ConsolidationChoice = Literal["auto", "none", "monotonic", "latest"]


def command_group(help: str) -> typer.Typer:  # noqa: A002
    """Return a group without commands."""
    return typer.Typer(
        help=help,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # Plain text without boxes leaves more room for words.
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def to_api(enumeration: str, choice: str | None) -> Any:
    """Return the member of the API's enumeration; None stays None."""
    if choice is None:
        return None
    return getattr(getattr(zenlake, enumeration), choice.upper().replace("-", "_"))


def json_option(help: str) -> Any:  # noqa: A002
    """Return the Typer option for output that programs read."""
    return typer.Option("--json", help=help)


def count_option(noun: str, *, endless: bool = False) -> Any:
    """Return the Typer option of the number of items after which a command ends.

    An `endless` command ends by Ctrl-C without it.
    """
    rest = " Default: Ctrl-C." if endless else ""
    return typer.Option("--count", "-n", min=1, help=f"End after this many {noun}.{rest}")


def duration_option(
    *names: str,
    help: str,  # noqa: A002
    least: float = 0.1,
    most: float = DAY,
    bare: bool = True,
) -> Any:
    """Return the Typer option of a duration; `help` names the default, if there is one.

    With `bare`, a number without a unit means seconds.
    """
    parse = partial(_parse_duration, least=least, most=most, bare=bare)
    return typer.Option(*names, parser=parse, metavar="DURATION", show_default=False, help=help)


def _parse_duration(value: str | float, least: float, most: float, bare: bool) -> float:
    """Return seconds; the default of an option is a number already."""
    if not isinstance(value, str):
        return value
    with wrong_usage():
        seconds = quantities.seconds(value, bare=bare)
    if not least <= seconds <= most:
        limits = f"{format_duration(least)} to {format_duration(most)}"
        raise typer.BadParameter(f"{value!r} is not within {limits}")
    return seconds


LakeArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of the lake, or its lake.toml.")
]
SecondsOption = Annotated[
    float | None, duration_option("--seconds", help="End after this time, such as 30s.")
]
TimeoutOption = Annotated[
    float, duration_option("--timeout", least=0.01, help="Longest wait for replies. Default: 10s.")
]
