"""Bad bytes, by the million: a message or a DecodeError, nothing else, and nothing allocated."""

import os
import tracemalloc
from contextlib import suppress
from random import Random

import pytest

from tests.support.message_corpus import recorded_batches, recorded_shapes, single_byte_changes
from tests.support.plain_batches import plain_batches
from tests.support.scan_check import assert_scan_equals_objects
from zenlake.errors import DecodeError, Reason
from zenlake.wire.batch import read_batch, read_scouting, write_batch
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.framing import Framing
from zenlake.wire.linkstate import read_link_states
from zenlake.wire.scan import Scanner

FULL = bool(os.environ.get("ZENLAKE_FULL"))  # Minutes instead of seconds; see CONTRIBUTING.md.
SEED = 20_240_701
MUTATIONS = 5_000_000 if FULL else 200_000
SLICES = 8
BOMBS = [(1 << bits) - 1 for bits in (7, 8, 14, 16, 21, 28, 31, 32, 35, 49, 56, 63)]
SHAPES = recorded_shapes()
SCOUTING = list({batch.data for batch in plain_batches() if batch.scouting})


def decode_or_refuse(data: bytes) -> bool:
    """Whether it decodes; any exception but DecodeError fails the test."""
    try:
        messages = read_batch(data)
    except DecodeError:
        return False
    # What decodes, encodes; and reading that again gives the same (the bytes may differ where the
    # reader is more tolerant than the writer: long zints, reserved bits, order of extensions).
    again = write_batch(messages)
    assert read_batch(again) == messages
    return True


def test_the_corpus_has_many_shapes() -> None:
    assert len(SHAPES) > 150


@pytest.mark.slow
@pytest.mark.timeout(3000 if FULL else 300)
@pytest.mark.parametrize("part", range(SLICES))
def test_every_value_of_every_byte(part: int) -> None:
    """Of one recorded message of each shape; in full, of every recorded batch."""
    batches = (recorded_batches() if FULL else SHAPES)[part::SLICES]
    accepted = refused = 0
    for batch in batches:
        for data in single_byte_changes(batch):
            try:
                read_batch(data)
            except DecodeError:
                refused += 1
            else:
                accepted += 1
    assert accepted + refused == 255 * sum(map(len, batches))
    assert refused > 10_000
    assert accepted > 10_000


def test_every_value_of_every_byte_of_scouting() -> None:
    for datagram in SCOUTING:
        for data in single_byte_changes(datagram):
            try:
                read_scouting(data)
            except DecodeError as error:
                assert error.offset <= len(data)


@pytest.mark.slow
@pytest.mark.kernel
def test_scan_equals_objects_on_changed_bytes() -> None:
    """A tenth of all single-byte changes, another tenth for each shape."""
    scanner = Scanner(64)
    for number, batch in enumerate(SHAPES):
        for change, data in enumerate(single_byte_changes(batch)):
            if (change + number) % 10 == 0:
                assert_scan_equals_objects(data, Framing.DATAGRAM, scanner=scanner)


def mutate(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data)) if data else 0
    match random.randrange(7):
        case 0 if data:
            data[at] = random.randrange(256)
        case 1 if data:
            data[at] ^= 1 << random.randrange(8)
        case 2:
            del data[at : at + random.randrange(1, 9)]
        case 3:
            data[at:at] = random.randbytes(random.randrange(1, 9))
        case 4:
            data[at:] = random.choice(SHAPES)[random.randrange(4) :]
        case 5 if data:
            data[at] = (data[at] + random.choice((-1, 1))) % 256
        case _:
            data[at:at] = b"\x80" * random.randrange(1, 10)  # a padded zint


@pytest.mark.slow
@pytest.mark.timeout(3000 if FULL else 300)
@pytest.mark.parametrize("part", range(SLICES))
def test_mutated_messages_are_decoded_or_refused(part: int) -> None:
    random = Random(SEED + part)
    accepted = 0
    for _ in range(MUTATIONS // SLICES):
        data = bytearray(random.choice(SHAPES))
        for _ in range(random.randrange(1, 5)):
            mutate(random, data)
        accepted += decode_or_refuse(bytes(data))
    assert 0.02 < accepted * SLICES / MUTATIONS < 0.98


@pytest.mark.slow
@pytest.mark.kernel
def test_scan_equals_objects_on_mutations() -> None:
    random = Random(SEED - 1)
    scanner = Scanner(64)
    for _ in range(20_000):
        data = bytearray(random.choice(SHAPES))
        for _ in range(random.randrange(1, 5)):
            mutate(random, data)
        assert_scan_equals_objects(bytes(data), Framing.DATAGRAM, scanner=scanner)


@pytest.mark.slow
def test_length_bombs_allocate_nothing() -> None:
    """Every position of every shape replaced by a huge integer with up to 3 bytes behind it."""
    tracemalloc.start()
    try:
        for batch in SHAPES:
            for at in range(len(batch)):
                for value in BOMBS:
                    w = ByteWriter(bytearray(batch[:at]))
                    w.zint("bomb", value)
                    data = bytes(w.out) + b"\x00\x01\x02"[: at % 4]
                    with suppress(DecodeError):
                        read_batch(data)
            _, peak = tracemalloc.get_traced_memory()
            assert peak < 1 << 20, batch.hex()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", BOMBS)
def test_counts_are_checked_before_anything_is_allocated(count: int) -> None:
    w = ByteWriter()
    w.zint("count", count)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            read_link_states(bytes(w.out))
        with pytest.raises(DecodeError):
            read_scouting(bytes.fromhex("220900a1") + bytes(w.out))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("length", [1, 31, 32, 33, 1000, 30_000])
def test_a_chain_of_extensions_is_bounded(length: int) -> None:
    data = b"\x84" + b"\x89" * (length - 1) + b"\x09"  # KEEP_ALIVE with unknown optional ones
    if length <= 32:
        (alive,) = read_batch(data)
        assert len(alive.extensions) == length
    else:
        with pytest.raises(DecodeError) as caught:
            read_batch(data)
        assert caught.value.reason is Reason.TOO_MANY_EXTENSIONS


@pytest.mark.parametrize("encoding", [0x00, 0x20, 0x40, 0x60])
@pytest.mark.parametrize("mandatory", [0x00, 0x10])
def test_unknown_extensions(encoding: int, mandatory: int) -> None:
    body = {0x00: b"", 0x20: b"\x05", 0x40: b"\x02ab", 0x60: b""}[encoding]
    data = b"\x84" + bytes((0x0B | encoding | mandatory,)) + body
    if encoding == 0x60 or mandatory:
        with pytest.raises(DecodeError) as caught:
            read_batch(data)
        assert caught.value.reason is (
            Reason.EXTENSION_ENCODING if encoding == 0x60 else Reason.MANDATORY_EXTENSION
        )
        assert caught.value.offset == 1
    else:
        assert write_batch(read_batch(data)) == data


def test_a_known_extension_said_twice_counts_once() -> None:
    data = bytes.fromhex("2501 9d01 a103 2104 0100")
    (frame,) = read_batch(data)
    assert frame.messages[0].qos == 4  # type: ignore[union-attr]
