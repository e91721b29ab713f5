"""Subscribe with history and recovery, and report samples that could not be recovered."""

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__, key="demo/example/**")
    parser.add_argument("--history", type=int, help="past samples per key; all without")
    args = parser.parse_args()
    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        zenoh.ext.declare_advanced_subscriber(
            session,
            args.key,
            history=zenoh.ext.HistoryConfig(detect_late_publishers=True, max_samples=args.history),
            recovery=zenoh.ext.RecoveryConfig(heartbeat=True),
            subscriber_detection=True,
        ) as subscriber,
        subscriber.sample_miss_listener(lambda miss: say(f"{miss.nb} samples are lost")),
    ):
        say(f"subscribed to {args.key}")
        for sample in subscriber:
            say(f"{sample.key_expr}: {sample.payload.to_string()}")


run(main)
