"""Subscribe without a callback: samples wait in a queue until this loop takes them."""

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__, key="demo/example/**")
    parser.add_argument("-q", "--queue", type=int, default=256, help="capacity of the queue")
    args = parser.parse_args()
    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        session.declare_subscriber(args.key, zenoh.handlers.FifoChannel(args.queue)) as subscriber,
    ):
        say(f"subscribed to {args.key}")
        for sample in subscriber:
            say(f"{sample.key_expr}: {sample.payload.to_string()}")


run(main)
