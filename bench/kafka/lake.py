"""A lake by Kafka, Spark's Kafka source and Delta, as a benchmark drives it.

Starts the broker, the process that sends (`feed.py`) and the Spark job (`job.py`). Knows what was
sent, and when it is in the tables. Does not know the tables of zenlake.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import deltalake
import pyarrow as pa

from bench.kafka.broker import run_broker
from bench.kafka.installation import Installation
from bench.lake_rows import rows_of
from bench.process import Process

CORES = 2
MEMORY = "4g"
TRIGGER = "1 second"
PATIENCE = 600.0  # Seconds that a command may take, as a drain on a busy machine.
BATCH_ROWS = 50_000
WARM_PUTS = 3  # Micro-batches before a live query is handed out.


class Arrival(NamedTuple):
    """Samples that were sent at a rate, and the time until all were in all tables."""

    rows: int
    seconds: float
    "Time since the first was sent."
    late: float
    "Time since the last was sent."


class KafkaLake:
    """A broker, a process that sends, and a Spark with the job, in a folder of their own."""

    def __init__(self, folder: Path, feed: Process, spark: Process) -> None:
        self._folder = folder
        self._feed = feed
        self._spark = spark
        self._names = 0
        self._filled = ("", 0)
        self._drained = folder

    @classmethod
    @contextmanager
    def open(
        cls, installation: Installation, folder: Path, *, cores: int = CORES, memory: str = MEMORY
    ) -> Iterator["KafkaLake"]:
        """Start all processes in `folder`, which is created, and removed at the end."""
        folder = folder.absolute()
        folder.mkdir(parents=True)
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            address = stack.enter_context(run_broker(installation, folder / "broker"))

            def start(role: str, module: str, **arguments: object) -> Process:
                process = Process(
                    role,
                    module,
                    {"address": address, **arguments},
                    python=str(installation.python),
                    patience=PATIENCE,
                    cwd=folder,
                    env=installation.environment(),
                )
                return stack.enter_context(closing(process))

            feed = start("feed", "bench.kafka.feed")
            spark = start("spark", "bench.kafka.job", cores=cores, memory=memory)
            yield cls(folder, feed, spark)

    def fill(self, rows: int) -> None:
        """Create a topic of the first `rows` samples of the fleet, for `drain`."""
        path = write_rows(self._folder, rows)
        topic = self._create_topic()
        sent = self._feed.ask("fill", topic=topic, path=str(path))["sent"]
        assert sent == rows, f"{sent} of {rows} samples were sent"
        self._filled = (topic, rows)

    def drain(self) -> float:
        """Write the filled topic into empty tables, and return the seconds from start to end."""
        topic, rows = self._filled
        if not rows:
            raise ValueError("there is no topic to drain: call fill() first")
        old, self._drained = self._drained, self._name_folder()
        if old != self._folder:
            shutil.rmtree(old)
        answer = self._spark.ask("drain", topic=topic, folder=str(self._drained))
        assert answer["rows"] == rows, f"{answer['rows']} of {rows} samples were drained"
        return float(answer["seconds"])

    def count_rows(self) -> dict[str, int]:
        """Return the number of rows of each table that the last `drain` has written."""
        return self._spark.ask("count", folder=str(self._drained))

    @contextmanager
    def live(self, trigger: str = TRIGGER) -> Iterator["LiveQuery"]:
        """Run a query on an empty topic, with a micro-batch every `trigger`; yield it warmed up."""
        topic, tables = self._create_topic(), self._name_folder()
        self._spark.ask("follow", topic=topic, folder=str(tables), trigger=trigger)
        query = LiveQuery(self._feed, self._spark, topic, tables)
        for _ in range(WARM_PUTS):
            query.put("robot/seen", "first")
            query.wait_for_tables()
        yield query
        self._spark.ask("stop")  # After an error, the query ends with its process.
        shutil.rmtree(tables)

    def _create_topic(self) -> str:
        self._names += 1
        topic: str = self._feed.ask("create", topic=f"fleet-{self._names}")["created"]
        return topic

    def _name_folder(self) -> Path:
        self._names += 1
        return self._folder / f"tables-{self._names}"


class LiveQuery:
    """A query that follows a topic, and the process that sends to the topic."""

    def __init__(self, feed: Process, spark: Process, topic: str, tables: Path) -> None:
        self._feed = feed
        self._spark = spark
        self._topic = topic
        self._tables = tables
        self._sent = 0
        self._latest = deltalake.DeltaTable(tables / "latest")
        self._seen = -1

    def put(self, key: str, value: str) -> float:
        """Send a sample, and return when it was sent."""
        self._sent += 1
        sent = self._feed.ask("put", topic=self._topic, key=key, value=value)
        return float(sent["time"])

    def latest_values(self) -> list[bytes]:
        """Return the payloads of `latest` if it has changed; else nothing: polling is cheap."""
        self._latest.update_incremental()
        version = self._latest.version()
        if version == self._seen:
            return []
        self._seen = version
        rows = self._latest.to_pyarrow_table(columns=["payload"])
        values: list[bytes] = rows["payload"].to_pylist()
        return values

    def send(self, rate: int, seconds: float) -> Arrival:
        """Send the fleet's samples at `rate` per second; wait until all are in all tables."""
        if rate <= 0 or seconds <= 0:
            raise ValueError(f"a rate and its seconds are positive, not {rate} and {seconds}")
        path = write_rows(self._tables, max(1, int(rate * seconds)))
        sent = self._feed.ask("send", topic=self._topic, path=str(path), rate=rate)
        self._sent += sent["sent"]
        arrived = self.wait_for_tables()
        return Arrival(sent["sent"], arrived - sent["start"], arrived - sent["end"])

    def wait_for_tables(self) -> float:
        """Wait until all that was sent is in all tables, and return when it was."""
        return float(self._spark.ask("wait", rows=self._sent)["time"])

    def batches(self) -> list[tuple[int, float]]:
        """Return the samples and the seconds of each of the last micro-batches that had any."""
        answer = self._spark.ask("batches")
        return list(zip(answer["rows"], answer["seconds"], strict=True))


def write_rows(folder: Path, rows: int) -> Path:
    """Write the first samples of the fleet to a file, which the process that sends removes."""
    if rows <= 0:
        raise ValueError(f"the number of rows is positive, not {rows}")
    path = folder / "rows.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows_of(0, 1).schema) as out:
        for first in range(0, rows, BATCH_ROWS):
            out.write_batch(rows_of(first, min(BATCH_ROWS, rows - first)))
    return path
