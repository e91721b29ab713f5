"""Run `zenlake` within the test's process."""

import json
from typing import Any

from typer.testing import CliRunner, Result

from tests.support.cli_process import Done
from zenlake.cli import app
from zenlake.cli.printing import console

PLAIN = {"FORCE_COLOR": None, "NO_COLOR": None, "COLUMNS": "200", "TERM": "dumb"}

QUIET = {"ZENOH_CONFIG": None, "FORCE_COLOR": None, "NO_COLOR": "1", "COLUMNS": "200"}


def zenlake(*args: str, stdin: bytes = b"") -> Result:
    console.cache_clear()  # Its width is that of an earlier test's environment.
    return CliRunner(env=PLAIN).invoke(app, list(args), input=stdin, catch_exceptions=False)


def decode(data: bytes, *options: str) -> Result:
    return zenlake("decode", *options, stdin=data)


def decode_json(data: bytes, *options: str) -> list[dict[str, Any]]:
    result = decode(data, "--json", *options)
    return [json.loads(line) for line in result.stdout.splitlines()]


def tool(*args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Done:
    """Run the command to its end, as `cli_process.tool` does in a process of its own."""
    console.cache_clear()
    given: dict[str, str | None] = {**QUIET, **(env or {})}
    result = CliRunner(env=given).invoke(app, list(args), input=stdin, catch_exceptions=False)
    return Done(result.exit_code, result.stdout, result.stderr)
