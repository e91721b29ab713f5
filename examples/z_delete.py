"""Delete the value of a key."""

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    args = make_parser(__doc__, key="demo/example/put").parse_args()
    with zenoh.open(make_config(zenoh.Config, args)) as session:
        session.delete(args.key)
        say(f"deleted {args.key}")


run(main)
