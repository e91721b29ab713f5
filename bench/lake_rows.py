"""The samples of the lake's benchmark: those of a fleet, written to a log or sent at a rate.

Half of them are JSON, all have a source and a timestamp, and one of a hundred is a repeat. This
file is also the process that sends: `python -m bench.lake_rows feed {}`.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import zenlake
from bench.peer import open_listening, report, run_role, serve
from zenlake.columnar.write import push_columns
from zenlake.log.block import OpenBlock, SourceLink
from zenlake.log.write.writer import Writer
from zenlake.wire.emit import Emitter
from zenlake.wire.enums import Mapping
from zenlake.wire.wireexpr import WireExpr

KEYS = 400
REPEATED = 100  # Every REPEATED-th sample repeats the one before it.
BLOCK_ROWS = 10_000
BATCH_BYTES = 60_000  # Bytes per batch, as links carry them.
PER_SECOND = 4_000  # Samples per second of the fleet.
FIRST = 1_800_000_000  # Unix time of the first sample.
LATENCY = 2_000  # Microseconds from a sample's timestamp to its reception.
ZID = "5a" * 16
TEXTS = [f"fleet/robot/{number:03}/pose" for number in range(KEYS)]
NUMBERS = {text: 1 + number for number, text in enumerate(TEXTS)}


def rows_of(first: int, count: int, start: float = FIRST, rate: int = PER_SECOND) -> pa.RecordBatch:
    """Return samples `first` to `first + count` of the fleet, in columnar's schema."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    numbers = np.where(numbers % REPEATED == REPEATED - 1, numbers - 1, numbers)
    micros = int(start * 1_000_000) + numbers * 1_000_000 // rate
    ntp64 = (micros // 1_000_000 << 32) + ((micros % 1_000_000 << 32) // 1_000_000)
    keys = (numbers % KEYS).astype(np.int32)
    places = pa.array(numbers // KEYS % 1_000)
    x = pa.compute.cast(places, pa.string())
    number = pa.compute.cast(pa.array(numbers), pa.string())
    body = pa.compute.binary_join_element_wise(
        '{"n": ', number, ', "x": ', x, '.25, "y": -', x, '.5, "mode": "auto", "ok": true}', ""
    )
    first_code = np.zeros(count, np.int32)

    def dictionary_array(codes: np.ndarray, texts: list[str]) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(texts))

    return pa.RecordBatch.from_pydict(
        {
            "key": dictionary_array(keys, TEXTS),
            "payload": body.cast(pa.binary()),
            "encoding": dictionary_array((keys & 1), ["application/json", "zenoh/bytes"]),
            "timestamp": pa.StructArray.from_arrays(
                [pa.array(ntp64.astype(np.uint64)), dictionary_array(first_code, [ZID])],
                ["time", "id"],
            ),
            "source": pa.StructArray.from_arrays(
                [
                    dictionary_array(first_code, [ZID]),
                    pa.array(keys.astype(np.uint32)),
                    pa.array((numbers // KEYS).astype(np.uint32)),
                ],
                ["id", "entity", "sn"],
            ),
        }
    )


def write_log(path: Path, rows: int) -> None:
    """Write samples to a log as a recorder would."""
    with Writer(path, codec="zstd") as writer:
        for first in range(0, rows, BLOCK_ROWS):
            count = min(BLOCK_ROWS, rows - first)
            received = (FIRST * 1_000_000 + first * 1_000_000 // PER_SECOND + LATENCY) * 1000
            writer.write([block_of(rows_of(first, count), received)])


def block_of(rows: pa.RecordBatch, received: int) -> OpenBlock:
    """Return a block of samples, keys by id, of which the first was received at `received` (ns)."""
    block = OpenBlock()
    place = block.link(SourceLink(1, 1, bytes(range(1, 17))))
    assert place is not None
    for text, number in NUMBERS.items():
        block.key(place, 1 << 16 | number, b"", text.encode())
    emitter = Emitter(push_columns(rows, _by_number), None)
    while not emitter.done:
        sent = emitter.next(chunk_bytes=BATCH_BYTES)
        block.add(place, True, received, sent.rows, sent.data)
        received += sent.rows * 1_000_000_000 // PER_SECOND
    return block


def _by_number(key: str) -> WireExpr:
    return WireExpr(NUMBERS[key], "", Mapping.SENDER)


def feed() -> None:
    """Run a session that listens, and sends at a rate on command."""
    endpoint, session = open_listening(zenlake, "peer")
    with session:
        report(endpoint=endpoint)

        def put(key: str, value: str) -> None:
            session.put(key, value, encoding="text/plain")
            report(time=time.time())

        def send(rate: int, seconds: float) -> None:
            report(sent=_send(session, rate, seconds))

        serve({"put": put, "send": send})


def _send(session: zenlake.Session, rate: int, seconds: float) -> int:
    start, sent = time.time(), 0
    piece = max(1, rate // 20)
    for batch in _pieces(piece, start, rate):
        ahead = start + sent / rate - time.time()
        if ahead > 0:
            time.sleep(ahead)
        if time.time() > start + seconds:
            break
        sent += session.put_batch(batch)
    return sent


def _pieces(count: int, start: float, rate: int) -> Iterator[pa.RecordBatch]:
    first = 0
    while True:
        yield rows_of(first, count, start, rate)
        first += count


if __name__ == "__main__":
    run_role({"feed": feed})
