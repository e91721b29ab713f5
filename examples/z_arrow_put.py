"""Publish all rows of an Arrow record batch at once. Only in zenlake."""

import pyarrow as pa

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__, key="demo/example/arrow")
    parser.add_argument("-n", "--number", type=int, default=1000, help="number of rows")
    args = parser.parse_args()
    batch = pa.record_batch(
        {
            "key": [f"{args.key}/{row % 10}" for row in range(args.number)],
            "payload": [f"row {row}".encode() for row in range(args.number)],
        }
    )
    with zenoh.open(make_config(zenoh.Config, args)) as session:
        say(f"published {session.put_batch(batch)} rows")


run(main)
