"""What the benchmark of the lake records: samples of a fleet, written at once or sent at a rate.

Half of them are JSON, all have a source and a timestamp, one of a hundred came before. The process
that sends is this file: `python -m bench.lake_rows feed ARGUMENTS`, as JSON.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import zenlake
from bench.api_peer import free_port
from bench.session_peer import say, serve
from zenlake.columnar.write import push_columns
from zenlake.log.block import OpenBlock, SourceLink
from zenlake.log.write.writer import Writer
from zenlake.wire.emit import Emitter
from zenlake.wire.enums import Mapping
from zenlake.wire.wireexpr import WireExpr

KEYS = 400
REPEATED = 100  # one of so many came before
BLOCK_ROWS = 10_000
BATCH_BYTES = 60_000  # of one batch, as links carry them
PER_SECOND = 4_000  # of the fleet
FIRST = 1_800_000_000  # seconds
LATENCY = 2_000  # microseconds
ZID = "5a" * 16
TEXTS = [f"fleet/robot/{number:03}/pose" for number in range(KEYS)]
NUMBERS = {text: 1 + number for number, text in enumerate(TEXTS)}


def rows_of(first: int, count: int, start: float = FIRST, rate: int = PER_SECOND) -> pa.RecordBatch:
    """Samples `first` to `first + count` of the fleet, in the form of columnar/."""
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
    one = np.zeros(count, np.int32)

    def repeated(codes: np.ndarray, texts: list[str]) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(texts))

    return pa.RecordBatch.from_pydict(
        {
            "key": repeated(keys, TEXTS),
            "payload": body.cast(pa.binary()),
            "encoding": repeated((keys & 1), ["application/json", "zenoh/bytes"]),
            "timestamp": pa.StructArray.from_arrays(
                [pa.array(ntp64.astype(np.uint64)), repeated(one, [ZID])], ["time", "id"]
            ),
            "source": pa.StructArray.from_arrays(
                [
                    repeated(one, [ZID]),
                    pa.array(keys.astype(np.uint32)),
                    pa.array((numbers // KEYS).astype(np.uint32)),
                ],
                ["id", "entity", "sn"],
            ),
        }
    )


def write_log(path: Path, rows: int) -> None:
    """As a recorder would."""
    with Writer(path, codec="zstd") as writer:
        for first in range(0, rows, BLOCK_ROWS):
            count = min(BLOCK_ROWS, rows - first)
            received = (FIRST * 1_000_000 + first * 1_000_000 // PER_SECOND + LATENCY) * 1000
            writer.write([block_of(rows_of(first, count), received)])


def block_of(rows: pa.RecordBatch, received: int) -> OpenBlock:
    """Keys by id, batches as large as links carry them; the first came at `received` (ns)."""
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
    """Listens, and sends at a rate when it is told to."""
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    config = zenlake.Config()
    config.insert_json5("listen/endpoints", json.dumps([endpoint]))
    config.insert_json5("scouting/multicast/enabled", "false")
    with zenlake.open(config) as session:
        say(endpoint=endpoint)

        def put(key: str, value: str) -> None:
            session.put(key, value, encoding="text/plain")
            say(time=time.time())

        def send(rate: int, seconds: float) -> None:
            say(sent=_send(session, rate, seconds))

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
    {"feed": feed}[sys.argv[1]](**json.loads(sys.argv[2]))
