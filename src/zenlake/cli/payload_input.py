"""A payload from the command line: a word, a file or standard input; and its encoding.

Knows files and their names. Does not know sessions.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import typer

STANDARD_INPUT = "-"
MAX_PAYLOAD_BYTES = 1 << 30  # Largest message that a Zenoh node accepts by default.
TEXT, BYTES = "zenoh/string", "zenoh/bytes"


def read_payload(value: str | None, file: Path | None) -> bytes | None:
    """Return VALUE, or the content of --file or of standard input; None without any of them."""
    if value is not None and file is not None:
        raise typer.BadParameter("give VALUE or --file, not both")
    try:
        if file is not None:
            with file.open("rb") as opened:
                return _check_size(opened.read(MAX_PAYLOAD_BYTES + 1), str(file))
        if value == STANDARD_INPUT:
            return _check_size(sys.stdin.buffer.read(MAX_PAYLOAD_BYTES + 1), "standard input")
    except OSError as error:
        raise typer.BadParameter(f"--file {file}: {error.strerror}") from None
    return None if value is None else value.encode(errors="surrogateescape")


def read_lines() -> Iterator[bytes]:
    """Yield each line of standard input as it arrives, without its line end."""
    while line := sys.stdin.buffer.readline(MAX_PAYLOAD_BYTES + 1):
        yield _check_size(line, "a line").removesuffix(b"\n").removesuffix(b"\r")


def _check_size(data: bytes, name: str) -> bytes:
    if len(data) > MAX_PAYLOAD_BYTES:
        raise typer.BadParameter(f"{name} is larger than {MAX_PAYLOAD_BYTES} bytes: cut it")
    return data


def choose_encoding(value: str | None, file: Path | None, given: str | None) -> str:
    """Return --encoding if it is given; else guess from the file's name; text for a typed VALUE.

    >>> choose_encoding(None, Path("pose.json"), None), choose_encoding("hello", None, None)
    ('application/json', 'zenoh/string')
    """
    if given is not None:
        return given
    if file is not None:
        from mimetypes import MimeTypes

        return MimeTypes().guess_type(file.name)[0] or BYTES
    return BYTES if value is None or value == STANDARD_INPUT else TEXT
