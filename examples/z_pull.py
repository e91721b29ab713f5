"""Keep only the newest samples, and read them at intervals."""

import time

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__, key="demo/example/**")
    parser.add_argument("-s", "--size", type=int, default=3, help="samples kept")
    parser.add_argument("-i", "--interval", type=float, default=5.0, help="seconds between reads")
    args = parser.parse_args()
    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        session.declare_subscriber(args.key, zenoh.handlers.RingChannel(args.size)) as subscriber,
    ):
        say(f"subscribed to {args.key}")
        while True:
            while (sample := subscriber.try_recv()) is not None:
                say(f"{sample.key_expr}: {sample.payload.to_string()}")
            time.sleep(args.interval)


run(main)
