"""Measure how long a message takes to z_pong and back."""

import statistics
import time

import zenlake as zenoh
from common import arguments, configured, run, say


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("size", type=int, help="bytes of payload")
    parser.add_argument("-n", "--number", type=int, default=100, help="how many to measure")
    parser.add_argument("-w", "--warmup", type=float, default=1.0, help="seconds before that")
    args = parser.parse_args()
    payload = bytes(i % 256 for i in range(args.size))
    with (
        zenoh.open(configured(zenoh.Config, args)) as session,
        session.declare_subscriber("test/pong") as pongs,
        session.declare_publisher(
            "test/ping", congestion_control=zenoh.CongestionControl.BLOCK, express=True
        ) as publisher,
    ):
        while not publisher.matching_status.matching:
            time.sleep(0.01)

        def round_trip() -> float:
            start = time.perf_counter()
            publisher.put(payload)
            assert len(pongs.recv().payload) == args.size
            return time.perf_counter() - start

        end = time.monotonic() + args.warmup
        while time.monotonic() < end:
            round_trip()
        times = [round_trip() * 1e6 for _ in range(args.number)]
        say(
            f"{args.size} bytes, {args.number} times: there and back in {min(times):.0f} us at "
            f"best, {statistics.median(times):.0f} in the middle, {max(times):.0f} at worst"
        )


run(main)
