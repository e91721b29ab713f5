"""Measure the throughput of z_pub_thr, in rounds."""

import threading
import time

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__, key="test/thr")
    parser.add_argument("-r", "--rounds", type=int, default=10, help="number of rounds")
    parser.add_argument("-n", "--number", type=int, default=100_000, help="messages per round")
    args = parser.parse_args()
    count = 0
    rounds = 0
    start = 0.0
    done = threading.Event()

    def on_sample(sample: zenoh.Sample) -> None:
        nonlocal count, rounds, start
        if count == 0:
            start = time.perf_counter()
        count += 1
        if count > args.number:
            say(f"{args.number / (time.perf_counter() - start):.0f} messages per second")
            count = 0
            rounds += 1
            if rounds >= args.rounds:
                done.set()

    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        session.declare_subscriber(args.key, on_sample),
    ):
        say(f"subscribed to {args.key}")
        done.wait()


run(main)
