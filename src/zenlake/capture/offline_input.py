"""Input of `zenlake decode`: a file or standard input, raw or as hexadecimal text.

Does not know messages. All positions count the decoded bytes, also of hexadecimal text.
"""

import sys
from pathlib import Path
from typing import NamedTuple

from zenlake.capture.report import CaptureError

STANDARD_INPUT = "-"


class InputSource(NamedTuple):
    """Bytes to decode, and their name for messages."""

    name: str
    data: bytes
    datagram_ends: dict[int, int]
    "End of each datagram by its start: a line of hexadecimal text, or the whole input."


def head_of(file: str, size: int) -> bytes:
    """Return the first bytes of a file; none of standard input or of a file that cannot be read."""
    if file == STANDARD_INPUT:
        return b""
    try:
        with Path(file).open("rb") as opened:
            return opened.read(size)
    except OSError:
        return b""


def read_source(file: str, *, is_hex: bool) -> InputSource:
    """Read all of `file`; hexadecimal text on standard input is detected.

    CaptureError: it cannot be read.
    """
    name = "standard input" if file == STANDARD_INPUT else file
    try:
        data = sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes()
    except OSError as error:
        raise CaptureError(f"{name}: cannot be read: {error.strerror}") from None
    lines = [data]
    if is_hex or (file == STANDARD_INPUT and _is_hex_text(data)):
        lines = _hex_lines(name, data)
    ends: dict[int, int] = {}
    size = 0
    for line in lines:
        if line:
            ends[size] = size + len(line)
            size += len(line)
    return InputSource(name, b"".join(lines), ends)


def _text_lines(data: bytes) -> list[str]:
    """Return the lines, comments as empty ones."""
    lines = data.decode(errors="replace").split("\n")
    return ["" if line.lstrip().startswith("#") else line.strip() for line in lines]


def _is_hex_text(data: bytes) -> bool:
    """Return whether `data` is hexadecimal digits, white space and comments.

    A raw stream is not: INIT, FRAME and KEEP_ALIVE begin with bytes that are not text, and a
    comment must be printable, in case a stream starts with the byte "#".
    """
    text = data.decode(errors="replace").replace("\t", " ")
    if not all(line.rstrip("\r").isprintable() for line in text.split("\n")):
        return False
    digits = "".join(_text_lines(data)).replace(" ", "")
    return bool(digits) and set(digits) <= set("0123456789abcdefABCDEF")


def _hex_lines(name: str, data: bytes) -> list[bytes]:
    lines = []
    for number, text in enumerate(_text_lines(data), start=1):
        try:
            lines.append(bytes.fromhex(text))
        except ValueError:
            why = f"line {number} is not whole bytes in hexadecimal"
            raise CaptureError(f"{name}: {why}") from None
    return lines
