"""Options that are durations: 500ms, 5s, 1h30m, or a bare number of seconds.

Knows Typer. The grammar is in zenlake.quantities.
"""

from functools import partial
from typing import Any

import typer

from zenlake import quantities
from zenlake.cli.quantities import format_duration

DAY = 86_400.0


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
    parse = partial(_parse, least=least, most=most, bare=bare)
    return typer.Option(*names, parser=parse, metavar="DURATION", show_default=False, help=help)


def _parse(value: str | float, least: float, most: float, bare: bool) -> float:
    """Return seconds; the default of an option is a number already."""
    if not isinstance(value, str):
        return value
    try:
        seconds = quantities.seconds(value, bare=bare)
    except quantities.BadQuantity as error:
        raise typer.BadParameter(str(error)) from None
    if not least <= seconds <= most:
        limits = f"{format_duration(least)} to {format_duration(most)}"
        raise typer.BadParameter(f"{value!r} is not within {limits}")
    return seconds
