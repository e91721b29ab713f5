"""A payload from the command line: a word, a file or standard input; and what encoding it has.

Knows files and their names. Does not know sessions.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import typer

STANDARD_INPUT = "-"
MAX_PAYLOAD_BYTES = 1 << 30  # what a Zenoh node takes as one message, by default
TEXT, BYTES = "zenoh/string", "zenoh/bytes"


def payload(value: str | None, file: Path | None) -> bytes | None:
    """VALUE, or what stands in --file or on standard input; None when neither is given."""
    if value is not None and file is not None:
        raise typer.BadParameter("give VALUE or --file, not both")
    try:
        if file is not None:
            with file.open("rb") as opened:
                return _bounded(opened.read(MAX_PAYLOAD_BYTES + 1), str(file))
        if value == STANDARD_INPUT:
            return _bounded(sys.stdin.buffer.read(MAX_PAYLOAD_BYTES + 1), "standard input")
    except OSError as error:
        raise typer.BadParameter(f"--file {file}: {error.strerror}") from None
    return None if value is None else value.encode(errors="surrogateescape")


def lines() -> Iterator[bytes]:
    """Each line of standard input, as it comes, without its end."""
    while line := sys.stdin.buffer.readline(MAX_PAYLOAD_BYTES + 1):
        yield _bounded(line, "a line").removesuffix(b"\n").removesuffix(b"\r")


def _bounded(data: bytes, name: str) -> bytes:
    if len(data) > MAX_PAYLOAD_BYTES:
        raise typer.BadParameter(f"{name} is larger than {MAX_PAYLOAD_BYTES} bytes: cut it")
    return data


def encoding_of(value: str | None, file: Path | None, given: str | None) -> str:
    """What --encoding says; else by the file's name; else text for what was typed.

    >>> encoding_of(None, Path("pose.json"), None), encoding_of("hello", None, None)
    ('application/json', 'zenoh/string')
    """
    if given is not None:
        return given
    if file is not None:
        from mimetypes import MimeTypes

        return MimeTypes().guess_type(file.name)[0] or BYTES
    return BYTES if value is None or value == STANDARD_INPUT else TEXT
