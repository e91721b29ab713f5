"""Publish a payload as fast as possible."""

import time

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__, key="test/thr")
    parser.add_argument("size", type=int, help="bytes of payload")
    args = parser.parse_args()
    payload = bytes(i % 256 for i in range(args.size))
    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        session.declare_publisher(
            args.key, congestion_control=zenoh.CongestionControl.BLOCK
        ) as publisher,
    ):
        while not publisher.matching_status.matching:
            time.sleep(0.01)
        say(f"publishing {args.size} bytes per message until Ctrl-C")
        put = publisher.put
        while True:
            put(payload)


run(main)
