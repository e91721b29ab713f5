"""The bytes to decode: from a file or standard input, raw or as hexadecimal text.

Knows nothing of messages. Positions everywhere else count the bytes this gives, so behind
hexadecimal text they count the bytes that it stands for.
"""

import sys
from pathlib import Path
from typing import NamedTuple

STANDARD_INPUT = "-"


class SourceError(Exception):
    """The input cannot be had; the text is for the user and names the input."""


class InputSource(NamedTuple):
    name: str
    data: bytes
    datagram_ends: dict[int, int]
    "Of each datagram, by its start, when the input is datagrams: a line of hex, or all of it."


def head_of(file: str, size: int) -> bytes:
    """The first bytes of a file; nothing of standard input or of what cannot be read."""
    if file == STANDARD_INPUT:
        return b""
    try:
        with Path(file).open("rb") as opened:
            return opened.read(size)
    except OSError:
        return b""


def read_source(file: str, *, is_hex: bool) -> InputSource:
    """Read all of `file`; hexadecimal text on standard input is recognised by itself."""
    if file == STANDARD_INPUT:
        name, data = "standard input", sys.stdin.buffer.read()
    else:
        name, data = file, _read_file(file)
    try:
        if is_hex or (file == STANDARD_INPUT and _is_hex_text(data)):
            return from_lines(name, _hex_lines(data))
    except ValueError as error:
        raise SourceError(f"{name}: {error}") from None
    return from_lines(name, [data])


def from_lines(name: str, lines: list[bytes]) -> InputSource:
    ends: dict[int, int] = {}
    size = 0
    for line in lines:
        if line:
            ends[size] = size + len(line)
            size += len(line)
    return InputSource(name, b"".join(lines), ends)


def _read_file(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror}") from None


def _text_lines(data: bytes) -> list[str]:
    """The lines that are not comments."""
    lines = data.decode(errors="replace").split("\n")
    return ["" if line.lstrip().startswith("#") else line.strip() for line in lines]


def _is_hex_text(data: bytes) -> bool:
    """Whether all of it is hex digits, white space and comments, and some of it digits.

    No batch looks like that: INIT, FRAME and KEEP_ALIVE begin with bytes that are not text. That a
    comment must be printable keeps a raw stream that starts with the byte "#" from being one.
    """
    text = data.decode(errors="replace").replace("\t", " ")
    if not all(line.rstrip("\r").isprintable() for line in text.split("\n")):
        return False
    digits = "".join(_text_lines(data)).replace(" ", "")
    return bool(digits) and set(digits) <= set("0123456789abcdefABCDEF")


def _hex_lines(data: bytes) -> list[bytes]:
    lines = []
    for number, text in enumerate(_text_lines(data), start=1):
        try:
            lines.append(bytes.fromhex(text))
        except ValueError:
            raise ValueError(f"line {number} is not whole bytes in hexadecimal") from None
    return lines
