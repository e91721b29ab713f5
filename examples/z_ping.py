"""Measure the round trip of a message to z_pong and back."""

import statistics
import time

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("size", type=int, help="bytes of payload")
    parser.add_argument("-n", "--number", type=int, default=100, help="round trips to measure")
    parser.add_argument("-w", "--warmup", type=float, default=1.0, help="seconds of warm-up before")
    args = parser.parse_args()
    payload = bytes(i % 256 for i in range(args.size))
    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
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
            f"{args.size} bytes, {args.number} round trips: {min(times):.0f} us minimum, "
            f"{statistics.median(times):.0f} median, {max(times):.0f} maximum"
        )


run(main)
