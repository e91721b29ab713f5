"""Be seen: a token that is there as long as this runs."""

import threading

import zenlake as zenoh
from common import arguments, configured, run, say


def main() -> None:
    args = arguments(__doc__, key="group/member").parse_args()
    with (
        zenoh.open(configured(zenoh.Config, args)) as session,
        session.liveliness().declare_token(args.key),
    ):
        say(f"alive as {args.key}")
        threading.Event().wait()


run(main)
