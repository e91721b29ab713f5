"""Put one value."""

import zenlake as zenoh
from common import arguments, configured, run, say


def main() -> None:
    parser = arguments(__doc__, key="demo/example/put")
    parser.add_argument("-p", "--payload", default="Hello!", help="the value")
    args = parser.parse_args()
    with zenoh.open(configured(zenoh.Config, args)) as session:
        session.put(args.key, args.payload, encoding=zenoh.Encoding.TEXT_PLAIN)
        say(f"put {args.key}: {args.payload}")


run(main)
