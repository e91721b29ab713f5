"""Read and write golden vectors: `recorded/<name>.hex`, described in README.md.

Knows lines, hex and length prefixes; knows nothing of messages.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

VECTORS = Path(__file__).parent / "recorded"
FRAMINGS = ("stream16", "stream32", "datagram")
HANDSHAKE_BATCHES = 2
"""Batches of each sender, INIT and OPEN, that keep the 2-byte prefix under `stream32`."""


@dataclass(frozen=True)
class Vector:
    """Batches that real nodes exchanged, in order of capture and without length prefixes."""

    name: str
    comments: list[str]
    framing: str = "stream16"
    compression: bool = False
    batches: list[tuple[str, bytes]] = field(default_factory=list)

    def senders(self) -> list[str]:
        """Who sent something, in order of their first batch."""
        return list(dict.fromkeys(sender for sender, _ in self.batches))

    def of(self, sender: str) -> list[bytes]:
        """The batches of one sender."""
        return [batch for who, batch in self.batches if who == sender]

    def stream(self, sender: str) -> bytes:
        """The bytes `sender` wrote to its stream, length prefixes included."""
        if self.framing == "datagram":
            raise ValueError(f"{self.name} has datagrams, not a stream")
        out = bytearray()
        for index, batch in enumerate(self.of(sender)):
            wide = self.framing == "stream32" and index >= HANDSHAKE_BATCHES
            out += len(batch).to_bytes(4 if wide else 2, "little") + batch
        return bytes(out)


def dump(vector: Vector) -> str:
    """The text of a vector's file."""
    lines = [f"# {comment}" for comment in vector.comments]
    lines.append(f"framing: {vector.framing}")
    lines.append(f"compression: {'yes' if vector.compression else 'no'}")
    lines.extend(f"{sender}> {batch.hex()}".rstrip() for sender, batch in vector.batches)
    return "\n".join(lines) + "\n"


def parse(name: str, lines: Iterable[str]) -> Vector:
    """The vector in the lines of a file; ValueError says which line is not one."""
    comments: list[str] = []
    directives = {"framing": "stream16", "compression": "no"}
    batches: list[tuple[str, bytes]] = []
    for number, raw in enumerate(lines, start=1):
        line = raw.strip()
        if line.startswith("#"):
            comments.append(line[1:].strip())
        elif ">" in line:
            sender, _, text = line.partition(">")
            batches.append((sender, bytes.fromhex(text)))
        elif ": " in line and line.partition(": ")[0] in directives:
            key, _, value = line.partition(": ")
            directives[key] = value
        elif line:
            raise ValueError(f"{name}.hex line {number}: neither comment, directive nor batch")
    if directives["framing"] not in FRAMINGS or directives["compression"] not in ("yes", "no"):
        raise ValueError(f"{name}.hex: unknown value in {directives}")
    return Vector(
        name, comments, directives["framing"], directives["compression"] == "yes", batches
    )


def load(name: str) -> Vector:
    """The recorded vector called `name`."""
    text = (VECTORS / f"{name}.hex").read_text(encoding="ascii")
    return parse(name, text.splitlines())


def names() -> list[str]:
    """The names of all recorded vectors, sorted."""
    return sorted(path.stem for path in VECTORS.glob("*.hex"))


def load_all() -> list[Vector]:
    """Every recorded vector, sorted by name."""
    return [load(name) for name in names()]
