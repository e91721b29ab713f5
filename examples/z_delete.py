"""Say that a key has no value any more."""

import zenlake as zenoh
from common import arguments, configured, run, say


def main() -> None:
    args = arguments(__doc__, key="demo/example/put").parse_args()
    with zenoh.open(configured(zenoh.Config, args)) as session:
        session.delete(args.key)
        say(f"deleted {args.key}")


run(main)
