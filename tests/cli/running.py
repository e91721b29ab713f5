"""Run `zenlake` within the test's process."""

import json
from typing import Any

from typer.testing import CliRunner, Result

from zenlake.cli import app

PLAIN = {"FORCE_COLOR": None, "NO_COLOR": None, "COLUMNS": "200", "TERM": "dumb"}


def zenlake(*args: str, stdin: bytes = b"") -> Result:
    return CliRunner(env=PLAIN).invoke(app, list(args), input=stdin, catch_exceptions=False)


def decode(data: bytes, *options: str) -> Result:
    return zenlake("decode", *options, stdin=data)


def decode_json(data: bytes, *options: str) -> list[dict[str, Any]]:
    result = decode(data, "--json", *options)
    return [json.loads(line) for line in result.stdout.splitlines()]
