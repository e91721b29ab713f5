"""Publish a numbered value repeatedly, and report when subscribers appear and disappear."""

import time

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__, key="demo/example/pub")
    parser.add_argument("-p", "--payload", default="Tick", help="value to publish")
    parser.add_argument("-n", "--number", type=int, help="how many values; endless without")
    parser.add_argument(
        "-i", "--interval", type=float, default=1.0, help="seconds between two values"
    )
    parser.add_argument("--wait", action="store_true", help="wait for a subscriber first")
    args = parser.parse_args()
    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        session.declare_publisher(args.key) as publisher,
    ):
        while args.wait and not publisher.matching_status.matching:
            time.sleep(0.01)
        publisher.declare_matching_listener(
            lambda status: say("subscriber found" if status.matching else "no subscriber left")
        )
        count = 0
        while args.number is None or count < args.number:
            payload = f"[{count:4}] {args.payload}"
            publisher.put(payload)
            say(f"published {args.key}: {payload}")
            count += 1
            time.sleep(args.interval)


run(main)
