"""`python -m bench.kafka`: prints the figures of Kafka, Spark and Delta alone.

`python -m bench lake` measures them in turns with zenlake's.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.__main__ import print_line
from bench.figures import TURNS, Figure, Figures
from bench.kafka.installation import Installation, NotInstalledError
from bench.kafka.lake import PATIENCE, KafkaLake, LiveQuery
from bench.peer import wait_until

ROWS = 1_000_000
PUTS = 10
RATE = 36_000  # Samples per second that are sent.
SECONDS = 15.0  # Duration of sending.


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kafka", description=__doc__)
    parser.add_argument("--rows", type=whole, default=ROWS, help="samples per drain")
    parser.add_argument("--turns", type=whole, default=TURNS, help="drains after the first")
    parser.add_argument("--puts", type=whole, default=PUTS, help="single samples")
    parser.add_argument("--rate", type=whole, default=RATE, help="samples per second")
    parser.add_argument("--seconds", type=positive, default=SECONDS, help="duration of sending")
    chosen = parser.parse_args(arguments)
    try:
        installation = Installation.find()
    except NotInstalledError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    with (
        tempfile.TemporaryDirectory() as name,
        KafkaLake.open(installation, Path(name, "kafka")) as kafka,
    ):
        for figure in drains(kafka, chosen.rows, chosen.turns):
            print_line(figure.line())
        with kafka.live() as query:
            for figure in puts(query, chosen.puts):
                print_line(figure.line())
            for figure in rate(query, chosen.rate, chosen.seconds):
                print_line(figure.line())
    return 0


def whole(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def drains(kafka: KafkaLake, rows: int, turns: int) -> Figures:
    """Measure from a topic to all tables, after a first turn."""
    kafka.fill(rows)
    million = rows / 1e6
    yield Figure("topic to all tables, first turn", million / kafka.drain(), "M samples/s")
    took = [kafka.drain() for _ in range(turns)]
    yield Figure("topic to all tables, median", million / median(took), "M samples/s")
    yield Figure("topic to all tables, best", million / min(took), "M samples/s")
    for name, count in kafka.count_rows().items():
        yield Figure(f"rows of {name}", count, "")


def puts(query: LiveQuery, count: int) -> Figures:
    """Measure the time from sending until a reader of `latest` finds it."""
    took = []
    for number in range(count):
        took.append(put_to_latest(query, str(number)))
        query.wait_for_tables()
        time.sleep(0.13 * (number % 8))  # Out of step with the trigger.
    yield Figure("from put to latest, median", median(took), "s")
    yield Figure("from put to latest, worst", max(took), "s")
    single = [seconds for rows, seconds in query.batches() if rows == 1]
    yield Figure("micro-batch of one row", median(single[-count:]), "s")


def put_to_latest(query: LiveQuery, value: str) -> float:
    """Return the seconds from sending a value until a reader finds it."""
    sent = query.put("robot/seen", value)
    wait_until(lambda: value.encode() in query.latest_values(), f"{value} in latest", PATIENCE)
    return time.time() - sent


def rate(query: LiveQuery, per_second: int, seconds: float) -> Figures:
    """Measure until all samples that are sent at a rate are in all tables."""
    arrival = query.send(per_second, seconds)
    name = f"sent at {per_second:,}/s, in all tables"
    yield Figure(name, arrival.rows / arrival.seconds, "/s")
    yield Figure("the last of them in tables after", arrival.late, "s")


if __name__ == "__main__":
    raise SystemExit(main())
