"""The open block: collects received samples until a commit writes them.

Knows batches of messages, the ids in their keys, and losses. Does not know offsets or files.
"""

import struct
from typing import NamedTuple

from zenlake.log import format as layout
from zenlake.log.format import Buffer, KeyText

# Above either limit a block lists the prefixes of its declared ids, but no more full keys.
MAX_NAMED_KEYS = 4096  # Upper bound on the full keys that a block lists.
MAX_NAMED_BYTES = 1 << 20  # Upper bound on the bytes of those keys.

_BATCH = struct.Struct("<qBBxxII4x")
_LINK = struct.Struct("<IBBxx16s")
_KEY = struct.Struct("<BBHII")
_LOSS = struct.Struct("<QqQQqIBBBx16s")


class SourceLink(NamedTuple):
    """A link that samples were received from, while the meaning of its key ids is constant."""

    serial: int
    "Number that the recorder gave the link; a redeclared id makes a new one."
    whatami: int
    id: bytes
    "Zenoh id of the neighbour; empty for the recorder's own session."


class Loss(NamedTuple):
    """A record of missing samples."""

    kind: int
    "One of LANE, SOURCE, LINK and DROPPED in log/format.py."
    time: int
    "Time of detection, in nanoseconds since 1970."
    id: bytes
    first: int = 0
    "First missing sequence number, of a lane or source."
    last: int = 0
    "Last missing sequence number."
    missing: int = layout.UNKNOWN
    entity: int = 0
    lane: int = 0


class OpenBlock:
    """A block that takes samples until it is written. Its buffer can serve another block then."""

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
        "Holds `size` bytes of data. A used buffer is faster: its pages are mapped already."
        self.size = 0
        self.count = 0
        self.all_keys = True
        self._batches = bytearray()
        self._links: dict[SourceLink, int] = {}
        self._prefixes: dict[tuple[int, int], bytes] = {}
        "Key prefix by link, and by mapping and scope as one number (see keytable.number_of)."
        self._suffixes: dict[tuple[int, int], set[bytes]] = {}
        self._named = self._named_bytes = 0
        self.meta = 0
        "Approximate size of the key entries."
        self._losses: list[tuple[int, Loss]] = []
        self._times: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self.count or self._losses)

    def link(self, link: SourceLink) -> int | None:
        """Return the link's number in this block, adding it if new; None if the block is full."""
        place = self._links.get(link)
        if place is None:
            if len(self._links) == layout.MAX_LINKS:
                return None
            place = self._links[link] = len(self._links)
        return place

    def key(self, link: int, number: int, suffix: bytes, prefix: bytes) -> bool:
        """Note a key of the link's messages. Return False if its id has another prefix here."""
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
        """Append a batch of messages, whose keys have been noted with `key`."""
        end = self.size + len(data)
        if end > len(self.buffer):
            self.buffer.extend(bytes(max(end, 2 * len(self.buffer)) - len(self.buffer)))
        self.buffer[self.size : end] = data
        self.size = end
        self._batches += _BATCH.pack(time, link, reliable, count, len(data))
        self.count += count
        self._extend_times(time)

    def add_loss(self, loss: Loss, ahead: int = 0) -> None:
        """Add a record of loss before the next sample, or before the one `ahead` of it."""
        self._losses.append((self.count + ahead, loss))
        self._extend_times(loss.time)

    def _extend_times(self, time: int) -> None:
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
        """Encode the block: the buffers to write, and its header."""
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
        keys = self._key_texts()
        entries = b"".join(
            _KEY.pack(key.link, key.mapping, key.scope, key.suffix_len, len(key.text))
            for key in keys
        )
        first_time, last_time = self._times or (0, 0)
        header = layout.BlockHeader(
            codec=codec,
            flags=layout.ALL_KEYS if self.all_keys else 0,
            length=0,
            partition=partition,
            log_id=log_id,
            base=base,
            first_time=first_time,
            last_time=last_time,
            samples=self.count,
            losses=len(self._losses),
            links=len(self._links),
            keys=len(keys),
            batches=len(self._batches) // _BATCH.size,
            meta=0,
            raw=0,
            previous=previous,
            crc=0,
        )
        meta = b"".join((links, entries, *(key.text for key in keys), losses))
        data = memoryview(self.buffer)[: self.size]
        return layout.encode_block(header, meta, self._batches, data)


assert _BATCH.size == layout.BATCH_ENTRY.itemsize
assert _LINK.size == layout.LINK_ENTRY.itemsize
assert _KEY.size == layout.KEY_ENTRY.itemsize
assert _LOSS.size == layout.LOSS_ENTRY.itemsize
