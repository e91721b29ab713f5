"""Subscribe with a callback."""

import threading

import zenlake as zenoh
from common import make_config, make_parser, run, say


def show(sample: zenoh.Sample) -> None:
    if sample.kind == zenoh.SampleKind.DELETE:
        say(f"{sample.key_expr} was deleted")
    else:
        say(f"{sample.key_expr}: {sample.payload.to_string()}")


def main() -> None:
    args = make_parser(__doc__, key="demo/example/**").parse_args()
    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        session.declare_subscriber(args.key, show),
    ):
        say(f"subscribed to {args.key}")
        threading.Event().wait()


run(main)
