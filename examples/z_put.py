"""Put one value."""

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__, key="demo/example/put")
    parser.add_argument("-p", "--payload", default="Hello!", help="value to put")
    args = parser.parse_args()
    with zenoh.open(make_config(zenoh.Config, args)) as session:
        session.put(args.key, args.payload, encoding=zenoh.Encoding.TEXT_PLAIN)
        say(f"put {args.key}: {args.payload}")


run(main)
