"""Publish with a cache: subscribers can query the history and recover missed samples."""

import time

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__, key="demo/example/advanced")
    parser.add_argument("-p", "--payload", default="Tick", help="value to publish")
    parser.add_argument("-n", "--number", type=int, help="how many values; endless without")
    parser.add_argument(
        "-i", "--interval", type=float, default=1.0, help="seconds between two values"
    )
    parser.add_argument(
        "--cache", type=int, default=10, help="samples kept for history and recovery"
    )
    args = parser.parse_args()
    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        zenoh.ext.declare_advanced_publisher(
            session,
            args.key,
            cache=zenoh.ext.CacheConfig(max_samples=args.cache),
            sample_miss_detection=zenoh.ext.MissDetectionConfig(heartbeat=0.5),
            publisher_detection=True,
        ) as publisher,
    ):
        count = 0
        while args.number is None or count < args.number:
            payload = f"[{count:4}] {args.payload}"
            publisher.put(payload)
            say(f"published {args.key}: {payload}")
            count += 1
            time.sleep(args.interval)
        say("all published; the cache answers until Ctrl-C")
        while True:
            time.sleep(1.0)


run(main)
