"""Declare a liveliness token that is alive as long as this runs."""

import threading

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    args = make_parser(__doc__, key="group/member").parse_args()
    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        session.liveliness().declare_token(args.key),
    ):
        say(f"alive as {args.key}")
        threading.Event().wait()


run(main)
