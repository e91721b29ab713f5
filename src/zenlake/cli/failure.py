"""How a command fails: one line on standard error, and an exit status.

Knows errors and exit statuses. Does not know any command.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn

import typer

from zenlake.cli.render.text import escape
from zenlake.errors import ZError

FAILURE, USAGE = 1, 2  # Exit statuses.


def fail(command: str, error: object, status: int = FAILURE) -> NoReturn:
    """Print one line on standard error and exit with `status`."""
    typer.echo(f"zenlake {command}: {escape(' '.join(str(error).split()))}", err=True)
    raise typer.Exit(status)


@contextmanager
def report_errors(command: str) -> Iterator[None]:
    """Turn an error of the log, the lake, the session or a file into one line and status 1."""
    try:
        yield
    except ZError as error:
        fail(command, error)
    except ModuleNotFoundError as error:
        fail(command, f"{error.name} is not installed: pip install 'zenlake[lake]'")
    except OSError as error:
        if error.filename is None:
            raise  # The error is not about a file: standard output is closed.
        fail(command, f"{error.filename}: {error.strerror}")


@contextmanager
def wrong_usage(option: str = "") -> Iterator[None]:
    """Turn the refusal of a value into wrong usage of `option`."""
    try:
        yield
    except (ZError, ValueError) as error:
        raise typer.BadParameter(f"{option}: {error}" if option else str(error)) from None


def reports_errors(group: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that runs a command of `group` under `report_errors`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def run(*args: Any, **given: Any) -> None:
            with report_errors(f"{group} {function.__name__}"):
                function(*args, **given)

        return run

    return decorate
