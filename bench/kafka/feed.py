"""The process that sends to Kafka: `python -m bench.kafka.feed feed ARGUMENTS`, as JSON.

Sends rows of the fleet (`bench.lake_rows`) from an Arrow file, all at once or at a rate, and single
values. Runs in the installation's own Python: imports neither zenlake nor what it needs.
"""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peer import report, run_role, serve

PARTITIONS = 2
PIECES = 20  # Pieces per second that are sent at a rate.
NOW = 0  # The time of a record that gets the time of sending.
SETTINGS = {
    "acks": "all",
    "compression.type": "lz4",
    "delivery.report.only.error": True,
    "linger.ms": 5,
    "partitioner": "murmur2_random",  # As Kafka's own clients do.
    "queue.buffering.max.messages": 1_000_000,
}

Record = tuple[str, bytes, list[tuple[str, bytes]], int]
"Key, value, headers, and time in milliseconds."


def feed(address: str) -> None:
    """Run a producer that acts on command."""
    producer = Producer({"bootstrap.servers": address, "on_delivery": _refuse_loss, **SETTINGS})
    admin = AdminClient({"bootstrap.servers": address})

    def create(topic: str) -> None:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
        report(created=topic)

    def fill(topic: str, path: str) -> None:
        sent = 0
        for batch in _batches(path):
            sent += _produce(producer, topic, _records(batch, timed=True))
        producer.flush()
        report(sent=sent)

    def put(topic: str, key: str, value: str) -> None:
        headers = [("encoding", b"text/plain"), ("entity", b"0"), ("sn", b"0")]
        _produce(producer, topic, [(key, value.encode(), headers, NOW)])
        sent = time.time()
        producer.flush()
        report(time=sent)

    def send(topic: str, path: str, rate: int) -> None:
        records = [record for batch in _batches(path) for record in _records(batch, timed=False)]
        start = time.time()
        piece = max(1, rate // PIECES)
        for first in range(0, len(records), piece):
            ahead = start + first / rate - time.time()
            if ahead > 0:
                time.sleep(ahead)
            _produce(producer, topic, records[first : first + piece])
        producer.flush()
        report(sent=len(records), start=start, end=time.time())

    report(address=address)
    serve({"create": create, "fill": fill, "put": put, "send": send})


def _batches(path: str) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a file, and remove it."""
    with pa.OSFile(path) as file:
        yield from pa.ipc.open_stream(file)
    Path(path).unlink()


def _records(batch: pa.RecordBatch, timed: bool) -> Iterator[Record]:
    """Yield rows of the fleet as records, with the samples' own times if `timed`."""
    source = batch.column("source")
    # Seconds since 1970 in the upper half, fractions of 2**32 in the lower.
    times = (ntp64.as_py() * 1000 >> 32 for ntp64 in batch.column("timestamp").field("time"))
    for key, payload, encoding, entity, sn, milliseconds in zip(
        batch.column("key").to_pylist(),
        batch.column("payload").to_pylist(),
        batch.column("encoding").to_pylist(),
        source.field("entity").to_pylist(),
        source.field("sn").to_pylist(),
        times,
        strict=True,
    ):
        headers = [("encoding", encoding.encode()), ("entity", b"%d" % entity), ("sn", b"%d" % sn)]
        yield key, payload, headers, milliseconds if timed else NOW


def _produce(producer: Producer, topic: str, records: Iterable[Record]) -> int:
    """Hand records to the producer, and return their number."""
    count = 0
    for key, value, headers, milliseconds in records:
        while True:
            try:
                producer.produce(topic, value, key, headers=headers, timestamp=milliseconds)
                break
            except BufferError:  # Its queue is full.
                producer.poll(0.05)
        count += 1
    producer.poll(0)
    return count


def _refuse_loss(error: object, message: Message) -> None:
    raise RuntimeError(f"a record of {message.topic()} was lost: {error}")


if __name__ == "__main__":
    run_role({"feed": feed})
