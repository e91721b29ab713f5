"""Send back whatever z_ping sends."""

import threading

import zenlake as zenoh
from common import arguments, configured, run, say


def main() -> None:
    args = arguments(__doc__).parse_args()
    with (
        zenoh.open(configured(zenoh.Config, args)) as session,
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
