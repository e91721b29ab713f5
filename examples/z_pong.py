"""Send every message of z_ping back."""

import threading

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    args = make_parser(__doc__).parse_args()
    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        session.declare_publisher(
            "test/pong", congestion_control=zenoh.CongestionControl.BLOCK, express=True
        ) as publisher,
        session.declare_subscriber(
            "test/ping",
            zenoh.handlers.Callback(lambda sample: publisher.put(sample.payload), indirect=False),
        ),
    ):
        say("ready")
        threading.Event().wait()


run(main)
