"""The open block: samples as they came, until a commit writes them.

Knows batches of messages, the ids in their keys, and losses. Does not know offsets or files.
"""

import struct
from typing import NamedTuple

from zenlake.log import format as layout
from zenlake.log.format import Buffer, KeyText

MAX_NAMED_KEYS = 4096  # of one block, and
MAX_NAMED_BYTES = 1 << 20  # of their texts; with more only what the ids stand for is kept

_BATCH = struct.Struct("<qBBxxII4x")
_LINK = struct.Struct("<IBBxx16s")
_LOSS = struct.Struct("<QqQQqIBBBx16s")


class SourceLink(NamedTuple):
    """Where samples came from, as long as ids mean the same there."""

    serial: int
    whatami: int
    id: bytes


class Loss(NamedTuple):
    """What did not come, and when that was noticed."""

    kind: int
    time: int
    id: bytes
    first: int = 0
    last: int = 0
    missing: int = layout.UNKNOWN
    entity: int = 0
    lane: int = 0


class OpenBlock:
    """Takes samples until it is written; then only its buffer is of use, to another one."""

    __slots__ = (
        "_batches",
        "_links",
        "_losses",
        "_named",
        "_named_bytes",
        "_prefixes",
        "_suffixes",
        "_times",
        "all_keys",
        "buffer",
        "count",
        "meta",
        "size",
    )

    def __init__(self, buffer: bytearray | None = None) -> None:
        self.buffer = bytearray() if buffer is None else buffer
        "Of which `size` bytes are data. A used one has its pages already."
        self.size = 0
        self.count = 0
        self.all_keys = True
        self._batches = bytearray()
        self._links: dict[SourceLink, int] = {}
        self._prefixes: dict[tuple[int, int], bytes] = {}
        "By link, and by mapping and scope as one number (see keytable.number_of)."
        self._suffixes: dict[tuple[int, int], set[bytes]] = {}
        self._named = self._named_bytes = 0
        self.meta = 0
        "Bytes of the keys, more or less."
        self._losses: list[tuple[int, Loss]] = []
        self._times: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self.count or self._losses)

    def link(self, link: SourceLink) -> int | None:
        """The link's place; None if there is room for no more."""
        place = self._links.get(link)
        if place is None:
            if len(self._links) == layout.MAX_LINKS:
                return None
            place = self._links[link] = len(self._links)
        return place

    def key(self, link: int, number: int, suffix: bytes, prefix: bytes) -> bool:
        """A key that messages of the link have; False if its id stands for something else."""
        name = (link, number)
        suffixes = self._suffixes.get(name)
        if suffixes is None:
            self._prefixes[name] = prefix
            suffixes = self._suffixes[name] = set()
            self.meta += len(prefix)
        elif self._prefixes[name] != prefix:
            return False
        if suffix not in suffixes:
            size = len(prefix) + len(suffix)
            if self._named == MAX_NAMED_KEYS or self._named_bytes + size > MAX_NAMED_BYTES:
                self.all_keys = False
            else:
                suffixes.add(suffix)
                self._named += 1
                self._named_bytes += size
                self.meta += size
        return True

    def add(self, link: int, reliable: bool, time: int, count: int, data: Buffer) -> None:
        """Messages that stood together; their keys were told before."""
        end = self.size + len(data)
        if end > len(self.buffer):
            self.buffer.extend(bytes(max(end, 2 * len(self.buffer)) - len(self.buffer)))
        self.buffer[self.size : end] = data
        self.size = end
        self._batches += _BATCH.pack(time, link, reliable, count, len(data))
        self.count += count
        self._seen(time)

    def lost(self, loss: Loss, ahead: int = 0) -> None:
        """Something is missing before the next sample, or before the one `ahead` of it."""
        self._losses.append((self.count + ahead, loss))
        self._seen(loss.time)

    def _seen(self, time: int) -> None:
        first, last = self._times or (time, time)
        self._times = min(first, time), max(last, time)

    def _key_texts(self) -> list[KeyText]:
        return [
            KeyText(link, number >> 16, number & 0xFFFF, len(suffix), prefix + suffix)
            for (link, number), prefix in self._prefixes.items()
            for suffix in self._suffixes[link, number] or (b"",)
        ]

    def encode(
        self, log_id: bytes, partition: int, base: int, previous: int, codec: int
    ) -> tuple[list[Buffer], layout.BlockHeader]:
        """The buffers to write, and the header that they start with."""
        losses = b"".join(
            _LOSS.pack(
                base + at,
                loss.time,
                loss.first,
                loss.last,
                loss.missing,
                loss.entity,
                loss.kind,
                loss.lane,
                len(loss.id),
                loss.id,
            )
            for at, loss in self._losses
        )
        links = b"".join(
            _LINK.pack(link.serial, link.whatami, len(link.id), link.id) for link in self._links
        )
        return layout.encode_block(
            log_id,
            partition,
            base,
            previous,
            codec=codec,
            all_keys=self.all_keys,
            times=self._times or (0, 0),
            samples=self.count,
            links=links,
            keys=self._key_texts(),
            losses=losses,
            batches=self._batches,
            data=memoryview(self.buffer)[: self.size],
        )


assert _BATCH.size == layout.BATCH_ENTRY.itemsize
assert _LINK.size == layout.LINK_ENTRY.itemsize
assert _LOSS.size == layout.LOSS_ENTRY.itemsize
