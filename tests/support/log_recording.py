"""Recorders under test: who sends to them, what their log holds, and disks that misbehave.

A log is read here by its blocks and the object codec, without any index, to be compared with what
others read of it. Every wait has a deadline.
"""

import os
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from tests.golden.proxy import free_port
from tests.support.raw_link import BATCH_SIZE, LEASE_MS, RawLink
from tests.support.session_pairs import configured
from zenlake.log.files import Files, read_id, segment_name, segments
from zenlake.log.format import LOSS_KINDS, RELIABLE, SEGMENT_BYTES, Block, Buffer
from zenlake.log.read.reader import Reader
from zenlake.log.write import recorder as recorders
from zenlake.log.write.recorder import Recorder
from zenlake.log.write.recovery import SegmentWalk
from zenlake.log.write.source_gaps import SourceGap
from zenlake.log.write.writer import Writer
from zenlake.wire.cursor import ByteReader as Bytes
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.enums import WirePriority, WireWhatAmI
from zenlake.wire.frame import Frame
from zenlake.wire.init import Init
from zenlake.wire.network import NETWORK, NetworkMessage
from zenlake.wire.open import Open
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

DEADLINE = 30.0  # Seconds: a busy machine is slow, not wrong.
SN_MASK = 0x0FFF_FFFF  # Mask of sequence numbers with the default resolution.


# ---- a recorder and who sends to it


@contextmanager
def recording(
    path: Path, keys: Any = "rec/**", *, settings: dict[str, Any] | None = None, **options: Any
) -> Iterator[tuple[Recorder, int]]:
    """A recorder with a session of its own, and the port where it listens."""
    port = free_port()
    config = configured(listen__endpoints=[f"tcp/127.0.0.1:{port}"], **(settings or {}))
    with Recorder(path, keys, config=config, **options) as recorder:
        yield recorder, port


class Lanes(RawLink):
    """A client that names lanes and numbers of its frames itself."""

    def __init__(self, port: int, zid: WireZenohId, *, qos: bool = True, first: int = 0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.send_batch([Init(zid, WireWhatAmI.CLIENT, batch_size=BATCH_SIZE, patch=1, qos=qos)])
        (ack,) = self.receive()
        assert isinstance(ack, Init), ack
        assert ack.qos is qos
        assert ack.cookie is not None
        self.send_batch([Open(LEASE_MS, first, ack.cookie)])
        (opened,) = self.receive()
        assert isinstance(opened, Open), opened
        self.batch_size = min(BATCH_SIZE, ack.batch_size)
        self.next_sn = first

    def __enter__(self) -> Self:
        return self

    def frame(
        self,
        sn: int,
        *messages: NetworkMessage,
        reliable: bool = True,
        priority: WirePriority = WirePriority.DATA,
    ) -> None:
        self.send_batch([Frame(sn, reliable, priority, list(messages))])


def put(key: str, payload: bytes, source: tuple[bytes, int, int] | None = None) -> Push:
    """`source`: its id, entity and number."""
    info = None
    if source is not None:
        zid, entity, number = source
        info = WireSourceInfo(WireEntityId(WireZenohId(zid), entity), number)
    return Push(WireExpr(0, key), Put(payload, source_info=info))


# ---- what a log holds


class Walked(NamedTuple):
    """A sample as it stands in its block."""

    offset: int
    key: str
    push: Push
    link: bytes
    reliable: bool
    time: int
    together: int
    "How many messages its batch has."

    @property
    def payload(self) -> bytes:
        assert isinstance(self.push.body, Put)
        return bytes(self.push.body.payload)  # type: ignore[arg-type]  # it is in one piece


class Lost(NamedTuple):
    """A record of loss."""

    kind: str
    offset: int
    id: bytes
    first: int
    last: int
    missing: int
    entity: int
    lane: int
    time: int


def blocks(path: Path, partition: int = 0) -> Iterator[Block]:
    folder, log_id = path / str(partition), read_id(path)
    for base in segments(folder):
        walk = SegmentWalk(folder / segment_name(base), log_id, partition, SEGMENT_BYTES, base)
        yield from walk
        assert not walk.damage
        assert walk.position == walk.size, walk.reason


def walked(path: Path, partition: int = 0) -> list[Walked]:
    """All samples, by the object codec."""
    found: list[Walked] = []
    for block in blocks(path, partition):
        ids = [bytes(entry["id"])[: int(entry["id_len"])] for entry in block.links()]
        keys = block.keys()
        prefixes = {(key.link, key.mapping, key.scope): key.prefix for key in keys}
        texts = {key.text for key in keys}
        batches, data = block.body()
        r = Bytes(bytes(data))
        for time, link, flags, _, count, length, _ in batches.tolist():
            end = r.pos + length
            for _ in range(count):
                push = NETWORK.read(r)
                assert isinstance(push, Push)
                name = (link, int(push.key.mapping), push.key.scope)
                key = prefixes[name] + push.key.suffix.encode()
                assert key in texts
                offset = len(found)
                reliable = bool(flags & RELIABLE)
                found.append(Walked(offset, key.decode(), push, ids[link], reliable, time, count))
            assert r.pos == end
        assert r.pos == len(data)
        assert block.header.end == len(found)
    return found


def lost(path: Path, partition: int = 0) -> list[Lost]:
    return [
        Lost(
            LOSS_KINDS[entry["kind"]],
            *(int(entry["offset"]), bytes(entry["id"])[: int(entry["id_len"])]),
            *(int(entry[name]) for name in ("first", "last", "missing", "entity", "lane", "time")),
        )
        for block in blocks(path, partition)
        for entry in block.losses()
    ]


def rows(path: Path, partition: int = 0, start: int | None = None) -> list[dict[str, Any]]:
    """All samples, as record batches have them."""
    found: list[dict[str, Any]] = []
    for batch in Reader(path, partition).batches(start):
        found += batch.to_pylist()
    return found


def payloads(path: Path, partition: int = 0) -> list[bytes]:
    return [row["payload"] for row in rows(path, partition)]


# ---- what is missing


WRAP, HALF = 1 << 32, 1 << 31
Name = tuple[bytes, int]
Numbered = tuple[Name, int] | None
"A source and its number; None: a sample that has none."


def by_hand(last: dict[Name, int], numbered: Iterable[Numbered]) -> list[SourceGap]:
    """One sample after another: every number is next, later or old."""
    found = []
    for row, source in enumerate(numbered):
        if source is None:
            continue
        name, sn = source
        if name not in last:
            last[name] = sn
            continue
        missing = []
        ahead = (sn - last[name]) % WRAP
        if not 0 < ahead < HALF:
            continue
        if ahead > 1:
            missing = [SourceGap(row, *name, (last[name] + 1) % WRAP, ahead - 1)]
        last[name] = sn
        found += missing
    return found


# ---- disks


class Disk(Files):
    """Notes what is done to segments, and can be made to stand still or fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        "`pwritev` or `fdatasync` of a segment, and how many bytes it had by then."
        self.fault: int | None = None
        "The error number that every call that changes a segment has."
        self.sync_fault: int | None = None
        "The error of `fdatasync` alone."
        self.moving = threading.Event()
        self.moving.set()
        self.waits = threading.Event()
        "Set while a caller waits for `moving`."
        self._names: dict[int, str] = {}

    def open(self, path: Path, flags: int) -> int:
        if self.fault is not None and flags & os.O_CREAT:
            raise OSError(self.fault, os.strerror(self.fault))
        descriptor = super().open(path, flags)
        self._names[descriptor] = path.name
        return descriptor

    def _at(self, call: str, descriptor: int, fault: int | None) -> None:
        if ".zlog" not in self._names.get(descriptor, ""):
            return
        if not self.moving.is_set():
            self.waits.set()
            assert self.moving.wait(DEADLINE)
        if fault is not None:
            raise OSError(fault, os.strerror(fault))
        self.calls.append((call, os.fstat(descriptor).st_size))

    def pwritev(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        self._at("pwritev", descriptor, self.fault)
        return super().pwritev(descriptor, buffers, position)

    def fdatasync(self, descriptor: int) -> None:
        self._at("fdatasync", descriptor, self.fault or self.sync_fault)
        super().fdatasync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Return the disk that the recorders of the test write to."""
    made = Disk()
    monkeypatch.setattr(recorders, "Writer", partial(Writer, files=made))
    yield made
    made.moving.set()
