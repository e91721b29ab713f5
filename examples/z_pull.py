"""Keep only the newest samples, and look at them when there is time."""

import time

import zenlake as zenoh
from common import arguments, configured, run, say


def main() -> None:
    parser = arguments(__doc__, key="demo/example/**")
    parser.add_argument("-s", "--size", type=int, default=3, help="samples that are kept")
    parser.add_argument("-i", "--interval", type=float, default=5.0, help="seconds between looks")
    args = parser.parse_args()
    with (
        zenoh.open(configured(zenoh.Config, args)) as session,
        session.declare_subscriber(args.key, zenoh.handlers.RingChannel(args.size)) as subscriber,
    ):
        say(f"subscribed to {args.key}")
        while True:
            while (sample := subscriber.try_recv()) is not None:
                say(f"{sample.key_expr}: {sample.payload.to_string()}")
            time.sleep(args.interval)


run(main)
