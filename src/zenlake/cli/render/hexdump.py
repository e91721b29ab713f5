"""A hexdump of the bytes around a position.

Knows bytes. Does not know what they mean.
"""

WIDTH = 16
LINES_AROUND = 2


def hexdump(data: bytes, pos: int) -> str:
    """Return a few lines of 16 bytes with `pos` marked; it may be just after the last byte."""
    marked = pos // WIDTH
    lines = []
    for row in range(max(0, marked - LINES_AROUND), marked + LINES_AROUND + 1):
        chunk = data[row * WIDTH : (row + 1) * WIDTH]
        if chunk:
            lines.append(_line(row * WIDTH, chunk))
        if row == marked:
            lines.append(" " * (10 + 3 * (pos % WIDTH)) + "^^")
    return "\n".join(lines)


def _line(offset: int, chunk: bytes) -> str:
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in chunk)
    return f"{offset:08x}  {chunk.hex(' '):<{3 * WIDTH}} {text}"
