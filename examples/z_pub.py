"""Publish a counted value again and again; tell when somebody subscribes."""

import time

import zenlake as zenoh
from common import arguments, configured, run, say


def main() -> None:
    parser = arguments(__doc__, key="demo/example/pub")
    parser.add_argument("-p", "--payload", default="Tick", help="the value")
    parser.add_argument("-n", "--number", type=int, help="how many; without it, for ever")
    parser.add_argument("-i", "--interval", type=float, default=1.0, help="seconds between two")
    parser.add_argument("--wait", action="store_true", help="begin when somebody subscribed")
    args = parser.parse_args()
    with (
        zenoh.open(configured(zenoh.Config, args)) as session,
        session.declare_publisher(args.key) as publisher,
    ):
        while args.wait and not publisher.matching_status.matching:
            time.sleep(0.01)
        publisher.declare_matching_listener(
            lambda status: say("somebody listens" if status.matching else "nobody listens")
        )
        count = 0
        while args.number is None or count < args.number:
            payload = f"[{count:4}] {args.payload}"
            publisher.put(payload)
            say(f"published {args.key}: {payload}")
            count += 1
            time.sleep(args.interval)


run(main)
